"""What becomes of each keyword; docs/CONSTRAINTS.md shows this table."""

from __future__ import annotations

from dataclasses import dataclass

ANNOTATION = "an annotation: accepted, and nothing follows from it"


@dataclass(frozen=True)
class Keyword:
    """How it is enforced, and when a schema that uses it is refused ("": never for this keyword)."""

    enforced: str
    refused: str = ""


KEYWORDS: dict[str, Keyword] = {
    "type": Keyword("exactly; an integer is written without fraction and exponent"),
    "enum": Keyword("exactly, in canonical spelling; members of objects in the order given"),
    "const": Keyword("as `enum` with one value"),
    "minimum": Keyword("exactly, digit by digit; exponents then follow a mantissa from 1 up to 10"),
    "maximum": Keyword("as `minimum`"),
    "exclusiveMinimum": Keyword("as `minimum`; also as the flag of draft 4"),
    "exclusiveMaximum": Keyword("as `minimum`; also as the flag of draft 4"),
    "multipleOf": Keyword(
        "exactly, in decimal; without exponents", "with more than 20 fraction digits; more than 16 below `not`"
    ),
    "minLength": Keyword("exactly, in code points, an escape counting one"),
    "maxLength": Keyword("as `minLength`"),
    "pattern": Keyword(
        "exactly, as a search, with any `minLength`, `maxLength`, `format`; only canonical escapes",
        "with lookaround, backreferences or word boundaries, or where it needs more than 20,000 states",
    ),
    "format": Keyword(
        "date, time, date-time (real calendar; leap seconds in UTC), duration, email, hostname (no punycode), ipv4,"
        " ipv6, uuid, uri, uri-reference, iri, iri-reference, uri-template, json-pointer, relative-json-pointer, byte,"
        " base64; other names are annotations, and named in a warning",
        "`regex`",
    ),
    "properties": Keyword("exactly; names come in this order unless any order is asked for"),
    "required": Keyword(
        "exactly; names that are only required come after the declared ones", "with a name that cannot be"
    ),
    "additionalProperties": Keyword("exactly; such names are never those of `properties`, and may repeat"),
    "patternProperties": Keyword(
        "exactly; a name that several patterns match obeys all", "overlapping in over 64 ways"
    ),
    "propertyNames": Keyword("exactly"),
    "minProperties": Keyword("exactly, for names that do not repeat"),
    "maxProperties": Keyword("exactly"),
    "dependentRequired": Keyword("exactly"),
    "dependentSchemas": Keyword("exactly"),
    "dependencies": Keyword("exactly, in every draft"),
    "items": Keyword("exactly; as a list up to draft 2019-09"),
    "prefixItems": Keyword("exactly"),
    "additionalItems": Keyword("exactly, beside a list in `items`"),
    "minItems": Keyword("exactly"),
    "maxItems": Keyword("exactly"),
    "contains": Keyword("exactly", "with more than 20,000 combinations of items and matches, or more than 4 at once"),
    "minContains": Keyword("exactly"),
    "maxContains": Keyword("exactly"),
    "uniqueItems": Keyword(
        "exactly, for items of at most 64 known scalar values, and for tuples of values that cannot be equal",
        "for other items, beside `contains`, and below `not`, `oneOf` and `if`",
    ),
    "allOf": Keyword("exactly", "with more than 4096 combinations"),
    "anyOf": Keyword("exactly", "with more than 4096 combinations"),
    "oneOf": Keyword("exactly: a value of two branches is not written", "with more than 4096 combinations"),
    "not": Keyword("exactly", "with more than 4096 combinations, or more than 256 numbers in an `enum`"),
    "if": Keyword("exactly, with `then` and `else`", "with more than 4096 combinations"),
    "then": Keyword("with `if`"),
    "else": Keyword("with `if`"),
    "unevaluatedProperties": Keyword("exactly", "where more than 256 combinations of branches can be seen"),
    "unevaluatedItems": Keyword("exactly", "where more than 256 combinations of branches can be seen"),
    "$ref": Keyword(
        "inside the document, by pointer, $id or anchor; up to draft 7 what stands beside it is ignored",
        "to another document, or to itself without a value in between",
    ),
    "$dynamicRef": Keyword("as `$ref`, in the dynamic scope", "to another document"),
    "$recursiveRef": Keyword("as `$dynamicRef`", "to another document"),
    "$id": Keyword("names a schema for `$ref`"),
    "$anchor": Keyword("names a schema for `$ref`"),
    "$dynamicAnchor": Keyword("names a schema for `$dynamicRef`"),
    "$recursiveAnchor": Keyword("names a schema for `$recursiveRef`"),
    "$defs": Keyword("holds schemas for `$ref`"),
    "definitions": Keyword("holds schemas for `$ref`"),
    "$schema": Keyword("chooses the draft: 4, 6, 7, 2019-09, 2020-12; without it 2020-12 with the older forms as well"),
    **{
        name: Keyword(ANNOTATION)
        for name in (
            "title",
            "description",
            "default",
            "examples",
            "$comment",
            "deprecated",
            "readOnly",
            "writeOnly",
            "contentEncoding",
            "contentMediaType",
            "contentSchema",
        )
    },
}
