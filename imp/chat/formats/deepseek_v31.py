"""DeepSeek V3.1: a section of calls, names and arguments alone.

    <｜tool▁calls▁begin｜><｜tool▁call▁begin｜>weather<｜tool▁sep｜>{"city": "Oslo"}<｜tool▁call▁end｜>
    <｜tool▁calls▁end｜>

without a line break. A template of these has the call's marker in front of the name.
"""

from __future__ import annotations

from ...constrain.tools import Envelope, alone
from .base import Format
from .deepseek import CLOSE, CLOSERS, SECTION, SEPARATOR, parse

TEMPLATE_MARKS: tuple[str, ...] = ("<｜tool▁call▁begin｜>", "tool['function']['name'] + '<｜tool▁sep｜>'")

ENVELOPE = Envelope(
    opener=SECTION.open,
    before_name=SECTION.call,
    after_name=SEPARATOR,
    after=CLOSE,
    closer=SECTION.close,
)
FORMAT = Format("deepseek-v3.1", SECTION.openers, parse, CLOSERS, (ENVELOPE, alone(ENVELOPE)))
