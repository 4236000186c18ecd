"""Calls forced out of a model that was never taught any: 25 tools, three ways to force, streamed or not.

Forced are `required`, a named function, and `strict`: a strict tool of which a call is required. Beside them a strict
tool may be left to the model's choice, `auto`: then it seldom calls, and what it calls is valid.
"""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from collections.abc import Sequence
from typing import Any

import jsonschema
import openai

_WORD = {"type": "string", "minLength": 1, "maxLength": 12}
_NUMBER = {"type": "integer", "minimum": 0, "maximum": 99}
_LEAVES: Sequence[dict[str, Any]] = (
    _WORD,
    _NUMBER,
    {"type": "boolean"},
    {"enum": ["red", "green", "blue", 7, None]},
    {"type": "array", "items": _NUMBER, "minItems": 1, "maxItems": 3},
    {"type": "string", "format": "date"},
    {"type": "string", "pattern": "^[A-Z]{2}-[0-9]{3}$"},
    {"anyOf": [{"type": "null"}, {"type": "object", "properties": {"x": _NUMBER}, "additionalProperties": False}]},
)
ASKS = ("required", "named", "strict")


def schema(number: int) -> dict[str, Any]:
    """The parameters of tool `number`: one to four of the leaves, the last one optional in every third tool, one of
    them nested in every fifth."""
    leaves = [_LEAVES[(number + step * (1 + number // 8)) % len(_LEAVES)] for step in range(1 + number % 4)]
    if number % 5 == 4:
        leaves[0] = {
            "type": "object",
            "properties": {"in": leaves[0]},
            "required": ["in"],
            "additionalProperties": False,
        }
    names = [f"{'abcd'[i]}{number}" for i in range(len(leaves))]
    required = names[:-1] if number % 3 == 0 else names
    properties = dict(zip(names, leaves, strict=True))
    return {"type": "object", "properties": properties, "required": required, "additionalProperties": False}


TOOLS = [schema(number) for number in range(25)]


async def count(
    url: str, model: str, requests: int, concurrency: int = 8, asks: Sequence[str] = ASKS
) -> Counter[str]:
    """How many requests of each kind got valid calls ("required valid"), none ("auto none"), or anything else."""
    found: Counter[str] = Counter()
    gate = asyncio.Semaphore(concurrency)
    async with openai.AsyncOpenAI(base_url=url + "/v1", api_key="x", max_retries=0, timeout=600) as client:

        async def one(number: int) -> None:
            async with gate:
                found[await _told(client, model, number, asks[number % len(asks)])] += 1

        await asyncio.gather(*(one(number) for number in range(requests)))
    return found


async def _told(client: openai.AsyncOpenAI, model: str, number: int, ask: str) -> str:
    streams = number % 2 == 1
    chosen = [number % 25, (number + 7) % 25]
    functions = [{"name": f"tool_{n}", "description": "Does it.", "parameters": TOOLS[n]} for n in chosen]
    tools: list[Any] = [
        {"type": "function", "function": function | ({"strict": True} if ask in ("strict", "auto") else {})}
        for function in functions
    ]
    named = {"type": "function", "function": {"name": f"tool_{chosen[0]}"}}
    choice: Any = {"required": "required", "named": named, "strict": "required", "auto": "auto"}[ask]
    asked: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Please call a tool, number {number}."}],
        "tools": tools,
        "tool_choice": choice,
        "parallel_tool_calls": False,
        "max_tokens": 100 if ask == "auto" else 700,  # the longest call, white space and all, has some 400
        "seed": number,
        "temperature": 0.8,
    }
    calls, reason = await (_streamed(client, asked) if streams else _whole(client, asked))
    if reason == "length":
        return f"{ask} cut off"  # what the limit cut off is told to be that, and is no call
    if not calls:
        return f"{ask} {'none' if ask == 'auto' else 'MISSING'}"
    for name, arguments in calls:
        n = int(name.removeprefix("tool_"))
        if n not in (chosen if ask != "named" else chosen[:1]):
            return f"{ask} WRONG TOOL"
        try:
            jsonschema.validate(json.loads(arguments), TOOLS[n])
        except (ValueError, jsonschema.ValidationError) as error:
            return f"{ask} INVALID {arguments[:80]} {str(error)[:80]}"
    return f"{ask} valid"


async def _whole(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> tuple[list[tuple[str, str]], str | None]:
    """Names and arguments of the calls, and the finish reason."""
    choice = (await client.chat.completions.create(**asked)).choices[0]
    calls = [(call.function.name, call.function.arguments) for call in choice.message.tool_calls or []]
    return calls, choice.finish_reason


async def _streamed(client: openai.AsyncOpenAI, asked: dict[str, Any]) -> tuple[list[tuple[str, str]], str | None]:
    """Joined by hand: the SDK's helper raises for a text that a limit cut off beside a strict tool."""
    calls: list[list[str]] = []
    reason = None
    async for chunk in await client.chat.completions.create(**asked, stream=True):
        choice = chunk.choices[0]
        reason = choice.finish_reason or reason
        for call in choice.delta.tool_calls or []:
            if call.id:
                assert call.index == len(calls)
                calls.append([call.function.name, ""])
            calls[call.index][1] += call.function.arguments or ""
    return [(name, arguments) for name, arguments in calls], reason
