"""Formats whose output is messages with headers: Harmony (gpt-oss) and Muse; and Gemma 4. Expected parts by hand."""

from __future__ import annotations

import json
import random

import pytest

from imp.chat.formats import gemma4, harmony, muse
from imp.chat.formats.base import Thinking, Tool
from tests.chat.formats.harness import Part, calls, read, same_at_every_cut
from tests.chat.formats.parts import call, text, thought

TOOLS = (
    Tool("now"),
    Tool(
        "search",
        {"type": "object", "properties": {"q": {"type": "string"}, "n": {"type": "integer"}, "deep": {"type": "object"}}},
    ),
)
ANALYSIS = Thinking("<|channel|>analysis<|message|>", "<|end|>")
START = "<|start|>assistant"

HARMONY: dict[str, tuple[str, list[Part]]] = {
    "final": ("<|channel|>final<|message|>Hi\n**you**", [text("Hi\n**you**")]),
    "reasoning": (f"<|channel|>analysis<|message|>hm\n<|end|>{START}<|channel|>final<|message|>Hi", [thought("hm"), text("Hi")]),
    "call": (
        f'<|channel|>analysis<|message|>hm<|end|>{START}<|channel|>commentary to=functions.search <|constrain|>json<|message|>{{"q": "x"}}<|call|>',
        [thought("hm"), call("search", '{"q": "x"}')],
    ),
    "recipient first": (' to=functions.search<|channel|>commentary json<|message|>{"q": "x"}<|call|>', [call("search", '{"q": "x"}')]),
    "recipient in the role": (
        f'<|channel|>analysis<|message|>hm<|end|>{START} to=functions.search<|channel|>commentary json<|message|>{{"n":1}}<|call|>',
        [thought("hm"), call("search", '{"n":1}')],
    ),
    "in analysis": ('<|channel|>analysis to=functions.now <|constrain|>json<|message|>{}<|call|>', [call("now", "{}")]),
    "no namespace": ('<|channel|>commentary to=now<|message|>{}', [call("now", "{}")]),
    "no arguments": ('<|channel|>commentary to=functions.now <|constrain|>json<|message|><|call|>', [call("now", "{}")]),
    "unknown tool": ('<|channel|>commentary to=functions.dig <|constrain|>json<|message|>{"a": [1, {"b": "}"}]}', [call("dig", '{"a": [1, {"b": "}"}]}')]),
    "preamble": (
        f'<|channel|>commentary<|message|>Let me look.<|end|>{START}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{}}<|call|>',
        [text("Let me look."), call("now", "{}")],
    ),
    "preamble, then the answer": (f"<|channel|>commentary<|message|>One.\n<|end|>{START}<|channel|>final<|message|>Two.<|return|>", [text("One.\n\nTwo.")]),
    "thinks twice": (
        f"<|channel|>analysis<|message|>a<|end|>{START}<|channel|>analysis<|message|>b<|end|>{START}<|channel|>final<|message|>c",
        [thought("a"), thought("b"), text("c")],
    ),
    "two calls": (
        '<|channel|>commentary to=functions.now <|constrain|>json<|message|>{}<|call|>'
        f'{START}<|channel|>commentary to=functions.search <|constrain|>json<|message|>{{"q": "é\\u00e9"}}<|call|>',
        [call("now", "{}"), call("search", '{"q": "é\\u00e9"}')],
    ),
    "marks in strings": ('<|channel|>commentary to=functions.search<|message|>{"q": "<|end|> } \\" <|call|>"}<|call|>', [call("search", '{"q": "<|end|> } \\" <|call|>"}')]),
    "no header": ("Just text, to=you", [text("Just text, to=you")]),
    "arguments cut": ('<|channel|>commentary to=functions.now<|message|><|ca', [call("now", "", "<|channel|>commentary to=functions.now<|message|><|ca")]),
    "text like a header": ("to=day is", [text("to=day is")]),
    "no JSON": ("<|channel|>commentary to=functions.search<|message|>print(1)<|call|>", [text("print(1)")]),
    "broken JSON": ('<|channel|>commentary to=functions.search<|message|>{"q": nope}<|call|>', [call("search", '{"q": null}')]),
    "header cut": ("<|channel|>analysis<|message|>hm<|end|><|start|>assist", [thought("hm")]),
    "nested": (
        '<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"q": "a", "deep": {"k": [1, {"z": null}]}}<|call|>',
        [call("search", '{"q": "a", "deep": {"k": [1, {"z": null}]}}')],
    ),
    "lines": ('<|channel|>commentary to=functions.search <|constrain|>json<|message|>{\n  "q": "x"\n}\n<|call|>', [call("search", '{\n  "q": "x"\n}')]),
    "no end": ('<|channel|>commentary to=functions.search <|constrain|>json<|message|>{"q": "x"}', [call("search", '{"q": "x"}')]),
    "json without its mark": ('<|channel|>commentary to=functions.search json<|message|>{"n": -3}<|call|>', [call("search", '{"n": -3}')]),
    "code, as it is said in headers": ('<|channel|>commentary to=functions.search code<|message|>{"n": 3}<|call|>', [call("search", '{"n": 3}')]),
    "reasoning, twice, then a call": (
        f'<|channel|>analysis<|message|>a<|end|>{START}<|channel|>analysis<|message|>b<|end|>{START}<|channel|>commentary to=functions.now <|constrain|>json<|message|>{{}}<|call|>',
        [thought("a"), thought("b"), call("now", "{}")],
    ),
    "empty": ("", []),
    "end marks missing": (f"<|channel|>analysis<|message|>hm{START}<|channel|>final<|message|>Hi", [thought("hm"), text("Hi")]),
}  # fmt: skip


