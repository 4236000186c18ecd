"""Items of a Responses conversation: checked on the way in, and what a chat template gets of them (WIRE.md 4.2).

An item is a JSON object with an id. What clients send is brought into the form in which `input_items` shows it and in
which the store keeps it; the messages are made from that form alone, so a conversation gives the same prompt whether it
is sent again item by item or continued by `previous_response_id`.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from imp.chat.message import Message
from imp.http.dialects.tools import arguments
from imp.http.errors import ApiError, bad_request
from imp.http.fields import refuse_unsupported, wrong
from imp.http.seal import Seal

Item = Mapping[str, Any]
Lookup = Callable[[str], Item | None]  # a stored item by its id

MAX_ITEMS = 10_000
COMPACTION, REASONING = "compaction", "reasoning"  # what is sealed
INCOMPLETE = "incomplete"
REFERENCE = "item_reference"
CALLS = ("function_call", "custom_tool_call")
OUTPUTS = ("function_call_output", "custom_tool_call_output")
ROLES = ("user", "assistant", "system", "developer")


def read_items(given: str | Sequence[Any], lookup: Lookup, path: str = "input") -> tuple[Item, ...]:
    """Items of a request in their kept form; references are replaced by what they name. ApiError 400 with the path."""
    if isinstance(given, str):
        return (message_item("user", given),)
    return tuple(_item(item, f"{path}[{i}]", lookup) for i, item in enumerate(given))


def references(given: str | Sequence[Any]) -> list[str]:
    """The ids of stored items that a request names."""
    if isinstance(given, str):
        return []
    named = (item["id"] for item in given if isinstance(item, dict) and "id" in item and _kind(item) == REFERENCE)
    return [id for id in named if isinstance(id, str)]


def message_item(role: str, text: str) -> Item:
    return _message({"role": role, "content": text}, "")


def new_id(prefix: str) -> str:
    return prefix + secrets.token_hex(12)


def check_calls(history: Iterable[Item], items: Sequence[Item], seal: Seal, path: str = "input") -> None:
    """Every output must follow its call, and every compaction be one of ours. ApiError 400 naming what is not."""
    called = set(_calls(history, seal))
    for i, item in enumerate(items):
        called.update(_calls((item,), seal, f"{path}[{i}]"))
        if item["type"] in OUTPUTS and item["call_id"] not in called:
            where = f"{path}[{i}].call_id"
            raise bad_request(where, f'"{where}": no call before this output has the id "{item["call_id"][:100]}".')


def _calls(items: Iterable[Item], seal: Seal, path: str = "input") -> Iterable[str]:
    return (item["call_id"] for item in unsealed(items, seal, path) if item["type"] in CALLS)


# -- one item in ----------------------------------------------------------------------------------


def _item(item: Any, path: str, lookup: Lookup) -> Item:
    if not isinstance(item, dict):
        raise wrong(path, "an object", item)
    kind = _kind(item)
    if kind == REFERENCE:
        return _reference(item, path, lookup)
    reader = _READERS.get(kind) if isinstance(kind, str) else None
    if reader is None:
        known = ", ".join(f'"{name}"' for name in (*_READERS, REFERENCE))
        raise wrong(f"{path}.type", f"one of {known}", kind)
    return reader(item, path)


def _kind(item: Item) -> Any:
    """Its type; messages and references are also known by their other fields."""
    kind = item.get("type")
    if kind is None:
        return REFERENCE if "id" in item and "role" not in item else "message"
    return kind


def _reference(item: Item, path: str, lookup: Lookup) -> Item:
    name = _text(item, "id", path)
    found = lookup(name)
    if found is None:
        where = f"{path}.id"
        raise bad_request(where, f'"{where}": no item "{name[:100]}" is stored.', "item_not_found")
    return found


def _message(item: Item, path: str) -> Item:
    role, content = item.get("role"), item.get("content")
    if role not in ROLES:
        raise wrong(f"{path}.role", "one of " + ", ".join(f'"{known}"' for known in ROLES), role)
    if isinstance(content, str):
        content = [{"type": "output_text" if role == "assistant" else "input_text", "text": content}]
    if not isinstance(content, list):
        raise wrong(f"{path}.content", "a string or an array of parts", content)
    parts = [_part(part, f"{path}.content[{j}]") for j, part in enumerate(content)]
    kept = {"id": _id(item, "msg_", path), "type": "message", "status": "completed", "role": role, "content": parts}
    phase = item.get("phase")
    if phase not in (None, "commentary", "final_answer"):
        raise wrong(f"{path}.phase", '"commentary" or "final_answer"', phase)
    return kept if phase is None else kept | {"phase": phase}


_UNSUPPORTED_PARTS = {
    "input_image": ("vision_unavailable", "image input is not supported by this model."),
    "input_audio": ("audio_unavailable", "audio input is not supported by this model."),
    "input_file": ("file_unavailable", "file input is not supported by this server."),
}


def _part(part: Any, path: str) -> Item:
    """One text of a message, or of a tool's output."""
    if not isinstance(part, dict):
        raise wrong(path, "an object", part)
    refuse_unsupported(part, path, _UNSUPPORTED_PARTS)
    kind = part.get("type")
    if kind == "refusal":
        return {"type": kind, "refusal": _text(part, "refusal", path)}
    if kind == "output_text":
        return {"type": kind, "text": _text(part, "text", path), "annotations": [], "logprobs": []}
    if kind in ("input_text", "text"):
        return {"type": "input_text", "text": _text(part, "text", path)}
    raise wrong(f"{path}.type", 'one of "input_text", "output_text", "refusal"', kind)


