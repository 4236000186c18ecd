"""Messages of Anthropic's dialect as turns: their blocks checked, and what a chat template gets of them (WIRE.md 5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from imp.chat.message import Message
from imp.http.errors import bad_request
from imp.http.fields import refuse_unsupported, wrong
from imp.http.seal import Seal

THINKING = "thinking"  # what is signed
BILLING = "x-anthropic-billing-header:"  # Claude Code's first line: it changes each time, and tells a model nothing

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
    refuse_unsupported(block, path, _UNSUPPORTED)
    kind = block.get("type")
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
