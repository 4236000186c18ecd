"""JSON Schema: what of it is enforced, and how it becomes an automaton.

load       a document: limits, drafts, URIs, anchors, what a reference leads to
parse      schemas become formulas: a schema's own keywords (leaf), and the keywords that combine schemas
algebra    formulas become shapes: unions of sets of numbers, strings, arrays, objects; and, or, not over them
check      everything a schema can lead to is looked at: what is not supported, what does not exist
lower      shapes become rules of an automaton, when it first reaches them
"""

from .base import json_base
from .compile import PropertyOrder, Schema, SchemaOptions, compile_rule, compile_schema, emit_value
from .formats import warm as warm_formats
from .keywords import KEYWORDS
from .whitespace import Whitespace

__all__ = [
    "KEYWORDS",
    "PropertyOrder",
    "Schema",
    "SchemaOptions",
    "Whitespace",
    "compile_rule",
    "compile_schema",
    "emit_value",
    "json_base",
    "warm_formats",
]
