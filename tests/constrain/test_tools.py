"""Tool calls in the words of several formats: forced, lazily triggered, behind reasoning; without near misses."""

from __future__ import annotations

import ast
import json
import random

import jsonschema
import pytest

from imp.constrain.errors import Code, ConstraintError
from imp.constrain.free import free_text, spelled
from imp.constrain.nfa import UNBOUNDED, Nfa, special
from imp.constrain.schema.arguments import arguments
from imp.constrain.tools import (
    NO_CONTROLS,
    Envelope,
    ParameterTexts,
    Pattern,
    Tool,
    Vocabulary,
    Words,
    calls,
    lazy_calls,
)

from . import simulate
from .test_regex import cases

HERMES = Envelope('<tool_call>\n{"name": "', '", "arguments": ', "}\n</tool_call>", separator="\n", trigger="<tool_call>", quoted_name=True)
QWEN_XML = Envelope(
    "<tool_call>\n<function=", ">\n", "</function>\n</tool_call>", separator="\n", trigger="<tool_call>",
    parameters=ParameterTexts("<parameter=", ">\n", "\n</parameter", ">\n"),
)  # fmt: skip
GLM = Envelope(
    "<tool_call>", "\n", "</tool_call>", separator="\n",
    parameters=ParameterTexts("<arg_key>", "</arg_key>\n<arg_value>", "</arg_value", ">\n"),
)  # fmt: skip
MISTRAL = Envelope('{"name": "', '", "arguments": ', "}", opener="[TOOL_CALLS][", separator=", ", closer="]", trigger="[TOOL_CALLS]", quoted_name=True)
KIMI = Envelope(
    "<|tool_call_begin|>functions.", (":", Pattern("0|[1-9][0-9]{0,2}"), "<|tool_call_argument_begin|>"), "<|tool_call_end|>",
    opener="<|tool_calls_section_begin|>", closer="<|tool_calls_section_end|>",
)  # fmt: skip
KIMI_CONTROLS = {text: 100 + i for i, text in enumerate(["<|tool_calls_section_begin|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>", "<|tool_call_argument_begin|>", "<|tool_call_end|>"])}

WEATHER = {"type": "object", "properties": {"city": {"type": "string", "minLength": 1}, "days": {"type": "integer", "minimum": 1, "maximum": 9}}, "required": ["city"], "additionalProperties": False}
EMPTY = {"type": "object", "properties": {}, "additionalProperties": False}
TOOLS = [Tool("weather", arguments(WEATHER)), Tool("now", arguments(EMPTY)), Tool('odd"name', arguments(EMPTY))]


def forced(envelope: Envelope, tools=TOOLS, vocabulary=NO_CONTROLS, **limits):
    nfa = Nfa()
    start = calls(nfa, tools, envelope, nfa.ret, vocabulary, **limits)
    return lambda text: simulate.accepts(nfa, start, spelled(text, vocabulary.spellings))


@pytest.mark.parametrize(("kind", "envelope"), [("tool_json", HERMES), ("tool_xml", QWEN_XML)])
def test_cases_of_the_specification(kind, envelope):
    for parameters in cases(kind):
        case = parameters.values[0]
        if case is None:
            pytest.skip("shared/spec is not here")
        accepts = forced(envelope, [Tool(tool["name"], arguments(tool["parameters"])) for tool in case["spec"]["tools"]])
        for text in case["accept"]:
            assert accepts(text), text
        for text in case["reject"]:
            assert not accepts(text), text


def test_names_are_quoted_where_they_stand_in_json():
    assert forced(HERMES)('<tool_call>\n{"name": "odd\\"name", "arguments": {}}\n</tool_call>')
    assert forced(GLM)('<tool_call>odd"name\n</tool_call>')


def test_parallel_calls_are_counted():
    one = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
    assert [forced(HERMES)("\n".join([one] * n)) for n in range(4)] == [False, True, True, True]
    assert [forced(HERMES, high=1)("\n".join([one] * n)) for n in range(3)] == [False, True, False]
    assert [forced(HERMES, low=2, high=3)("\n".join([one] * n)) for n in range(5)] == [False, False, True, True, False]
    assert not forced(HERMES)(one + "\n") and not forced(HERMES)(one + one)


