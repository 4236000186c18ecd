"""Tools and tool choices, as each dialect writes them, in one form. All that is said of them is checked here.

Tools of kinds that do not exist here are ignored and named. With a choice of "none" no tool reaches the template, and
what the model writes is text.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from imp.chat.message import Calling
from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, Parsed, wrong

MAX_TOOLS = 1000
_NAME = re.compile(r"""[^\s\\"'<>{}()|,\[\]]{1,128}""")

_FUNCTION = (
    Field("name", Kind.STRING, doc="Any word of up to 128 characters without quotes and brackets."),
    Field("description", Kind.STRING),
    Field("parameters", Kind.OBJECT, doc="JSON Schema of the arguments; absent: the function has none."),
    Field("strict", Kind.BOOLEAN, doc="A schema that cannot be enforced is refused, not relaxed."),
)
_CHOICE = Field(
    "tool_choice",
    (Kind.STRING, Kind.OBJECT),
    doc='"none", "auto" (the default), "required", a function by name, or `allowed_tools`.',
)
_PARALLEL = Field("parallel_tool_calls", Kind.BOOLEAN, default=True, doc="false: one call at most.")


def _tools(fields: tuple[Field, ...], doc: str) -> Field:
    return Field("tools", Kind.ARRAY, max_items=MAX_TOOLS, items=Field("", Kind.OBJECT, fields=fields), doc=doc)


_TYPE = Field("type", Kind.STRING, required=True, doc='"function"; other kinds are ignored and named.')
OPENAI = (
    _tools((_TYPE, Field("function", Kind.OBJECT, fields=_FUNCTION)), "Functions the model may call."),
    _CHOICE,
    _PARALLEL,
    Field(
        "functions",
        Kind.ARRAY,
        max_items=MAX_TOOLS,
        items=Field("", Kind.OBJECT, fields=_FUNCTION[:3]),
        doc="The same, as OpenAI had it first; not with tools. The answer has a `function_call`.",
    ),
    Field("function_call", (Kind.STRING, Kind.OBJECT), doc='With functions: "none", "auto", or one by name.'),
)
RESPONSES = (
    _tools((_TYPE, *_FUNCTION), "Functions the model may call."),
    _CHOICE,
    replace(_PARALLEL, doc="false: one call at most. Said back."),
)
ANTHROPIC = (
    _tools(
        (
            Field("type", Kind.STRING, doc='"custom", or absent; other kinds are ignored and named.'),
            *_FUNCTION[:2],
            Field("input_schema", Kind.OBJECT, doc="JSON Schema of the input; absent: there is none."),
            _FUNCTION[3],
            Field("cache_control", Kind.OBJECT, doc="Keep the prompt up to here in the cache."),
        ),
        "Functions the model may call.",
    ),
    Field(
        "tool_choice",
        Kind.OBJECT,
        fields=(
            Field("type", Kind.STRING, choices=("auto", "any", "tool", "none"), required=True),
            Field("name", Kind.STRING, doc="With type tool."),
            Field("disable_parallel_tool_use", Kind.BOOLEAN, default=False, doc="true: one call at most."),
        ),
    ),
)

NOTHING: dict[str, Any] = {"type": "object", "properties": {}, "additionalProperties": False}


@dataclass(frozen=True, slots=True)
class Tooling:
    """tools, calling: for ChatRequest.  offered: all functions there are, also where none may be called.
    ignored: paths of tools that do not exist here, and of unknown fields without those inside of these."""

    tools: tuple[Mapping[str, Any], ...]
    calling: Calling
    offered: tuple[Mapping[str, Any], ...]
    ignored: tuple[str, ...]


NO_TOOLS = Tooling((), Calling(), (), ())


def openai(parsed: Parsed) -> Tooling:
    """Of a chat. ApiError 400."""
    if parsed["functions"] is not None or parsed["function_call"] is not None:
        return _legacy(parsed)
    given = [(tool["type"] == "function", tool["function"]) for tool in parsed["tools"] or ()]
    found = _Found.of(given, parsed.ignored, "tools", ".function", "parameters")
    return found.chosen(parsed["tool_choice"], parsed["parallel_tool_calls"], parsed["tools"] is not None, _nested)


