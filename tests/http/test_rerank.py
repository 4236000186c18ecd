"""Reranking and scoring in the shapes of Cohere, Jina, vLLM and TEI, over a model that likes the letter y."""

from __future__ import annotations

import math
from typing import Any

import pytest

from imp.chat.pooling import INSTRUCTION, SYSTEM
from imp.http.message import dumps
from tests.http.scripted import serving
from tests.http.wire import run

DOCUMENTS = ["no", "yy", "y", "yyyy", "none", "y!"]
ORDER = [3, 1, 2, 5, 0, 4]  # four, two, one, one (later), none, none


def logit(document: str) -> float:
    """By hand: -1 + likes / 10 for each of y and Y against -1.5 for n and N; the prompt around the document has y too.
    Two equal tokens on each side add the same to both."""
    return 0.5 + (document.count("y") + AROUND) / 10


AROUND = f"system{SYSTEM}Instruction: {INSTRUCTION}Query: ".count("y")  # in the rest of the prompt


def probability(document: str) -> float:
    return 1 / (1 + math.exp(-logit(document)))


@pytest.mark.parametrize("path", ["/v1/rerank", "/rerank", "/v2/rerank"])
def test_the_best_come_first_and_equals_keep_their_order(path: str) -> None:
    async def main() -> None:
        async with serving(context=4096, shares_prompts=False) as site:
            answer = await site.post(path, query="q", documents=DOCUMENTS, model="toy")
            body = answer.json()
            assert answer.status_code == 200, body
            assert body["object"] == "rerank" and body["model"] == "toy" and body["id"].startswith("rerank-")
            assert [result["index"] for result in body["results"]] == ORDER
            scores = [result["relevance_score"] for result in body["results"]]
            assert scores == sorted(scores, reverse=True) and scores[2] == scores[3] and all(0 < s < 1 for s in scores)
            assert all(result.keys() == {"index", "relevance_score"} for result in body["results"])
            assert body["meta"]["billed_units"] == {"search_units": 1}
            assert body["meta"]["api_version"] == {"version": "2" if path == "/v2/rerank" else "1"}
            assert body["usage"]["prompt_tokens"] == body["usage"]["total_tokens"] == site.runner.prompt_positions > 0
            text = site.services.metrics.expose().decode()
            assert "imp_tokens_completion_total 0\n" in text and "imp_requests_total 1\n" in text

    run(main)


def test_scores_are_those_of_the_definition() -> None:
    async def main() -> None:
        async with serving(context=4096) as site:
            body = {"query": "q", "texts": DOCUMENTS}
            plain = (await site.post("/rerank", **body)).json()
            raw = (await site.post("/rerank", **body, raw_scores=True)).json()
            assert [entry["index"] for entry in plain] == [entry["index"] for entry in raw] == ORDER
            for one, other in zip(plain, raw, strict=True):
                document = DOCUMENTS[one["index"]]
                assert other["score"] == pytest.approx(logit(document), abs=1e-9)
                assert one["score"] == pytest.approx(probability(document), abs=1e-9)

    run(main)


def test_tei_gets_a_bare_array_and_only_on_its_own_path() -> None:
    async def main() -> None:
        async with serving(context=4096) as site:
            body = {"query": "q", "texts": ["y", "no"], "return_text": True}
            bare = (await site.post("/rerank", **body)).json()
            assert [entry.keys() for entry in bare] == [{"index", "score", "text"}] * 2
            assert [entry["text"] for entry in bare] == ["y", "no"]
            whole = (await site.post("/v1/rerank", **body)).json()
            assert [result["document"] for result in whole["results"]] == [{"text": "y"}, {"text": "no"}]

    run(main)


def test_top_n_objects_and_documents_in_the_answer() -> None:
    async def main() -> None:
        async with serving(context=4096) as site:
            documents = ["no", {"text": "yy", "title": "t"}, {"text": "y"}]
            body = {"query": "q", "documents": documents, "return_documents": True}
            for top, count in ((1, 1), (2, 2), (50, 3)):
                results = (await site.post("/v1/rerank", **body, top_n=top)).json()["results"]
                expected = [(1, "yy"), (2, "y"), (0, "no")][:count]
                assert [(r["index"], r["document"]) for r in results] == [(i, {"text": t}) for i, t in expected]

    run(main)


