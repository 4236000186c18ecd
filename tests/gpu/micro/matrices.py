"""Matrix instructions against matmul, with fragments laid out element by element as the PTX ISA's formulas say."""

from collections.abc import Callable

import numpy as np

from tests.gpu.micro.case import Case, module
from tests.gpu.micro.rounding import BF16, E4M3, E5M2, F16, TF32, Format

_RNG = np.random.default_rng(31)
_FORMATS: dict[str, tuple[Format | None, int]] = {"f16": (F16, 16), "bf16": (BF16, 16), "tf32": (TF32, 32), "e4m3": (E4M3, 8),
                                                  "e5m2": (E5M2, 8), "s8": (None, 8), "u8": (None, 8)}


def _numbers(kind: str, shape: tuple[int, ...]) -> tuple[np.ndarray, np.ndarray]:
    """Small random numbers: as float64, and as the bits of their format."""
    form, bits = _FORMATS[kind]
    if form is None:
        values = _RNG.integers(-128 if kind == "s8" else 0, 128 if kind == "s8" else 256, shape)
        return values.astype(np.float64), values.astype(np.int64).astype(np.uint8)
    codes = _RNG.integers(0, 1 << (1 + form.exponent_bits + form.mantissa_bits), shape)
    middle = form.bias << form.mantissa_bits
    codes = middle + codes % (2 << form.mantissa_bits) - (1 << form.mantissa_bits) | (codes & form.sign_bit)
    values = np.vectorize(lambda c: float(form.value(int(c))))(codes)
    return values, (codes << 13 if kind == "tf32" else codes).astype({8: np.uint8, 16: np.uint16, 32: np.uint32}[bits])


def _a_place(lane: int, i: int, per_word: int) -> tuple[int, int]:
    """Row and column of element i of a lane's A fragment (m16n8kX): the ISA's cases by i, for `per_word` elements a register."""
    group, thread = lane // 4, lane % 4
    register, within = divmod(i, per_word)
    return group + (8 if register % 2 else 0), thread * per_word + within + (4 * per_word if register >= 2 else 0)


def _b_place(lane: int, i: int, per_word: int) -> tuple[int, int]:
    group, thread = lane // 4, lane % 4
    register, within = divmod(i, per_word)
    return thread * per_word + within + 4 * per_word * register, group


def _c_place(lane: int, i: int) -> tuple[int, int]:
    return lane // 4 + (8 if i >= 2 else 0), lane % 4 * 2 + i % 2


def _fragments(bits: np.ndarray, registers: int, place: Callable[[int, int, int], tuple[int, int]]) -> np.ndarray:
    """[32, registers] words of a matrix of element bits."""
    per_word = 4 // bits.itemsize
    out = np.zeros((32, registers), np.uint32)
    for lane in range(32):
        words = np.array([bits[place(lane, i, per_word)] for i in range(registers * per_word)], bits.dtype)
        out[lane] = words.view(np.uint32)
    return out


def _listed(name: str, count: int) -> str:
    return "{" + ", ".join(f"%{name}{i}" for i in range(count)) + "}"


def _lane_loads(name: str, argument: int, count: int) -> str:
    """`count` words of this lane into %name0 ..."""
    lines = [f".reg .b32 {_listed(name, count)[1:-1]};", f".reg .b64 %at_{name};", f"mad.lo.u64 %at_{name}, %wide, {4 * count}, %arg{argument};"]
    return "\n".join([*lines, *(f"ld.global.b32 %{name}{i}, [%at_{name}+{4 * i}];" for i in range(count))])


def _lane_stores(name: str, argument: int, count: int) -> str:
    lines = [f".reg .b64 %to_{name};", f"mad.lo.u64 %to_{name}, %wide, {4 * count}, %arg{argument};"]
    return "\n".join([*lines, *(f"st.global.b32 [%to_{name}+{4 * i}], %{name}{i};" for i in range(count))])


