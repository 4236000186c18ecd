"""The vocabulary of the kernels against NumPy, lowered both ways."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
from numba import types

from imp.cpu import emit, variants
from imp.cpu.simd import (
    V,
    Var,
    add_quads_u8i8,
    bits_float,
    broadcast16_f32,
    broadcast16_i8x4,
    compiling_for,
    constant,
    dot_pairs_i16,
    dot_pairs_u8i8,
    exp,
    f32x8,
    float_bits,
    fma,
    i32x8,
    int64,
    integer,
    kept_apart,
    largest,
    load,
    load_bf16x8,
    load_bf16x16,
    load_f16,
    load_f16x8,
    load_f16x16,
    load_f32,
    load_f32x8,
    load_f32x16,
    load_i8x8,
    load_i8x16,
    load_i8x32,
    load_i8x64,
    load_i32x16,
    loop,
    maximum,
    micro,
    minimum,
    nibbles,
    select,
    smallest,
    splat,
    splat16,
    splat16_i32,
    store,
    store_as_bf16,
    store_as_f16,
    store_as_i8,
    store_f16,
    store_f32,
    tanh,
    to_float,
    to_int,
    total,
    when,
    zeros,
)
from imp.jit import numba

SIGNATURE = types.void(types.int64, types.int64, types.int64)
LANES = pytest.mark.parametrize("lanes", [8, 16])
FLOATS, SPLAT = {8: load_f32x8, 16: load_f32x16}, {8: splat, 16: splat16}


@pytest.fixture(params=variants.variants())
def features(request):
    return request.param


@pytest.fixture
def run(features):
    """run(body, x, y): body(address of x, address of y, elements of x)"""

    def call(body, x: np.ndarray, y: np.ndarray) -> np.ndarray:
        with compiling_for(features):
            compiled = numba().cfunc(SIGNATURE, nopython=True, error_model="numpy")(body)
        compiled.ctypes(x.ctypes.data, y.ctypes.data, x.size)
        return y

    return call


def every_half() -> np.ndarray:
    return np.arange(65536, dtype=np.uint16)


@LANES
def test_halves_load_as_numpy_loads_them(run, lanes):
    load = {8: load_f16x8, 16: load_f16x16}[lanes]

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 4, load(x + i * 2))

    halves = every_half()
    found, expected = run(body, halves, np.zeros(65536, np.float32)), halves.view(np.float16).astype(np.float32)
    np.testing.assert_array_equal(found, expected)


def test_single_halves_go_both_ways(run):
    def body(x, y, n):
        for i in range(n):
            store_f16(y + i * 2, load_f16(x + i * 2))

    halves = every_half()
    found = run(body, halves, np.zeros(65536, np.uint16)).view(np.float16)
    np.testing.assert_array_equal(found, halves.view(np.float16))


@LANES
def test_floats_round_to_halves_as_numpy_rounds_them(run, lanes):
    load, store = FLOATS[lanes], store_as_f16

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 2, load(x + i * 4))

    rng = np.random.default_rng(5)
    wide = rng.standard_normal(8000) * 10.0 ** rng.uniform(-9, 6, 8000)
    # the middle between neighbours is where ties are decided
    halves = np.arange(0, 0x7C00, dtype=np.uint16).view(np.float16).astype(np.float32)
    ties = (halves[:-1] + halves[1:]) / 2
    special = [0.0, -0.0, np.inf, -np.inf, np.nan, 65504, 65519.9, 65520, -65520]
    x = np.concatenate([wide, ties, -ties, special]).astype(np.float32)
    x = np.resize(x, -(-x.size // lanes) * lanes)
    with np.errstate(over="ignore"):
        expected = x.astype(np.float16)
    np.testing.assert_array_equal(run(body, x, np.zeros(x.size, np.float16)), expected)


@LANES
def test_bfloat16_is_the_upper_half_of_a_float(run, lanes):
    load = {8: load_bf16x8, 16: load_bf16x16}[lanes]

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 4, load(x + i * 2))

    x = every_half()
    np.testing.assert_array_equal(run(body, x, np.zeros(65536, np.uint32)), x.astype(np.uint32) << 16)


@LANES
def test_floats_round_to_the_nearest_bfloat16(run, lanes):
    load, store = FLOATS[lanes], store_as_bf16

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 2, load(x + i * 4))

    x = np.random.default_rng(6).standard_normal(4096).astype(np.float32)
    x[:16] = (x[:16].view(np.uint32) >> 16 << 16 | 0x8000).view(np.float32)  # in the middle of two
    raw = x.view(np.uint32)
    expected = ((raw + 0x7FFF + (raw >> 16 & 1)) >> 16).astype(np.uint16)
    np.testing.assert_array_equal(run(body, x, np.zeros(4096, np.uint16)), expected)


@pytest.mark.parametrize(
    "function, judge, low, high, relative, absolute",
    [(exp, np.exp, -86, 88, 3e-7, 0), (tanh, np.tanh, -20, 20, 0, 3e-7)],
    ids=["exp", "tanh"],
)
@LANES
def test_functions_are_near_float64(run, lanes, function, judge, low, high, relative, absolute):
    load = FLOATS[lanes]

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 4, function(load(x + i * 4)))

    x = np.linspace(low, high, 80000).astype(np.float32)
    found = run(body, x, np.zeros_like(x))
    np.testing.assert_allclose(found, judge(x.astype(np.float64)), rtol=relative, atol=absolute)


def test_exp_of_very_small_numbers_is_nothing_and_of_large_ones_finite(run):
    def body(x, y, n):
        store(y, exp(load_f32x8(x)))

    x = np.array([-1e30, -np.inf, -200, -88, 89, 1e4, 1e30, np.inf], np.float32)
    found = run(body, x, np.zeros_like(x))
    assert (found[:4] < 1e-37).all() and (found[:4] >= 0).all()
    assert np.isfinite(found[4:]).all() and (found[4:] > 1e38).all()


@LANES
def test_operators_of_vectors_and_numbers(run, lanes):
    load, spread = FLOATS[lanes], SPLAT[lanes]

    def body(x, y, n):
        for i in range(0, n, lanes):
            v = load(x + i * 4)
            w = fma(v, spread(2.0), v - 1.0) / 4.0 + 2.0 * v
            store(y + i * 4, select(v > w, maximum(v, w * w), minimum(v, 0.5 - w)))

    x = np.linspace(-3, 3, 64).astype(np.float32)
    w = (x.astype(np.float64) * 3 - 1) / 4 + 2 * x
    expected = np.where(x > w, np.maximum(x, w * w), np.minimum(x, 0.5 - w))
    np.testing.assert_allclose(run(body, x, np.zeros_like(x)), expected, rtol=1e-5, atol=1e-6)


def test_integers_shift_and_convert(run):
    def body(x, y, n):
        v = float_bits(load_f32x8(x))
        store(y, to_float(((v >> 23) & 255) - 127))
        store(y + 32, bits_float((v & 0x7FFFFF) | (127 << 23)))
        store(y + 64, to_float(to_int(load_f32x8(x))))

    x = np.array([1.0, 2.5, 3.5, -0.5, 1e10, 6.25, -1.5, 0.7], np.float32)
    x[4] = 1e6
    found = run(body, x, np.zeros(24, np.float32))
    mantissa, exponent = np.frexp(np.abs(x))
    np.testing.assert_array_equal(found[:8], exponent - 1)
    np.testing.assert_array_equal(found[8:16], mantissa * 2)
    np.testing.assert_array_equal(found[16:], np.rint(x))


@LANES
def test_reductions(run, lanes):
    load = FLOATS[lanes]

    def body(x, y, n):
        v = load(x)
        store_f32(y, total(v))
        store_f32(y + 4, largest(v))
        store_f32(y + 8, smallest(v))

    x = np.array([3, -4, 5, 0.5, 17, -1, 2, 8, 1, -0.25, 64, 7, -9, 5, 11, 0.125], np.float32)[:lanes]
    np.testing.assert_array_equal(run(body, x, np.zeros(3, np.float32)), [x.sum(), x.max(), x.min()])


def test_vectors_of_512_bits_convert_and_spread(run):
    def body(x, y, n):
        v = load_f32x16(x)
        store(y, to_float(((float_bits(v) >> 23) & 255) - 127))
        store(y + 64, to_float(to_int(v)))
        store(y + 128, bits_float((float_bits(v) & splat16_i32(0x7FFFFF)) | (127 << 23)))
        store(y + 192, broadcast16_f32(x + 4))
        store(y + 256, broadcast16_i8x4(x))
        store_as_i8(y + 320, to_int(v))
        store(y + 384, to_float(load_i32x16(x)))

    x = np.linspace(-80, 90, 16).astype(np.float32)
    found = run(body, x, np.zeros(112, np.float32))
    mantissa, exponent = np.frexp(np.abs(x))
    np.testing.assert_array_equal(found[:16], exponent - 1)
    np.testing.assert_array_equal(found[16:32], np.rint(x))
    np.testing.assert_array_equal(found[32:48], mantissa * 2)
    np.testing.assert_array_equal(found[48:64], np.full(16, x[1]))
    np.testing.assert_array_equal(found[64:80], np.full(16, x[0]))
    np.testing.assert_array_equal(found[80:84].view(np.int8), np.rint(x))
    np.testing.assert_array_equal(found[96:], x.view(np.int32).astype(np.float32))


@micro(int64, int64)
def dot_pairs(x: V, y: V) -> None:
    """Of bytes, of what comes of them, and of that by itself."""
    pairs = dot_pairs_u8i8(load_i8x32(x), load_i8x32(x + 32))
    store(y, pairs)
    store(y + 32, dot_pairs_i16(pairs, 1))
    store(y + 64, dot_pairs_i16(pairs, pairs))


def test_products_of_pairs(run):
    def body(x, y, n):
        for i in range(0, n, 64):
            dot_pairs(x + i, y + i // 64 * 96)

    rng = np.random.default_rng(3)
    a, b = rng.integers(0, 128, (50, 32)), rng.integers(-128, 128, (50, 32))
    a[:10], b[5:15] = 127, rng.choice([-128, 127], (10, 32))
    x = np.stack([a, b], axis=1).astype(np.int8)
    found = run(body, x, np.zeros((50, 48), np.int16))
    pairs = (a * b).reshape(50, 16, 2).sum(-1)
    np.testing.assert_array_equal(found[:, :16], pairs)
    quads = np.ascontiguousarray(found[:, 16:]).view(np.int32)
    np.testing.assert_array_equal(quads[:, :8], pairs.reshape(50, 8, 2).sum(-1))
    np.testing.assert_array_equal(quads[:, 8:], (pairs.reshape(50, 8, 2) ** 2).sum(-1))


def test_what_is_kept_apart_stays_the_same(run):
    def body(x, y, n):
        for i in range(0, n, 32):
            keep(x + i, y + i)

    x = np.random.default_rng(5).integers(-128, 128, 320).astype(np.int8)
    np.testing.assert_array_equal(run(body, x, np.zeros(320, np.int8)), x)


@micro(int64, int64)
def keep(x: V, y: V) -> None:
    store(y, kept_apart(load_i8x32(x)))


@micro(int64, int64)
def add_quads(x: V, y: V) -> None:
    store(y, add_quads_u8i8(load(y, i32x8.ir), load_i8x32(x), load_i8x32(x + 32)))


@micro(int64, int64)
def add_quads_wide(x: V, y: V) -> None:
    store(y, add_quads_u8i8(load_i32x16(y), load_i8x64(x), load_i8x64(x + 64)))


@LANES
def test_byte_products_are_added_up(run, lanes):
    add = {8: add_quads, 16: add_quads_wide}[lanes]

    def body(x, y, n):
        for i in range(0, n, 8 * lanes):
            add(x + i, y)

    rng = np.random.default_rng(4)
    x = rng.integers(-128, 128, (50, 2, 4 * lanes)).astype(np.int8)
    x[:, 0] = np.abs(x[:, 0] // 2)
    x[:10, 0], x[5:15, 1] = 127, -128
    found = run(body, x, np.full(lanes, 10**6, np.int32))
    products = (x[:, 0].astype(np.int64) * x[:, 1]).reshape(50, lanes, 4).sum((0, 2))
    np.testing.assert_array_equal(found, 10**6 + products)


def test_unsigned_bytes_stay_unsigned(run):
    def body(x, y, n):
        store(y, dot_pairs_u8i8(load_i8x32(x), load_i8x32(x + 32)))

    x = np.concatenate([np.full(32, 200, np.uint8), np.full(32, 50, np.int8).view(np.uint8)])
    np.testing.assert_array_equal(run(body, x, np.zeros(16, np.int16)), np.full(16, 200 * 50 * 2))


@LANES
def test_bytes_widen_with_their_sign_and_shorten(run, lanes):
    load = {8: load_i8x8, 16: load_i8x16}[lanes]

    def body(x, y, n):
        for i in range(0, n, lanes):
            store(y + i * 4, load(x + i))
            store_as_i8(y + n * 4 + i, load(x + i) + 256)

    x = np.arange(-128, 128).astype(np.int8)
    found = run(body, x, np.zeros(320, np.int32))
    np.testing.assert_array_equal(found[:256], x)
    np.testing.assert_array_equal(found[256:].view(np.int8), x)


@micro(int64, int64)
def split_nibbles(x: V, y: V) -> None:
    low, high = nibbles(load_i8x32(x))
    store(y, low)
    store(y + 32, high)


@micro(int64, int64)
def split_nibbles_wide(x: V, y: V) -> None:
    low, high = nibbles(load_i8x64(x))
    store(y, low)
    store(y + 64, high)


@LANES
def test_nibbles(run, lanes):
    split = {8: split_nibbles, 16: split_nibbles_wide}[lanes]

    def body(x, y, n):
        split(x, y)

    x = np.random.default_rng(1).integers(0, 256, 4 * lanes, dtype=np.uint8)
    found = run(body, x, np.zeros(8 * lanes, np.uint8))
    np.testing.assert_array_equal(found, np.concatenate([x & 15, x >> 4]))


@micro(int64, int64, int64)
def positive_sums(x: V, y: V, count: V) -> None:
    """Sums of the even and odd vectors whose first lane is positive."""
    sums = [Var(zeros(f32x8)) for _ in range(2)]
    taken = Var(integer(0))
    for i in loop(0, count, 16):
        for half, s in enumerate(sums):
            v = load_f32x8(x + i * 4 + half * 32)
            with when(load_f32(x + i * 4 + half * 32) > constant(0.0, emit.F32)):
                s += v
                taken += 1
    for half, s in enumerate(sums):
        store(y + half * 32, V(s.ir))
    store(y + 64, V(taken.ir))


def test_micro_kernels_loop_branch_and_keep_registers(run):
    def body(x, y, n):
        positive_sums(x, y, n)

    x = np.random.default_rng(2).integers(-9, 9, (40, 2, 8)).astype(np.float32)
    found = run(body, x, np.zeros(18, np.float32))
    kept = x[:, :, 0] > 0
    np.testing.assert_array_equal(found[:16].reshape(2, 8), (x * kept[:, :, None]).sum(0))
    assert found[16:].view(np.int64)[0] == kept.sum()


def test_what_a_machine_runs_is_known_fastest_first(monkeypatch):
    assert variants.detect() == variants.variants()[0]
    avx2 = {"avx2", "fma", "f16c"}
    avx512 = avx2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}
    amx = avx512 | {"avx512_fp16", "amx_tile", "amx_int8", "amx_bf16"}
    for features, granted, first in (
        (set(), True, "portable"),
        (avx2, True, "avx2"),
        (avx2 - {"fma"} | {"avx_vnni"}, True, "portable"),
        (avx2 | {"avx_vnni"}, True, "vnni"),
        (avx2 | {"avx512_vnni"}, True, "avx2"),
        (avx2 | {"avx512_vnni", "avx512vl"}, True, "vnni"),
        (avx512 - {"avx512bw"}, True, "vnni"),
        (avx512, True, "avx512"),
        (avx512 | {"amx_int8"}, True, "avx512"),
        (amx - {"amx_bf16"}, True, "avx512"),
        (amx - {"avx512_fp16"}, True, "avx512"),
        (amx, False, "avx512"),
        (amx - {"avx512bw"}, True, "vnni"),
        (amx, True, "amx"),
    ):
        monkeypatch.setattr(variants, "features", lambda features=features: frozenset(features))
        monkeypatch.setattr(variants, "tiles_are_granted", lambda granted=granted: granted)
        assert variants.variants() == variants.KINDS[variants.KINDS.index(first) :]


def test_a_kind_of_code_uses_what_those_below_it_have():
    with compiling_for("vnni"):
        assert emit.runs("vnni") and emit.runs("avx2") and emit.runs("portable") and not emit.runs("avx512")
    assert [variants.lanes(kind) for kind in variants.KINDS] == [16, 16, 8, 8, 8]


def test_vectors_of_different_lengths_do_not_mix(run):
    def body(x, y, n):
        store(y, fma(load_f32x8(x), load_f32x16(x), load_f32x8(x)))

    with pytest.raises(Exception, match=r"Invalid use of|No implementation"):
        run(body, np.zeros(16, np.float32), np.zeros(16, np.float32))


def test_a_micro_kernel_declares_a_type_for_every_parameter():
    with pytest.raises(AssertionError, match="declares 1 types for 2 parameters"):
        micro(int64)(lambda a, b: None)


def test_operators_refuse_vectors_of_different_kinds(run):
    def body(x, y, n):
        store(y, load_f32x8(x) + load_i8x8(x))

    with pytest.raises(Exception, match=r"Invalid use of|No implementation"):
        run(body, np.zeros(8, np.float32), np.zeros(8, np.float32))


def test_lanes_of_halves_are_independent_of_their_neighbours(run):
    """The portable path selects by lane: subnormals, normals and infinities in every mixture."""

    def body(x, y, n):
        for i in range(0, n, 8):
            store_as_f16(y + i * 2, load_f16x8(x + i * 2))

    kinds = np.array([0x0001, 0x03FF, 0x0400, 0x7BFF, 0x7C00, 0x8001], np.uint16)
    x = np.array(list(itertools.product(kinds, repeat=4)), np.uint16).reshape(-1)
    np.testing.assert_array_equal(run(body, x, np.zeros_like(x)), x)
