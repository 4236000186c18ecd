"""An output read whole, one character at a time, and at random cuts: the parts must be the same."""

from __future__ import annotations

import itertools
import json
import random
from collections.abc import Iterable, Sequence
from typing import Any

from imp.chat.answer import Answer
from imp.chat.formats.base import Format, Thinking, Tool, program
from imp.chat.parts import Channel, Closed, Grown, Opened
from imp.chat.reader import Feed

THINK = Thinking("<think>", "</think>")

# (channel, name of a call, text or arguments, what of a call was cut off)
Part = tuple[str, str, str, str]


def read(
    pieces: Iterable[str],
    format: Format | None,
    tools: Sequence[Tool] = (),
    thinking: Thinking | None = None,
    started: bool = False,
    one_call: bool = False,
) -> list[Part]:
    """The parts of an output that comes in these pieces; the order of the events is checked."""
    ids = itertools.count()
    answer = Answer(lambda: f"call_{next(ids)}", one_call)
    feed = Feed(program(format, thinking, started, answer, {tool.name: tool for tool in tools}))
    events: list[Any] = []
    for piece in pieces:
        feed.push(piece)
        events += answer.events()
    feed.close()
    events += answer.events()
    parts: list[list[str]] = []
    open_part = False
    for event in events:
        if isinstance(event, Opened):
            assert not open_part and event.index == len(parts)
            assert (event.channel is Channel.TOOL) == bool(event.name) == bool(event.id)
            parts.append([event.channel.value, event.name, "", ""])
            open_part = True
        else:
            assert open_part and event.index == len(parts) - 1
            if isinstance(event, Grown):
                assert event.text
                parts[-1][2] += event.text
            else:
                assert isinstance(event, Closed)
                parts[-1][3], open_part = event.unfinished, False
    assert not open_part
    for channel, _, text, unfinished in parts:
        if channel == "tool" and not unfinished:
            assert isinstance(json.loads(text), dict)
    return [(a, b, c, d) for a, b, c, d in parts]


def cuts(text: str, seed: int = 0, ways: int = 25, pairs: int = 120) -> Iterable[list[str]]:
    """The text whole, by characters, in two at every place of one of up to `pairs`, and at random places."""
    yield [text]
    yield list(text)
    if len(text) <= pairs:
        yield from ([text[:i], text[i:]] for i in range(1, len(text)))
    rng = random.Random(f"{seed}{text}")
    for _ in range(ways):
        marks = sorted(rng.sample(range(len(text) + 1), min(rng.randrange(1, 9), len(text) + 1)))
        yield [text[a:b] for a, b in itertools.pairwise([0, *marks, len(text)])]


def same_at_every_cut(text: str, *args: Any, ways: int = 25, pairs: int = 120, **kwargs: Any) -> list[Part]:
    """The parts, which do not depend on how the text was cut."""
    whole = read([text], *args, **kwargs)
    for pieces in cuts(text, ways=ways, pairs=pairs):
        assert read(pieces, *args, **kwargs) == whole, pieces
    return whole


def calls(parts: Iterable[Part]) -> list[tuple[str, Any]]:
    """Names and arguments of the complete calls."""
    return [(name, json.loads(text)) for channel, name, text, cut in parts if channel == "tool" and not cut]