def test_an_array_of_calls():
    accepts = forced(MISTRAL)
    one, two = '{"name": "now", "arguments": {}}', '{"name": "weather", "arguments": {"city": "Łódź", "days": 3}}'
    assert accepts(f"[TOOL_CALLS][{one}]") and accepts(f"[TOOL_CALLS][{one}, {two}]")
    for bad in (f"[TOOL_CALLS][{one}, ]", "[TOOL_CALLS][]", f"[TOOL_CALLS][{one}", f"[{one}]", f'[TOOL_CALLS][{two[:-1].replace("3", "10")}}}]'):
        assert not accepts(bad), bad


def test_control_tokens_and_patterns_in_an_envelope():
    accepts = forced(KIMI, vocabulary=Vocabulary(KIMI_CONTROLS))
    call = "<|tool_call_begin|>functions.now:{}<|tool_call_argument_begin|>{{}}<|tool_call_end|>"
    section = "<|tool_calls_section_begin|>{}<|tool_calls_section_end|>"
    assert accepts(section.format(call.format(0) + call.format(17)))
    assert not accepts(section.format(call.format("00"))) and not accepts(section.format(""))
    nfa = Nfa()
    start = calls(nfa, TOOLS, KIMI, nfa.ret, Vocabulary(KIMI_CONTROLS))
    assert not simulate.accepts(nfa, start, section.format(call.format(0)).encode()), "spelled as text it is no token"


XML_TOOL = {
    "type": "object",
    "properties": {
        "text": {"type": "string"}, "kind": {"enum": ["a b", "c", 5, None]}, "n": {"type": ["integer", "null"]},
        "code": {"type": "string", "pattern": "^[A-Z]{2,3}$"}, "short": {"type": "string", "maxLength": 3},
        "list": {"type": "array", "items": {"type": "string"}}, "any": {}, "long": {"type": "string", "maxLength": 100_000},
    },
    "required": ["text"],
    "additionalProperties": False,
}  # fmt: skip


def glm(**values: str) -> str:
    return "<tool_call>f\n" + "".join(f"<arg_key>{k}</arg_key>\n<arg_value>{v}</arg_value>\n" for k, v in values.items()) + "</tool_call>"


@pytest.mark.parametrize(
    ("values", "good"),
    [
        ({"text": ""}, True),
        ({"text": 'raw "quotes" \\ and\n\n<b>markup</b> &amp; é😀\t'}, True),
        ({"text": "</arg_valu </arg_key> </tool_call>"}, True),
        ({"text": "</arg_value"}, False),
        ({"text": "x</arg_value1>y"}, False),
        ({}, False),
        ({"text": "1", "kind": "a b"}, True),
        ({"text": "1", "kind": "c"}, True),
        ({"text": "1", "kind": "5"}, True),
        ({"text": "1", "kind": "null"}, True),
        ({"text": "1", "kind": '"c"'}, False),
        ({"text": "1", "kind": "d"}, False),
        ({"text": "1", "n": "-12"}, True),
        ({"text": "1", "n": "null"}, True),
        ({"text": "1", "n": '"1"'}, False),
        ({"text": "1", "n": "1.5"}, False),
        ({"text": "1", "n": ""}, False),
        ({"text": "1", "code": "AB"}, True),
        ({"text": "1", "code": "ab"}, False),
        ({"text": "1", "short": "żół"}, True),
        ({"text": "1", "short": "żółć"}, False),
        ({"text": "1", "list": '["a", "<arg_value>"]'}, True),
        ({"text": "1", "list": '["a", "</arg_value>"]'}, False),  # readers end the value there
        ({"text": "1", "list": "[1]"}, False),
        ({"text": "1", "any": "free text"}, True),
        ({"text": "1", "any": '{"a": 1}'}, True),
        ({"text": "1", "n": "1", "any": "x"}, True),
        ({"text": "1", "other": "x"}, False),
        ({"n": "1", "text": "1"}, False),
    ],
)
def test_parameters_one_by_one(values, good):
    assert forced(GLM, [Tool("f", arguments(XML_TOOL))])(glm(**values)) == good


PYTHONIC = Envelope(
    "", "(", ")", opener="[", separator=", ", closer="]",
    parameters=ParameterTexts("", "=", separator=", ", words=Words("None", "True", "False")),
)  # fmt: skip


