"""Every family with JSON arguments, the same situations for each; expected parts follow from what was written."""

from __future__ import annotations

import json
import random

import pytest

from imp.chat.formats import command, functionary, gigachat, solar
from imp.chat.formats.base import Tool
from tests.chat.formats.harness import THINK, calls, read, same_at_every_cut
from tests.chat.formats.parts import call, text, thought
from tests.chat.formats.styles import STYLES, Call, Style

TOOLS = (Tool("search", {"type": "object", "properties": {"q": {"type": "string"}}}), Tool("now"))
MARKERS = "<tool_call></tool_call> [TOOL_CALLS][ARGS]x ``` >>>now\\n <|tool_call_end|> <｜tool▁call▁end｜> </function> ]) functools[ Action: <|/tool_call|>"

DROPPED = (*command.AROUND_TEXT, *solar.AROUND_TEXT, solar.THINK, gigachat.END)  # markers that are no text either

# what one answer calls
SITUATIONS: dict[str, list[Call]] = {
    "one": [("search", '{"q": "Oslo"}')],
    "no arguments": [("now", "{}")],
    "null": [("now", "null"), ("search", '{"q": "x"}')],
    "parallel": [("search", '{"q": "a"}'), ("now", "{}"), ("search", '{"q": "a"}')],
    "nested": [("search", '{"q":"a}b","deep":{"k":[1,{"z":2}], "e": [], "o": {}}}')],
    "braces and quotes": [("search", '{"q": "mkdir -p t/{a,b ] \\" \\\\"}'), ("now", "{}")],
    "markers in a string": [("search", json.dumps({"q": MARKERS}, ensure_ascii=False)), ("now", "{}")],
    "unicode and escapes": [("search", '{"q": "Łódź 🦊 \\u00e9\\n\\t\\/", "日本": "x"}')],
    "numbers and words": [("search", '{"a": -1.5e3, "b": 0, "c": null, "d": true, "e": false}')],
    "lines": [("search", '{\n    "q": "x",\n    "list": [\n        1,\n        2\n    ]\n}'), ("now", "{\n}")],
    "unknown tool": [("fly_to.moon-2", '{"speed": 3}')],
    "array of arrays": [("search", '{"q": [[[]], [[1, "]"]]]}')],
}


def given(style: Style, situation: list[Call]) -> list[Call]:
    situation = [each for each in situation if style.null or each[1] != "null"]
    if style.known:
        situation = [(name if name in ("search", "now") else "search", arguments) for name, arguments in situation]
    return situation if style.parallel else situation[:1]


def bare(output: str) -> str:
    """Without what is no text, and white space around."""
    for marker in DROPPED:
        output = output.replace(marker, "")
    return output.strip()


def expected(situation: list[Call]) -> list[tuple[str, str, str, str]]:
    return [call(name, "{}" if arguments == "null" else arguments) for name, arguments in situation]


@pytest.mark.parametrize("situation", SITUATIONS)
@pytest.mark.parametrize("style", STYLES)
def test_calls_are_read_as_they_were_written(style, situation):
    of, wanted = STYLES[style], given(STYLES[style], SITUATIONS[situation])
    assert same_at_every_cut(of.write(wanted), of.format, TOOLS, ways=9, pairs=0) == expected(wanted)


@pytest.mark.parametrize("style", STYLES)
def test_text_and_reasoning_around_calls(style):
    of, wanted = STYLES[style], given(STYLES[style], SITUATIONS["parallel"])
    written, parts = of.write(wanted), expected(wanted)
    behind = ">>>all\nDone." if of.format is functionary.FORMAT else "\nDone."
    assert same_at_every_cut(written + behind, of.format, TOOLS, ways=4) == [*parts, text("Done.")]
    assert same_at_every_cut(f"<think>\nhm {{\n</think>\n\n{written}", of.format, TOOLS, THINK, ways=4) == [thought("hm {"), *parts]
    assert same_at_every_cut(f"hm {{</think>{written}", of.format, TOOLS, THINK, True, ways=4) == [thought("hm {"), *parts]
    if of.before is not None:
        assert same_at_every_cut(of.before("Let me look. {") + written, of.format, TOOLS, ways=4) == [text("Let me look. {"), *parts]


