"""POST /v1/chat/completions: OpenAI's chat dialect (WIRE.md section 2)."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from imp.chat import parts
from imp.chat.message import ChatRequest, Kept, Message
from imp.chat.parts import Channel
from imp.http import sse
from imp.http.dialects import thinking, tools
from imp.http.dialects.constraints import CONSTRAINTS, RESPONSE_FORMAT, constraint
from imp.http.dialects.extensions import EXTENSIONS, Extras, extended, extras, longest
from imp.http.dialects.generation import (
    LIMITS,
    NO_OPS,
    SAMPLING,
    STREAMING,
    check_stream_options,
    options,
    refused,
)
from imp.http.dialects.shared import (
    Choice,
    Conversation,
    Pieces,
    logprob_json,
    prompt_logprobs_json,
    usage_json,
)
from imp.http.errors import ApiError, Envelope, bad_request, envelope
from imp.http.fields import Field, Kind, Parsed, Status, parse, refuse_unsupported, wrong
from imp.types import ConstraintSpec, Delta, Event, Finished, Started, TokenLogprob

ROLES = ("system", "developer", "user", "assistant", "tool", "function")
_NOT_TEXT = refused("audio", reason="only text is generated.")

FIELDS = (
    Field("model", Kind.STRING, doc="Absent: the served model."),
    Field("messages", Kind.ARRAY, required=True, min_items=1, max_items=10000, items=Field("", Kind.OBJECT)),
    Field("max_completion_tokens", Kind.INTEGER, 1, doc="Wins over max_tokens."),
    *SAMPLING,
    *LIMITS,
    Field("logprobs", Kind.BOOLEAN, default=False, doc="Log-probabilities of the output tokens."),
    Field("top_logprobs", Kind.INTEGER, 0, 20, doc="Alternatives per token; needs logprobs."),
    Field("prompt_logprobs", Kind.INTEGER, 0, 20, doc="The same for the prompt; not with stream."),
    *STREAMING,
    RESPONSE_FORMAT,
    Field("add_generation_prompt", Kind.BOOLEAN, default=True, doc="End the prompt with the assistant's opening."),
    Field("continue_final_message", Kind.BOOLEAN, default=False, doc="Go on with the last message."),
    Field("chat_template_kwargs", Kind.OBJECT, doc="Variables for the chat template."),
    Field(
        "documents", Kind.ARRAY, max_items=1000, items=Field("", Kind.OBJECT), doc="Texts for a template that cites."
    ),
    Field("modalities", Kind.ARRAY, items=Field("", Kind.STRING, choices=("text",)), doc="Only text is generated."),
    Field("add_special_tokens", status=Status.NO_OP, doc="A begin-of-text token is added where the template has none."),
    Field("cache_prefix_messages", Kind.INTEGER, 1, 10000, doc="So many messages are kept in the cache."),
    *refused("chat_template", reason="templates are chosen when the server starts, by --chat-template."),
    *refused("echo", reason="the messages of a chat are not repeated."),
    *tools.OPENAI,
    *thinking.CHAT,
    *_NOT_TEXT,
    *CONSTRAINTS,
    *EXTENSIONS,
    *NO_OPS,
)


@dataclass(frozen=True, slots=True)
class Ask:
    """One parsed request."""

    chat: ChatRequest
    constraint: ConstraintSpec | None
    model: str | None
    lora: str | None
    stream: bool
    include_usage: bool
    continuous_usage: bool
    timings: bool
    ignored: tuple[str, ...]
    extras: Extras


def read(body: Mapping[str, Any]) -> Ask:
    """The body of a request. ApiError 400 naming the field that is wrong."""
    parsed = parse(body, FIELDS)
    include_usage, continuous = check_stream_options(parsed)
    if parsed["top_logprobs"] is not None and not parsed["logprobs"]:
        raise bad_request("top_logprobs", '"top_logprobs" needs "logprobs" to be true.')
    if parsed["prompt_logprobs"] is not None and parsed["stream"]:
        raise bad_request("prompt_logprobs", '"prompt_logprobs" cannot be streamed.')
    if parsed["continue_final_message"] and body.get("add_generation_prompt"):
        message = '"add_generation_prompt" and "continue_final_message" exclude each other.'
        raise bad_request("continue_final_message", message)
    logprobs = (parsed["top_logprobs"] or 0) if parsed["logprobs"] else None
    tooling = tools.openai(parsed)
    wanted = constraint(parsed)
    turns = messages(parsed["messages"])
    chat = ChatRequest(
        messages=turns,
        options=options(
            parsed,
            max_tokens=longest(parsed, "max_completion_tokens", "max_tokens"),
            logprobs=logprobs,
            prompt_logprobs=parsed["prompt_logprobs"],
            more=extended(parsed, logprobs),
        ),
        tools=tooling.tools,
        calling=tooling.calling,
        documents=_documents(parsed["documents"]),
        template_kwargs=template_kwargs(parsed["chat_template_kwargs"]),
        add_generation_prompt=parsed["add_generation_prompt"] and not parsed["continue_final_message"],
        continue_final_message=parsed["continue_final_message"],
        structured=wanted is not None,
        kept=_kept(parsed, turns),
        **thinking.wanted(parsed, parsed["reasoning_effort"]),
    )
    named, streamed = (parsed["model"], parsed["lora"]), (parsed["stream"], include_usage, continuous)
    return Ask(chat, wanted, *named, *streamed, parsed["timings"], tooling.ignored, extras(parsed))


def _kept(parsed: Parsed, turns: tuple[Message, ...]) -> Kept | None:
    count = parsed["cache_prefix_messages"]
    if count is not None and parsed["cache_prompt"] is False:
        raise bad_request("cache_prefix_messages", '"cache_prefix_messages" does not go with "cache_prompt": false.')
    return None if count is None else Kept(turns[:count])


_RESERVED = ("self", "messages", "tools", "documents", "add_generation_prompt", "continue_final_message")


def template_kwargs(given: Mapping[str, Any] | None) -> Mapping[str, Any]:
    for name in given or {}:
        if name in _RESERVED or not name.isidentifier():
            raise bad_request(f"chat_template_kwargs.{name}", f'"chat_template_kwargs" cannot set "{name[:60]}".')
    return given or {}


def _documents(given: list[Any] | None) -> tuple[dict[str, str], ...]:
    for i, document in enumerate(given or ()):
        for name, text in document.items():
            if not isinstance(text, str):
                raise wrong(f"documents[{i}].{name}", "a string", text)
    return tuple(given or ())


# -- messages in ----------------------------------------------------------------------------------


def messages(given: list[Any]) -> tuple[Message, ...]:
    out = tuple(_message(item, f"messages[{i}]") for i, item in enumerate(given))
    if len(out) > 1 and out[-1].role == out[-2].role == "assistant":
        raise bad_request("messages", '"messages" must not end with two assistant messages.')
    return out


def _message(item: Mapping[str, Any], path: str) -> Message:
    role = item.get("role")
    if role not in ROLES:
        raise wrong(f"{path}.role", "one of " + ", ".join(f'"{known}"' for known in ROLES), role)
    calls = _calls(item.get("tool_calls"), f"{path}.tool_calls") if role == "assistant" else ()
    return Message(
        role="tool" if role == "function" else role,
        content=_content(item.get("content"), f"{path}.content", role, bool(calls)),
        name=_text(item, "name", path),
        reasoning=_text(item, "reasoning_content", path) or _text(item, "reasoning", path),
        tool_calls=calls,
        tool_call_id=_text(item, "tool_call_id", path),
    )


def _text(item: Mapping[str, Any], key: str, path: str) -> str | None:
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise wrong(f"{path}.{key}", "a string", value)
    return value


def _content(value: Any, path: str, role: str, calls: bool) -> str | None:
    """A string, or text parts joined by newlines. null only where tool calls, or a refusal, stand instead."""
    if isinstance(value, str):
        return value
    if value is None and role == "assistant":
        return None if calls else ""
    if not isinstance(value, list):
        raise wrong(path, "a string or an array of parts", value)
    return "\n".join(_part(part, f"{path}[{j}]") for j, part in enumerate(value))


_UNSUPPORTED_PARTS = {
    "image_url": ("vision_unavailable", "image input is not supported by this model."),
    "input_audio": ("audio_unavailable", "audio input is not supported by this model."),
    "file": ("file_unavailable", "file input is not supported by this server."),
}


def _part(part: Any, path: str) -> str:
    refuse_unsupported(part, path, _UNSUPPORTED_PARTS)
    kind = part.get("type") if isinstance(part, dict) else None
    if kind == "refusal":
        kind = "text"
        part = {"text": part.get("refusal")}
    if kind != "text":
        raise wrong(f"{path}.type", '"text"', kind)
    if not isinstance(part.get("text"), str):
        raise wrong(f"{path}.text", "a string", part.get("text"))
    return part["text"]


def _calls(value: Any, path: str) -> tuple[dict[str, Any], ...]:
    if value is None:
        return ()
    if not isinstance(value, list):
        raise wrong(path, "an array of tool calls", value)
    return tuple(_call(call, f"{path}[{j}]") for j, call in enumerate(value))


def _call(call: Any, path: str) -> dict[str, Any]:
    function = call.get("function") if isinstance(call, dict) else None
    if not isinstance(function, dict):
        raise wrong(f"{path}.function", "an object", function)
    name, arguments = function.get("name"), function.get("arguments", "{}")
    if not isinstance(name, str):
        raise wrong(f"{path}.function.name", "a string", name)
    arguments = tools.arguments(arguments, f"{path}.function.arguments")
    return {"id": str(call.get("id", "")), "type": "function", "function": {"name": name, "arguments": arguments}}


# -- events out -----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Header:
    """What every object of one answer repeats."""

    id: str
    created: int
    model: str
    fingerprint: str


class Writer:
    """Engine events as chat.completion.chunk frames, or folded into one chat.completion."""

    def __init__(
        self, ask: Ask, header: Header, conversation: Conversation, pieces: Pieces, prompt: tuple[int, ...] = ()
    ):
        """prompt: its tokens, for those who ask for them."""
        self.ask, self.header, self.conversation, self.prompt = ask, header, conversation, prompt
        self.pieces = ask.extras.named(pieces)
        self.untold: dict[int, list[int]] = {}  # tokens of the output not sent yet
        self.unsent: dict[int, list[TokenLogprob]] = {}  # logprobs of tokens whose text has not been shown
        self._is_plain = not (ask.extras.token_ids or ask.continuous_usage)  # chunks differ in their text alone
        self._plain: dict[tuple[int, str], sse.Template] = {}  # by choice and kind of text

    def end(self) -> bytes:
        """After the last event."""
        if not self.ask.include_usage:
            return sse.DONE
        usage = usage_json(self.conversation.usage(), self.conversation.declined)
        return sse.frame(self._chunk([], usage=usage)) + sse.DONE

    def error(self, error: ApiError) -> bytes:
        """A failure after the head of the stream was sent."""
        return sse.frame(envelope(error, Envelope.OPENAI, self.header.id)) + sse.DONE

    def frame(self, event: Event) -> bytes:
        choice = self.conversation.take(event)
        if isinstance(event, Started):
            return self._send(choice, {"role": "assistant", "content": ""})
        if isinstance(event, Delta):
            if self.ask.extras.token_ids:
                self.untold.setdefault(choice.index, []).extend(event.tokens)
            self.unsent.setdefault(choice.index, []).extend(event.logprobs)
        frames = b"".join([self._send(choice, delta) for delta in self._deltas(choice)])
        if isinstance(event, Finished):
            frames += self._send(choice, choice.validation, self._finish_reason(choice))
        return frames

    def _deltas(self, choice: Choice) -> Iterator[dict[str, Any]]:
        """What the choice has said since the last event."""
        for event in choice.news:
            if isinstance(event, parts.Closed):
                continue
            part = choice.parts[event.index]
            if part.channel is Channel.TOOL:
                call = _call_delta(choice, event)
                yield {"function_call": call["function"]} if self._legacy else {"tool_calls": [call]}
            elif isinstance(event, parts.Grown):
                yield {"content" if part.channel is Channel.TEXT else "reasoning_content": event.text}

    @property
    def _legacy(self) -> bool:
        return self.ask.chat.calling.legacy

    def _finish_reason(self, choice: Choice) -> str | None:
        reason = choice.finish_reason
        return "function_call" if self._legacy and reason == "tool_calls" else reason

    def _send(self, choice: Choice, delta: dict[str, Any], finish_reason: str | None = None) -> bytes:
        if self._is_plain and len(delta) == 1 and choice.finished is None and not self.unsent.get(choice.index):
            ((kind, text),) = delta.items()
            if isinstance(text, str):
                return self._template(choice, kind).frame(text)
        body: dict[str, Any] = {"index": choice.index, "delta": delta, "logprobs": None, "finish_reason": finish_reason}
        if "role" not in delta and (logprobs := self.unsent.pop(choice.index, [])):
            body["logprobs"] = self._logprobs(logprobs)
        if finish_reason and choice.finished:
            body["stop_reason"] = choice.finished.stop
            body |= choice.detail
        if not self.ask.extras.token_ids:
            return sse.frame(self._chunk([body]))
        body["token_ids"] = self.untold.pop(choice.index, [])
        opens = {"prompt_token_ids": list(self.prompt)} if "role" in delta else {}
        return sse.frame(self._chunk([body]) | opens)

    def _template(self, choice: Choice, kind: str) -> sse.Template:
        key = choice.index, kind
        if key not in self._plain:
            body = {"index": choice.index, "delta": {kind: sse.SLOT}, "logprobs": None, "finish_reason": None}
            self._plain[key] = sse.Template(self._chunk([body]))
        return self._plain[key]

    def _chunk(self, choices: list[dict[str, Any]], usage: dict[str, Any] | None = None) -> dict[str, Any]:
        chunk = {
            "id": self.header.id,
            "object": "chat.completion.chunk",
            "created": self.header.created,
            "model": self.header.model,
            "system_fingerprint": self.header.fingerprint,
            "choices": choices,
        }
        if self.ask.continuous_usage and usage is None:
            usage = usage_json(self.conversation.usage(), self.conversation.declined)
        if self.ask.include_usage or self.ask.continuous_usage:
            chunk["usage"] = usage
        return chunk | self.conversation.timings()

    def reply(self) -> dict[str, Any]:
        """The whole answer, once every event has been taken."""
        body = {
            "id": self.header.id,
            "object": "chat.completion",
            "created": self.header.created,
            "model": self.header.model,
            "system_fingerprint": self.header.fingerprint,
            "choices": [self._choice(choice) for choice in self.conversation.choices],
            "usage": usage_json(self.conversation.usage(), self.conversation.declined),
        }
        prompt = self.conversation.choices[0].prompt_logprobs
        body["prompt_logprobs"] = None if prompt is None else prompt_logprobs_json(prompt, self.pieces)
        if self.ask.extras.token_ids:
            body["prompt_token_ids"] = list(self.prompt)
        return body | self.conversation.timings()

    def _choice(self, choice: Choice) -> dict[str, Any]:
        asked = self.ask.chat.options.logprobs is not None
        told = {"token_ids": choice.tokens} if self.ask.extras.token_ids else {}
        return told | {
            "index": choice.index,
            "message": _message_json(choice, self._legacy),
            "logprobs": self._logprobs(choice.logprobs) if asked else None,
            "finish_reason": self._finish_reason(choice),
            "stop_reason": choice.finished.stop if choice.finished else None,
            **choice.detail,
        }

    def _logprobs(self, entries: list[TokenLogprob]) -> dict[str, Any]:
        return {"content": [logprob_json(entry, self.pieces) for entry in entries], "refusal": None}


def _call_delta(choice: Choice, event: parts.Opened | parts.Grown) -> dict[str, Any]:
    """Id, type and name once, then fragments of the arguments. Calls are numbered among themselves."""
    index = sum(part.channel is Channel.TOOL for part in choice.parts[: event.index])
    if isinstance(event, parts.Grown):
        return {"index": index, "function": {"arguments": event.text}}
    return {
        "index": index,
        "id": event.id,
        "type": "function",
        "function": {"name": event.name, "arguments": ""},
    }


def _message_json(choice: Choice, legacy: bool = False) -> dict[str, Any]:
    """legacy: calls were asked for as `functions`."""
    message: dict[str, Any] = {"role": "assistant", "content": choice.text, "refusal": None}
    if choice.reasoning:
        message["reasoning_content"] = choice.reasoning
    if choice.calls:
        message["content"] = choice.text or None
        message |= choice.validation
        functions = [{"name": call.name, "arguments": call.text} for call in choice.calls]
        if legacy:
            return message | {"function_call": functions[0]}
        message["tool_calls"] = [
            {"id": call.id, "type": "function", "function": function} | choice.invalid(call)
            for call, function in zip(choice.calls, functions, strict=True)
        ]
    return message
