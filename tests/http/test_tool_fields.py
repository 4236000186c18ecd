"""What requests say of tools: every dialect's words come to one form, and mistakes are named."""

from __future__ import annotations

from typing import Any

import pytest

from imp.chat.message import Calling
from imp.http.dialects import anthropic, openai_chat, responses
from imp.http.errors import ApiError

CHAT: dict[str, Any] = {"messages": [{"role": "user", "content": "hi"}]}
INPUT: dict[str, Any] = {"input": "hi"}
SCHEMA = {"type": "object", "properties": {"q": {"type": "string"}}}
SEARCH = {"name": "search", "description": "finds", "parameters": SCHEMA}
NESTED = {"type": "function", "function": SEARCH}
FLAT = {"type": "function", **SEARCH}
CUSTOM = {"name": "search", "description": "finds", "input_schema": SCHEMA}
NOW = {"type": "function", "function": {"name": "now"}}
BOTH = {"tools": [NESTED, NOW]}


def chat(**body: Any) -> tuple[list[str], Calling, tuple[str, ...]]:
    ask = openai_chat.read(CHAT | body)
    return [tool["function"]["name"] for tool in ask.chat.tools], ask.chat.calling, ask.ignored


def test_a_function_is_the_same_in_every_dialect():
    wanted = ({"type": "function", "function": SEARCH},)
    assert openai_chat.read(CHAT | {"tools": [NESTED]}).chat.tools == wanted
    assert openai_chat.read(CHAT | {"functions": [SEARCH]}).chat.tools == wanted
    assert responses.read(INPUT | {"tools": [FLAT]}).tooling.tools == wanted
    assert anthropic.read(CHAT | {"tools": [CUSTOM]}).chat.tools == wanted
    paths = ("tools[0].function.parameters", "functions[0].parameters", "tools[0].parameters", "tools[0].input_schema")
    found = (
        openai_chat.read(CHAT | {"tools": [NESTED]}).chat.calling,
        openai_chat.read(CHAT | {"functions": [SEARCH]}).chat.calling,
        responses.read(INPUT | {"tools": [FLAT]}).tooling.calling,
        anthropic.read(CHAT | {"tools": [CUSTOM]}).chat.calling,
    )
    assert tuple(each.paths for each in found) == tuple((path,) for path in paths)


def test_a_function_without_parameters_has_none():
    [tool] = openai_chat.read(CHAT | {"tools": [NOW]}).chat.tools
    assert tool["function"]["parameters"] == {"type": "object", "properties": {}, "additionalProperties": False}


@pytest.mark.parametrize(
    ("body", "wanted"),
    [
        ({}, {}),
        ({"tool_choice": "auto"}, {}),
        ({"tool_choice": "required"}, {"required": True}),
        ({"tool_choice": "required", "parallel_tool_calls": False}, {"required": True, "parallel": False}),
        (
            {"tool_choice": {"type": "function", "function": {"name": "now"}}},
            {"names": ("now",), "required": True, "named": True},
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": [NOW]}}},
            {"names": ("now",)},
        ),
        (
            {"tool_choice": {"type": "allowed_tools", "mode": "required", "tools": [NOW, NESTED]}},
            {"names": ("now", "search"), "required": True},
        ),
    ],
)
def test_choices_of_a_chat(body, wanted):
    names, calling, _ = chat(**BOTH, **body)
    paths = ("tools[0].function.parameters", "tools[1].function.parameters")
    assert names == ["search", "now"] and calling == Calling(**wanted, paths=paths)


def test_none_hides_the_tools():
    assert chat(**BOTH, tool_choice="none")[:2] == ([], Calling())
    assert anthropic.read(CHAT | {"tools": [CUSTOM], "tool_choice": {"type": "none"}}).chat.tools == ()
    ask = responses.read(INPUT | {"tools": [FLAT], "tool_choice": "none"})
    assert ask.tooling.tools == () and ask.echo["tools"] == [FLAT | {"strict": False}]


@pytest.mark.parametrize(
    ("choice", "wanted"),
    [
        ({"type": "any"}, Calling(required=True)),
        ({"type": "any", "disable_parallel_tool_use": True}, Calling(required=True, parallel=False)),
        ({"type": "tool", "name": "search"}, Calling(("search",), True, True)),
        ({"type": "auto", "disable_parallel_tool_use": True}, Calling(parallel=False)),
    ],
)
def test_choices_of_anthropic(choice, wanted):
    calling = anthropic.read(CHAT | {"tools": [CUSTOM], "tool_choice": choice}).chat.calling
    assert (calling.names, calling.required, calling.named, calling.parallel) == (
        *(wanted.names, wanted.required, wanted.named, wanted.parallel),
    )


