"""Attention over pages against float64: prompts, single tokens, guesses, windows, caps, every format of keys and values.
Its bits depend neither on how many rows a block has nor on who merges the splits."""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
import pytest

from imp.model.kv import FORMATS, turned
from tests.gpu.kernels import FORM_TYPES, FORMS, TOLERANCE, Result, counts, error, module, operand, padded, run, values
from tests.gpu.test_kernels_rotate import KINDS, QUERIES, record_of

SPLIT = 512


@dataclass
class Case:
    kind: str
    d: int
    group: int
    kv_heads: int
    new: tuple[int, ...]  # tokens of each sequence in the step
    contexts: tuple[int, ...]  # keys of each sequence after it
    scale: float = 0.25
    softcap: float = 0.0
    window: int = 0
    seed: int = 0
    queries: np.ndarray = field(init=False)  # [tokens, heads, d] as the kernel gets them
    plane: np.ndarray = field(init=False)
    table: np.ndarray = field(init=False)
    expected: np.ndarray = field(init=False)  # float64 [tokens, heads, d]

    def __post_init__(self) -> None:
        rng, form = np.random.default_rng(self.seed), FORMATS[self.kind]
        tokens, heads = sum(self.new), self.group * self.kv_heads
        kind = QUERIES.get(self.kind, "f16")
        self.queries = values(operand(rng.normal(size=(tokens, heads * self.d)), kind, heads * self.d), kind).reshape(
            tokens, heads, self.d
        )
        blocks = [-(-c // 16) for c in self.contexts]
        self.starts = np.concatenate([[0], np.cumsum(blocks)]).astype(np.int32)
        self.table = rng.permutation(sum(blocks) + 3)[: sum(blocks)].astype(np.int32)
        record = form.record_bytes(self.d)
        codes = self.d * form.bits // 8
        self.plane = np.full((sum(blocks) + 3, self.kv_heads, 2, 16 * record), 255, np.uint8)
        self.expected = np.zeros((tokens, heads, self.d))
        first = 0
        for b, (new, context) in enumerate(zip(self.new, self.contexts, strict=True)):
            k, v = rng.normal(size=(2, context, self.kv_heads, self.d)).astype(np.float32)
            k[0] *= 3  # the first key gets much of the weight
            kept = []
            for second, x in enumerate((k, v)):
                records = record_of(self.kind, turned(x) if form.turns else x)
                for p in range(context):
                    block, at = self.table[self.starts[b] + p // 16], p % 16
                    self.plane[block, :, second, at * codes : (at + 1) * codes] = records[p, :, :codes]
                    rest = slice(16 * codes + at * (record - codes), 16 * codes + (at + 1) * (record - codes))
                    self.plane[block, :, second, rest] = records[p, :, codes:]
                kept.append(form.kept(x))  # of codes still turned
            self._attend(first, new, context, *kept)
            first += new

    def _attend(self, first: int, new: int, context: int, k: np.ndarray, v: np.ndarray) -> None:
        form = FORMATS[self.kind]
        for i in range(new):
            position = context - new + i
            low = max(0, position - self.window + 1) if self.window else 0
            for h in range(self.group * self.kv_heads):
                keys, vals = (
                    k[low : position + 1, h // self.group].astype(np.float64),
                    v[low : position + 1, h // self.group],
                )
                scores = keys @ self.queries[first + i, h].astype(np.float64) * self.scale
                if self.softcap:
                    scores = self.softcap * np.tanh(scores / self.softcap)
                p = np.exp(scores - scores.max())
                out = p / p.sum() @ vals.astype(np.float64)
                self.expected[first + i, h] = turned(out) if form.turns else out

    def attend(self, rows: int, split: bool, form: str = "f32") -> np.ndarray:
        """float32 [tokens, ldo]"""
        tokens, heads = sum(self.new), self.group * self.kv_heads
        kind, ldq, each = QUERIES.get(self.kind, "f16"), padded(heads * self.d), max(1, rows // self.group)
        q = operand(self.queries.reshape(tokens, -1), kind, ldq)
        tiles = np.array([(b, t) for b, new in enumerate(self.new) for t in range(0, new, each)], np.int32)
        row_starts = np.concatenate([[0], np.cumsum(self.new)]).astype(np.int32)
        used = -(-max(self.contexts) // SPLIT)
        splits, out = used + 1 if split else 1, Result((tokens, ldq), FORM_TYPES[form])
        partial = Result((tokens, heads, splits, self.d + 2))
        count = counts(tokens, len(tiles), used)
        built = module("attend.cu", KV=KINDS.index(self.kind), D=self.d, GROUP=self.group, ROWS=rows)
        shared = 4 * (81 * self.d + 1088) if self.kind == "fp32" else 256 * (self.d + 8)
        args = [
            q,
            self.plane,
            self.table,
            self.starts,
            np.array(self.contexts, np.int32),
            row_starts,
            tiles,
            count,
            out,
            partial,
            self.plane[0].nbytes,
            FORMS[form],
            ldq,
            ldq,
            self.kv_heads,
            self.scale,
            self.softcap,
            self.window,
            splits,
        ]
        y, sums = run(built, "attend", (self.kv_heads, len(tiles) + 1, splits), 128, args, shared)
        if split:
            assert (y.view(np.uint8) == 255).all()
            args = [sums, count, out, FORMS[form], ldq, heads, splits]
            (y,) = run(built, "combine", (tokens + 1, heads), 32, args)
        y = values(y, form)
        assert not y[:, heads * self.d :].any()
        return y[:, : heads * self.d].reshape(tokens, heads, self.d)


def tolerance(kind: str) -> float:
    return TOLERANCE[QUERIES.get(kind, "f16")] * (1 if kind == "fp32" else 2)  # of weights and of what is kept


@pytest.mark.parametrize(("kind", "d"), [*((kind, 64) for kind in KINDS), ("fp16", 128), ("int4", 128)])
def test_every_format(kind: str, d: int) -> None:
    """A prompt from its start, a chunk, one token."""
    case = Case(kind, d, group=4, kv_heads=2, new=(5, 2, 1), contexts=(5, 70, 33), scale=d**-0.5)
    assert error(case.attend(16, False), case.expected) < tolerance(kind)


@pytest.mark.parametrize(
    ("kind", "d", "group", "rows"),
    [
        ("fp16", 16, 1, 64),
        ("int4", 32, 2, 32),
        ("fp16", 64, 3, 64),
        ("nvfp4", 80, 5, 16),
        ("fp32", 80, 5, 64),
        ("mxfp4", 96, 1, 32),
        ("fp32", 16, 1, 16),
        ("fp16", 256, 4, 32),
        ("int4", 256, 8, 16),
    ],
)
def test_sizes_of_heads_and_groups(kind: str, d: int, group: int, rows: int) -> None:
    case = Case(kind, d, group, kv_heads=1, new=(19, 1), contexts=(21, 66), scale=d**-0.5, seed=d)
    assert error(case.attend(rows, False), case.expected) < tolerance(kind)


@pytest.mark.parametrize(("softcap", "window"), [(5.0, 0), (0.0, 40), (3.0, 7), (0.0, 600)])
@pytest.mark.parametrize("kind", ["fp32", "fp16"])
def test_caps_and_windows(kind: str, softcap: float, window: int) -> None:
    case = Case(
        kind, 32, group=2, kv_heads=2, new=(70, 1), contexts=(75, 700), scale=0.6, softcap=softcap, window=window
    )
    assert error(case.attend(64, False), case.expected) < tolerance(kind)
    assert error(case.attend(16, True), case.expected) < tolerance(kind)


@pytest.mark.parametrize("form", FORMS)
def test_forms_of_the_result(form: str) -> None:
    case = Case("fp16", 80, group=2, kv_heads=1, new=(3,), contexts=(20,))
    assert error(case.attend(16, False, form), case.expected) < max(TOLERANCE[form], tolerance("fp16"))
    assert error(case.attend(16, True, form), case.expected) < max(TOLERANCE[form], tolerance("fp16"))


@pytest.mark.parametrize(
    ("kind", "d", "most"), [("fp32", 32, 64), ("fp16", 32, 64), ("bf16", 32, 64), ("int8", 32, 64), ("fp16", 256, 32)]
)
def test_bits_depend_on_the_sequence_alone(kind: str, d: int, most: int) -> None:
    """Guesses behind a long context, in tiles of few and of many rows, walked by one block or by one for each split, and the
    last of them alone."""

    def case(new: tuple[int, ...], contexts: tuple[int, ...]) -> Case:
        return Case(kind, d, group=2, kv_heads=1, new=new, contexts=contexts, scale=d**-0.5)

    several = case((4, 2), (1030, 516))
    together = several.attend(most, False)
    assert error(together, several.expected) < tolerance(kind)
    for rows in (16, most):
        for split in (False, True):
            np.testing.assert_array_equal(several.attend(rows, split), together)
    alone = case((1,), (1030,))
    assert (alone.queries.shape, together.shape) == ((1, 2, d), (6, 2, d))
    _, alone.queries = alone.queries, several.queries[3:4]
    alone.plane, alone.table, alone.starts = several.plane, several.table, several.starts[:2]
    for split in (False, True):
        np.testing.assert_array_equal(alone.attend(16, split)[0], together[3])
