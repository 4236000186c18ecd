"""MiniMax M2: calls between two tags, arguments one by one.

    <minimax:tool_call>
    <invoke name="weather">
    <parameter name="city">Oslo</parameter>
    </invoke>
    </minimax:tool_call>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts, alone
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS = ("<minimax:tool_call>", "<invoke name=")

MARKUP = Markup(
    wrap=("<minimax:tool_call>",),
    unwrap=("</minimax:tool_call>",),
    call='<invoke name="',
    named='">',
    key='<parameter name="',
    keyed='">',
    value_end="</parameter>",
    call_end="</invoke>",
)
ENVELOPE = Envelope(
    opener="<minimax:tool_call>\n",
    before_name='<invoke name="',
    after_name='">\n',
    after="</invoke>\n",
    closer="</minimax:tool_call>",
    trigger="<minimax:tool_call>",
    parameters=ParameterTexts('<parameter name="', '">', "</parameter>", "\n", key=r'[^\s<>="]+'),
)
FORMAT = Format("minimax", MARKUP.openers, parser(MARKUP), MARKUP.closers, (ENVELOPE, alone(ENVELOPE)))
