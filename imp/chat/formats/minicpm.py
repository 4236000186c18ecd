"""MiniCPM 5: arguments one by one; a value with line breaks, < or & stands in a CDATA section.

<function name="weather"><param name="city">Oslo</param></function>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS = ('<function name="', '<param name="', "<![CDATA[")

MARKUP = Markup(
    call='<function name="',
    named='">',
    key='<param name="',
    keyed='">',
    value_end="</param>",
    call_end="</function>",
    cdata=True,
)
ENVELOPE = Envelope(
    before_name='<function name="',
    after_name='">',
    after="</function>",
    separator="\n",
    parameters=ParameterTexts('<param name="', '">', "</param>", key=r'[^\s<>="]+'),
)
FORMAT = Format("minicpm", MARKUP.openers, parser(MARKUP), MARKUP.closers, (ENVELOPE,))
