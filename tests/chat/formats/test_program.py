"""Reasoning, text and calls in one output, with the plainest format; expected parts are worked out by hand."""

from __future__ import annotations

import random

import pytest

from imp.chat.formats import hermes
from imp.chat.formats.base import Tool
from tests.chat.formats.harness import THINK, Part, calls, read, same_at_every_cut
from tests.chat.formats.parts import call, text, thought

TOOLS = (Tool("search"), Tool("now"))
CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


CASES: dict[str, tuple[str, bool, list[Part]]] = {
    # output, whether the prompt opened the reasoning, parts
    "text": ("  hi\n\nthere \n", False, [text("  hi\n\nthere \n")]),
    "white space": ("  \n", False, [text("  \n")]),
    "nothing": ("", False, []),
    "g03-01 closing tag only": ("two plus two is four\n</think>\n\n4", True, [thought("two plus two is four"), text("4")]),
    "g03-03 a": ("Hi there", False, [text("Hi there")]),
    "g03-03 b": ("<think>x</think>y", False, [thought("x"), text("y")]),
    "g03-03 c": (CALL, False, [call("now", "{}")]),
    "g03-03 d": ("<think>x</think>y", True, [thought("x"), text("y")]),
    "g03-03 e": ("</think>plan</think>answer", True, [thought("plan"), text("answer")]),
    "closed at once, twice": ("<think>\n</think>\nplan\n</think>\n\nanswer", True, [thought("plan"), text("answer")]),
    "closed at once": ("</think>\n\nanswer\n", True, [text("answer\n")]),
    "closed again, too late": (f"</think>{'x' * 201}</think>y", True, [text("x" * 201 + "y")]),
    "opened by the model, and empty": ("<think>\n\n</think>\n\nplan</think>answer", False, [text("plananswer")]),
    "g03-04 near miss": ("a</thin air>b</think>c", True, [thought("a</thin air>b"), text("c")]),
    "g03-04 literal tag": ("<think>x</think>the `<think>` tag, </think>", False, [thought("x"), text("the `<think>` tag, </think>")]),
    "g03-06": ("<think>p</think>" + CALL, False, [thought("p"), call("now", "{}")]),
    "g03-07 never closed": ("on and on\n", True, [thought("on and on\n")]),
    "g02-01": (
        '<tool_call>\n{"name":"search","arguments":{"q":"a}b","deep":{"k":[1,{"z":2}]}}}\n</tool_call>',
        *(False, [call("search", '{"q":"a}b","deep":{"k":[1,{"z":2}]}}')]),
    ),
    "g02-03": (
        '<tool_call>{"name":"now","arguments":{}}</tool_call>\n<tool_call>{"name":"now"}</tool_call>'
        '<tool_call>{"name":"now","arguments":null}</tool_call> after',
        *(False, [call("now", "{}"), call("now", "{}"), call("now", "{}"), text("after")]),
    ),
    "g02-11": (
        'Let me look.\n<tool_call>{"name":"sh","arguments":{"cmd":"mkdir -p t/{a,b"}}</tool_call>',
        *(False, [text("Let me look."), call("sh", '{"cmd":"mkdir -p t/{a,b"}')]),
    ),
    "arguments first": ('<tool_call>{"arguments": {"a": 1}, "name": "f"}</tool_call>', False, [call("f", '{"a": 1}')]),
    "arguments as text": (r'<tool_call>{"name": "f", "arguments": "{\"a\": 1}"}</tool_call>', False, [call("f", '{"a": 1}')]),
    "no call": ("<tool_call>is a tag", False, [text("<tool_call>is a tag")]),
    "no name": ('<tool_call>{"a": 1}</tool_call>', False, [text('<tool_call>{"a": 1}</tool_call>')]),
    "begun tag": ("a <tool", False, [text("a <tool")]),
    "no closing tag": ('<tool_call>{"name": "f", "arguments": {"a": 1}}', False, [call("f", '{"a": 1}')]),
    "cut in the arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": [1,',
        *(False, [call("f", '{"a": [1,', '<tool_call>{"name": "f", "arguments": {"a": [1,')]),
    ),
    "broken arguments": (
        '<tool_call>{"name": "f", "arguments": {"a": nope, "b": 2}}</tool_call>tail',
        *(False, [call("f", '{"a": null}'), text("tail")]),
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_an_output_has_these_parts_however_it_is_cut(name):
    output, started, parts = CASES[name]
    assert same_at_every_cut(output, hermes.FORMAT, TOOLS, THINK, started) == parts


def test_without_tools_a_tag_is_text():
    assert same_at_every_cut(CALL, hermes.FORMAT) == [text(CALL)]
    assert same_at_every_cut(CALL, None) == [text(CALL)]


def test_g02_02_parallel_calls_or_only_the_first():
    output = "".join(f'<tool_call>{{"name": "f", "arguments": {{"n": {n}}}}}</tool_call>' for n in range(3))
    assert calls(same_at_every_cut(output, hermes.FORMAT, TOOLS)) == [("f", {"n": n}) for n in range(3)]
    assert calls(same_at_every_cut(output, hermes.FORMAT, TOOLS, one_call=True)) == [("f", {"n": 0})]


def test_g02_09_mutations_of_a_call_never_fail_and_never_give_broken_arguments():
    rng = random.Random(9)
    source = 'Well.\n<tool_call>\n{"name": "f", "arguments": {"a": [1, "x\\n"], "b": null}}\n</tool_call>\n' + CALL
    for _ in range(600):
        letters = list(source[: rng.randrange(len(source) + 1)])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(['"', "{", "}", "<tool_call>", "</tool_call>", "\\", "x", ""])
        output = "".join(letters)
        whole = read([output], hermes.FORMAT, TOOLS, THINK)  # checks the arguments of complete calls
        assert read(list(output), hermes.FORMAT, TOOLS, THINK) == whole