def responses(parsed: Parsed) -> Tooling:
    """Of the Responses dialect: functions are flat. ApiError 400."""
    given = [(tool["type"] == "function", tool) for tool in parsed["tools"] or ()]
    found = _Found.of(given, parsed.ignored, "tools", "", "parameters")
    return found.chosen(parsed["tool_choice"], parsed["parallel_tool_calls"], True, _flat)


def anthropic(parsed: Parsed) -> Tooling:
    """ApiError 400."""
    given = [(tool["type"] in (None, "custom"), tool) for tool in parsed["tools"] or ()]
    found = _Found.of(given, parsed.ignored, "tools", "", "input_schema")
    choice = parsed["tool_choice"] or {"type": "auto", "name": None, "disable_parallel_tool_use": False}
    parallel = not choice["disable_parallel_tool_use"]
    if choice["type"] == "tool":
        if choice["name"] is None:
            raise bad_request("tool_choice.name", '"tool_choice.name" is required.', "missing_required_parameter")
        return found.named(choice["name"], parallel, "tool_choice.name")
    return found.mode({"any": "required"}.get(choice["type"], choice["type"]), parallel)


def _legacy(parsed: Parsed) -> Tooling:
    """`functions` and `function_call`: one call at most."""
    for name in ("tools", "tool_choice"):
        if parsed[name] is not None:
            raise bad_request("functions", f'"functions" and "function_call" do not go with "{name}".')
    given = [(True, function | {"strict": None}) for function in parsed["functions"] or ()]
    found = _Found.of(given, parsed.ignored, "functions", "", "parameters")
    choice = "auto" if parsed["function_call"] is None else parsed["function_call"]
    if isinstance(choice, dict):
        if not isinstance(choice.get("name"), str):
            raise wrong("function_call.name", "a string", choice.get("name"))
        tooling = found.named(choice["name"], False, "function_call")
    elif choice in ("none", "auto"):
        tooling = found.mode(choice, False)
    else:
        raise wrong("function_call", '"none", "auto", or an object with a name', choice)
    return replace(tooling, calling=replace(tooling.calling, legacy=True))


