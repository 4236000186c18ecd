"""What is found of a template, what it makes of a conversation, and how an output is read: `imp.chat inspect`."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ..types import Limits
from .message import ChatRequest, Message
from .parts import Channel, Closed, Event, Grown, Opened
from .rendering import render, shown
from .speech import Listener, Speech, Voice
from .template import ChatTemplate

QUESTION = Message("user", "Hello!")


class BadConversation(Exception):
    """Messages or tools that are none. The text is a sentence."""


@dataclass(frozen=True, slots=True)
class Subject:
    """What a prompt depends on (rendering.Wording)."""

    template: ChatTemplate
    voice: Voice
    control_spellings: tuple[str, ...] = ()


def report(subject: Subject, chat: ChatRequest, output: str | None = None) -> dict[str, Any]:
    """As JSON.  output: what the model answered to the prompt. Raises message.Refused."""
    voice = subject.voice
    rendered = render(chat, subject)
    state = {True: "started", False: "skipped", None: "the output decides"}[voice.thinks(rendered)]
    out: dict[str, Any] = {
        "format": voice.format.name if voice.format else None,
        "reasoning": asdict(voice.thinking) if voice.thinking else None,
        "template_shows": {
            "tools": voice.shows_tools,
            "calls": voice.shows_calls,
            "results": voice.shows_results,
        },
        "thinking_switch": asdict(voice.switch) if voice.switch else None,
        "effort": asdict(voice.effort) if voice.effort else None,
        "prompt": shown(rendered),
        "prompt_reasoning": state if voice.thinking else None,
    }
    if output is not None:
        speech = voice.speech(chat.tools, Limits(reasoning=voice.reasoning(rendered), frame=voice.framed(rendered)))
        whole, split = heard([output], speech), heard(output, speech)
        out["answer"] = whole
        out["answer_by_characters"] = split
        out["agree"] = whole == split
    return out


def heard(pieces: Iterable[str], speech: Speech) -> dict[str, Any]:
    """Content, reasoning and calls of an output that comes in these pieces."""
    ids = itertools.count()
    listener = Listener(speech, lambda: f"call_{next(ids)}")
    events: list[Event] = [event for piece in pieces for event in listener.push(piece)]
    events += listener.close()
    opened = {event.index: event for event in events if isinstance(event, Opened)}
    texts = dict.fromkeys(opened, "")
    for event in events:
        if isinstance(event, Grown):
            texts[event.index] += event.text
    unfinished = {event.index: event.unfinished for event in events if isinstance(event, Closed) and event.unfinished}
    joined = {channel: [texts[i] for i in opened if opened[i].channel is channel] for channel in Channel}
    calls = [
        {"id": part.id, "name": part.name, "arguments": texts[i], "unfinished": unfinished.get(i)}
        for i, part in opened.items()
        if part.channel is Channel.TOOL
    ]
    return {"content": "".join(joined[Channel.TEXT]), "reasoning": "".join(joined[Channel.REASONING]), "calls": calls}


def conversation(messages: Any, tools: Any) -> ChatRequest:
    """Messages and tools in OpenAI's shape, as JSON values; None: a greeting, and no tools. Raises BadConversation."""
    if messages is None:
        turns: tuple[Message, ...] = (QUESTION,)
    elif isinstance(messages, Sequence) and messages and all(map(_is_message, messages)):
        turns = tuple(map(_message, messages))
    else:
        raise BadConversation('the messages must be a list of objects with "role" and "content"')
    if tools is not None and not (isinstance(tools, list) and all(map(_is_tool, tools))):
        raise BadConversation('the tools must be a list of functions: {"type": "function", "function": {"name": ...}}')
    return ChatRequest(turns, tools=tuple(tools or ()))


def _is_message(value: Any) -> bool:
    if not isinstance(value, Mapping) or not isinstance(value.get("role"), str):
        return False
    content, calls = value.get("content"), value.get("tool_calls") or []
    parts = content if isinstance(content, list) else []
    return (
        isinstance(content, str | list | None)
        and all(isinstance(part, Mapping) and isinstance(part.get("text"), str) for part in parts)
        and isinstance(calls, list)
        and all(_is_tool(call) and "arguments" in call["function"] for call in calls)
    )


def _is_tool(value: Any) -> bool:
    function = value.get("function") if isinstance(value, Mapping) else None
    return isinstance(function, Mapping) and isinstance(function.get("name"), str)


def _message(value: Mapping[str, Any]) -> Message:
    content = value.get("content")
    if isinstance(content, list):
        content = "\n".join(part["text"] for part in content)
    return Message(
        value["role"],
        content,
        name=value.get("name"),
        reasoning=value.get("reasoning_content") or value.get("reasoning"),
        tool_calls=tuple(value.get("tool_calls") or ()),
        tool_call_id=value.get("tool_call_id"),
    )
