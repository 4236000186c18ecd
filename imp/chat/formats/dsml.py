"""DeepSeek V3.2: calls in a block, each argument saying whether it is a string.

    <｜DSML｜function_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    <｜DSML｜parameter name="days" string="false">3</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜function_calls>
"""

from __future__ import annotations

from collections.abc import Sequence

from ...constrain.tools import Envelope, ParameterTexts, alone
from .base import Format
from .markup import Kinds, Markup, parser
from .typed import STRING

TEMPLATE_MARKS: tuple[str, ...] = ("｜DSML｜", "'function_calls>")

TOKEN = "｜DSML｜"
BLOCKS = ("function_calls", "tool_calls")


def typing(attributes: str, admitted: Kinds) -> Kinds:
    """What the model says, as far as the schema admits it."""
    if 'string="true"' in attributes:
        return admitted & STRING or admitted
    return (admitted - STRING or admitted) if 'string="false"' in attributes else admitted


MARKUP = Markup(
    wrap=tuple(f"<{TOKEN}{block}>" for block in BLOCKS),
    unwrap=tuple(f"</{TOKEN}{block}>" for block in BLOCKS),
    call=f'<{TOKEN}invoke name="',
    named='">',
    key=f'<{TOKEN}parameter name="',
    keyed='"',
    value=">",
    value_end=f"</{TOKEN}parameter>",
    call_end=f"</{TOKEN}invoke>",
    typing=typing,
)


def written(name: str, blocks: Sequence[str]) -> Format:
    """The format with the calls in the first of `blocks`; the others are read too."""
    in_blocks = [_envelope(block) for block in blocks]
    return Format(name, MARKUP.openers, parser(MARKUP), MARKUP.closers, (*in_blocks, alone(in_blocks[0])))


def _envelope(block: str) -> Envelope:
    return Envelope(
        opener=f"<{TOKEN}{block}>\n",
        before_name=f'<{TOKEN}invoke name="',
        after_name='">\n',
        after=f"</{TOKEN}invoke>\n",
        closer=f"</{TOKEN}{block}>",
        trigger=f"<{TOKEN}{block}>",
        parameters=ParameterTexts(
            f'<{TOKEN}parameter name="',
            '" string="true">',
            f"</{TOKEN}parameter>",
            "\n",
            key=r'[^\s<>="]+',
            after_key_json='" string="false">',
        ),
    )


FORMAT = written("dsml", BLOCKS)