def _mma(kind: str, k: int, accumulate: str = "f32", arch: str = "sm_80") -> Case:
    per_word = 32 // _FORMATS[kind][1]
    b_count = k // (4 * per_word)
    a, a_bits = _numbers(kind, (16, k))
    b, b_bits = _numbers(kind, (k, 8))
    c_type = {"s32": np.int32, "f32": np.float32, "f16": np.float16}[accumulate]
    c = (_RNG.normal(size=(16, 8)) * 4).astype(c_type)
    total = a @ b + c
    places = [[_c_place(lane, i) for i in range(4)] for lane in range(32)]
    c_lanes = np.array([[c[p] for p in row] for row in places], c_type).view(np.uint32)
    count = c_lanes.shape[1]
    body = "\n".join([
        _lane_loads("a", 0, 2 * b_count), _lane_loads("b", 1, b_count), _lane_loads("c", 2, count),
        f".reg .b32 {_listed('d', count)[1:-1]};",
        f"mma.sync.aligned.m16n8k{k}.row.col.{accumulate}.{kind}.{kind}.{accumulate} {_listed('d', count)}, {_listed('a', 2 * b_count)}, "
        f"{_listed('b', b_count)}, {_listed('c', count)};",
        _lane_stores("d", 3, count)])
    inputs = (_fragments(a_bits, 2 * b_count, _a_place), _fragments(b_bits, b_count, _b_place), c_lanes)
    relative = {"s32": 0.0, "f32": 1e-4, "f16": 4e-3}[accumulate]
    expected = np.array([[total[p] for p in row] for row in places]).astype(c_type)
    return Case(f"mma m16n8k{k} {kind} {accumulate}", module(["u64"] * 4, body, arch), inputs, expected, relative=relative, arch=arch)


_TO_SHARED = """
    .reg .pred %first;
    .reg .b32 %v, %to, %k;
    .reg .b64 %from;
    mov.u32 %k, %thread;
COPY:
    cvt.u64.u32 %from, %k;
    mad.lo.u64 %from, %from, 4, %arg0;
    ld.global.u32 %v, [%from];
    mov.u32 %to, tile;
    mad.lo.u32 %to, %k, 4, %to;
    st.shared.u32 [%to], %v;
    add.u32 %k, %k, THREADS;
    setp.lt.u32 %first, %k, WORDS;
    @%first bra COPY;
    bar.sync 0;"""


def _to_shared(words: int, threads: int = 32) -> str:
    """Copies the first argument into the shared `tile`."""
    return _TO_SHARED.replace("WORDS", str(words)).replace("THREADS", str(threads))


def _tile(size: int) -> str:
    return f".shared .align 1024 .b8 tile[{size}];"


