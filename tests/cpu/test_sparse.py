"""Sparse attention of outputs: the rule, float64 over the same choice, and the same bits however a step is cut up."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.inputs import pack
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.sparse import ALL, Sparse, chosen
from imp.types import Batch, Request, Row, Sequence
from tests.cpu.harness import step
from tests.model import tiny
from tests.model.test_arch import checkpoint

LIMITS = StepLimits(tokens=256, rows=8, logit_rows=256, context=256, blocks=80)
SPARSE = Sparse(top=32, sink=16, recent=24, least=100)
PROMPT = 90  # positions; those from 99 on are sparse
TOKENS = 240


def run(backend: Any, name: str, steps: list[int], prompt: int = PROMPT) -> np.ndarray:
    """Logits of the last of TOKENS positions of each step."""
    tokens = tiny.prompt(name, TOKENS)
    blocks = np.random.default_rng(len(steps)).permutation(LIMITS.blocks)[: TOKENS // 16].tolist()
    out, start = [], 0
    for count in steps:
        inputs = step([(tokens[start : start + count], start, blocks)], wanted=range(count))
        out.append(backend.run(replace(inputs, outputs=np.array([prompt], np.int32))).copy())
        start += count
    return np.concatenate(out)


def cpu(folder: Path, name: str, sparse: Sparse, threads: int = 2, dtype: str = "auto", features=None) -> CpuBackend:
    made = CpuBackend(threads, folder, features, kv_dtype=dtype, sparse=sparse)
    made.load(arch.build(checkpoint(name)), LIMITS)
    return made


DECODED = [PROMPT, *[1] * (TOKENS - PROMPT)]


@pytest.mark.parametrize("name", ["llama", "gemma3", "llama-multi-head"])
def test_logits_are_those_of_float64_over_the_same_choice(kernel_folder, features, name):
    judge, whole = ReferenceBackend(np.float64, sparse=SPARSE), ReferenceBackend(np.float64)
    for each in (judge, whole):
        each.load(arch.build(checkpoint(name)), LIMITS)
    backend = cpu(kernel_folder, name, SPARSE, features=features)
    ours, expected, dense = (run(each, name, DECODED) for each in (backend, judge, whole))
    backend.close()
    assert np.abs(ours - expected).max() < 1e-3
    assert np.abs(dense - expected)[: SPARSE.least - 1].max() < 1e-5
    assert np.abs(dense - expected)[SPARSE.least + 10 :].max() > 0.1


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "int8", "nvfp4"])
def test_with_room_for_all_blocks_the_bits_are_those_of_dense_attention(kernel_folder, dtype):
    found = []
    for sparse in (ALL, Sparse(top=256, least=20), Sparse(top=16, sink=0, recent=256, least=20)):
        backend = cpu(kernel_folder, "llama", sparse, dtype=dtype)
        found.append(run(backend, "llama", DECODED).view(np.uint32))
        backend.close()
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_steps_and_threads_do_not_change_a_bit(kernel_folder, name, dtype):
    """Decoded one by one, guessed at several at once, and computed again in one piece after a preemption."""
    seen = []
    left = TOKENS - PROMPT
    for threads, steps in (
        (1, DECODED),
        (2, [TOKENS]),
        (3, [PROMPT, *[5] * (left // 5)]),
        (2, [PROMPT + 40, left - 40]),
    ):
        backend = cpu(kernel_folder, name, SPARSE, threads, dtype)
        seen.append(run(backend, name, steps).view(np.uint32))
        backend.close()
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])


def test_a_row_is_the_same_bits_beside_others(kernel_folder):
    """Two that are sparse at different places, and one that is a prompt."""
    backend = cpu(kernel_folder, "llama", SPARSE)
    lengths, prompts = (200, 130, 150), (100, 120, 256)
    tokens = [tiny.prompt("llama", n) for n in lengths]
    blocks = [range(i * 16, i * 16 + 16) for i in range(3)]
    rows = [(t[:-4], 0, b) for t, b in zip(tokens, blocks, strict=True)]
    last = [(t[-4:], len(t) - 4, b) for t, b in zip(tokens, blocks, strict=True)]

    def outputs(*given: int) -> np.ndarray:
        return np.array(given, np.int32)

    for row, prompt in zip(rows, prompts, strict=True):
        backend.run(replace(step([row]), outputs=outputs(prompt)))
    together = backend.run(replace(step(last), outputs=outputs(*prompts))).copy()
    for i in range(3):
        alone = backend.run(replace(step([last[i]]), outputs=outputs(prompts[i])))
        np.testing.assert_array_equal(alone[0].view(np.uint32), together[i].view(np.uint32))
    backend.close()


def test_a_prompt_is_never_sparse(kernel_folder):
    found = []
    for sparse in (ALL, Sparse(top=16, least=1, recent=16, sink=0)):
        backend = cpu(kernel_folder, "llama", sparse)
        found.append(run(backend, "llama", [100, 140], prompt=TOKENS).view(np.uint32))
        backend.close()
    np.testing.assert_array_equal(*found)


def test_the_packed_step_says_where_outputs_begin():
    seq = Sequence(Request("r", (1, 2, 3)), 0, 0, [1, 2, 3, 4], blocks=[0])
    assert pack(Batch([Row(seq, 3, 1)]), 16).outputs.tolist() == [3]


@pytest.mark.parametrize(
    "scores, position, expected",
    [
        ([0, 5, 1, 5, 2, 0, 0, 0], 127, [1, 1, 0, 1, 0, 0, 1, 1]),  # the best two between
        ([9, 3, 3, 3, 3, 3, 9, 9], 127, [1, 1, 1, 0, 0, 0, 1, 1]),
        ([0, -5, -1, -2, -9, 0, 0, 0], 127, [1, 0, 1, 0, 0, 1, 1, 1]),
        ([0, 1, 2, 3], 50, [1, 1, 1, 1]),  # few enough for all
        ([0], 0, [1]),
    ],
)
def test_what_is_chosen(scores, position, expected):
    """One block at the beginning, the latest 32 positions, two blocks between; of equal ones the earlier."""
    keep = chosen(np.array(scores, float), position, Sparse(top=32, sink=16, recent=32, least=1), 16)
    assert keep.astype(int).tolist() == expected
