"""Which processor this is, and what it can do: by what Linux says of it, elsewhere by LLVM."""

from __future__ import annotations

import os
from functools import cache
from pathlib import Path

_CPUINFO = Path("/proc/cpuinfo")
_KIND = ("vendor_id", "cpu family", "model", "CPU implementer", "CPU architecture", "CPU variant", "CPU part")
_ABILITIES = ("flags", "Features")  # of x86, of ARM
_IN_LINUX = {"avx512vnni": "avx512_vnni", "avxvnni": "avx_vnni"}  # LLVM's words that differ by more than a dash


def machine() -> str:
    """x86_64, aarch64 or another."""
    name = os.uname().machine
    return {"arm64": "aarch64"}.get(name, name)


@cache
def features() -> frozenset[str]:
    """What it can do, in the words of Linux: avx2, avx512_vnni, amx_int8 ..."""
    described = _described()
    for name in _ABILITIES:
        if name in described:
            return frozenset(described[name].split())
    import llvmlite.binding as llvm

    there = (name for name, has in llvm.get_host_cpu_features().items() if has)
    return frozenset(_IN_LINUX.get(name, name.replace("-", "_")) for name in there)


@cache
def identity() -> tuple[str, ...]:
    """Equal where code that was made for the one processor can be no other than code made for the other."""
    kind = [value for name, value in _described().items() if name in _KIND]
    if not kind:
        import llvmlite.binding as llvm

        kind = [llvm.get_host_cpu_name()]
    return (machine(), *kind, *sorted(features()))


@cache
def _described() -> dict[str, str]:
    """Of the first processor; empty on other systems."""
    try:
        first = _CPUINFO.read_text().partition("\n\n")[0]
    except OSError:
        return {}
    pairs = (line.partition(":") for line in first.splitlines())
    return {name.strip(): value.strip() for name, _, value in pairs}