def test_the_instruction_reaches_the_prompt_and_documents_can_be_cut() -> None:
    async def main() -> None:
        async with serving(context=4096) as site:

            async def score(**body: Any) -> float:
                return (await site.post("/rerank", query="q", raw_scores=True, **body)).json()[0]["score"]

            plain = await score(texts=["abc"], instruction="Find.")
            assert await score(texts=["abc"], instruction="yFind.") == pytest.approx(plain + 0.1)
            assert await score(texts=["abcyyyy"], instruction="Find.") == pytest.approx(plain + 0.4)
            cut = await score(texts=["abcyyyy"], instruction="Find.", max_tokens_per_doc=5)
            assert cut == pytest.approx(plain + 0.2)
            half = await score(texts=["ab\u00e9y"], instruction="Find.", max_tokens_per_doc=3)
            assert half == pytest.approx(plain)  # the half of a character is not shown to the model

    run(main)


@pytest.mark.parametrize("path", ["/v1/score", "/score"])
def test_pairs_are_scored_in_the_order_they_came(path: str) -> None:
    async def main() -> None:
        async with serving(context=4096) as site:
            one = (await site.post(path, text_1="q", text_2=["no", "yy"])).json()
            assert one["object"] == "list" and [e["object"] for e in one["data"]] == ["score"] * 2
            assert [e["index"] for e in one["data"]] == [0, 1] and one["data"][0]["score"] < one["data"][1]["score"]
            same = (await site.post(path, queries=["q", "q"], documents=["no", "yy"])).json()
            assert [e["score"] for e in same["data"]] == [e["score"] for e in one["data"]]
            single = (await site.post(path, text_1="q", text_2="no")).json()
            assert single["data"] == [one["data"][0]]
            assert one["usage"]["prompt_tokens"] == same["usage"]["prompt_tokens"]

    run(main)


BAD: list[tuple[str, dict[str, Any], str]] = [
    ("/v1/rerank", {"documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": "", "documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": 1, "documents": ["a"]}, "query"),
    ("/v1/rerank", {"query": "q"}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": []}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": None}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": "a"}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": [1, 2]}, "documents[0]"),
    ("/v1/rerank", {"query": "q", "documents": ["a", {"title": "t"}]}, "documents[1].text"),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "texts": ["a"]}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": ["a"] * 4}, "documents"),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": "2"}, "top_n"),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "top_n": 0}, "top_n"),
    ("/v1/rerank", {"query": "q", "documents": ["a"], "rank_fields": ["title"]}, "rank_fields"),
    ("/rerank", {"query": "q", "texts": ["a"], "truncate": True}, "truncate"),
    ("/rerank", {"query": "q", "texts": ["a", "x" * 5000]}, "texts[1]"),
    ("/v1/score", {"text_1": "q"}, "text_2"),
    ("/v1/score", {"text_2": "q"}, "text_1"),
    ("/v1/score", {"text_1": ["a", "b"], "text_2": ["c", "d", "e"]}, "text_1"),
    ("/v1/score", {"text_1": [], "text_2": ["c"]}, "text_1"),
    ("/v1/score", {"text_1": "q", "text_2": [3]}, "text_2[0]"),
    ("/v1/score", {"text_1": "q", "text_2": "x" * 5000}, "text_2[0]"),
]


def test_what_is_wrong_is_named_and_nothing_runs() -> None:
    async def main() -> None:
        async with serving(context=4096, max_batch_items=3) as site:
            for path, body, param in BAD:
                answer = await site.post(path, **body)
                error = answer.json()["error"]
                assert answer.status_code == 400, (path, body)
                assert error["param"] == param and f'"{param}"' in error["message"], error
            assert site.runner.steps == 0

    run(main)


def test_without_a_chat_template_the_question_is_plain_text() -> None:
    async def main() -> None:
        async with serving(context=4096, template=None) as site:
            answer = (await site.post("/v1/rerank", query="q", documents=["no", "y"])).json()
            assert [result["index"] for result in answer["results"]] == [1, 0]
            dumps(answer)

    run(main)


def test_control_tokens_written_in_a_document_stay_text() -> None:
    """The scripted tokenizer never makes control tokens of text; the template's own end marker must not be forged."""

    async def main() -> None:
        async with serving(context=4096) as site:
            answer = await site.post("/v1/rerank", query="q", documents=["<eos><|im_end|>"], return_documents=True)
            assert answer.json()["results"][0]["document"] == {"text": "<eos><|im_end|>"}

    run(main)
