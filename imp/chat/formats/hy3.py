"""Hunyuan 3: calls in a block, keys and values in turn; the names of all tags carry a suffix.

    <tool_calls:opensource>
    <tool_call:opensource>weather<tool_sep:opensource>
    <arg_key:opensource>city</arg_key:opensource>
    <arg_value:opensource>Oslo</arg_value:opensource>
    </tool_call:opensource>
    </tool_calls:opensource>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts, alone
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS = (":opensource", "<tool_sep{}>", "<arg_key{}>")

SUFFIX = ":opensource"
MARKUP = Markup(
    wrap=(f"<tool_calls{SUFFIX}>",),
    unwrap=(f"</tool_calls{SUFFIX}>",),
    call=f"<tool_call{SUFFIX}>",
    named=f"<tool_sep{SUFFIX}>",
    key=f"<arg_key{SUFFIX}>",
    keyed=f"</arg_key{SUFFIX}>",
    value=f"<arg_value{SUFFIX}>",
    value_end=f"</arg_value{SUFFIX}>",
    call_end=f"</tool_call{SUFFIX}>",
)
ENVELOPE = Envelope(
    opener=f"<tool_calls{SUFFIX}>\n",
    before_name=f"<tool_call{SUFFIX}>",
    after_name=f"<tool_sep{SUFFIX}>\n",
    after=f"</tool_call{SUFFIX}>\n",
    closer=f"</tool_calls{SUFFIX}>",
    trigger=f"<tool_calls{SUFFIX}>",
    parameters=ParameterTexts(
        f"<arg_key{SUFFIX}>",
        f"</arg_key{SUFFIX}>\n<arg_value{SUFFIX}>",
        f"</arg_value{SUFFIX}>",
        "\n",
    ),
)
FORMAT = Format("hy3", MARKUP.openers, parser(MARKUP), MARKUP.closers, (ENVELOPE, alone(ENVELOPE)))
