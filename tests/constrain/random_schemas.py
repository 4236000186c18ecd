"""Random schemas of draft 2020-12, and random values that have a fair chance of fulfilling them."""

from __future__ import annotations

import random

NAMES = ["a", "b", "ab", "c", "x1", "é"]
STRINGS = ["", "a", "b", "ab", "abc", "a1", "1", "é", 'q"', "x\ny", "aaaa", "😀"]
PATTERNS = ["^a", "b$", "^[a-c]*$", "[0-9]", "^.{2}$", "a|b", "^(ab?)+$"]
NUMBERS = [-3, -1, 0, 1, 2, 3, 4, 6, 7, 10, 0.5, 1.5, -0.5, 2.25, 12]
TYPES = ["null", "boolean", "integer", "number", "string", "array", "object"]


class Schemas:
    """A source of schemas; each is a dict or a bool."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def document(self) -> dict:
        rng = self._rng
        schema = self.schema(3)
        while not isinstance(schema, dict):
            schema = self.schema(3)
        schema["$defs"] = {name: self.schema(2) for name in ("p", "q")}
        if rng.random() < 0.3:
            schema["$defs"]["r"] = {
                "type": ["object", "array", "integer"],
                "properties": {"a": {"$ref": "#/$defs/r"}, "b": self.schema(1)},
                "items": {"$ref": "#/$defs/r"},
            }
        return schema

    def schema(self, depth: int) -> object:
        rng = self._rng
        if depth <= 0 or rng.random() < 0.1:
            return rng.choice([True, {}, False, {"type": rng.choice(TYPES)}, {"const": self.value(1)}, {"type": "integer"}])
        schema: dict = {}
        if rng.random() < 0.6:
            schema["type"] = rng.choice([rng.choice(TYPES), rng.choice(TYPES), rng.sample(TYPES, 2)])
        makers = rng.sample(self.MAKERS, rng.choice([1, 1, 2, 3]))
        for make in makers:
            schema.update(make(self, depth - 1))
        return schema

    def value(self, depth: int) -> object:
        rng = self._rng
        kind = rng.choice(["scalar"] * 4 + (["array", "object", "object"] if depth > 0 else []))
        if kind == "array":
            return [self.value(depth - 1) for _ in range(rng.choice([0, 1, 2, 3]))]
        if kind == "object":
            return {name: self.value(depth - 1) for name in rng.sample(NAMES, rng.choice([0, 1, 2, 3]))}
        return rng.choice([None, True, False, rng.choice(NUMBERS), rng.choice(NUMBERS), rng.choice(STRINGS)])

    def likely(self, schema: object, depth: int = 4) -> object:
        """A value shaped by the schema, which may or may not fulfil it."""
        rng = self._rng
        if not isinstance(schema, dict) or depth <= 0 or rng.random() < 0.15:
            return self.value(min(depth, 2))
        for keyword in ("allOf", "anyOf", "oneOf"):
            if keyword in schema and rng.random() < 0.4:
                return self.likely(rng.choice(schema[keyword]), depth)
        for keyword in ("then", "else", "if"):
            if keyword in schema and rng.random() < 0.3:
                return self.likely(schema[keyword], depth)
        if "const" in schema:
            return schema["const"]
        if schema.get("enum"):
            return rng.choice(schema["enum"])
        if {"properties", "required", "additionalProperties", "patternProperties", "minProperties"} & schema.keys():
            return self._object(schema, depth)
        if {"items", "prefixItems", "contains", "minItems", "uniqueItems"} & schema.keys():
            return self._array(schema, depth)
        kind = schema.get("type", rng.choice(TYPES))
        kind = rng.choice(kind) if isinstance(kind, list) else kind
        pools = {"string": STRINGS, "integer": [1, 2, 3, 4, 6, 0, -1, 12], "number": NUMBERS, "boolean": [True, False], "null": [None]}
        if kind in pools:
            return rng.choice(pools[kind])
        return self._array(schema, depth) if kind == "array" else self._object(schema, depth)

    def _object(self, schema: dict, depth: int) -> dict:
        rng, properties = self._rng, schema.get("properties", {})
        names = [name for name in properties if rng.random() < 0.7]
        names += [name for name in schema.get("required", []) if rng.random() < 0.9]
        names += rng.sample(NAMES, rng.choice([0, 0, 1, 2]))
        return {name: self.likely(properties.get(name, schema.get("additionalProperties", {})), depth - 1) for name in names}

    def _array(self, schema: dict, depth: int) -> list:
        prefix, rest = schema.get("prefixItems", []), schema.get("items", {})
        items = [self.likely(item, depth - 1) for item in prefix[: self._rng.randint(0, len(prefix))]]
        return items + [self.likely(rest, depth - 1) for _ in range(self._rng.choice([0, 0, 1, 2, 3]))]

    # --- one group of keywords each -----------------------------------------------------------------------------------

    def _range(self, depth: int) -> dict:
        rng = self._rng
        found: dict = {}
        for keyword in rng.sample(["minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum"], rng.choice([1, 2])):
            found[keyword] = rng.choice(NUMBERS)
        return found

    def _step(self, depth: int) -> dict:
        return {"multipleOf": self._rng.choice([1, 2, 3, 0.5, 0.25, 1.5])}

    def _string(self, depth: int) -> dict:
        rng = self._rng
        options = [("minLength", rng.randint(0, 3)), ("maxLength", rng.randint(0, 4)), ("pattern", rng.choice(PATTERNS))]
        return dict(rng.sample(options, rng.choice([1, 2])))

    def _enum(self, depth: int) -> dict:
        return {"enum": [self.value(1) for _ in range(self._rng.choice([1, 2, 4]))]}

    def _properties(self, depth: int) -> dict:
        rng = self._rng
        found: dict = {"properties": {name: self.schema(depth) for name in rng.sample(NAMES, rng.choice([1, 2, 3]))}}
        if rng.random() < 0.5:
            found["required"] = rng.sample(NAMES, rng.choice([1, 2]))
        if rng.random() < 0.4:
            found["additionalProperties"] = rng.choice([False, self.schema(depth)])
        return found

    def _families(self, depth: int) -> dict:
        rng = self._rng
        found: dict = {"patternProperties": {p: self.schema(depth) for p in rng.sample(["^a", "b$", "[0-9]"], rng.choice([1, 2]))}}
        if rng.random() < 0.5:
            found["additionalProperties"] = rng.choice([False, self.schema(depth)])
        return found

    def _members(self, depth: int) -> dict:
        rng = self._rng
        options: list = [
            ("minProperties", rng.randint(0, 2)),
            ("maxProperties", rng.randint(0, 3)),
            ("propertyNames", rng.choice([{"pattern": "^[a-c]"}, {"maxLength": 1}, {"enum": ["a", "b"]}, {"minLength": 2}])),
            ("dependentRequired", {rng.choice(NAMES): rng.sample(NAMES, rng.choice([1, 2]))}),
            ("dependentSchemas", {rng.choice(NAMES): self.schema(depth)}),
        ]
        return dict(rng.sample(options, rng.choice([1, 1, 2])))

    def _items(self, depth: int) -> dict:
        rng = self._rng
        options: list = [
            ("items", self.schema(depth)),
            ("prefixItems", [self.schema(depth) for _ in range(rng.choice([1, 2]))]),
            ("minItems", rng.randint(0, 2)),
            ("maxItems", rng.randint(0, 3)),
        ]
        return dict(rng.sample(options, rng.choice([1, 2, 3])))

    def _contains(self, depth: int) -> dict:
        rng = self._rng
        found: dict = {"contains": self.schema(depth)}
        if rng.random() < 0.4:
            found["minContains"] = rng.randint(0, 2)
        if rng.random() < 0.4:
            found["maxContains"] = rng.randint(0, 2)
        return found

    def _unique(self, depth: int) -> dict:
        return {"items": {"enum": [1, "a", None, 2]}, "uniqueItems": True}

    def _combined(self, depth: int) -> dict:
        keyword = self._rng.choice(["allOf", "anyOf", "oneOf", "oneOf"])
        return {keyword: [self.schema(depth) for _ in range(self._rng.choice([1, 2, 2, 3]))]}

    def _not(self, depth: int) -> dict:
        return {"not": self.schema(depth)}

    def _if(self, depth: int) -> dict:
        found = {"if": self.schema(depth)}
        found.update({k: self.schema(depth) for k in ("then", "else") if self._rng.random() < 0.7})
        return found

    def _reference(self, depth: int) -> dict:
        return {"$ref": f"#/$defs/{self._rng.choice('pq')}"}

    def _unevaluated(self, depth: int) -> dict:
        keyword = self._rng.choice(["unevaluatedProperties", "unevaluatedItems"])
        return {keyword: self._rng.choice([False, self.schema(min(depth, 1))])}

    MAKERS = (
        _range,
        _step,
        _string,
        _enum,
        _properties,
        _properties,
        _families,
        _members,
        _items,
        _contains,
        _unique,
        _combined,
        _combined,
        _not,
        _if,
        _reference,
        _unevaluated,
    )
