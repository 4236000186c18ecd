"""Requests as coding agents write them, shortened, a turn and the next; `make acceptance-agents` has the agents write
them. And the lock files that those are installed from."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import httpx
import pytest

from tests.clients.agents import FOLDER
from tests.script.process import scripted

DRAFT = "https://json-schema.org/draft/2020-12/schema"
TEXT = {"type": "string"}
MARKED = {"cache_control": {"type": "ephemeral"}}


def claude(turn: int) -> dict[str, Any]:
    """Claude Code 2.1: system turns among the messages, a billing line that differs each time, a deferred tool."""
    bash = {"$schema": DRAFT, "type": "object", "properties": {"command": TEXT, "timeout": {"type": "number"}}}
    told = [
        {"role": "user", "content": [{"type": "text", "text": "<system-reminder>\nAttribution\n</system-reminder>\n"}]},
        {"role": "system", "content": "# Environment\nYou have been invoked in a folder."},
        {
            "role": "assistant",
            "content": [
                {"type": "text", "text": "I will look."},
                {"type": "tool_use", "id": "toolu_1", "name": "Bash", "input": {"command": "cat note.txt"}},
            ],
        },
        {
            "role": "user",
            "content": [{"tool_use_id": "toolu_1", "type": "tool_result", "content": "heron-4711", "is_error": False}],
        },
    ]
    told[0]["content"].append({"type": "text", "text": "What does note.txt say?"})
    return {
        "model": "script",
        "messages": told[: 2 + 2 * turn],
        "system": [
            {"type": "text", "text": f"x-anthropic-billing-header: cc_version=2.1.332.407; cch={turn}1f0;"},
            {"type": "text", "text": "You are an agent."} | MARKED,
            {"type": "text", "text": "\nYou work with the user."} | MARKED,
        ],
        "tools": [
            {"name": "Bash", "description": "Runs.", "input_schema": bash | {"additionalProperties": False}},
            {"name": "Deferred", "input_schema": {"type": "object", "properties": {}}, "defer_loading": True},
        ],
        "metadata": {"user_id": '{"device_id":"0","account_uuid":""}'},
        "max_tokens": 32000,
        "thinking": {"type": "adaptive", "display": "omitted"},
        "context_management": {"edits": [{"type": "clear_thinking_20251015", "keep": "all"}]},
        "output_config": {"effort": "high"},
        "stream": True,
    }


def codex(turn: int) -> dict[str, Any]:
    """Codex 0.171: ids on every item, a namespace of functions, a search of the provider's."""

    def message(role: str, name: str, text: str) -> dict[str, Any]:
        return {"type": "message", "id": name, "role": role, "content": [{"type": "input_text", "text": text}]}

    told = [
        message("developer", "msg_49d0-1", "You are a coding agent."),
        message("user", "msg_49d0-2", "<environment_context>\n</environment_context>"),
        message("user", "msg_49d0-3", "What does note.txt say?"),
        {
            "type": "message",
            "status": "completed",
            "id": "msg_6a",
            "role": "assistant",
            "content": [{"type": "output_text", "text": "I will look.", "annotations": [], "logprobs": []}],
        },
        {
            "type": "function_call",
            "status": "completed",
            "id": "fc_c4",
            "name": "exec_command",
            "arguments": '{"cmd": "cat note.txt"}',
            "call_id": "call_29",
        },
        {"type": "function_call_output", "id": "fco_01", "call_id": "call_29", "output": "Output:\nheron-4711\n"},
    ]
    run = {"type": "object", "properties": {"cmd": TEXT}, "required": ["cmd"], "additionalProperties": False}
    function = {"type": "function", "name": "exec_command", "description": "Runs.", "strict": False, "parameters": run}
    return {
        "model": "script",
        "stream": True,
        "input": told[: 3 + 3 * turn],
        "tools": [
            function,
            {"type": "namespace", "name": "multi_agent_v1", "description": "", "tools": [function]},
            {"type": "web_search", "external_web_access": True},
        ],
        "tool_choice": "auto",
        "parallel_tool_calls": True,
        "reasoning": {"summary": "auto"},
        "store": False,
        "include": ["reasoning.encrypted_content"],
        "prompt_cache_key": "01a22c6c-bbbf-7962",
        "client_metadata": {"thread_id": "01a22c6c-bbbf-7962", "turn_id": str(turn)},
    }


def opencode(turn: int) -> dict[str, Any]:
    """opencode 1.18, through the AI SDK."""
    call = {"name": "bash", "arguments": '{"command":"cat note.txt"}'}
    told = [
        {"role": "system", "content": "You are opencode."},
        {"role": "user", "content": '"What does note.txt say?"'},
        {
            "role": "assistant",
            "content": "I will look.",
            "tool_calls": [{"id": "call_c6", "type": "function", "function": call}],
        },
        {"role": "tool", "tool_call_id": "call_c6", "content": "heron-4711\n"},
    ]
    parameters = {"$schema": DRAFT, "type": "object", "properties": {"command": TEXT}, "required": ["command"]}
    return {
        "model": "script",
        "max_tokens": 8000,
        "messages": told[: 2 + 2 * turn],
        "tools": [{"type": "function", "function": {"name": "bash", "description": "", "parameters": parameters}}],
        "tool_choice": "auto",
        "stream": True,
        "stream_options": {"include_usage": True},
    }


@pytest.fixture(scope="module")
def url(tmp_path_factory: Any) -> Iterator[str]:
    with scripted(tmp_path_factory.mktemp("agents"), replies=[{"pieces": ["The note ", "is read."]}]) as running:
        yield running.url


@pytest.mark.parametrize(
    ("path", "write", "ignored"),
    [
        ("/v1/messages?beta=true", claude, "tools[1].defer_loading"),
        ("/v1/responses", codex, "tools[1], tools[2]"),
        ("/v1/chat/completions", opencode, None),
    ],
)
def test_a_turn_and_the_next_are_one_conversation(url, path, write, ignored):  # G07-09, G08-02, G08-09
    for turn in range(2):
        answer = httpx.post(url + path, json=write(turn), timeout=300)  # kernels may have to be compiled
        assert answer.status_code == 200 and "is read." in answer.text, answer.text
        assert answer.headers.get("X-Imp-Ignored") == ignored
    first, second = (each["prompt"] for each in httpx.get(url + "/script/log").json()["data"][-2:])
    assert "note.txt" in first and "heron-4711" not in first and "billing" not in first
    assert second.startswith(first) and "heron-4711" in second[len(first) :]
    cached = [int(n) for n in re.findall(r'"(?:cache_read_input_tokens|cached_tokens)":\s*(\d+)', answer.text)]
    assert max(cached) > len(first.encode()) // 2  # of bytes, most are a token


def test_the_first_thing_a_client_may_ask_is_answered(url):
    assert httpx.head(url + "/").status_code == 200


def test_lock_files_pin_by_hash_and_name_no_host():
    lock = json.loads((FOLDER / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages and all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert not any("resolved" in entry for entry in packages.values())
    manifest = json.loads((FOLDER / "package.json").read_text())
    wanted = manifest["dependencies"] | manifest["optionalDependencies"]
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted} == wanted
    requirements = (FOLDER / "requirements.lock").read_text()
    pinned = re.findall(r"^([a-z0-9-]+)==[\d.]+\w* ", requirements, re.MULTILINE)
    assert len(pinned) > 50 and "://" not in requirements
    assert len(re.findall(r"^\S", requirements, re.MULTILINE)) == len(pinned)
    assert all("--hash=sha256:" in entry for entry in re.split(r"^(?=\S)", requirements, flags=re.MULTILINE) if entry)
