"""Paged attention: right against float64, and the same bits however a step is cut up."""

from __future__ import annotations

import itertools
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.attention import AttentionWork
from imp.cpu.cache import CompiledKernels, compile_all
from imp.cpu.kept import Kept
from imp.cpu.kv import KEPT, kept_for
from imp.cpu.program import (
    STEP_CONTEXTS,
    STEP_POSITIONS,
    STEP_ROW_STARTS,
    STEP_ROWS,
    STEP_TABLE,
    STEP_TABLE_STARTS,
    STEP_TOKENS,
    Buffer,
    build,
)
from imp.cpu.threads import Threads
from imp.cpu.variants import detect, variants
from imp.model import arch
from imp.model.kv import turned
from imp.model.ops import Attention, StepLimits
from imp.weights.quant import FORMATS
from tests.cpu.kept import head_of_block
from tests.model.test_arch import checkpoint

BLOCK = 16


KINDS = [detect(), *[kind for kind in variants() if kind == "avx512" != detect()]]  # with tiles, and without


@pytest.fixture(scope="module", params=KINDS)
def kernels(request: pytest.FixtureRequest, kernel_folder: Path) -> CompiledKernels:
    return CompiledKernels(kernel_folder, request.param)


@pytest.fixture(scope="module", params=[1, 2], ids=["one thread", "two threads"])
def threads(request: pytest.FixtureRequest, kernels: CompiledKernels):
    threads = Threads(request.param, kernels)
    yield threads
    threads.close()


@pytest.fixture(scope="module", params=["fp16", "fp32"])
def kept(request: pytest.FixtureRequest) -> Kept:
    return KEPT[request.param]


@pytest.fixture(scope="module", params=[name for name in KEPT if name not in ("fp16", "fp32")])
def compact(request: pytest.FixtureRequest) -> Kept:
    return KEPT[request.param]


def make(heads: int, kv_heads: int, d: int, window: int | None = None, softcap: float | None = None) -> Attention:
    return Attention(0, heads, kv_heads, d, scale=d**-0.5, rope=None, window=window, softcap=softcap)


