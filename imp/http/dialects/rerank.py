"""Documents by relevance (WIRE.md section 6): /v1/rerank, /v2/rerank, /rerank and vLLM's /score.

The shapes of Cohere, Jina and vLLM are one shape here, with each one's extra keys. A request to /rerank with `texts`
speaks TEI's language, and gets TEI's bare array.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from imp.chat.pooling import Pair, RelevanceRequest, relevance
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import Conversation
from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, Parsed, Status, parse, wrong

_DOCUMENT = Field("", (Kind.STRING, Kind.OBJECT))
_COMMON = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("instruction", Kind.STRING, min_items=1, max_items=10_000, doc="What makes a document relevant to a query."),
    Field("max_tokens_per_doc", Kind.INTEGER, 1, doc="Tokens kept of a longer document. Absent: too long is refused."),
    Field("user", Kind.ANY, status=Status.NO_OP, doc="Accepted; has no effect here."),
)
RERANK = (
    Field("query", Kind.STRING, required=True, min_items=1, doc="What the documents are compared with."),
    Field("documents", Kind.ARRAY, min_items=1, items=_DOCUMENT, doc='Texts, or objects with a "text".'),
    Field(
        "texts", Kind.ARRAY, min_items=1, items=_DOCUMENT, doc="TEI's name for documents; on /rerank, its answer too."
    ),
    Field("top_n", Kind.INTEGER, 1, doc="Results at most; absent: all."),
    Field("return_documents", Kind.BOOLEAN, default=False, doc="Repeat the documents in the results."),
    Field("return_text", Kind.BOOLEAN, default=False, doc="TEI's name for it."),
    Field("raw_scores", Kind.BOOLEAN, default=False, doc="TEI: log-odds instead of probabilities."),
    Field("truncate", Kind.BOOLEAN, choices=(False,), doc="TEI: use max_tokens_per_doc to shorten documents."),
    *_COMMON,
    Field("rank_fields", Kind.ANY, status=Status.REFUSED, doc='only the "text" of a document is compared.'),
    Field("max_chunks_per_doc", Kind.ANY, status=Status.REFUSED, doc="documents are scored whole."),
)
SCORE = (
    Field("text_1", (Kind.STRING, Kind.ARRAY), min_items=1, items=Field("", Kind.STRING), doc="A query, or several."),
    Field(
        "text_2", (Kind.STRING, Kind.ARRAY), min_items=1, items=Field("", Kind.STRING), doc="A document, or several."
    ),
    Field(
        "queries", (Kind.STRING, Kind.ARRAY), min_items=1, items=Field("", Kind.STRING), doc="Another name of text_1."
    ),
    Field(
        "documents", (Kind.STRING, Kind.ARRAY), min_items=1, items=Field("", Kind.STRING), doc="Another name of text_2."
    ),
    *_COMMON,
)


class Shape(Enum):
    """What an answer looks like."""

    RERANK = "rerank"
    TEI = "tei"
    SCORE = "score"


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    wanted: RelevanceRequest
    model: str | None
    shape: Shape
    ignored: tuple[str, ...]
    top_n: int | None = None
    return_documents: bool = False
    raw_scores: bool = False
    version: str = "1"  # of Cohere's API


def read_rerank(body: Mapping[str, Any], path: str, max_items: int) -> Ask:
    """The body of a rerank request to `path`. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, RERANK)
    name = _one_of(parsed, "documents", "texts")
    documents = [_text(item, f"{name}[{i}]") for i, item in enumerate(parsed[name])]
    _check_count(name, len(documents), max_items)
    pairs = tuple(Pair(parsed["query"], text, f"{name}[{i}]") for i, text in enumerate(documents))
    return Ask(
        _relevance(pairs, parsed),
        parsed["model"],
        Shape.TEI if name == "texts" and path == "/rerank" else Shape.RERANK,
        parsed.ignored,
        parsed["top_n"],
        parsed["return_documents"] or parsed["return_text"],
        parsed["raw_scores"],
        "2" if path.startswith("/v2/") else "1",
    )


