"""Constraints that nobody sends in good faith: nested, exponential, cyclic, huge, ambiguous, or random rubbish."""

from __future__ import annotations

import json
import random
import string
from collections.abc import Iterator

from imp.types import ConstraintKind, ConstraintSpec

S, R, C, G = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.CHOICE, ConstraintKind.GRAMMAR
HUGE = [0, 1, -1, 7, 255, 4097, 65_537, 2**31 - 1, 2**31, 2**63, 10**30, 1e308, 1e-320, 0.1, -0.0]
PATTERNS = ["^(a|b)*a(a|b){20}$", "(a*)*b", "(a+)+$", "(.*a){20}", "x{0,99999}", "^[^a]*$", "a{3}{3}", "(", "(?=a)", "\\p{L}+", "[\U0001f600-\U0001f64f]*", "", "^$", "a^"]
FORMATS = ["date-time", "email", "uri", "uuid", "regex", "nonsense", "ipv6", "uri-template"]


def hostile(draw: random.Random) -> Iterator[ConstraintSpec]:
    """Endless."""
    while True:
        yield draw.choice([schema_bomb, schema_bomb, _random_schema, _random_schema, _regex, _regex_bomb, _gbnf, _gbnf_bomb, _lark, _rubbish])(draw)


# ---- schemas


def _schema_spec(value: object) -> ConstraintSpec:
    return ConstraintSpec(S, json.dumps(value, ensure_ascii=False))


def schema_bomb(draw: random.Random) -> ConstraintSpec:
    depth, wide = draw.randrange(2, 40), draw.randrange(2, 60)
    make = draw.choice([_one_of, _nested, _cycle, _enum, _patterns, _dependent, _conditions, _unevaluated, _numbers, _strings, _uniques])
    return _schema_spec(make(draw, depth, wide))


def _one_of(draw: random.Random, depth: int, wide: int) -> object:
    """Alternatives that all overlap, below one another."""
    schema: object = {"type": "integer"}
    word = draw.choice(["oneOf", "anyOf", "allOf"])
    for i in range(min(depth, 7)):
        branches = [{"type": "object", "properties": {f"k{i}_{j}": schema}} for j in range(draw.randrange(2, 5))]
        schema = {word: branches, **draw.choice([{}, {"minProperties": 1}, {"not": {"required": [f"k{i}_0"]}}])}
    return schema


def _nested(draw: random.Random, depth: int, wide: int) -> object:
    schema: object = draw.choice([{}, True, {"type": "string", "maxLength": draw.choice(HUGE[:9])}])
    kinds = draw.choice([["items"], ["not"], ["items", "properties", "not", "contains"]])
    for _ in range(depth * draw.choice([1, 5, 20])):
        word = draw.choice(kinds)
        schema = {word: {"a": schema} if word == "properties" else schema}
    return schema


def _cycle(draw: random.Random, depth: int, wide: int) -> object:
    names = [f"d{i}" for i in range(depth)]
    ways = [lambda ref: ref, lambda ref: {"allOf": [ref, ref]}, lambda ref: {"items": ref}, lambda ref: {"not": ref}, lambda ref: {"properties": {"a": ref}, "required": ["a"]}]
    defs = {name: draw.choice(ways)({"$ref": f"#/$defs/{draw.choice(names)}"}) for name in names}
    return {"$ref": "#/$defs/d0", "$defs": defs}


def _enum(draw: random.Random, depth: int, wide: int) -> object:
    size = draw.choice([10, 1000, 20_000])
    values = [draw.choice([i, str(i) * draw.choice([1, 40]), {"a": i}, [i, i]]) for i in range(size)]
    return {"enum": values, **draw.choice([{}, {"not": {"enum": values[::2]}}, {"pattern": "9"}])}


def _patterns(draw: random.Random, depth: int, wide: int) -> object:
    found = {f"{draw.choice(['^a', 'b.*', ''])}{draw.choice(string.ascii_lowercase)}{i}": {"minimum": i} for i in range(draw.choice([3, 12, 40]))}
    return {"patternProperties": found, "properties": {f"p{i}": {} for i in range(wide)}, "additionalProperties": draw.choice([True, False])}


def _dependent(draw: random.Random, depth: int, wide: int) -> object:
    names = [f"k{i}" for i in range(wide)]
    return {
        "properties": {name: {"type": "integer"} for name in names},
        "dependentRequired": {name: draw.sample(names, min(3, wide)) for name in names},
        "dependentSchemas": {name: {"properties": {draw.choice(names): {"minimum": 3}}} for name in names[: draw.choice([0, 5, wide])]},
        "minProperties": draw.choice([0, 5, wide + 1]),
    }


