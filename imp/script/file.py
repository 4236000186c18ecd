"""The script FILE: what is in it, and exact words for what is wrong with it. Knows JSON, not tokens."""

from __future__ import annotations

import base64
import binascii
import difflib
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from imp.chat.template import BUILTIN

MAX_CONTEXT = 1 << 24
ERRORS = ("engine_step_failed",)


class ScriptError(Exception):
    """A script that cannot be used: one sentence with the key's path and what came."""


@dataclass(frozen=True, slots=True)
class Reply:
    """What the model says once: `pieces`, a token each, and how."""

    pieces: tuple[bytes, ...] = ()
    delay_s: float = 0.0  # between two tokens
    first_delay_s: float = 0.0  # before the first
    logprob: float = -0.1  # of every token
    endless: bool = False  # the pieces come again and again; otherwise the end token follows
    error: str | None = None  # the request fails where the end token would come


@dataclass(frozen=True, slots=True)
class Script:
    model: str
    context: int  # tokens, prompt and output together
    template: str  # Jinja source
    control: tuple[str, ...]  # control tokens beside those of the template
    replies: tuple[Reply, ...]
    loop: bool  # after the last reply the first comes again


def read(path: Path) -> Script:
    """The script of a file. Raises FileNotFoundError and ScriptError."""
    if not path.is_file():
        raise FileNotFoundError(f"script {path} does not exist")
    try:
        value = json.loads(path.read_bytes().decode(), object_pairs_hook=_no_repeats, parse_constant=_no_constants)
    except UnicodeDecodeError as error:
        raise ScriptError(f"script {path}: byte {error.start} is not UTF-8") from None
    except json.JSONDecodeError as error:
        raise ScriptError(f"script {path}: not JSON: line {error.lineno}, column {error.colno}: {error.msg}") from None
    except RecursionError:
        raise ScriptError(f"script {path}: nested too deeply") from None
    except ScriptError as error:
        raise ScriptError(f"script {path}: {error}") from None
    try:
        return parse(value, path.parent)
    except ScriptError as error:
        raise ScriptError(f"script {path}: {error}") from None


def parse(value: Any, folder: Path) -> Script:
    """The script of a JSON value; a template's file is sought from `folder`. Raises ScriptError."""
    fields = _object(value, "", ("model", "context", "template", "control_tokens", "replies", "loop"))
    replies = _list(fields.get("replies"), "replies")
    if not replies:
        raise ScriptError("replies: at least one reply is needed")
    return Script(
        model=_text(fields.get("model", "script"), "model"),
        context=_whole(fields.get("context", 32768), "context", 16, MAX_CONTEXT),
        template=_template(_text(fields.get("template", "chatml"), "template"), folder),
        control=tuple(
            _text(each, f"control_tokens[{i}]")
            for i, each in enumerate(_list(fields.get("control_tokens", []), "control_tokens"))
        ),
        replies=tuple(_reply(each, f"replies[{i}]") for i, each in enumerate(replies)),
        loop=_truth(fields.get("loop", True), "loop"),
    )


def _reply(value: Any, path: str) -> Reply:
    fields = _object(value, path, tuple(_REPLY))
    read = {name: _REPLY[name](given, f"{path}.{name}") for name, given in fields.items()}
    reply = Reply(
        pieces=read.get("pieces", ()),
        delay_s=read.get("delay_ms", 0.0) / 1000,
        first_delay_s=read.get("first_delay_ms", 0.0) / 1000,
        logprob=read.get("logprob", -0.1),
        endless=read.get("endless", False),
        error=read.get("error"),
    )
    if reply.endless and not reply.pieces:
        raise ScriptError(f"{path}.endless: an endless reply needs pieces to repeat")
    if reply.endless and reply.error:
        raise ScriptError(f"{path}.error: an endless reply never comes to its error; leave one of the two out")
    return reply


def _pieces(value: Any, path: str) -> tuple[bytes, ...]:
    return tuple(_piece(each, f"{path}[{i}]") for i, each in enumerate(_list(value, path)))


def _piece(value: Any, path: str) -> bytes:
    """One token's bytes; at least one, since `_text` refuses the empty text."""
    if isinstance(value, str):
        return _text(value, path).encode()
    if not isinstance(value, dict):
        raise ScriptError(f'{path}: must be a text or {{"base64": "..."}}, not {_shown(value)}')
    encoded = _text(_object(value, path, ("base64",)).get("base64"), f"{path}.base64")
    try:
        return base64.b64decode(encoded, validate=True)
    except (binascii.Error, ValueError):
        raise ScriptError(f"{path}.base64: must be base64, not {_shown(encoded)}") from None


