"""Tokens that are banned, allowed, reported: the real model, its tokenizer and its sampler."""

from __future__ import annotations

from typing import Any

import httpx
import pytest

ASK: dict[str, Any] = {"prompt": "The capital of France is", "max_tokens": 12, "temperature": 0}


def post(server: Any, path: str, **body: Any) -> dict[str, Any]:
    return httpx.post(server.url + path, json=body, timeout=120).raise_for_status().json()


def test_a_banned_word_is_not_written(smollm2_server: Any) -> None:
    plain = post(smollm2_server, "/v1/completions", **ASK)["choices"][0]["text"]
    assert "Paris" in plain
    banned = post(smollm2_server, "/v1/completions", **ASK, bad_words=["Paris"])["choices"][0]["text"]
    assert "Paris" not in banned and banned.strip()


@pytest.mark.parametrize("temperature", [0, 1.5])
def test_only_allowed_tokens_are_written(smollm2_server: Any, temperature: float) -> None:
    digits = post(smollm2_server, "/tokenize", prompt="0123456789", add_special_tokens=False)["tokens"]
    ask = ASK | {"allowed_token_ids": digits, "temperature": temperature, "return_token_ids": True}
    choice = post(smollm2_server, "/v1/completions", **ask)["choices"][0]
    assert len(choice["token_ids"]) == 12 and set(choice["token_ids"]) <= set(digits)
    assert choice["text"].isdigit() and choice["finish_reason"] == "length"


def test_a_named_token_has_the_logprob_it_has_among_the_likeliest(smollm2_server: Any) -> None:
    ask = ASK | {"max_tokens": 1, "return_tokens_as_token_ids": True}
    top = post(smollm2_server, "/v1/completions", **ask, logprobs=5)["choices"][0]["logprobs"]["top_logprobs"][0]
    ids = [int(name.removeprefix("token_id:")) for name in top]
    named = post(smollm2_server, "/v1/completions", **ask, logprobs=0, logprob_token_ids=ids)
    found = named["choices"][0]["logprobs"]["top_logprobs"][0]
    assert found.keys() == top.keys()
    assert all(found[name] == pytest.approx(top[name], abs=1e-4) for name in top)
