"""Every kind of rope scaling against transformers in float64, contexts past the trained one, and other scalings than the
model's own."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imp.model import arch, rope
from imp.model.config import Config
from imp.model.layers import Decoder
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.model.rescaling import KINDS, Rescaling, rescaled
from imp.weights.checkpoint import ContextTooLong, InvalidModel, UnsupportedModel

from ..cpu.harness import step
from . import ropes, tiny
from .test_arch import MemoryCheckpoint, checkpoint, in_newer_form

GOLDEN = json.loads(Path(__file__).with_name("golden_ropes.json").read_text())["logits"]
LIMITS = StepLimits(tokens=64, rows=1, logit_rows=64, context=256, blocks=16)


def built(name: str, context: int | None = None) -> Decoder:
    whose, _, served, _ = ropes.ROPES[name]
    given = MemoryCheckpoint(ropes.config(name), tiny.tensors(whose))
    return arch.build(given, served if context is None else context)


def logits(model: Decoder, tokens: list[int]) -> np.ndarray:
    backend = ReferenceBackend(np.float64)
    backend.load(model, LIMITS)
    return backend.run(step([(tokens, 0, range(4))], wanted=range(len(tokens))))


def turning(model: Decoder) -> bytes:
    """What the ropes make of positions 0 and 1."""
    found = [block.mixer.attention.rope for block in model.blocks]
    return b"".join(table[:2].tobytes() for each in found if each for table in (each.cos, each.sin))


@pytest.mark.parametrize("name", ropes.ROPES)
def test_logits_are_those_of_transformers(name):
    ours = logits(built(name), ropes.prompt(name))[5::8]
    assert np.abs(ours - np.array(GOLDEN[name])).max() < 1e-4  # the judge's angles are float32


def test_the_scalings_of_the_judge_are_all_different():
    """Else a scaling that is passed over would not show."""
    first = {name: np.array(rows[0]) for name, rows in GOLDEN.items() if ropes.ROPES[name][0] == "llama"}
    for name, values in first.items():
        assert all(np.abs(values - other).max() > 1e-3 for key, other in first.items() if key != name), name


@pytest.mark.parametrize("name, most", [("dynamic, within", 128), ("dynamic, far beyond", 30), ("longrope, long", 256)])
def test_a_context_is_served_as_far_as_the_model_was_made_for(name, most):
    assert built(name, most).blocks[0].mixer.attention.rope.cos.shape[0] == most
    with pytest.raises(ContextTooLong, match=f"{most + 1} tokens is asked for, but the model was made for {most}"):
        built(name, most + 1)


@pytest.mark.parametrize("kind", ["linear", "dynamic", "yarn", "llama3"])
def test_a_scaling_that_is_asked_for_is_what_a_config_with_it_says(kind):
    """Of a model of 64 positions, four times as many."""
    own = tiny.CONFIGS["llama"] | {"max_position_embeddings": 64}
    scaling: dict[str, Any] = {"rope_type": kind, "factor": 4.0, "original_max_position_embeddings": 64}
    scaling |= {"low_freq_factor": 1.0, "high_freq_factor": 4.0} if kind == "llama3" else {}
    said = own | {"max_position_embeddings": 64 if kind == "dynamic" else 256, "rope_scaling": scaling}
    weights = tiny.tensors("llama")
    wanted = arch.build(MemoryCheckpoint(said, weights), 256)
    found = arch.build(MemoryCheckpoint(own, weights), 256, Rescaling(kind, 4.0))
    assert turning(found) == turning(wanted) != turning(arch.build(MemoryCheckpoint(own, weights)))
    assert found.context == wanted.context
    with pytest.raises(ContextTooLong):
        arch.build(MemoryCheckpoint(own, weights), 257, Rescaling(kind, 4.0))
    with pytest.raises(ContextTooLong):
        arch.build(MemoryCheckpoint(own, weights), 65)


@pytest.mark.parametrize("form", [tiny.CONFIGS.__getitem__, in_newer_form])
@pytest.mark.parametrize("name", ["llama-yarn", "gemma3"])
def test_both_published_forms_of_a_config_are_rescaled(form, name):
    changed = rescaled(form(name), Rescaling("linear", 8.0, 128))
    assert changed["max_position_embeddings"] == 1024
    theta, scaling = rope.settings(Config(changed), "full_attention")
    assert theta == tiny.CONFIGS[name]["rope_theta"]
    freqs, _ = rope.frequencies(theta, 16, scaling, rope.Lengths(1024, 1024))
    np.testing.assert_allclose(freqs, rope.plain_frequencies(theta, 16) / 8)
    if name == "gemma3":  # the near layers stay as they are
        local = rope.settings(Config(changed), "sliding_attention", "rope_local_base_freq", 1e4)
        assert local[0] == 1e4 and rope.kind_of(Config(local[1] or {})) == "default"


def test_a_factor_alone_changes_that_of_the_models_own_scaling():
    own = tiny.CONFIGS["llama-yarn"]
    changed = rescaled(own, Rescaling(factor=2.0))
    assert changed["rope_scaling"] == own["rope_scaling"] | {"factor": 2.0} and changed["max_position_embeddings"] == 128
    longrope = rescaled(ropes.config("longrope, long"), Rescaling(factor=4.0))
    assert longrope["max_position_embeddings"] == 96 and longrope["rope_scaling"]["long_factor"] == ropes.LONG


def test_none_takes_a_scaling_away():
    found = arch.build(checkpoint("llama-yarn"), 0, Rescaling("none"))
    assert found.context == 64
    assert turning(found) == turning(arch.build(checkpoint("llama")))


def test_divisors_of_a_file_do_not_outlive_another_scaling():
    """GGUF has Llama 3's scaling as a tensor."""
    given = checkpoint("llama")
    given.tensors["rope_freqs.weight"] = np.full(8, 8.0, np.float32)
    assert turning(arch.build(given)) != turning(arch.build(checkpoint("llama")))
    assert turning(arch.build(given, 0, Rescaling("none"))) == turning(arch.build(checkpoint("llama")))


