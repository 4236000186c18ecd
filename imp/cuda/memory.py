"""Weights on their way from a file to the device: in pieces, through pinned memory of the host, so that one piece is
copied while the next is brought into order."""

from __future__ import annotations

from types import TracebackType

import numpy as np

from ..weights.checkpoint import Weight
from ..weights.fields import release
from .driver import Device, Event, Pinned, Stream
from .layouts import TILE, Packed
from .repack import Repacker

PIECE_BYTES = 32 << 20
PIECES = 2


class Uploader:
    """Copies to the device; all are done when its block ends. With a repacker files' bytes go up as they are."""

    def __init__(self, device: Device, stream: Stream, repacker: Repacker | None = None) -> None:
        self._stream, self._repacker = stream, repacker
        self._pieces = [(device.pinned(PIECE_BYTES), Event()) for _ in range(PIECES)]
        self._used = 0

    def __enter__(self) -> Uploader:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            self._stream.synchronize()
        for piece, event in self._pieces:
            piece.free()
            event.destroy()

    def weight(self, packed: Packed) -> None:
        """To its addresses; the files' pages are let go afterwards."""
        first = 0
        for weight in packed.weights:
            if self._repacker is not None and (rows := self._repacker.rows(weight)):
                self._as_it_is(self._repacker, packed, weight, first, rows)
            else:
                self._in_order(packed, weight, first)
            first += -(-weight.shape[0] // TILE)
            release(weight.data)

    def _as_it_is(self, repacker: Repacker, packed: Packed, weight: Weight, first: int, rows: int) -> None:
        for start in range(0, len(weight.data), rows):
            some = weight.data[start : start + rows]
            self.array(repacker.room.address, some)
            repacker.launch(packed, weight, first + start // TILE, len(some))

    def _in_order(self, packed: Packed, weight: Weight, first: int) -> None:
        for piece in packed.pieces(weight, first):
            self.array(packed.address + piece.first * packed.tile_bytes, piece.weights)
            self.array(packed.scales_address + piece.first * packed.tile_scale_bytes, piece.scales)
            self.array(packed.row_scales_address + piece.first * packed.tile_row_scale_bytes, piece.row_scales)

    def array(self, address: int, values: np.ndarray) -> None:
        flat = values.reshape(-1).view(np.uint8)
        for start in range(0, len(flat), PIECE_BYTES):
            part = flat[start : start + PIECE_BYTES]
            piece = self._next()
            piece.bytes[: len(part)] = part
            self._stream.upload(address + start, piece.address, len(part))
            self._stream.record(self._pieces[self._used % PIECES][1])
            self._used += 1

    def _next(self) -> Pinned:
        """The piece whose turn it is, once its last copy is done."""
        piece, copied = self._pieces[self._used % PIECES]
        if self._used >= PIECES:
            copied.wait()
        return piece
