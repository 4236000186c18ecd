"""Claude Code's billing line, which changes with every request: it must not cost the cached prompt."""

from __future__ import annotations

import asyncio
import json
import logging
from typing import Any

import pytest

from imp.http.dialects.anthropic_messages import without_billing
from tests.http.scripted import Harness, serving

LINE = "x-anthropic-billing-header: cc_version=2.1.332.407; cc_entrypoint=cli; cch="
LONG = "You are an agent that edits files. " * 12
BLOCK = 16  # tokens, and here characters, of the cache's blocks
HI = [{"role": "user", "content": "hi"}]
SHOWN = "{% for m in messages %}<{{ m.role }}|{{ m.content }}>{% endfor %}{% if add_generation_prompt %}<assistant|{% endif %}"


def blocks(turn: str, mark: bool = True) -> list[dict[str, Any]]:
    marked = {"cache_control": {"type": "ephemeral"}} if mark else {}
    return [{"type": "text", "text": f"{LINE}{turn};"}, {"type": "text", "text": LONG, **marked}]


async def cached(server: Harness, system: Any) -> int:
    answer = await server.post("/v1/messages", messages=HI, max_tokens=5, system=system)
    assert answer.status_code == 200, answer.text
    return answer.json()["usage"]["cache_read_input_tokens"]


@pytest.mark.parametrize("system", [blocks, lambda turn: f"{LINE}{turn};\n\n{LONG}", lambda turn: blocks(turn, mark=False)])
def test_g07_09_the_line_does_not_cost_the_cached_prompt(system, caplog):
    async def main() -> None:
        async with serving(template=SHOWN, context=2048) as server:
            assert await cached(server, system("11111")) == 0
            assert await cached(server, system("22222")) >= len(LONG) - BLOCK
            assert await cached(server, system("33333")) >= len(LONG) - BLOCK

    with caplog.at_level(logging.INFO, "imp.http"):
        asyncio.run(main())
    said = [record.getMessage() for record in caplog.records if "billing" in record.getMessage()]
    assert len(said) == 1 and "11111" not in said[0]


def test_g07_09_it_can_be_left_in():
    async def main() -> None:
        async with serving(template=SHOWN, context=2048, agent_scan_limit=0) as server:
            assert await cached(server, blocks("11111")) == 0
            assert await cached(server, blocks("22222")) < BLOCK + len(LINE)

    asyncio.run(main())


KEPT: list[Any] = [
    {"messages": [{"role": "user", "content": LINE}], "system": "be brief"},  # what users say is theirs
    {"messages": [{"role": "user", "content": [{"type": "text", "text": LINE}]}]},
    {"messages": HI, "system": "See " + LINE},
    {"messages": HI, "system": "be brief\n" + LINE},
    {"messages": HI, "system": LINE.upper()},
    {"messages": HI, "system": LINE + "x" * 256},  # longer than what is known
    {"messages": HI, "system": [5, {"type": "text", "text": 7}, None]},  # refused by whoever reads it
    {"messages": HI, "system": None},
]


@pytest.mark.parametrize("body", KEPT, ids=lambda body: json.dumps(body)[:60])
def test_g07_09_nothing_else_is_left_out(body):
    assert without_billing(body, 256) is body


def test_g07_09_what_stands_behind_the_line_stays():
    marked = {"type": "text", "text": LINE + "1;\nBe brief.", "cache_control": {"type": "ephemeral"}}
    short = without_billing({"messages": HI, "system": [marked, {"type": "text", "text": "x"}]}, 256)
    assert short["system"] == [{**marked, "text": "Be brief."}, {"type": "text", "text": "x"}]
    assert without_billing({"system": LINE + "1;"}, 256) == {"system": ""}