@dataclass(frozen=True, slots=True)
class _Found:
    """The functions of a request."""

    tools: tuple[Mapping[str, Any], ...]
    paths: tuple[str, ...]
    ignored: tuple[str, ...]

    @staticmethod
    def of(
        given: Sequence[tuple[bool, Mapping[str, Any] | None]],
        ignored: Sequence[str],
        field: str,
        inner: str,
        schema: str,
    ) -> _Found:
        """given: of each tool, whether it is a function, and that.  inner, schema: where the function is in the tool,
        and what its schema is called."""
        tools, paths, skipped, names = [], [], [], set[str]()
        for i, (known, function) in enumerate(given):
            path = f"{field}[{i}]"
            if not known:
                skipped.append(path)
                continue
            path += inner
            if function is None:
                raise bad_request(path, f'"{path}" is required.', "missing_required_parameter")
            tools.append(_function(function, path, schema))
            paths.append(f"{path}.{schema}")
            name = tools[-1]["function"]["name"]
            if name in names:
                raise bad_request(f"{path}.name", f'"{path}.name": there are two functions "{name}".')
            names.add(name)
        inside = tuple(path + "." for path in skipped)
        rest = [name for name in ignored if not name.startswith(inside)]
        return _Found(tuple(tools), tuple(paths), (*rest, *skipped))

    def chosen(self, choice: Any, parallel: bool, given: bool, name_of: Callable[[Any, str], str]) -> Tooling:
        """In OpenAI's words. given: there is a list of tools.  name_of: of a function in a choice."""
        if choice is None or choice == "none":
            return self.mode(choice or "auto", parallel)
        if not given:
            raise bad_request("tool_choice", '"tool_choice" needs "tools".')
        if choice in ("auto", "required"):
            return self.mode(choice, parallel)
        kind = choice.get("type") if isinstance(choice, dict) else None
        if kind == "function":
            return self.named(name_of(choice, "tool_choice"), parallel, "tool_choice")
        if kind == "allowed_tools":
            return self._allowed(choice, parallel, name_of)
        known = 'one of "none", "auto", "required", or an object of type "function" or "allowed_tools"'
        if isinstance(choice, dict):
            raise wrong("tool_choice.type", 'one of "function", "allowed_tools"', kind)
        raise wrong("tool_choice", known, choice)

    def mode(self, mode: str, parallel: bool) -> Tooling:
        """none, auto or required."""
        if mode == "none":
            return Tooling((), Calling(), self.tools, self.ignored)
        if mode == "required" and not self.tools:
            raise bad_request("tool_choice", '"tool_choice" requires a call, and "tools" has no function.')
        return self._tooling(Calling(required=mode == "required", parallel=parallel))

    def named(self, name: str, parallel: bool, param: str) -> Tooling:
        """One function, once."""
        self._check(name, param)
        return self._tooling(Calling((name,), required=True, named=True, parallel=parallel))

    def _allowed(self, choice: Mapping[str, Any], parallel: bool, name_of: Callable[[Any, str], str]) -> Tooling:
        path, inner = "tool_choice", choice
        if isinstance(choice.get("allowed_tools"), dict):  # nested, as chats have it
            path, inner = "tool_choice.allowed_tools", choice["allowed_tools"]
        mode, tools = inner.get("mode"), inner.get("tools")
        if mode not in ("auto", "required"):
            raise wrong(f"{path}.mode", 'one of "auto", "required"', mode)
        if not isinstance(tools, list):
            raise wrong(f"{path}.tools", "an array of tools", tools)
        names = []
        for i, tool in enumerate(tools):
            where = f"{path}.tools[{i}]"
            if not isinstance(tool, dict):
                raise wrong(where, "an object", tool)
            if tool.get("type") == "function":
                names.append(name_of(tool, where))
                self._check(names[-1], "tool_choice")
        if not names:
            if mode == "required":
                raise bad_request("tool_choice", f'"tool_choice" requires a call, and "{path}.tools" has no function.')
            return self.mode("none", parallel)
        return self._tooling(Calling(tuple(names), required=mode == "required", parallel=parallel))

    def _check(self, name: str, param: str) -> None:
        if all(tool["function"]["name"] != name for tool in self.tools):
            raise bad_request(param, f'"{param}": there is no function "{name[:128]}" among the tools.')

    def _tooling(self, calling: Calling) -> Tooling:
        return Tooling(self.tools, replace(calling, paths=self.paths), self.tools, self.ignored)


def arguments(value: Any, path: str) -> Mapping[str, Any]:
    """Arguments of an earlier call, as templates want them: the object that a JSON text stands for. ApiError 400."""
    if isinstance(value, str):
        text = value
        with suppress(ValueError, RecursionError):
            value = json.loads(text) if text.strip() else {}
            value = {} if value is None else value
            if isinstance(value, dict):
                return value
        raise wrong(path, "a JSON object, as text", text)
    if not isinstance(value, dict):
        raise wrong(path, "a JSON string", value)
    return value


def _function(given: Mapping[str, Any], path: str, schema: str) -> Mapping[str, Any]:
    """In OpenAI's shape, as templates know it; what was not said is not there."""
    name = given["name"]
    if name is None:
        raise bad_request(f"{path}.name", f'"{path}.name" is required.', "missing_required_parameter")
    if not _NAME.fullmatch(name):
        allowed = "1 to 128 characters without white space, quotes and brackets"
        raise wrong(f"{path}.name", allowed, name)
    function = {"name": name, "description": given["description"], "parameters": given[schema]}
    kept = {key: value for key, value in function.items() if value is not None}
    kept.setdefault("parameters", NOTHING)
    return {"type": "function", "function": kept | ({"strict": True} if given["strict"] else {})}


def _nested(choice: Mapping[str, Any], path: str) -> str:
    function = choice.get("function")
    if not isinstance(function, dict):
        raise wrong(f"{path}.function", "an object", function)
    return _flat(function, f"{path}.function")


def _flat(choice: Mapping[str, Any], path: str) -> str:
    name = choice.get("name")
    if not isinstance(name, str):
        raise wrong(f"{path}.name", "a string", name)
    return name