@pytest.mark.parametrize(
    "wanted, message",
    [
        (Rescaling(factor=2.0), "rope.factor needs rope.scaling"),
        (Rescaling("none", 2.0), "rope.factor needs rope.scaling"),
        (Rescaling("yarn"), "rope.scaling yarn needs rope.factor"),
        (Rescaling("longrope", 2.0), "the model has none"),
    ],
)
def test_what_a_rescaling_leaves_open_is_refused(wanted, message):
    with pytest.raises(UnsupportedModel, match=message):
        arch.build(checkpoint("llama"), 0, wanted)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"long_factor": [1.0] * 7}, '"long_factor" must be 8 numbers'),
        ({"long_factor": [1.0] * 7 + [0]}, '"long_factor" must be 8 numbers'),
        ({"long_factor": "x" * 8}, '"long_factor" must be 8 numbers'),
        ({"long_factor": None}, '"long_factor" must be 8 numbers'),
        ({"factor": -1.0}, '"factor" must be above 0'),
        ({"factor": math.inf}, '"factor" must be above 0'),
        ({"original_max_position_embeddings": None}, 'lacks "original_max_position_embeddings"'),
    ],
)
def test_a_scaling_that_cannot_be_is_an_invalid_model(changes, message):
    config = ropes.config("longrope, long")
    config["rope_scaling"] = config["rope_scaling"] | changes
    with pytest.raises(InvalidModel, match=message):
        arch.build(MemoryCheckpoint(config, tiny.tensors("llama")))


def test_every_kind_that_may_be_asked_for_is_there():
    assert {kind for kind in KINDS if kind != "none"} | {"default"} == set(rope.SCALINGS)
