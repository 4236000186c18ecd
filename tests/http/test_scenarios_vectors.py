"""Scenarios of group 9 over HTTP: embeddings and ranking, and models that cannot do what is asked of them.

What of the group is about LoRA adapters, encoder models and images needs these first.
"""

from __future__ import annotations

import base64
import math
import struct
from typing import Any

import numpy as np
import pytest

from imp.chat.prepare import Vectors
from imp.types import Pool, Request
from tests.http.scripted import serving
from tests.http.wire import run

EIGHT = Vectors(8)
MATRYOSHKA = Vectors(8, cuts=range(1, 9))


def eight(request: Request) -> tuple[float, ...]:
    """Eight numbers of a prompt, all different; no unit vector."""
    if request.pool is Pool.SCORE:
        return tuple(-1.0 for _ in request.sampling.logprob_tokens)
    prompt = request.prompt
    return tuple(math.sin(number * (1 + sum(prompt) % 97)) * len(prompt) for number in range(1, 9))


def judged(text: str, size: int = 8) -> np.ndarray:
    """The vector a text should get, in float64."""
    prompt = text.encode()
    raw = np.array([math.sin(number * (1 + sum(prompt) % 97)) for number in range(1, 9)])[:size]
    return raw / np.linalg.norm(raw)


def numbers(encoded: str) -> list[float]:
    raw = base64.b64decode(encoded, validate=True)
    return list(struct.unpack(f"<{len(raw) // 4}f", raw))


# -- G09-01


def test_g09_01_base64_holds_what_the_numbers_do_and_another_encoding_is_refused() -> None:
    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=eight) as site:

            async def embedded(**body: Any) -> Any:
                answer = await site.post("/v1/embeddings", input="hello", **body)
                assert answer.status_code == 200, answer.text
                return answer.json()["data"][0]["embedding"]

            plain = await embedded()
            assert len(plain) == 8 and all(isinstance(value, float) for value in plain)
            assert await embedded(encoding_format="float") == plain == await embedded(encoding_format=None)
            np.testing.assert_allclose(plain, judged("hello"), atol=1e-6)
            packed = await embedded(encoding_format="base64")
            assert len(base64.b64decode(packed)) == 32 and numbers(packed) == plain
            for wrong in ("binary", "BASE64", "", 7):
                error = (await site.post("/v1/embeddings", input="hello", encoding_format=wrong)).json()["error"]
                assert error["param"] == "encoding_format" and error["type"] == "invalid_request_error"

    run(main)


# -- G09-02


@pytest.mark.parametrize("blocks", [256, 32])
def test_g09_02_an_input_that_is_too_long_is_refused_by_name_and_never_cut(blocks: int) -> None:
    """The scripted model steps by 128 tokens, and 32 blocks hold 512 of them: all of the context and nothing more."""

    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=eight, context=512, blocks=blocks) as site:
            for size in (511, 512):
                answer = await site.post("/v1/embeddings", input="x" * size)
                assert answer.status_code == 200 and answer.json()["usage"]["prompt_tokens"] == size
                np.testing.assert_allclose(answer.json()["data"][0]["embedding"], judged("x" * size), atol=1e-6)
            steps = site.runner.steps
            for size in (513, 5000):
                for given, param in (("x" * size, "input"), (["a", "x" * size, "b"], "input[1]")):
                    answer = await site.post("/v1/embeddings", input=given)
                    error = answer.json()["error"]
                    assert (answer.status_code, error["code"]) == (400, "context_length_exceeded"), error
                    assert (
                        error["param"] == param and f"{size} tokens" in error["message"] and "512" in error["message"]
                    )
            assert site.runner.steps == steps  # nothing of a refused batch was computed
            # texts that differ only at their ends
            vectors = [
                (await site.post("/v1/embeddings", input="x" * 511 + end)).json()["data"][0]["embedding"]
                for end in "ab"
            ]
            assert vectors[0] != vectors[1]

    run(main)


def test_g09_02_what_is_cut_because_the_request_says_so_is_told() -> None:
    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=eight, context=512) as site:
            given = ["abc", "x" * 5000, "y" * 40, [97] * 41]
            answer = await site.post("/v1/embeddings", input=given, truncate_prompt_tokens=40)
            body = answer.json()
            assert answer.status_code == 200 and answer.headers["x-imp-truncated"] == "input[1], input[3]"
            assert body["usage"] == {"prompt_tokens": 3 + 40 + 40 + 40, "total_tokens": 123}
            for entry, text in zip(body["data"], ["abc", "x" * 40, "y" * 40, "a" * 40], strict=True):
                np.testing.assert_allclose(entry["embedding"], judged(text), atol=1e-6)
            whole = await site.post("/v1/embeddings", input="abc", truncate_prompt_tokens=40)
            assert "x-imp-truncated" not in whole.headers

    run(main)


