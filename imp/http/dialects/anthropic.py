"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect (WIRE.md section 5), what is asked. Messages
are in anthropic_messages.py, answers in anthropic_writer.py.

An answer's blocks are its parts: thinking, text, tool calls. Histories may hold them too; templates get them in their
own words. The prompt cache works unasked, and what was found in it is reported as `cache_read_input_tokens`. What ends
with the last block that has `cache_control` is kept longer than the rest (marks.py), and what of it was not found is
reported as `cache_creation_input_tokens`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from imp.chat.message import ChatRequest, Options, Refused
from imp.http.dialects import constraints, marks, tools
from imp.http.dialects.anthropic_messages import messages
from imp.http.dialects.generation import SAMPLING, TIMINGS
from imp.http.dialects.thinking import EFFORTS
from imp.http.errors import bad_request
from imp.http.fields import Field, Kind, Parsed, Status, parse
from imp.http.seal import Seal
from imp.types import ConstraintSpec

_FORMAT = (
    Field("type", Kind.STRING, choices=("json_schema",), required=True),
    Field("schema", (Kind.OBJECT, Kind.BOOLEAN), required=True, doc="JSON Schema: draft 7, 2019-09 or 2020-12."),
)

FIELDS = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("messages", Kind.ARRAY, required=True, min_items=1, max_items=10000, items=Field("", Kind.OBJECT)),
    Field("system", (Kind.STRING, Kind.ARRAY), doc="Text, or text blocks."),
    Field("max_tokens", Kind.INTEGER, 1, doc="Bounded by the context that is left."),
    *(field for field in SAMPLING if field.name in ("temperature", "top_p", "top_k")),
    Field(
        "stop_sequences",
        Kind.ARRAY,
        max_items=16,
        items=Field("", Kind.STRING, min_items=1, max_items=1000),
        doc="Never shown.",
    ),
    Field("stream", Kind.BOOLEAN, default=False, doc="Server-sent events."),
    TIMINGS,
    Field(
        "thinking",
        Kind.OBJECT,
        doc="Absent or disabled: no thinking block.",
        fields=(
            Field("type", Kind.STRING, choices=("enabled", "adaptive", "disabled"), required=True),
            Field("budget_tokens", Kind.INTEGER, 1, doc="With enabled: tokens of thinking, fewer than max_tokens."),
            Field("display", Kind.STRING, choices=("summarized", "omitted"), doc="omitted: its signature alone."),
        ),
    ),
    Field(
        "output_config",
        Kind.OBJECT,
        fields=(
            Field("effort", Kind.STRING, choices=EFFORTS, doc="With thinking, for templates that know it."),
            Field("format", Kind.OBJECT, doc="What the answer must be.", fields=_FORMAT),
        ),
    ),
    Field("output_format", Kind.OBJECT, doc="The same, as an older beta had it.", fields=_FORMAT),
    *tools.ANTHROPIC,
    *(
        Field(name, Kind.ANY, status=Status.NO_OP, doc="Accepted; has no effect here.")
        for name in ("metadata", "service_tier", "context_management", "container")
    ),
    Field("cache_control", Kind.OBJECT, doc="Keep the whole prompt in the cache; blocks may say so too."),
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    chat: ChatRequest
    constraint: ConstraintSpec | None
    model: str | None
    stream: bool
    timings: bool
    ignored: tuple[str, ...]
    omits: bool = False  # thinking is signed and not shown


def read(body: Mapping[str, Any], seal: Seal | None = None, interleaved: bool = False) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong.

    seal: that signed the thinking that comes back; None: it is taken as it is.  interleaved: a budget may be larger
    than one answer.

    A last assistant message is the beginning of the answer; the model goes on with it.
    """
    parsed = parse(body, FIELDS)
    turns = messages(parsed["system"], parsed["messages"], seal)
    tooling = tools.anthropic(parsed)
    wanted = _constraint(parsed)
    last = turns[-1]
    continues = last.role == "assistant" and bool(last.content) and not last.tool_calls
    chat = ChatRequest(
        messages=turns,
        options=Options(
            max_tokens=parsed["max_tokens"],
            temperature=parsed["temperature"],
            top_p=parsed["top_p"],
            top_k=parsed["top_k"],
            stop=tuple(parsed["stop_sequences"] or ()),
        ),
        tools=tooling.tools,
        calling=tooling.calling,
        add_generation_prompt=not continues,
        continue_final_message=continues,
        structured=wanted is not None,
        kept=marks.kept(body, turns, tooling.tools, lambda system, given: messages(system, given, seal)),
        **_thinking(parsed, interleaved),
    )
    omits = (parsed["thinking"] or {}).get("display") == "omitted"
    return Ask(chat, wanted, parsed["model"], parsed["stream"], parsed["timings"], tooling.ignored, omits)


def _thinking(parsed: Parsed, interleaved: bool) -> dict[str, Any]:
    """The part of ChatRequest: only who asks for thinking gets any."""
    given = parsed["thinking"] or {"type": "disabled", "budget_tokens": None}
    if given["type"] == "disabled":
        return {"thinking": False, "shows_thinking": False}
    budget, most = given["budget_tokens"], parsed["max_tokens"]
    if budget is not None and most is not None and budget >= most and not interleaved:
        raise bad_request("thinking.budget_tokens", f'"thinking.budget_tokens" must be below "max_tokens" ({most}).')
    effort = (parsed["output_config"] or {}).get("effort")
    return {"thinking": True, "think_tokens": budget, "reasoning_effort": effort}


def _constraint(parsed: Parsed) -> ConstraintSpec | None:
    given = {
        "output_config.format.schema": (parsed["output_config"] or {}).get("format"),
        "output_format.schema": parsed["output_format"],
    }
    return constraints.only([constraints.schema(f["schema"], path) for path, f in given.items() if f is not None])


_TOO_LONG = re.compile(r"the prompt has (\d+) tokens; this server accepts at most (\d+)")


def reworded(error: Refused) -> Refused:
    """A prompt that is too long, in the words by which Anthropic's clients know that they must shorten it."""
    if error.code != "context_length_exceeded":
        return error
    counts = _TOO_LONG.match(error.message)
    detail = f"{counts[1]} tokens > {counts[2]} maximum" if counts else error.message
    return Refused(f"prompt is too long: {detail}", error.param, error.code, error.status)
