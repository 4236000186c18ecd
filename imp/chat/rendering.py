"""The text of a prompt: messages and tools as the model's template wants them, tried from what they are to what less
able templates understand. Knows no tokens.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from typing import Any, Protocol

from ..text.spelled import BREAK
from . import switches, thoughts, tool_prompt
from .message import ChatRequest, Message, Refused
from .speech import Voice
from .template import ChatTemplate, TemplateError


class Wording(Protocol):
    """What the text of a prompt depends on: a part of ModelFacts."""

    @property
    def template(self) -> ChatTemplate | None: ...
    @property
    def voice(self) -> Voice: ...
    @property
    def control_spellings(self) -> tuple[str, ...]: ...


def render(chat: ChatRequest, facts: Wording) -> str:
    """The prompt's text. Control-token spellings in user, system and tool text are split by a marker character."""
    if facts.template is None:
        raise Refused("this model has no chat template; use /v1/completions, or start the server with --chat-template")
    native = "developer" in facts.template.text
    as_text = facts.voice.text_arguments
    messages = [_for_template(message, facts.control_spellings, native, as_text) for message in chat.messages]
    refusal: TemplateError | None = None
    for ways, tools in _ways(messages, chat, facts):
        try:
            return _render(thoughts.in_parts(ways) if facts.voice.wants_parts else ways, tools, chat, facts)
        except TemplateError as error:
            refusal = refusal or error
    assert refusal is not None
    raise _refusal(refusal) from None


Turns = list[dict[str, Any]]


def _ways(messages: Turns, chat: ChatRequest, facts: Wording) -> Iterator[tuple[Turns, list[Any]]]:
    """The conversation and its tools as they are, then as templates that know less want them."""
    voice = facts.voice
    envelopes = voice.format.envelopes if voice.format else ()
    if envelopes:
        results = voice.shows_results and (voice.shows_calls or voice.shows_tools)
        messages = tool_prompt.plainly(messages, envelopes[0], not voice.shows_calls, not results)
    if not voice.shows_several:
        messages = tool_prompt.one_by_one(messages)
    if voice.switch is not None and (word := voice.switch.word(_intent(chat)[0])):
        messages = tool_prompt.told(messages, word)
    if voice.thinks_in_blocks:
        messages = thoughts.in_blocks(messages)
    merged = _system_first(messages)
    ways = [messages] if merged == messages else [messages, merged]
    ways += [said for each in ways if (said := thoughts.before_calls(each)) != each]
    tools = [_guarded(tool, facts.control_spellings) for tool in chat.tools]
    if voice.shows_tools:
        yield from ((each, tools) for each in ways)
        if (full := tool_prompt.described(tools)) != tools:
            yield from ((each, full) for each in ways)
    if tools and envelopes:  # in our words, where it has to be
        prompt = tool_prompt.prompt(tools, envelopes[0])
        ways = [tool_prompt.told(each, prompt) for each in ways]
        ways += [tool_prompt.told(messages, prompt, system=False)] if merged == messages else []
    if not voice.shows_tools or (tools and envelopes):
        yield from ((each, []) for each in ways)


def _refusal(error: TemplateError) -> Refused:
    """What a template says itself is the client's to hear; a template that breaks or runs away is the model's fault."""
    if error.refused:
        return Refused(f"the chat template refused the messages: {error.message}", "messages")
    return Refused(f"the model's chat template failed: {error.message}", code="template_failed", status=500)


def _render(messages: Turns, tools: list[Any], chat: ChatRequest, facts: Wording) -> str:
    assert facts.template is not None
    voice = facts.voice
    return facts.template.render(
        messages,
        tools=tools or voice.no_tools,
        add_generation_prompt=chat.add_generation_prompt,
        continue_final_message=chat.continue_final_message,
        **_documents(chat, facts),
        **switches.template_kwargs(voice.switch, voice.effort, *_intent(chat), chat.template_kwargs),
    )


def _intent(chat: ChatRequest) -> tuple[bool | None, str | None]:
    """Is the model to think, and how hard: as the request says, else yes in plain chat, no where a form is wanted."""
    effort = chat.reasoning_effort
    if chat.thinking is not None:
        return chat.thinking, effort
    for name in switches.SPELLINGS:
        if isinstance(said := chat.template_kwargs.get(name), bool):
            return said, effort
    if effort is not None:
        return effort != "none", effort
    return not (chat.structured or chat.tools), effort


def continued(rendered: str, chat: ChatRequest) -> str | None:
    """What the prompt has of the message that is to be gone on with, and what the template put before it."""
    if not chat.continue_final_message:
        return None
    before = next((m.content for m in reversed(chat.messages[:-1]) if m.content and m.role != "assistant"), "")
    at = shown(rendered).rfind(before.strip())
    return rendered if at < 0 else shown(rendered)[at + len(before.strip()) :]


def _documents(chat: ChatRequest, facts: Wording) -> dict[str, Any]:
    if not chat.documents:
        return {}
    texts = [{k: _guard(text, facts.control_spellings) for k, text in each.items()} for each in chat.documents]
    return {"documents": texts}


def _system_first(messages: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """All system texts in one message at the front, for templates that know no other place."""
    system = [m["content"] for m in messages if m["role"] in ("system", "developer")]
    rest = [m for m in messages if m["role"] not in ("system", "developer")]
    return [{"role": "system", "content": "\n\n".join(system)}, *rest] if system else messages


def _for_template(message: Message, spellings: Sequence[str], native_developer: bool, as_text: bool) -> dict[str, Any]:
    role = "system" if message.role == "developer" and not native_developer else message.role
    content = message.content or ""  # templates differ on null; all know an empty text
    out: dict[str, Any] = {"role": role, "content": content if role == "assistant" else _guard(content, spellings)}
    if message.name is not None:
        out["name"] = message.name
    if message.tool_call_id is not None:
        out["tool_call_id"] = message.tool_call_id
    if message.reasoning is not None:
        out["reasoning_content"] = message.reasoning
    if message.tool_calls:
        out["tool_calls"] = [_call_for_template(call, as_text) for call in message.tool_calls]
    return out


def _call_for_template(call: Mapping[str, Any], as_text: bool) -> dict[str, Any]:
    """A call with its arguments as most templates want them: the object a JSON string stands for, else the value
    itself.  as_text: the string."""
    function, arguments = call["function"], call["function"]["arguments"]
    if as_text:
        arguments = arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    elif isinstance(arguments, str):
        with suppress(ValueError):  # what is not JSON the template shows as text
            arguments = json.loads(arguments)
    return {**call, "function": {**function, "arguments": arguments}}


def _guarded(value: Any, spellings: Sequence[str]) -> Any:
    """A JSON value with all its texts guarded."""
    if isinstance(value, str):
        return _guard(value, spellings)
    if isinstance(value, Mapping):
        return {_guard(key, spellings): _guarded(item, spellings) for key, item in value.items()}
    return [_guarded(item, spellings) for item in value] if isinstance(value, list | tuple) else value


def _guard(text: str, spellings: Sequence[str]) -> str:
    text = text.replace(BREAK, "\ufffd")
    for spelling in spellings:
        if spelling in text:
            text = text.replace(spelling, spelling[0] + BREAK + spelling[1:])
    return text


def shown(rendered: str) -> str:
    """A rendered prompt as people should see it."""
    return rendered.replace(BREAK, "")
