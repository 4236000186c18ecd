"""How a model speaks, found from its template and its control tokens alone; no name of a model is looked at.

The format of calls is the one whose marks the template has; where it has none's, the one that reads the call which the
template writes of a conversation of ours. The same for reasoning. A template that does not tell the model of tools gets
the prompt of `tool_prompt.py`, whose calls are Hermes'.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from functools import partial

from ...constrain.framing import Frame
from .. import probes, switches
from ..answer import Answer
from ..parts import Channel, Closed, Grown, Opened
from ..reader import Feed
from ..speech import TEXT_ONLY, Voice
from ..template import ChatTemplate
from . import hermes, reasoning, registry
from .base import Format, Thinking, Tool, program


def detect(template: ChatTemplate | None, control_spellings: Sequence[str] = (), parser: str = "auto") -> Voice:
    """control_spellings: texts of the vocabulary's control tokens.  parser: the name of a format, or auto.

    None: there is no template, and so neither calls nor reasoning. Raises KeyError for an unknown name."""
    if template is None:
        return TEXT_ONLY
    thinking = _thinking(template, control_spellings)
    turn = probes.call_turn(template)
    text_arguments = turn is None and (turn := probes.call_turn(template, as_text=True)) is not None
    format = registry.named(parser) if parser != "auto" else _format(template, thinking, turn)
    voice = Voice(
        format,
        thinking,
        shows_tools=probes.knows_tools(template),
        shows_calls=turn is not None,
        shows_several=turn is None or probes.shows_several(template, text_arguments),
        shows_results=probes.shows_results(template),
        text_arguments=text_arguments,
        no_tools=probes.no_tools(template),
        thinks_in_blocks=thinking is not None and probes.thinks_in_blocks(template),
        wants_parts=probes.wants_parts(template),
        frame=_frame(template, thinking, format),
    )
    ask = partial(probes.question, template, tools=voice.no_tools)
    switch = switches.switch(template, ask, voice.thinks) if thinking else None
    return replace(voice, switch=switch, effort=switches.effort(template, ask))


def _thinking(template: ChatTemplate, control_spellings: Sequence[str]) -> Thinking | None:
    return (
        reasoning.by_marks(template.text) or probes.around_reasoning(template) or reasoning.by_tokens(control_spellings)
    )


def _frame(template: ChatTemplate, thinking: Thinking | None, format: Format) -> Frame | None:
    frames = thinking.frames if thinking is not None and thinking.frames else (format.frame,)
    named = (
        each for each in frames if each is not None and isinstance(each.opener, str) and each.opener in template.source
    )
    return next(named, frames[-1])


def _format(template: ChatTemplate, thinking: Thinking | None, turn: str | None) -> Format:
    if turn is None and not probes.knows_tools(template):
        return hermes.FORMAT
    found = registry.by_marks(template.text + (turn or ""))
    if found is None and turn is not None:  # Hermes' objects are read by others too, but not the other way round
        formats = (hermes.FORMAT, *registry.FORMATS.values())
        found = next((each for each in formats if _reads(each, thinking, turn)), None)
    return found or registry.UNKNOWN


def _reads(format: Format, thinking: Thinking | None, turn: str) -> bool:
    """Is the call of our conversation what this format reads in the turn?"""
    answer = Answer(lambda: "id")
    feed = Feed(program(format, thinking, False, answer, {probes.TOOL: Tool(probes.TOOL)}))
    feed.push(turn)
    feed.close()
    events = answer.events()
    calls = {event.index for event in events if isinstance(event, Opened) and event.channel is Channel.TOOL}
    names = [event.name for event in events if isinstance(event, Opened) and event.index in calls]
    arguments = "".join(event.text for event in events if isinstance(event, Grown) and event.index in calls)
    cut = any(event.unfinished for event in events if isinstance(event, Closed))
    return names == [probes.TOOL] and not cut and json.loads(arguments) == probes.ARGUMENTS