def test_choices_of_responses_are_flat():
    calling = responses.read(INPUT | {"tools": [FLAT], "tool_choice": {"type": "function", "name": "search"}}).tooling
    assert calling.calling.names == ("search",) and calling.calling.named


def test_legacy_functions_are_called_once():
    names, calling, _ = chat(functions=[SEARCH, {"name": "now"}], function_call={"name": "now"})
    assert names == ["search", "now"] and calling.legacy and calling.named and not calling.parallel
    assert chat(functions=[SEARCH], function_call="none")[0] == []


def test_other_kinds_of_tools_are_ignored_and_named():
    other = {"type": "web_search", "search_context_size": "low", "filters": {"x": 1}}
    names, _, ignored = chat(tools=[other, NESTED | {"odd": 1}], odd=2)
    assert names == ["search"] and ignored == ("tools[1].odd", "odd", "tools[0]")
    assert responses.read(INPUT | {"tools": [other, FLAT]}).ignored == ("tools[0]",)
    bash = {"type": "bash_20250124", "name": "bash"}
    ask = anthropic.read(CHAT | {"tools": [CUSTOM | {"type": "custom"}, bash]})
    assert len(ask.chat.tools) == 1 and ask.ignored == ("tools[1]",)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"function": SEARCH}]}, "tools[0].type"),
        ({"tools": [{"type": "function"}]}, "tools[0].function"),
        ({"tools": [{"type": "function", "function": {"name": ""}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": 'a"b'}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "a b"}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": {"name": "x" * 129}}]}, "tools[0].function.name"),
        ({"tools": [{"type": "function", "function": SEARCH | {"parameters": []}}]}, "tools[0].function.parameters"),
        ({"tools": [{"type": "function", "function": SEARCH | {"strict": 1}}]}, "tools[0].function.strict"),
        ({"tools": [NESTED, NESTED]}, "tools[1].function.name"),
        ({"tools": "all"}, "tools"),
        ({"tool_choice": "auto"}, "tool_choice"),
        ({"tool_choice": "required"}, "tool_choice"),
        ({"tools": [], "tool_choice": "required"}, "tool_choice"),
        ({**BOTH, "tool_choice": "sometimes"}, "tool_choice"),
        ({**BOTH, "tool_choice": {"type": "file_search"}}, "tool_choice.type"),
        ({**BOTH, "tool_choice": {"type": "function"}}, "tool_choice.function"),
        ({**BOTH, "tool_choice": {"type": "function", "function": {}}}, "tool_choice.function.name"),
        ({**BOTH, "tool_choice": {"type": "function", "function": {"name": "find"}}}, "tool_choice"),
        ({**BOTH, "tool_choice": {"type": "allowed_tools", "tools": []}}, "tool_choice.mode"),
        ({**BOTH, "tool_choice": {"type": "allowed_tools", "mode": "auto"}}, "tool_choice.tools"),
        ({**BOTH, "parallel_tool_calls": "no"}, "parallel_tool_calls"),
        ({**BOTH, "functions": [SEARCH]}, "functions"),
        ({"functions": [SEARCH], "function_call": "required"}, "function_call"),
        ({"functions": [SEARCH], "function_call": {"name": "find"}}, "function_call"),
    ],
)
def test_g02_08_mistakes_are_named(body, param):
    with pytest.raises(ApiError) as caught:
        openai_chat.read(CHAT | body)
    assert (caught.value.status, caught.value.param) == (400, param)
    assert f'"{param}"' in caught.value.message


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"tools": [{"input_schema": {}}]}, "tools[0].name"),
        ({"tools": [CUSTOM | {"input_schema": 5}]}, "tools[0].input_schema"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "tool"}}, "tool_choice.name"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "tool", "name": "find"}}, "tool_choice.name"),
        ({"tools": [CUSTOM], "tool_choice": {"type": "required"}}, "tool_choice.type"),
        ({"tool_choice": {"type": "any"}}, "tool_choice"),
    ],
)
def test_mistakes_of_anthropic_are_named(body, param):
    with pytest.raises(ApiError) as caught:
        anthropic.read(CHAT | body)
    assert (caught.value.status, caught.value.param) == (400, param)
