"""POST /v1/embeddings: every form of input, both encodings, exact usage, refusals that name the field."""

from __future__ import annotations

import asyncio
import base64
import json
import math
import struct
from typing import Any

import numpy as np
import pytest

from imp.chat.prepare import Vectors
from imp.http.dialects.embeddings import encoded, normalised
from tests.http.scripted import serving
from tests.http.wire import run


def expected(*lengths_and_sums: tuple[int, int]) -> list[np.ndarray]:
    """The scripted model's vectors, made unit length in float64."""
    raw = [np.array([length, total, 0.5, -3.0]) for length, total in lengths_and_sums]
    return [vector / np.linalg.norm(vector) for vector in raw]


def of(text: str) -> tuple[int, int]:
    return len(text.encode()), sum(text.encode())


@pytest.mark.parametrize(
    "given, sums",
    [
        ("hello", [of("hello")]),
        (["hello", "x"], [of("hello"), of("x")]),
        ([104, 105], [(2, 209)]),
        ([[104, 105], [7]], [(2, 209), (1, 7)]),
        (["a", [98]], [of("a"), (1, 98)]),
    ],
)
def test_every_form_of_input_gives_unit_vectors_in_order(given: Any, sums: list[tuple[int, int]]) -> None:
    async def main() -> None:
        async with serving() as site:
            body = (await site.post("/v1/embeddings", input=given, model="toy")).json()
            assert body["object"] == "list" and body["model"] == "toy"
            assert [entry["index"] for entry in body["data"]] == list(range(len(sums)))
            for entry, vector in zip(body["data"], expected(*sums), strict=True):
                assert entry["object"] == "embedding"
                np.testing.assert_allclose(entry["embedding"], vector, rtol=1e-6)
            tokens = sum(length for length, _ in sums)
            assert body["usage"] == {"prompt_tokens": tokens, "total_tokens": tokens}
            text = site.services.metrics.expose().decode()
            assert f"imp_tokens_prompt_total {tokens}\n" in text and "imp_tokens_completion_total 0\n" in text
            assert "imp_requests_total 1\n" in text

    run(main)


def test_base64_holds_the_same_float32_numbers() -> None:
    async def main() -> None:
        async with serving() as site:
            plain = (await site.post("/embeddings", input=["one", "two"], encoding_format="float")).json()
            packed = (await site.post("/v1/embeddings", input=["one", "two"], encoding_format="base64")).json()
            for one, other in zip(plain["data"], packed["data"], strict=True):
                raw = base64.b64decode(other["embedding"], validate=True)
                assert list(struct.unpack(f"<{len(raw) // 4}f", raw)) == one["embedding"]

    run(main)


BAD: list[tuple[dict[str, Any], str, str]] = [
    ({}, "input", "required"),
    ({"input": None}, "input", "must be"),
    ({"input": ""}, "input", "not empty"),
    ({"input": []}, "input", "1 to 3 inputs"),
    ({"input": [""]}, "input", "not empty"),
    ({"input": ["a", ""]}, "input[1]", "not empty"),
    ({"input": [[]]}, "input", "not empty"),
    ({"input": [1, "a"]}, "input[0]", "not empty"),
    ({"input": [[1, 2.5]]}, "input", "not empty"),
    ({"input": [True]}, "input", "not empty"),
    ({"input": 7}, "input", "must be a string or an array"),
    ({"input": ["a"] * 4}, "input", "1 to 3 inputs, not 4"),
    ({"input": [[9], [999999]]}, "input[1]", "outside the vocabulary"),
    ({"input": [[9], [-1]]}, "input[1]", "outside the vocabulary"),
    ({"input": "a", "dimensions": 2}, "dimensions", "must be 4"),
    ({"input": "a", "dimensions": 5}, "dimensions", "must be 4"),
    ({"input": "a", "dimensions": 0}, "dimensions", "at least 1"),
    ({"input": "a", "dimensions": "4"}, "dimensions", "integer"),
    ({"input": "a", "encoding_format": "int8"}, "encoding_format", '"float", "base64"'),
    ({"input": ["ok", "x" * 513]}, "input[1]", "too large"),
]


