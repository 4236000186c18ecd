"""Instructions of a warp, and atomics: one block of 32 or more threads, a word of each in and out."""

from collections.abc import Callable

import numpy as np

from tests.gpu.micro.case import Case, elementwise, module

_RNG = np.random.default_rng(20)
_LANES = np.arange(32)
_WORDS = _RNG.integers(0, 1 << 32, 32, dtype=np.uint32)
_FEW = (_WORDS % 5).astype(np.uint32)


def _warp(name: str, instruction: str, x: np.ndarray, expected: np.ndarray, arch: str = "sm_80") -> Case:
    return Case(name, elementwise(instruction, ["b32"], "b32", arch), (x,), np.asarray(expected).astype(np.uint32), arch=arch)


def _shuffled(mode: str, by: int, width: int) -> np.ndarray:
    """From the CUDA C++ Programming Guide's description: within segments of `width` lanes; out of range gives one's own."""
    start = _LANES // width * width
    source = {"up": _LANES - by, "down": _LANES + by, "bfly": _LANES ^ by, "idx": start + by % width}[mode]
    inside = (source >= start) & ((source < start + width) | (mode == "up"))
    if mode == "bfly":              # into lower segments it may reach, into higher ones not
        inside = source < start + width
    return _WORDS[np.where(inside, source, _LANES)]


def _shuffle(mode: str, by: int, width: int) -> Case:
    clamp = (32 - width) << 8 | (0 if mode == "up" else 31)
    return _warp(f"shfl.{mode} {by} of {width}", f"shfl.sync.{mode}.b32 %d, %x, {by}, {clamp}, 0xffffffff;", _WORDS, _shuffled(mode, by, width))


def _reduced(name: str, what: Callable[[np.ndarray], int], x: np.ndarray) -> Case:
    return _warp(f"redux.{name}", f"redux.sync.{name} %d, %x, 0xffffffff;", x, np.full(32, int(what(x)) % (1 << 32), np.uint32))


def _vote(kind: str, expected: int) -> Case:
    text = f".reg .pred %p, %q;\nsetp.eq.u32 %p, %x, 3;\nvote.sync.{kind}.pred %q, %p, 0xffffffff;\nselp.u32 %d, 1, 0, %q;"
    return _warp(f"vote.{kind}", text, _FEW, np.full(32, expected))


def _atomic(name: str, instruction: str, start: int, expected: int, words: np.ndarray) -> Case:
    """Sixty-four threads at one shared word; what is left in it."""
    body = f"""
    .reg .pred %p;
    .reg .b32 %x, %s, %d;
    .reg .b64 %at;
    mad.lo.u64 %at, %wide, 4, %arg0;
    ld.global.u32 %x, [%at];
    mov.u32 %s, word;
    setp.eq.u32 %p, %thread, 0;
    @%p st.shared.u32 [%s], {start};
    bar.sync 0;
    {instruction}
    bar.sync 0;
    @%p ld.shared.u32 %d, [%s];
    @%p st.global.u32 [%arg1], %d;"""
    return Case(name, module(["u64", "u64"], body, shared=".shared .align 4 .b8 word[4];"), (words,), np.array([expected], np.uint32), len(words))


_MANY = _RNG.integers(0, 1 << 32, 64, dtype=np.uint32)
_BALLOT = int(sum(1 << int(i) for i in np.flatnonzero(_FEW == 3)))

WARP_CASES: tuple[Case, ...] = (
    *(_shuffle(mode, by, width) for mode in ("up", "down", "bfly", "idx") for by, width in ((1, 32), (3, 16), (7, 8), (17, 32))),
    _warp("vote.ballot", ".reg .pred %p;\nsetp.eq.u32 %p, %x, 3;\nvote.sync.ballot.b32 %d, %p, 0xffffffff;", _FEW, np.full(32, _BALLOT)),
    _vote("any", 1), _vote("all", 0), _vote("uni", 0),
    _warp("match.any", "match.any.sync.b32 %d, %x, 0xffffffff;", _FEW,
          np.array([sum(1 << j for j in range(32) if _FEW[j] == v) for v in _FEW])),
    _warp("match.all", ".reg .pred %p;\nmatch.all.sync.b32 %d|%p, %x, 0xffffffff;", np.full(32, 9, np.uint32), np.full(32, 0xFFFFFFFF)),
    _reduced("add.u32", lambda x: x.astype(np.uint64).sum(), _WORDS),
    _reduced("min.s32", lambda x: x.view(np.int32).min(), _WORDS),
    _reduced("max.s32", lambda x: x.view(np.int32).max(), _WORDS),
    _reduced("max.u32", lambda x: x.max(), _WORDS),
    _reduced("and.b32", np.bitwise_and.reduce, _WORDS | 0xFF),
    _reduced("or.b32", np.bitwise_or.reduce, _WORDS & 0xF0F),
    _reduced("xor.b32", np.bitwise_xor.reduce, _WORDS),
    _warp("elect", ".reg .pred %p;\n.reg .b32 %l;\nelect.sync %l|%p, 0xffffffff;\nselp.u32 %d, 1, 0, %p;\nshl.b32 %l, %l, 8;\nor.b32 %d, %d, %l;",
          _WORDS, (_LANES == 0).astype(np.uint32), "sm_90a"),
    _warp("lanemasks", ".reg .b32 %l, %g;\nmov.u32 %l, %lanemask_lt;\nmov.u32 %g, %lanemask_ge;\nshr.u32 %g, %g, 1;\nxor.b32 %d, %l, %g;", _WORDS,
          ((1 << _LANES.astype(np.int64)) - 1) ^ ((0xFFFFFFFF << _LANES.astype(np.int64) & 0xFFFFFFFF) >> 1)),
    _atomic("atom.add", "red.shared.add.u32 [%s], %x;", 5, (5 + int(_MANY.astype(np.uint64).sum())) % (1 << 32), _MANY),
    _atomic("atom.min.s32", "red.shared.min.s32 [%s], %x;", 0, int(min(_MANY.view(np.int32).min(), 0)) % (1 << 32), _MANY),
    _atomic("atom.max.u32", "red.shared.max.u32 [%s], %x;", 0, int(_MANY.max()), _MANY),
    _atomic("atom.xor", "red.shared.xor.b32 [%s], %x;", 0, int(np.bitwise_xor.reduce(_MANY)), _MANY),
    _atomic("atom.inc", "red.shared.inc.u32 [%s], 40;", 0, 64 % 41, _MANY),
    _atomic("atom.dec", "red.shared.dec.u32 [%s], 9;", 3, (3 - 64) % 10, _MANY),
    _atomic("atom.cas", ".reg .b32 %old;\natom.shared.cas.b32 %old, [%s], 5, 77;", 5, 77, _MANY),
    _atomic("red.add.f32", "red.shared.add.f32 [%s], 0f3F800000;", 0x3F800000, int(np.array([65], np.float32).view(np.uint32)[0]), _MANY),
)
