"""A chat turn on its way to the engine, whatever the dialect: what of it is enforced, and how its answer is read."""

from __future__ import annotations

from imp.chat.enforce import enforced, limited
from imp.chat.message import ChatRequest
from imp.chat.prepare import ModelFacts, speech
from imp.chat.speech import Speech
from imp.http.recorder import Recorder
from imp.http.services import Services
from imp.types import ConstraintSpec, Request


async def bound(
    services: Services,
    recorder: Recorder,
    chat: ChatRequest,
    answer: ConstraintSpec | None,
    prepared: Request,
    facts: ModelFacts,
) -> tuple[Request, Speech]:
    """The prepared request with its constraint, and how it is heard. answer: what its text must be. ApiError 400."""
    spec, priority = answer, prepared.priority
    if chat.tools or answer is not None:
        spec = await services.prepare(lambda: enforced(chat.tools, chat.calling, answer, prepared, facts), priority)
    with recorder.compiling(spec):
        [prepared] = await services.constrained([prepared], spec, facts)
    prepared = await services.prepare(lambda: limited(chat, prepared, facts), priority)
    return prepared, speech(chat, prepared, facts)
