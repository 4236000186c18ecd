"""How many leading tokens of a prompt a client wants kept in the cache. Pure functions; they run in the pool."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

from .message import ChatRequest, Kept, Message, Refused


def kept_tokens(
    chat: ChatRequest,
    rendered: str,
    prompt: Sequence[int],
    render: Callable[[ChatRequest], str],
    encode: Callable[[str], list[int]],
) -> int:
    """Of a prompt whose text is `rendered`: the tokens that tell what `chat.kept` says, as the template puts it.

    What is kept is rendered by itself, and counts as far as it and the prompt are the same text. A template that does
    not take it by itself leaves nothing to measure: then all is kept. encode: texts that begin or end the prompt.
    """
    if chat.kept is None:
        return 0
    try:
        text = render(_alone(chat, chat.kept))
    except Refused:
        return len(prompt)
    length = _common(text, rendered)
    if 2 * length <= len(rendered):
        return _common_tokens(encode(rendered[:length]), prompt)
    return len(prompt) - _common_tokens(encode(rendered[length:])[::-1], prompt[::-1])


def _alone(chat: ChatRequest, kept: Kept) -> ChatRequest:
    """The conversation up to there. Most templates want a user to speak: one who says something else than ours."""
    messages, tools = kept.messages, chat.tools[: kept.tools]
    if not any(message.role == "user" for message in messages):
        said = next((message.content for message in chat.messages if message.role == "user"), "") or ""
        messages = (*messages, Message("user", "b" if said.lstrip().startswith("a") else "a"))
    return replace(chat, messages=messages, tools=tools, add_generation_prompt=False, continue_final_message=False)


def _common(first: str, second: str) -> int:
    """How many leading characters two texts share."""
    low, high = 0, min(len(first), len(second))
    while low < high:
        middle = (low + high + 1) // 2
        if first[low:middle] == second[low:middle]:
            low = middle
        else:
            high = middle - 1
    return low


def _common_tokens(first: Sequence[int], second: Sequence[int]) -> int:
    pairs = enumerate(zip(first, second, strict=False))
    return next((i for i, (a, b) in pairs if a != b), min(len(first), len(second)))
