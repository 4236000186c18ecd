"""Seed-OSS: arguments one by one between tags, without line breaks around values.

    <seed:tool_call>
    <function=weather>
    <parameter=city>Oslo</parameter>
    </function>
    </seed:tool_call>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS = ("<seed:tool_call>", "<parameter=")

MARKUP = Markup(
    wrap=("<seed:tool_call>",),
    unwrap=("</seed:tool_call>",),
    call="<function=",
    named=">",
    key="<parameter=",
    keyed=">",
    value_end="</parameter>",
    call_end="</function>",
)
ENVELOPE = Envelope(
    before_name="<seed:tool_call>\n<function=",
    after_name=">\n",
    after="</function>\n</seed:tool_call>",
    separator="\n",
    trigger="<seed:tool_call>",
    parameters=ParameterTexts("<parameter=", ">", "</parameter>", "\n"),
)
BARE = Envelope("<function=", ">\n", "</function>", separator="\n", parameters=ENVELOPE.parameters)
FORMAT = Format("seed", MARKUP.openers, parser(MARKUP), MARKUP.closers, (ENVELOPE, BARE))
