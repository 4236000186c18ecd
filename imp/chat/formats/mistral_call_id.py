"""Mistral Small 3.2: name, id and arguments.

    [TOOL_CALLS]weather[CALL_ID]a1B2c3D4e[ARGS]{"city": "Oslo"}

A template of these has the markers `[CALL_ID]` and `[ARGS]`.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, Pattern
from .base import Format
from .mistral import ARGUMENTS, CALL_ID, ID, OPEN, parse

TEMPLATE_MARKS: tuple[str, ...] = ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]")

ENVELOPE = Envelope(before_name=OPEN, after_name=(CALL_ID, Pattern(ID), ARGUMENTS), after="")
FORMAT = Format("mistral-call-id", (OPEN,), parse, (ARGUMENTS, CALL_ID), (ENVELOPE,))