def test_calls_as_python_writes_them():
    """Judged by Python: what is let through is a call expression whose keywords fulfil the schema."""
    schema = {"type": "object", "properties": {"city": {"type": "string"}, "n": {"type": ["integer", "null"]}, "ok": {"type": "boolean"}, "l": {"type": "array", "items": {"type": "boolean"}}}, "required": ["city"], "additionalProperties": False}
    accepts = forced(PYTHONIC, [Tool("get", arguments(schema)), Tool("now", arguments(EMPTY))])
    good = ["[now()]", '[get(city="Łódź")]', '[get(city="a\\"b", n=None, ok=True, l=[True, False]), now()]', '[get(city="x", n=-3)]']
    for text in good:
        assert accepts(text), text
        for call in ast.parse(text, mode="eval").body.elts:
            if call.func.id == "get":
                jsonschema.validate({word.arg: ast.literal_eval(word.value) for word in call.keywords}, schema)
    for text in ("[]", "[get()]", '[get(city="x", n=null)]', '[get(city="x", ok=true)]', '[get(city=x)]', '[get(n=1, city="x")]', "[now(), ]", "now()", '[get(city="x",)]'):
        assert not accepts(text), text


def test_undeclared_parameters_where_the_schema_allows_them():
    accepts = forced(GLM, [Tool("f", arguments({"type": "object", "properties": {"a": {"type": "integer"}}, "maxProperties": 2}))])
    assert accepts(glm()) and accepts(glm(b="x")) and accepts(glm(a="1", b="x")) and not accepts(glm(a="x"))
    assert not accepts(glm(a="1", b="x", c="y"))
    assert not accepts(glm().replace("</tool_call>", "<arg_key>a<b</arg_key>\n<arg_value>1</arg_value>\n</tool_call>"))


def test_a_value_that_needs_the_end_marker_is_refused():
    with pytest.raises(ConstraintError) as caught:
        forced(GLM, [Tool("f", arguments({"type": "object", "properties": {"a": {"const": "</arg_value>"}}, "required": ["a"]}))])
    assert caught.value.code is Code.UNSATISFIABLE and "</arg_value" in caught.value.reason


def test_an_end_marker_that_overlaps_itself_is_a_mistake_of_the_format():
    with pytest.raises(ValueError, match="overlaps"):
        ParameterTexts("<", ">", "--x--")


def test_unsatisfiable_and_missing_tools_are_refused():
    with pytest.raises(ConstraintError):
        forced(GLM, [Tool("f", arguments({"type": "object", "properties": {"a": False}, "required": ["a"]}))])
    with pytest.raises(ConstraintError):
        forced(HERMES, [])
    with pytest.raises(ConstraintError):
        forced(HERMES, low=2, high=1)


def random_walk(nfa: Nfa, start: int, draw: random.Random, limit: int = 400) -> bytes:
    state, data = simulate.begin(nfa, start), bytearray()
    while simulate.ACCEPT not in state or draw.random() < 0.5:
        live = simulate.live_bytes(nfa, state)
        if not live:
            break
        assert len(data) < limit * 10
        ending = [byte for byte in live if chr(byte) in '"</>}]' or byte == 10]
        data.append(draw.choice(ending if ending and draw.random() < 0.5 else sorted(live)))
        state = simulate.step(nfa, state, data[-1])
        assert state, bytes(data)
    return bytes(data)


def test_whatever_the_automaton_lets_through_is_a_valid_call():
    draw = random.Random(6)
    for _ in range(60):
        nfa = Nfa()
        start = calls(nfa, TOOLS[:2], HERMES, nfa.ret, high=1)
        body = random_walk(nfa, start, draw).decode().removeprefix("<tool_call>\n").removesuffix("\n</tool_call>")
        call = json.loads(body)
        jsonschema.validate(call["arguments"], WEATHER if call["name"] == "weather" else EMPTY)


# --- lazily -------------------------------------------------------------------------------------------------------------


def lazily(envelopes, vocabulary=NO_CONTROLS, **limits):
    nfa = Nfa()
    start = lazy_calls(nfa, TOOLS, envelopes, vocabulary, **limits)
    return lambda text: simulate.accepts(nfa, start, spelled(text, vocabulary.spellings) if isinstance(text, str) else text)


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'


def test_g02_13_g02_11_text_is_free_until_the_opener_is_complete():
    accepts = lazily([HERMES])
    for text in ("", "Just prose, with { and <tool and <tool_cal.", "<tool_cal<tool_cal", f"Let me look.\n{CALL}", f"<{CALL}", f"<tool_call{CALL}"[:10] + CALL):
        assert accepts(text), text
    for text in ("<tool_call>", "x <tool_call> y", f"{CALL}\n<tool_call>", '<tool_call>\n{"name": "nope", "arguments": {}}\n</tool_call>', "<tool_call<tool_call> is prose"):
        assert not accepts(text), text


