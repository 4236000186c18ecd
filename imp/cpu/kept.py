"""What a format of keys and values is to the kernels: how a head's vectors are stored and read. Here the floats.

Layout of the cache: for a layer, [block][kv head] of K [record bytes][16], so that 16 keys lie side by side, then
V [16][record bytes]; for floats a number stands in the place of a byte. All is bit for bit what model/kv.py says.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from llvmlite import ir

from ..model.kv import FORMATS, KVFormat
from ..model.ops import KVLayer
from .emit import Emission, when
from .simd import (
    F32,
    Micro,
    V,
    broadcast,
    call,
    f32x8,
    int64,
    load_bf16x8,
    load_bf16x16,
    load_f16x8,
    load_f16x16,
    load_f32,
    load_f32x8,
    load_f32x16,
    loop,
    micro,
    shuffle,
    store,
    store_as_bf16,
    store_as_f16,
    store_bf16,
    store_f16,
    store_f32,
)

BLOCK = 16  # positions of a KV block
LARGEST_TURN = 1024  # numbers of a head that are mixed with each other, at most


@dataclass(frozen=True, slots=True, eq=False)
class Element:
    """A number that is kept as a float. Kernels are float32 inside."""

    size: int  # bytes
    load8: Micro  # address -> f32x8
    load16: Micro  # address -> f32x16
    store: Micro  # (address, float32)
    store8: Micro  # (address, f32x8)

    def lanes(self, address: V, index: Any) -> V:
        """8 of them as floats, from element `index` at `address` on; in a micro-kernel."""
        return self.load8(address + index * self.size)


HALF = Element(2, load_f16x8, load_f16x16, store_f16, store_as_f16)
BRAIN = Element(2, load_bf16x8, load_bf16x16, store_bf16, store_as_bf16)
FLOAT = Element(4, load_f32x8, load_f32x16, store_f32, store)


@dataclass(frozen=True, slots=True, eq=False)
class Kept:
    """A format as kernels have it.

    in_place: attention may read the cache itself, as `element`; else it reads tiles of floats made by `spread`.
    spread: (block of a head, K tile [d][16], V tile [keys][d], d, keys, bytes of a record)
    store_key, store_value: (vector of floats, block of a head, position in it, d, bytes of a record, memory for one);
    vectors are turned already where the format turns them.
    """

    format: KVFormat
    in_place: bool
    element: Element
    spread: Micro
    store_key: Micro
    store_value: Micro

    @property
    def name(self) -> str:
        """Ends the names of its kernels."""
        return self.format.name

    def block_bytes(self, layer: KVLayer, positions: int) -> int:
        """Keys and values of one block of one layer."""
        return 2 * positions * layer.kv_heads * self.format.record_bytes(layer.head_dim)


# -- floats


def floats(name: str, element: Element) -> Kept:
    size = element.size

    @micro(int64, int64, int64, int64, int64, int64)
    def spread(head: V, k: V, v: V, d: V, keys: V, record: V) -> None:
        for i in loop(0, d * BLOCK, 8):
            store(k + i * 4, element.lanes(head, i))
        for i in loop(0, d * keys, 8):
            store(v + i * 4, element.lanes(head + d * (BLOCK * size), i))

    @micro(int64, int64, int64, int64, int64, int64)
    def store_key(x: V, head: V, position: V, d: V, record: V, scratch: V) -> None:
        for i in loop(d):
            element.store(head + (i * BLOCK + position) * size, load_f32(x + i * 4))

    @micro(int64, int64, int64, int64, int64, int64)
    def store_value(x: V, head: V, position: V, d: V, record: V, scratch: V) -> None:
        for i in loop(0, d, 8):
            element.store8(head + ((position + BLOCK) * d + i) * size, load_f32x8(x + i * 4))

    return Kept(FORMATS[name], True, element, spread, store_key, store_value)


# -- turning


@micro(int64, int64)
def turn(x: V, d: V) -> None:
    """model.kv.turned of d floats, in place."""
    size = d & (0 - d)
    for i in loop(0, d, 8):
        v = load_f32x8(x + i * 4)
        for half in (1, 2, 4):
            signs = V(ir.Constant(f32x8.ir, [-1.0 if place & half else 1.0 for place in range(8)]))
            v = shuffle(v, [place ^ half for place in range(8)]) + v * signs
        store(x + i * 4, v)
    half = 8
    while half < LARGEST_TURN:
        with when(size > half):
            for start in loop(0, d, 2 * half):
                for i in loop(start, start + half, 8):
                    at, beside = x + i * 4, x + (i + half) * 4
                    a, b = load_f32x8(at), load_f32x8(beside)
                    store(at, a + b)
                    store(beside, a - b)
        half *= 2
    root = V(Emission.builder.sitofp(size.ir, F32))
    factor = 1.0 / call("llvm.sqrt.f32", F32, root)
    for i in loop(0, d, 8):
        store(x + i * 4, load_f32x8(x + i * 4) * broadcast(factor, 8))
