"""A conversation as coding agents have it, in Anthropic's dialect: a system prompt and tools that are most of it, and
thirty turns of tool calls and their results. It fits into 8,000 tokens.
"""

from __future__ import annotations

from typing import Any

TURNS = 30
MARKED = {"cache_control": {"type": "ephemeral"}}

_TASKS = (
    ("units.py", "convert", "metres to feet", "value * 3.28084"),
    ("rooms.py", "floor_area", "the floor of a room", "width * depth"),
    ("rooms.py", "wall_area", "the walls of a room", "2 * (width + depth) * height"),
    ("paint.py", "litres", "how much paint a wall needs", "area / 10.5 * coats"),
    ("paint.py", "tins", "how many tins to buy", "-(-litres // tin)"),
    ("prices.py", "with_tax", "a price with the tax on it", "price * (1 + rate)"),
)
_INSTRUCTIONS = (
    "You help with a small project of Python files that plan how rooms are painted.",
    "Look before you write: read a file before you change it, and run its tests afterwards.",
    "Change one thing at a time, and say in one sentence what you changed and why.",
    "Names are whole words. Functions are short and have a sentence that says what they return, with its unit.",
    "Never guess at numbers. Where a figure is missing, ask for it or leave the place marked.",
    "When a test fails, say which, what was expected and what came, before you touch the code.",
)
_VERBS = (
    ("read", "Gives the lines of one {0}, each with its number, from the first wanted line to the last."),
    ("replace", "Puts new lines into one {0}, in the place of those named, and gives what it looks like then."),
    ("check", "Runs all checks there are for one {0}, and gives what they print, failures first."),
    ("list", "Gives the name of every {0} below a folder, with its size and when it was last changed."),
)
_THINGS = ("file", "test", "plan", "price list", "drawing", "report")
_FIELDS = {
    "path": ("string", "Where it is, from the root of the project, with forward slashes."),
    "first": ("integer", "Number of the first line that is meant; the first line of all is 1."),
    "last": ("integer", "Number of the last line that is meant; left out, it is the last line of all."),
    "reason": ("string", "One sentence that says why, for the people who read the log afterwards."),
}


def system(nonce: int, conversation: str) -> list[dict[str, Any]]:
    """The line that is another one in every request, who this is, and what to do."""
    line = f"x-anthropic-billing-header: cc_version=2.4.{nonce % 7}; cc_entrypoint=cli; cch={nonce:05x};"
    rules = "\n".join(f"{number}. {rule}" for number, rule in enumerate(_INSTRUCTIONS * 7, 1))
    return [
        {"type": "text", "text": line},
        {"type": "text", "text": f"You are the assistant of project {conversation}."},
        {"type": "text", "text": rules} | MARKED,
    ]


def tools() -> list[dict[str, Any]]:
    properties = {name: {"type": kind, "description": text} for name, (kind, text) in _FIELDS.items()}
    schema = {"type": "object", "properties": properties, "required": ["path", "reason"]}
    return [
        {"name": f"{verb}_{thing.replace(' ', '_')}", "description": text.format(thing), "input_schema": schema}
        for thing in _THINGS
        for verb, text in _VERBS
    ]


def messages(turn: int) -> list[dict[str, Any]]:
    """What has been said when the model is asked for the `turn`-th time, 1 for the first. The last block is marked."""
    said: list[dict[str, Any]] = [{"role": "user", "content": "Please go through the files and tidy them up."}]
    for i in range(turn - 1):
        said += _exchange(i)
    last = said[-1]
    content = last["content"]
    blocks = [{"type": "text", "text": content}] if isinstance(content, str) else content
    said[-1] = last | {"content": [*blocks[:-1], blocks[-1] | MARKED]}
    return said


def _exchange(i: int) -> list[dict[str, Any]]:
    path, name, meaning, formula = _TASKS[i % len(_TASKS)]
    use = {"type": "tool_use", "id": f"toolu_{i}", "name": "read_file", "input": {"path": path}}
    result = f"def {name}(value, rate):  # {meaning}\n    return {formula}"
    return [
        {"role": "assistant", "content": [use]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": use["id"], "content": result}]},
    ]