def _milliseconds(value: Any, path: str) -> float:
    number = _number(value, path)
    if not 0 <= number <= 86_400_000:
        raise ScriptError(f"{path}: must be between 0 and 86400000 milliseconds, not {_shown(value)}")
    return number


def _logprob(value: Any, path: str) -> float:
    number = _number(value, path)
    if not -1000 <= number <= 0:
        raise ScriptError(f"{path}: must be between -1000 and 0, not {_shown(value)}")
    return number


def _error(value: Any, path: str) -> str:
    if value not in ERRORS:
        raise ScriptError(f"{path}: must be one of {', '.join(ERRORS)}, not {_shown(value)}")
    return value


def _truth(value: Any, path: str) -> bool:
    if not isinstance(value, bool):
        raise ScriptError(f"{path}: must be true or false, not {_shown(value)}")
    return value


_REPLY: dict[str, Callable[[Any, str], Any]] = {
    "pieces": _pieces,
    "delay_ms": _milliseconds,
    "first_delay_ms": _milliseconds,
    "logprob": _logprob,
    "endless": _truth,
    "error": _error,
}


def _template(choice: str, folder: Path) -> str:
    """The source of a built-in template or of a .jinja file."""
    if choice in BUILTIN:
        return BUILTIN[choice]
    if not choice.endswith(".jinja"):
        raise ScriptError(f"template: must be a .jinja file or one of {', '.join(BUILTIN)}, not {_shown(choice)}")
    try:
        return (folder / choice).read_text()
    except OSError as error:
        raise ScriptError(f"template: {choice} cannot be read: {error.strerror}") from None
    except (UnicodeDecodeError, ValueError):
        raise ScriptError(f"template: {_shown(choice)} is not a file of UTF-8 text") from None


def _object(value: Any, path: str, names: tuple[str, ...]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ScriptError(f"{path or 'the script'}: must be an object, not {_shown(value)}")
    for name in value:
        if name not in names:
            near = difflib.get_close_matches(name, names, 1)
            advice = f"did you mean {near[0]!r}?" if near else f"known are {', '.join(names)}"
            raise ScriptError(f"{f'{path}.' if path else ''}{_key(name)}: unknown key; {advice}")
    return value


def _list(value: Any, path: str) -> list[Any]:
    if not isinstance(value, list):
        raise ScriptError(f"{path}: must be a list, not {_shown(value)}")
    return value


def _text(value: Any, path: str) -> str:
    if not isinstance(value, str) or not value:
        raise ScriptError(f"{path}: must be a text that is not empty, not {_shown(value)}")
    try:
        value.encode()
    except UnicodeEncodeError:
        raise ScriptError(f"{path}: holds half of a surrogate pair: {_shown(value)}") from None
    return value


def _number(value: Any, path: str) -> float:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise ScriptError(f"{path}: must be a number, not {_shown(value)}")
    try:
        number = float(value)
    except OverflowError:
        number = math.inf
    if not math.isfinite(number):
        raise ScriptError(f"{path}: must be a number of usual size, not {_shown(value)}")
    return number


def _whole(value: Any, path: str, low: int, high: int) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
        raise ScriptError(f"{path}: must be a whole number between {low} and {high}, not {_shown(value)}")
    return value


def _no_repeats(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    made = dict(pairs)
    if len(made) < len(pairs):
        names = [name for name, _ in pairs]
        name = next(name for i, name in enumerate(names) if name in names[:i])
        raise ScriptError(f"{_key(name)}: occurs twice in one object")
    return made


def _no_constants(name: str) -> Any:
    raise ScriptError(f"{name} is not a JSON number")


def _key(name: str) -> str:
    """A key as it is where that can be printed on one short line."""
    return name if name.isascii() and name.isprintable() and 0 < len(name) <= 40 else _shown(name)


def _shown(value: Any) -> str:
    """A value as it stands in the file, short enough for one line."""
    try:
        text = json.dumps(value)
    except (RecursionError, ValueError):
        text = f"a {type(value).__name__}"
    return text if len(text) <= 60 else text[:57] + "..."
