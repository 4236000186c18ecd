"""The CUDA backend on the fake driver, judged by the NumPy reference in float64: run by test_backend.py, in a process of
its own."""

from __future__ import annotations

import os
import shutil
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest

from imp.cuda import compile as compiling
from imp.cuda.loaded import needs
from imp.cuda.ops import CudaBackend
from imp.cuda.sampler import Sampler
from imp.model.inputs import StepInputs, packed, prompt_inputs
from imp.model.kv import FORMATS as KV_FORMATS
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.sampling import Drawn, SamplingPlan
from imp.types import DeviceLost
from imp.weights.checkpoint import UnsupportedModel
from tests.cpu.test_sample import check, make_plan, some_logits, some_row
from tests.gpu import fake
from tests.gpu.tiny import model
from tests.model import tiny
from tests.model.random_adapters import random

FOLDER = Path(os.environ["FAKE_CUDA_CUBINS"].split(os.pathsep)[0])
SMALL = StepLimits(tokens=8, rows=8, logit_rows=8, context=128, blocks=24)  # graphs alone
LARGE = replace(SMALL, tokens=70, logit_rows=70)  # steps past the largest bucket too
# the norm of the error over the norm of the logits: what float32, float16 and bfloat16 leave of them after three layers
TOLERANCES = {"F32": 2e-5, "F16": 8e-3, "BF16": 5e-2, "Q8_0": 8e-3, "Q4_0": 8e-3, "Q4_1": 8e-3, "Q5_1": 1e-2, "Q6_K": 1e-2}
TOLERANCES |= dict.fromkeys(("FP8", "FP8 blocks", "NVFP4", "MXFP4"), 8e-3)


@pytest.fixture
def backend():
    fake.reset()
    made = CudaBackend(cache_dir=FOLDER)
    yield made
    made.close()
    assert made.device.own_bytes == 0, "all memory is given back"


def reference(name: str, form: str, limits: StepLimits, kv: str = "auto") -> ReferenceBackend:
    judge = ReferenceBackend(np.float64, kv)
    judge.load(model(name, form), limits)
    return judge


def error(found: np.ndarray, expected: np.ndarray) -> float:
    return float(np.linalg.norm(found - expected) / np.linalg.norm(expected))


def whole(backend, tokens: list[int], limits: StepLimits) -> np.ndarray:
    """Logits of every position, in the largest steps there can be."""
    size = min(limits.tokens, limits.logit_rows)
    steps = [(at, min(at + size, len(tokens))) for at in range(0, len(tokens), size)]
    return np.concatenate(
        [np.array(backend.run(prompt_inputs(tokens, a, b, 16, wanted=range(b - a)))) for a, b in steps]
    )


@pytest.mark.parametrize("name", ["llama", "llama-biased", "llama-yarn", "mistral-sliding", "gemma3", "qwen3-moe", "qwen3-moe-unnormalised"])
def test_a_model_gives_the_logits_of_the_reference(backend, name):
    backend.load(model(name), SMALL)
    tokens = tiny.prompt(name)
    judge = reference(name, "F32", SMALL)
    assert error(whole(backend, tokens, SMALL), whole(judge, tokens, SMALL)) < TOLERANCES["F32"]


OF_LLAMA = ("F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_1", "FP8", "FP8 blocks", "NVFP4", "MXFP4")


@pytest.mark.parametrize(("name", "form"), [*(("llama", form) for form in OF_LLAMA), ("qwen3-moe", "FP8")])
def test_weights_of_every_kind(backend, name, form):
    backend.load(model(name, form), SMALL)
    assert backend.kv_format(model(name, form)) == "fp16"
    tokens = tiny.prompt(name)
    judge = reference(name, form, SMALL, "fp16")
    assert error(whole(backend, tokens, SMALL), whole(judge, tokens, SMALL)) < TOLERANCES[form]


def test_a_model_that_goes_takes_its_kernels_along(backend):
    for _ in range(2):
        backend.load(model("llama", "F16"), SMALL)
    backend.close()
    counted = fake.counters()
    assert counted.loads == counted.unloads > 10


