"""Functionary 3.1: a tag with the name, and the arguments in it; code behind a marker.

    <function=weather>{"city": "Oslo"}</function>
    <|python_tag|>print("Oslo")

A template of these explains the tag in words, its parts in braces.
"""

from __future__ import annotations

from .base import Format
from .llama import FUNCTION, FUNCTION_CLOSE, FUNCTIONS, TAG, TAGGED, parse

TEMPLATE_MARKS: tuple[str, ...] = ("<{start_tag}={function_name}>{parameters}{end_tag}",)

FORMAT = Format("functionary-v3.1", (TAG, FUNCTION), parse, (FUNCTION_CLOSE,), (FUNCTIONS, TAGGED))
