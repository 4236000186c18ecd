"""Do the arguments of a call fit the tool's schema? For calls that nothing enforced; says what is wrong, in words.

The keywords that models get wrong are looked at: types, required and undeclared members, enumerated values, bounds of
numbers and lengths, along `properties`, `items`, `anyOf`, `oneOf`, `allOf` and references into the schema itself. What
else a schema says is not; nothing that fits is reported.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import Any

MAX_CHECKS = 10_000  # (value, schema) pairs; what is left then counts as fitting

_TYPES: Mapping[str, tuple[type, ...]] = {
    "object": (dict,),
    "array": (list,),
    "string": (str,),
    "boolean": (bool,),
    "null": (type(None),),
    "number": (int, float),
    "integer": (int, float),
}
_LENGTHS = (("minLength", "maxLength", str), ("minItems", "maxItems", list), ("minProperties", "maxProperties", dict))


def problem(arguments: str, schema: Mapping[str, Any]) -> str | None:
    """What is wrong with arguments that are JSON, e.g. `count: must be integer, not "3"`; None: nothing was found."""
    return next(_Check(schema).problems(json.loads(arguments), schema, ""), None)


class _Check:
    def __init__(self, root: Mapping[str, Any]) -> None:
        self._root, self._left = root, MAX_CHECKS

    def problems(self, value: Any, schema: Any, path: str) -> Iterator[str]:
        self._left -= 1
        where = path or "the arguments"
        if schema is False:
            yield f"{where}: must not be there"
        if self._left < 0 or not isinstance(schema, dict):
            return
        if "$ref" in schema:
            yield from self.problems(value, self._target(schema["$ref"]), path)
        if (wrong := _wrong_type(value, schema.get("type"))) is not None:
            yield f"{where}: must be {wrong}, not {_shown(value)}"
            return
        allowed = [schema["const"]] if "const" in schema else schema.get("enum")
        if isinstance(allowed, list) and not any(_same(value, each) for each in allowed):
            yield f"{where}: must be one of {_shown(allowed)}, not {_shown(value)}"
        yield from _bounds(value, schema, where)
        if isinstance(value, dict):
            yield from self._members(value, schema, path)
        elif isinstance(value, list) and isinstance(schema.get("items"), dict | bool):
            for i, each in enumerate(value[len(_list(schema.get("prefixItems"))) :]):
                yield from self.problems(each, schema["items"], f"{path}[{i}]")
        yield from self._combined(value, schema, path)

    def _members(self, value: dict[str, Any], schema: Mapping[str, Any], path: str) -> Iterator[str]:
        known = schema.get("properties")
        known = known if isinstance(known, dict) else {}
        for name in _list(schema.get("required")):
            if name not in value:
                yield f"{_below(path, name)}: is required"
        for name, each in value.items():
            if name in known:
                yield from self.problems(each, known[name], _below(path, name))
            elif "additionalProperties" in schema and not schema.get("patternProperties"):
                if schema["additionalProperties"] is False:
                    yield f"{_below(path, name)}: is not a parameter"
                else:
                    yield from self.problems(each, schema["additionalProperties"], _below(path, name))

    def _combined(self, value: Any, schema: Mapping[str, Any], path: str) -> Iterator[str]:
        for each in _list(schema.get("allOf")):
            yield from self.problems(value, each, path)
        for keyword in ("anyOf", "oneOf"):
            found = [next(self.problems(value, each, path), None) for each in _list(schema.get(keyword))]
            if found and None not in found:
                yield found[0] or ""

    def _target(self, reference: Any) -> Any:
        """What a reference into the schema leads to; True where it leads elsewhere."""
        found: Any = self._root
        if not isinstance(reference, str) or not reference.startswith("#"):
            return True
        for step in reference[1:].split("/")[1:]:
            step = step.replace("~1", "/").replace("~0", "~")
            if not isinstance(found, dict) or step not in found:
                return True
            found = found[step]
        return found


def _wrong_type(value: Any, wanted: Any) -> str | None:
    """The types there may be, where the value has none of them."""
    kinds = [wanted] if isinstance(wanted, str) else _list(wanted)
    if not kinds or not all(isinstance(kind, str) and kind in _TYPES for kind in kinds):
        return None
    return None if any(_is(value, kind) for kind in kinds) else " or ".join(kinds)


def _is(value: Any, kind: str) -> bool:
    if isinstance(value, bool):
        return kind == "boolean"
    if kind == "integer" and isinstance(value, float):
        return value.is_integer()
    return isinstance(value, _TYPES[kind])


def _same(value: Any, other: Any) -> bool:
    return value == other and isinstance(value, bool) == isinstance(other, bool)


def _bounds(value: Any, schema: Mapping[str, Any], where: str) -> Iterator[str]:
    if isinstance(value, int | float) and not isinstance(value, bool):
        for keyword, fits, words in (
            ("minimum", lambda bound: value >= bound, "at least"),
            ("maximum", lambda bound: value <= bound, "at most"),
            ("exclusiveMinimum", lambda bound: value > bound, "above"),
            ("exclusiveMaximum", lambda bound: value < bound, "below"),
        ):
            bound = schema.get(keyword)
            if type(bound) in (int, float) and not fits(bound):
                yield f"{where}: must be {words} {bound}, not {_shown(value)}"
    for low, high, kind in _LENGTHS:
        if isinstance(value, kind):
            least, most = schema.get(low), schema.get(high)
            if type(least) is int and len(value) < least:
                yield f"{where}: must have at least {least} entries, not {len(value)}"
            if type(most) is int and len(value) > most:
                yield f"{where}: must have at most {most} entries, not {len(value)}"


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _below(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _shown(value: Any) -> str:
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= 80 else text[:80] + "..."
