"""POST /infill and GET /slots, as clients of llama.cpp use them."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import pytest

from tests.http.scripted import EOS, serving
from tests.http.test_extensions import spied
from tests.http.wire import run

FIM = (1, 2, 3)
ASK = {"input_prefix": "def f(", "input_suffix": "):\n"}


def test_the_middle_is_written_in_the_native_shape() -> None:
    async def main() -> None:
        async with serving(["a", ", b"], fill=FIM) as site:
            seen = spied(site)
            body = (await site.post("/infill", **ASK, prompt="x", temperature=0)).json()
            assert seen[0].prompt == (1, *b"def f(x", 2, *b"):\n", 3)
            assert body["content"] == "a, b" and body["stop"] is True and body["stop_type"] == "eos"
            assert body["tokens"] == [257, 258] and body["tokens_predicted"] == 3 and body["model"] == "toy"
            assert body["tokens_evaluated"] == len(seen[0].prompt)

    run(main)


@pytest.mark.parametrize(
    "options, content, kind, word",
    [
        ({}, "one two END three", "eos", ""),
        ({"stop": ["END"]}, "one two ", "word", "END"),
        ({"n_predict": 2}, "one two ", "limit", ""),
    ],
)
def test_a_stream_says_the_same_and_why_it_ended(options: dict[str, Any], content: str, kind: str, word: str) -> None:
    async def main() -> None:
        async with serving(["one ", "two ", "END ", "three", EOS], fill=FIM) as site:
            whole = (await site.post("/infill", **ASK, **options)).json()
            async with site.client.stream("POST", "/infill", json=ASK | options | {"stream": True}) as answer:
                text = (await answer.aread()).decode()
            events = [json.loads(part.removeprefix("data: ")) for part in text.strip().split("\n\n")]
            assert "".join(event["content"] for event in events) == whole["content"] == content
            assert [event["stop"] for event in events] == [False] * (len(events) - 1) + [True]
            for last in (events[-1], whole):
                assert (last["stop_type"], last["stopping_word"]) == (kind, word)
            assert [t for event in events for t in event["tokens"]] == whole["tokens"]

    run(main)


def test_other_files_go_before_the_prefix() -> None:
    async def main() -> None:
        async with serving(fill=FIM) as site:
            seen = spied(site)
            extra = [{"filename": "a.py", "text": "A = 1"}]
            await site.post("/infill", **ASK, input_extra=extra)
            assert bytes(seen[0].prompt[1:]).startswith(b"--- a.py ---\nA = 1\n\ndef f(")
            error = (await site.post("/infill", **ASK, input_extra=[{"filename": "a.py"}])).json()["error"]
            assert error["param"] == "input_extra[0].text"

    run(main)


def test_a_model_without_the_tokens_refuses() -> None:
    async def main() -> None:
        async with serving() as site:
            answer = await site.post("/infill", **ASK)
            assert answer.status_code == 400 and "filling in the middle" in answer.json()["error"]["message"]
            missing = await site.post("/infill", input_prefix="x")
            assert missing.json()["error"]["param"] == "input_suffix"

    run(main)


def test_slots_are_the_places_of_a_step() -> None:
    async def main() -> None:
        async with serving(["x"] * 20, rows=3) as site:
            idle = (await site.client.get("/slots")).json()
            assert idle == [{"id": i, "n_ctx": 512, "is_processing": False} for i in range(3)]
            site.runner.step_s = 0.05
            asks = [asyncio.create_task(site.post("/v1/completions", prompt="x" * (i + 1))) for i in range(3)]
            await site.until(lambda: site.engine.stats.running == 3)
            busy = (await site.client.get("/slots")).json()
            assert [slot["is_processing"] for slot in busy] == [True] * 3
            refused = await site.client.get("/slots?fail_on_no_slot=1")
            assert refused.status_code == 503 and refused.json()["error"]["code"] == "no_slot_available"
            await asyncio.gather(*asks)
            await site.until(lambda: site.engine.stats.running == 0)
            assert (await site.client.get("/slots?fail_on_no_slot=1")).json() == idle

    run(main)
