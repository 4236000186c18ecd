"""The scenarios of sampling and log-probabilities over HTTP: what a client asks for is what is drawn, alone or not."""

from __future__ import annotations

import asyncio
import itertools
import math
import random
from contextlib import suppress
from typing import Any

import httpx
import numpy as np
import pytest
from openai.types.chat import ChatCompletion

from imp.chat.prepare import default_sampling
from tests.http.sampled import LETTERS, endless, letters, sampled
from tests.http.scripted import EOS, Harness, serving
from tests.http.wire import run

CHAT, COMPLETIONS = "/v1/chat/completions", "/v1/completions"


async def said(server: Harness, **body: Any) -> dict[str, Any]:
    """The first choice of a completion."""
    answer = await server.post(COMPLETIONS, **({"prompt": "once", "max_tokens": 12} | body))
    assert answer.status_code == 200, answer.text
    return answer.json()["choices"][0]


async def texts(server: Harness, **body: Any) -> list[str]:
    answer = await server.post(COMPLETIONS, **({"prompt": "once", "max_tokens": 12} | body))
    assert answer.status_code == 200, answer.text
    return [choice["text"] for choice in answer.json()["choices"]]


async def leaves(server: Harness, body: dict[str, Any]) -> None:
    """A client that hangs up in the middle."""
    with suppress(httpx.ReadTimeout):
        await server.client.post(COMPLETIONS, json=body | {"max_tokens": 300}, timeout=httpx.Timeout(5, read=0.02))


def neighbour(rng: random.Random) -> dict[str, Any]:
    body: dict[str, Any] = {"prompt": rng.choice(["once", "once upon", "twice"]), "max_tokens": rng.randrange(5, 30)}
    return body | rng.choice([{"temperature": 0}, {"seed": rng.randrange(9), "temperature": 1.5}, {"top_k": 3}])