def read_score(body: Mapping[str, Any], path: str, max_items: int) -> Ask:
    """The body of a score request: one query for every document, or as many of both. ApiError 400."""
    parsed = parse(body, SCORE)
    first, second = _one_of(parsed, "text_1", "queries"), _one_of(parsed, "text_2", "documents")
    queries, documents = ([text] if isinstance(text, str) else text for text in (parsed[first], parsed[second]))
    _check_count(second, len(documents), max_items)
    if len(queries) not in (1, len(documents)):
        message = f'"{first}" must hold one text or as many as "{second}" ({len(documents)}), not {len(queries)}.'
        raise bad_request(first, message)
    if len(queries) == 1:
        queries = queries * len(documents)
    pairs = tuple(
        Pair(query, text, f"{second}[{i}]") for i, (query, text) in enumerate(zip(queries, documents, strict=True))
    )
    return Ask(_relevance(pairs, parsed), parsed["model"], Shape.SCORE, parsed.ignored)


def _one_of(parsed: Parsed, name: str, other: str) -> str:
    """The one of two names of a field that was given."""
    given = [each for each in (name, other) if parsed[each] is not None]
    if len(given) != 1:
        raise bad_request(name, f'One of "{name}" and "{other}" is needed, not {"both" if given else "none"}.')
    return given[0]


def _check_count(name: str, count: int, most: int) -> None:
    if count > most:
        raise bad_request(name, f'"{name}" must hold at most {most} documents, not {count}.')


def _text(item: str | Mapping[str, Any], path: str) -> str:
    if isinstance(item, str):
        return item
    if not isinstance(item.get("text"), str):
        raise wrong(f"{path}.text", "a string", item.get("text"))
    return item["text"]


def _relevance(pairs: tuple[Pair, ...], parsed: Parsed) -> RelevanceRequest:
    return RelevanceRequest(pairs, parsed["instruction"], parsed["max_tokens_per_doc"])


class Writer:
    """Scores in the shape that was asked for."""

    def __init__(self, ask: Ask, header: Header, conversation: Conversation, yes_count: int):
        """yes_count: of the log-probabilities in every vector, those that say yes."""
        self.ask, self.header, self.conversation, self.yes_count = ask, header, conversation, yes_count

    def reply(self) -> dict[str, Any] | list[dict[str, Any]]:
        """The answer as far as it has come: the whole, once every event has been taken. The order is that of the
        log-odds, which go on growing where probabilities are 1.0; equals stay in the order of the request."""
        found = self._relevance()
        scores = {i: logit if self.ask.raw_scores else score for i, (score, logit) in found.items()}
        if self.ask.shape is Shape.SCORE:
            data = [{"index": i, "object": "score", "score": score} for i, score in scores.items()]
            return self._head("list") | {"data": data, "usage": self._usage()}
        order = sorted(found, key=lambda i: -found[i][1])[: self.ask.top_n]
        if self.ask.shape is Shape.TEI:
            return [{"index": i, "score": scores[i]} | self._shown("text", i) for i in order]
        results = [{"index": i, "relevance_score": scores[i]} | self._shown("document", i) for i in order]
        meta = {"api_version": {"version": self.ask.version}, "billed_units": {"search_units": 1}}
        return self._head("rerank") | {"results": results, "usage": self._usage(), "meta": meta}

    def _relevance(self) -> dict[int, tuple[float, float]]:
        """Probability and log-odds by the number of the document, in their order."""
        finished = ((choice.index, choice.finished) for choice in self.conversation.choices)
        vectors = ((index, end.vector) for index, end in finished if end is not None)
        return {index: relevance(vector, self.yes_count) for index, vector in vectors if vector is not None}

    def _shown(self, key: str, index: int) -> dict[str, Any]:
        if not self.ask.return_documents:
            return {}
        text = self.ask.wanted.pairs[index].document
        return {key: text if self.ask.shape is Shape.TEI else {"text": text}}

    def _head(self, kind: str) -> dict[str, Any]:
        return {"id": self.header.id, "object": kind, "created": self.header.created, "model": self.header.model}

    def _usage(self) -> dict[str, int]:
        prompt = self.conversation.usage().prompt
        return {"prompt_tokens": prompt, "total_tokens": prompt}
