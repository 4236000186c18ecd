"""Adapters on the CPU backend: PEFT's logits, the same bits in every batch, and coming and going while steps run."""

from __future__ import annotations

import json
import math
import threading
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.lora import Adapter, Pair
from imp.model.ops import Model, StepLimits
from imp.model.reference import ReferenceBackend
from imp.weights.checkpoint import InvalidModel, open_checkpoint
from tests.cpu.harness import step
from tests.model import adapters, tiny
from tests.model.random_adapters import matrix, random
from tests.model.test_arch import checkpoint
from tests.model.test_lora import EACH, GOLDEN, read, spans

LIMITS = StepLimits(tokens=256, rows=16, logit_rows=256, context=512, blocks=160)


def backend(folder: Path, model: Model, threads: int = 2, features: str | None = None) -> CpuBackend:
    made = CpuBackend(threads, folder, features)
    made.load(model, LIMITS)
    return made


@pytest.mark.parametrize("model, name", EACH)
def test_logits_with_an_adapter_are_those_of_peft(kernel_folder, features, tmp_path, model, name):
    cpu = backend(kernel_folder, arch.build(checkpoint(model)), features=features)
    adapter = read(tmp_path, model, name)
    inputs = step([(tiny.prompt(model), 0, range(3))], wanted=range(7, 40, 8))
    ours = cpu.run(replace(inputs, adapted=spans((0, 40, cpu.add_adapter(adapter))))).copy()
    cpu.close()
    assert np.abs(ours - np.array(GOLDEN[model][name])).max() < 3e-4


@pytest.fixture(scope="module")
def smollm2(smollm2_path: Path) -> Model:
    return arch.build(open_checkpoint(smollm2_path))


@pytest.fixture(scope="module")
def real(kernel_folder: Path, smollm2: Model):
    made = backend(kernel_folder, smollm2)
    yield made
    made.close()


