"""Memory between the ops of a recorded program: buffers that are never alive together share it."""

from __future__ import annotations

from collections.abc import Mapping

ALIGNMENT = 64


class Buffer:
    """Memory that ops write and later ops read, opaque to the model. It gets its address when the program is built."""

    def __init__(self, size: int, name: str) -> None:
        self.size = size  # bytes
        self.name = name
        self.address = 0

    def __repr__(self) -> str:
        return f"Buffer({self.name}, {self.size} bytes)"


def place(lives: Mapping[Buffer, tuple[float, float]], alignment: int = ALIGNMENT) -> int:
    """Give every buffer an offset as its address, by first fit in order of birth; returns the bytes they need.

    lives: from the first op that touches it to the last, both included."""
    placed: list[Buffer] = []
    top = 0
    for buffer in sorted(lives, key=lambda b: lives[b][0]):
        birth, _ = lives[buffer]
        alive = sorted((other for other in placed if lives[other][1] >= birth), key=lambda other: other.address)
        offset = 0
        for other in alive:
            if offset + buffer.size <= other.address:
                break
            offset = max(offset, _aligned(other.address + other.size, alignment))
        buffer.address = offset
        placed.append(buffer)
        top = max(top, offset + buffer.size)
    return _aligned(top, alignment)


def _aligned(size: int, alignment: int) -> int:
    return -(-size // alignment) * alignment
