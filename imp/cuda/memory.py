"""Weights on their way from a file to the device: in pieces, through pinned memory of the host, so that one piece is
copied while the next is brought into order."""

from __future__ import annotations

from types import TracebackType

import numpy as np

from ..weights.fields import release
from .driver import Device, Event, Pinned, Stream
from .layouts import Packed

PIECE_BYTES = 32 << 20
PIECES = 2


class Uploader:
    """Copies to the device; all are done when its block ends."""

    def __init__(self, device: Device, stream: Stream) -> None:
        self._stream = stream
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
        for piece in packed.parts():
            self.array(packed.address + piece.first * packed.tile_bytes, piece.weights)
            self.array(packed.scales_address + piece.first * packed.tile_scale_bytes, piece.scales)
            self.array(packed.row_scales_address + piece.first * packed.tile_row_scale_bytes, piece.row_scales)
        for weight in packed.weights:
            release(weight.data)

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
