"""Whole models on the CPU backend: transformers' and float64's logits, batch invariance, memory, refusals."""

from __future__ import annotations

import math
import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.kv import FORMATS
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.sparse import Sparse
from imp.weights.checkpoint import UnsupportedModel, open_checkpoint
from tests.cpu.harness import step
from tests.gpu.tiny import model as quantised_tiny
from tests.model import tiny
from tests.model.test_arch import GOLDEN, checkpoint, run_in_steps

TINY = StepLimits(tokens=64, rows=8, logit_rows=64, context=256, blocks=64)
REAL = StepLimits(tokens=256, rows=8, logit_rows=256, context=512, blocks=80)


@pytest.fixture(scope="module")
def folder(kernel_folder: Path) -> Path:
    return kernel_folder


def loaded(folder: Path, model, limits: StepLimits, threads: int = 2, features: str | None = None) -> CpuBackend:
    backend = CpuBackend(threads, folder, features)
    backend.load(model, limits)
    return backend


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_are_those_of_transformers_and_of_float64(folder, features, name):
    """float32 weights, activations, keys and values."""
    model, tokens = arch.build(checkpoint(name)), tiny.prompt(name)
    backend, judge = loaded(folder, model, TINY, features=features), ReferenceBackend(np.float64)
    judge.load(model, TINY)
    ours = run_in_steps(backend, tokens, [40])
    backend.close()
    assert np.abs(ours[3::4] - np.array(GOLDEN[name])).max() < 2e-4
    assert np.abs(ours - run_in_steps(judge, tokens, [40])).max() < 2e-4


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_logits_over_keys_and_values_in_any_format_are_those_of_float64_over_the_same(folder, features, name, dtype):
    model, tokens = arch.build(checkpoint(name)), tiny.prompt(name)
    backend, judge = CpuBackend(2, folder, features, kv_dtype=dtype), ReferenceBackend(np.float64, dtype)
    backend.load(model, TINY)
    judge.load(model, TINY)
    for each in (backend, judge):
        each.centre_keys(tokens[::-1])
    for layer, centre in backend.centres.items():
        np.testing.assert_allclose(centre, judge.centres[layer], atol=0.02)
        judge.centres[layer] = centre
    ours = run_in_steps(backend, tokens, [40])
    backend.close()
    # a number that float32 and float64 round to different ones moves all that follows, but less than the rounding does
    exact = ReferenceBackend(np.float64)
    exact.load(model, TINY)
    error, loss = (rms(ours - run_in_steps(each, tokens, [40])) for each in (judge, exact))
    assert error < max(1e-3, 0.1 * loss)


def rms(x: np.ndarray) -> float:
    return float(np.sqrt(np.mean(x.astype(np.float64) ** 2)))


@pytest.mark.parametrize("dtype", FORMATS)
@pytest.mark.parametrize("name", ["llama", "gemma3"])
def test_steps_chunks_and_threads_do_not_change_a_bit(folder, name, dtype):
    model, tokens = arch.build(checkpoint(name)), tiny.prompt(name)
    seen = []
    for threads, steps in ((1, [40]), (2, [1] * 40), (3, [7, 1, 1, 16, 15]), (2, [39, 1])):
        backend = CpuBackend(threads, folder, kv_dtype=dtype)
        backend.load(model, TINY)
        seen.append(run_in_steps(backend, tokens, steps).view(np.uint32))
        backend.close()
    for other in seen[1:]:
        np.testing.assert_array_equal(other, seen[0])


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "int8", "nvfp4"])
def test_a_sequence_goes_on_from_a_copied_beginning_as_from_its_own(folder, dtype):
    """Ten positions of one sequence's second block are another's too: that one copies the block and writes the rest."""
    backend, tokens = CpuBackend(2, folder, kv_dtype=dtype), tiny.prompt("llama")
    backend.load(arch.build(checkpoint("llama")), TINY)
    other = [*tokens[:26], *reversed(tokens[:14])]
    alone = backend.run(step([(other, 0, (5, 6, 7))], wanted=range(26, 40))).copy()
    backend.run(step([(tokens, 0, (0, 1, 2))]))
    backend.copy_blocks([(1, 9), (1, 3), (9, 4)])
    for block in (3, 4, 9):
        found = backend.run(step([(other[26:], 26, (0, block, 8))], wanted=range(14)))
        np.testing.assert_array_equal(found.view(np.uint32), alone.view(np.uint32))
    backend.close()


