"""All formats there are."""

from __future__ import annotations

import importlib
import pkgutil

from imp.chat import formats
from imp.chat.formats.base import Format


def found() -> list[tuple[Format, tuple[str, ...]]]:
    """Every format and the marks of the templates that it is known by."""
    names = sorted(module.name for module in pkgutil.iter_modules(formats.__path__))
    modules = [importlib.import_module(f"{formats.__name__}.{name}") for name in names]
    return [(module.FORMAT, module.TEMPLATE_MARKS) for module in modules if hasattr(module, "FORMAT")]


FORMATS = found()