def test_how_weights_come_to_the_device_changes_no_bit(backend, monkeypatch, form="Q4_1"):
    """In pieces of some rows, and packed by the host instead."""
    step = prompt_inputs(tiny.prompt("llama"), 0, 8, 16, wanted=range(8))
    backend.load(model("llama", form), SMALL)
    expected = np.array(backend.run(step))
    for module in ("loaded", "memory"):
        monkeypatch.setattr(f"imp.cuda.{module}.PIECE_BYTES", 4096)
    backend.load(model("llama", form), SMALL)
    np.testing.assert_array_equal(np.array(backend.run(step)), expected)
    monkeypatch.setattr("imp.cuda.repack.source_of", lambda weight: None)
    backend.load(model("llama", form), SMALL)
    np.testing.assert_array_equal(np.array(backend.run(step)), expected)


@pytest.mark.parametrize("kv", [name for name in KV_FORMATS if name not in ("fp32", "fp16")])
def test_keys_and_values_of_every_format(kv):
    """What is kept is what the reference keeps, but for codes on the edge of two: much nearer to it than it is to a
    reference that keeps numbers as they are."""
    fake.reset()
    backend = CudaBackend(cache_dir=FOLDER, kv_dtype=kv)
    judge, tokens = reference("llama", "F32", SMALL, kv), tiny.prompt("llama")
    backend.load(model("llama"), SMALL)
    measured = tiny.prompt("llama", 48)[::-1]
    backend.centre_keys(measured)
    judge.centre_keys(measured)
    expected = whole(judge, tokens, SMALL)
    lost = error(expected, whole(reference("llama", "F32", SMALL), tokens, SMALL))
    assert error(whole(backend, tokens, SMALL), expected) < (0.5 * lost if KV_FORMATS[kv].turns else 2e-2)
    if KV_FORMATS[kv].turns:
        centres = backend.loaded.recorder.centres
        for layer, expected in judge.centres.items():
            found = np.empty_like(expected)
            backend._stream.download(found.ctypes.data, centres[layer].address, found.nbytes)
            backend._stream.synchronize()
            assert error(found, expected) < 5e-2
    backend.close()


@pytest.mark.parametrize(("name", "form"), [("llama", "Q4_1"), ("gemma3", "F16"), ("qwen3-moe", "F16")])
def test_how_a_prompt_is_cut_changes_no_bit(backend, name, form):
    backend.load(model(name, form), LARGE)
    tokens = tiny.prompt(name, 70)
    at_once = np.array(backend.run(prompt_inputs(tokens, 0, 70, 16, wanted=range(70))))
    for cuts in ((0, 1, 4, 20, 21, 60, 70), (0, 65, 66, 67, 68, 69, 70), (0, 33, 70)):
        for a, b in pairwise(cuts):
            part = backend.run(prompt_inputs(tokens, a, b, 16, wanted=range(b - a)))
            np.testing.assert_array_equal(part, at_once[a:b])


@pytest.mark.parametrize("form", ["F16", "BF16"])
def test_products_by_warp_groups_change_no_bit(backend, monkeypatch, form):
    """They are used for many tokens: the emulator's sums are those of the other instruction."""
    tokens = tiny.prompt("llama", 70)
    step = prompt_inputs(tokens, 0, 70, 16, wanted=range(70))
    backend.load(model("llama", form), LARGE)
    assert backend.loaded.warp_groups is None and "warp groups" not in backend.describe()
    expected = np.array(backend.run(step))
    monkeypatch.setattr("imp.cuda.loaded.WGMMA_FROM", 65)
    monkeypatch.setattr("imp.cuda.warp_groups.WGMMA_FROM", 65)
    backend.load(model("llama", form), LARGE)
    entries = {launch.entry.name for launch in backend.loaded._launches(backend.loaded._shape(70, 70, 0, 1))}
    assert "linear_wgmma" in entries and "large products by warp groups" in backend.describe()
    np.testing.assert_array_equal(np.array(backend.run(step)), expected)
    for part in (slice(0, 64), slice(64, 70)):
        few = prompt_inputs(tokens, part.start, part.stop, 16, wanted=range(part.stop - part.start))
        np.testing.assert_array_equal(np.array(backend.run(few)), expected[part])


