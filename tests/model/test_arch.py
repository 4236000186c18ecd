"""Architectures against transformers in float64, and every way of cutting a prompt into steps against the whole."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from imp.model import arch
from imp.model.inputs import pack
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.types import Batch, Request, Row, Sampling, Sequence
from imp.weights.checkpoint import InvalidModel, UnsupportedModel, Weight
from imp.weights.quant import FORMATS

from ..cpu.harness import step
from . import tiny

GOLDEN = json.loads(Path(__file__).with_name("golden_tiny.json").read_text())["logits"]
JUDGE = 4e-5  # what is left of its norms and angles, which are float32 in a model of float64, too


class MemoryCheckpoint:
    """A checkpoint of arrays; what architecture files read."""

    def __init__(self, config: dict[str, Any], tensors: dict[str, np.ndarray]):
        self.config, self.tensors = config, tensors

    def names(self):
        return self.tensors

    def __contains__(self, name: str) -> bool:
        return name in self.tensors

    def weight(self, name: str) -> Weight:
        if name not in self.tensors:
            raise InvalidModel(f"{name} is missing")
        array = np.ascontiguousarray(self.tensors[name])
        raw = array.reshape(-1, array.shape[-1]).view(np.uint8)
        return Weight(name, raw, FORMATS["F32"], array.shape)


def checkpoint(name: str, **changes: Any) -> MemoryCheckpoint:
    return MemoryCheckpoint(tiny.CONFIGS[name] | changes, tiny.tensors(name))


def run_in_steps(backend: Any, tokens: list[int], steps: list[int]) -> np.ndarray:
    """Logits of every position, computed in steps of the given sizes over shuffled blocks."""
    request = Request("r", tuple(tokens), Sampling(prompt_logprobs=0))
    seq = Sequence(request, 0, 0, list(tokens))
    seq.blocks = np.random.default_rng(len(steps)).permutation(64)[: -(-len(tokens) // 16)].tolist()
    out, start = [], 0
    for count in steps:
        row = Row(seq, start, count)
        inputs = pack(Batch([row]), 16)
        inputs = type(inputs)(
            **{f: getattr(inputs, f) for f in inputs.__slots__} | {"wanted": np.arange(count, dtype=np.int32)}
        )
        out.append(backend.run(inputs).copy())
        start += count
    return np.concatenate(out)


def loaded(name: str, dtype: type = np.float64) -> ReferenceBackend:
    backend = ReferenceBackend(dtype)
    backend.load(arch.build(checkpoint(name)), StepLimits(tokens=64, rows=4, logit_rows=64, context=256, blocks=64))
    return backend


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_logits_equal_those_of_transformers(name):
    ours = run_in_steps(loaded(name), tiny.prompt(name), [40])[3::4]
    assert np.abs(ours - np.array(GOLDEN[name])).max() < JUDGE


@pytest.mark.parametrize("name", tiny.CONFIGS)
@pytest.mark.parametrize("steps", [[1] * 40, [7, 1, 1, 16, 15], [39, 1]])
def test_a_prompt_cut_into_steps_gives_the_logits_of_the_whole(name, steps):
    backend = loaded(name)
    whole = run_in_steps(backend, tiny.prompt(name), [40])
    assert np.abs(run_in_steps(loaded(name), tiny.prompt(name), steps) - whole).max() < 1e-5


def test_a_copied_block_holds_what_was_computed():
    backend, judge, tokens = loaded("llama"), loaded("llama"), tiny.prompt("llama")
    whole = judge.run(step([(tokens, 0, (5, 6, 7))], wanted=range(26, 40)))
    backend.run(step([(tokens[:30], 0, (0, 1))]))
    backend.copy_blocks([(1, 9), (9, 4), (0, 1)])
    assert np.abs(backend.run(step([(tokens[26:], 26, (1, 4, 8))], wanted=range(14))) - whole).max() < 1e-5


def in_newer_form(name: str) -> dict[str, Any]:
    """The config as transformers 5 writes it: rope_parameters instead of rope_theta and rope_scaling."""
    config = dict(tiny.CONFIGS[name])
    theta, scaling = config.pop("rope_theta"), config.pop("rope_scaling", None) or {"rope_type": "default"}
    config["rope_parameters"] = {"rope_theta": theta, **scaling}
    if local := config.pop("rope_local_base_freq", None):
        sliding = {"rope_theta": local, "rope_type": "default"}
        config["rope_parameters"] = {"full_attention": config["rope_parameters"], "sliding_attention": sliding}
    return config


@pytest.mark.parametrize("name", tiny.CONFIGS)
def test_rope_parameters_mean_what_the_older_keys_mean(name):
    backend = ReferenceBackend(np.float64)
    model = arch.build(MemoryCheckpoint(in_newer_form(name), tiny.tensors(name)))
    backend.load(model, StepLimits(tokens=64, rows=4, logit_rows=64, context=256, blocks=64))
    ours = run_in_steps(backend, tiny.prompt(name), [40])[3::4]
    assert np.abs(ours - np.array(GOLDEN[name])).max() < JUDGE


def test_a_window_that_is_not_used_is_none():
    given = checkpoint("qwen3", use_sliding_window=False, sliding_window=12, max_window_layers=1)
    assert {block.mixer.attention.window for block in arch.build(given).blocks} == {None}


def test_an_unknown_architecture_is_refused_by_name():
    with pytest.raises(UnsupportedModel, match=r'"mamba9" is not supported; supported: .*llama'):
        arch.build(checkpoint("llama", model_type="mamba9"))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_act": "relu"}, "\"hidden_act\" = 'relu' is not supported"),
        ({"rope_scaling": {"rope_type": "spiral", "factor": 2.0}}, 'rope scaling "spiral" is not supported'),
        ({"use_sliding_window": True, "sliding_window": 12}, '"use_sliding_window" = True is not supported'),
    ],
)
def test_what_is_not_computed_is_refused(changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        arch.build(checkpoint("llama", **changes))


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"hidden_size": None}, 'lacks "hidden_size"'),
        ({"hidden_size": "96"}, '"hidden_size" must be an integer'),
        ({"num_hidden_layers": 0}, '"num_hidden_layers" must be at least 1'),
        ({"num_key_value_heads": 4}, "6 attention heads cannot share 4"),
        ({"vocab_size": 100}, r"has shape \(160, 96\), the config says \(100, 96\)"),
        ({"num_hidden_layers": 9}, "missing"),
    ],
)
def test_a_config_that_contradicts_the_tensors_is_an_invalid_model(changes, message):
    with pytest.raises(InvalidModel, match=message):
        arch.build(checkpoint("llama", **changes))