# -- G09-04


def test_g09_04_dimensions_are_cut_and_made_unit_length_again() -> None:
    async def main() -> None:
        async with serving(vectors=MATRYOSHKA, vector_of=eight) as site:
            for size in (4, 8, 1):
                body = {"input": "hello", "dimensions": size}
                plain = (await site.post("/v1/embeddings", **body)).json()["data"][0]["embedding"]
                assert len(plain) == size
                np.testing.assert_allclose(plain, judged("hello", size), atol=1e-6)
                packed = (await site.post("/v1/embeddings", **body, encoding_format="base64")).json()["data"][0]
                assert numbers(packed["embedding"]) == plain
            whole = (await site.post("/v1/embeddings", input="hello")).json()["data"][0]["embedding"]
            assert (await site.post("/v1/embeddings", input="hello", dimensions=8)).json()["data"][0][
                "embedding"
            ] == whole

    run(main)


@pytest.mark.parametrize("vectors", [EIGHT, MATRYOSHKA])
def test_g09_04_other_dimensions_are_refused(vectors: Vectors) -> None:
    async def main() -> None:
        async with serving(vectors=vectors, vector_of=eight) as site:
            for size in (9, 0, -1, 2.5, "4", *([4] if vectors is EIGHT else [])):
                answer = await site.post("/v1/embeddings", input="hello", dimensions=size)
                error = answer.json()["error"]
                assert (answer.status_code, error["param"]) == (400, "dimensions"), size
                assert '"dimensions" must be' in error["message"]
            assert site.runner.steps == 0
            assert (await site.post("/v1/embeddings", input="hello", dimensions=8)).status_code == 200

    run(main)


# -- G09-05

PICTURES = {
    "a PNG of one pixel": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==",
    "a JPEG that ends early": "data:image/jpeg;base64,/9j/4AAQSkZJRgABAQAAAQABAAD/2wBD",
    "no base64": "data:image/png;base64,!!!!",
    "text": "data:image/png;base64,aGVsbG8=",
    "nothing": "data:image/png;base64,",
    "an address": "http://127.0.0.1:9/x.png",
}


@pytest.mark.parametrize("picture", PICTURES)
def test_g09_05_a_picture_for_a_model_of_text_is_refused_by_its_place(picture: str) -> None:
    url = PICTURES[picture]
    text = {"type": "text", "text": "What is this?"}
    media, _, data = url.removeprefix("data:").partition(";base64,")
    asked: list[tuple[str, dict[str, Any]]] = [
        ("/v1/chat/completions", {"content": [text, {"type": "image_url", "image_url": {"url": url}}]}),
        (
            "/v1/messages",
            {"content": [text, {"type": "image", "source": {"type": "base64", "media_type": media, "data": data}}]},
        ),
    ]

    async def main() -> None:
        async with serving() as site:
            for path, message in asked:
                messages = [{"role": "user", "content": "hi"}, {"role": "assistant", "content": "Hello"}]
                messages.append({"role": "user", **message})
                answer = await site.post(path, messages=messages, max_tokens=5)
                error = answer.json()["error"]
                assert answer.status_code == 400, error
                assert "messages[2].content[1]" in error["message"]
                assert path == "/v1/messages" or error["param"].startswith("messages[2].content[1]")
            assert site.runner.steps == 0
            plain = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 5}
            for path, _ in asked:
                assert (await site.post(path, **plain)).status_code == 200

    run(main)


def test_g09_05_a_model_says_what_it_can_do_and_refuses_the_rest() -> None:
    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=eight, context=4096) as site:
            [model] = (await site.client.get("/v1/models")).json()["data"]
            assert model["capabilities"] == ["completion", "chat", "embeddings", "rerank"]
        async with serving(vectors=Vectors(0), template=None) as site:
            [model] = (await site.client.get("/v1/models")).json()["data"]
            assert model["capabilities"] == ["completion"]
            messages = [{"role": "user", "content": "hi"}]
            for path, body in {
                "/v1/chat/completions": {"messages": messages},
                "/v1/embeddings": {"input": "hello"},
                "/v1/rerank": {"query": "q", "documents": ["d"]},
                "/v1/score": {"text_1": "q", "text_2": "d"},
                "/infill": {"input_prefix": "a", "input_suffix": "b"},
            }.items():
                answer = await site.post(path, **body)
                assert answer.status_code == 400 and answer.json()["error"]["message"], path
            assert site.runner.steps == 0
            assert (await site.post("/v1/completions", prompt="hi")).status_code == 200

    run(main)


