"""Requests for JSON of real schemas to a real server, and the judge of what comes back."""

from __future__ import annotations

import asyncio
import json
from collections import Counter
from dataclasses import dataclass
from typing import Any

import httpx
import jsonschema
import pytest

from imp.constrain.errors import ConstraintError
from imp.constrain.nfa import Nfa
from imp.constrain.reference import Reference
from imp.constrain.schema import compile_schema
from tests.constrain.suites import MASKBENCH


@dataclass(frozen=True)
class Task:
    """A schema with a prompt that asks for a value of it."""

    name: str
    schema: Any

    @property
    def body(self) -> dict[str, Any]:
        text = json.dumps(self.schema)[:600]
        return {
            "messages": [{"role": "user", "content": f"Write a short JSON value for this schema: {text}"}],
            "response_format": {"type": "json_schema", "json_schema": {"name": "value", "schema": self.schema}},
            "temperature": 1,
        }


def tasks(count: int) -> list[Task]:
    """Small schemas of MaskBench, spread over its sources; skips where they are not beside the project."""
    found = []
    for path in sorted(MASKBENCH.glob("*.json")):
        schema = json.loads(path.read_text())["schema"]
        if len(json.dumps(schema)) < 1500:
            try:
                compile_schema(schema, Nfa())
            except ConstraintError:
                continue
            found.append(Task(path.stem, schema))
    if not found:
        pytest.skip("the schemas are not beside the project")
    return found[:: max(len(found) // count, 1)][:count]


async def ask(client: httpx.AsyncClient, task: Task, stream: bool, **fields: Any) -> tuple[str, str]:
    """The text of the answer, and its finish reason."""
    body = task.body | fields
    if not stream:
        answer = await client.post("/v1/chat/completions", json=body)
        assert answer.status_code == 200, (task.name, answer.text)
        choice = answer.json()["choices"][0]
        return choice["message"]["content"] or "", choice["finish_reason"]
    text, reason = "", ""
    async with client.stream("POST", "/v1/chat/completions", json=body | {"stream": True}) as answer:
        assert answer.status_code == 200, (task.name, await answer.aread())
        async for line in answer.aiter_lines():
            if line.startswith("data: ") and line != "data: [DONE]":
                event = json.loads(line.removeprefix("data: "))
                assert "error" not in event, (task.name, event)
                for choice in event["choices"]:
                    text += choice["delta"].get("content") or ""
                    reason = choice["finish_reason"] or reason
    return text, reason


def verdict(task: Task, text: str, reason: str) -> str:
    """valid, invalid, a valid prefix, no prefix."""
    if reason == "length":
        nfa = Nfa()
        reference = Reference(nfa, compile_schema(task.schema, nfa))
        # the last character may have been cut off in the middle
        return "prefix" if reference.advance(reference.first, text.rstrip("\ufffd").encode()) else "no prefix"
    validator = jsonschema.validators.validator_for(task.schema, jsonschema.Draft202012Validator)
    try:
        jsonschema.validate(json.loads(text), task.schema, validator)
    except (ValueError, jsonschema.ValidationError):
        return "invalid"
    return "valid"


async def verdicts(url: str, asked: list[Task], rounds: int, concurrency: int, **fields: Any) -> tuple[Counter[str], list[str]]:
    """Every task `rounds` times with its own seeds, every second one streamed: how many of each, and what was wrong."""
    counts, wrong, free = Counter[str](), list[str](), asyncio.Semaphore(concurrency)
    async with httpx.AsyncClient(base_url=url, timeout=600) as client:

        async def one(number: int, task: Task) -> None:
            async with free:
                text, reason = await ask(client, task, stream=number % 2 == 0, seed=number, **fields)
            found = verdict(task, text, reason)
            counts[found] += 1
            if found not in ("valid", "prefix"):
                wrong.append(f"{task.name}, seed {number}: {reason}: {text[:300]!r}")

        await asyncio.gather(*(one(i, task) for i, task in enumerate(asked * rounds)))
    return counts, wrong