@pytest.mark.parametrize("style", STYLES)
def test_only_the_first_call_where_only_one_is_wanted(style):
    of = STYLES[style]
    if of.parallel:
        assert calls(same_at_every_cut(of.write(SITUATIONS["parallel"]), of.format, TOOLS, one_call=True)) == [("search", {"q": "a"})]


@pytest.mark.parametrize("style", STYLES)
def test_an_output_that_ends_anywhere_gives_the_calls_that_were_complete(style):
    of, wanted = STYLES[style], given(STYLES[style], SITUATIONS["braces and quotes"])
    whole = of.write(wanted)
    values = [(name, json.loads(arguments)) for name, arguments in wanted]
    ends = [len(of.opener + of.separator.join(of.call(*c, i) for i, c in enumerate(wanted[: n + 1]))) for n in range(len(wanted))]
    for end in range(len(whole)):
        parts = read([whole[:end]], of.format, TOOLS)
        found = calls(parts)
        assert found == values[: len(found)]
        assert len(found) >= sum(complete <= end for complete in ends)
        shown = "".join(part for channel, _, part, _ in parts if channel == "text") + "".join(cut for *_, cut in parts)
        if not found:
            assert bare(shown) == bare(whole[:end]), "nothing is lost"
        assert read(list(whole[:end]), of.format, TOOLS) == parts


@pytest.mark.parametrize("style", STYLES)
def test_arguments_that_are_no_json_are_finished_where_they_break(style):
    of = STYLES[style]
    assert same_at_every_cut(of.write([("search", '{"a": nope, "b": 2}')]), of.format, TOOLS) == [call("search", '{"a": null}')]
    assert same_at_every_cut(of.write([("search", '{"a" 1}')]), of.format, TOOLS) == [call("search", '{"a" :null}')]


@pytest.mark.parametrize("style", STYLES)
def test_what_is_no_call_is_text(style):
    of = STYLES[style]
    for garbage in (" is a marker", "", " \n", "{", '{"a": 1}', "[]", "[1, 2]", '{"name": 3, "arguments": {}}', '{"name": "', "null", "}", "<<<"):
        for opener in of.format.openers:
            parts = same_at_every_cut(opener + garbage, of.format, TOOLS, ways=2)
            assert bare("".join(part for *_, part, _ in parts)) == bare(opener + garbage), (opener, garbage)
            assert not calls(parts)
        if not of.format.openers or of.format.start:
            assert same_at_every_cut(garbage, of.format, TOOLS) == ([text(garbage)] if garbage else [])


@pytest.mark.parametrize("style", STYLES)
def test_without_tools_there_are_no_calls(style):
    of = STYLES[style]
    written = of.write(SITUATIONS["one"])
    assert not calls(same_at_every_cut(written, of.format))
    assert bare("".join(part for *_, part, _ in read([written], of.format))) == bare(written)


@pytest.mark.parametrize("style", STYLES)
def test_mutations_never_fail_and_do_not_depend_on_cuts_seed_9(style):
    of, rng = STYLES[style], random.Random(f"9{style}")
    source = "Well.\n" * (of.before is not None) + of.write(given(of, SITUATIONS["parallel"])) + "\nDone."
    pieces = ['"', "{", "}", "[", "]", "\\", "x", ",", ":", "", "null", "\n", "é", '{"', *of.format.openers, *of.format.closers]
    for _ in range(40):
        letters = list(source[: rng.randrange(len(source) + 1)])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(pieces)
        output = "".join(letters)
        whole = read([output], of.format, TOOLS, THINK)  # checks the arguments of complete calls
        assert read(list(output), of.format, TOOLS, THINK) == whole
