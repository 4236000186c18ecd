"""What a format's grammar writes, its parser reads, where arguments come one by one: written from the envelopes' texts,
and judged by both."""

from __future__ import annotations

import importlib
import json
import pkgutil
import re
from typing import Any

import pytest

from imp.chat import formats
from imp.chat.formats.base import Format, Tool
from imp.constrain import tools as grammar
from imp.constrain.nfa import Nfa
from imp.constrain.schema.arguments import arguments
from imp.constrain.tools import Envelope, ParameterTexts, Pattern, Text
from tests.chat.formats import test_envelopes
from tests.chat.formats.harness import calls, read, same_at_every_cut
from tests.chat.formats.modules import FORMATS
from tests.constrain import simulate

PROPERTIES = {
    "q": {"type": "string"},
    "n": {"type": "integer"},
    "ok": {"type": "boolean"},
    "none": {"type": "null"},
    "l": {"type": "array"},
    "o": {"type": "object"},
    "either": {"type": ["string", "integer"]},
}
SEARCH = {"type": "object", "properties": PROPERTIES, "additionalProperties": False}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
FREE = {"type": "object", "additionalProperties": {"type": "string"}}
TOOLS = (Tool("search", SEARCH), Tool("now", EMPTY), Tool("a-b_2", EMPTY), Tool("free", FREE))
ALL = {"q": 'a "b" {\\} Łódź\n🦊 ]) </x>, \'', "n": -3, "ok": True, "none": None, "l": [1, "x\n<y>", {"k": []}], "o": {"k": {"z": "0"}}}
CALLS: list[list[tuple[str, dict[str, Any]]]] = [
    [("search", ALL)],
    [("search", {"q": ""})],
    [("search", {"q": "007", "n": 7, "either": "x 1"})],
    [("search", {"q": "\n\n a \n", "either": 12})],
    [("now", {})],
    [("free", {"some": "text", "more": "5"})],
    [("a-b_2", {}), ("search", {"q": "x", "l": []}), ("now", {})],
]


ODD = ("first name", "filter[name]", "$top", "@type", "a:b", "a=b", "a,b", "{}", "ключ", "x-y", "a.b", "name")


def enveloped() -> list[tuple[Format, Envelope]]:
    modules = [importlib.import_module(f"{formats.__name__}.{m.name}") for m in pkgutil.iter_modules(formats.__path__)]
    found = {module.FORMAT.name: module.FORMAT for module in modules if hasattr(module, "FORMAT")}
    return [(f, e) for f in found.values() for e in f.envelopes if e.parameters and e.parameters.end]


def spelled(text: Text) -> str:
    pieces = (text,) if isinstance(text, str) else text
    samples = {p: next(s for s in ("1", "array") if re.fullmatch(p.regex, s)) for p in pieces if isinstance(p, Pattern)}
    return "".join(samples[piece] if isinstance(piece, Pattern) else piece for piece in pieces)


def argument(texts: ParameterTexts, key: str, value: Any) -> str:
    """As the documentation of ParameterTexts has it."""
    key = key if not texts.quote or re.fullmatch(texts.key, key) else texts.quote + key + texts.quote
    named = key + texts.named_end if texts.named_end else ""
    if isinstance(value, str):
        return texts.before_key + key + texts.after_key + value + texts.end + named + texts.rest
    end = texts.end if texts.end_json is None else texts.end_json
    inner = json.dumps(value, ensure_ascii=False)
    return texts.before_key + key + spelled(texts.after_key_json or texts.after_key) + inner + end + named + texts.rest


def output(envelope: Envelope, wanted: list[tuple[str, dict[str, Any]]]) -> str:
    texts = envelope.parameters
    assert texts
    written = [
        spelled(envelope.before_name)
        + name
        + spelled(envelope.after_name)
        + texts.separator.join(argument(texts, key, value) for key, value in values.items())
        + spelled(envelope.after)
        for name, values in wanted
    ]
    return spelled(envelope.opener) + spelled(envelope.separator).join(written) + spelled(envelope.closer)