def test_after_calls_text_is_free_again_or_over():
    assert lazily([HERMES])(f"{CALL}\n{CALL} done. {CALL}") and lazily([HERMES])(f"{CALL} done.")
    one = lazily([HERMES], high=1)
    assert one(f"text {CALL}") and not one(f"{CALL}\n{CALL}") and not one(f"{CALL} text")
    assert not lazily([HERMES])(f"{CALL} done. <tool_call> x")


def test_several_openers():
    accepts = lazily([HERMES, MISTRAL])
    assert accepts(f'a [TOOL_CALLS][{{"name": "now", "arguments": {{}}}}] b {CALL} c')
    assert not accepts("a [TOOL_CALLS] b") and not accepts("a <tool_call> b")


def test_a_control_token_that_is_written_as_text_begins_a_call_too():
    """Readers see text, and cannot tell."""
    vocabulary = Vocabulary(KIMI_CONTROLS, frozenset(KIMI_CONTROLS.values()))
    accepts = lazily([KIMI], vocabulary)
    call = spelled("<|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>", KIMI_CONTROLS)
    opener = "<|tool_calls_section_begin|>"
    for begun in (opener.encode(), spelled(opener, KIMI_CONTROLS)):
        assert accepts(b"Hm. " + begun + call) and not accepts(b"Hm. " + begun) and not accepts(begun + b" is a token")


def test_a_control_token_that_ends_the_output_needs_not_be_written():
    """Those of Solar's vocabulary: `<|calls|>` behind all calls ends the turn."""
    controls = {"<calls>": 100, "<call>": 101, "<end>": 102, "<calls-end>": 103}
    inside = Envelope("<call>", "\n", "<end>", opener="<calls>", closer="<calls-end>")
    vocabulary = Vocabulary(controls, frozenset({100, 101, 102}), frozenset({"<calls-end>"}))
    accepts = forced(inside, vocabulary=vocabulary)
    assert accepts("<calls><call>now\n{}<end>") and accepts("<calls><call>now\n{}<end><call>now\n{}<end>")
    assert not accepts("<calls><call>now\n{}<end><calls-end>") and not accepts("<calls><call>now\n{}")
    ends = Vocabulary(controls, vocabulary.free, frozenset({"<end>"}))
    assert forced(inside, vocabulary=ends)("<calls><call>now\n{}") and not forced(inside, vocabulary=ends)("<calls><call>now\n{}<calls-end>")
    parted = Envelope("<call>", "\n", "", separator="<end>")
    assert forced(parted, vocabulary=ends)("<call>now\n{}") and not forced(parted, vocabulary=ends)("<call>now\n{}<end><call>now\n{}")


def test_other_texts_behind_a_trigger():
    """Harmony's headers: behind the trigger stands a call, or one of the channels."""
    inside = Envelope("<c>to=", "<m>", "", trigger="<c>", others=("final<m>", "think<m>"), parallel=False)
    accepts = lazily([inside])
    for text in ("x", "<c>final<m>Hi", "<c>think<m>so<c>final<m>Hi", "<c>to=now<m>{}", "<c>think<m>so<c>to=now<m>{}"):
        assert accepts(text), text
    for text in ("<c>", "<c>finally", "<c>to=now<m>", "<c>final<m><c>to=nobody<m>{}", "<c>to=now<m>[]"):
        assert not accepts(text), text


def test_control_tokens_as_openers_and_in_free_text():
    vocabulary = Vocabulary({**KIMI_CONTROLS, "<|pad|>": 7}, frozenset({7, *KIMI_CONTROLS.values()}))
    accepts = lazily([KIMI], vocabulary)
    section = "<|tool_calls_section_begin|><|tool_call_begin|>functions.now:0<|tool_call_argument_begin|>{}<|tool_call_end|><|tool_calls_section_end|>"
    assert accepts(f"a<|pad|>b{section}c") and accepts("<|tool_call_end|>")
    assert not accepts("a<|tool_calls_section_begin|>b")
    assert not accepts(b"a" + special(8)), "a token that is not allowed"
    assert accepts(b"half a character: \xc5"), "tokens may hold parts of characters"


