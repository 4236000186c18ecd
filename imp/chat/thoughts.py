"""A conversation's content as blocks, and its reasoning elsewhere than beside the content: some templates want that."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

Turns = Sequence[Mapping[str, Any]]


def in_blocks(messages: Turns) -> list[dict[str, Any]]:
    """The conversation with reasoning as the first block of its turn's content, as Mistral's templates read it."""
    return [_in_blocks(message) for message in messages]


def _in_blocks(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = dict(message)
    if reasoning := turn.pop("reasoning_content", None):
        turn["content"] = [{"type": "thinking", "thinking": reasoning}, *_parts(turn["content"])]
    return turn


def in_parts(messages: Turns) -> list[dict[str, Any]]:
    """The conversation with each text as a part of its turn's content, for templates that know no other content."""
    return [{**message, "content": _parts(message["content"])} for message in messages]


def _parts(content: Any) -> Any:
    if not isinstance(content, str):
        return content
    return [{"type": "text", "text": content}] if content else []


def before_calls(messages: Turns) -> list[dict[str, Any]]:
    """The conversation with all that was said before calls as reasoning: some templates have one place for both."""
    return [_before_calls(message) for message in messages]


def _before_calls(message: Mapping[str, Any]) -> dict[str, Any]:
    turn = dict(message)
    if (
        turn.get("tool_calls")
        and turn.get("reasoning_content")
        and isinstance(turn["content"], str)
        and turn["content"]
    ):
        turn["reasoning_content"] = f"{turn['reasoning_content']}\n{turn['content']}"
        turn["content"] = ""
    return turn