@pytest.mark.parametrize("dtype", ["fp16", "int8"])
@pytest.mark.parametrize("name", ["llama", "gemma3"])
@pytest.mark.parametrize("seconds", [0.0, 50e-6, math.inf])
def test_what_is_computed_aside_is_the_same_bits_whatever_runs_in_between(folder, name, dtype, seconds):
    backend, tokens = CpuBackend(2, folder, kv_dtype=dtype), tiny.prompt(name)
    backend.load(arch.build(checkpoint(name)), replace(TINY, tokens=96))
    neighbour = [*reversed(tokens)]
    alone = backend.run(step([(tokens, 0, (0, 1, 2)), (neighbour, 0, (3, 4, 5))])).copy()
    aside = backend.aside
    assert aside
    inputs = step([(tokens[:23], 0, (6, 7)), (neighbour[:16], 0, (9, 10, 11))], wanted=[])
    aside.begin(replace(inputs, pooled=np.array([0, 22], np.int32)))
    pieces, at = 1, 0
    while not aside.go_on(seconds):
        pieces += 1
        if at < 39:
            backend.run(step([(neighbour[at : at + 1], at, (12, 13, 14))]))
            at += 1
    assert (pieces > 20) if seconds == 0 else pieces == 1 if seconds == math.inf else True
    hidden = aside.hidden().copy()
    rest = backend.run(step([(tokens[23:], 23, (6, 7, 8)), (neighbour[16:], 16, (9, 10, 11))]))
    np.testing.assert_array_equal(rest.view(np.uint32), alone.view(np.uint32))
    if at:
        last = backend.run(step([(neighbour[at:], at, (12, 13, 14))]))
        np.testing.assert_array_equal(last[0].view(np.uint32), alone[1].view(np.uint32))
    backend.run(replace(step([(tokens[:23], 0, (6, 7))], wanted=[]), pooled=np.array([0, 22], np.int32)))
    np.testing.assert_array_equal(backend.hidden().view(np.uint32), hidden.view(np.uint32))
    aside.begin(inputs)  # and given up in the middle
    aside.go_on(0.0)
    aside.begin(inputs)
    assert aside.go_on(math.inf)
    backend.close()


@pytest.mark.parametrize("dtype", [*FORMATS, "reference"])
def test_blocks_that_were_put_away_serve_another_backend_as_if_it_had_computed_them(folder, dtype):
    model, tokens = arch.build(checkpoint("llama")), tiny.prompt("llama")

    def fresh():
        made = ReferenceBackend() if dtype == "reference" else CpuBackend(2, folder, kv_dtype=dtype)
        made.load(model, TINY)
        made.centre_keys(list(reversed(tokens)))
        return made

    first, second = fresh(), fresh()
    wanted = first.run(step([(tokens, 0, (0, 1, 2))], wanted=range(32, 40))).copy()
    put_away = [first.read_block(block) for block in (0, 1)]
    assert {(each.dtype, each.nbytes) for each in put_away} == {(np.dtype(np.uint8), first.kv_block_bytes(model, 16))}
    for block, content in zip((7, 4), put_away, strict=True):
        second.write_block(block, content)
    found = second.run(step([(tokens[32:], 32, (7, 4, 2))], wanted=range(8)))
    if dtype == "reference":  # the library's products depend on how many rows there are
        np.testing.assert_allclose(found, wanted, atol=1e-3)
    else:
        np.testing.assert_array_equal(found.view(np.uint32), wanted.view(np.uint32))
    assert first.fingerprint() == second.fingerprint()
    first.close()
    second.close()


