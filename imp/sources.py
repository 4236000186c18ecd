"""How settings are read: words, TOML and argv into values of their fields' types. Knows no setting by name.

A table of settings is `{"section.key": dataclass field}`; the fields are made by `setting`.
"""

from __future__ import annotations

import argparse
import dataclasses
import difflib
import tomllib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from types import MappingProxyType
from typing import Any

Table = Mapping[str, dataclasses.Field]


class SettingsError(Exception):
    """A flag, variable or config file that cannot be used: one sentence, and the process's exit code."""

    def __init__(self, message: str, exit_code: int = 1):
        super().__init__(message)
        self.exit_code = exit_code


def setting(
    default: Any,
    help: str,
    *,
    flag: str | None = None,
    metavar: str | None = None,
    low: float | None = None,
    high: float | None = None,
    choices: Sequence[str] | None = None,
    check: Callable[[Any], object] | None = None,
    secret: bool = False,
    switches: Mapping[str, str] = MappingProxyType({}),
) -> Any:
    """A field of a settings dataclass.  check: raises ValueError, whose text is shown.  secret: never printed.
    switches: flags without a value, each for one value of the setting."""
    meta = {"help": help, "flag": flag, "metavar": metavar, "low": low, "high": high, "choices": choices}
    return field(default=default, metadata=meta | {"check": check, "secret": secret, "switches": switches})


def flag_of(f: dataclasses.Field, value: Any) -> str:
    """The flag that gives a setting this value."""
    return next((flag for flag, chosen in f.metadata["switches"].items() if chosen == value), f.metadata["flag"])


@dataclass(frozen=True, slots=True)
class Absent:
    """Something that can be asked for and is not there. `harmless` values ask for what is the case anyway."""

    name: str  # a key, or a flag
    feature: str
    harmless: tuple[object, ...] = ()


# -- values ------------------------------------------------------------------------------------------------------------


def convert(name: str, f: dataclasses.Field, value: Any) -> Any:
    """A flag's or variable's string, or a TOML value, as the field's type; refused with what is allowed.

    name: what to call it in the refusal.
    """
    kind = str(f.type).split(" |")[0]
    try:
        converted = _KINDS[kind](value)
    except (ValueError, TypeError):
        raise SettingsError(f"{name} must be {_NOUNS[kind]}, not {value!r}") from None
    low, high, choices, check = (f.metadata[key] for key in ("low", "high", "choices", "check"))
    if choices and converted not in choices:
        raise SettingsError(f"{name} must be one of {', '.join(choices)}, not {value!r}")
    if (low is not None and converted < low) or (high is not None and converted > high):
        bounds = f"at least {low}" if high is None else f"between {low} and {high}"
        raise SettingsError(f"{name} must be {bounds}, not {value!r}")
    if check is not None:
        try:
            check(converted)
        except ValueError as error:
            raise SettingsError(f"{name}: {error}") from None
    return converted


def _integer(value: Any) -> int:
    if isinstance(value, bool | float):
        raise TypeError
    return int(value)


def _number(value: Any) -> float:
    if isinstance(value, bool):
        raise TypeError
    number = float(value)
    if number != number or number in (float("inf"), float("-inf")):
        raise ValueError
    return number


def _text(value: Any) -> str:
    if not isinstance(value, str):
        raise TypeError
    return value


def _truth(value: Any) -> bool:
    if isinstance(value, bool):
        return value
    word = _text(value).lower()
    if word not in _TRUE + _FALSE:
        raise ValueError
    return word in _TRUE


def _texts(value: Any) -> tuple[str, ...]:
    """A list as it is; text is split at commas and spaces."""
    if isinstance(value, str):
        return tuple(value.replace(",", " ").split())
    return tuple(_text(item) for item in value)


_TRUE, _FALSE = ("true", "1", "yes", "on"), ("false", "0", "no", "off")
_KINDS: dict[str, Any] = {
    "int": _integer,
    "float": _number,
    "bool": _truth,
    "str": _text,
    "Path": lambda value: Path(_text(value)).expanduser(),
    "tuple[str, ...]": _texts,
}
_NOUNS = {
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "str": "text",
    "Path": "a path",
    "tuple[str, ...]": "text or a list of texts",
}

