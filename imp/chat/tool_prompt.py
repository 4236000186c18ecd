"""Tools for templates that know none: a prompt that tells of them, and calls and results as ordinary turns.

The prompt goes behind the system message's text, or becomes the system message; where the template knows no system
message either, it goes before the first question. It shows a call as the format writes it, so that what it teaches is
what is read. Results come back as a user's turn between <tool_response> tags.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

from ..constrain.tools import Envelope, Text

_PROMPT = """\
# Tools

You can call functions to help with the request. Their signatures, as JSON, one a line:
<tools>
{tools}
</tools>

To call a function, write its name and its arguments as a JSON object, exactly like this:
{example}
For several calls, write this several times. What the functions return comes in the next message, between \
<tool_response> and </tool_response>. Where no function is needed, just answer."""


def prompt(tools: Sequence[Mapping[str, Any]], envelope: Envelope) -> str:
    """What the model is told of its tools (in OpenAI's shape)."""
    lines = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in tools)
    return _PROMPT.format(tools=lines, example=written([("FUNCTION_NAME", {"ARGUMENT": "VALUE"})], envelope))


def written(calls: Sequence[tuple[str, Any]], envelope: Envelope) -> str:
    """Calls, each a name and its arguments, as the format writes them; numbers and ids of its own are left out."""
    each = [
        f"{_text(envelope.before_name)}{_name(name, envelope)}{_text(envelope.after_name)}"
        f"{_arguments(arguments, envelope)}{_text(envelope.after)}"
        for name, arguments in calls
    ]
    return _text(envelope.opener) + _text(envelope.separator).join(each) + _text(envelope.closer)


def told(messages: Sequence[Mapping[str, Any]], text: str, system: bool = True) -> list[dict[str, Any]]:
    """The conversation with a text for the model before it.  system: in the system message, else in the first turn."""
    first, *rest = map(dict, messages)
    if first["role"] in ("system", "developer"):
        return [{**first, "content": f"{first['content']}\n\n{text}" if first["content"] else text}, *rest]
    if system:
        return [{"role": "system", "content": text}, first, *rest]
    return [{**first, "content": f"{text}\n\n{first['content']}"}, *rest]


def described(value: Any) -> Any:
    """Tools, or a part of them, with an empty description where there is none, of functions and of what they take, and
    with members of any kind where objects say nothing of them.

    For templates that break on what a schema does not say."""
    if isinstance(value, list | tuple):
        return [described(each) for each in value]
    if not isinstance(value, Mapping):
        return value
    full = {key: described(each) for key, each in value.items()}
    if isinstance(properties := full.get("properties"), dict):
        full["properties"] = {
            name: {"description": "", **each} if isinstance(each, dict) else each for name, each in properties.items()
        }
    if full.get("type") == "object":
        full.setdefault("additionalProperties", {})
    if isinstance(function := full.get("function"), dict):
        full["function"] = {"description": "", **function}
    return full


def one_by_one(messages: Sequence[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The conversation with one call to an answer: those of an answer that has several stand behind each other, each
    with its result."""
    out: list[dict[str, Any]] = []
    waiting: list[dict[str, Any]] = []  # answers with one call each, whose results come next
    results: dict[int, list[dict[str, Any]]] = {}

    def settle() -> None:
        for at, answer in enumerate(waiting):
            out.extend([answer, *results.pop(at, ())])
        waiting.clear()

    for message in map(dict, messages):
        if waiting and message["role"] in ("tool", "function"):
            ids = [answer["tool_calls"][0].get("id") for answer in waiting]
            known = message.get("tool_call_id")
            at = ids.index(known) if known in ids else min(sum(map(len, results.values())), len(waiting) - 1)
            results.setdefault(at, []).append(message)
            continue
        settle()
        calls = message.get("tool_calls") or []
        if len(calls) < 2:
            out.append(message)
            continue
        rest = {"role": message["role"], "content": ""}
        waiting += [{**(message if not at else rest), "tool_calls": [call]} for at, call in enumerate(calls)]
    settle()
    return out


def plainly(
    messages: Sequence[Mapping[str, Any]], envelope: Envelope, calls: bool = True, results: bool = True
) -> list[dict[str, Any]]:
    """The conversation with calls as texts of the assistant, and results as texts of the user; either if wanted."""
    out: list[dict[str, Any]] = []
    behind_result = False
    for message in messages:
        turn = dict(message)
        result = results and turn["role"] in ("tool", "function")
        if calls and turn.get("tool_calls"):
            functions = [call["function"] for call in turn.pop("tool_calls")]
            text = written([(each["name"], each["arguments"]) for each in functions], envelope)
            turn["content"] = f"{turn['content']}\n{text}" if turn["content"] else text
        if result:
            turn = {"role": "user", "content": f"<tool_response>\n{turn['content']}\n</tool_response>"}
        if behind_result and turn["role"] == "user":  # turns alternate
            out[-1]["content"] += "\n" + turn["content"]
        else:
            out.append(turn)
        behind_result = result or (behind_result and turn["role"] == "user")
    return out


def _text(text: Text) -> str:
    return text if isinstance(text, str) else "".join(part for part in text if isinstance(part, str))


def _name(name: str, envelope: Envelope) -> str:
    return json.dumps(name, ensure_ascii=False)[1:-1] if envelope.quoted_name else name


def _arguments(arguments: Any, envelope: Envelope) -> str:
    texts = envelope.parameters
    if texts is None or not isinstance(arguments, Mapping):
        return arguments if isinstance(arguments, str) else json.dumps(arguments, ensure_ascii=False)
    members = []
    for key, value in arguments.items():
        if isinstance(value, str):
            before, end = texts.after_key, texts.end
            shown = value if end else json.dumps(value, ensure_ascii=False)
        else:
            before, end = _text(texts.after_key_json) or texts.after_key, texts.end
            end = end if texts.end_json is None else texts.end_json
            shown = json.dumps(value, ensure_ascii=False)
        again = key + texts.named_end if texts.named_end else ""
        members.append(f"{texts.before_key}{key}{before}{shown}{end}{again}{texts.rest}")
    return texts.separator.join(members)
