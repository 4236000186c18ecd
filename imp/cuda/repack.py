"""Weights brought into the kernels' order on the device: the bytes of the file go up as they are (kernels/repack.cu).
What is not among its formats the host packs (layouts.py), which is also what says how it has to come out."""

from __future__ import annotations

from collections.abc import Iterable

from ..weights.checkpoint import Weight
from . import entries
from .compile import Compiler
from .driver import Device, Stream
from .layouts import TILE, Packed
from .modules import Modules


def source_of(weight: Weight) -> int | None:
    """The number of its file's format, macro SRC; None where the host has to pack it."""
    return None if weight.scales else entries.FILES.get(weight.format.name)


class Repacker:
    """One piece of a matrix after the other, in the order of the stream. Owns room for the bytes of one."""

    def __init__(
        self, device: Device, stream: Stream, compiler: Compiler, matrices: Iterable[Packed], piece_bytes: int
    ) -> None:
        """Raises compile.CompileError, driver.CudaOutOfMemory."""
        found = {source_of(weight) for packed in matrices for weight in packed.weights}
        self._entries = {source: entries.repack(source) for source in found if source is not None}
        self._stream, self.piece_bytes = stream, piece_bytes
        self._modules = Modules(compiler, device, self._entries.values())
        self.room = device.alloc(piece_bytes)

    def rows(self, weight: Weight) -> int:
        """How many of its rows are a piece: whole tiles. 0: the host has to pack it."""
        if source_of(weight) not in self._entries or not weight.data.size:
            return 0
        return self.piece_bytes // weight.data.shape[1] // TILE * TILE

    def launch(self, packed: Packed, weight: Weight, first: int, rows: int) -> None:
        """Bring what lies in `room`, rows of the weight, to where `packed` has its tiles from `first` on."""
        source = source_of(weight)
        assert source is not None
        entry, records = self._entries[source], packed.columns // packed.layout.columns
        targets = packed.address + first * packed.tile_bytes, packed.scales_address + first * packed.tile_scale_bytes
        sizes = weight.data.shape[1], rows, packed.inputs, records
        grid = -(-rows // TILE), -(-records // entries.REPACKED_RECORDS), 1
        self._modules.kernels[entry].launch(self._stream, grid, self.room.address, *targets, *sizes)

    def free(self) -> None:
        """Waits for what is on its way."""
        self.room.free()
        self._modules.unload()
