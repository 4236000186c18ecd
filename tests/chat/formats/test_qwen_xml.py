"""Calls between `<function=...>` tags. Expected parts are worked out by hand from the format's description."""

from __future__ import annotations

import pytest

from imp.chat.formats import qwen_xml
from imp.chat.formats.base import Tool
from tests.chat.formats.harness import THINK, Part, calls, same_at_every_cut

NOW = Tool("now")
SEARCH = Tool("search", {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}}})
TYPES = Tool(
    "types",
    {
        "type": "object",
        "properties": {
            "zip": {"type": "string"}, "flag": {"type": "string"}, "n": {"type": "integer"}, "ratio": {"type": "number"},
            "ok": {"type": "boolean"}, "tags": {"type": "array"}, "opt": {"anyOf": [{"type": "string"}, {"type": "null"}]}, "free": {},
        },
    },
)  # fmt: skip
TOOLS = (NOW, SEARCH, TYPES)


def text(value: str) -> Part:
    return ("text", "", value, "")


def call(name: str, arguments: str, cut: str = "") -> Part:
    return ("tool", name, arguments, cut)


def written(name: str, **values: str) -> str:
    inner = "".join(f"<parameter={key}>\n{value}\n</parameter>\n" for key, value in values.items())
    return f"<tool_call>\n<function={name}>\n{inner}</function>\n</tool_call>"


Q = '{"q": "x"}'
CASES: dict[str, tuple[str, list[Part]]] = {
    "one": (written("search", q="x", n="5"), [call("search", '{"q": "x", "n": 5}')]),
    "text around": (f"Well.\n\n{written('search', q='x')}\nDone.", [text("Well."), call("search", Q), text("Done.")]),
    "reasoning": (f"<think>\nhm\n</think>\n\n{written('now')}", [("reasoning", "", "hm", ""), call("now", "{}")]),
    "parallel": (written("search", q="x") + "\n" + written("now"), [call("search", Q), call("now", "{}")]),
    "two in one": (
        "<tool_call>\n<function=now>\n</function>\n<function=search>\n<parameter=q>\nx\n</parameter>\n</function>\n</tool_call>",
        [call("now", "{}"), call("search", Q)],
    ),
    "g02-03 no arguments": (f"<function=now></function>{written('search', q='x')}after", [call("now", "{}"), call("search", Q), text("after")]),
    "no outer tags": ("I see\n<function=search>\n<parameter=q>\nx\n</parameter>\n</function>", [text("I see"), call("search", Q)]),
    "outer tag only behind": ("<function=now>\n</function>\n</tool_call>", [call("now", "{}")]),
    "no white space": ("<tool_call><function=search><parameter=q>x</parameter></function></tool_call>", [call("search", Q)]),
    "empty value": (written("search", q=""), [call("search", '{"q": ""}')]),
    "lines in a value": (written("search", q="\na\n\n b\n"), [call("search", '{"q": "\\na\\n\\n b\\n"}')]),
    "marks in a value": (
        written("search", q='<function=x> <parameter=y> {"a": "}"} </tool_call> </paramete'),
        [call("search", '{"q": "<function=x> <parameter=y> {\\"a\\": \\"}\\"} </tool_call> </paramete"}')],
    ),
    "unicode and escapes": (written("search", q='Zoë \\n "☂" \\u0041\t'), [call("search", '{"q": "Zoë \\\\n \\"☂\\" \\\\u0041\\t"}')]),
    "unknown tool": (written("dig", a="1", b="x"), [call("dig", '{"a": 1, "b": "x"}')]),
    "the same key twice": (written("search", q="x").replace("</function>", "<parameter=q>\ny\n</parameter>\n</function>"), [call("search", Q)]),
    "function not closed": ("<tool_call>\n<function=search>\n<parameter=q>\nx\n</parameter>\n</tool_call>!", [call("search", Q), text("!")]),
    "next one without an end": ("<function=now>\n<function=search>\n<parameter=q>\nx\n</parameter>\n</function>", [call("now", "{}"), call("search", Q)]),
    "one object": ('<tool_call>\n<function=search>\n{"q": "x"}\n</function>\n</tool_call>', [call("search", Q)]),
    "a tag alone": ("the <tool_call> tag", [text("the <tool_call> tag")]),
    "a function in prose": ("write <function=name> and so on", [text("write <function=name> and so on")]),
    "no name": ("<tool_call>\n<function=>\n</function>", [text("<tool_call>\n<function=>\n</function>")]),
    "no call behind a call": ("<function=now></function> <function=x y", [call("now", "{}"), text("<function=x y")]),
    "begun tag": ("a <funct", [text("a <funct")]),
    "cut in the name": ("<tool_call>\n<function=sea", [text("<tool_call>\n<function=sea")]),
}  # fmt: skip


@pytest.mark.parametrize("name", CASES)
def test_an_output_has_these_parts_however_it_is_cut(name):
    output, parts = CASES[name]
    assert same_at_every_cut(output, qwen_xml.FORMAT, TOOLS, THINK) == parts


@pytest.mark.parametrize(
    ("end", "arguments"),
    [("<parameter=q>", '{"q": '), ("\n", ""), ("<para", ""), ("x", '{"q": "x'), ("</param", '{"q": "x\\n</param'), ("</parameter>", '{"q": "x"')],
)
def test_an_output_that_ends_in_a_call(end, arguments):
    whole = "Hm. <tool_call>\n<function=search>\n<parameter=q>\nx\n</parameter>"
    output = whole[: whole.index(end) + len(end)] if end not in ("\n", "<para") else "Hm. <tool_call>\n<function=search>" + end
    assert same_at_every_cut(output, qwen_xml.FORMAT, TOOLS) == [text("Hm."), call("search", arguments, output[4:])]


def test_g02_04_values_are_typed_by_the_schema():
    values = {"zip": "00731", "flag": "true", "n": "5.0", "ratio": "1e2", "ok": "True", "tags": "[1,2]", "opt": "null", "free": "7"}
    (found,) = calls(same_at_every_cut(written("types", **values), qwen_xml.FORMAT, TOOLS))
    assert found == ("types", {"zip": "00731", "flag": "true", "n": 5, "ratio": 100.0, "ok": True, "tags": [1, 2], "opt": None, "free": 7})
    assert isinstance(found[1]["n"], int)


def test_g02_05_a_value_that_does_not_fit_stays_a_string():
    output = written("types", n="next Tuesday", tags="not [JSON")
    assert calls(same_at_every_cut(output, qwen_xml.FORMAT, TOOLS)) == [("types", {"n": "next Tuesday", "tags": "not [JSON"})]


def test_parallel_calls_or_only_the_first():
    output = written("search", n="1") + written("search", n="2")
    assert calls(same_at_every_cut(output, qwen_xml.FORMAT, TOOLS, one_call=True)) == [("search", {"n": 1})]
