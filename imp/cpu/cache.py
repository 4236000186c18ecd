"""The backend's kernels as machine code (../machine_code.py): every one depends on all sources of this package."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ..machine_code import MachineCode
from .emit import compiling_for

Progress = Callable[[int, int], None]  # kernels ready, kernels wanted

COUNT_SIGNATURE = "int64(int64, int64)"
KERNEL_SIGNATURE = "void(int64, int64, int64, int64)"


class CompiledKernels(MachineCode):
    """Machine code for `features`: one of variants.variants()."""

    def __init__(self, folder: Path, features: str) -> None:
        sources = Path(__file__).parent.glob("*.py")
        super().__init__(folder, sources, features, lambda: compiling_for(features))


def compile_all(kernels: CompiledKernels, wanted: Sequence[Any], progress: Progress | None = None) -> dict[Any, int]:
    """Addresses of kernels and their counts."""
    parts = dict.fromkeys(part for kernel in wanted for part in (kernel, kernel.count))
    addresses = {}
    for i, part in enumerate(parts):
        signature = KERNEL_SIGNATURE if hasattr(part, "count") else COUNT_SIGNATURE
        addresses[part] = kernels.address(part.name, part.body, signature)
        if progress:
            progress(i + 1, len(parts))
    return addresses
