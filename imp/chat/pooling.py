"""Prompts that are measured instead of continued: embeddings, and how relevant a document is to a query.

Relevance by a causal model: it is asked whether the document meets the query, and the score is P(yes) / (P(yes) +
P(no)) of the next token, from raw log-probabilities. Both spellings of a word count, with and without a leading
space, each by its first token; tokens that both words begin with tell nothing and are left out.

Pure functions of a request and the loaded model's facts, for the preparation pool.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..types import Limits, Pool, Request, Sampling
from .message import ChatRequest, Message, Refused
from .prepare import ModelFacts, encode_prompt, encode_rendered, prompt_salt, slot
from .rendering import render

SYSTEM = (
    "You judge whether a document meets a query in the way that the instruction describes. "
    'Answer with one word, "yes" or "no".'
)
INSTRUCTION = "The document contains the information that the query asks for."
WORDS = ("yes", "no")


@dataclass(frozen=True, slots=True)
class EmbeddingRequest:
    """inputs: texts or token ids, none empty.  truncate: tokens kept of a longer input; None: it is refused."""

    inputs: tuple[str | tuple[int, ...], ...]
    dimensions: int | None = None
    add_special_tokens: bool = True
    truncate: int | None = None


@dataclass(frozen=True, slots=True)
class Pair:
    """One document to score. `path`: the field it came in, for errors."""

    query: str
    document: str
    path: str


@dataclass(frozen=True, slots=True)
class RelevanceRequest:
    """document_tokens: what is kept of a longer document; None: a prompt that is too long is refused."""

    pairs: tuple[Pair, ...]
    instruction: str | None = None
    document_tokens: int | None = None


def prepare_embeddings(
    wanted: EmbeddingRequest,
    facts: ModelFacts,
    id: str,
    arrived: float,
    on_cut: Callable[[str], None] = lambda path: None,
) -> list[Request]:
    """One engine request per input, ids `id-0`, `id-1`, ... on_cut: told of every input of which tokens are left away.

    Raises Refused."""
    _check_model(facts)
    check_dimensions(wanted.dimensions, facts)
    requests = []
    for i, text in enumerate(wanted.inputs):
        path = f"input[{i}]" if len(wanted.inputs) > 1 else "input"
        tokens = _tokens(text, facts, wanted.add_special_tokens, path)
        if wanted.truncate is not None and len(tokens) > wanted.truncate:
            tokens = tokens[: wanted.truncate]
            on_cut(path)
        requests.append(_pooling(f"{id}-{i}", tokens, facts, facts.vectors.pool, Sampling(), arrived, path))
    return requests


def check_dimensions(dimensions: int | None, facts: ModelFacts) -> None:
    """Only models trained for it (Kusupati et al. 2022) keep their meaning in the first numbers of a vector."""
    size = facts.vectors.size
    if dimensions is None or dimensions == size or dimensions in facts.vectors.cuts:
        return
    if not facts.vectors.cuts:
        message = f'"dimensions" must be {size}: this model was not trained for shorter vectors'
    else:
        message = f'"dimensions" must be a size this model was trained for, at most {size}, not {dimensions}'
    raise Refused(message, "dimensions")


def prepare_relevance(wanted: RelevanceRequest, facts: ModelFacts, id: str, arrived: float) -> list[Request]:
    """One engine request per pair, ids `id-0`, `id-1`, ...; `relevance` reads their vectors. Raises Refused."""
    _check_model(facts)
    yes, no = answer_tokens(facts)
    asked = Sampling(temperature=0.0, logprobs=0, logprob_tokens=yes + no)
    requests = []
    for i, pair in enumerate(wanted.pairs):
        prompt = _question(pair, wanted, facts)
        requests.append(_pooling(f"{id}-{i}", prompt, facts, Pool.SCORE, asked, arrived, pair.path))
    return requests


def _check_model(facts: ModelFacts) -> None:
    if not facts.vectors.size:
        raise Refused("replies from a script have no numbers behind them, so nothing can be embedded or scored")


def answer_tokens(facts: ModelFacts) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """The tokens an answer of yes and one of no may begin with. Refused where the vocabulary cannot tell them apart."""
    found = []
    for word in WORDS:
        spellings = [space + spelling for space in ("", " ") for spelling in (word, word.capitalize())]
        encoded = [facts.tokenizer.encode(spelling, add_special=False) for spelling in spellings]
        found.append(dict.fromkeys(tokens[0] for tokens in encoded if tokens))
    yes, no = (tuple(token for token in one if token not in other) for one, other in (found, reversed(found)))
    if not yes or not no:
        raise Refused("this model's vocabulary cannot tell yes from no, so it cannot score documents")
    return yes, no


def relevance(vector: Sequence[float], yes_count: int) -> tuple[float, float]:
    """(P(yes) / (P(yes) + P(no)), its logit) from the log-probabilities of the yes tokens, then of the no tokens."""
    logit = _log_sum(vector[:yes_count]) - _log_sum(vector[yes_count:])
    return (1.0 / (1.0 + math.exp(-logit)) if logit > -700 else 0.0), logit


def _log_sum(logprobs: Sequence[float]) -> float:
    top = max(logprobs)
    return top + math.log(sum(math.exp(value - top) for value in logprobs))


def _question(pair: Pair, wanted: RelevanceRequest, facts: ModelFacts) -> list[int]:
    document = _beginning(pair.document, wanted.document_tokens, facts)
    asked = f"Instruction: {wanted.instruction or INSTRUCTION}\nQuery: {pair.query}\nDocument: {document}"
    if facts.template is None:
        return encode_prompt(f"{SYSTEM}\n\n{asked}\n\nAnswer:", facts, add_special=True)
    messages = (Message("system", SYSTEM), Message("user", asked))
    chat = ChatRequest(messages, template_kwargs={"enable_thinking": False})
    return encode_rendered(render(chat, facts), facts)


def _beginning(text: str, limit: int | None, facts: ModelFacts) -> str:
    """The first `limit` tokens of a text, without the half of a character that a cut may leave."""
    if limit is None:
        return text
    tokens = facts.tokenizer.encode(text, add_special=False)
    return text if len(tokens) <= limit else facts.tokenizer.decode(tokens[:limit]).rstrip("\ufffd")


def _tokens(text: str | Sequence[int], facts: ModelFacts, add_special: bool, path: str) -> list[int]:
    try:
        return encode_prompt(text, facts, add_special)
    except Refused as error:
        raise Refused(f'"{path}": {error.message}', path, error.code, error.status) from None


def _pooling(
    id: str, prompt: list[int], facts: ModelFacts, pool: Pool, sampling: Sampling, arrived: float, path: str
) -> Request:
    limit = min(facts.max_input_tokens or facts.context, facts.context)  # no answer needs a place
    if len(prompt) > limit:
        message = f'"{path}" is too large: it has {len(prompt)} tokens; this server accepts at most {limit}'
        raise Refused(message, path, "context_length_exceeded")
    return Request(
        id,
        tuple(prompt),
        sampling,
        Limits(max_tokens=0),
        adapter=slot(facts),
        salt=prompt_salt(None, facts),
        shares=facts.shares_prompts,
        pool=pool,
        arrived=arrived,
    )
