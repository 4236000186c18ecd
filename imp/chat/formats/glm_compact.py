"""GLM 4.7, Spark 2.5: what GLM 4.6 writes, without the line breaks.

<tool_call>weather<arg_key>city</arg_key><arg_value>Oslo</arg_value></tool_call>
"""

from __future__ import annotations

from . import glm

TEMPLATE_MARKS = (*glm.TEMPLATE_MARKS, "</arg_key><arg_value>")

FORMAT = glm.written("glm-compact", "")
