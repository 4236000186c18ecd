"""Qwen3-Coder, Qwen3.5, Nemotron 3, Step 3.5: arguments one by one between tags. The outer tags may be missing.

<tool_call>
<function=weather>
<parameter=city>
Oslo
</parameter>
</function>
</tool_call>
"""

from __future__ import annotations

from ...constrain.tools import Envelope, ParameterTexts
from .base import Format
from .markup import Markup, parser

TEMPLATE_MARKS = ("<tool_call>\\n<function=", "<parameter=")

MARKUP = Markup(
    wrap=("<tool_call>",),
    unwrap=("</tool_call>",),
    call="<function=",
    named=">",
    key="<parameter=",
    keyed=">",
    value_end="</parameter>",
    call_end="</function>",
    pad="\n",
)
PARAMETERS = ParameterTexts("<parameter=", ">\n", "\n</parameter>", "\n", marker="</parameter>")
ENVELOPE = Envelope(
    before_name="<tool_call>\n<function=",
    after_name=">\n",
    after="</function>\n</tool_call>",
    separator="\n",
    trigger="<tool_call>",
    parameters=PARAMETERS,
)
BARE = Envelope("<function=", ">\n", "</function>", separator="\n", parameters=PARAMETERS)
FORMAT = Format("qwen-xml", MARKUP.openers, parser(MARKUP), MARKUP.closers, (ENVELOPE, BARE))
