"""Who may import whom. A red line here means that code stands in the wrong place; do not widen the table for it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1] / "imp"

# layer -> layers it may import, its own always included. A layer is a package, a module of the top package, or the
# program of a package (`python -m imp.PACKAGE`), which stands above it.
ALLOWED: dict[str, set[str]] = {
    "types": set(),
    "sources": set(),
    "absent": {"sources"},
    "keys": set(),
    "spare_time": set(),
    "garbage": set(),
    "settings": {"__init__", "sources", "absent"},
    "control_groups": set(),
    "memory": {"control_groups"},
    "models": set(),
    "processor": set(),
    "object_code": set(),
    "jit": set(),
    "compiling": {"jit"},
    "machine_code": {"processor", "object_code", "compiling"},
    "adapters": {"memory", "model", "weights"},
    "huge_pages": set(),
    "text": {"types"},
    "weights": {"types"},
    "obs": {"types"},
    "constrain": {"types", "jit", "machine_code", "huge_pages"},
    "constrain.__main__": {"constrain", "encoder", "settings", "text", "weights"},
    "sched": {"types", "text"},
    "tiers": {"types", "sched"},
    "speculate": {"types", "jit", "machine_code"},
    "model": {"types", "weights"},
    "cpu": {"types", "weights", "model", "jit", "machine_code", "processor", "huge_pages"},
    "cuda": {"types", "weights", "model"},
    "chat": {"types", "text", "constrain"},
    "chat.__main__": {"chat", "encoder", "text", "weights"},
    "engine": {"types", "sched"},
    "beside": set(),
    "encoder": {"beside", "text", "weights"},
    "http": {"__init__", "types", "chat", "obs", "spare_time"},
    "facts": {"types", "settings", "chat", "constrain", "text", "weights", "model"},
    "keeping": {"settings", "memory", "model", "sched", "tiers"},
    "bundle": {"types", "beside", "settings", "memory", "adapters", "chat", "constrain", "text", "weights", "model", "sched", "speculate", "cpu",
        "cuda", "encoder", "facts", "keeping", "tiers",
    },
    "script": {"types", "settings", "memory", "chat", "text", "weights", "sched", "facts", "bundle"},
    "readings": {"memory", "adapters", "engine", "sched", "obs"},
    "resident": {"settings", "memory", "adapters", "models", "bundle", "encoder", "engine", "readings", "http", "obs", "text", "tiers", "weights"},
    "app": {"resident",
        "beside",
        "__init__",
        "script",
        "settings",
        "garbage",
        "keys",
        "memory",
        "models",
        "bundle",
        "encoder",
        "engine",
        "readings",
        "http",
        "obs",
        "text",
        "tiers",
        "weights",
    },
    "check": {"types", "settings", "keys", "memory", "chat", "text", "bundle", "app"},
    "__main__": {"settings", "models", "beside", "app", "check"},
    "docs": {"chat", "absent", "settings", "http", "obs", "constrain"},
    "__init__": set(),
}
FORBIDDEN_LIBRARIES: dict[str, set[str]] = {
    "sched": {"numpy", "json", "threading", "asyncio", "time"},
    "http": {"numpy", "numba"},
    "chat": {"numpy", "numba"},
    "model": {"json", "numba"},
    "types": {"numpy"},
}
FILES = sorted(ROOT.rglob("*.py"))


def layer_of(path: Path) -> str:
    first, *rest = path.relative_to(ROOT).parts
    return f"{first}.__main__" if rest == ["__main__.py"] else first.removesuffix(".py")


def imports(path: Path) -> list[str]:
    """Absolute dotted names of everything a file imports, wherever in it."""
    package = ["imp", *path.relative_to(ROOT).parts[:-1]]
    names = []
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names += [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) - node.level + 1] if node.level else []
            stem = ".".join([*base, *([node.module] if node.module else [])])
            names += [f"{stem}.{alias.name}" for alias in node.names]
    return names


@pytest.mark.parametrize("path", FILES, ids=lambda path: str(path.relative_to(ROOT)))
def test_imports_point_down(path):
    layer = layer_of(path)
    for name in imports(path):
        head, *rest = name.split(".")
        if head == "imp":
            target = rest[0] if rest else "__init__"
            target = target if target in ALLOWED else "__init__"  # `from imp import __version__`
            assert target == layer or target in ALLOWED[layer], f"{layer} must not import {target} ({name})"
        else:
            assert head not in FORBIDDEN_LIBRARIES.get(layer, ()), f"{layer} must not import {head}"


def test_every_layer_is_in_the_table():
    assert {layer_of(path) for path in FILES} == set(ALLOWED)


def test_only_settings_reads_the_environment():
    readers = {layer_of(p) for p in FILES if "os.environ" in (text := p.read_text()) or "getenv" in text}
    assert readers <= {"settings"}


def test_a_backend_is_imported_in_the_bundle_alone():
    importers = {layer_of(path) for path in FILES if any(name.startswith("imp.cpu") for name in imports(path))}
    assert importers <= {"cpu", "bundle"}


def test_the_compiler_is_imported_by_what_compiles_alone():
    """A start that finds all its kernels on disk has no time for Numba: `from imp.jit import njit` instead."""
    compiling = {ROOT / "compiling.py", ROOT / "cpu" / "numba_types.py", ROOT / "cuda" / "kernels" / "edit.py"}
    for path in set(FILES) - compiling:
        for node in ast.parse(path.read_text()).body:
            names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
            names += [node.module or ""] if isinstance(node, ast.ImportFrom) else []
            early = [name for name in names if name.startswith(("numba", "llvmlite.binding"))]
            assert not early, f"{path.relative_to(ROOT)} imports {early[0]}"


def test_no_module_keeps_mutable_state():
    """Module-level names bound to empty containers are state in the making; tables are written with their content."""
    process_wide = {ROOT / "machine_code.py"}  # loaded machine code belongs to the process, as LLVM's engine does
    for path in set(FILES) - process_wide:
        for node in ast.parse(path.read_text()).body:
            value = node.value if isinstance(node, ast.Assign | ast.AnnAssign) else None
            empty = (isinstance(value, ast.Dict) and not value.keys) or (isinstance(value, ast.List) and not value.elts)
            assert not empty, f"{path.relative_to(ROOT)}:{node.lineno} binds an empty container at module level"
