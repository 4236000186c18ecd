"""Claude Code, Codex and opencode, and the loops of the OpenAI Agents SDK, LangChain and Pydantic AI: unmodified, each
through a task that needs a tool. -s shows versions, requests and times. docs/AGENTS.md says how to point each here."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.clients import agents, node
from tests.clients.agents import AGENTS, Agent, Place
from tests.clients.wire import Wire, outside, relay
from tests.real.process import ServerProcess
from tests.script.process import scripted

SECRET = "heron-4711"
ANSWER = f"The note says {SECRET}."
QUESTION = "What does note.txt say?"
BLOCK = 16  # tokens that the prefix cache keeps together


def pieces(text: str, size: int = 9) -> list[str]:
    """A text as tokens that heed no borders."""
    return [text[at : at + size] for at in range(0, len(text), size)]


def saying_call(call: dict[str, Any], before: str = "I will look.\n") -> dict[str, Any]:
    return {"pieces": pieces(f"{before}<tool_call>\n{json.dumps(call)}\n</tool_call>")}


def saying(text: str) -> dict[str, Any]:
    return {"pieces": pieces(text)}


@dataclass(frozen=True, slots=True)
class Scene:
    running: ServerProcess
    wire: Wire
    place: Place
    asked_outside: list[str]
    records: Path

    def prompts(self) -> list[str]:
        return [entry["prompt"] for entry in httpx.get(self.running.url + "/script/log").json()["data"]]

    def logged(self) -> list[dict[str, Any]]:
        """The request log."""
        return [json.loads(line) for line in self.records.read_text().splitlines()]


@contextmanager
def scene(folder: Path, *arguments: str, **script: Any) -> Iterator[Scene]:
    """A server over a script, and an empty home and a workspace with note.txt for who is to use it."""
    records = folder / "requests.jsonl"
    keys = {"context": 1 << 20, "loop": False} | script
    with (
        scripted(folder, "--log-requests", str(records), *arguments, **keys) as running,
        relay(running.url) as wire,
        outside() as (proxy, asked),
    ):
        place = Place(folder / "home", folder / "workspace", wire.url, proxy)
        place.workspace.mkdir()
        (place.workspace / "note.txt").write_text(SECRET + "\n")
        yield Scene(running, wire, place, asked, records)


@pytest.fixture(scope="module")
def agent() -> Callable[[str], Agent]:
    """An agent by its name, once it is installed."""

    def find(name: str) -> Agent:
        try:
            agents.install()
            AGENTS[name].binary()
        except node.Unavailable as error:
            if agents.required():
                raise
            pytest.skip(str(error))
        return AGENTS[name]

    return find


@pytest.fixture(scope="module")
def frameworks() -> Path:
    try:
        return agents.install_frameworks()
    except node.Unavailable as error:
        if agents.required():
            raise
        pytest.skip(str(error))


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_calls_a_tool_reads_its_result_and_goes_on_another_day(agent, tmp_path, name):
    agent, began = agent(name), time.monotonic()
    slow = {"first_delay_ms": 1500}  # long enough for a ping
    replies = [saying_call(agent.call) | slow, saying(ANSWER), saying("As I said.")]
    with scene(tmp_path, "--set", "server.sse_ping_seconds=1", replies=replies) as on:
        assert agent.ask(on.place, QUESTION, False) == ANSWER
        assert agent.ask(on.place, "Are you sure?", True) == "As I said."
        prompts = on.prompts()
        assert len(prompts) == 3
        assert QUESTION in prompts[0] and SECRET not in prompts[0]
        assert json.dumps(agent.call["name"]) in prompts[0]  # the tools are told
        for before, after in pairwise(prompts):
            assert after.startswith(before), difference(before, after)
        assert "note.txt" in prompts[1][len(prompts[0]) :] and SECRET in prompts[1]
        assert ANSWER in prompts[2] and "Are you sure?" in prompts[2]
        assert not any("billing-header" in prompt for prompt in prompts)
        logged = on.logged()
        assert [each["outcome"] for each in logged] == ["succeeded"] * 3
        for before, after in pairwise(logged):
            assert after["cached_tokens"] > before["prompt_tokens"] - BLOCK
        assert set(on.wire.statuses) == {200}, list(zip(on.wire.requests, on.wire.statuses, strict=False))
        assert b": keepalive\n" in on.wire.received or b"event: ping\n" in on.wire.received
        print(f"\n{agent.version(on.place)}: {time.monotonic() - began:.1f} s, {on.wire.requests}")
        print(f"  ignored: {set(on.wire.header('X-Imp-Ignored'))}; asked elsewhere: {on.asked_outside}")


def difference(first: str, second: str) -> str:
    at = next((i for i, pair in enumerate(zip(first, second, strict=False)) if pair[0] != pair[1]), len(second))
    return f"apart from {at} of {len(first)}: {first[at : at + 200]!r} and {second[at : at + 200]!r}"


def test_claude_code_shortens_a_conversation_that_has_become_too_long(agent, tmp_path):
    """The refusal's words are what makes it do so. It learns the length of what is left from /v1/messages/count_tokens."""
    agent, filler = agent("claude"), "Herons stand still.\n" * 1500
    summary = "<summary>The user wants to know what note.txt says.</summary>"
    for folder in ("whole", "short"):
        (tmp_path / folder).mkdir()
    with scene(tmp_path / "whole", replies=[saying_call(agent.call), saying(ANSWER)]) as on:
        (on.place.workspace / "note.txt").write_text(filler)
        agent.ask(on.place, QUESTION, False)
        tokens = on.logged()[1]["prompt_tokens"]
    replies = [saying_call(agent.call), saying(summary), saying(ANSWER)]
    with scene(tmp_path / "short", replies=replies, context=tokens - 1000) as on:
        (on.place.workspace / "note.txt").write_text(filler)
        assert agent.ask(on.place, QUESTION, False) == ANSWER
        assert [each["status"] for each in on.logged()] == [200, 400, 200, 200]
        refused = on.logged()[1]["response"]["error"]
        assert refused["type"] == "invalid_request_error" and refused["message"].startswith("prompt is too long: ")
        first, shortened, last = on.prompts()
        assert filler.strip() in shortened and filler.strip() not in last and len(last) < len(first) + 5000
        assert "The user wants to know what note.txt says." in last
        assert "POST /v1/messages/count_tokens?beta=true" in on.wire.requests
        assert sorted(set(on.wire.statuses)) == [200, 400]


