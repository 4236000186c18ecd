"""OpenAI's SDK asks for embeddings, Cohere's for reranking, as their users would write it."""

from __future__ import annotations

import cohere
import numpy as np
import openai
import pytest

from tests.http.scripted import serving
from tests.http.wire import run


def test_g09_01_openai_embeddings_arrive_as_numbers_whatever_the_encoding() -> None:
    """The SDK asks for base64 unless told otherwise, and decodes it."""

    async def main() -> None:
        async with serving() as site, openai.AsyncOpenAI(api_key="x", base_url=f"{site.url}/v1") as client:
            default = await client.embeddings.create(model="toy", input=["one", "two"])
            plain = await client.embeddings.create(model="toy", input=["one", "two"], encoding_format="float")
            assert default.usage.prompt_tokens == default.usage.total_tokens == 6
            for one, other in zip(default.data, plain.data, strict=True):
                assert one.embedding == other.embedding and one.index == other.index
                assert np.linalg.norm(one.embedding) == pytest.approx(1, abs=1e-6)
            with pytest.raises(openai.BadRequestError) as caught:
                await client.embeddings.create(model="toy", input="one", dimensions=2)
            assert caught.value.param == "dimensions"

    run(main)


def test_cohere_reranks_through_both_of_its_apis() -> None:
    async def main() -> None:
        documents = ["no", "yy", "y"]
        async with serving(context=4096) as site:
            async with cohere.AsyncClientV2(api_key="x", base_url=site.url) as client:
                answer = await client.rerank(model="toy", query="q", documents=documents, top_n=2)
                assert [result.index for result in answer.results] == [1, 2]
                assert answer.results[0].relevance_score > answer.results[1].relevance_score
                assert answer.meta is not None and answer.meta.billed_units is not None
                assert answer.meta.billed_units.search_units == 1
                with pytest.raises(cohere.BadRequestError):
                    await client.rerank(model="toy", query="q", documents=[])
            async with cohere.AsyncClient(api_key="x", base_url=site.url) as old:
                shown = await old.rerank(model="toy", query="q", documents=documents, return_documents=True)
                assert [(r.index, r.document.text) for r in shown.results if r.document] == [
                    (1, "yy"),
                    (2, "y"),
                    (0, "no"),
                ]

    run(main)