def test_what_is_wrong_is_named_and_nothing_runs() -> None:
    async def main() -> None:
        async with serving(max_batch_items=3) as site:
            for body, param, words in BAD:
                answer = await site.post("/v1/embeddings", **body)
                error = answer.json()["error"]
                assert answer.status_code == 400, (body, error)
                assert error["param"] == param and words in error["message"] and param in error["message"], error
            assert site.runner.steps == 0
            longest = await site.post("/v1/embeddings", input="x" * 512)
            assert longest.status_code == 200 and longest.json()["usage"]["prompt_tokens"] == 512
            unknown = await site.post("/v1/embeddings", input="a", model="other", pooling="max")
            assert unknown.status_code == 404

    run(main)


def test_a_prompt_that_is_too_long_has_the_code_clients_look_for() -> None:
    async def main() -> None:
        async with serving(max_input_tokens=10) as site:
            error = (await site.post("/v1/embeddings", input="x" * 11)).json()["error"]
            assert error["code"] == "context_length_exceeded" and "11 tokens" in error["message"]
            cut = await site.post("/v1/embeddings", input="abcdefghijkl", truncate_prompt_tokens=3)
            np.testing.assert_allclose(cut.json()["data"][0]["embedding"], expected(of("abc"))[0], rtol=1e-6)

    run(main)


def test_dimensions_cut_and_renormalise_only_where_the_model_was_trained_for_it() -> None:
    async def main() -> None:
        async with serving(vectors=Vectors(4, cuts=(2, 3))) as site:
            for size in (2, 3, 4):
                body = (await site.post("/v1/embeddings", input="hello", dimensions=size)).json()
                raw = np.array([*of("hello"), 0.5, -3.0])[:size]
                np.testing.assert_allclose(body["data"][0]["embedding"], raw / np.linalg.norm(raw), rtol=1e-6)
            error = (await site.post("/v1/embeddings", input="hello", dimensions=1)).json()["error"]
            assert error["param"] == "dimensions" and "at most 4, not 1" in error["message"]

    run(main)


def test_batches_and_concurrent_requests_change_nothing() -> None:
    async def main() -> None:
        async with serving(max_batch_items=64) as site:
            texts = [chr(97 + i % 26) * (i % 40 + 1) for i in range(64)]
            whole = (await site.post("/v1/embeddings", input=texts)).json()
            single = await asyncio.gather(*(site.post("/v1/embeddings", input=text) for text in texts))
            assert [entry["embedding"] for entry in whole["data"]] == [
                answer.json()["data"][0]["embedding"] for answer in single
            ]
            assert whole["usage"]["prompt_tokens"] == sum(map(len, texts))

    run(main)


def test_a_client_that_leaves_frees_its_place() -> None:
    async def main() -> None:
        async with serving() as site:
            site.runner.held.clear()
            task = asyncio.create_task(site.post("/v1/embeddings", input="hello"))
            await site.until(lambda: len(site.services.generating) == 1)
            task.cancel()
            await site.until(lambda: not site.services.generating)
            site.runner.held.set()
            await site.until(lambda: site.engine.stats.running == 0)
            await site.until(lambda: b"imp_requests_cancelled_total 1\n" in site.services.metrics.expose())

    run(main)


def test_normalised_vectors() -> None:
    assert list(normalised([0.0, 0.0])) == [0.0, 0.0]
    assert list(normalised([3.0, 4.0])) == [struct.unpack("f", struct.pack("f", v))[0] for v in (0.6, 0.8)]
    assert math.isclose(math.hypot(*normalised([1e-30] * 7)), 1.0, rel_tol=1e-6)
    assert encoded(normalised([1.0])) == base64.b64encode(b"\x00\x00\x80\x3f").decode()
    json.dumps(normalised([1.0, 2.0]).tolist(), allow_nan=False)
