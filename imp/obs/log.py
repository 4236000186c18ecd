"""The ordinary log: plain lines on stderr. No prompts, no answers, no keys; ids and lengths only."""

from __future__ import annotations

import logging
import re
import sys
from typing import TextIO

LEVELS = ("debug", "info", "warning", "error")

_CONTROLS = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class LineFormatter(logging.Formatter):
    """One line a message, whatever a client put into it; a traceback follows on lines of its own."""

    def __init__(self) -> None:
        super().__init__("%(asctime)s.%(msecs)03d %(levelname)s %(name)s: %(message)s", "%Y-%m-%dT%H:%M:%S")

    def formatMessage(self, record: logging.LogRecord) -> str:
        return escape(super().formatMessage(record))


def escape(text: str) -> str:
    """Control characters as \\x.., so that nobody can write log lines of their own."""
    return _CONTROLS.sub(lambda match: f"\\x{ord(match.group()):02x}", text)


def setup(level: str = "info", stream: TextIO | None = None) -> logging.Handler:
    """Send the log to `stream` (stderr), replacing what was set up before. ValueError for an unknown level."""
    if level not in LEVELS:
        raise ValueError(f"the log level must be one of {', '.join(LEVELS)}, not {level!r}")
    handler = logging.StreamHandler(stream or sys.stderr)
    handler.setFormatter(LineFormatter())
    root = logging.getLogger("imp")
    for old in list(root.handlers):
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    root.propagate = False
    return handler


class Once:
    """Remembers what was said, so that it is said once. Bounded: past `limit` names it keeps silent."""

    def __init__(self, limit: int = 1000) -> None:
        self._limit = limit
        self._said: set[str] = set()

    def first(self, name: str) -> bool:
        """True the first time for each name."""
        if name in self._said or len(self._said) >= self._limit:
            return False
        self._said.add(name)
        return True