def test_smollm2_with_an_adapter_is_what_peft_says(real, smollm2):
    """The judge had the weights of the file in float32: so has the reference, and the CPU backend's int8 activations
    are as far from it as without an adapter."""
    golden = json.loads((Path(__file__).parents[1] / "golden" / "smollm2_adapter_logprobs.json").read_text())
    adapter = random(smollm2, golden["rank"], golden["seed"], golden["size"])
    judge = ReferenceBackend(np.float32)
    judge.load(smollm2, LIMITS)
    for backend, furthest in ((judge, 1e-4), (real, 0.4)):
        slot = backend.add_adapter(adapter)
        for prompt in golden["prompts"]:
            ids = prompt["ids"]
            inputs = step([(ids, 0, range(-(-len(ids) // 16)))])
            logits = backend.run(replace(inputs, adapted=spans((0, len(ids), slot))))[0].astype(np.float64)
            found = logits - np.log(np.exp(logits - logits.max()).sum()) - logits.max()
            tokens, expected = zip(*prompt["top"], strict=True)
            assert np.abs(found[list(tokens)] - expected).max() < furthest, prompt["name"]
        backend.drop_adapter(slot)


def test_beside_quantised_weights_an_adapter_adds_what_float64_says(real, smollm2):
    """What is added is not quantised: the error with an adapter is what it is without."""
    adapter = random(smollm2, 16, seed=1, size=0.04)
    slot = real.add_adapter(adapter)
    assert (
        real.adapter_bytes(smollm2, adapter) == adapter.elements * 2
    )  # ranks and outputs are whole groups of float16 here
    judge = ReferenceBackend(np.float32)
    judge.load(smollm2, LIMITS)
    assert judge.add_adapter(adapter) == slot
    found = []  # of each position: errors without and with it, and what it changes
    for seed in range(8, 14):
        tokens = np.random.default_rng(seed).integers(100, 40000, 24).tolist()
        plain = step([(tokens, 0, range(2))], wanted=range(24))
        inputs = plain, replace(plain, adapted=spans((0, 24, slot)))
        expected = [judge.run(each).copy() for each in inputs]
        errors = [real.run(each) - other for each, other in zip(inputs, expected, strict=True)]
        found.append([np.sqrt(np.mean(each**2, axis=1)) for each in (*errors, expected[1] - expected[0])])
    real.drop_adapter(slot)
    # of words at random some come out at a place where the model itself is not sure of anything
    without, adapted, changed = np.median(np.concatenate(found, axis=1), axis=1)
    assert changed > 5 * max(without, adapted)
    assert adapted < 1.3 * without


def test_rows_are_the_same_bits_alone_and_beside_others_and_in_chunks(real, smollm2):
    """Rows with four adapters and none, of ranks that fill no group, in one step; then each by itself, cut up."""
    ranks = (16, 3, 40, 1)
    slots = [real.add_adapter(random(smollm2, rank, seed, 0.05)) for seed, rank in enumerate(ranks, 1)]
    partial = real.add_adapter(random(smollm2, 8, 9, 0.05, ("k_proj", "down_proj")))
    rng = np.random.default_rng(9)
    owners = [slots[0], None, slots[1], slots[1], slots[2], None, slots[3], partial]
    prompts = [rng.integers(100, 40000, n).tolist() for n in (40, 17, 1, 5, 30, 9, 2, 60)]
    blocks = [range(i * 8, i * 8 + 8) for i in range(8)]
    ends = np.cumsum([0, *map(len, prompts)]).tolist()
    given = [(s, e, slot) for s, e, slot in zip(ends[:-1], ends[1:], owners, strict=True) if slot is not None]
    rows = [(p, 0, b) for p, b in zip(prompts, blocks, strict=True)]
    together = real.run(replace(step(rows), adapted=spans(*given))).copy()
    plain = real.run(step(rows)).copy()
    differ = (together.view(np.uint32) != plain.view(np.uint32)).any(axis=1)
    assert differ.tolist() == [slot is not None for slot in owners]
    for row, (prompt, slot) in enumerate(zip(prompts, owners, strict=True)):
        for cuts in ([len(prompt)], [1] * len(prompt), [len(prompt) // 2, len(prompt) - len(prompt) // 2]):
            at = 0
            for count in filter(None, cuts):
                inputs = step([(prompt[at : at + count], at, range(100, 108))])
                own = () if slot is None else ((0, count, slot),)
                logits = real.run(replace(inputs, adapted=spans(*own)) if own else inputs)
                at += count
            np.testing.assert_array_equal(logits[0].view(np.uint32), together[row].view(np.uint32))
    for slot in (*slots, partial):
        real.drop_adapter(slot)


def test_a_prompt_aside_has_its_adapter_also_when_that_is_dropped_meanwhile(real, smollm2):
    """Pieces as short as can be, other rows in between, and another adapter in the slot before it has ended."""
    rng = np.random.default_rng(11)
    prompt, other = (rng.integers(100, 40000, n).tolist() for n in (41, 25))
    slot = real.add_adapter(random(smollm2, 16, 1, 0.05))
    inputs = replace(step([(prompt, 0, (0, 1, 2)), (other, 0, (3, 4))]), adapted=spans((0, 41, slot)))
    alone = real.run(inputs)[0].copy()
    starts = step([(prompt[:40], 0, (5, 6, 7)), (other[:24], 0, (8, 9))], wanted=[])
    real.aside.begin(replace(starts, adapted=spans((0, 40, slot))))
    real.aside.go_on(0.0)
    real.drop_adapter(slot)
    assert real.add_adapter(random(smollm2, 16, 2, 0.05)) == slot
    while not real.aside.go_on(0.001):
        real.run(inputs)
    real.drop_adapter(slot)
    assert real.add_adapter(random(smollm2, 16, 1, 0.05)) == slot
    last = replace(step([(prompt[40:], 40, (5, 6, 7))]), adapted=spans((0, 1, slot)))
    np.testing.assert_array_equal(real.run(last)[0].view(np.uint32), alone.view(np.uint32))
    real.drop_adapter(slot)


def test_adapters_come_and_go_while_steps_run(real, smollm2):
    """Another thread adds and drops; the slot that the steps use is not touched, and neither are their bits."""
    slot = real.add_adapter(random(smollm2, 16, 1, 0.05))
    others = [random(smollm2, rank, seed=rank) for rank in (64, 1, 8)]
    inputs = replace(step([([504, 3575, 282], 0, range(2))]), adapted=spans((0, 3, slot)))
    alone = real.run(inputs).copy()
    left, used = threading.Event(), set()

    def churn() -> None:
        while not left.is_set():
            for other in others:
                taken = real.add_adapter(other)
                used.add(taken)
                real.drop_adapter(taken)

    thread = threading.Thread(target=churn)
    thread.start()
    try:
        while not used:
            pass
        for _ in range(60):
            np.testing.assert_array_equal(real.run(inputs).view(np.uint32), alone.view(np.uint32))
    finally:
        left.set()
        thread.join()
    real.drop_adapter(slot)
    assert slot not in used


def _pair(module: str, model: Model, down: float, up: float) -> Adapter:
    outputs, inputs = model.modules[module]
    rng = np.random.default_rng(5)
    a, b = (
        matrix(module, rng.standard_normal(shape) * size) for shape, size in (((2, inputs), down), ((outputs, 2), up))
    )
    return Adapter({module: Pair(a, b, 1.0)}, b"")


def test_numbers_of_any_size_survive_float16(real, smollm2):
    """A is huge and B tiny, or the other way round: it is their product that counts, to the bit."""
    module = "model.layers.3.self_attn.v_proj"
    inputs = step([([504, 3575, 282, 4649], 0, range(2))])
    seen = []
    for down, up in ((0.125, 0.125), (2.0**30, 2.0**-36), (2.0**-40, 2.0**34)):
        slot = real.add_adapter(_pair(module, smollm2, down, up))
        seen.append(real.run(replace(inputs, adapted=spans((0, 4, slot)))).copy())
        real.drop_adapter(slot)
    assert np.abs(seen[0] - real.run(inputs)).max() > 0.1
    for other in seen[1:]:
        np.testing.assert_array_equal(other.view(np.uint32), seen[0].view(np.uint32))
    with pytest.raises(InvalidModel, match="too large for float16"):
        real.add_adapter(_pair(module, smollm2, 1e8, 1e8))


def test_an_adapter_of_nothing_changes_nothing(real, smollm2):
    module = "model.layers.0.mlp.down_proj"
    slot = real.add_adapter(_pair(module, smollm2, 0.1, 0.0))
    inputs = step([([504, 3575, 282, 4649], 0, range(2))])
    plain = real.run(inputs).copy()
    np.testing.assert_array_equal(real.run(replace(inputs, adapted=spans((0, 4, slot)))), plain)
    real.drop_adapter(slot)


def test_what_an_adapter_takes_is_known_before(kernel_folder, tmp_path):
    """float32 for a float32 model, and whole groups of 16 rows."""
    model = arch.build(checkpoint("llama"))
    cpu = backend(kernel_folder, model)
    for name in adapters.ADAPTERS:
        adapter = read(tmp_path, "llama", name)
        slot = cpu.add_adapter(adapter)
        rows, arena = cpu._adapters.kept.slots[slot]
        assert cpu.adapter_bytes(model, adapter) >= arena.size >= adapter.elements * 4
        assert math.prod(rows.shape) and not len(arena._free)
    cpu.close()
