"""`cache_control`: where a client of Anthropic's dialect says that a prompt's beginning is worth keeping.

Blocks are counted in the order of the prompt: tools, system, messages. The last marked one bounds what is kept; earlier
marks lie inside of it, because the cache finds every beginning of a prompt by itself. A mark inside a tool result, or
on the request itself, is one at the end of that. How long it is to be kept (`ttl`) is read and changes nothing: what is
kept goes when newer prompts need the room (server.prefix_pin_budget_pct).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from imp.chat.message import Kept, Message
from imp.http.errors import bad_request
from imp.http.fields import wrong

MAX_MARKS = 4  # blocks with cache_control in one request
TTLS = ("5m", "1h")


@dataclass(frozen=True, slots=True)
class _Mark:
    path: str  # of the marked block
    tools: int | None = None  # kept of the body's tools, where the mark is on one of them; None: all
    system: int | None = None  # kept of its blocks, where the mark is on one of them; None: all
    item: int = -1  # the message marked; -1: none
    block: int = -1


def kept(
    body: Mapping[str, Any],
    turns: tuple[Message, ...],
    tools: Sequence[Mapping[str, Any]],
    read: Callable[[Any, Sequence[Mapping[str, Any]]], tuple[Message, ...]],
) -> Kept | None:
    """What is to be kept of a body whose blocks have been checked. None: nothing is marked. ApiError 400.

    turns, tools: what was read of the body.  read: (system, messages) as turns.
    """
    marks = [(mark, control) for mark, control in _marked(body) if control is not None]
    if len(marks) > MAX_MARKS:
        raise bad_request("cache_control", f'At most {MAX_MARKS} blocks may have "cache_control", not {len(marks)}.')
    for mark, control in marks:
        _check(control, f"{mark.path}.cache_control".lstrip("."))
    if not marks:
        return None
    last, _ = marks[-1]
    if last.tools is not None:
        names = {tool.get("name") for tool in body["tools"][: last.tools]}
        count = sum(tool["function"]["name"] in names for tool in tools)
        return Kept((turns[0],) if turns[0].role == "system" else (), count)
    if last.system is not None:
        return Kept(read(body["system"][: last.system], ()))
    items = body["messages"]
    if last.item + 1 == len(items) and last.block + 1 == len(items[last.item]["content"]):
        return Kept(turns)
    marked = items[last.item]
    return Kept(
        read(body.get("system"), [*items[: last.item], {**marked, "content": marked["content"][: last.block + 1]}])
    )


def _marked(body: Mapping[str, Any]) -> Iterator[tuple[_Mark, Any]]:
    """Every place of a mark, and what stands there."""
    for i, tool in enumerate(body.get("tools") or ()):
        yield _Mark(f"tools[{i}]", tools=i + 1), tool.get("cache_control")
    system = body.get("system")
    for i, block in enumerate(system if isinstance(system, list) else ()):
        yield _Mark(f"system[{i}]", system=i + 1), block.get("cache_control")
    for i, item in enumerate(body["messages"]):
        content = item["content"]
        for j, block in enumerate(content if isinstance(content, list) else ()):
            path, inner = f"messages[{i}].content[{j}]", block.get("content")
            for k, nested in enumerate(inner if isinstance(inner, list) else ()):
                yield _Mark(f"{path}.content[{k}]", item=i, block=j), nested.get("cache_control")
            yield _Mark(path, item=i, block=j), block.get("cache_control")
    last = len(body["messages"]) - 1
    yield _Mark("", item=last, block=len(body["messages"][last]["content"]) - 1), body.get("cache_control")


def _check(control: Any, path: str) -> None:
    if not isinstance(control, Mapping):
        raise wrong(path, "an object", control)
    if control.get("type") != "ephemeral":
        raise wrong(f"{path}.type", '"ephemeral"', control.get("type"))
    if control.get("ttl") is not None and control["ttl"] not in TTLS:
        raise wrong(f"{path}.ttl", " or ".join(f'"{ttl}"' for ttl in TTLS), control["ttl"])
