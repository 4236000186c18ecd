"""POST /v1/messages and /v1/messages/count_tokens: Anthropic's dialect (WIRE.md section 5).

An answer's blocks are its parts: thinking, text, tool calls. Histories may hold them too; templates get them in their
own words. The prompt cache works unasked, and what was found in it is reported as `cache_read_input_tokens`. What ends
with the last block that has `cache_control` is kept longer than the rest (marks.py), and what of it was not found is
reported as `cache_creation_input_tokens`.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from imp.chat.message import ChatRequest, Message, Options, Refused
from imp.chat.parts import Channel, Closed, Grown, Opened
from imp.chat.parts import Event as PartEvent
from imp.http import sse
from imp.http.dialects import constraints, marks, tools
from imp.http.dialects.generation import SAMPLING, TIMINGS
from imp.http.dialects.openai_chat import Header
from imp.http.dialects.shared import Choice, Conversation, Part, speculation_json
from imp.http.dialects.thinking import EFFORTS
from imp.http.errors import ApiError, Envelope, bad_request, envelope
from imp.http.fields import Field, Kind, Parsed, Status, parse, wrong
from imp.http.seal import Seal
from imp.types import ConstraintSpec, Event, Reason, Started, Usage

THINKING = "thinking"  # what is signed
PING = sse.frame({"type": "ping"}, "ping")
BILLING = "x-anthropic-billing-header:"  # Claude Code's first line: it changes each time, and tells a model nothing

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


# -- messages in ----------------------------------------------------------------------------------

_BLOCKS = {
    "user": ("text", "tool_result"),
    "assistant": ("text", "tool_use", "thinking", "redacted_thinking"),
    "system": ("text",),
}
_UNSUPPORTED = {
    "image": ("vision_unavailable", "image input is not supported by this model."),
    "document": ("file_unavailable", "document input is not supported by this server."),
}


def messages(
    system: str | list[Any] | None, given: Sequence[Mapping[str, Any]], seal: Seal | None = None
) -> tuple[Message, ...]:
    """System prompt and messages as turns. Neighbours of one role are one turn, as in Anthropic's own service."""
    names: dict[str, str] = {}  # of the tools called so far, by the id of the call
    turns: list[Message] = []
    if text := _system(system):
        turns.append(Message("system", text))
    for i, item in enumerate(given):
        for message in _turn(item, f"messages[{i}]", names, seal):
            if turns and turns[-1].role == message.role and message.role in ("user", "assistant"):
                turns[-1] = _joined(turns[-1], message)
            else:
                turns.append(message)
    return tuple(turns)


def _system(value: str | list[Any] | None) -> str:
    return "\n".join(filter(None, _text_blocks(value, "system"))) if isinstance(value, list) else value or ""


def without_billing(body: Mapping[str, Any], limit: int) -> Mapping[str, Any]:
    """The body, itself where there is nothing to leave out, without the line that begins with BILLING and has at most
    `limit` characters, where it begins the system prompt or a block of that. Prompts that differ in it alone are the
    same then, and found in the cache."""
    system = body.get("system")
    if isinstance(system, str):
        kept: Any = _without_billing(system, limit)
    elif isinstance(system, list):
        kept = [_short_block(block, limit) for block in system]
    else:
        return body
    return body if kept == system else {**body, "system": kept}


def _short_block(block: Any, limit: int) -> Any:
    text = block.get("text") if isinstance(block, dict) else None
    return {**block, "text": _without_billing(text, limit)} if isinstance(text, str) else block


def _without_billing(text: str, limit: int) -> str:
    line, _, rest = text.partition("\n")
    return rest.lstrip("\n") if line.startswith(BILLING) and len(line) <= limit else text


def _turn(item: Mapping[str, Any], path: str, names: dict[str, str], seal: Seal | None) -> list[Message]:
    role, content = item.get("role"), item.get("content")
    if not isinstance(role, str) or role not in _BLOCKS:
        raise wrong(f"{path}.role", _one_of(tuple(_BLOCKS)), role)
    if isinstance(content, str):
        return [Message(role, content)]
    if not isinstance(content, list):
        raise wrong(f"{path}.content", "a string or an array of blocks", content)
    if role == "assistant":
        return [_assistant(content, f"{path}.content", names, seal)]
    if role == "user":
        return _user(content, f"{path}.content", names)
    return [Message(role, "\n".join(_text_blocks(content, f"{path}.content")))]


def _user(blocks: list[Any], path: str, names: Mapping[str, str]) -> list[Message]:
    """Tool results first, each a turn of its own, then the text: a result must follow its call."""
    results, texts = [], []
    for j, block in enumerate(blocks):
        where = f"{path}[{j}]"
        if _kind(block, where, _BLOCKS["user"]) == "text":
            texts.append(_string(block, "text", where))
        else:
            results.append(_result(block, where, names))
    return results if results and not texts else [*results, Message("user", "\n".join(texts))]


