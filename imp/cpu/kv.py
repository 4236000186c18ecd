"""How keys and values are kept in the KV cache: the number format, and which one a model gets.

Owns the choice and what kernels need to know of a format. The layout of the cache is attention.py's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..model.ops import KVLayer, Model
from .simd import Micro, V, load_f16x8, load_f32x8, store, store_f16, store_f16x8


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A key's or value's number. Kernels are float32 inside and made once for each element."""

    name: str  # ends the names of its kernels
    size: int  # bytes
    load8: Micro  # address -> f32x8
    store: Micro  # (address, float32)
    store8: Micro  # (address, f32x8)

    def lanes(self, address: V, index: Any) -> V:
        """8 of them as floats, from element `index` at `address` on; in a micro-kernel."""
        return self.load8(address + index * self.size)

    def block_bytes(self, layer: KVLayer, positions: int) -> int:
        """Keys and values of one block of one layer."""
        return 2 * self.size * positions * layer.kv_heads * layer.head_dim


HALF = Element("f16", 2, load_f16x8, store_f16, store_f16x8)
FLOAT = Element("f32", 4, load_f32x8, store, store)
ELEMENTS = (HALF, FLOAT)


def element_of(model: Model) -> Element:
    """FLOAT for a model whose matrices are all float32, of which float32 results are expected: halves would be its
    largest error. For all others the halves' error is below that of their own weights, and they take half the room."""
    return FLOAT if model.formats == {"F32"} else HALF
