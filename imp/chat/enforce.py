"""What of an answer is enforced: its calls in the model's own words and its text, but not what it thinks before."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from ..constrain.calling import Offer, Wanted
from ..types import ConstraintSpec, Request
from .message import Calling, ChatRequest, Refused
from .prepare import ModelFacts, budget_of

ENDLESS = 1 << 31  # tokens


def enforced(
    tools: Sequence[Mapping[str, Any]],
    calling: Calling,
    answer: ConstraintSpec | None,
    request: Request,
    facts: ModelFacts,
) -> ConstraintSpec | None:
    """The constraint of a prepared chat turn; None: anything may come. Raises Refused where it cannot be enforced.

    answer: what a text must be, where it was said.
    """
    limits = request.limits
    spec = _calls(tools, calling, answer, facts) if tools else answer
    return None if spec is None else replace(spec, reasoning=limits.reasoning, frame=limits.frame)


def limited(chat: ChatRequest, request: Request, facts: ModelFacts) -> Request:
    """The request with an end to its thinking, where it may think: at its budget, or when somebody asks for it."""
    reasoning = request.limits.reasoning
    if reasoning is None or facts.constraints is None:
        return request
    close = _marker(reasoning.close, facts)
    budget = budget_of(chat, request, facts)
    if budget >= request.limits.max_tokens:  # to end there would leave no room for an answer either
        budget = ENDLESS
    if budget <= len(close) or chat.structured or chat.calling.required:  # nothing may come behind a marker but these
        reasoning = replace(reasoning, late=False)
    begun = len(_marker(reasoning.turn + reasoning.open, facts))
    inner, headers = request.constraint, request.limits.headers
    grammar = facts.constraints.thinking(reasoning, budget, close, inner, headers, begun)
    return replace(request, constraint=grammar, limits=replace(request.limits, reasoning=reasoning))


def _marker(text: str, facts: ModelFacts) -> list[int]:
    return facts.tokenizer.encode(text, add_special=False, parse_special=True)


def _calls(
    tools: Sequence[Mapping[str, Any]], calling: Calling, answer: ConstraintSpec | None, facts: ModelFacts
) -> ConstraintSpec | None:
    functions = [tool["function"] for tool in tools]
    strict = [
        path.rpartition(".")[0] + ".strict"
        for function, path in zip(functions, calling.paths, strict=True)
        if _strict(function)
    ]
    param = "tool_choice" if calling.required or not strict else strict[0]
    format = facts.voice.format
    if facts.constraints is None or format is None or not format.envelopes:
        if calling.required or strict:
            message = f'"{param}": calls cannot be enforced with this model; leave the choice to it.'
            raise Refused(message, param, "unsupported_constraint")
        return answer
    told = facts.enforces_all and format.openers  # without a marker, nothing tells a call from text that looks like it
    if not (calling.required or strict or answer or told):
        return None
    offers = tuple(
        Offer(function["name"], function["parameters"], path, _strict(function))
        for function, path in zip(functions, calling.paths, strict=True)
        if calling.names is None or function["name"] in calling.names
    )
    wanted = Wanted(offers, calling.required, calling.parallel and not calling.named, answer)
    return wanted.spec(format.envelopes, param)


def _strict(function: Mapping[str, Any]) -> bool:
    return bool(function.get("strict"))