@pytest.mark.parametrize("thinking", [None, ANALYSIS])
@pytest.mark.parametrize("name", HARMONY)
def test_harmony_parts_however_the_output_is_cut(name, thinking):
    output, parts = HARMONY[name]
    if (name, thinking) == ("end marks missing", ANALYSIS):  # the first reasoning ends with its mark alone
        return
    assert same_at_every_cut(output, harmony.FORMAT, TOOLS, thinking) == parts


def test_harmony_without_tools_is_read_all_the_same():
    output = f"<|channel|>analysis<|message|>hm<|end|>{START}<|channel|>final<|message|>Hi<|return|>"
    assert same_at_every_cut(output, harmony.FORMAT) == [thought("hm"), text("Hi")]


@pytest.mark.parametrize("format", [harmony.FORMAT])
def test_harmony_calls_that_are_cut_off(format):
    opener = "<|channel|>"
    for arguments in ("", '{"q": "x', '{"q": "x"'):
        output = f"{opener}commentary to=functions.search <|constrain|>json<|message|>{arguments}"
        assert same_at_every_cut(output, format, TOOLS) == [call("search", arguments, output)]


def block(*calls: str) -> str:
    return "<atem:function_calls>\n" + "".join(calls) + "</atem:function_calls>"


SEARCH = '<atem:invoke name="search">\n<atem:parameter name="q">x y\n</atem:parameter>\n<atem:parameter name="n">5</atem:parameter>\n</atem:invoke>\n'
FOUND = call("search", '{"q": "x y\\n", "n": 5}')
NOW = '<atem:invoke name="now">\n</atem:invoke>\n'
MUSE: dict[str, tuple[str, list[Part]]] = {
    "text": (" to=user<|message|>Hi\n<|eot|>", [text("Hi\n")]),
    "reasoning": (f" to=self<|message|>hm<|eom|>{START} to=user<|message|>Hi", [thought("hm"), text("Hi")]),
    "call": (f" to=search<|message|>{block(SEARCH)}<|eot|>", [FOUND]),
    "reasoning, then a call": (f" to=self<|message|>hm<|eom|>{START} to=search<|message|>{block(SEARCH)}", [thought("hm"), FOUND]),
    "two messages": (f" to=search<|message|>{block(SEARCH)}<|eom|>{START} to=now<|message|>{block(NOW)}<|eot|>", [FOUND, call("now", "{}")]),
    "two in a block": (f" to=search<|message|>{block(SEARCH, NOW)}", [FOUND, call("now", "{}")]),
    "no block": (f" to=search<|message|>{SEARCH}", [FOUND]),
    "text before": (f" to=search<|message|>Well. {block(SEARCH)}", [text("Well."), FOUND]),
    "two texts": (f" to=user<|message|>a<|eom|>{START} to=user<|message|>b", [text("a\n\nb")]),
    "thinks twice": (f" to=self<|message|>a<|eom|>{START} to=self<|message|>b<|eom|>{START} to=user<|message|>c", [thought("a"), thought("b"), text("c")]),
    "no header": ("Hi", [text("Hi")]),
    "header cut": (f" to=self<|message|>a<|eom|>{START} to=us", [thought("a")]),
    "block is no call": (" to=user<|message|><atem:function_calls> are nice", [text("<atem:function_calls> are nice")]),
    "unknown tool": (' to=dig<|message|><atem:invoke name="dig.deep">\n</atem:invoke>', [call("dig.deep", "{}")]),
    "cut": (f" to=now<|message|>{NOW[:27]}", [call("now", "", NOW[:27])]),
}  # fmt: skip


@pytest.mark.parametrize("thinking", [None, Thinking("to=self<|message|>", "<|eom|>")])
@pytest.mark.parametrize("name", MUSE)
def test_muse_parts_however_the_output_is_cut(name, thinking):
    output, parts = MUSE[name]
    assert same_at_every_cut(output, muse.FORMAT, TOOLS, thinking) == parts


