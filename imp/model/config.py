"""Typed reads from a model's config. What is missing or of a wrong type is an invalid model; what we do not compute
is refused by name, never ignored."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..weights.checkpoint import ContextTooLong, InvalidModel
from ..weights.checkpoint import UnsupportedModel as Unsupported

_MISSING: Any = object()


class Config:
    """A view of one JSON object. `null` counts as absent. `where` names it in errors."""

    def __init__(self, values: Mapping[str, Any], where: str = "config"):
        self.values, self.where = values, where

    def __contains__(self, key: str) -> bool:
        return self.values.get(key) is not None

    def _get(self, key: str, default: Any, kinds: tuple[type, ...], what: str) -> Any:
        value = self.values.get(key)
        if value is None:
            if default is _MISSING:
                raise InvalidModel(f'{self.where} lacks "{key}"')
            return default
        if not isinstance(value, kinds) or (isinstance(value, bool) and bool not in kinds):
            raise InvalidModel(f'{self.where}: "{key}" must be {what}, not {value!r:.60}')
        return value

    def integer(self, key: str, default: Any = _MISSING, low: int = 1) -> int:
        value = self._get(key, default, (int,), "an integer")
        if value is not None and value is not default and value < low:
            raise InvalidModel(f'{self.where}: "{key}" must be at least {low}, not {value}')
        return value

    def number(self, key: str, default: Any = _MISSING) -> float:
        value = self._get(key, default, (int, float), "a number")
        return float(value) if isinstance(value, int) else value

    def text(self, key: str, default: Any = _MISSING) -> str:
        return self._get(key, default, (str,), "a string")

    def flag(self, key: str, default: bool = False) -> bool:
        return self._get(key, default, (bool,), "true or false")

    def mapping(self, key: str) -> Mapping[str, Any] | None:
        return self._get(key, None, (Mapping,), "an object")

    def require(self, key: str, *allowed: Any) -> None:
        """Refuse a value we do not compute; an absent key passes."""
        if key in self and self.values[key] not in allowed:
            known = ", ".join(repr(value) for value in allowed)
            raise Unsupported(f'{self.where}: "{key}" = {self.values[key]!r:.60} is not supported (supported: {known})')


def positions(wanted: int, context: int) -> int:
    """How many positions a model is built for: those wanted, or where that is 0 all of its context. What lies past
    that it was never trained to tell apart: raises ContextTooLong."""
    if wanted > context:
        raise ContextTooLong(f"a context of {wanted} tokens is asked for, but the model was made for {context}")
    return wanted or context
