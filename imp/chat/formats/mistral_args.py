"""Mistral from the eleventh tokenizer on (Devstral, Magistral, Ministral 3, Small 3.2 without ids): name and arguments.

    [TOOL_CALLS]weather[ARGS]{"city": "Oslo"}[TOOL_CALLS]now[ARGS]{}

A template of these has the marker `[ARGS]`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope
from .base import Format
from .mistral import ARGUMENTS, CALL_ID, OPEN, parse

TEMPLATE_MARKS: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]")

ENVELOPE = Envelope(before_name=OPEN, after_name=ARGUMENTS, after="")
FORMAT = Format("mistral-args", (OPEN,), parse, (ARGUMENTS, CALL_ID), (ENVELOPE,))
