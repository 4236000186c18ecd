"""FireFunction v2: an array behind a word.

    functools[{"name": "weather", "arguments": {"city": "Oslo"}}]

A template of these teaches it in words, with the same beginning.
"""

from __future__ import annotations

from .base import Format
from .json_calls import array_envelope, list_parser

TEMPLATE_MARKS: tuple[str, ...] = ("functools[",)

OPEN = "functools"
FORMAT = Format("firefunction", (OPEN,), list_parser(), (), (array_envelope(OPEN, ""),))
