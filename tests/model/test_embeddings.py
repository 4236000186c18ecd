"""SmolLM2's embeddings against float32 transformers (tests/golden/make_embeddings.py), and what its scores mean."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imp.bundle import Bundle
from imp.chat.pooling import EmbeddingRequest, Pair, RelevanceRequest, prepare_embeddings, prepare_relevance, relevance
from imp.model import arch
from imp.model.inputs import pack
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.types import Batch, Finished, Pool, Request, Row, Sequence
from imp.weights.checkpoint import open_checkpoint
from tests.model.test_logprobs import load

GOLDEN = json.loads((Path(__file__).resolve().parents[1] / "golden" / "smollm2_embeddings.json").read_text())["prompts"]


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Iterator[Bundle]:
    loaded = load(smollm2_path)
    yield loaded
    loaded.close()


def vectors(loaded: Bundle, requests: list[Request]) -> list[np.ndarray]:
    """Through the real scheduler and runner, all in one batch, in the order of the requests."""
    for request in requests:
        assert not loaded.scheduler.submit(request, 0.0)
    found = {}
    while (batch := loaded.scheduler.plan(0.0)) is not None:
        for event in loaded.scheduler.apply(batch, loaded.runner.step(batch), 0.0):
            if isinstance(event, Finished):
                found[event.request] = np.array(event.vector)
    return [found[request.id] for request in requests]


def cosine(a: np.ndarray, b: Any) -> float:
    return float(a @ b / np.linalg.norm(a) / np.linalg.norm(b))


def test_quantised_smollm2_points_where_float32_points(smollm2):
    texts = tuple(entry["text"] for entry in GOLDEN)
    requests = prepare_embeddings(EmbeddingRequest(texts), smollm2.facts, "e", 0.0)
    assert [list(request.prompt) for request in requests] == [entry["ids"] for entry in GOLDEN]
    found = vectors(smollm2, requests)
    assert smollm2.facts.vectors.size == len(found[0]) == len(GOLDEN[0]["vector"])
    for vector, entry in zip(found, GOLDEN, strict=True):
        assert cosine(vector, np.array(entry["vector"])) >= 0.99, entry["name"]
    # and tells the texts apart: every one is nearest to its own golden vector
    near = [[cosine(vector, np.array(entry["vector"])) for entry in GOLDEN] for vector in found]
    assert [int(np.argmax(row)) for row in near] == list(range(len(GOLDEN)))


@pytest.mark.slow
@pytest.mark.parametrize("entry", GOLDEN[1:3], ids=lambda entry: entry["name"])
def test_the_reference_in_float32_has_transformers_numbers(smollm2_path, entry):
    backend = ReferenceBackend(np.float32)
    model = arch.build(open_checkpoint(smollm2_path))
    backend.load(model, StepLimits(tokens=64, rows=1, logit_rows=64, context=64, blocks=4))
    seq = Sequence(Request("r", tuple(entry["ids"]), pool=Pool.MEAN), 0, 0, list(entry["ids"]), blocks=[0, 1, 2, 3])
    backend.run(pack(Batch([Row(seq, 0, len(entry["ids"]))]), 16))
    mean = backend.hidden().astype(np.float64).mean(0)
    np.testing.assert_allclose(mean / np.linalg.norm(mean), entry["vector"], atol=1e-5)


def test_scores_are_the_models_own_probabilities(smollm2):
    """Against the logits of the same prompt, all of them."""
    documents = ["Paris is the capital of France.", "A heron stood in the river."]
    pairs = tuple(Pair("What is the capital of France?", text, f"documents[{i}]") for i, text in enumerate(documents))
    requests = prepare_relevance(RelevanceRequest(pairs), smollm2.facts, "s", 0.0)
    spelled = {smollm2.tokenizer.token_text(token) for token in requests[0].sampling.logprob_tokens}
    assert {"yes", "no", "Yes", "No"} <= spelled
    scores = []
    for request, vector in zip(requests, vectors(smollm2, requests), strict=True):
        seq = Sequence(request, 0, 0, list(request.prompt), blocks=list(range(32)))
        inputs = pack(Batch([Row(seq, 0, len(request.prompt))]), 16)
        logits = smollm2.backend.run(inputs)[0].astype(np.float64)
        asked = list(request.sampling.logprob_tokens)
        expected = logits[asked] - logits.max() - np.log(np.exp(logits - logits.max()).sum())
        np.testing.assert_allclose(vector, expected, atol=1e-4)
        scores.append(relevance(vector.tolist(), len(asked) // 2)[0])
    assert all(0 < score < 1 for score in scores)
