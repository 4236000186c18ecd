"""Requests that force calls, in three dialects; what came, in one form; and the judge of it: `jsonschema`."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import Any

import jsonschema

from .spoken import Spoken


def closed(properties: dict[str, Any], *optional: str, **more: Any) -> dict[str, Any]:
    """The schema of an object with these properties and no others."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False, **more}


WORD = {"type": "string", "maxLength": 8}
TEXT = {"type": "string", "maxLength": 30}  # a mark fits in it
COUNT = {"type": "integer", "minimum": -20, "maximum": 99}
DAY = {"type": "string", "format": "date"}
CODE = {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"}
ROWS = {"type": "array", "items": COUNT, "maxItems": 2}
# all finite, so that every call comes to its end
SCHEMAS: dict[str, dict[str, Any]] = {
    "words": closed({"text": TEXT, "code": CODE, "kind": {"enum": ["a b", "c", "7"]}}, "code"),
    "numbers": closed(
        {"n": COUNT, "share": {"type": "number", "minimum": 0, "maximum": 1}, "level": {"enum": [1, 2, None]}}, "level"
    ),
    "nothing": closed({}),
    "lists": closed(
        {
            "tags": {"type": "array", "items": TEXT, "maxItems": 3},
            "grid": {"type": "array", "items": ROWS, "minItems": 1, "maxItems": 2},
        },
        "tags",
    ),
    "deep": closed(
        {"who": closed({"name": TEXT, "ok": {"type": "boolean"}}, "ok"), "now": {"type": "boolean"}}
    ),
    "either": closed(
        {
            "x": {"anyOf": [WORD, COUNT, {"type": "null"}]},
            "y": {"type": ["integer", "string"], "maxLength": 4, "minimum": 0, "maximum": 9},
            "z": {"const": 7},
        },
        "y",
    ),
    "shared": closed({"from": {"$ref": "#/$defs/day"}, "to": {"$ref": "#/$defs/day"}}, **{"$defs": {"day": DAY}}),
    "names": closed(
        {"x-y": COUNT, "a.b": TEXT, "from": {"type": "boolean"}, "B_2": {"enum": ["<a>", "b=c"]}}, "from", "B_2"
    ),
    "free": {
        "type": "object",
        "properties": {"q": WORD},
        "required": ["q"],
        "additionalProperties": COUNT,
        "propertyNames": {"maxLength": 6},
        "maxProperties": 3,
    },
}
NAMES = tuple(SCHEMAS)


@dataclass(frozen=True)
class Ask:
    """What is asked. choice: auto, required or named, which is the first tool.  thinks: reasoning is switched on."""

    tools: tuple[str, ...]
    choice: str
    strict: bool = False
    parallel: bool = True
    thinks: bool = False
    seed: int = 0

    @property
    def enforced(self) -> bool:
        return self.strict or self.choice != "auto"


@dataclass
class Told:
    """An answer, whatever its dialect. end: "call", "text" or "length"."""

    calls: list[tuple[str, Any]]
    text: str
    reasoning: str
    end: str


def judge(ask: Ask, told: Told) -> None:
    """What a client may rely on."""
    for name, arguments in told.calls if ask.enforced else ():
        assert name in ask.tools
        jsonschema.Draft202012Validator(SCHEMAS[name], format_checker=jsonschema.FormatChecker()).validate(arguments)
    assert told.end != "length" or not ask.enforced, told
    if ask.choice != "auto":
        assert told.calls and told.text == "", told
    if ask.choice == "named":
        assert [name for name, _ in told.calls] == [ask.tools[0]]
    if not ask.parallel:
        assert len(told.calls) <= 1
    assert told.end == ("call" if told.calls else "text") or told.end == "length"


# -- chat completions ------------------------------------------------------------------------------------------------


async def chat(server: Spoken, ask: Ask, stream: bool = False) -> Told:
    functions = [_function(name, ask) for name in ask.tools]
    named = {"type": "function", "function": {"name": ask.tools[0]}}
    answer = await server.post(
        "/v1/chat/completions",
        messages=[{"role": "user", "content": "Go."}],
        tools=[{"type": "function", "function": function} for function in functions],
        tool_choice=named if ask.choice == "named" else ask.choice,
        parallel_tool_calls=ask.parallel,
        enable_thinking=ask.thinks,
        thinking_token_budget=24,
        max_tokens=6000,
        seed=ask.seed,
        stream=stream,
    )
    assert answer.status_code == 200, answer.text
    message, reason = _streamed_message(answer.text) if stream else _message(answer.json())
    assert not (ask.enforced and any("invalid_arguments" in call for call in message["tool_calls"])), message
    calls = [(call["function"]["name"], json.loads(call["function"]["arguments"])) for call in message["tool_calls"]]
    ends = {"length": "length", "tool_calls": "call", "stop": "call" if ask.choice == "named" and calls else "text"}
    return Told(calls, message["content"], message["reasoning_content"], ends[reason])


def _function(name: str, ask: Ask) -> dict[str, Any]:
    return {"name": name, "parameters": SCHEMAS[name]} | ({"strict": True} if ask.strict else {})


def _message(body: Any) -> tuple[dict[str, Any], str]:
    [choice] = body["choices"]
    message = choice["message"]
    texts = {key: message.get(key) or "" for key in ("content", "reasoning_content")}
    return texts | {"tool_calls": message.get("tool_calls") or []}, choice["finish_reason"]


def _streamed_message(stream: str) -> tuple[dict[str, Any], str]:
    message: dict[str, Any] = {"content": "", "reasoning_content": "", "tool_calls": []}
    reason = ""
    for line in stream.split("\n"):
        for choice in json.loads(line[6:])["choices"] if line.startswith("data: {") else ():
            reason = choice["finish_reason"] or reason
            for key in ("content", "reasoning_content"):
                message[key] += choice["delta"].get(key) or ""
            for call in choice["delta"].get("tool_calls") or ():
                if call.get("id"):
                    assert call["index"] == len(message["tool_calls"])
                    message["tool_calls"].append({"function": {"name": call["function"]["name"], "arguments": ""}})
                message["tool_calls"][call["index"]]["function"]["arguments"] += call["function"].get("arguments") or ""
    return message, reason


# -- Responses -------------------------------------------------------------------------------------------------------


async def responses(server: Spoken, ask: Ask, stream: bool = False) -> Told:
    answer = await server.post(
        "/v1/responses",
        input="Go.",
        tools=[{"type": "function", **_function(name, ask)} for name in ask.tools],
        tool_choice={"type": "function", "name": ask.tools[0]} if ask.choice == "named" else ask.choice,
        parallel_tool_calls=ask.parallel,
        reasoning={"effort": "medium" if ask.thinks else "none"},
        max_output_tokens=6000,
        stream=stream,
    )
    assert answer.status_code == 200, answer.text
    events = [json.loads(line[6:]) for line in answer.text.split("\n") if line.startswith("data: {")] if stream else []
    body = next(event["response"] for event in reversed(events) if "response" in event) if stream else answer.json()
    output = body["output"]
    calls = [(item["name"], json.loads(item["arguments"])) for item in output if item["type"] == "function_call"]
    said = [part["text"] for item in output if item["type"] == "message" for part in item["content"]]
    thought = [part["text"] for item in output if item["type"] == "reasoning" for part in item.get("content") or ()]
    if stream:
        deltas: dict[str, str] = {}
        for event in events:
            if event["type"] == "response.function_call_arguments.delta":
                deltas[event["item_id"]] = deltas.get(event["item_id"], "") + event["delta"]
        ids = {item["id"]: item["arguments"] for item in output if item["type"] == "function_call"}
        assert deltas == ids
    end = "length" if body["status"] == "incomplete" else "call" if calls else "text"
    return Told(calls, "".join(said), "".join(thought), end)


# -- Anthropic -------------------------------------------------------------------------------------------------------


async def messages(server: Spoken, ask: Ask, stream: bool = False) -> Told:
    kind = {"named": "tool", "required": "any", "auto": "auto"}[ask.choice]
    choice = {"type": kind, "disable_parallel_tool_use": not ask.parallel}
    strict = {"strict": True} if ask.strict else {}
    answer = await server.post(
        "/v1/messages",
        messages=[{"role": "user", "content": "Go."}],
        tools=[{"name": name, "input_schema": SCHEMAS[name], **strict} for name in ask.tools],
        tool_choice=choice | ({"name": ask.tools[0]} if kind == "tool" else {}),
        thinking={"type": "enabled", "budget_tokens": 1024} if ask.thinks else {"type": "disabled"},
        max_tokens=6000,
        stream=stream,
    )
    assert answer.status_code == 200, answer.text
    blocks, reason = _streamed_blocks(answer.text) if stream else (answer.json()["content"], answer.json()["stop_reason"])
    calls = [(block["name"], block["input"]) for block in blocks if block["type"] == "tool_use"]
    said = "".join(block["text"] for block in blocks if block["type"] == "text")
    thought = "".join(block["thinking"] for block in blocks if block["type"] == "thinking")
    return Told(calls, said, thought, {"tool_use": "call", "end_turn": "text", "max_tokens": "length"}[reason])


def _streamed_blocks(stream: str) -> tuple[list[dict[str, Any]], str]:
    blocks: list[dict[str, Any]] = []
    reason = ""
    for line in stream.split("\n"):
        event = json.loads(line[6:]) if line.startswith("data: {") else {"type": ""}
        if event["type"] == "content_block_start":
            assert event["index"] == len(blocks)
            blocks.append(event["content_block"] | {"json": ""})
        elif event["type"] == "content_block_delta":
            for key, of in (("text", "text"), ("thinking", "thinking"), ("json", "partial_json")):
                if of in event["delta"]:
                    blocks[event["index"]][key] += event["delta"][of]
        elif event["type"] == "message_delta":
            reason = event["delta"]["stop_reason"]
    for block in blocks:
        if block["type"] == "tool_use":
            block["input"] = json.loads(block["json"] or "{}")
    return blocks, reason