def forced(envelope: Envelope) -> tuple[Nfa, int]:
    nfa = Nfa()
    tools = [grammar.Tool(tool.name, arguments(tool.parameters)) for tool in TOOLS]
    return nfa, grammar.calls(nfa, tools, envelope, nfa.ret)


ENVELOPES = pytest.mark.parametrize(("format", "envelope"), enveloped(), ids=lambda each: getattr(each, "name", ""))


@ENVELOPES
def test_calls_from_the_texts_of_an_envelope_are_allowed_and_read(format, envelope):
    nfa, start = forced(envelope)
    for wanted in CALLS:
        text = output(envelope, wanted)
        assert simulate.accepts(nfa, start, text.encode()), text
        assert calls(read([text], format, TOOLS)) == wanted, text
    assert calls(same_at_every_cut(output(envelope, CALLS[-1]), format, TOOLS)) == CALLS[-1]


@ENVELOPES
def test_a_value_that_holds_the_mark_of_its_end_is_not_allowed(format, envelope):
    nfa, start = forced(envelope)
    marker = envelope.parameters.marker or envelope.parameters.end
    fine = output(envelope, [("search", {"q": "a MARK b"})])
    assert simulate.accepts(nfa, start, fine.encode())
    assert not simulate.accepts(nfa, start, fine.replace("MARK", marker).encode())


@ENVELOPES
def test_nor_is_a_value_in_json_that_holds_it(format, envelope):
    nfa, start = forced(envelope)
    marker = envelope.parameters.marker or envelope.parameters.end
    for values in ({"l": ["MARK"]}, {"l": [["a MARK b"]]}, {"o": {"MARK": 1}}, {"o": {"k": {"z": "MARK"}}}):
        fine = output(envelope, [("search", values)])
        assert simulate.accepts(nfa, start, fine.encode()), fine
        assert not simulate.accepts(nfa, start, fine.replace("MARK", marker).encode())


@ENVELOPES
def test_behind_its_trigger_a_call_is_enforced_in_free_text(format, envelope):
    nfa = Nfa()
    tools = [grammar.Tool(tool.name, arguments(tool.parameters)) for tool in TOOLS]
    start = grammar.lazy_calls(nfa, tools, [envelope])
    text = "Well.\n" + output(envelope, CALLS[0])
    assert simulate.accepts(nfa, start, text.encode())
    assert not simulate.accepts(nfa, start, text.replace("search", "reach").encode())
    assert not simulate.accepts(nfa, start, text[:-1].encode())


def test_keys_that_are_no_names_are_written_and_read():
    for format, _ in FORMATS:
        schema = {"type": "object", "properties": {key: {"type": "string"} for key in ODD}, "additionalProperties": False}
        odd, wanted = Tool("search", schema), [("search", dict.fromkeys(ODD, "v w"))]
        for envelope in format.envelopes:
            if envelope.parameters is None:
                continue
            write = output if envelope.parameters.end else test_envelopes.output
            nfa = Nfa()
            start = grammar.calls(nfa, [grammar.Tool("search", arguments(schema))], envelope, nfa.ret)
            text = write(envelope, wanted)
            assert simulate.accepts(nfa, start, text.encode()), text
            assert calls(read([text], format, (odd,))) == wanted, text


@pytest.mark.parametrize("name", sorted({format.name for format, _ in enveloped()}))
def test_envelopes_of_a_format_can_be_told_by_their_triggers(name):
    envelopes = next(format.envelopes for format, _ in enveloped() if format.name == name)
    nfa = Nfa()
    tools = [grammar.Tool(tool.name, arguments(tool.parameters)) for tool in TOOLS]
    start = grammar.lazy_calls(nfa, tools, envelopes)
    for envelope in envelopes:
        assert simulate.accepts(nfa, start, ("Hm " + output(envelope, CALLS[1])).encode())
