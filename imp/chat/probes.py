"""Conversations of our own, rendered to see what a template makes of them. What it does is all that is asked."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from typing import Any

from . import thoughts
from .formats.base import Thinking
from .template import ChatTemplate, TemplateError

USER, REASON, TEXT, RESULT = "probe question", "probe reason", "probe answer", "probe result"
TOOL, OTHER = "probe_tool", "second_probe"
ARGUMENTS: Mapping[str, Any] = {"probe_key": "probe value"}
TOOLS: Sequence[Mapping[str, Any]] = [
    {
        "type": "function",
        "function": {
            "name": TOOL,
            "description": "A probe.",
            "parameters": {
                "type": "object",
                "properties": {"probe_key": {"type": "string", "description": "A key."}},
                "required": ["probe_key"],
            },
        },
    }
]
_CALL = {"id": "probe0001", "type": "function", "function": {"name": TOOL, "arguments": ARGUMENTS}}
_QUESTION = {"role": "user", "content": USER}
_SAID = {"role": "assistant", "content": TEXT}
_RESULT = {"role": "tool", "content": RESULT, "tool_call_id": _CALL["id"], "name": TOOL}
_DUMPED = re.compile(r"""["']thinking["']\s*:\s*["']""" + REASON)  # the block itself, as a list is written
_TAGS = re.compile(
    r"(?P<open><[^<>\s/][^<>\n]{0,40}>|\[[A-Z_]{2,40}\])\s*"
    + REASON
    + r"\s*(?P<close></?[^<>\n]{1,40}>|\[/[A-Z_]{2,40}\])"
)


def rendered(template: ChatTemplate, messages: Sequence[Mapping[str, Any]], **kwargs: Any) -> str | None:
    """The prompt's text; None: the template does not render this."""
    try:
        return template.render(messages, **kwargs)
    except TemplateError:
        return None


def question(template: ChatTemplate, system: str = "", **kwargs: Any) -> str | None:
    """A user's question, with the place for an answer behind it."""
    first = [{"role": "system", "content": system}] if system else []
    return rendered(template, [*first, _QUESTION], **kwargs)


def no_tools(template: ChatTemplate) -> Sequence[Any] | None:
    """What the template wants where there are no tools: none, unless it breaks on that and on an empty list not."""
    return () if question(template) is None and question(template, tools=()) is not None else None


def knows_tools(template: ChatTemplate) -> bool:
    """Does the prompt tell the model of its tools?"""
    for messages in ([_QUESTION], [{"role": "system", "content": "probe"}, _QUESTION]):
        text = rendered(template, messages, tools=TOOLS)
        if text is not None and TOOL in text:
            return True
    return False


def call_turn(template: ChatTemplate, as_text: bool = False) -> str | None:
    """How the template writes an answer that is a call, from the question on; None: it does not.

    as_text: the call's arguments are given as JSON in a string."""
    call = _with_text(_CALL) if as_text else _CALL
    for content in ("", TEXT):
        turn = {"role": "assistant", "content": content, "tool_calls": [call]}
        text = rendered(template, [_QUESTION, turn], tools=TOOLS, add_generation_prompt=False)
        if text is not None and TOOL in (behind := text[text.rfind(USER) + len(USER) :]):
            return behind
    return None


def shows_several(template: ChatTemplate, as_text: bool) -> bool:
    """Does it write all calls of an answer that has two? Some refuse that, others drop what is behind the first.

    as_text: see `call_turn`."""
    other = {**_CALL, "id": "probe0002", "function": {"name": OTHER, "arguments": ARGUMENTS}}
    calls = [_with_text(call) if as_text else call for call in (_CALL, other)]
    for content in ("", TEXT):
        turn = {"role": "assistant", "content": content, "tool_calls": calls}
        text = rendered(template, [_QUESTION, turn], tools=TOOLS, add_generation_prompt=False)
        if text is not None and OTHER in text:
            return True
    return False


def _with_text(call: Mapping[str, Any]) -> dict[str, Any]:
    function = call["function"]
    return {**call, "function": {**function, "arguments": json.dumps(function["arguments"])}}


def shows_results(template: ChatTemplate) -> bool:
    """Does what a tool gave come to the model?"""
    turn = {"role": "assistant", "content": TEXT, "tool_calls": [_CALL]}
    return any(RESULT in (rendered(template, [_QUESTION, each, _RESULT], tools=TOOLS) or "") for each in (turn, _SAID))


def wants_parts(template: ChatTemplate) -> bool:
    """Does it show content that is a list of parts, and none that is a text?"""
    if USER in (question(template) or ""):
        return False
    return USER in (rendered(template, thoughts.in_parts([_QUESTION])) or "")


def thinks_in_blocks(template: ChatTemplate) -> bool:
    """Does it show reasoning that is a block of the content, and none that is a field beside it?"""
    field = {**_SAID, "reasoning_content": REASON}
    for turns in ([field], [{**field, "tool_calls": [_CALL]}, _RESULT]):
        if REASON in (rendered(template, [_QUESTION, *turns], tools=TOOLS) or ""):
            return False
    text = rendered(template, [_QUESTION, *thoughts.in_blocks([field])]) or ""
    return REASON in text and not _DUMPED.search(text)


def around_reasoning(template: ChatTemplate) -> Thinking | None:
    """The tags a template puts around the reasoning of an earlier answer."""
    thought = {**_SAID, "reasoning_content": REASON}
    for turns in ([thought], [{**thought, "tool_calls": [_CALL]}, _RESULT]):
        found = _TAGS.search(rendered(template, [_QUESTION, *turns], tools=TOOLS) or "")
        if found:
            return Thinking(found["open"], found["close"])
    return None
