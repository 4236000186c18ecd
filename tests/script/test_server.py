"""The process with `--script`, as a person runs it, through the official SDKs and the whole real stack."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
from typing import Any

import anthropic
import httpx
import openai
import pytest

from tests.real.process import ROOT, ServerProcess, server
from tests.script.process import scripted

ASK: Any = [{"role": "user", "content": "Hi"}]


def sdk(process: ServerProcess) -> openai.OpenAI:
    return openai.OpenAI(base_url=process.url + "/v1", api_key="unused", max_retries=0, timeout=30)


def test_the_openai_sdk_hears_exactly_what_is_written(tmp_path):
    pieces = ["Hello", " ", {"base64": "8J8="}, {"base64": "mYI="}, "\n```py\nx < 1\n```"]
    text = "Hello \U0001f642\n```py\nx < 1\n```"
    script = {
        "context": 1000,
        "replies": [
            {"pieces": pieces},
            {"pieces": pieces, "logprob": -0.25},
            {"pieces": ["first"]},
            {"pieces": ["second"]},
            {"pieces": ["so", "on "], "endless": True},
            {"pieces": ["partly"], "error": "engine_step_failed"},
            {"pieces": ["after"]},
        ],
    }
    with scripted(tmp_path, **script) as process, sdk(process) as client:
        [model] = client.models.list().data
        assert (model.id, model.max_model_len) == ("script", 1000)

        chat = client.chat.completions
        whole = chat.create(model="script", messages=ASK, temperature=0.5, seed=3, stop=["never"])
        assert (whole.choices[0].message.content, whole.choices[0].finish_reason) == (text, "stop")
        rendered = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n"
        control = {"<|im_start|>": 2, "<|im_end|>": 1}
        count = len(rendered) - sum(n * (len(spelling) - 1) for spelling, n in control.items())
        assert (whole.usage.prompt_tokens, whole.usage.completion_tokens) == (count, len(pieces) + 1)

        stream = chat.create(model="script", messages=ASK, stream=True, logprobs=True, top_logprobs=3)
        chunks = list(stream)
        assert "".join(chunk.choices[0].delta.content or "" for chunk in chunks) == text
        entries = [
            entry for chunk in chunks if chunk.choices[0].logprobs for entry in chunk.choices[0].logprobs.content
        ]
        assert [entry.logprob for entry in entries] == [-0.25] * len(pieces)
        assert b"".join(bytes(entry.bytes) for entry in entries).decode() == text

        two = chat.create(model="script", messages=ASK, n=2)
        assert [choice.message.content for choice in two.choices] == ["first", "second"]

        long = client.completions.create(model="script", prompt="x", max_tokens=5)
        assert (long.choices[0].text, long.choices[0].finish_reason) == ("soon soon so", "length")

        with pytest.raises(openai.APIError, match="script lets this request fail"):
            list(chat.create(model="script", messages=ASK, stream=True))
        assert chat.create(model="script", messages=ASK).choices[0].message.content == "after"

        log = httpx.get(process.url + "/script/log").json()["data"]
        assert [(entry["reply"], entry["choice"]) for entry in log] == [
            *((0, 0), (1, 0), (2, 0), (3, 1), (4, 0), (5, 0), (6, 0))
        ]
        assert log[0]["prompt"] == rendered and log[4]["prompt"] == "x" and log[0]["prompt_tokens"] == count
        asked = log[0]["parameters"]
        assert (asked["temperature"], asked["seed"], asked["stop"], asked["n"]) == (0.5, 3, ["never"], 1)
        assert log[4]["parameters"]["max_tokens"] == 5 and log[1]["parameters"]["logprobs"] == 3


def test_the_anthropic_sdk_hears_it_too(tmp_path):
    with scripted(tmp_path, "--served-model-name", "own", replies=[{"pieces": ["Good ", "day"]}]) as process:
        client = anthropic.Anthropic(base_url=process.url, api_key="unused", max_retries=0, timeout=30)
        message = client.messages.create(model="own", max_tokens=50, messages=ASK)
        assert message.content[0].text == "Good day" and message.stop_reason == "end_turn"
        with client.messages.stream(model="own", max_tokens=50, messages=ASK) as stream:
            assert "".join(stream.text_stream) == "Good day"
        client.close()


def test_a_slow_reply_holds_up_nobody_else(tmp_path):
    slow = {"pieces": ["s"] * 3, "first_delay_ms": 60_000}
    with scripted(tmp_path, replies=[slow, *[{"pieces": ["q"] * 50}] * 20], loop=False) as process:

        async def main() -> None:
            base = process.url + "/v1"
            async with openai.AsyncOpenAI(base_url=base, api_key="unused", max_retries=0, timeout=30) as client:

                async def ask() -> str:
                    answer = await client.chat.completions.create(model="script", messages=ASK)
                    return answer.choices[0].message.content

                first = asyncio.create_task(ask())
                while not httpx.get(process.url + "/script/log").json()["data"]:
                    await asyncio.sleep(0.01)
                assert await asyncio.gather(*[ask() for _ in range(20)]) == ["q" * 50] * 20
                assert not first.done()
                first.cancel()

        asyncio.run(main())


def test_another_template_is_used_and_told(tmp_path):
    (tmp_path / "short.jinja").write_text("{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|go|>")
    script = {"template": "short.jinja", "control_tokens": ["<|user|>"], "replies": [{"pieces": ["ok"]}]}
    with scripted(tmp_path, **script) as process, sdk(process) as client:
        answer = client.chat.completions.create(model="script", messages=ASK)
        [entry] = httpx.get(process.url + "/script/log").json()["data"]
        assert entry["prompt"] == "<|user|>Hi<|go|>"
        assert answer.usage.prompt_tokens == entry["prompt_tokens"] == 4  # two control tokens and two bytes


def start(*arguments: str) -> tuple[int, str]:
    command = [sys.executable, "-m", "imp", "--port", "0", *arguments]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    return ended.returncode, ended.stderr.splitlines()[-1]


def test_a_script_that_cannot_be_used_ends_the_start(tmp_path):
    path = tmp_path / "s.json"
    assert start("--script", str(path)) == (4, f"imp-server: error: script {path} does not exist")
    path.write_text('{"replies": [{"pieces": [7]}]}')
    message = f'imp-server: error: script {path}: replies[0].pieces[0]: must be a text or {{"base64": "..."}}, not 7'
    assert start("--script", str(path)) == (1, message)
    path.write_text('{"template": "nonsense", "replies": [{}]}')
    code, line = start("--script", str(path))
    assert code == 1 and "nonsense" in line and "chatml" in line
    code, line = start("--script", str(path), "--model", "x.gguf")
    assert code == 1 and "--script and --model" in line


def test_a_script_can_be_checked_without_serving(tmp_path):
    path = tmp_path / "s.json"
    path.write_text('{"replies": [{"pieces": ["Good ", "day"]}]}')
    command = [sys.executable, "-m", "imp", "--script", str(path), "--check=json"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    told = json.loads(done.stdout)
    assert done.returncode == 0 and told["model"]["name"] == "script"
    assert {finding["level"] for finding in told["findings"]} == {"ok"}
    assert "'Good day'" in next(each["detail"] for each in told["findings"] if each["what"] == "generation")
    path.write_text('{"replies": 7}')
    assert start("--script", str(path), "--check")[0] == 1


def test_without_a_script_there_is_no_log(tmp_path):
    with server("--models-dir", str(tmp_path)) as process:
        assert httpx.get(process.url + "/script/log").status_code == 404
