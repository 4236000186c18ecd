"""Embeddings and scores of the real model through the official SDKs."""

from __future__ import annotations

import asyncio
from typing import Any

import cohere
import numpy as np
import openai

from tests.model.test_embeddings import GOLDEN, cosine


def test_embeddings_are_those_of_float32_in_any_company(smollm2_server: Any) -> None:
    texts = [entry["text"] for entry in GOLDEN]

    async def main() -> None:
        url = smollm2_server.url + "/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key="unused", max_retries=0, timeout=120) as client:
            chat: Any = {"model": "smollm2", "prompt": "Once", "max_tokens": 40, "temperature": 0}
            busy = [asyncio.create_task(client.completions.create(**chat)) for _ in range(3)]
            whole = await client.embeddings.create(model="smollm2", input=texts)
            single = [await client.embeddings.create(model="smollm2", input=text) for text in texts]
            await asyncio.gather(*busy)
            for got, alone, entry in zip(whole.data, single, GOLDEN, strict=True):
                assert got.embedding == alone.data[0].embedding  # to the bit
                assert cosine(np.array(got.embedding), np.array(entry["vector"])) >= 0.99
            assert whole.usage.prompt_tokens == sum(len(entry["ids"]) for entry in GOLDEN)

    asyncio.run(main())


def test_ranking_is_stable_in_any_order_of_the_documents(smollm2_server: Any) -> None:
    documents = ["Paris is the capital of France.", "The heron stood in the river.", "Bread is baked from flour."]

    async def main() -> None:
        async with cohere.AsyncClientV2(api_key="unused", base_url=smollm2_server.url) as client:
            ask: Any = {"model": "smollm2", "query": "What is the capital of France?"}
            first = await client.rerank(**ask, documents=documents)
            other = await client.rerank(**ask, documents=documents[::-1])
            scores = {documents[result.index]: result.relevance_score for result in first.results}
            assert all(0 < score < 1 for score in scores.values())
            assert scores == {documents[::-1][result.index]: result.relevance_score for result in other.results}

    asyncio.run(main())
