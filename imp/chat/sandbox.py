"""The Jinja sandbox of chat templates: what a template may touch, with every operation metered.

As transformers sets Jinja up (trimmed blocks, loop controls, generation blocks, its own `tojson`, nothing mutable but
lists, which public templates do append to), so that a public template writes here what it writes there. What each
operation costs is `costs.py`'s; this file puts the payments where the operations are: into the compiled code, around
filters and tests, and at the sandbox's hooks.
Knows nothing of messages, models or requests.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterator, Mapping
from types import BuiltinMethodType
from typing import Any

import jinja2.ext
from jinja2 import nodes, pass_context
from jinja2.compiler import CodeGenerator, Frame
from jinja2.exceptions import SecurityError, TemplateError
from jinja2.parser import Parser
from jinja2.runtime import Context, LoopContext, Macro, markup_join, str_join
from jinja2.sandbox import ImmutableSandboxedEnvironment, SandboxedEscapeFormatter, SandboxedFormatter
from jinja2.utils import Namespace
from markupsafe import Markup

from imp.chat.costs import (
    CALL,
    CONSTANT_FILTERS,
    DEEP_FILTERS,
    MAX_INT_BITS,
    METER,
    METHODS,
    PASSING_FILTERS,
    SLOT,
    STEP,
    STR_METHODS,
    BudgetExceeded,
    cost_printf,
    metered_filter,
    metered_test,
    positive,
)


class Refused(TemplateError):
    """The template called `raise_exception`: it does not accept this conversation."""


def tojson(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | str | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """`json.dumps` as chat templates expect it: plain text, nothing escaped for HTML."""
    return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys)


def raise_exception(message: Any = "") -> None:
    raise Refused(str(message))


class TemplateDict:
    """`dict` as templates may use it; the type itself would be a way into Python."""

    def __call__(self, *args: Any, **kwargs: Any) -> dict[Any, Any]:
        return dict(*args, **kwargs)

    def fromkeys(self, keys: Any, value: Any = None) -> dict[Any, Any]:
        return dict.fromkeys(keys, value)


class TemplateNamespace(Namespace):
    """`namespace()` whose names cannot start with an underscore, and which prints as nothing but its kind."""

    def __init__(*args: Any, **kwargs: Any) -> None:
        # no parameter is called self: a template may name a value so
        Namespace.__init__(args[0])
        for name, value in dict(*args[1:], **kwargs).items():
            args[0][name] = value

    def __setitem__(self, name: str, value: Any) -> None:
        if name.startswith("_"):
            raise SecurityError(f"a name in a namespace cannot start with an underscore: {name!r}")
        super().__setitem__(name, value)

    def __repr__(self) -> str:
        return "<namespace>"  # its values would be printed in full, each time


class GenerationBlock(jinja2.ext.Extension):
    """`{% generation %}...{% endgeneration %}`: marks what the model says, for training. Here its body is just text."""

    tags = {"generation"}  # noqa: RUF012

    def parse(self, parser: Parser) -> nodes.Node:
        line = next(parser.stream).lineno
        body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
        return nodes.CallBlock(self.call_method("_body"), [], [], body).set_lineno(line)

    def _body(self, caller: Macro) -> str:
        return caller()


class MeteredCode(CodeGenerator):
    """Puts the meter around the operators Jinja compiles to plain Python."""

    def visit_Operand(self, node: nodes.Operand, frame: Frame) -> None:
        """Right sides of comparisons: neither `==` nor `in` looks at more than there is on the right."""
        if isinstance(node.expr, nodes.Const):
            super().visit_Operand(node, frame)
        else:
            metered = nodes.Operand(node.op, _Around("environment.weigh", node.expr))
            super().visit_Operand(metered, frame)

    def visit_Concat(self, node: nodes.Concat, frame: Frame) -> None:
        self.write("environment.concatenate(context, (")
        for part in node.nodes:
            self.visit(part, frame)
            self.write(", ")
        self.write("))")

    def visit_Getitem(self, node: nodes.Getitem, frame: Frame) -> None:
        if isinstance(node.arg, nodes.Slice):
            node = nodes.Getitem(_Around("environment.copying", node.node), node.arg, node.ctx)
        super().visit_Getitem(node, frame)

    def visit_Dict(self, node: nodes.Dict, frame: Frame) -> None:
        pairs = [nodes.Pair(_Around("environment.weigh", pair.key), pair.value) for pair in node.items]
        super().visit_Dict(nodes.Dict(pairs), frame)

    def visit__Around(self, node: _Around, frame: Frame) -> None:
        self.write(f"{node.function}(")
        self.visit(node.node, frame)
        self.write(")")


class _Around:
    """An expression inside a call of the environment. Jinja forbids new node types, but its visitor goes by name."""

    def __init__(self, function: str, node: nodes.Expr) -> None:
        self.function, self.node = function, node


REPEATED = (nodes.For, nodes.Macro, nodes.CallBlock, nodes.Block)  # what may run more often than it is written


def _literal_length(body: list[nodes.Node]) -> int:
    """Characters of literal text that one pass of `body` emits; parts that are repeated on their own pay themselves."""
    total, pending = 0, list(body)
    while pending:
        node = pending.pop()
        if isinstance(node, nodes.TemplateData):
            total += len(node.data)
        if not isinstance(node, REPEATED):
            pending.extend(node.iter_child_nodes())
    return total


def _insert_payments(tree: nodes.Template) -> None:
    for node in list(tree.find_all(REPEATED)):
        line = node.lineno
        body: list[nodes.Node] = node.body  # type: ignore[attr-defined]
        price = STEP + _literal_length(body + getattr(node, "else_", []))
        # an environment attribute is compiled to `environment.` and its name, here a call
        payment = nodes.ExprStmt(nodes.EnvironmentAttribute(f"spend({price})", lineno=line), lineno=line)
        body.insert(0, payment)
        if isinstance(node, nodes.For) and node.test is not None:
            paid = nodes.EnvironmentAttribute(f"spend({STEP})", lineno=line)
            node.test = nodes.And(paid, node.test, lineno=line)


class _Formatter(SandboxedFormatter):
    """`str.format` whose fields pay for what they print."""

    def format_field(self, value: Any, format_spec: str) -> Any:
        if re.search(r"\d{4}", format_spec):
            raise BudgetExceeded("a width of four digits or more in a format string")
        METER.get().walk(value)
        METER.get().spend(1000)
        return super().format_field(value, format_spec)

    def convert_field(self, value: Any, conversion: Any) -> Any:
        METER.get().walk(value)
        return super().convert_field(value, conversion)


class _EscapeFormatter(_Formatter, SandboxedEscapeFormatter):
    pass


class MeteredEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox. Compiles without a meter; whatever runs needs one in METER."""

    code_generator_class = MeteredCode
    intercepted_binops = frozenset(("+", "-", "*", "/", "//", "**", "%"))

    def __init__(self) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=[GenerationBlock, jinja2.ext.loopcontrols],
            finalize=_printed,
            optimized=False,  # nothing of the template runs while it is compiled
        )
        self.filters["tojson"] = tojson
        allowed = CONSTANT_FILTERS | PASSING_FILTERS | DEEP_FILTERS.keys()
        self.filters = {name: metered_filter(name, run) for name, run in self.filters.items() if name in allowed}
        tests: dict[str, Any] = self.tests
        self.tests = {name: metered_test(name, run) for name, run in tests.items()}
        del self.globals["lipsum"]
        self.globals |= {"dict": TemplateDict(), "namespace": TemplateNamespace, "raise_exception": raise_exception}

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        _insert_payments(source)
        return super()._generate(source, *args, **kwargs)

    # Called by the compiled template.

    def spend(self, units: int) -> bool:
        METER.get().spend(units)
        return True

    def weigh(self, value: Any) -> Any:
        METER.get().walk(value)
        return value

    def copying(self, value: Any) -> Any:
        """A slice of `value` is about to be taken."""
        METER.get().spend(SLOT * len(value) if hasattr(value, "__len__") else 0)
        return value

    def concatenate(self, context: Context, parts: tuple[Any, ...]) -> str:
        METER.get().walk(parts)
        return markup_join(parts) if context.eval_ctx.autoescape else str_join(parts)

    # Hooks of the sandbox.

    def call_binop(self, context: Context, operator: str, left: Any, right: Any) -> Any:
        meter = METER.get()
        if isinstance(left, str | list | tuple) or isinstance(right, str | list | tuple):
            if operator == "*":
                sequence, times = (right, left) if isinstance(left, int) else (left, right)
                unit = 1 if isinstance(sequence, str) else SLOT
                meter.spend(unit * len(sequence) * positive(times) if hasattr(sequence, "__len__") else 0)
            elif operator == "+":
                for side in (left, right):
                    meter.spend(len(side) * (1 if isinstance(side, str) else SLOT) if hasattr(side, "__len__") else 0)
            elif operator == "%":
                meter.walk(left)
                cost_printf(meter, left, right)
        elif isinstance(left, int) and isinstance(right, int):
            bits = max(left.bit_length(), right.bit_length())
            if operator == "**":
                bits = left.bit_length() * abs(right)
            if bits > MAX_INT_BITS:
                raise BudgetExceeded(f"a number of more than {MAX_INT_BITS} bits")
        return super().call_binop(context, operator, left, right)

    def getitem(self, obj: Any, argument: Any) -> Any:
        if isinstance(argument, tuple):
            METER.get().walk(argument)  # it is hashed
        return super().getitem(obj, argument)

    def is_safe_attribute(self, obj: Any, attr: str, value: Any) -> bool:
        if isinstance(value, BuiltinMethodType) and not isinstance(obj, Markup):
            return any(isinstance(obj, kind) and attr in names for kind, names in METHODS.items())
        if isinstance(obj, Markup):
            return attr in STR_METHODS
        return super().is_safe_attribute(obj, attr, value)

    def wrap_str_format(self, value: Any) -> Callable[..., str] | None:
        """`str.format` and `format_map` with metered fields, taken at access as the sandbox does."""
        owner = getattr(value, "__self__", None)
        name = getattr(value, "__name__", None)
        if not isinstance(owner, str) or name not in ("format", "format_map"):
            return None
        formatter = _EscapeFormatter(self, escape=owner.escape) if isinstance(owner, Markup) else _Formatter(self)

        def format_text(*args: Any, **kwargs: Any) -> str:
            METER.get().walk(owner)
            return type(owner)(formatter.vformat(owner, args, kwargs))

        def format_map(mapping: Mapping[str, Any]) -> str:
            METER.get().walk(owner)
            return type(owner)(formatter.vformat(owner, (), mapping))

        return format_text if name == "format" else format_map

    def call(__self, __context: Context, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        # macros and recursive loops pass their arguments on; everything else may look at all of them
        meter = METER.get()
        meter.spend(CALL + SLOT * (len(args) + len(kwargs)))
        if not isinstance(__obj, Macro | LoopContext):
            owner = getattr(__obj, "__self__", None)
            if isinstance(owner, str):
                args = tuple(list(arg) if isinstance(arg, Iterator) else arg for arg in args)
                meter.spend(len(owner))
                cost = STR_METHODS.get(__obj.__name__)
                if cost:
                    cost(meter, owner, *args, **kwargs)
            elif isinstance(owner, list | tuple):
                meter.walk(owner)
            elif isinstance(owner, dict) and __obj.__name__ == "copy":
                meter.spend(SLOT * len(owner))
            meter.walk(*args, *kwargs.values())
        return super().call(__context, __obj, *args, **kwargs)


@pass_context
def _printed(context: Context, value: Any) -> Any:
    """Every printed expression passes here. Asking for the context also keeps Jinja from printing while it compiles."""
    METER.get().walk(value)
    return value
