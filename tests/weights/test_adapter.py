"""Adapter directories: what is not there or broken is refused, and thousands of damaged files do nothing else."""

from __future__ import annotations

import json
import random
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import save

from imp.model import arch
from imp.model.lora import adapter
from imp.weights.adapter import open_adapter
from imp.weights.checkpoint import InvalidModel, UnsupportedModel
from tests.model import adapters
from tests.model.test_arch import checkpoint
from tests.weights.test_weights_fuzz import damaged

ROUNDS = 2000


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    return adapters.write(tmp_path, "llama", "some")


def test_a_path_that_is_no_directory_is_refused(tmp_path):
    with pytest.raises(InvalidModel, match=r"nothing: an adapter is a directory with adapter_config.json"):
        open_adapter(tmp_path / "nothing")


@pytest.mark.parametrize("missing", ["adapter_config.json", "adapter_model.safetensors"])
def test_a_file_that_is_missing_is_named(folder, missing):
    (folder / missing).unlink()
    with pytest.raises(InvalidModel, match=missing):
        open_adapter(folder)


def test_pickled_weights_are_never_loaded(folder):
    (folder / "adapter_model.safetensors").rename(folder / "adapter_model.bin")
    with pytest.raises(UnsupportedModel, match="pickled"):
        open_adapter(folder)


@pytest.mark.parametrize("content", ["", "[]", "{", '{"r": 1, "r": 2}', "\x00"])
def test_a_config_that_is_no_object_is_invalid(folder, content):
    (folder / "adapter_config.json").write_text(content)
    with pytest.raises(InvalidModel, match=r"adapter_config\.json"):
        open_adapter(folder)


def test_whatever_the_files_hold_they_load_or_are_refused(folder):
    """Damaged tensors and configs whose values are of any kind, seed 7."""
    rng = random.Random(7)
    model = arch.build(checkpoint("llama"))
    config = json.loads((folder / "adapter_config.json").read_text())
    whole = save(adapters.tensors("llama", "some"))
    numbers = [None, True, -1, 0, 1, 1e300, 2**70, float("nan")]
    values = [*numbers, "x", [], ["v_proj"], {}, {"v_proj": 0}, {"(": 1}, {"": "y"}]
    outcomes = {"loaded": 0, "refused": 0}
    for _ in range(ROUNDS):
        changed = dict(config)
        for _ in range(rng.choice((0, 1, 2))):
            changed[rng.choice([*config, "rank_pattern", "alpha_pattern", "use_rslora", "bias"])] = rng.choice(values)
        (folder / "adapter_config.json").write_text(json.dumps(changed))
        (folder / "adapter_model.safetensors").write_bytes(whole if rng.random() < 0.3 else damaged(rng, whole))
        try:
            found = adapter(open_adapter(folder), model)
            sums = [np.abs(matrix).sum() for pair in found.pairs.values() for matrix in pair.matrices()]
        except (InvalidModel, UnsupportedModel) as error:
            assert "\n" not in str(error)
            outcomes["refused"] += 1
        else:
            assert np.isfinite(sums).all()
            outcomes["loaded"] += 1
    assert min(outcomes.values()) > ROUNDS // 20, outcomes