class Cache:
    """Sequences of keys and values scattered over blocks; every bit of what is not written is set: NaN, as a float."""

    def __init__(self, kept: Kept, rng: np.random.Generator, lengths: list[int], kv_heads: int, d: int) -> None:
        self.kept = kept
        counts = [-(-n // BLOCK) for n in lengths]
        blocks = rng.permutation(sum(counts) + 1).astype(np.int32)  # one that nobody owns
        self.tables = np.split(blocks, np.cumsum(counts))[:-1]
        given = [
            [(rng.standard_normal((n, kv_heads, d)) * size).astype(np.float32) for n in lengths] for size in (1.5, 1.0)
        ]
        self.block_bytes = 2 * BLOCK * kv_heads * kept.format.record_bytes(d)
        self.memory = np.full((len(blocks), kv_heads, self.block_bytes // kv_heads), 255, np.uint8)
        for table, keys, values in zip(self.tables, *given, strict=True):
            for i, block in enumerate(table):
                rows = slice(i * BLOCK, (i + 1) * BLOCK)
                for g in range(kv_heads):
                    self.memory[block, g] = head_of_block(kept.format, keys[rows, g], values[rows, g])
        self.keys, self.values = ([kept.format.through(x) for x in xs] for xs in given)


Row = tuple[int, int, int]  # sequence, first position, positions


def run(
    kernels,
    threads,
    a: Attention,
    cache: Cache,
    queries: list[np.ndarray],
    rows: list[Row],
    partials: int | None = None,
) -> np.ndarray:
    """One step of these rows; `queries` holds [positions, H*d] of each sequence. [T, H*d]"""
    tokens = sum(count for _, _, count in rows)
    limits = StepLimits(tokens, len(rows), 1, max(len(q) for q in queries), len(cache.memory))
    work = AttentionWork.sized(limits, kernels.variant)
    if partials is not None:
        work = replace(work, partials=partials)
    q = Buffer(tokens * a.heads * a.head_dim * 4, "q")
    ops, out = work.attended(q, a, cache.memory, cache.block_bytes, cache.kept)
    ops = [work.planned(), *ops]
    addresses = compile_all(kernels, [op.kernel for op in ops])
    program = build(ops, addresses, pinned=(q, out))

    def view(buffer: Buffer) -> np.ndarray:
        memory = program.keep[0]
        start = buffer.address - memory.ctypes.data
        return memory[start : start + buffer.size].view(np.float32).reshape(tokens, -1)

    given = np.concatenate([queries[s][start : start + count] for s, start, count in rows])
    if cache.kept.format.turns:
        given = turned(given.reshape(tokens, a.heads, a.head_dim)).reshape(given.shape)
    view(q)[:] = given
    counts = [count for _, _, count in rows]
    arrays = {
        STEP_POSITIONS: np.concatenate([np.arange(start, start + count) for _, start, count in rows]),
        STEP_ROW_STARTS: np.cumsum([0, *counts]),
        STEP_CONTEXTS: [start + count for _, start, count in rows],
        STEP_TABLE_STARTS: np.cumsum([0, *(-(-(start + count) // BLOCK) for _, start, count in rows)]),
        STEP_TABLE: np.concatenate([cache.tables[s][: -(-(start + count) // BLOCK)] for s, start, count in rows]),
    }
    arrays = {at: np.array(values, np.int32) for at, values in arrays.items()}
    for at, values in arrays.items():
        threads.step[at] = values.ctypes.data
    threads.step[STEP_TOKENS], threads.step[STEP_ROWS] = tokens, len(rows)
    threads.run(program)
    return view(out).copy()


def expected(a: Attention, cache: Cache, queries: list[np.ndarray], rows: list[Row]) -> np.ndarray:
    """float64, from the definition."""
    outputs = []
    for s, start, count in rows:
        for p in range(start, start + count):
            low = 0 if a.window is None else max(0, p - a.window + 1)
            keys, values = (x[s][low : p + 1].astype(np.float64) for x in (cache.keys, cache.values))
            heads = []
            for h, q in enumerate(queries[s][p].astype(np.float64).reshape(a.heads, a.head_dim)):
                g = h // (a.heads // a.kv_heads)
                scores = keys[:, g] @ q * a.scale
                if a.softcap:
                    scores = a.softcap * np.tanh(scores / a.softcap)
                weights = np.exp(scores - scores.max())
                heads.append(weights @ values[:, g] / weights.sum())
            outputs.append(np.concatenate(heads))
    return np.array(outputs)


def some_queries(rng: np.random.Generator, lengths: list[int], a: Attention) -> list[np.ndarray]:
    return [rng.standard_normal((n, a.heads * a.head_dim)).astype(np.float32) for n in lengths]


SHAPES = [
    make(9, 3, 64),
    make(4, 1, 256, window=512),
    make(4, 4, 80),
    make(4, 2, 96, softcap=20.0),
    make(16, 1, 128),
    make(5, 1, 72, window=3),
    make(7, 1, 64, window=40, softcap=5.0),
    make(8, 1, 8),
]


def name(a: Attention) -> str:
    return f"{a.heads}/{a.kv_heads}x{a.head_dim}w{a.window}c{a.softcap}"


@pytest.mark.parametrize("a", SHAPES, ids=name)
def test_output_is_that_of_the_definition(kernels, threads, kept, a) -> None:
    rng = np.random.default_rng(1)
    lengths = [1, 15, 16, 17, 700, 1100, 530]
    cache, queries = Cache(kept, rng, lengths, a.kv_heads, a.head_dim), some_queries(rng, lengths, a)
    rows = [(0, 0, 1), (1, 0, 15), (2, 15, 1), (3, 16, 1), (4, 640, 60), (5, 1099, 1), (6, 526, 4)]
    out = run(kernels, threads, a, cache, queries, rows)
    want = expected(a, cache, queries, rows)
    assert np.abs(out - want).max() < 1e-5 * np.abs(want).max()


COMPACT_SHAPES = [make(9, 3, 64), make(4, 1, 256, window=512), make(4, 2, 96, softcap=20.0), make(4, 2, 80)]


@pytest.mark.parametrize("a", COMPACT_SHAPES, ids=name)
def test_output_over_compact_keys_and_values_is_that_of_the_definition(kernels, threads, compact, a) -> None:
    test_output_is_that_of_the_definition(kernels, threads, compact, a)


@pytest.mark.parametrize("a", SHAPES, ids=name)
def test_same_bits_however_the_step_is_cut(kernels, threads, kept, a) -> None:
    rng = np.random.default_rng(2)
    lengths = [1060, 40, 9]
    cache, queries = Cache(kept, rng, lengths, a.kv_heads, a.head_dim), some_queries(rng, lengths, a)
    start = 1060 - 100  # earlier positions are a cached prefix
    whole = run(kernels, threads, a, cache, queries, [(0, start, 100), (1, 0, 40), (2, 0, 9)])
    wanted = {(0, start): whole[:100], (1, 0): whole[100:140], (2, 0): whole[140:]}
    for _ in range(4):
        for (s, first), want in wanted.items():
            cuts = sorted(rng.choice(np.arange(1, len(want)), size=min(6, len(want) - 1), replace=False).tolist())
            for begin, end in itertools.pairwise([0, *cuts, len(want)]):
                beside = [(1, int(rng.integers(0, 40)), 1), (0, 1059, 1)][: int(rng.integers(0, 3))]
                rows = [*beside, (s, first + begin, end - begin)]
                room = None if rng.random() < 0.5 else 0  # chunks split between units, or all in one
                out = run(kernels, threads, a, cache, queries, rows, room)
                assert np.array_equal(out[len(beside) :].view(np.uint32), want[begin:end].view(np.uint32))


@pytest.mark.parametrize("a", [make(9, 3, 64), make(4, 1, 256, window=512)], ids=name)
def test_same_bits_of_compact_keys_and_values_however_the_step_is_cut(kernels, threads, compact, a) -> None:
    test_same_bits_however_the_step_is_cut(kernels, threads, compact, a)


@pytest.mark.parametrize("a", [make(9, 3, 64), make(4, 1, 256, window=512), make(2, 2, 80)], ids=name)
def test_one_by_one_gives_the_bits_of_a_prompt(kernels, threads, kept, a) -> None:
    rng = np.random.default_rng(3)
    lengths = [1040]
    cache, queries = Cache(kept, rng, lengths, a.kv_heads, a.head_dim), some_queries(rng, lengths, a)
    whole = run(kernels, threads, a, cache, queries, [(0, 0, 1040)])
    for p in [*range(0, 1040, 61), 510, 511, 512, 513, 1023, 1024, 1039]:
        alone = run(kernels, threads, a, cache, queries, [(0, p, 1)])
        assert np.array_equal(alone[0].view(np.uint32), whole[p].view(np.uint32)), p


def test_scores_far_apart_stay_finite(kernels, threads, kept) -> None:
    a = make(3, 1, 64)
    rng = np.random.default_rng(4)
    cache, queries = Cache(kept, rng, [600], 1, 64), [rng.standard_normal((600, 192)).astype(np.float32) * 300]
    rows = [(0, 0, 64), (0, 599, 1)]
    out, want = run(kernels, threads, a, cache, queries, rows), expected(a, cache, queries, rows)
    # scores of several thousand are exact to about 1e-4 in float32
    assert np.abs(out - want).max() < 5e-3


def test_portable_code_computes_the_same(kernel_folder: Path, kept: Kept) -> None:
    kernels = CompiledKernels(kernel_folder, "portable")
    threads = Threads(1, kernels)
    a, rng = make(3, 1, 64), np.random.default_rng(5)
    cache, queries = Cache(kept, rng, [90], 1, 64), some_queries(rng, [90], a)
    rows = [(0, 0, 40), (0, 89, 1)]
    out, want = run(kernels, threads, a, cache, queries, rows), expected(a, cache, queries, rows)
    threads.close()
    assert np.abs(out - want).max() < 1e-5 * np.abs(want).max()


def test_only_a_model_all_in_float32_has_a_float_cache() -> None:
    class Halved(type(checkpoint("llama"))):
        """One matrix in another format."""

        def weight(self, name):
            whole = super().weight(name)
            if not name.endswith(self.odd):
                return whole
            data = whole.float32().astype(np.float16).view(np.uint8)
            return type(whole)(name, data, FORMATS["F16"], whole.shape)

    whole = checkpoint("llama-biased")
    model = arch.build(whole)
    assert model.formats == {"F32"} and kept_for(model) is KEPT["fp32"]
    for odd in (
        "1.self_attn.k_proj.weight",
        "0.self_attn.o_proj.weight",
        "2.mlp.up_proj.weight",
        "1.mlp.down_proj.weight",
        "lm_head.weight",
    ):
        mixed = Halved(whole.config, whole.tensors)
        mixed.odd = odd
        model = arch.build(mixed)
        assert model.formats == {"F32", "F16"} and kept_for(model) is KEPT["fp16"], odd
