"""--draft-model as a person gives it: a model with another vocabulary is refused, one with the same is used."""

from __future__ import annotations

import subprocess
import sys

import httpx

from tests.real.process import ROOT, server


def check(*arguments):
    command = [sys.executable, "-m", "imp", "--check", "--max-model-len", "512", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)


def test_a_draft_model_with_other_tokens_is_refused_with_the_first_difference(smollm2_path, gemma3_path):
    ended = check("--model", str(smollm2_path), "--draft-model", str(gemma3_path))
    assert ended.returncode == 5, ended.stderr
    assert "has another vocabulary: token 0 is b'<|endoftext|>' for the model and b'<pad>'" in ended.stderr


def test_mistakes_with_a_draft_model_end_the_start(smollm2_path, tmp_path):
    ended = check("--model", str(smollm2_path), "--draft-model", str(tmp_path / "none.gguf"))
    assert ended.returncode == 4 and "none.gguf" in ended.stderr, ended.stderr
    ended = check("--model", str(smollm2_path), "--draft-model", str(smollm2_path), "--set", "speculative.k=0")
    assert ended.returncode and "speculative.k is 0" in ended.stderr, ended.stderr
    script = ROOT / "tests" / "script" / "none.json"
    ended = check("--script", str(script), "--draft-model", str(smollm2_path))
    assert ended.returncode and "--script and --draft-model exclude each other" in ended.stderr, ended.stderr


def test_a_server_with_a_draft_model_says_the_same(smollm2_path):
    """The model is its own draft model here: all its guesses are right, and too slow to pay for long."""
    arguments = ("--model", str(smollm2_path), "--max-model-len", "512", "--set", "speculative.ngram=false")
    body = {
        "messages": [{"role": "user", "content": "Tell me a story of a fox."}],
        "max_tokens": 60,
        "temperature": 1,
        "seed": 11,
    }
    answers = []
    with server(*arguments, "--draft-model", str(smollm2_path)) as running:
        assert httpx.get(running.url + "/health").json()["speculation"]["mode"] == "draft_model"
        for fields in ({}, {"speculative": False}):
            answer = httpx.post(running.url + "/v1/chat/completions", json=body | fields, timeout=120).json()
            answers.append(answer["choices"][0]["message"]["content"])
            details = answer["usage"]["completion_tokens_details"]
            assert details.get("imp_spec_accepted") == details.get("imp_spec_drafted")
            assert ("imp_spec_drafted" in details) == (not fields)
    assert answers[0] == answers[1]