def _function_call(item: Item, path: str) -> Item:
    """The arguments of a call that was cut off are what there was of them."""
    call = _call(item, path, "fc_") | {"arguments": _text(item, "arguments", path)}
    if item.get("status") == INCOMPLETE:
        return call | {"status": INCOMPLETE}
    arguments(call["arguments"], f"{path}.arguments")
    return call


def _custom_call(item: Item, path: str) -> Item:
    return _call(item, path, "ctc_") | {"input": _text(item, "input", path)}


def _call(item: Item, path: str, prefix: str) -> dict[str, Any]:
    return {
        "id": _id(item, prefix, path),
        "type": item["type"],
        "status": "completed",
        "call_id": _text(item, "call_id", path),
        "name": _text(item, "name", path),
    }


def _output(item: Item, path: str) -> Item:
    output = item.get("output")
    if isinstance(output, list):
        output = [_part(part, f"{path}.output[{j}]") for j, part in enumerate(output)]
    elif not isinstance(output, str):
        raise wrong(f"{path}.output", "a string or an array of parts", output)
    kept = {"id": _id(item, "fco_", path), "type": item["type"], "status": "completed"}
    return kept | {"call_id": _text(item, "call_id", path), "output": output}


def _reasoning(item: Item, path: str) -> Item:
    """What the model thought, in the clear or sealed. What other servers have sealed is kept, and says nothing here."""
    thoughts = {key: _texts(item.get(key), f"{path}.{key}", kind) for key, kind in _THOUGHTS.items()}
    kept: dict[str, Any] = {"id": _id(item, "rs_", path), "type": "reasoning"} | thoughts
    sealed = item.get("encrypted_content")
    if sealed is not None and not isinstance(sealed, str):
        raise wrong(f"{path}.encrypted_content", "a string", sealed)
    return kept if sealed is None else kept | {"encrypted_content": sealed}


_THOUGHTS = {"summary": "summary_text", "content": "reasoning_text"}


def _texts(value: Any, path: str, kind: str) -> list[Item]:
    if value is not None and not isinstance(value, list):
        raise wrong(path, "an array of texts", value)
    texts: list[Item] = []
    for j, part in enumerate(value or ()):
        if not isinstance(part, dict) or part.get("type") != kind:
            raise wrong(f"{path}[{j}]", f'an object of type "{kind}"', part)
        texts.append({"type": kind, "text": _text(part, "text", f"{path}[{j}]")})
    return texts


def _compaction(item: Item, path: str) -> Item:
    sealed = _text(item, "encrypted_content", path)
    return {"id": _id(item, "cmp_", path), "type": "compaction", "encrypted_content": sealed}


def _id(item: Item, prefix: str, path: str) -> str:
    """The client's id, whatever it is called by; a new one where it gives none."""
    given = item.get("id")
    if given is not None and (not isinstance(given, str) or len(given) > 1000):
        raise wrong(f"{path}.id", "a string of at most 1000 characters", given)
    return given or new_id(prefix)