# -- G09-06, G09-07


def liking(request: Request) -> tuple[float, ...]:
    """Log-probabilities of yes and no whose log-odds are what the document at the prompt's end says."""
    text = bytes(request.prompt).decode()
    logit = float(text.partition("Document: ")[2].partition("=")[0])
    count = len(request.sampling.logprob_tokens) // 2
    no = -math.log1p(math.exp(logit)) if logit < 30 else -logit
    return (*[no + logit - math.log(count)] * count, *[no - math.log(count)] * count)


def sigmoid(logit: float) -> float:
    return 1 / (1 + math.exp(-logit))


def document(logit: float, rest: str = "") -> str:
    return f"{logit!r}={rest}"


@pytest.mark.parametrize("path", ["/rerank", "/v1/rerank", "/v2/rerank"])
def test_g09_06_ranking_has_one_shape_and_probabilities(path: str) -> None:
    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=liking, context=4096) as site:
            documents = [document(-2.0), {"text": document(0.5)}, document(-0.25)]
            asked = {"query": "q", "documents": documents}
            whole = (await site.post(path, **asked)).json()
            assert [(r["index"], r.keys()) for r in whole["results"]] == [
                (index, {"index", "relevance_score"}) for index in (1, 2, 0)
            ]
            for result, logit in zip(whole["results"], (0.5, -0.25, -2.0), strict=True):
                assert result["relevance_score"] == pytest.approx(sigmoid(logit), abs=1e-9)  # once, not twice
            assert whole["usage"]["total_tokens"] == whole["usage"]["prompt_tokens"] > 0
            assert whole["meta"]["billed_units"] == {"search_units": 1}
            shown = (await site.post(path, **asked, top_n=1, return_documents=True)).json()["results"]
            assert [(r["index"], r["document"]) for r in shown] == [(1, {"text": document(0.5)})]
            assert len((await site.post(path, **asked, top_n=99)).json()["results"]) == 3
            refused = await site.post(path, **asked, top_n=0)
            assert refused.status_code == 400 and refused.json()["error"]["param"] == "top_n"

    run(main)


def test_g09_07_saturated_scores_keep_their_order() -> None:
    """Past 37 a sigmoid in float64 is 1.0, and the order is still that of the log-odds."""
    logits = [9.1, 9.4, 12.0, 9.4, -40.0, 41.0, 38.0, 40.0, -39.0]
    order = [5, 7, 6, 2, 1, 3, 0, 8, 4]

    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=liking, context=4096) as site:

            async def ranked(path: str, documents: list[str], name: str = "documents") -> Any:
                answer = await site.post(path, query="q", **{name: documents})
                assert answer.status_code == 200, answer.text
                return answer.json()

            documents = [document(logit) for logit in logits]
            results = (await ranked("/v1/rerank", documents))["results"]
            assert [result["index"] for result in results] == order  # ties in the order they came
            assert [entry["index"] for entry in await ranked("/rerank", documents, "texts")] == order
            scores = {result["index"]: result["relevance_score"] for result in results}
            assert len({scores[0], scores[1], scores[2]}) == 3 and scores[1] == scores[3]
            assert all(0 <= score <= 1 for score in scores.values())
            for logit in (9.1, -3.0):  # alone as in company
                [alone] = (await ranked("/v1/rerank", [document(logit)]))["results"]
                assert alone["relevance_score"] == pytest.approx(sigmoid(logit), abs=1e-12)
            same = (await ranked("/v1/rerank", [document(1.0), document(1.0)]))["results"]
            assert [r["index"] for r in same] == [0, 1] and same[0]["relevance_score"] == same[1]["relevance_score"]
            empty = await site.post("/v1/rerank", query="q", documents=[])
            assert empty.status_code == 400 and empty.json()["error"]["param"] == "documents"

    run(main)


def test_g09_07_a_thousand_documents_of_mixed_length() -> None:
    async def main() -> None:
        async with serving(vectors=EIGHT, vector_of=liking, context=4096, max_batch_items=1000) as site:
            logits = [((number * 7919) % 1000) / 50 - 10 for number in range(1000)]
            documents = [document(logit, "x" * (number % 90)) for number, logit in enumerate(logits)]
            results = (await site.post("/v1/rerank", query="q", documents=documents)).json()["results"]
            assert [r["index"] for r in results] == sorted(range(1000), key=lambda number: -logits[number])
            for result in results[::50]:
                assert result["relevance_score"] == pytest.approx(sigmoid(logits[result["index"]]), abs=1e-9)

    run(main)