def test_a_fingerprint_tells_apart_what_gives_other_numbers(folder):
    made = []
    for name, context, dtype, deterministic in (
        ("llama", 0, "fp16", False),
        ("llama", 0, "fp16", True),
        ("llama", 0, "int8", False),
        ("llama", 0, "bf16", False),
        ("gemma3", 0, "fp16", False),
    ):
        backend = CpuBackend(1, folder, kv_dtype=dtype, deterministic=deterministic)
        backend.load(arch.build(checkpoint(name), context), TINY)
        made.append(backend.fingerprint())
        backend.centre_keys(tiny.prompt(name))
        made.append(backend.fingerprint())
        backend.close()
    assert len(set(made)) == 6  # only codes are centred
    scaled = CpuBackend(1, folder, kv_dtype="fp16")
    scaled.load(arch.build(checkpoint("llama", rope_scaling={"rope_type": "linear", "factor": 4.0})), TINY)
    assert scaled.fingerprint() not in made
    scaled.close()


def test_prompts_are_told_from_outputs_where_their_numbers_may_differ(folder):
    assert CpuBackend(1, folder, "amx").tells_apart and not CpuBackend(1, folder, "amx", deterministic=True).tells_apart
    assert not CpuBackend(1, folder, "avx2").tells_apart
    for deterministic in (False, True):
        assert CpuBackend(1, folder, "avx2", sparse=Sparse(64), deterministic=deterministic).tells_apart
    assert ReferenceBackend(sparse=Sparse(64)).tells_apart and not ReferenceBackend().tells_apart


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path):
    return arch.build(open_checkpoint(smollm2_path))


@pytest.fixture(scope="module")
def backend(folder: Path, smollm2):
    backend = loaded(folder, smollm2, REAL)
    yield backend
    backend.close()


PROMPT = [504, 3575, 282, 4649, 314]  # "The capital of France is"
PARIS = 7042


def test_smollm2_knows_the_capital_of_france(backend):
    tokens = list(PROMPT)
    logits = backend.run(step([(PROMPT, 0, range(40))]))
    for _ in range(12):
        tokens.append(int(logits[0].argmax()))
        logits = backend.run(step([(tokens[-1:], len(tokens) - 1, range(40))]))
    assert tokens[5] == PARIS
    assert len(set(tokens[5:])) > 6  # it goes on with a sentence, not in a loop


def test_smollm2_is_as_near_to_float64_as_int8_activations_allow(backend, smollm2):
    tokens = np.random.default_rng(8).integers(100, 40000, 24).tolist()
    inputs = step([(tokens, 0, range(2))], wanted=range(24))
    judge = ReferenceBackend(np.float32)
    judge.load(smollm2, REAL)
    expected, found = judge.run(inputs), backend.run(inputs)
    error = found - expected
    assert np.sqrt(np.mean(error**2)) < 0.1 * expected.std()
    ranked = np.sort(expected, axis=1)
    sure = ranked[:, -1] - ranked[:, -2] > 1.0
    assert sure.sum() >= 5
    np.testing.assert_array_equal(found.argmax(1)[sure], expected.argmax(1)[sure])


def test_a_sequence_is_the_same_bits_alone_and_in_a_batch(backend):
    rng = np.random.default_rng(9)
    prompts = [rng.integers(100, 40000, n).tolist() for n in (5, 40, 17, 100)]
    blocks = [range(i * 8, i * 8 + 8) for i in range(4)]
    alone = [backend.run(step([(p, 0, b)])).copy() for p, b in zip(prompts, blocks, strict=True)]
    together = backend.run(step([(p, 0, b) for p, b in zip(prompts, blocks, strict=True)])).copy()
    np.testing.assert_array_equal(together.view(np.uint32), np.concatenate(alone).view(np.uint32))
    # one by one over other blocks: the cache of a decode is that of a prefill
    moved = range(40, 48)
    for i, token in enumerate(prompts[2]):
        logits = backend.run(step([([token], i, moved)]))
    np.testing.assert_array_equal(logits.view(np.uint32), alone[2].view(np.uint32))


def test_gemma3_is_as_near_to_float64_as_int8_activations_allow(folder, gemma3_path):
    """Formats Q4_K, Q5_0, Q6_K and Q8_0, in one projection too."""
    model = arch.build(open_checkpoint(gemma3_path))
    limits = StepLimits(tokens=16, rows=2, logit_rows=16, context=64, blocks=8)
    backend, judge = loaded(folder, model, limits), ReferenceBackend(np.float32)
    judge.load(model, limits)
    inputs = step([(np.random.default_rng(1).integers(1000, 200000, 12), 0, [0])], wanted=range(12))
    expected, found = judge.run(inputs), backend.run(inputs)
    backend.close()
    assert np.sqrt(np.mean((found - expected) ** 2)) < 0.1 * expected.std()