def _text(item: Item, key: str, path: str) -> str:
    value = item.get(key)
    if not isinstance(value, str):
        raise wrong(f"{path}.{key}", "a string", value)
    return value


_READERS: dict[str, Callable[[Item, str], Item]] = {
    "message": _message,
    "function_call": _function_call,
    "function_call_output": _output,
    "custom_tool_call": _custom_call,
    "custom_tool_call_output": _output,
    "reasoning": _reasoning,
    "compaction": _compaction,
}


# -- to messages ----------------------------------------------------------------------------------


def messages(instructions: str | None, items: Iterable[Item], seal: Seal) -> tuple[Message, ...]:
    """The turns of a conversation. What an assistant said in a row, thoughts, text and calls, is one turn."""
    turns = [Message("system", instructions)] if instructions else []
    names: dict[str, str] = {}  # of what was called, by the id of the call
    for item in unsealed(items, seal):
        message = _MESSAGES[item["type"]](item, names)
        if turns and _goes_on(turns[-1], message):
            turns[-1] = _joined(turns[-1], message)
        else:
            turns.append(message)
    return tuple(turn if turn.content is not None or turn.tool_calls else replace(turn, content="") for turn in turns)


def unsealed(items: Iterable[Item], seal: Seal, path: str = "input") -> Iterable[Item]:
    """The items, with what compactions hold in their place, and thoughts as text where this process has sealed them.

    ApiError 400 for a compaction that it has not made; thoughts of others stay shut.
    """
    for item in items:
        if item["type"] != "compaction":
            yield _in_the_clear(item, seal) if item["type"] == "reasoning" else item
            continue
        kept = seal.unseal(COMPACTION, item["encrypted_content"])
        if kept is None:
            where = f"{path}.encrypted_content"
            message = f'"{where}": a compaction can be read only by the server process that has made it.'
            raise bad_request(where, message, "invalid_encrypted_content")
        yield from kept


def _in_the_clear(item: Item, seal: Seal) -> Item:
    if item["content"] or "encrypted_content" not in item:
        return item
    thought = seal.unseal(REASONING, item["encrypted_content"])
    return item if thought is None else {**item, "content": [{"type": "reasoning_text", "text": thought}]}


def _said(item: Item, names: dict[str, str]) -> Message:
    return Message(item["role"], text_of(item["content"]))


def _thought(item: Item, names: dict[str, str]) -> Message:
    thoughts = "\n".join(part["text"] for part in item["content"] or item["summary"])
    return Message("assistant", None, reasoning=thoughts or None)


def _called(item: Item, names: dict[str, str]) -> Message:
    names[item["call_id"]] = item["name"]
    try:
        given = arguments(item["arguments"], "") if item["type"] == "function_call" else {"input": item["input"]}
    except ApiError:  # cut off: what there is of the call is text
        return Message("assistant", item["name"] + item["arguments"])
    function = {"name": item["name"], "arguments": given}
    return Message("assistant", None, tool_calls=({"id": item["call_id"], "type": "function", "function": function},))


def _answered(item: Item, names: dict[str, str]) -> Message:
    output = item["output"]
    text = output if isinstance(output, str) else text_of(output)
    return Message("tool", text, name=names.get(item["call_id"]), tool_call_id=item["call_id"])


_MESSAGES: dict[str, Callable[[Item, dict[str, str]], Message]] = {
    "message": _said,
    "reasoning": _thought,
    "function_call": _called,
    "custom_tool_call": _called,
    "function_call_output": _answered,
    "custom_tool_call_output": _answered,
}


def text_of(parts: Iterable[Item]) -> str:
    """The text of a message, or of a tool's output."""
    return "\n".join(part["refusal"] if part["type"] == "refusal" else part["text"] for part in parts)


def _goes_on(turn: Message, more: Message) -> bool:
    """Thoughts come first, then text, then calls: what is out of this order begins another turn."""
    if not turn.role == more.role == "assistant":
        return False
    if more.tool_calls:
        return True
    return turn.content is None and not turn.tool_calls


def _joined(turn: Message, more: Message) -> Message:
    thoughts = [each for each in (turn.reasoning, more.reasoning) if each]
    content = turn.content if more.content is None else more.content
    return replace(
        turn, content=content, reasoning="\n".join(thoughts) or None, tool_calls=turn.tool_calls + more.tool_calls
    )