def test_products_by_warp_groups_are_not_used_where_their_bits_differ(backend, monkeypatch, tmp_path):
    """As on a chip whose instructions round differently: here the kernel adds its four sums in another order."""
    kernels = tmp_path / "kernels"
    shutil.copytree(compiling.KERNELS, kernels)
    own = kernels / "linear_wgmma.cu"
    assert "sums[0][i] + sums[1][i]" in own.read_text()
    own.write_text(own.read_text().replace("sums[0][i] + sums[1][i]", "sums[0][i] + sums[3][i]").replace("sum += sums[3][i]", "sum += sums[1][i]"))
    monkeypatch.setattr(compiling, "KERNELS", kernels)
    for module in ("loaded", "warp_groups"):
        monkeypatch.setattr(f"imp.cuda.{module}.WGMMA_FROM", 65)
    backend.load(model("llama", "F16"), LARGE)
    assert backend.loaded.warp_groups is False and "no products by warp groups" in backend.describe()
    entries = {launch.entry.name for launch in backend.loaded._launches(backend.loaded._shape(70, 70, 0, 1))}
    assert "linear_wgmma" not in entries and "in_order" not in entries
    tokens = tiny.prompt("llama", 70)
    at_once = np.array(backend.run(prompt_inputs(tokens, 0, 70, 16, wanted=range(70))))
    np.testing.assert_array_equal(np.array(backend.run(prompt_inputs(tokens, 0, 20, 16, wanted=range(20)))), at_once[:20])


