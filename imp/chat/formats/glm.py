"""GLM 4.5 and 4.6, Ling 3, Laguna: a name, then keys and values in turn, on lines of their own.

    <tool_call>weather
    <arg_key>city</arg_key>
    <arg_value>Oslo</arg_value>
    </tool_call>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS: tuple[str, ...] = ("<tool_call>", "<arg_key>", "<arg_value>")

MARKUP = Markup(
    call="<tool_call>",
    named="",
    key="<arg_key>",
    keyed="</arg_key>",
    value="<arg_value>",
    value_end="</arg_value>",
    call_end="</tool_call>",
)


def written(name: str, line: str) -> Format:
    """The format with `line` between its tags."""
    envelope = Envelope(
        before_name="<tool_call>",
        after_name=line,
        after="</tool_call>",
        separator=line,
        parameters=ParameterTexts("<arg_key>", f"</arg_key>{line}<arg_value>", "</arg_value>", line),
    )
    return Format(name, MARKUP.openers, parser(MARKUP), MARKUP.closers, (envelope,))


FORMAT = written("glm", "\n")