def g(name: str, inner: str) -> str:
    return "<|tool_call>call:" + name + "{" + inner.replace("'", '<|"|>') + "}<tool_call|>"


GEMMA: dict[str, tuple[str, list[Part]]] = {
    "one": (g("search", "n:5,q:'x'"), [call("search", '{"n": 5, "q": "x"}')]),
    "no arguments": (g("now", ""), [call("now", "{}")]),
    "text around": ("Well.\n" + g("now", "") + "\nDone.", [text("Well."), call("now", "{}"), text("Done.")]),
    "two": (g("now", "") + g("search", "n:1"), [call("now", "{}"), call("search", '{"n": 1}')]),
    "result token": (g("now", "") + "<|tool_response>", [call("now", "{}")]),
    "nested": (
        g("search", "deep:{a:['x',{b:true,c:None}],d:-1.5,e:{},f:[]}"),
        [call("search", '{"deep": {"a": ["x", {"b": true, "c": null}], "d": -1.5, "e": {}, "f": []}}')],
    ),
    "quoted keys": (g("search", "deep:{'a:b':1}"), [call("search", '{"deep": {"a:b": 1}}')]),
    "strings with marks": (g("search", "q:'a,b}c]{\"d\\ \n<tool_call|>'"), [call("search", '{"q": "a,b}c]{\\"d\\\\ \\n<tool_call|>"}')]),
    "numbers of a string": (g("search", "q:'007'"), [call("search", '{"q": "007"}')]),
    "bare word": (g("search", "q:Oslo west,n:2"), [call("search", '{"q": "Oslo west", "n": 2}')]),
    "JSON": (g("search", '"q": "a\\"b", n: 5, deep: {"k": [1, 2]}'), [call("search", '{"q": "a\\"b", "n": 5, "deep": {"k": [1, 2]}}')]),
    "white space": (g("search", " q : 'x' , n : 5 "), [call("search", '{"q": "x", "n": 5}')]),
    "unicode": (g("search", "q:'Zoë ☂'"), [call("search", '{"q": "Zoë ☂"}')]),
    "unknown tool": (g("dig.up", "a:1"), [call("dig.up", '{"a": 1}')]),
    "brace missing": ("<|tool_call>call:search{n:5<tool_call|>.", [call("search", '{"n": 5}'), text(".")]),
    "no call": ("<|tool_call>is a token", [text("<|tool_call>is a token")]),
    "no name": ("<|tool_call>call:{}<tool_call|>", [text("<|tool_call>call:{}<tool_call|>")]),
    "cut in the name": ("<|tool_call>call:sea", [text("<|tool_call>call:sea")]),
    "cut in a string": ('<|tool_call>call:search{q:<|"|>ab', [call("search", '{"q": "ab', '<|tool_call>call:search{q:<|"|>ab')]),
    "cut in a number": ("<|tool_call>call:search{n:5", [call("search", '{"n": ', "<|tool_call>call:search{n:5")]),
}  # fmt: skip


@pytest.mark.parametrize("name", GEMMA)
def test_gemma_4_parts_however_the_output_is_cut(name):
    output, parts = GEMMA[name]
    assert same_at_every_cut(output, gemma4.FORMAT, TOOLS) == parts


def test_gemma_4_nests_only_so_deep():
    (part, *_) = read([g("search", "deep:" + "{a:" * 3000)], gemma4.FORMAT, TOOLS)
    assert part[:2] == ("tool", "search")
    assert json.loads(calls(read([g("search", "deep:" + "[" * 40 + "]" * 40)], gemma4.FORMAT, TOOLS))[0][1]["deep"].__repr__())


SOURCES = {
    "harmony": (harmony.FORMAT, "".join(output for output, _ in HARMONY.values())),
    "muse": (muse.FORMAT, "".join(output for output, _ in MUSE.values())),
    "gemma4": (gemma4.FORMAT, "".join(output for output, _ in GEMMA.values())),
}


@pytest.mark.parametrize("name", SOURCES)
def test_g02_09_mutations_never_fail_and_never_give_broken_arguments(name):
    format, source = SOURCES[name]
    rng = random.Random(name)
    marks = [*format.openers, *format.closers, "{", "}", ":", ",", '"', "to=", " ", "x", ""]
    for _ in range(150):
        at = rng.randrange(len(source))
        letters = list(source[at : at + rng.randrange(300)])
        for _ in range(rng.randrange(5)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(marks)
        output = "".join(letters)
        whole = read([output], format, TOOLS)  # checks the arguments of complete calls
        assert read(list(output), format, TOOLS) == whole