def test_a_block_takes_what_it_is_said_to_take(folder, smollm2):
    # 30 layers, 3 kv heads of 64, key and value, 2 bytes
    assert CpuBackend(1, folder).kv_block_bytes(smollm2, 16) == 30 * 3 * 64 * 2 * 2 * 16
    for dtype, record in (("bf16", 128), ("fp8", 66), ("int8", 66), ("int4", 42), ("nvfp4", 38), ("mxfp4", 34)):
        assert CpuBackend(1, folder, kv_dtype=dtype).kv_block_bytes(smollm2, 16) == 30 * 3 * 2 * 16 * record
    # 3 layers, 2 kv heads of 16, key and value, 4 bytes
    assert CpuBackend(1, folder).kv_block_bytes(arch.build(checkpoint("llama")), 16) == 3 * 2 * 16 * 2 * 4 * 16


@pytest.mark.parametrize(("name", "form"), [("llama", "Q5_1"), ("gemma3", "F32"), ("qwen3-moe", "Q4_1")])
def test_weights_take_what_they_are_said_to_take(folder, name, form):
    """Also where that is more than in the file, and the embedding is the head, too."""
    model = quantised_tiny(name, form)
    backend = loaded(folder, model, TINY)
    assert backend.weights_bytes(model) == backend._arena.size
    backend.close()
    elements = sum(array.size for array in tiny.tensors(name).values() if array.ndim == 2)
    assert ReferenceBackend(np.float64).weights_bytes(model) == 8 * elements


def test_what_the_kernels_do_not_do_is_refused(folder):
    model = arch.build(checkpoint("llama"))
    with pytest.raises(ValueError, match="16 positions in a KV block, not 32"):
        CpuBackend(1, folder).load(model, StepLimits(8, 1, 1, 64, 4, block_size=32))
    with pytest.raises(UnsupportedModel, match="layer 0 has heads of 20, which is not a multiple of 8"):
        CpuBackend(1, folder).load(_WithHeads(model, 20), TINY)
    with pytest.raises(UnsupportedModel, match=r"heads of 72, which is not a multiple of 16, as .* in nvfp4"):
        CpuBackend(1, folder, kv_dtype="nvfp4").load(_WithHeads(model, 72), TINY)


class _WithHeads:
    """A model that claims another head size."""

    formats = frozenset({"F16"})

    def __init__(self, model, head_dim: int) -> None:
        self.kv_layers = tuple(type(kv)(kv.kv_heads, head_dim) for kv in model.kv_layers)


def test_close_is_idempotent_and_load_may_follow(folder):
    model = arch.build(checkpoint("llama"))
    backend = CpuBackend(2, folder)
    backend.close()
    for _ in range(2):
        backend.load(model, TINY)
        run_in_steps(backend, tiny.prompt("llama"), [40])
    backend.close()
    backend.close()


def test_progress_is_told_of_every_kernel(folder):
    told = []
    backend = CpuBackend(1, folder, progress=lambda ready, wanted: told.append((ready, wanted)))
    backend.load(arch.build(checkpoint("llama")), TINY)
    backend.close()
    assert [ready for ready, _ in told] == list(range(1, told[-1][1] + 1))


MEMORY = """
import sys
from pathlib import Path
sys.path.insert(0, {root!r})
from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import StepLimits
from imp.weights.checkpoint import UnsupportedModel, open_checkpoint
backend = CpuBackend(2, Path({folder!r}))
backend.load(arch.build(open_checkpoint(Path({path!r}))), StepLimits(512, 16, 16, 2048, 256))
print(next(line.split()[1] for line in open("/proc/self/status") if line.startswith("VmRSS")))
"""


def test_a_loaded_smollm2_fits_in_400_mb(folder, smollm2_path, backend):
    """98 MB of weights, kept once; `backend` has put every kernel into the cache."""
    root = str(Path(__file__).resolve().parents[2])
    code = MEMORY.format(root=root, folder=str(folder), path=str(smollm2_path))
    out = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=dict(os.environ), check=True)
    assert int(out.stdout) < 400 << 10