# -- sources -----------------------------------------------------------------------------------------------------------


def assignments(words: Iterable[str], source: str, table: Table, absent: Iterable[Absent] = ()) -> dict[str, Any]:
    """`section.key=value` words -> {section.key: value}; an unknown key is refused with the nearest known one."""
    out = {}
    missing = {each.name: each for each in absent}
    for word in words:
        key, equals, value = word.partition("=")
        if not equals:
            raise SettingsError(f"{source}: {word!r} is not of the form section.key=value")
        if key in missing:
            refuse_absent(f"{source}: {key}", value, missing[key])
        elif key not in table:
            raise SettingsError(f"{source}: unknown key {key!r}" + nearest(key, [*table, *missing]))
        else:
            out[key] = value
    return out


def read_config(path: Path, table: Table, absent: Iterable[Absent], warn: Callable[[str], None]) -> dict[str, Any]:
    """Keys of a TOML file; unknown ones are warned about and left out, so that one file serves several versions."""
    try:
        tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise SettingsError(f"config file {path}: {error}") from None
    except OSError as error:
        raise SettingsError(f"config file {path} cannot be read: {error.strerror}", 4) from None
    out = {}
    missing = {each.name: each for each in absent}
    for section, values in tree.items():
        for key, value in values.items() if isinstance(values, dict) else [("", values)]:
            name = f"{section}.{key}" if key else section
            if name in table:
                out[name] = value
            elif name in missing:
                refuse_absent(f"config file {path}: {name}", value, missing[name])
            else:
                warn(f"config file {path}: unknown key {name!r} is ignored" + nearest(name, [*table, *missing]))
    return out


def refuse_absent(name: str, value: Any, absent: Absent) -> None:
    """SettingsError unless `value` asks for nothing."""
    word = value.lower() if isinstance(value, str) else str(value).lower()
    if word not in {str(each).lower() for each in absent.harmless}:
        raise SettingsError(f"{name} is not possible: this server has no {absent.feature}", exit_code=6)


def nearest(word: str, known: Iterable[str]) -> str:
    """`; did you mean 'x'?`, or nothing where no known word is near."""
    near = difflib.get_close_matches(word, list(known), 1)
    return f"; did you mean {near[0]!r}?" if near else ""


class Parser(argparse.ArgumentParser):
    """The command line; every mistake is a SettingsError."""

    def error(self, message: str) -> Any:
        raise SettingsError(message)

    def read(self, argv: Sequence[str]) -> dict[str, Any]:
        """What was given, by destination."""
        given, unknown = self.parse_known_args(argv)
        if unknown:
            flag = unknown[0].partition("=")[0]
            hint = nearest(flag, self._option_string_actions) if flag.startswith("-") else ""
            raise SettingsError(f"unknown argument {unknown[0]!r}{hint}")
        return vars(given)


def add_flags(group: Any, key: str, f: dataclasses.Field) -> None:
    """Add the flags of a setting to a group of a parser; their destination is the key."""
    if f.metadata["flag"]:
        _add_flag(group, key, f)
    if f.metadata["switches"]:
        either = group.add_mutually_exclusive_group()
        for flag, value in f.metadata["switches"].items():
            either.add_argument(flag, dest=key, action="store_const", const=value, help=f"the same as {key}={value}")


def _add_flag(group: Any, key: str, f: dataclasses.Field) -> None:
    shown = "" if f.default in (None, (), False) else f" (default {f.default})"
    options: dict[str, Any] = {"dest": key, "help": (f.metadata["help"] + shown).replace("%", "%%")}
    if f.type == "bool":
        options["action"] = argparse.BooleanOptionalAction if f.default else "store_true"
    elif f.type == "tuple[str, ...]":
        options |= {"action": "append", "metavar": f.metadata["metavar"]}
    else:
        options |= {"metavar": f.metadata["metavar"] or ("|".join(f.metadata["choices"] or ()) or f.name.upper())}
    group.add_argument(f.metadata["flag"], **options)