def test_opencode_shortens_a_conversation_that_has_become_too_long(agent, tmp_path):
    """It complains of the refusal at the end, with a status to match, and has gone on nevertheless."""
    agent, filler = agent("opencode"), "Herons stand still.\n" * 1500
    replies = [saying_call(agent.call), saying("The user wants to know what note.txt says."), saying(ANSWER)]
    with scene(tmp_path, replies=replies, context=45_000) as on:
        (on.place.workspace / "note.txt").write_text(filler)
        with pytest.raises(agents.Failed, match="this server accepts at most") as failed:
            agent.ask(on.place, QUESTION, False)
        assert ANSWER in str(failed.value)
        assert [each["status"] for each in on.logged()] == [200, 400, 200, 200]
        assert on.logged()[1]["response"]["error"]["code"] == "context_length_exceeded"
        last = on.prompts()[-1]
        assert filler.strip() not in last and "The user wants to know what note.txt says." in last


def test_codex_shortens_a_conversation_before_its_window_is_full(agent, tmp_path):
    agent = agent("codex")
    replies = [saying_call(agent.call), saying("SUMMARY: the note was read."), saying(ANSWER)]
    with scene(tmp_path, replies=replies) as on:
        (on.place.workspace / "note.txt").write_text(SECRET + "\n" + "Herons stand still.\n" * 300)
        assert agent.ask(replace(on.place, window=32_000), QUESTION, False) == ANSWER
        _, shortened, last = on.prompts()
        assert SECRET in shortened and SECRET not in last and "SUMMARY: the note was read." in last
        assert on.wire.statuses == [200] * 3


LOOPS = tuple(
    f"{framework}-{dialect}{streamed}"
    for framework, dialects in {
        "agents": ("chat", "responses"),
        "langchain": ("chat", "responses", "anthropic"),
        "pydantic": ("chat", "responses", "anthropic"),
    }.items()
    for dialect in dialects
    for streamed in ("", "-streamed")
)


def test_the_loops_of_frameworks_call_a_function_and_answer_with_its_result(frameworks, tmp_path):
    call = {"name": "read_note", "arguments": {"name": "note.txt"}}
    with scene(tmp_path, replies=[saying_call(call), saying(ANSWER)], loop=True) as on:
        assert loop(frameworks, on, *LOOPS) == dict.fromkeys(LOOPS, ANSWER)
        prompts, logged = on.prompts(), on.logged()
        assert len(prompts) == 2 * len(LOOPS)
        for before, after in zip(prompts[::2], prompts[1::2], strict=True):
            assert QUESTION in before and '"read_note"' in before and SECRET not in before
            assert after.startswith(before), difference(before, after)
            assert SECRET in after[len(before) :]
        wanted = [name.endswith("-streamed") for name in LOOPS for _ in range(2)]
        assert [each["stream"] for each in logged] == wanted
        assert set(on.wire.statuses) == {200} and len(on.wire.statuses) == len(prompts)
        assert on.asked_outside == []


def test_a_framework_gets_an_object_that_its_schema_describes(frameworks, tmp_path):
    call = {"name": "read_note", "arguments": {"name": "note.txt"}}
    replies = [saying_call(call, before=""), saying('{"bird":"heron","number":4711}')]
    with scene(tmp_path, replies=replies, loop=True) as on:
        got = loop(frameworks, on, "pydantic-chat-note", "pydantic-responses-note")
        assert list(got.values()) == [{"bird": "heron", "number": 4711}] * 2
        assert set(on.wire.statuses) == {200}


def loop(python: Path, on: Scene, *names: str) -> dict[str, Any]:
    """What each of these got."""
    return json.loads(on.place.run([python, agents.FOLDER / "frameworks.py", on.wire.url, *names]))