def _conditions(draw: random.Random, depth: int, wide: int) -> object:
    rules = [{"if": {"properties": {f"k{i}": {"const": i}}}, "then": {"required": [f"k{i + 1}"]}, "else": {"properties": {f"k{i + 1}": {"type": "string"}}}} for i in range(draw.choice([2, 8, wide]))]
    return {"allOf": rules}


def _unevaluated(draw: random.Random, depth: int, wide: int) -> object:
    branches = [{"properties": {f"a{i}": True}, "required": draw.choice([[], [f"a{i}"]])} for i in range(draw.choice([2, 6, 20]))]
    return {draw.choice(["anyOf", "oneOf"]): branches, "unevaluatedProperties": draw.choice([False, {"type": "string"}])}


def _numbers(draw: random.Random, depth: int, wide: int) -> object:
    schema = {draw.choice(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"]): draw.choice(HUGE) for _ in range(3)}
    return {"type": draw.choice(["number", "integer"]), **schema, "not": {"multipleOf": draw.choice([3, 0.007, 1e-9, 997])}}


def _strings(draw: random.Random, depth: int, wide: int) -> object:
    return {
        "type": "string", "pattern": draw.choice(PATTERNS), "minLength": draw.choice(HUGE), "maxLength": draw.choice(HUGE),
        **draw.choice([{}, {"format": draw.choice(FORMATS)}, {"not": {"pattern": draw.choice(PATTERNS)}}]),
    }  # fmt: skip


def _uniques(draw: random.Random, depth: int, wide: int) -> object:
    return {
        "type": "array", "uniqueItems": True, "items": {"enum": list(range(wide))}, "minItems": draw.choice(HUGE), "maxItems": draw.choice(HUGE),
        "contains": {"minimum": 3}, "minContains": draw.choice(HUGE), "prefixItems": [{"const": i} for i in range(draw.choice([0, 3]))],
    }  # fmt: skip


KEYWORDS = [
    "type", "enum", "const", "minimum", "maximum", "multipleOf", "minLength", "maxLength", "pattern", "format", "properties", "required",
    "additionalProperties", "patternProperties", "propertyNames", "minProperties", "maxProperties", "dependentRequired", "items", "prefixItems",
    "minItems", "maxItems", "contains", "uniqueItems", "allOf", "anyOf", "oneOf", "not", "if", "then", "else", "$ref", "$id", "$anchor", "$schema",
    "$defs", "unevaluatedProperties", "unevaluatedItems", "$dynamicRef", "dependencies", "additionalItems",
]  # fmt: skip


def _random_schema(draw: random.Random) -> ConstraintSpec:
    return _schema_spec(_node(draw, draw.randrange(1, 5)))


def _node(draw: random.Random, depth: int) -> object:
    if depth == 0 or draw.random() < 0.05:
        return draw.choice([True, False, {}, None, 3, "x", []]) if draw.random() < 0.1 else draw.choice([True, {}, {"type": "string"}])
    return {word: _value(draw, word, depth - 1) for word in draw.sample(KEYWORDS, draw.randrange(1, 6))}


def _value(draw: random.Random, word: str, depth: int) -> object:
    if draw.random() < 0.04:
        return draw.choice([None, {}, [], "", -1, 1.5, True, [[]], {"a": {}}])
    match word:
        case "type":
            return draw.choice(["object", "array", "string", "number", "integer", "null", "boolean", ["string", "null"], "strnig"])
        case "enum" | "required":
            return draw.sample(["a", "b", "c", "é", "\ud83d\ude38", ""], draw.randrange(1, 4))
        case "pattern":
            return draw.choice(PATTERNS)
        case "format":
            return draw.choice(FORMATS)
        case "properties" | "patternProperties" | "$defs" | "dependencies":
            return {draw.choice(["a", "b", "^c", "(", "é"]): _node(draw, depth) for _ in range(3)}
        case "dependentRequired":
            return {"a": ["b"], "b": ["a", "c"]}
        case "allOf" | "anyOf" | "oneOf" | "prefixItems":
            return [_node(draw, depth) for _ in range(draw.randrange(1, 4))]
        case "$ref" | "$dynamicRef":
            return draw.choice(["#", "#/$defs/a", "#/properties/a", "https://example.com/s", "#x", "", "#/" + "a/" * 50])
        case "$id" | "$anchor" | "$schema":
            return draw.choice(["x", "https://json-schema.org/draft/2020-12/schema", "http://json-schema.org/draft-07/schema#", "#"])
        case "uniqueItems":
            return draw.random() < 0.5
        case "const":
            return draw.choice([1, "x", None, {"a": [1]}, 1e300])
    if word.startswith(("min", "max", "multiple")):
        return draw.choice(HUGE)
    return _node(draw, depth)


# ---- regular expressions and grammars


def _expression(draw: random.Random, depth: int) -> str:
    if depth == 0:
        return draw.choice(["a", "b", ".", "[a-z]", "[^a]", r"\d", r"\w+", r"\p{L}", "é", "(?:)", "^", "$", r"\b", "\\", "[", "{2}", "😀"])
    inner = _expression(draw, depth - 1)
    return draw.choice([
        f"({inner})*", f"({inner}){{{draw.choice(['2', '0,9', '3,', '99', '1,70000', '999999999', '5,2'])}}}", f"{inner}|{_expression(draw, depth - 1)}",
        f"{inner}{_expression(draw, depth - 1)}", f"(?i:{inner})", f"({inner})?", f"(?={inner})", f"({inner})+?",
    ])  # fmt: skip


def _regex(draw: random.Random) -> ConstraintSpec:
    return ConstraintSpec(R, _expression(draw, draw.randrange(1, 9)))


def _regex_bomb(draw: random.Random) -> ConstraintSpec:
    n = draw.choice([5, 25, 200, 3000])
    text = draw.choice(["(a|b)*a(a|b){%d}", "(.*a){%d}", "((((a{0,%d}){0,9}){0,9}){0,9})", "[a-z]{0,%d}[0-9]{0,%d}", r"(\w+\s?){%d}"])
    text = text.replace("%d", str(n)) if draw.random() < 0.5 else draw.choice(["a?", "(a|", "(a", "[ab]c*", "a|b|", "\\p{L}?"]) * n
    return ConstraintSpec(R, text)


def _gbnf(draw: random.Random) -> ConstraintSpec:
    names = [f"r{i}" for i in range(draw.randrange(1, 12))]
    rules = ["root ::= r0"]
    for name in names:
        atoms = [draw.choice([*names, '"a"', '"b"', "[a-z]", '""', "."]) + draw.choice(["", "", "*", "+", "?", "{2,40}"]) for _ in range(draw.randrange(1, 6))]
        rules.append(f"{name} ::= " + draw.choice([" ", " | "]).join(atoms))
    return ConstraintSpec(G, "\n".join(rules))


def _gbnf_bomb(draw: random.Random) -> ConstraintSpec:
    n = draw.choice([10, 100, 900])
    text = draw.choice([
        "root ::= " + '"a"? ' * n,
        "root ::= " + "(" * n + '"x"' + ")*" * n,
        'root ::= root root | "a"',
        'root ::= root root root | "a" | ""',
        'root ::= ("a" | "a" root "b" | "a" root "c")*',
        'root ::= s{1,%d}\ns ::= r{1,%d}\nr ::= "a"{1,%d}'.replace("%d", str(n)),
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{(i + 1) % n} r{(i * 7 + 3) % n} | \"x\"" for i in range(n)),
        "root ::= r0\n" + "\n".join(f"r{i} ::= r{i + 1} r{i + 1}" for i in range(n)) + f'\nr{n} ::= "a" | ""',
        "root ::= [" + "".join(chr(0x4E00 + 2 * i) for i in range(n)) + "]{0,999}",
        'root ::= "' + "a" * n * 500 + '"',
    ])  # fmt: skip
    return ConstraintSpec(G, text)


def _lark(draw: random.Random) -> ConstraintSpec:
    n = draw.choice([3, 30, 300])
    text = draw.choice([
        "start: " + "[A] " * n + '\nA: "a"',
        'start: start "+" start | "a"',
        "start: A~1.." + str(n * 1000) + '\nA: "a" | A',
        'start: x\n%ignore " "\nx: "a" x "b" | x x |',
        "start: /(a|b)*a(a|b){" + str(n) + "}/",
        "start: " + "(" * n + "A" + ")" * n + "\nA: /./",
        "%import common.FLOAT\nstart: (FLOAT FLOAT?)+\n%ignore /\\s+/",
    ])  # fmt: skip
    return ConstraintSpec(G, text)


def _rubbish(draw: random.Random) -> ConstraintSpec:
    alphabet = draw.choice([string.printable, "(){}[]|*+?\\^$.,:;=\"'<>#~%-", "".join(map(chr, range(0x20, 0x3000, 37)))])
    text = "".join(draw.choices(alphabet, k=draw.choice([3, 30, 300, 3000])))
    kind = draw.choice([R, G])
    return ConstraintSpec(kind, draw.choice(["root ::= ", "start: ", ""]) + text if kind is G else text)