@pytest.mark.parametrize("neighbours", [1, 7, 31])
@pytest.mark.parametrize("temperature", [0.8, 0])
def test_g05_01_a_seeded_request_does_not_depend_on_its_neighbours(neighbours: int, temperature: float) -> None:
    async def main() -> None:
        async with sampled(rows=12, blocks=400) as server:
            probe = {"seed": 42, "temperature": temperature, "logprobs": 3, "max_tokens": 25}
            alone = await said(server, **probe)
            rng = random.Random(neighbours)
            for _ in range(5):
                asks = [server.post(COMPLETIONS, **neighbour(rng)) for _ in range(neighbours)]
                crowd = [asyncio.create_task(ask) for ask in asks]
                crowd += [asyncio.create_task(leaves(server, neighbour(rng))) for _ in range(neighbours // 7)]
                assert await said(server, **probe) == alone
                await asyncio.gather(*crowd)

    run(main)


def test_g05_02_seeds_are_seeds_and_their_absence_is_chance() -> None:
    async def main() -> None:
        async with sampled(rows=8) as server:
            hot: dict[str, Any] = {"temperature": 1.0, "max_tokens": 30}
            unseeded = [*await texts(server, **hot), *await texts(server, **hot)]
            unseeded += await texts(server, prompt=["once"] * 4, **hot)
            unseeded += await texts(server, n=3, **hot)
            assert len(set(unseeded)) == len(unseeded) == 9
            four = await texts(server, n=4, seed=7, **hot)
            assert len(set(four)) == 4 and four == await texts(server, n=4, seed=7, **hot)
            for seed in (0, -1, 2**63 - 1):  # each is a seed like any other
                first = await texts(server, seed=seed, **hot)
                assert first == await texts(server, seed=seed, **hot) and first[0] not in unseeded
            for seed in (2**63, -(2**63) - 1, 1.5, "7"):
                answer = await server.post(COMPLETIONS, prompt="once", seed=seed)
                assert answer.status_code == 400 and answer.json()["error"]["param"] == "seed"

    run(main)


def test_g05_03_extreme_settings_are_greedy_or_without_limit_and_never_break() -> None:
    async def main() -> None:
        async with sampled(rows=8) as server:
            greedy, seeded = await said(server, temperature=0), {"seed": 3, "temperature": 1.0}
            busy = asyncio.create_task(server.post(COMPLETIONS, prompt="a", temperature=0, max_tokens=400))
            grid = itertools.product((0, 1e-8, 1e-4, 2), (1e-9, 0, 1), (-1, 0, 1, 9_999_999), (0, 1))
            for temperature, top_p, top_k, min_p in grid:
                settings = {"temperature": temperature, "top_p": top_p, "top_k": top_k, "min_p": min_p}
                choice = await said(server, **settings, seed=5)
                assert len(choice["text"]) == 12
                if temperature <= 1e-5 or top_p < 1 or top_k == 1 or min_p == 1:
                    assert choice["text"] == greedy["text"], settings
            assert await said(server, **seeded, top_k=9_999_999) == await said(server, **seeded, top_k=0)
            await busy
            for field, value in {"temperature": -1, "top_p": 1.1, "min_p": -0.1, "top_k": -2}.items():
                answer = await server.post(COMPLETIONS, prompt="a", **{field: value})
                assert answer.status_code == 400 and answer.json()["error"]["param"] == field
            for field, text in {"temperature": "3", "top_p": "-0.1"}.items():
                body = f'{{"prompt": "a", "{field}": {text}}}'
                answer = await raw(server, body)
                assert answer.status_code == 400 and answer.json()["error"]["param"] == field
            for text in ("NaN", "Infinity", "-Infinity"):
                assert (await raw(server, f'{{"prompt": "a", "temperature": {text}}}')).status_code == 400

    run(main)


async def raw(server: Harness, body: str) -> httpx.Response:
    return await server.client.post(COMPLETIONS, content=body, headers={"content-type": "application/json"})


def test_g05_05_chat_logprobs_have_openais_shape_and_the_bytes_of_the_text() -> None:
    async def main() -> None:
        quote = "”".encode()
        async with serving(["He", " said ", quote[:1], quote[1:2], quote[2:], "!"]) as server:
            ask = {"messages": [{"role": "user", "content": "x"}], "logprobs": True}
            for top in (None, 0, 3, 20):
                body = ask if top is None else ask | {"top_logprobs": top}
                answer = (await server.post(CHAT, **body)).json()
                ChatCompletion.model_validate(answer)
                [choice] = answer["choices"]
                entries = choice["logprobs"]["content"]
                assert choice["logprobs"]["refusal"] is None
                assert b"".join(bytes(entry["bytes"]) for entry in entries).decode() == choice["message"]["content"]
                for entry in entries:
                    assert entry["logprob"] <= 0 and math.isfinite(entry["logprob"]) and entry["token"]
                    values = [other["logprob"] for other in entry["top_logprobs"]]
                    assert len(values) == (top or 0) and values == sorted(values, reverse=True)
                    own = [o["logprob"] for o in entry["top_logprobs"] if o["token"] == entry["token"]]
                    assert all(value == entry["logprob"] for value in own)
                streamed = [e for e in await server.sse(CHAT, **body) if e != "[DONE]" and e["choices"]]
                parts = [(e["choices"][0].get("logprobs") or {}).get("content") or [] for e in streamed]
                assert list(itertools.chain.from_iterable(parts)) == entries
            for change, param in (({"top_logprobs": 21}, "top_logprobs"), ({"logprobs": None}, "top_logprobs")):
                answer = await server.post(CHAT, **ask | {"top_logprobs": 3} | change)
                assert answer.status_code == 400 and answer.json()["error"]["param"] == param

    run(main)


def log_softmax(scores: np.ndarray) -> np.ndarray:
    scores = scores.astype(np.float64)
    return scores - scores.max() - np.log(np.exp(scores - scores.max()).sum())


@pytest.mark.parametrize("as_ids", [False, True])
def test_g05_06_echo_scores_the_prompt_as_a_forced_pass_does(as_ids: bool) -> None:
    async def main() -> None:
        async with sampled() as server:
            prompt = "A B C"
            given: Any = [*prompt.encode()] if as_ids else prompt
            for more in (0, 1):
                ask = {"prompt": given, "echo": True, "logprobs": 1, "max_tokens": more, "temperature": 0}
                answer = (await server.post(COMPLETIONS, **ask)).json()
                [choice] = answer["choices"]
                found = choice["logprobs"]
                assert {len(found[key]) for key in found} == {len(prompt) + more}
                assert "".join(found["tokens"]) == choice["text"] and choice["text"].startswith(prompt)
                assert found["text_offset"] == list(range(len(prompt) + more))
                assert choice["finish_reason"] == "length" and answer["usage"]["completion_tokens"] == more
                assert found["token_logprobs"][0] is None
                model, tokens = server.runner.backend, np.array([*choice["text"].encode()])  # type: ignore[attr-defined]
                read = np.arange(len(tokens)) < len(prompt)
                for at in range(1, len(tokens)):
                    expected = log_softmax(model.scores(tokens[:at], read[:at])[: model.vocab])[tokens[at]]
                    assert found["token_logprobs"][at] == pytest.approx(expected, abs=1e-3)
            three = (await server.post(COMPLETIONS, prompt=["a", "bc", "def"], echo=True, logprobs=1, max_tokens=0)).json()
            assert [len(choice["logprobs"]["tokens"]) for choice in three["choices"]] == [1, 2, 3]

    run(main)


A, B, C = ord("a"), ord("b"), ord("c")
FIXED = {A: 2.0, B: 1.6, C: -0.5}


def fixed(row: np.ndarray, last: int) -> None:
    row[:] = -30.0
    for token, score in FIXED.items():
        row[token] = score


@pytest.mark.parametrize(
    "penalties",
    [
        {"presence_penalty": 1.0},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 1.0, "frequency_penalty": 0.5},
        {"repetition_penalty": 2.0},
        {"presence_penalty": -1.0, "repetition_penalty": 1.3},
    ],
)
def test_g05_08_penalties_follow_their_formulas(penalties: dict[str, float]) -> None:
    """Presence and frequency count the output alone (OpenAI), repetition the prompt too (Hugging Face), each once."""

    async def main() -> None:
        async with sampled(fixed) as server:
            choice = await said(server, prompt="bbb", temperature=0, logprobs=1, max_tokens=14, **penalties)
            counts = dict.fromkeys(FIXED, 0)
            raw_logprobs = log_softmax(np.array([*FIXED.values()]))
            for token, logprob in zip(choice["text"].encode(), choice["logprobs"]["token_logprobs"], strict=True):
                scores = {}
                for each, score in FIXED.items():
                    seen = counts[each] or each == B
                    factor = penalties.get("repetition_penalty", 1.0) if seen else 1.0
                    score = score / factor if score > 0 else score * factor
                    score -= penalties.get("presence_penalty", 0.0) * (counts[each] > 0)
                    scores[each] = score - penalties.get("frequency_penalty", 0.0) * counts[each]
                assert token == max(scores, key=scores.__getitem__), choice["text"]
                assert logprob == pytest.approx(raw_logprobs[[*FIXED].index(token)], abs=1e-3)  # before penalties
                counts[token] += 1
            for field, value in {"presence_penalty": 2.1, "frequency_penalty": -2.1, "repetition_penalty": 0}.items():
                answer = await server.post(COMPLETIONS, prompt="a", **{field: value})
                assert answer.status_code == 400 and answer.json()["error"]["param"] == field

    run(main)


def test_g05_09_choices_share_the_prompt_and_are_counted_each() -> None:
    async def main() -> None:
        async with sampled(rows=8) as server:
            prompt = "x" * 200
            answer = (await server.post(COMPLETIONS, prompt=prompt, n=4, temperature=1, max_tokens=10)).json()
            usage = answer["usage"]
            assert (usage["prompt_tokens"], usage["completion_tokens"]) == (200, 40)
            assert [choice["index"] for choice in answer["choices"]] == [0, 1, 2, 3]
            assert len({choice["text"] for choice in answer["choices"]}) == 4
            # the prompt once, each choice's last prompt token, and what was said
            assert server.engine.stats.positions <= 200 + 3 * 1 + 4 * 9
            equal = await texts(server, prompt=prompt, n=3, temperature=0)
            assert len(set(equal)) == 1
            for body, param in (({"n": 10000}, "n"), ({"n": 0}, "n"), ({"best_of": 2, "n": 3}, "best_of")):
                refused = await server.post(COMPLETIONS, prompt="a", **body)
                assert refused.status_code == 400 and refused.json()["error"]["param"] == param

    run(main)


def test_g05_10_extras_pass_and_what_cannot_be_done_is_refused_by_name() -> None:
    async def main() -> None:
        async with serving() as server:
            ask: dict[str, Any] = {"messages": [{"role": "user", "content": "x"}]}
            extras = {"user": "u", "metadata": {"a": "b"}, "store": False, "service_tier": "auto"}
            extras |= {"parallel_tool_calls": True, "prediction": {"type": "content", "content": "Hello"}}
            answer = await server.post(CHAT, **ask, **extras, stop=list("12345"))
            assert answer.status_code == 200 and "x-imp-ignored" not in answer.headers
            wrong: dict[str, Any] = {"modalities": ["audio"], "audio": {"voice": "x"}, "logprobs": "yes"}
            wrong |= {"temperature": "0.5", "stop": ["x"] * 17, "max_tokens": 1.5, "n": True}
            for field, value in wrong.items():
                refused = await server.post(CHAT, **ask, **{field: value})
                assert refused.status_code == 400, field
                error = refused.json()["error"]
                assert set(error) == {"message", "type", "param", "code"}
                assert error["type"] == "invalid_request_error" and error["param"].startswith(field)

    run(main)


def test_g05_11_the_request_wins_over_the_model_and_the_model_over_the_server() -> None:
    own = {"temperature": 0.6, "top_p": 0.95, "top_k": 20, "repetition_penalty": 1.05}

    async def main(defaults: dict[str, float], shown: dict[str, float]) -> None:
        async with serving(defaults=default_sampling(defaults)) as server:
            seen = []
            inner = server.engine.open
            server.engine.open = lambda requests: (seen.extend(requests), inner(requests))[1]  # type: ignore[method-assign]
            for body in ({}, {"temperature": 0}, {"temperature": None}, {"top_k": 0}):
                assert (await server.post(COMPLETIONS, prompt="a", **body)).status_code == 200
            found = [{name: getattr(request.sampling, name) for name in shown} for request in seen]
            assert found == [shown, shown | {"temperature": 0}, shown, shown | {"top_k": 0}]
            props = (await server.client.get("/props")).json()["default_generation_settings"]["params"]
            model = (await server.client.get("/v1/models/toy")).json()["sampling_defaults"]
            for name, value in shown.items():
                assert model[name] == value == props[{"repetition_penalty": "repeat_penalty"}.get(name, name)]

    run(lambda: main(own, own))
    run(lambda: main({}, {"temperature": 0.7, "top_p": 0.95, "top_k": 40, "repetition_penalty": 1.0}))


@pytest.mark.parametrize("ends", [letters, endless])
def test_the_model_of_these_tests_says_letters(ends: Any) -> None:
    async def main() -> None:
        async with sampled(ends) as server:
            found = await texts(server, prompt=["a", "b", "c"], max_tokens=200)
            assert all(set(text.encode()) <= set(LETTERS) for text in found) and EOS not in LETTERS
            assert (min(map(len, found)) < 200) == (ends is letters)

    run(main)
