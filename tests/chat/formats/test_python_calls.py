"""Calls as Python writes them. Where the text is Python, `ast` is the judge; the rest is worked out by hand."""

from __future__ import annotations

import ast
import json
import random
from typing import Any

import pytest

from imp.chat.formats import lfm2, pythonic
from imp.chat.formats.base import Tool
from tests.chat.formats.harness import THINK, calls, read, same_at_every_cut
from tests.chat.formats.parts import call, text, thought

TOOLS = (
    Tool("weather", {"type": "object", "properties": {"city": {"type": "string"}, "days": {"type": "integer"}}}),
    Tool("now"),
)


def judged(source: str) -> list[tuple[str, Any]]:
    """The calls of a Python list, according to Python."""
    expression = ast.parse(source, mode="eval").body
    assert isinstance(expression, ast.List)
    found = []
    for each in expression.elts:
        assert isinstance(each, ast.Call)
        found.append((ast.unparse(each.func), {word.arg: ast.literal_eval(word.value) for word in each.keywords}))
    return found


LISTS = [
    "[now()]",
    '[weather(city="Oslo", days=3)]',
    "[weather(city='Oslo'), now(), weather(city='Łódź 🦊', days=-1)]",
    "[ weather( city = 'a' , days = 1, ) , now( ), ]",
    '[\n  weather(\n    city="a)b]c, d=(",\n    days=1_000\n  )\n]',
    r"""[weather(city='it\'s "x"', days=0)]""",
    r'''[weather(city="a\"b\\", days=1)]''',
    r'[weather(city="\n\t\x41\u00e9\U0001F98A\\n", days=1.5)]',
    '[f(a=[1, 2.5, -3e2, "x"], b={"k": [True, False, None], "l": {}}, c=(1, 2), d=[])]',
    "[f(a=None, b=True, c=False, d='None')]",
    '''[f(a="""one "two"\nthree""", b=\'\'\'x\'\'\')]''',
    "[a.b.c(x=1)]",
    "[f(a='<|tool_call_end|>', b='[g()]', c='<|python_end|>')]",
    "[f(a='x', b={'q': 'a: b, c'})]",
    "[f(a=[[[[1]]], {'b': {'c': [{}]}}])]",
]


@pytest.mark.parametrize("source", LISTS)
@pytest.mark.parametrize("way", ["bare", "python", "lfm2"])
def test_what_python_reads_is_read(source, way):
    wanted = json.loads(json.dumps(judged(source)))
    if way == "bare":
        tools = [Tool(name) for name, _ in wanted]
        assert [list(c) for c in calls(same_at_every_cut(source, pythonic.FORMAT, tools))] == wanted
    elif way == "python":
        written = f"<|python_start|>{source}<|python_end|>"
        assert [list(c) for c in calls(same_at_every_cut(written, pythonic.FORMAT, TOOLS))] == wanted
    else:
        parts = same_at_every_cut(f"Well.\n<|tool_call_start|>{source}<|tool_call_end|>\nDone.", lfm2.FORMAT, TOOLS)
        assert [list(c) for c in calls(parts)] == wanted
        assert parts[0] == text("Well.") and parts[-1] == text("Done.")


OPEN, CLOSE = "<|tool_call_start|>", "<|tool_call_end|>"
LOOSE = {
    # no Python, or none that a literal is read from, but models write it
    "quotes as they are": ("[weather(city='it's here', days=2)]", [call("weather", '{"city": "it\'s here", "days": 2}')]),
    "json words": ("[f(a=true, b=false, c=null)]", [call("f", '{"a": true, "b": false, "c": null}')]),
    "words": ("[f(a=next Tuesday, b=x.y)]", [call("f", '{"a": "next Tuesday", "b": "x.y"}')]),
    "no number": ("[f(a=00731, b=.5, c=nan, d=1_000)]", [call("f", '{"a": "00731", "b": 0.5, "c": "nan", "d": 1000}')]),
    "order": ('[weather("Oslo", 3)]', [call("weather", '{"city": "Oslo", "days": 3}')]),
    "no brackets": ("now()", [call("now", "{}")]),
    "not closed": ("[now()", [call("now", "{}")]),
    "objects": ('[{"name": "now", "arguments": {}}, {"name": "f", "arguments": {"a": 1}}]', [call("now", "{}"), call("f", '{"a": 1}')]),
    "an object": ('{"name": "now", "arguments": {"z": [1]}}', [call("now", '{"z": [1]}')]),
    "json escapes": (r'[f(a="\/ \ud83e\udd8a \ud800")]', [call("f", '{"a": "/ 🦊 \ufffd"}')]),
    "the last value counts": ("[f(a=1, a=2)]", [call("f", '{"a": 2}')]),
}


@pytest.mark.parametrize("name", LOOSE)
def test_what_models_write_besides(name):
    written, parts = LOOSE[name]
    assert same_at_every_cut(f"<think>p</think>{OPEN}{written}{CLOSE}", lfm2.FORMAT, TOOLS, THINK) == [thought("p"), *parts]


@pytest.mark.parametrize(
    "garbage",
    ["", "[", "[]", "[1, 2]", "[now]", "[now(", '[now("x")]', "[weather(city=", "[weather(city='x", "(x)", "[f(=1)]", "[f(a={1: })]", "[f(a=" + "[" * 200]
)  # fmt: skip
def test_what_is_no_call_is_text(garbage):
    assert same_at_every_cut(OPEN + garbage, lfm2.FORMAT, TOOLS) == [text(OPEN + garbage)]
    assert same_at_every_cut(garbage, pythonic.FORMAT, TOOLS) == ([text(garbage)] if garbage else [])


def test_a_list_in_an_answer_is_no_call():
    for answer in ("[link](now)", "[1](2)", "[unknown(a=1)]", "Say [now()]", "[now, or later]"):
        assert same_at_every_cut(answer, pythonic.FORMAT, TOOLS) == [text(answer)]


def test_what_breaks_behind_a_call_is_text():
    parts = same_at_every_cut(f"{OPEN}[now(), weather(city=(]{CLOSE}", lfm2.FORMAT, TOOLS)
    assert parts == [call("now", "{}"), text(f", weather(city=(]{CLOSE}")]


def test_an_output_that_ends_anywhere_gives_the_calls_that_were_complete():
    whole = OPEN + '[weather(city="a, b", days=1), now(), f(x={"k": [1]})]' + CLOSE
    wanted = [("weather", {"city": "a, b", "days": 1}), ("now", {}), ("f", {"x": {"k": [1]}})]
    for end in range(len(whole)):
        parts = read([whole[:end]], lfm2.FORMAT, TOOLS)
        found = calls(parts)
        assert found == wanted[: len(found)]
        assert found or "".join(part[2] for part in parts) == whole[:end]


def test_mutations_never_fail_and_do_not_depend_on_cuts_seed_9():
    rng = random.Random(9)
    for _ in range(1500):
        letters = list(OPEN + rng.choice(LISTS) + CLOSE)[: rng.randrange(200)]
        for _ in range(rng.randrange(5)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(['"', "'", '"""', "(", ")", "[", "]", "{", "}", "\\", "\\u12", ",", "=", ":", "", "é", " "])
        output = "".join(letters)
        whole = read([output], lfm2.FORMAT, TOOLS)  # checks the arguments of complete calls
        assert read(list(output), lfm2.FORMAT, TOOLS) == whole
        assert read(list(output[len(OPEN) :]), pythonic.FORMAT, TOOLS) == read([output[len(OPEN) :]], pythonic.FORMAT, TOOLS)
