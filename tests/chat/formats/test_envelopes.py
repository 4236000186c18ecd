"""What a format's grammar writes, its parser reads: calls written from the envelopes' texts, and judged by both."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest

from imp.chat.formats.base import Format, Tool
from imp.constrain import tools as grammar
from imp.constrain.nfa import Nfa
from imp.constrain.schema.arguments import arguments
from imp.constrain.tools import Envelope, Pattern, Text
from tests.chat.formats.harness import calls, same_at_every_cut
from tests.chat.formats.modules import FORMATS
from tests.constrain import simulate

SCHEMA = {
    "type": "object",
    "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "ok": {"type": "boolean"}, "none": {"type": "null"}, "l": {"type": "array"}},
    "additionalProperties": False,
}  # fmt: skip
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = (Tool("search", SCHEMA), Tool("now", EMPTY), Tool("a-b.c_2", EMPTY))
SAMPLES = ("0", "7", "abcdefgh1", "a1b2c3d4e5")  # for the patterns of ids and numbers
CALLS: list[tuple[str, dict[str, Any]]] = [
    ("search", {"q": 'a "b" {\\} Łódź\n🦊 ]) </tool_call>', "n": -3, "ok": True, "none": None, "l": [1, "x", {"k": []}]}),
    ("now", {}),
    ("a-b.c_2", {}),
]
ENVELOPES = [(f, e) for f, _ in FORMATS for e in f.envelopes if e.parameters is None or not e.parameters.end]


def spelled(text: Text) -> str:
    pieces = (text,) if isinstance(text, str) else text
    samples = {p: next(s for s in SAMPLES if re.fullmatch(p.regex, s)) for p in pieces if isinstance(p, Pattern)}
    return "".join(samples[piece] if isinstance(piece, Pattern) else piece for piece in pieces)


def value(envelope: Envelope, of: Any) -> str:
    """JSON, with the format's own words for scalars."""
    if isinstance(of, list):
        return "[" + ", ".join(value(envelope, item) for item in of) + "]"
    if isinstance(of, dict):
        return "{" + ", ".join(f"{json.dumps(key)}: {value(envelope, item)}" for key, item in of.items()) + "}"
    written = json.dumps(of, ensure_ascii=False)
    words = envelope.parameters.words if envelope.parameters else grammar.Words()
    return {"null": words.null, "true": words.true, "false": words.false}.get(written, written)


def written(envelope: Envelope, name: str, values: dict[str, Any]) -> str:
    texts = envelope.parameters
    if texts is None:
        inner = value(envelope, values)
    else:
        values = {k if re.fullmatch(texts.key, k) else texts.quote + k + texts.quote: v for k, v in values.items()}
        inner = texts.separator.join(f"{texts.before_key}{k}{texts.after_key}{value(envelope, v)}" for k, v in values.items())
    return spelled(envelope.before_name) + name + spelled(envelope.after_name) + inner + spelled(envelope.after)


def output(envelope: Envelope, wanted: list[tuple[str, dict[str, Any]]]) -> str:
    inner = spelled(envelope.separator).join(written(envelope, name, values) for name, values in wanted)
    return spelled(envelope.opener) + inner + spelled(envelope.closer)


@pytest.mark.parametrize(("format", "envelope"), ENVELOPES, ids=lambda each: getattr(each, "name", ""))
def test_calls_from_the_texts_of_an_envelope_are_allowed_and_read(format: Format, envelope: Envelope):
    nfa = Nfa()
    start = grammar.calls(nfa, [grammar.Tool(tool.name, arguments(tool.parameters)) for tool in TOOLS], envelope, nfa.ret)
    for wanted in [CALLS[:1], CALLS[1:2], CALLS[2:], *([CALLS, CALLS[::-1]] if envelope.parallel else [])]:
        text = output(envelope, wanted)
        assert simulate.accepts(nfa, start, text.encode()), text
        assert calls(same_at_every_cut(text, format, TOOLS, ways=6)) == wanted
    if envelope.parallel is False:
        assert not simulate.accepts(nfa, start, output(envelope, CALLS).encode())


def test_every_format_can_be_enforced():
    assert all(format.envelopes for format, _ in FORMATS)


@pytest.mark.parametrize("format", [format for format, _ in FORMATS], ids=lambda each: each.name)
def test_free_text_may_have_calls_of_every_format_in_it(format: Format):
    """And a call that has begun is one: the arguments of `now` cannot be an array."""
    nfa = Nfa()
    offered = [grammar.Tool(tool.name, arguments(tool.parameters)) for tool in TOOLS]
    start = grammar.lazy_calls(nfa, offered, format.envelopes)
    assert simulate.accepts(nfa, start, b"Hello.") and simulate.accepts(nfa, start, b"")
    for envelope in format.envelopes:
        for wanted in CALLS:
            if envelope.parameters is not None and envelope.parameters.end:
                continue
            text = output(envelope, [wanted])
            before = "" if envelope.at_start else "Well.\n"
            assert simulate.accepts(nfa, start, (before + text).encode()), text
            assert not simulate.accepts(nfa, start, (before + text[: len(text) - len(spelled(envelope.closer)) - 1]).encode())
            if envelope.parameters is None:
                broken = spelled(envelope.opener) + written(envelope, "now", {}).replace("{}", "[]") + spelled(envelope.closer)
                assert not simulate.accepts(nfa, start, (before + broken).encode()), broken