def rows_of(parts: list[tuple[list[int], int, int, list[int]]], wanted: list[int], pooled: list[int]) -> StepInputs:
    """Rows of (tokens of the sequence, start, end, its blocks)."""
    counts = [end - start for _, start, end, _ in parts]
    used = [blocks[: -(-end // 16)] for _, _, end, blocks in parts]
    return StepInputs(
        tokens=packed([t for tokens, start, end, _ in parts for t in tokens[start:end]]),
        positions=packed([p for _, start, end, _ in parts for p in range(start, end)]),
        slots=packed([blocks[p // 16] * 16 + p % 16 for _, start, end, blocks in parts for p in range(start, end)]),
        row_starts=packed(np.cumsum([0, *counts])),
        contexts=packed([end for _, _, end, _ in parts]),
        table_starts=packed(np.cumsum([0, *map(len, used)])),
        table=packed([block for blocks in used for block in blocks]),
        wanted=packed(wanted),
        pooled=packed(pooled),
    )


def test_rows_of_a_step_do_not_see_each_other(backend):
    """Three sequences on shuffled blocks, prompts and decoding in one step, against each alone."""
    backend.load(model("gemma3", "F16"), LARGE)
    sequences = [tiny.prompt("gemma3", n)[::step] for n, step in ((50, 1), (40, -1), (33, 1))]
    blocks = np.random.default_rng(0).permutation(24).tolist()
    own = [blocks[0:4], blocks[4:8], blocks[8:12]]
    alone = []
    for tokens in sequences:
        alone.append(np.array(backend.run(prompt_inputs(tokens, 0, len(tokens), 16, wanted=range(len(tokens))))))
    first = [(sequences[0], 0, 30, own[0]), (sequences[1], 0, 39, own[1])]
    found = backend.run(rows_of(first, [29, 68], []))
    np.testing.assert_array_equal(found, [alone[0][29], alone[1][38]])
    second = [(sequences[0], 30, 50, own[0]), (sequences[1], 39, 40, own[1]), (sequences[2], 0, 33, own[2])]
    found = backend.run(rows_of(second, [19, 20, 53], []))
    np.testing.assert_array_equal(found, [alone[0][49], alone[1][39], alone[2][32]])


def test_hidden_states_are_those_of_the_reference(backend):
    backend.load(model("llama"), LARGE)
    judge, tokens = reference("llama", "F32", LARGE), tiny.prompt("llama")
    step = replace(prompt_inputs(tokens, 0, 40, 16, wanted=(39,)), pooled=packed((0, 7, 39)))
    logits, expected = np.array(backend.run(step)), judge.run(step)
    assert error(logits, expected) < TOLERANCES["F32"]
    assert backend.hidden().shape == (3, 96) and error(backend.hidden(), judge.hidden()) < TOLERANCES["F32"]
    backend.run(prompt_inputs(tokens, 0, 3, 16))
    assert backend.hidden().shape == (0, 96)


def test_blocks_are_copied_in_order(backend):
    backend.load(model("llama", "F16"), SMALL)
    tokens = tiny.prompt("llama", 24)
    whole(backend, tokens[:16], SMALL)
    expected = np.array(backend.run(prompt_inputs(tokens, 16, 17, 16, wanted=(0,))))
    backend.copy_blocks([(0, 5), (5, 9), (1, 0)])
    moved = rows_of([(tokens, 16, 17, [9, 3])], [0], [])
    np.testing.assert_array_equal(backend.run(moved), expected)


def test_blocks_can_be_taken_out_and_put_back(backend):
    backend.load(model("llama", "F16"), SMALL)
    tokens = tiny.prompt("llama", 24)
    whole(backend, tokens[:16], SMALL)
    expected = np.array(backend.run(prompt_inputs(tokens, 16, 17, 16, wanted=(0,))))
    content = backend.read_block(0)
    assert content.dtype == np.uint8 and content.nbytes == backend.kv_block_bytes(model("llama", "F16"), 16)
    backend.write_block(7, content)
    moved = rows_of([(tokens, 16, 17, [7, 3])], [0], [])
    np.testing.assert_array_equal(backend.run(moved), expected)
    assert backend.fingerprint() == backend.fingerprint()
    before = backend.fingerprint()
    backend.load(model("llama-llama3", "F16"), SMALL)
    assert backend.fingerprint() != before, "another rope makes other keys"


def test_a_step_allocates_nothing_and_is_one_graph(backend):
    backend.load(model("llama", "F16"), SMALL)
    tokens = tiny.prompt("llama", 30)
    whole(backend, tokens, SMALL)
    fake.reset()
    for at in range(20, 30):
        backend.run(prompt_inputs(tokens, at, at + 1, 16, wanted=(0,)))
    counted = fake.counters()
    assert counted.graph_launches == 10 and counted.allocations == counted.launches == 0
    assert counted.copies == 10, "the step up: logits stay where they are"


def test_a_longer_context_gets_a_graph_of_its_own(backend):
    """More than 512 keys are attended to side by side, and merged as one block would have done."""
    limits = StepLimits(tokens=64, rows=2, logit_rows=64, context=1100, blocks=70)
    backend.load(model("llama", "F16", max_position_embeddings=2048), limits)
    tokens = (tiny.prompt("llama") * 30)[:1056]
    for at in range(0, 1024, 64):
        backend.run(prompt_inputs(tokens, at, at + 64, 16))
    by_many = np.array(backend.run(prompt_inputs(tokens, 1024, 1056, 16, wanted=range(32))))
    assert {splits for _, splits, _ in backend.loaded._graphs} == {1, 2, 4}
    for at in range(1024, 1027):
        one = backend.run(prompt_inputs(tokens, at, at + 1, 16, wanted=(0,)))
        np.testing.assert_array_equal(one[0], by_many[at - 1024])


@pytest.mark.parametrize("form", ["F32", "Q8_0"])
def test_rows_with_adapters_are_what_the_reference_says(backend, form):
    """Two adapters and none in one step; adapters come after graphs are captured, go, and leave no trace."""
    some = model("llama", form)
    backend.load(some, LARGE)
    judge = reference("llama", form, LARGE, "auto" if form == "F32" else "fp16")
    tokens, blocks = tiny.prompt("llama"), [[0, 1, 2], [4, 5, 6], [8, 9, 10]]
    parts = [(tokens, 0, 20, blocks[0]), (tokens, 0, 20, blocks[1]), (tokens, 0, 20, blocks[2])]
    step = rows_of(parts, [19, 39, 59], [])
    plain = np.array(backend.run(step))
    given = [random(some, rank, seed=rank, size=0.3) for rank in (4, 16)]
    free = backend.device.own_bytes
    slots = [(backend.add_adapter(each), judge.add_adapter(each)) for each in given]
    assert backend.device.own_bytes - free <= sum(backend.adapter_bytes(some, each) for each in given)
    for size in (3, 1):  # one program launched, one a graph
        rows = [(tokens, 20, 20 + size, own) for own in blocks]
        for each in (step, rows_of(rows, [size - 1, 2 * size - 1, 3 * size - 1], [])):
            starts = each.row_starts
            found, expected = (
                np.array(b.run(replace(each, adapted=packed([
                    (starts[0], starts[1], slots[0][i]), (starts[2], starts[3], slots[1][i])]))))
                for i, b in enumerate((backend, judge))
            )
            for a, b in zip(found, expected, strict=True):
                assert error(a, b) < (TOLERANCES[form] if form == "F32" else 0.05)
            assert error(found[0], found[1]) > 0.3 and error(found[2], found[0]) > 0.3, "each says something else"
            if each is step:
                np.testing.assert_array_equal(found[1], plain[1])
    for slot, _ in slots:
        backend.drop_adapter(slot)
    assert backend.device.own_bytes == free
    np.testing.assert_array_equal(backend.run(step), plain)


class Drawing:
    """`Backend.sample` of the sampler alone, over given logits."""

    def __init__(self, backend: CudaBackend, rows: int, width: int) -> None:
        self.device, self.stream = backend.device, backend._stream
        self.logits = self.device.alloc(rows * width * 4)
        self.sampler = Sampler(self.device, self.stream, backend.compiler, rows, width)

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        given = np.ascontiguousarray(logits, np.float32)
        self.stream.upload(self.logits.address, given.ctypes.data, given.nbytes)
        return self.sampler.sample(self.logits.address, plan)

    def free(self) -> None:
        self.sampler.free()
        self.logits.free()


@pytest.mark.parametrize("seed", range(6))
def test_tokens_are_drawn_as_the_reference_draws_them(backend, seed):
    """Plans of few and of many rows one after the other, so that memory grows and is used again."""
    rng = np.random.default_rng(seed)
    vocab = (31, 1000)[seed % 2]
    drawing = Drawing(backend, 40, vocab + 7)
    for rows in (6, 40, 1):
        logits = np.stack([some_logits(rng, vocab + 7) for _ in range(rows)])
        logits[:, vocab:] = 99.0  # padding of the head: never drawn
        logits[:, :vocab][~np.isfinite(logits[:, :vocab]).any(axis=1)] = 0.0
        check(drawing, logits, [some_row(rng, vocab) for _ in range(rows)], vocab)
    drawing.free()


def test_a_plan_without_extras_is_two_copies_and_a_launch(backend):
    drawing = Drawing(backend, 8, 64)
    plan = make_plan([{"u": 0.5}] * 8, 64)
    drawing.sample(np.zeros((8, 64), np.float32), plan)
    fake.reset()
    drawing.sampler.sample(drawing.logits.address, plan)
    counted = fake.counters()
    assert counted.launches == 1 and counted.copies <= 3 and counted.allocations == 0
    drawing.free()


@pytest.mark.parametrize("name", ["llama", "qwen3-moe"])
def test_what_a_model_takes_is_known_before(backend, name):
    some = model(name, "F16")
    room = backend.room(some, SMALL)
    assert (room.weights_bytes, room.work_bytes) == needs(some, SMALL, KV_FORMATS["fp16"])
    assert 0.9 * room.weights_bytes < backend.weights_bytes(some) <= room.weights_bytes  # constants are beside them
    before = backend.device_memory()
    backend.load(some, SMALL)
    taken = backend.device_memory().own_bytes - before.own_bytes
    cache = SMALL.blocks * backend.kv_block_bytes(some, 16)
    assert room.weights_bytes + cache < taken <= room.weights_bytes + room.work_bytes + cache
    limited = CudaBackend(cache_dir=FOLDER, budget_bytes=1 << 30)
    assert limited.room(some, SMALL).free_bytes == 1 << 30
    assert limited.device_memory().budget_bytes == 1 << 30


def test_a_model_that_does_not_fit_leaves_the_device_empty(backend):
    with pytest.raises(MemoryError):
        backend.load(model("llama", "F16"), replace(SMALL, blocks=1 << 30))
    assert backend.device.own_bytes == 0
    backend.load(model("llama", "F16"), SMALL)


def test_shapes_the_kernels_do_not_have_are_refused(backend):
    with pytest.raises(UnsupportedModel, match="heads of 24"):
        backend.load(_with_attention(head_dim=24), SMALL)
    with pytest.raises(UnsupportedModel, match="heads of 512"):
        backend.load(_with_attention(head_dim=512), SMALL)
    assert backend.device.own_bytes == 0


def _with_attention(**changes):
    some = model("llama")
    blocks = [replace(b, mixer=replace(b.mixer, attention=replace(b.mixer.attention, **changes))) for b in some.blocks]
    return replace(some, blocks=tuple(blocks))


def test_a_kernel_that_dies_ends_the_device(backend):
    backend.load(model("llama", "F16"), SMALL)
    tokens = tiny.prompt("llama")
    backend.run(prompt_inputs(tokens, 0, 1, 16, wanted=(0,)))
    fake.fault_after(3)
    with pytest.raises(DeviceLost):
        backend.run(replace(prompt_inputs(tokens, 1, 2, 16, wanted=(0,)), pooled=packed((0,))))
    with pytest.raises(DeviceLost):
        backend.run(prompt_inputs(tokens, 2, 3, 16, wanted=(0,)))
    fake.fault_after(0)
    fake.reset()