def _result(block: Mapping[str, Any], path: str, names: Mapping[str, str]) -> Message:
    call, content, failed = _string(block, "tool_use_id", path), block.get("content"), block.get("is_error")
    if failed is not None and not isinstance(failed, bool):
        raise wrong(f"{path}.is_error", "true or false", failed)
    if content is not None and not isinstance(content, str | list):
        raise wrong(f"{path}.content", "a string or an array of blocks", content)
    text = "\n".join(_text_blocks(content, f"{path}.content")) if isinstance(content, list) else content or ""
    if failed:
        text = f"Error: {text}" if text else "Error"
    return Message("tool", text, name=names.get(call), tool_call_id=call)


def _assistant(blocks: list[Any], path: str, names: dict[str, str], seal: Seal | None) -> Message:
    texts, thoughts, calls = [], [], []
    for j, block in enumerate(blocks):
        where = f"{path}[{j}]"
        kind = _kind(block, where, _BLOCKS["assistant"])
        if kind == "text":
            texts.append(_string(block, "text", where))
        elif kind == "tool_use":
            calls.append(_call(block, where))
            names[calls[-1]["id"]] = calls[-1]["function"]["name"]
        elif kind == "thinking":
            thoughts.append(_thought(block, where, seal))
        else:
            _string(block, "data", where)  # sealed by another service: checked, and nothing a template could show
    content = "\n".join(texts) if texts or not calls else None
    thoughts = [thought for thought in thoughts if thought]
    return Message("assistant", content, reasoning="\n".join(thoughts) or None, tool_calls=tuple(calls))


def _thought(block: Mapping[str, Any], path: str, seal: Seal | None) -> str:
    """What was thought. Nothing where a process signed it that is gone: nobody can vouch for it."""
    text = _string(block, "thinking", path)
    if seal is None:
        return text
    thought = seal.signed(THINKING, text, _string(block, "signature", path))
    if thought is None:
        where = f"{path}.signature"
        raise bad_request(where, f'"{where}": this is not the signature of this thinking.', "invalid_signature")
    return thought


def _call(block: Mapping[str, Any], path: str) -> dict[str, Any]:
    arguments = block.get("input")
    if not isinstance(arguments, dict):
        raise wrong(f"{path}.input", "an object", arguments)
    function = {"name": _string(block, "name", path), "arguments": arguments}
    return {"id": _string(block, "id", path), "type": "function", "function": function}


def _joined(first: Message, second: Message) -> Message:
    texts = [text for text in (first.content, second.content) if text]
    thoughts = [text for text in (first.reasoning, second.reasoning) if text]
    calls = first.tool_calls + second.tool_calls
    content = "\n".join(texts) if texts or not calls else None
    return replace(first, content=content, reasoning="\n".join(thoughts) or None, tool_calls=calls)


def _text_blocks(blocks: list[Any], path: str) -> list[str]:
    """The texts of blocks that must all be text."""
    texts = []
    for j, block in enumerate(blocks):
        _kind(block, f"{path}[{j}]", ("text",))
        texts.append(_string(block, "text", f"{path}[{j}]"))
    return texts


def _kind(block: Any, path: str, known: tuple[str, ...]) -> str:
    if not isinstance(block, dict):
        raise wrong(path, "an object", block)
    kind = block.get("type")
    if isinstance(kind, str) and kind in _UNSUPPORTED:
        code, reason = _UNSUPPORTED[kind]
        raise ApiError(400, code, f'"{path}": {reason}', path)
    if not isinstance(kind, str) or kind not in known:
        raise wrong(f"{path}.type", _one_of(known), kind)
    return kind


def _string(block: Mapping[str, Any], key: str, path: str) -> str:
    value = block.get(key)
    if not isinstance(value, str):
        raise wrong(f"{path}.{key}", "a string", value)
    return value


def _one_of(words: tuple[str, ...]) -> str:
    quoted = ", ".join(f'"{word}"' for word in words)
    return quoted if len(words) == 1 else f"one of {quoted}"


# -- events out -----------------------------------------------------------------------------------


