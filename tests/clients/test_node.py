"""The official Node SDKs: OpenAI's, Anthropic's, and Vercel's AI SDK with its three providers."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import httpx
import pytest

from tests.clients import node
from tests.real.process import server
from tests.script.process import scripted

pytestmark = pytest.mark.slow

PIECES = ["Good ", "day", ", ", {"base64": "8J8="}, {"base64": "mYI="}, "\n\n`x < 1`"]
TEXT = "Good day, \U0001f642\n\n`x < 1`"
TOKENS = len(PIECES) + 1  # and the end token
CONTENT = "What is the capital of France? Answer in one sentence."
# one token a byte, but for the three control tokens
PROMPT_TOKENS = len(f"Suser\n{CONTENT}E\nSassistant\n")
EXACT = (
    *("chat", "stream", "runner", "models", "models-anthropic", "message", "message-stream", "count"),
    *(
        "responses",
        "responses-stream",
        "ai-compatible",
        "ai-compatible-stream",
        "ai-openai-chat",
        "ai-openai-chat-stream",
    ),
    *("ai-openai-responses", "ai-openai-responses-stream", "ai-anthropic", "ai-anthropic-stream"),
)
REFUSED = ("bad-field", "bad-stream", "bad-model", "bad-message", "ai-compatible-bad")


@pytest.fixture(scope="module", autouse=True)
def packages() -> None:
    try:
        node.install()
    except node.Unavailable as error:
        if node.required():
            raise
        pytest.skip(str(error))


@pytest.fixture(scope="module")
def results(tmp_path_factory: Any) -> dict[str, Any]:
    """What every call got from one server that always says TEXT."""
    with scripted(tmp_path_factory.mktemp("node"), replies=[{"pieces": PIECES}]) as running:
        return node.call(running.url, "script", *EXACT, *REFUSED)


def test_the_lock_file_pins_packages_by_hash_and_names_no_host():
    lock = json.loads((node.FOLDER / "package-lock.json").read_text())
    packages = {name: entry for name, entry in lock["packages"].items() if name}
    assert packages and all(entry["integrity"].startswith("sha512-") for entry in packages.values())
    assert not any("resolved" in entry for entry in packages.values())
    wanted = json.loads((node.FOLDER / "package.json").read_text())["dependencies"]
    assert all(re.fullmatch(r"[\d.]+", version) for version in wanted.values())
    assert {name: packages[f"node_modules/{name}"]["version"] for name in wanted} == wanted


def test_openai_chat(results):
    chat, stream, runner = results["chat"], results["stream"], results["runner"]
    assert (chat["text"], chat["reason"]) == (TEXT, "stop") and chat["id"].startswith("chatcmpl-") and chat["request"]
    usage = chat["usage"]
    assert (usage["prompt_tokens"], usage["completion_tokens"], usage["total_tokens"]) == (
        PROMPT_TOKENS,
        TOKENS,
        PROMPT_TOKENS + TOKENS,
    )
    assert (stream["text"], stream["reasons"]) == (TEXT, ["stop"])
    [counted] = stream["usages"]
    assert (counted["prompt_tokens"], counted["completion_tokens"]) == (PROMPT_TOKENS, TOKENS)
    assert runner == {"text": TEXT, "joined": TEXT, "snapshot": TEXT}


def test_openai_models(results):
    assert results["models"] == results["models-anthropic"] == ["script"]


def test_openai_responses(results):
    whole = results["responses"]
    assert whole == {"text": TEXT, "status": "completed", "input": PROMPT_TOKENS, "output": TOKENS}
    stream = results["responses-stream"]
    assert (
        stream["text"] == TEXT
        and stream["kinds"][0] == "response.created"
        and stream["kinds"][-1] == "response.completed"
    )


def test_anthropic_messages(results):
    whole, stream = results["message"], results["message-stream"]
    assert whole["content"] == [{"type": "text", "text": TEXT}] and whole["reason"] == "end_turn"
    assert whole["usage"]["output_tokens"] == TOKENS and whole["request"]
    assert "".join(stream["texts"]) == TEXT and len(stream["texts"]) > 2
    assert stream["content"] == [{"type": "text", "text": TEXT}]
    assert (stream["reason"], stream["output"]) == ("end_turn", TOKENS)
    assert results["count"] == PROMPT_TOKENS


@pytest.mark.parametrize("provider", ["ai-compatible", "ai-openai-chat", "ai-openai-responses", "ai-anthropic"])
def test_the_ai_sdk(results, provider):
    told = {"text": TEXT, "reason": "stop", "input": PROMPT_TOKENS, "output": TOKENS}
    assert results[provider] == told
    stream = results[f"{provider}-stream"]
    assert "".join(stream.pop("parts")) == TEXT and stream == told


@pytest.mark.parametrize(
    ("name", "kind", "status", "word"),
    [
        ("bad-field", "BadRequestError", 400, '"temperature"'),
        ("bad-stream", "BadRequestError", 400, '"max_tokens"'),
        ("bad-model", "NotFoundError", 404, '"none"'),
        ("bad-message", "BadRequestError", 400, "temperature"),
        ("ai-compatible-bad", "APICallError", 404, '"none"'),
    ],
)
def test_a_refusal_carries_the_servers_words(results, name, kind, status, word):
    refused = results[name]
    assert (refused["kind"], refused["status"]) == (kind, status) and word in refused["message"]
    assert refused["body"]


def test_a_completion_ends_at_its_length_and_a_failure_in_the_middle_is_thrown(tmp_path):
    replies = [{"pieces": PIECES}, {"pieces": ["half"], "error": "engine_step_failed"}]
    with scripted(tmp_path, replies=replies) as running:
        results = node.call(running.url, "script", "completion", "bad-middle")
        assert results["completion"] == {"text": "Good day", "reason": "length", "tokens": ["Good ", "day"]}
        assert results["bad-middle"]["kind"] == "APIError" and "script lets" in results["bad-middle"]["message"]


def test_leaving_a_stream_frees_its_place(tmp_path):
    endless = {"pieces": ["on and "], "endless": True, "delay_ms": 5}
    with scripted(tmp_path, "--max-batch", "1", replies=[endless, {"pieces": PIECES}]) as running:
        results = node.call(running.url, "script", "left", "chat")
        assert results["left"].startswith("on and on and on and") and results["chat"]["text"] == TEXT
        assert len(httpx.get(running.url + "/script/log").json()["data"]) == 2


def test_the_real_model_answers_and_embeds(smollm2_path):
    names = ("chat", "ai-compatible-stream", "message-stream", "responses", "embeddings", "ai-embeddings")
    with server("--model", str(smollm2_path), "--served-model-name", "smollm2") as running:
        results = node.call(running.url, "smollm2", *names)
    assert "Paris" in results["chat"]["text"]
    for name in names[1:4]:
        assert results[name].get("text") or results[name]["content"][0]["text"], name
    embedded = results["embeddings"]
    for decoded, plain, third in zip(embedded["decoded"], embedded["plain"], results["ai-embeddings"], strict=True):
        assert math.sqrt(sum(value * value for value in plain)) == pytest.approx(1, abs=1e-3)
        assert decoded == pytest.approx(plain, abs=1e-6) and third == pytest.approx(plain, abs=1e-6)
    assert embedded["usage"]["prompt_tokens"] > 0
