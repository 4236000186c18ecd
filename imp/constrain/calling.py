"""Which calls an answer may have or must have: from what a request says of its tools to an automaton."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any, cast

from ..types import ConstraintKind, ConstraintSpec
from .errors import ConstraintError
from .framing import Ways
from .free import spelled
from .nfa import UNBOUNDED, Nfa
from .schema import SchemaOptions
from .schema.arguments import arguments
from .tools import Envelope, ParameterTexts, Tool, Vocabulary, calls, lazy_calls

log = logging.getLogger(__name__)

MAX_FORCED = 16  # calls in an answer that must have some: a model that never stops calling ends all the same
_ANY_OBJECT: Mapping[str, Any] = {"type": "object"}


@dataclass(frozen=True, slots=True)
class Offer:
    """A tool that may be called.  path: of its schema in the request.  strict: what cannot be enforced is refused."""

    name: str
    schema: Any
    path: str
    strict: bool


@dataclass(frozen=True, slots=True)
class Wanted:
    """required: there must be a call; else text in which what begins a call must become one.  parallel: there may be
    several.  answer: what the text must be where there is no call."""

    tools: tuple[Offer, ...]
    required: bool = False
    parallel: bool = True
    answer: ConstraintSpec | None = None

    def spec(self, envelopes: tuple[Envelope, ...], param: str) -> ConstraintSpec:
        text = json.dumps(
            {
                "tools": [asdict(tool) for tool in self.tools],
                "required": self.required,
                "parallel": self.parallel,
                "answer": self.answer and [self.answer.kind.value, *_rest(self.answer)],
            },
            ensure_ascii=False,
        )
        return ConstraintSpec(ConstraintKind.TOOLS, text, param, envelopes=envelopes)

    @staticmethod
    def of(spec: ConstraintSpec) -> Wanted:
        told = json.loads(spec.text)
        kind, *rest = told["answer"] or (None,)
        answer = ConstraintSpec(ConstraintKind(kind), *rest) if kind else None
        return Wanted(tuple(Offer(**each) for each in told["tools"]), told["required"], told["parallel"], answer)


def _rest(answer: ConstraintSpec) -> tuple[str, str, bool | None]:
    return answer.text, answer.param, answer.compact


def compile_calls(
    spec: ConstraintSpec,
    nfa: Nfa,
    options: SchemaOptions,
    vocabulary: Vocabulary,
    answer: Callable[[ConstraintSpec], int],
) -> Ways:
    """What an output of a spec of kind TOOLS may be. answer(spec): the first node of what else the text may be. Raises
    ConstraintError."""
    wanted = Wanted.of(spec)
    envelopes = cast(tuple[Envelope, ...], spec.envelopes)
    tools = [_tool(offer, wanted, options, vocabulary) for offer in wanted.tools]
    forced = MAX_FORCED if wanted.parallel else 1
    if wanted.required:
        return Ways(calls=calls(nfa, tools, envelopes[0], nfa.ret, vocabulary, 1, forced))
    if wanted.answer is None:
        found = lazy_calls(nfa, tools, envelopes, vocabulary, UNBOUNDED if wanted.parallel else 1)
        return Ways(calls=found, free=True)
    try:
        start = answer(wanted.answer)
    except ConstraintError as error:
        raise _at(error, wanted.answer.param, error.where) from None
    return Ways(start, calls(nfa, tools, envelopes[0], nfa.ret, vocabulary, 1, forced))


def _tool(offer: Offer, wanted: Wanted, options: SchemaOptions, vocabulary: Vocabulary) -> Tool:
    """Where no call is forced, a schema that cannot be enforced leaves any object, and a warning."""

    def spell(text: str) -> bytes:
        return spelled(text, vocabulary.spellings)

    def read(nfa: Nfa, after: int, texts: ParameterTexts | None) -> int:
        try:
            return arguments(offer.schema, options, spell)(nfa, after, texts)
        except ConstraintError as error:
            path = offer.path + error.where.removeprefix("#").replace("/", ".")
            if wanted.required or offer.strict:
                raise _at(error, offer.path, path) from None
            log.warning("%s is not enforced: %s", ascii(path), ascii(error.reason))
            return arguments(_ANY_OBJECT, options, spell)(nfa, after, texts)

    return Tool(offer.name, read)


def _at(error: ConstraintError, param: str, where: str) -> ConstraintError:
    return ConstraintError(error.code, where, error.reason, error.advice, param)
