"""API keys, given on the command line or in files. Reads files; knows nothing of requests."""

from __future__ import annotations

import stat
from collections.abc import Callable, Sequence
from pathlib import Path


class KeysError(Exception):
    """Keys that cannot be used: one sentence, which holds no key. `missing`: a file is not there."""

    def __init__(self, message: str, missing: bool = False):
        super().__init__(message)
        self.missing = missing


def read(given: Sequence[str], warn: Callable[[str], None]) -> tuple[str, ...]:
    """The keys `given` stands for: `@FILE` and paths of files are read, anything else is a key itself.

    A path is what holds a slash and names an existing file. In a file each line is a key; what follows # at the
    beginning of a line or after a space is a comment. Raises KeysError, so that a file without keys never opens a door.
    """
    keys: list[str] = []
    for each in given:
        path = _path(each)
        if path is None:
            keys.append(_usable(each, "an API key"))
        else:
            keys += _in_file(path, warn)
    return tuple(dict.fromkeys(keys))


def _path(given: str) -> Path | None:
    if given.startswith("@"):
        return Path(given[1:]).expanduser()
    if "/" in given and len(given) < 4096 and "\0" not in given:
        path = Path(given).expanduser()
        return path if path.is_file() else None
    return None


def _in_file(path: Path, warn: Callable[[str], None]) -> list[str]:
    try:
        mode = path.stat().st_mode
        text = path.read_text(encoding="utf-8")
    except UnicodeDecodeError:
        raise KeysError(f"the key file {path} is not UTF-8 text") from None
    except OSError as error:
        missing = isinstance(error, FileNotFoundError)
        raise KeysError(f"the key file {path} cannot be read: {error.strerror or error}", missing) from None
    if stat.S_ISREG(mode) and mode & 0o077:
        warn(f"the key file {path} can be read by others; chmod 600 keeps it to you")
    lines = [(number, _without_comment(line)) for number, line in enumerate(text.splitlines(), 1)]
    keys = [_usable(line, f"line {number} of {path}") for number, line in lines if line]
    if not keys:
        raise KeysError(f"the key file {path} holds no key")
    return keys


def _without_comment(line: str) -> str:
    line = line.strip()
    return "" if line.startswith("#") else line.partition(" #")[0].strip()


def _usable(key: str, what: str) -> str:
    """A key as a header can carry it."""
    if not key:
        raise KeysError(f"{what} is empty")
    if not key.isprintable() or " " in key:
        raise KeysError(f"{what} holds a space or a control character, which no header can carry as a key")
    return key