@pytest.mark.parametrize("markers", [["ab"], ["aab", "aba"], ["abab"], ["aa", "b"], ["abc", "bcd", "c"], ["aaab"]])
def test_the_first_marker_is_found_as_a_search_finds_it(markers):
    """Against str.find: where the first complete marker ends, and nothing before it."""
    draw = random.Random(7)
    nfa = Nfa()
    start = free_text(nfa, {marker.encode(): nfa.literal(b"!", nfa.ret) for marker in markers}, [], ends=True)
    for _ in range(400):
        text = "".join(draw.choices("aabcd", k=draw.randint(0, 9)))
        ends = [size for size in range(len(text) + 1) if text[:size].endswith(tuple(markers))]
        assert simulate.accepts(nfa, start, text.encode()) == (not ends), text
        assert simulate.accepts(nfa, start, text.encode() + b"!") == (not ends or ends[0] == len(text)), text


def test_spelling_takes_the_longest_control_token():
    controls = {"<a>": 1, "<a><b>": 2}
    assert spelled("é<a><b><a>x", controls) == "é".encode() + special(2) + special(1) + b"x"


def test_g02_12_thirty_tools_of_which_some_are_large():
    schemas = [{"type": "object", "properties": {}}, {"type": "object", "properties": {"a": {"type": "string", "maxLength": 100_000}}}]
    schemas += [{"type": "object", "properties": {"a": {"type": "array", "maxItems": 2000}}}, {}, True]
    tools = [Tool(f"tool{i}", arguments(schemas[i % len(schemas)])) for i in range(30)]
    for envelope in (HERMES, QWEN_XML):
        nfa = Nfa()
        assert calls(nfa, tools, envelope, nfa.ret) and lazy_calls(nfa, tools, [envelope])
    accepts = forced(HERMES, tools)
    for i in range(30):
        assert accepts(f'<tool_call>\n{{"name": "tool{i}", "arguments": {{}}}}\n</tool_call>')


def lazy(*envelopes: Envelope, high: int = -1):
    nfa = Nfa()
    start = lazy_calls(nfa, TOOLS, envelopes, high=UNBOUNDED if high < 0 else high)
    return lambda text: simulate.accepts(nfa, start, text.encode())


def test_calls_that_an_answer_may_begin_with():
    bare = Envelope('{"name": "', '", "parameters": ', "}", quoted_name=True, parallel=False, at_start=True, by_name=True)
    tagged = Envelope('<tag>{"name": "', '", "parameters": ', "}", trigger="<tag>", quoted_name=True)
    accepts = lazy(bare, tagged)
    now = '{"name": "now", "parameters": {}}'
    for good in ("", "Hi", now, f" \n{now}", f"{now}\nand so on", '{"name": "Bob"}', '{"n', f"So: {now}", f"{now}<tag>{now}", "{{", '{"name": "no', '\n{"x": 1}', f'So: {{"name": "now", "x": 1}} <tag>{now}'):
        assert accepts(good), good
    for bad in ('{"name": "now"', '{"name": "now", "x": 1}', '  {"name": "now"}', '\t{"name": "now", "parameters": {"a": 1}}', "Hi<tag>", "{<tag>", now[:-1], f'{now}<tag>{{"name": "Bob"}}'):
        assert not accepts(bad), bad
    one = lazy(bare, tagged, high=1)
    assert one(now) and one(f"Hi <tag>{now}") and not one(now + now) and not one(now + "and")


def test_calls_known_by_the_name_of_a_tool():
    first = Envelope("", "\n", "", separator=">>>", at_start=True, by_name=True)
    accepts = lazy(first, Envelope(">>>", "\n", "", by_name=True))
    for good in ("all\nHi", "now\n{}", "now\n{}>>>now\n{}", "all\nHi >>> 1>>>now\n{}", "nowhere", "now", ">>>now", "all\nnow\nthere", "now\n{}>>>all\nHi"):
        assert accepts(good), good
    for bad in ("now\nHi", "now\n", "all\nHi>>>now\nHi", ">>>now\n", "\nnow\nHi"):
        assert not accepts(bad), bad
    python = Envelope("", "(", ")", opener="[", separator=", ", closer="]", parameters=ParameterTexts("", "=", separator=", "), at_start=True, by_name=True)
    accepts = lazy(python)
    for good in ("[1](2)", "[now()]", "[now(), now()] and", "So [now(1)]", '[weather(city="x")]'):
        assert accepts(good), good
    for bad in ("[now(1)]", "[now()", "[weather()]"):
        assert not accepts(bad), bad
