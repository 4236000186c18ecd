"""DeepSeek V4: what DeepSeek V3.2 writes, in a block of another name.

    <｜DSML｜tool_calls>
    <｜DSML｜invoke name="weather">
    <｜DSML｜parameter name="city" string="true">Oslo</｜DSML｜parameter>
    </｜DSML｜invoke>
    </｜DSML｜tool_calls>
"""

from __future__ import annotations

from . import dsml

TEMPLATE_MARKS = ("｜DSML｜", "'tool_calls>")

FORMAT = dsml.written("dsml-v4", dsml.BLOCKS[::-1])
