"""Instructions on tiles (AMX): registers of up to 16 rows of 64 bytes, and products of them.

Registers have numbers, 0 to 7, and shapes that hold from `shape_tiles` to `release_tiles`, on the calling thread. Here
0 to 3 are sums, rows of 16 int32 or float32; 4 and 5 are left factors, as many rows of DEPTH bytes; 6 and 7 are right
factors, DEPTH / 4 rows of 16 columns of 4 bytes. `shape_deep_tiles` gives factors DEEP bytes instead. Intel's
architecture manual, volume 1, chapter 18.
"""

from __future__ import annotations

from llvmlite import ir

from .emit import I8, I16, I64, VOID, Emission, V, call, constant, integer, micro
from .simd import int64, store

ROWS = 16  # of a tile of sums, at most
DEPTH, DEEP = 16, 64  # bytes of a row of a left factor: what is added up by one product
_LEFT, _RIGHT, _COUNT = (4, 5), (6, 7), 8


@micro(int64)
def shape_tiles(rows: V) -> None:
    """Give the tiles their shapes, with so many rows of sums. Any sums are lost."""
    _shape(rows, DEPTH)


@micro(int64)
def shape_deep_tiles(rows: V) -> None:
    """The same, for factors of DEEP bytes."""
    _shape(rows, DEEP)


def _shape(rows: V, depth: int) -> None:
    from numba.core import cgutils

    # palette 1, from row 0; bytes of a row of each from 16 on, rows from 48 on
    memory = cgutils.alloca_once(Emission.builder, ir.ArrayType(I64, 8))
    at = V(Emission.builder.ptrtoint(memory, I64))
    for word in range(8):
        store(at + word * 8, integer(int(word == 0)))
    for tile in range(_COUNT):
        store(at + (16 + tile * 2), constant(depth if tile in _LEFT else 64, I16))
        count = constant(depth // 4, I8) if tile in _RIGHT else V(Emission.builder.trunc(rows.ir, I8))
        store(at + (48 + tile), count)
    call("llvm.x86.ldtilecfg", VOID, _pointer(at))


@micro()
def release_tiles() -> None:
    """Back to no tiles at all, so that nobody has to save them."""
    call("llvm.x86.tilerelease", VOID)


def clear_tile(tile: int) -> None:
    call("llvm.x86.tilezero", VOID, constant(tile, I8))


def load_tile(tile: int, address: V, stride: int | V) -> None:
    """Rows lie `stride` bytes apart."""
    call("llvm.x86.tileloadd64", VOID, constant(tile, I8), _pointer(address), constant(stride, I64))


def store_tile(tile: int, address: V, stride: int | V) -> None:
    call("llvm.x86.tilestored64", VOID, constant(tile, I8), _pointer(address), constant(stride, I64))


def add_products_i8(sums: int, left: int, right: int) -> None:
    """sums[r][c] += left[r][4k + i] right[k][c][i], summed over k and i; signed bytes, int32."""
    call("llvm.x86.tdpbssd", VOID, *(constant(tile, I8) for tile in (sums, left, right)))


def add_products_bf16(sums: int, left: int, right: int) -> None:
    """sums[r][c] += left[r][2k + i] right[k][c][i], summed over k and i; bfloat16, float32. The order of the additions
    is the machine's own, the same for every r and c."""
    call("llvm.x86.tdpbf16ps", VOID, *(constant(tile, I8) for tile in (sums, left, right)))


def _pointer(address: V) -> V:
    return V(Emission.builder.inttoptr(address.ir, I8.as_pointer()))
