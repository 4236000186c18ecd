"""Schemas that describe schemas, for references to them: what each draft's meta-schema accepts, in one document."""

from __future__ import annotations

Table = dict[str, object]
TYPES = ["array", "boolean", "integer", "null", "number", "object", "string"]
COUNT = {"type": "integer", "minimum": 0}
NAMES = {"type": "array", "items": {"type": "string"}, "uniqueItems": True}
SELF = {"$ref": "#"}
MAP = {"type": "object", "additionalProperties": SELF}
LIST = {"type": "array", "minItems": 1, "items": SELF}
TEXT = {"type": "string"}
FLAG = {"type": "boolean"}
ONE_OR_MORE_TYPES = {
    "anyOf": [{"enum": TYPES}, {"type": "array", "items": {"enum": TYPES}, "minItems": 1, "uniqueItems": True}]
}
ANNOTATIONS: Table = {"title": TEXT, "description": TEXT, "default": True}
NUMBER_BOUNDS: Table = {"maximum": {"type": "number"}, "minimum": {"type": "number"}}
COMMON: Table = {
    "multipleOf": {"type": "number", "exclusiveMinimum": 0},
    **NUMBER_BOUNDS,
    "maxLength": COUNT,
    "minLength": COUNT,
    "pattern": TEXT,
    "maxItems": COUNT,
    "minItems": COUNT,
    "uniqueItems": FLAG,
    "maxProperties": COUNT,
    "minProperties": COUNT,
    "properties": MAP,
    "patternProperties": MAP,
    "additionalProperties": SELF,
    "type": ONE_OR_MORE_TYPES,
    "allOf": LIST,
    "anyOf": LIST,
    "oneOf": LIST,
    "not": SELF,
    "format": TEXT,
}
SINCE_6: Table = {
    "$id": TEXT,
    "$schema": TEXT,
    "$ref": TEXT,
    "examples": {"type": "array"},
    "exclusiveMaximum": {"type": "number"},
    "exclusiveMinimum": {"type": "number"},
    "contains": SELF,
    "propertyNames": SELF,
    "const": True,
}
SINCE_7: Table = {
    "$comment": TEXT,
    "readOnly": FLAG,
    "writeOnly": FLAG,
    "if": SELF,
    "then": SELF,
    "else": SELF,
    "contentMediaType": TEXT,
    "contentEncoding": TEXT,
}
SINCE_2019: Table = {
    "$anchor": {"type": "string", "pattern": "^[A-Za-z_][-A-Za-z0-9._]*$"},
    "$defs": MAP,
    "$vocabulary": {"type": "object", "additionalProperties": FLAG},
    "deprecated": FLAG,
    "maxContains": COUNT,
    "minContains": COUNT,
    "dependentRequired": {"type": "object", "additionalProperties": NAMES},
    "dependentSchemas": MAP,
    "unevaluatedItems": SELF,
    "unevaluatedProperties": SELF,
    "contentSchema": SELF,
}
OLD_ARRAYS: Table = {
    "additionalItems": SELF,
    "items": {"anyOf": [SELF, LIST]},
    "enum": {"type": "array"},
    "required": NAMES,
}
OLD_NAMES: Table = {
    "definitions": MAP,
    "dependencies": {"type": "object", "additionalProperties": {"anyOf": [SELF, NAMES]}},
}


def _meta(uri: str, *tables: Table) -> Table:
    properties = {keyword: schema for table in tables for keyword, schema in table.items()}
    return {"$schema": uri, "$id": uri, "type": ["object", "boolean"], "properties": properties}


DRAFT_4: Table = {
    "$schema": "http://json-schema.org/draft-04/schema",
    "id": "http://json-schema.org/draft-04/schema",
    "type": "object",
    "properties": {
        **COMMON,
        **ANNOTATIONS,
        **OLD_NAMES,
        "id": TEXT,
        "$schema": TEXT,
        "multipleOf": {"type": "number", "minimum": 0, "exclusiveMinimum": True},
        "exclusiveMaximum": FLAG,
        "exclusiveMinimum": FLAG,
        "additionalItems": {"anyOf": [FLAG, SELF]},
        "additionalProperties": {"anyOf": [FLAG, SELF]},
        "items": {"anyOf": [SELF, LIST]},
        "required": {**NAMES, "minItems": 1},
        "enum": {"type": "array", "minItems": 1},
    },
    "dependencies": {"exclusiveMaximum": ["maximum"], "exclusiveMinimum": ["minimum"]},
}
URI_6 = "http://json-schema.org/draft-06/schema"
URI_7 = "http://json-schema.org/draft-07/schema"
URI_2019 = "https://json-schema.org/draft/2019-09/schema"
URI_2020 = "https://json-schema.org/draft/2020-12/schema"
METASCHEMAS: dict[str, Table] = {
    "http://json-schema.org/draft-04/schema": DRAFT_4,
    URI_6: _meta(URI_6, SINCE_6, ANNOTATIONS, OLD_NAMES, OLD_ARRAYS, COMMON),
    URI_7: _meta(URI_7, SINCE_6, SINCE_7, ANNOTATIONS, OLD_NAMES, OLD_ARRAYS, COMMON),
    URI_2019: _meta(
        URI_2019,
        SINCE_6,
        SINCE_7,
        SINCE_2019,
        {"$recursiveRef": TEXT, "$recursiveAnchor": FLAG},
        ANNOTATIONS,
        OLD_NAMES,
        OLD_ARRAYS,
        COMMON,
    ),
    URI_2020: _meta(
        URI_2020,
        SINCE_6,
        SINCE_7,
        SINCE_2019,
        {"$dynamicRef": TEXT, "$dynamicAnchor": TEXT, "prefixItems": LIST, "items": SELF},
        ANNOTATIONS,
        OLD_NAMES,
        {"enum": {"type": "array"}, "required": NAMES},
        COMMON,
    ),
}
