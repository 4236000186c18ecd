"""What the operations of a chat template cost, and the meter of one render that pays for them.

A template is foreign code, and a Python thread cannot be stopped from outside. So every operation that can repeat,
grow or walk a value pays for it *before* it runs, out of a budget that belongs to the render:

- a loop pass, a macro, a call, a filter or a test costs a fixed sum, plus the literal text it would emit;
- text that is joined, compared, searched, formatted or printed costs its length, a container what a full walk of it
  would visit (shared parts are counted each time: nine nested lists of ten can print a billion items);
- what can make much out of little (`*`, `**`, format widths, `replace`, `center`, `indent`, ...) costs what it makes.

A unit is about one byte or some nanoseconds, so one budget bounds time, memory and the output. Filters, and methods
of builtin types, that no chat template needs and whose cost is hard to foresee are in no table here and so not
available. Knows the names of Jinja's filters and tests, not its compiler: that is `sandbox.py`.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from types import MappingProxyType
from typing import Any

from jinja2.exceptions import SecurityError

STEP = 32  # units: what any single operation costs at least
CALL = 128  # units: a call, of a macro above all
SLOT = 8  # units: one reference in a container that is copied
BASE_BUDGET = 16_000_000  # units: half a million steps, one or two seconds
BUDGET_PER_INPUT = 100  # units for each unit of input: a long conversation may take longer
MAX_INT_BITS = 4096
MAX_DIGITS_ROUND = 100
MAX_INDENT = 64  # characters of one level of tojson's indentation, or of one of its separators

MAPPINGS = (dict, MappingProxyType)
CONTAINERS: tuple[Any, ...] = (list, tuple, set, frozenset, type({}.keys()), type({}.values()), type({}.items()))


class BudgetExceeded(SecurityError):
    """The template did more work, or made longer values, than one render may."""


def weight(value: Any, limit: int, indent: int = 0) -> int:
    """Units a full walk of `value` visits, `indent` units more for each node and level; stops early past `limit`."""
    if isinstance(value, str):
        return len(value)
    total = 0
    pending = [(value, 1)]
    while pending:
        item, depth = pending.pop()
        total += STEP + indent * depth
        if isinstance(item, str):
            total += len(item)
        elif isinstance(item, MAPPINGS):
            pending.extend((part, depth + 1) for pair in item.items() for part in pair)
        elif isinstance(item, CONTAINERS):
            pending.extend((part, depth + 1) for part in item)
        elif isinstance(item, range):
            total += STEP * len(item)
        if total > limit:
            break
    return total


class Meter:
    """The budget of one render. Belongs to the thread that renders."""

    __slots__ = ("left",)

    def __init__(self, budget: int) -> None:
        self.left = budget

    def spend(self, units: int) -> None:
        self.left -= units
        if self.left < 0:
            raise BudgetExceeded("the template does too much work or makes too much text")

    def walk(self, *values: Any, indent: int = 0, times: int = 1) -> None:
        """Pay for a full walk of each value."""
        for value in values:
            self.spend(times * weight(value, self.left, indent))

    def each(self, items: Iterator[Any]) -> Iterator[Any]:
        """The same items, each paid for when it is made."""
        for item in items:
            self.spend(STEP)
            yield item


METER: ContextVar[Meter] = ContextVar("meter")


# Costs of what can make much out of little. Each is given the arguments a filter or method gets (its value first).


def positive(number: Any) -> int:
    """A count a template gave, 0 for what is none."""
    return max(0, number) if isinstance(number, int) else 0


def _cost_replace(meter: Meter, text: Any, old: Any = "", new: Any = "", *_: Any, **__: Any) -> None:
    text, old, new = str(text), str(old), str(new)
    meter.spend(len(text) + text.count(old) * len(new))


def _cost_width(meter: Meter, text: Any, width: Any = 80, *_: Any, **__: Any) -> None:
    meter.spend(positive(width))


def _cost_expandtabs(meter: Meter, text: str, tabsize: Any = 8) -> None:
    meter.spend(text.count("\t") * positive(tabsize))


def _cost_join(meter: Meter, items: Any, d: Any = "", *_: Any, **__: Any) -> None:
    meter.spend(len(str(d)) * (len(items) if hasattr(items, "__len__") else 0))


def _cost_str_join(meter: Meter, separator: str, items: Any = ()) -> None:
    _cost_join(meter, items, separator)


def _cost_indent(meter: Meter, text: Any, width: Any = 4, *_: Any, **__: Any) -> None:
    meter.spend((str(text).count("\n") + 2) * (len(width) if isinstance(width, str) else positive(width)))


def cost_printf(meter: Meter, text: Any, *args: Any, **kwargs: Any) -> None:
    """`text % args`: each field may print every argument once."""
    text = str(text)
    named = text.find("%(")  # the name may hold anything, so what follows is looked at as a whole
    if re.search(r"%[^a-zA-Z%]*(\*|\d{4})", text) or (named >= 0 and re.search(r"\*|\d{4}", text[named:])):
        raise BudgetExceeded("a width of four digits or more in a format string")
    meter.walk(args, kwargs, times=1 + text.count("%"))
    meter.spend(1000 * text.count("%"))


def _cost_split(meter: Meter, text: str, sep: Any = None, *_: Any, **__: Any) -> None:
    pieces = text.count(sep) if isinstance(sep, str) and sep else len(text) // 2
    meter.spend(8 * SLOT * pieces)


def _cost_tojson(
    meter: Meter, value: Any, ensure_ascii: Any = False, indent: Any = None, separators: Any = None, *_: Any, **__: Any
) -> None:
    width = len(indent) if isinstance(indent, str) else positive(indent)
    longest = max([width, *(len(str(part)) for part in separators or ())])
    if longest > MAX_INDENT:
        raise BudgetExceeded(f"tojson with an indentation or separator past {MAX_INDENT} characters")
    meter.walk(value, indent=longest)


def _cost_batch(meter: Meter, value: Any, *args: Any, **kwargs: Any) -> None:
    meter.spend(SLOT * sum(map(positive, (*args, *kwargs.values()))))


def _cost_order(meter: Meter, *values: Any, **_: Any) -> None:
    meter.walk(*values, times=16)  # n log n comparisons


def _cost_sum(meter: Meter, value: Any, attribute: Any = None, start: Any = 0) -> None:
    if not isinstance(start, int | float):  # a list here would be copied once for every item
        raise SecurityError("sum adds numbers only")


def _cost_round(meter: Meter, value: Any, precision: Any = 0, *_: Any, **__: Any) -> None:
    if isinstance(precision, int) and abs(precision) > MAX_DIGITS_ROUND:
        raise BudgetExceeded(f"round past {MAX_DIGITS_ROUND} digits")


Cost = Callable[..., None]

# Filters that look at one end or at the length only, and those that pass over the items without looking into them.
CONSTANT_FILTERS = {"attr", "count", "d", "default", "first", "float", "int", "items", "last", "length", "random"}
PASSING_FILTERS = {"batch", "list", "map", "reject", "rejectattr", "reverse", "select", "selectattr", "slice"}
DEEP_FILTERS: dict[str, Cost | None] = {
    "abs": None, "capitalize": None, "center": _cost_width, "dictsort": _cost_order, "e": None, "escape": None,
    "filesizeformat": None, "forceescape": None, "format": cost_printf, "groupby": _cost_order,
    "indent": _cost_indent, "join": _cost_join, "lower": None, "max": _cost_order, "min": _cost_order,
    "replace": _cost_replace, "round": _cost_round, "safe": None, "sort": _cost_order, "string": None,
    "sum": _cost_sum, "title": None, "tojson": _cost_tojson, "trim": None, "truncate": None, "unique": _cost_order,
    "upper": None, "urlencode": None, "wordcount": None,
}  # fmt: skip
PASSING_COSTS: dict[str, Cost] = {"batch": _cost_batch, "slice": _cost_batch}
DEEP_TESTS = {
    "!=", "<", "<=", "==", ">", ">=", "eq", "equalto", "ge", "greaterthan", "gt", "in", "le", "lessthan", "lower", "lt",
    "ne", "upper",
}  # fmt: skip

STR_METHODS: dict[str, Cost | None] = {
    "capitalize": None, "casefold": None, "center": _cost_width, "count": None, "endswith": None,
    "expandtabs": _cost_expandtabs, "find": None, "format": None, "format_map": None, "index": None, "isalnum": None,
    "isalpha": None, "isascii": None, "isdecimal": None, "isdigit": None, "isidentifier": None, "islower": None,
    "isnumeric": None, "isprintable": None, "isspace": None, "istitle": None, "isupper": None,
    "join": _cost_str_join, "ljust": _cost_width, "lower": None, "lstrip": None, "partition": None,
    "removeprefix": None, "removesuffix": None, "replace": _cost_replace, "rfind": None, "rindex": None,
    "rjust": _cost_width, "rpartition": None, "rsplit": _cost_split, "rstrip": None, "split": _cost_split,
    "splitlines": _cost_split, "startswith": None, "strip": None, "swapcase": None, "title": None, "upper": None,
    "zfill": _cost_width,
}  # fmt: skip
METHODS: dict[type, dict[str, Cost | None]] = {
    str: STR_METHODS,
    list: {"append": None, "copy": None, "count": None, "index": None, "pop": None},
    tuple: {"count": None, "index": None},
    dict: {"copy": None, "get": None, "items": None, "keys": None, "values": None},
    int: {"bit_count": None, "bit_length": None, "is_integer": None},
    float: {"is_integer": None},
}


def _passing_cost(meter: Meter, value: Any, name: str) -> None:
    if isinstance(value, str):
        meter.spend(8 * SLOT * len(value))  # a str of its own for every character
    elif hasattr(value, "__len__"):
        meter.spend(SLOT * len(value))


def metered_filter(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    """The filter `run`, paid for before it runs; an iterator it returns is paid for item by item."""
    first = 1 if hasattr(run, "jinja_pass_arg") else 0  # the place of the filtered value
    passing, deep = name in PASSING_FILTERS, name in DEEP_FILTERS
    cost = PASSING_COSTS.get(name) or DEEP_FILTERS.get(name)

    def call(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.spend(STEP)
        if deep:
            if len(args) > first and isinstance(args[first], Iterator):
                args = (*args[:first], list(args[first]), *args[first + 1 :])
            meter.walk(*args[first:], *kwargs.values())
        elif passing and len(args) > first:
            _passing_cost(meter, args[first], name)
        if cost:
            cost(meter, *args[first:], **kwargs)
        found = run(*args, **kwargs)
        return meter.each(found) if isinstance(found, Iterator) else found

    if first:
        call.jinja_pass_arg = run.jinja_pass_arg  # type: ignore[attr-defined]
    return call


def metered_test(name: str, run: Callable[..., Any]) -> Callable[..., Any]:
    first = 1 if hasattr(run, "jinja_pass_arg") else 0
    deep = name in DEEP_TESTS

    def call(*args: Any, **kwargs: Any) -> Any:
        meter = METER.get()
        meter.spend(STEP)
        if deep:
            meter.walk(*args[first:], *kwargs.values())
        return run(*args, **kwargs)

    if first:
        call.jinja_pass_arg = run.jinja_pass_arg  # type: ignore[attr-defined]
    return call
