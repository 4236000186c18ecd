"""Every public template whose model thinks: budgets to the token, stop strings in the answer alone, an end on demand."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import jsonschema
import pytest

from .spoken import Spoken, speaking
from .test_thinking_matrix import ASKED, CHAT, ENDS, FORM, SCHEMA, SPELLINGS, Model, Told, ask, model, parts

EXHAUSTED = "reasoning_budget_exhausted"
BUDGET = 90
STOPS = ["STOP", "assistant", "final", "user", "response", "message", "think", "analysis", "self", "content"]
ENDLESS = {"pieces": ["x"], "delay_ms": 1, "endless": True}


def thinking(spoken: Model, text: str) -> list[str]:
    """How the output begins, and what is thought in it."""
    assert spoken.opened(True) in ("T", "N")
    opens = "" if spoken.opened(True) == "T" else SPELLINGS[spoken.name].opens
    return [*spoken.pieces(opens), *spoken.pieces(text)]


@pytest.mark.parametrize("name", SPELLINGS)
def test_budgets_and_stop_strings(name: str):
    asyncio.run(_limits(model(name)))


async def _limits(spoken: Model) -> None:
    spelling = SPELLINGS[spoken.name]
    endless = thinking(spoken, "x" * 300)
    again = spelling.turn or spelling.opens
    reopened = [*thinking(spoken, "x" * 120), *spoken.pieces(f"{spelling.closes}{again}{spelling.opens}yyy")]
    stopping = thinking(spoken, f"so {' '.join(STOPS)}{spelling.closes}" + spelling.answer.replace("{}", "It is STOP 4."))
    replies = [endless] * 4 + [reopened] * 2 + [stopping] * 2
    async with speaking(*replies, voice=None, template=spoken.source, control_tokens=ENDS) as server:
        for form in ({}, {"response_format": FORM}):
            for stream in (False, True):
                got = await _budgeted(server, stream, **form)
                if form:
                    jsonschema.validate(json.loads(got.content), SCHEMA)
                else:
                    assert set(got.content) == {"x"}, got
        for stream in (False, True):
            await _budgeted(server, stream)
        for stream in (False, True):
            got = await ask(server, stream, enable_thinking=True, stop=STOPS)
            assert (got.reasoning, got.content.strip(), got.finish) == ("so " + " ".join(STOPS), "It is", "stop"), got


async def _budgeted(server: Spoken, stream: bool, **body: Any) -> Told:
    got = await ask(server, stream, enable_thinking=True, thinking_token_budget=BUDGET, max_tokens=400, **body)
    assert got.thought == BUDGET and got.detail == EXHAUSTED and not got.calls, got
    assert set(got.reasoning) == {"x"} and BUDGET - 60 < len(got.reasoning) < BUDGET, got
    return got


@pytest.mark.parametrize("name", SPELLINGS)
def test_thinking_ends_when_it_is_told_to(name: str):
    asyncio.run(_ended(model(name)))


async def _ended(spoken: Model) -> None:
    said = {**ENDLESS, "pieces": thinking(spoken, "x" * 200)}
    async with speaking(replies=[said], voice=None, template=spoken.source, control_tokens=ENDS) as server:
        body = {"messages": ASKED, "max_tokens": 150, "enable_thinking": True, "think_budget": 1}
        streaming = body | {"stream": True, "stream_options": {"include_usage": True}}
        lines, headers, ended = [], {"X-Request-Id": "mine"}, 0
        async with server.client.stream("POST", CHAT, json=streaming, headers=headers) as answer:
            async for line in answer.aiter_lines():
                lines.append(line)
                if not ended and "reasoning_content" in line:
                    ended = (await server.post("/v1/requests/mine/end_thinking")).json()["ended"]
        assert ended == 1
        got = parts("\n".join(lines))
        assert set(got.content) == {"x"} == set(got.reasoning), got
        assert got.thought is not None and len(got.reasoning) < got.thought < 150