class Writer:
    """Engine events as the events of one message stream, or folded into one message."""

    def __init__(
        self,
        header: Header,
        conversation: Conversation,
        request_id: str,
        sign: Callable[[str], str],
        omits: bool = False,
        kept: int = 0,
    ):
        """conversation: of one choice.  request_id: of the HTTP exchange; errors inside a stream repeat it.
        sign: the signature of reasoning, by which it is known when it comes back.  omits: reasoning is not shown.
        kept: leading tokens of the prompt that the cache is to keep."""
        self.omits, self.kept = omits, kept
        self.header, self.conversation, self.request_id, self.sign = header, conversation, request_id, sign

    def end(self) -> bytes:
        """After the last event: the reason and the whole usage. Nothing said is an empty text."""
        delta = {"stop_reason": self._stop_reason(), "stop_sequence": self._stop_sequence()}
        delta |= self._choice.detail | self._choice.validation
        usage = self._usage()
        empty: list[PartEvent] = [Opened(0, Channel.TEXT), Closed(0)]
        frames = b"" if self._choice.parts else b"".join(map(self._part_frame, empty))
        return (
            frames
            + _event("message_delta", delta=delta, usage=usage, **self.conversation.timings())
            + _event("message_stop")
        )

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent; nothing follows it."""
        return sse.frame(envelope(error, Envelope.ANTHROPIC, self.request_id), "error")

    def frame(self, event: Event) -> bytes:
        self.conversation.take(event)
        if isinstance(event, Started):
            return _event("message_start", message=self._message([], self._usage()))
        return b"".join(map(self._part_frame, self._choice.news))

    def _part_frame(self, event: PartEvent) -> bytes:
        """A part of the answer is a block."""
        if isinstance(event, Opened):
            return _event("content_block_start", index=event.index, content_block=_empty_block(event))
        channel = self._choice.parts[event.index].channel if self._choice.parts else Channel.TEXT
        if isinstance(event, Grown):
            if self.omits and channel is Channel.REASONING:
                return b""
            return _event("content_block_delta", index=event.index, delta=_block_delta(channel, event.text))
        frames = b""
        if channel is Channel.REASONING:
            delta = {"type": "signature_delta", "signature": self.sign(self._choice.parts[event.index].text)}
            frames = _event("content_block_delta", index=event.index, delta=delta)
        return frames + _event("content_block_stop", index=event.index)

    @property
    def _choice(self) -> Choice:
        return self.conversation.choices[0]

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken."""
        blocks = [self._block(part) for part in self._choice.parts]
        content = [block for block in blocks if block] or [{"type": "text", "text": ""}]
        return self._message(content, self._usage())

    def _usage(self) -> dict[str, int]:
        return usage_json(self.conversation.usage(), self.kept)

    def _block(self, part: Part) -> dict[str, Any]:
        """{}: there is nothing to show."""
        if part.channel is Channel.REASONING:
            return {"type": "thinking", "thinking": "" if self.omits else part.text, "signature": self.sign(part.text)}
        if part.channel is Channel.TEXT or part.unfinished:
            return {"type": "text", "text": part.text if part.channel is Channel.TEXT else part.unfinished}
        call = {"type": "tool_use", "id": part.id, "name": part.name, "input": json.loads(part.text)}
        return call | self._choice.invalid(part)

    def _message(self, content: list[dict[str, Any]], usage: dict[str, int]) -> dict[str, Any]:
        more = self._choice.detail | self._choice.validation | self.conversation.timings()
        return {
            "id": self.header.id,
            "type": "message",
            "role": "assistant",
            "model": self.header.model,
            "content": content,
            "stop_reason": self._stop_reason(),
            "stop_sequence": self._stop_sequence(),
            "usage": usage,
        } | more

    def _stop_reason(self) -> str | None:
        finished = self.conversation.choices[0].finished
        if finished is None:
            return None
        if finished.reason is Reason.LENGTH:
            return "max_tokens"
        if self._choice.calls:
            return "tool_use"
        return "end_turn" if self._stop_sequence() is None else "stop_sequence"

    def _stop_sequence(self) -> str | None:
        finished = self.conversation.choices[0].finished
        return finished.stop if finished and isinstance(finished.stop, str) else None


def _empty_block(event: Opened) -> dict[str, Any]:
    if event.channel is Channel.TOOL:
        return {"type": "tool_use", "id": event.id, "name": event.name, "input": {}}
    if event.channel is Channel.REASONING:
        return {"type": "thinking", "thinking": "", "signature": ""}
    return {"type": "text", "text": ""}


def _block_delta(channel: Channel, text: str) -> dict[str, Any]:
    if channel is Channel.TOOL:
        return {"type": "input_json_delta", "partial_json": text}
    if channel is Channel.REASONING:
        return {"type": "thinking_delta", "thinking": text}
    return {"type": "text_delta", "text": text}


def usage_json(usage: Usage, kept: int = 0) -> dict[str, int]:
    """`input_tokens` leaves out what the cache had, and what of the `kept` tokens it had not: a client adds the three
    input counts."""
    created = max(kept - usage.cached, 0)
    return {
        "input_tokens": usage.prompt - usage.cached - created,
        "cache_creation_input_tokens": created,
        "cache_read_input_tokens": usage.cached,
        "output_tokens": usage.generated,
    } | speculation_json(usage)


def _event(name: str, **fields: Any) -> bytes:
    return sse.frame({"type": name, **fields}, name)