def _ldmatrix(count: int, transposed: bool) -> Case:
    """Lane l gives the address of row l % 8 of matrix l / 8; it gets elements 2 (l % 4) and the next of row l / 4 of each."""
    matrices = _RNG.integers(0, 1 << 16, (4, 8, 8), dtype=np.uint16)
    expected = np.zeros((32, count), np.uint32)
    for lane in range(32):
        for m in range(count):
            source = matrices[m].T if transposed else matrices[m]
            low, high = source[lane // 4, lane % 4 * 2], source[lane // 4, lane % 4 * 2 + 1]
            expected[lane, m] = int(low) | int(high) << 16
    trans = ".trans" if transposed else ""
    body = "\n".join([
        _to_shared(matrices.size // 2), ".reg .b32 %row;", "mov.u32 %row, tile;", "mad.lo.u32 %row, %thread, 16, %row;",
        f".reg .b32 {_listed('d', count)[1:-1]};",
        f"ldmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 {_listed('d', count)}, [%row];", _lane_stores("d", 1, count)])
    return Case(f"ldmatrix x{count}{trans}", module(["u64", "u64"], body, shared=_tile(matrices.nbytes)), (matrices,), expected)


def _stmatrix(count: int, transposed: bool) -> Case:
    fragments = _RNG.integers(0, 1 << 32, (32, count), dtype=np.uint32)
    expected = np.zeros((count, 8, 8), np.uint16)
    for lane in range(32):
        for m in range(count):
            target = expected[m].T if transposed else expected[m]
            target[lane // 4, lane % 4 * 2] = fragments[lane, m] & 0xFFFF
            target[lane // 4, lane % 4 * 2 + 1] = fragments[lane, m] >> 16
    trans = ".trans" if transposed else ""
    words = [f"ld.shared.u32 %v, [%row+{128 * i}];\nst.global.u32 [%out+{128 * i}], %v;" for i in range(count)]
    body = "\n".join([
        _lane_loads("a", 0, count), ".reg .b32 %row, %v;", ".reg .b64 %out;", "mov.u32 %row, tile;", "mad.lo.u32 %row, %thread, 16, %row;",
        f"stmatrix.sync.aligned.m8n8.x{count}{trans}.shared.b16 [%row], {_listed('a', count)};", "bar.warp.sync 0xffffffff;",
        "mov.u32 %row, tile;", "mad.lo.u32 %row, %thread, 4, %row;", "mad.lo.u64 %out, %wide, 4, %arg1;", *words])
    return Case(f"stmatrix x{count}{trans}", module(["u64", "u64"], body, "sm_90a", _tile(512)), (fragments,), expected, arch="sm_90a")


def _swizzled(offset: int, row_bytes: int) -> int:
    """The 16-byte chunk within a row of `row_bytes` is XORed with the row's number in the repeating pattern."""
    return offset ^ (offset >> 7 & row_bytes // 16 - 1) << 4


def _operand_in_shared(bits: np.ndarray, row_bytes: int) -> np.ndarray:
    """[rows, K] K-major in shared memory: groups of eight rows, swizzled, or (row_bytes 16) core matrices of 8 x 16 bytes."""
    rows, width = bits.shape[0], bits.shape[1] * bits.itemsize
    raw = np.ascontiguousarray(bits).view(np.uint8).reshape(rows, width)
    out = np.zeros(rows * max(width, row_bytes), np.uint8)
    for r in range(rows):
        for byte in range(width):
            if row_bytes == 16:
                at = r // 8 * (8 * width) + byte // 16 * 128 + r % 8 * 16 + byte % 16
            else:
                at = _swizzled(r // 8 * 8 * row_bytes + r % 8 * row_bytes + byte, row_bytes)
            out[at] = raw[r, byte]
    return out


def _wgmma(kind: str, n: int, row_bytes: int) -> Case:
    k = 256 // _FORMATS[kind][1]
    a, a_bits = _numbers(kind, (64, k))
    b, b_bits = _numbers(kind, (n, k))
    parts = [_operand_in_shared(x, row_bytes) for x in (a_bits, b_bits)]
    tile = np.concatenate([np.pad(p, (0, -len(p) % 1024)) for p in parts])
    integers = kind in ("s8", "u8")
    d = "s32" if integers else "f32"
    total = a @ b.T
    expected = np.zeros((128, n // 2), np.int32 if integers else np.float32)
    for thread in range(128):           # the ISA's figure of the D fragment: rows by warp and lane / 4, columns by pairs
        for i in range(n // 2):
            row = thread // 32 * 16 + thread % 32 // 4 + 8 * (i // 2 % 2)
            expected[thread, i] = total[row, i // 4 * 8 + thread % 4 * 2 + i % 2]
    mode = {16: 0, 128: 1, 64: 2, 32: 3}[row_bytes]
    leading, stride = (128, 8 * k * a_bits.itemsize) if row_bytes == 16 else (16, 8 * row_bytes)
    fields = (leading >> 4) << 16 | (stride >> 4) << 32 | mode << 62
    b_at = -(-len(parts[0]) // 1024) * 1024
    signs = "" if integers else ", 1, 1" + (", 0, 0" if kind in ("f16", "bf16") else "")
    count = n // 2
    body = "\n".join([
        _to_shared(len(tile) // 4, 128), "fence.proxy.async;", ".reg .b64 %da, %db;", ".reg .b32 %s;", ".reg .pred %add;", "mov.u32 %s, tile;",
        "and.b32 %s, %s, 0x3ffff;", "shr.u32 %s, %s, 4;", "cvt.u64.u32 %da, %s;", f"or.b64 %da, %da, {fields - (1 << 64) if fields >> 63 else fields};",
        f"add.u64 %db, %da, {b_at >> 4};", f".reg .b32 {_listed('d', count)[1:-1]};", *(f"mov.b32 %d{i}, 0;" for i in range(count)),
        "setp.ne.b32 %add, 0, 0;", "wgmma.fence.sync.aligned;",
        f"wgmma.mma_async.sync.aligned.m64n{n}k{k}.{d}.{kind}.{kind} {_listed('d', count)}, %da, %db, %add{signs};",
        "wgmma.commit_group.sync.aligned;", "wgmma.wait_group.sync.aligned 0;", _lane_stores("d", 1, count)])
    return Case(f"wgmma n{n} {kind} rows of {row_bytes}", module(["u64", "u64"], body, "sm_90a", _tile(len(tile))), (tile,), expected, 128,
                relative=0.0 if integers else 1e-4, arch="sm_90a")


MATRIX_CASES: tuple[Case, ...] = (
    *(_mma(kind, k) for kind, k in (("f16", 8), ("f16", 16), ("bf16", 8), ("bf16", 16), ("tf32", 4), ("tf32", 8))),
    _mma("f16", 16, "f16"), _mma("s8", 32, "s32"), _mma("u8", 32, "s32"), _mma("s8", 16, "s32"),
    _mma("e4m3", 32, "f32", "sm_89"), _mma("e5m2", 32, "f32", "sm_89"),
    *(_ldmatrix(count, transposed) for count in (1, 2, 4) for transposed in (False, True)),
    *(_stmatrix(count, transposed) for count in (2, 4) for transposed in (False, True)),
    *(_wgmma(kind, 16, row_bytes) for kind in ("bf16", "f16") for row_bytes in (16, 32, 64, 128)),
    _wgmma("bf16", 64, 128), _wgmma("tf32", 16, 128), _wgmma("e4m3", 16, 128), _wgmma("s8", 16, 128),
)
