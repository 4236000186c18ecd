"""Formats that write arguments one by one between marks: the same cases in each, written out by hand."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import dataclass

import pytest

from imp.chat.formats import (
    dsml,
    dsml_v4,
    glm,
    glm_compact,
    hy3,
    kimi_k3,
    minicpm,
    minimax,
    minimax_m3,
    muse,
    qwen_xml,
    seed,
)
from imp.chat.formats.base import Format, Tool
from tests.chat.formats.harness import THINK, Part, calls, read, same_at_every_cut

NOW = Tool("now")
SEARCH = Tool(
    "search",
    {
        "type": "object",
        "properties": {
            "q": {"type": "string"}, "n": {"type": "integer"}, "ratio": {"type": "number"}, "ok": {"type": "boolean"},
            "tags": {"type": "array"}, "deep": {"type": "object"}, "opt": {"type": ["string", "null"]}, "free": {},
        },
    },
)  # fmt: skip
TOOLS = (NOW, SEARCH)


@dataclass(frozen=True)
class Writing:
    """How a format is written: `call` around `argument`s, all calls in `block`."""

    format: Format
    argument: str
    call: str
    block: str = "{}"

    def one(self, name: str, **values: str) -> str:
        inner = "".join(self.argument.replace("KEY", key).replace("VALUE", value) for key, value in values.items())
        return self.call.replace("NAME", name).replace("ARGUMENTS", inner)

    def all(self, *calls: str) -> str:
        return self.block.replace("{}", "".join(calls))


def suffixed(text: str) -> str:
    return text.replace(">", ":opensource>")


DSML_ARGUMENT = '<｜DSML｜parameter name="KEY" string="false">VALUE</｜DSML｜parameter>\n'
DSML_CALL = '<｜DSML｜invoke name="NAME">\nARGUMENTS</｜DSML｜invoke>\n'
WRITINGS = {
    "qwen_xml": Writing(qwen_xml.FORMAT, "<parameter=KEY>\nVALUE\n</parameter>\n", "<tool_call>\n<function=NAME>\nARGUMENTS</function>\n</tool_call>\n"),
    "seed": Writing(seed.FORMAT, "<parameter=KEY>VALUE</parameter>\n", "<seed:tool_call>\n<function=NAME>\nARGUMENTS</function>\n</seed:tool_call>\n"),
    "minimax": Writing(minimax.FORMAT, '<parameter name="KEY">VALUE</parameter>\n', '<invoke name="NAME">\nARGUMENTS</invoke>\n', "<minimax:tool_call>\n{}</minimax:tool_call>"),
    "glm": Writing(glm.FORMAT, "<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n", "<tool_call>NAME\nARGUMENTS</tool_call>\n"),
    "glm_compact": Writing(glm_compact.FORMAT, "<arg_key>KEY</arg_key><arg_value>VALUE</arg_value>", "<tool_call>NAMEARGUMENTS</tool_call>"),
    "dsml": Writing(dsml.FORMAT, DSML_ARGUMENT, DSML_CALL, "<｜DSML｜function_calls>\n{}</｜DSML｜function_calls>"),
    "dsml_v4": Writing(dsml_v4.FORMAT, DSML_ARGUMENT, DSML_CALL, "<｜DSML｜tool_calls>\n{}</｜DSML｜tool_calls>"),
    "minicpm": Writing(minicpm.FORMAT, '<param name="KEY">VALUE</param>', '<function name="NAME">ARGUMENTS</function>'),
    "hy3": Writing(
        hy3.FORMAT,
        suffixed("<arg_key>KEY</arg_key>\n<arg_value>VALUE</arg_value>\n"),
        suffixed("<tool_call>NAME<tool_sep>\nARGUMENTS</tool_call>\n"),
        suffixed("<tool_calls>\n{}</tool_calls>"),
    ),
    "kimi_k3": Writing(
        kimi_k3.FORMAT,
        '<|open|>argument key="KEY" type="number"<|sep|>VALUE<|close|>argument<|sep|>',
        '<|open|>call tool="NAME" index="1"<|sep|>ARGUMENTS<|close|>call<|sep|>',
        "<|open|>tools<|sep|>{}<|close|>tools<|sep|>",
    ),
    "muse": Writing(
        muse.FORMAT,
        '<atem:parameter name="KEY">VALUE</atem:parameter>\n',
        '<atem:invoke name="NAME">\nARGUMENTS</atem:invoke>\n',
        "<atem:function_calls>\n{}</atem:function_calls>",
    ),
    "minimax_m3": Writing(
        minimax_m3.FORMAT,
        "]<]minimax[>[<KEY>VALUE]<]minimax[>[</KEY>",
        ']<]minimax[>[<invoke name="NAME">ARGUMENTS]<]minimax[>[</invoke>\n',
        "]<]minimax[>[<tool_call>\n{}]<]minimax[>[</tool_call>",
    ),
}  # fmt: skip


def text(value: str) -> Part:
    return ("text", "", value, "")


def call(name: str, arguments: str, cut: str = "") -> Part:
    return ("tool", name, arguments, cut)


Q = '{"q": "x"}'
CASES: dict[str, Callable[[Writing], tuple[str, list[Part]]]] = {
    "one": lambda w: (w.all(w.one("search", q="x", n="5")), [call("search", '{"q": "x", "n": 5}')]),
    "text around": lambda w: (f"Well.\n\n{w.all(w.one('search', q='x'))}\nDone.", [text("Well."), call("search", Q), text("Done.")]),
    "reasoning": lambda w: (f"<think>\nhm\n</think>\n\n{w.all(w.one('now'))}", [("reasoning", "", "hm", ""), call("now", "{}")]),
    "parallel": lambda w: (w.all(w.one("search", q="x"), w.one("now"), w.one("search", q="y")), [call("search", Q), call("now", "{}"), call("search", '{"q": "y"}')]),
    "two blocks": lambda w: (w.all(w.one("now")) + "\n" + w.all(w.one("search", q="x")), [call("now", "{}"), call("search", Q)]),
    "no arguments": lambda w: (w.all(w.one("now")) + "after", [call("now", "{}"), text("after")]),
    "empty value": lambda w: (w.all(w.one("search", q="")), [call("search", '{"q": ""}')]),
    "numbers of a string": lambda w: (w.all(w.one("search", q="00731")), [call("search", '{"q": "00731"}')]),
    "types": lambda w: (
        w.all(w.one("search", n="5.0", ratio="1e2", ok="True", tags="[1,2]", opt="null", free="7")),
        [call("search", '{"n": 5, "ratio": 1e2, "ok": true, "tags": [1,2], "opt": null, "free": 7}')],
    ),
    "misfit": lambda w: (w.all(w.one("search", n="next Tuesday", deep="{no")), [call("search", '{"n": "next Tuesday", "deep": "{no"}')]),
    "nested": lambda w: (w.all(w.one("search", deep='{"a": [{"b": "}<c>\\n"}, null]}')), [call("search", '{"deep": {"a": [{"b": "}<c>\\n"}, null]}}')]),
    "lines": lambda w: (w.all(w.one("search", q="a\n\n b")), [call("search", '{"q": "a\\n\\n b"}')]),
    "unicode and escapes": lambda w: (w.all(w.one("search", q='Zoë "☂" \\n {"}')), [call("search", '{"q": "Zoë \\"☂\\" \\\\n {\\"}"}')]),
    "near misses of marks": lambda w: (w.all(w.one("search", q="</ <tool_cal <｜DSML｜ </arg_valu </para </param")), [call("search", '{"q": "</ <tool_cal <｜DSML｜ </arg_valu </para </param"}')]),
    "unknown tool": lambda w: (w.all(w.one("dig", a="1", b="x")), [call("dig", '{"a": 1, "b": "x"}')]),
    "unknown key": lambda w: (w.all(w.one("search", more="[1]")), [call("search", '{"more": [1]}')]),
    "white space between": lambda w: (w.all(" \n" + w.one("search", q="x") + "\n\n") + " \n\n", [call("search", Q)]),
    "opener alone": lambda w: (f"the {w.format.openers[0]} tag", [text(f"the {w.format.openers[0]} tag")]),
    "begun opener": lambda w: (f"a {w.format.openers[0][:-1]}", [text(f"a {w.format.openers[0][:-1]}")]),
    "one object": lambda w: (w.all(w.call.replace("NAME", "search").replace("ARGUMENTS", '{"q": "x"}')), [call("search", Q)]),
}  # fmt: skip


MISSING = {("minimax_m3", "one object")}  # its arguments are elements always


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("format", WRITINGS)
def test_an_output_has_these_parts_however_it_is_cut(format, case):
    if (format, case) in MISSING:
        return
    output, parts = CASES[case](WRITINGS[format])
    assert same_at_every_cut(output, WRITINGS[format].format, TOOLS, THINK) == parts


@pytest.mark.parametrize("format", WRITINGS)
def test_an_output_that_ends_anywhere_is_a_whole_call_a_cut_one_or_text(format):
    w = WRITINGS[format]
    output = "Hm. " + w.all(w.one("search", q="ab", n="5"))
    for end in range(5, len(output)):
        parts = read([output[:end]], w.format, TOOLS)
        assert parts[0][:2] == ("text", "")
        if len(parts) > 1 and parts[1][3]:
            assert parts[1][:2] == ("tool", "search")
            assert len(parts) == 2
            assert parts[1][3] == output[4:end]
            assert parts[1][2] in '{"q": "ab", "n": 5}' or parts[1][2].startswith('{"q": "ab')
        elif len(parts) > 1:
            assert parts[1] == call("search", '{"q": "ab", "n": 5}')
        else:
            assert parts == [text(output[:end])] or output[:end].isspace() or parts == [text(output[:end].rstrip())]


@pytest.mark.parametrize("format", WRITINGS)
def test_g02_09_mutations_never_fail_and_never_give_broken_arguments(format):
    w = WRITINGS[format]
    rng = random.Random(format)
    source = "Well.\n" + w.all(w.one("search", q='a\n"b"', n="5"), w.one("now")) + "end"
    marks = [*w.format.openers, *w.format.closers, "<", ">", '"', "\n", "{", "x", ""]
    for _ in range(150):
        letters = list(source[: rng.randrange(len(source) + 1)])
        for _ in range(rng.randrange(4)):
            at = rng.randrange(len(letters) + 1)
            letters[at : at + rng.randrange(3)] = rng.choice(marks)
        output = "".join(letters)
        whole = read([output], w.format, TOOLS, THINK)  # checks the arguments of complete calls
        assert read(list(output), w.format, TOOLS, THINK) == whole


@pytest.mark.parametrize("format", WRITINGS)
def test_one_call_only(format):
    w = WRITINGS[format]
    output = w.all(w.one("search", n="1"), w.one("search", n="2"))
    assert calls(same_at_every_cut(output, w.format, TOOLS, one_call=True)) == [("search", {"n": 1})]


@pytest.mark.parametrize("format", ["qwen_xml", "seed", "minimax", "glm", "glm_compact", "dsml", "hy3"])
def test_a_call_that_is_one_object_between_the_marks(format):
    w = WRITINGS[format]
    opener, closer = w.format.openers[0], w.all(w.one("now")).strip().rpartition("</")[2]
    inner = '{"name": "search", "arguments": {"q": "x"}}'
    output = f"{opener}\n{inner}\n</{closer}\n{w.all(w.one('now'))} end"
    assert same_at_every_cut(output, w.format, TOOLS) == [call("search", Q), call("now", "{}"), text("end")]
    no_call = f'{opener}{{"a": 1}}</{closer}'
    assert same_at_every_cut(no_call, w.format, TOOLS) == [text(no_call)]


def test_deepseek_says_what_is_a_string():
    tools = (Tool("f", {"properties": {"s": {"type": "string"}, "n": {"type": "integer"}}}),)
    argument = '<｜DSML｜parameter name="{}" string="{}">5</｜DSML｜parameter>\n'
    inner = "".join(argument.format(*pair) for pair in [("s", "false"), ("n", "true"), ("a", "true"), ("b", "false")])
    output = f'<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">\n{inner}</｜DSML｜invoke>\n</｜DSML｜function_calls>'
    assert calls(same_at_every_cut(output, dsml.FORMAT, tools)) == [("f", {"s": "5", "n": 5, "a": "5", "b": 5})]


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("<![CDATA[a < b && c\n</param>]]>", "a < b && c\n</param>"), ("<![CDATA[x]]y]]>z]]>", "x]]y]]>z"), ("<![CDATA[]]>", ""),
        ("<![CDATA[x]]> \n", "x"), ("a <![CDATA[b]]>", "a <![CDATA[b]]>"), ("&lt;", "&lt;"),
    ],
)  # fmt: skip
def test_minicpm_values_in_cdata_sections(value, found):
    output = f'<function name="search"><param name="q">{value}</param></function>'
    assert calls(same_at_every_cut(output, minicpm.FORMAT, TOOLS)) == [("search", {"q": found})]


def test_arguments_of_a_long_call_come_while_they_are_written():
    w = WRITINGS["minimax"]
    value = "word " * 400
    output = w.all(w.one("search", q=value))
    start, end = output.index(value), output.index(value) + len(value)
    (part,) = read([output[:end]], w.format, TOOLS)
    assert json.loads(part[2] + '"}') == {"q": value}
    assert start < end


M3_TOOL = Tool(
    "book",
    {
        "type": "object",
        "properties": {
            "days": {"type": "array", "items": {"type": "integer"}},
            "who": {"type": "object", "properties": {"name": {"type": "string"}, "item": {"type": "string"}}},
            "many": {"type": "array", "items": {"type": "object", "properties": {"zip": {"type": "string"}}}},
        },
    },
)
N = "]<]minimax[>["


@pytest.mark.parametrize(
    ("inner", "arguments"),
    [
        ("<days>N<item>1N</item>N<item>2N</item>N</days>", {"days": [1, 2]}),
        ("<days>N<item>1N</item>N</days>", {"days": [1]}),
        ("<days>N</days>", {"days": []}),
        ("<who>N</who>", {"who": {}}),
        ("<who>\nN<name>007N</name>\nN<item>1N</item>\nN</who>", {"who": {"name": "007", "item": "1"}}),
        ("<many>N<item>N<zip>00731N</zip>N</item>N<item>N<zip>N</zip>N<n>1N</n>N</item>N</many>", {"many": [{"zip": "00731"}, {"zip": "", "n": 1}]}),
        ("<days>[1, 2]N</days>N<who>{\"name\": \"Zoë\"}N</who>", {"days": [1, 2], "who": {"name": "Zoë"}}),
        ("<new>N<a>N<b>xN</b>N<b>yN</b>N</a>N</new>", {"new": {"a": {"b": "y"}}}),
        ("<new>N<item>N<item>1N</item>N</item>N</new>", {"new": [[1]]}),
        ("<days>noneN</days>", {"days": "none"}),
    ],
)  # fmt: skip
def test_minimax_m3_values_of_elements(inner, arguments):
    output = f'N<tool_call>\nN<invoke name="book">N{inner}N</invoke>\nN</tool_call>'.replace("N", N).replace(N + "oË", "Noë")
    assert calls(same_at_every_cut(output, minimax_m3.FORMAT, (M3_TOOL,))) == [("book", arguments)]


def test_minimax_m3_elements_without_end_are_no_danger():
    output = f'{N}<tool_call>{N}<invoke name="book">' + f"{N}<a>" * 5000
    (part, *_) = read([output], minimax_m3.FORMAT, (M3_TOOL,))
    assert part[:2] == ("tool", "book")
    assert part[3]


@pytest.mark.parametrize("tools", [TOOLS, ()])
def test_kimi_k3_text_stands_in_an_element(tools):
    output = "<|open|>response<|sep|>Hi **you**\n<|close|>response<|sep|>"
    assert same_at_every_cut(output, kimi_k3.FORMAT, tools) == [text("Hi **you**\n")]
    output = "<|open|>think<|sep|>hm<|close|>think<|sep|>" + output + "<|close|>message<|sep|><|end_of_msg|>"
    assert same_at_every_cut(output, kimi_k3.FORMAT, tools)[0] == ("reasoning", "", "hm", "")


def test_kimi_k3_text_then_calls_with_one_object_or_keys_that_are_escaped():
    argument = '<|open|>argument key="a&amp;&quot;b" type="string"<|sep|>1<|close|>argument<|sep|>'
    output = (
        "<|open|>response<|sep|>Well.<|close|>response<|sep|><|open|>tools<|sep|>"
        '<|open|>call tool="search" index="1"<|sep|><|open|>json type="object"<|sep|>{"n": 1}<|close|>json<|sep|><|close|>call<|sep|>'
        f'<|open|>call tool="search" index="2"<|sep|>{argument}<|close|>call<|sep|><|close|>tools<|sep|>'
    )
    parts = same_at_every_cut(output, kimi_k3.FORMAT, TOOLS)
    assert parts == [text("Well."), call("search", '{"n": 1}'), call("search", '{"a&\\"b": "1"}')]
