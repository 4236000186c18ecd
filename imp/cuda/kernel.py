"""One launcher for all kernels, whoever compiled them: arguments packed as C lays them out, handed over in place."""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cuda.bindings import driver as cu

from .driver import Module, Stream, check

Grid = tuple[int, int, int]


class Kernel:
    """A kernel of a module with its launch shape.

    signature: a letter of `struct` for each parameter in order: P an address, i int32, q int64, f float32.
    """

    def __init__(self, module: Module, name: str, signature: str, threads: int, shared_bytes: int = 0) -> None:
        self.name = name
        self.threads, self.shared_bytes = threads, shared_bytes
        self._module = module  # keeps the code loaded
        self._function = module.function(name, shared_bytes)
        self._layout = struct.Struct(f"@{signature}")
        self._memory = ctypes.create_string_buffer(max(self._layout.size, 1))
        base = ctypes.addressof(self._memory)
        places = [base + _offset(signature, i) for i in range(len(signature))]
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


def _offset(signature: str, index: int) -> int:
    """Where C puts parameter `index`: after those before it, aligned to its own size."""
    return struct.calcsize(f"@{signature[:index]}0{signature[index]}")
