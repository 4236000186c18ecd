"""One launcher for all kernels, whoever compiled them: arguments packed as C lays them out, handed over in place."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cuda.bindings import driver as cu

from .driver import MAP_BYTES, Module, Stream, check

Grid = tuple[int, int, int]
MAP_ALIGNMENT = 64  # of a CUtensorMap


class Kernel:
    """A kernel of a module with its launch shape.

    signature: a letter of `struct` for each parameter in order: P an address, i int32, q int64, f float32; or M for a
    map of `driver.tensor_map`.
    """

    def __init__(self, module: Module, name: str, signature: str, threads: int, shared_bytes: int = 0) -> None:
        self.name = name
        self.threads, self.shared_bytes = threads, shared_bytes
        self._module = module  # keeps the code loaded
        self._function = module.function(name, shared_bytes)
        offsets, self._layout = laid_out(signature)
        self._memory = ctypes.create_string_buffer(max(self._layout.size, 1))
        base = ctypes.addressof(self._memory)
        places = [base + offset for offset in offsets]
        self._places = (ctypes.c_void_p * max(len(places), 1))(*places)
        self._arguments = ctypes.addressof(self._places)

    def launch(self, stream: Stream, grid: Grid, *arguments: Any) -> None:
        """Put it on the stream. The driver copies the arguments before this returns; capturing bakes them in."""
        self._layout.pack_into(self._memory, 0, *arguments)
        status = cu.cuLaunchKernel(
            self._function, *grid, self.threads, 1, 1, self.shared_bytes, stream.handle, self._arguments, 0
        )
        if status[0]:
            check(status)


def laid_out(signature: str) -> tuple[list[int], struct.Struct]:
    """Where C puts each parameter, after those before it and aligned to its own size, and what packs them like that."""
    form, offsets = "=", []
    for letter in signature:
        size, alignment = (MAP_BYTES, MAP_ALIGNMENT) if letter == "M" else (struct.calcsize(f"@{letter}"),) * 2
        end = struct.calcsize(form)
        form += f"{-end % alignment}x"
        offsets.append(struct.calcsize(form))
        form += {"M": f"{size}s", "P": "Q"}.get(letter, letter)
    return offsets, struct.Struct(form)
