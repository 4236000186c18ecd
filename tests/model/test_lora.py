"""Adapters against transformers with PEFT in float64, several in one step, and every adapter that is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from imp.model import arch
from imp.model.inputs import SPAN, adapted_spans, pack
from imp.model.lora import Adapter, adapter
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.types import Batch, Request, Row, Sequence
from imp.weights.adapter import open_adapter
from imp.weights.checkpoint import InvalidModel, UnsupportedModel

from ..cpu.harness import step
from . import adapters, tiny
from .test_arch import checkpoint

GOLDEN = json.loads(Path(__file__).with_name("golden_adapters.json").read_text())["logits"]
LIMITS = StepLimits(tokens=160, rows=8, logit_rows=160, context=256, blocks=64)
CLOSE = 5e-5  # the judge turns queries and keys by angles in float32
EACH = [(model, name) for model in adapters.MODELS for name in adapters.ADAPTERS]


def read(folder: Path, model: str, name: str, **changes: Any) -> Adapter:
    return adapter(open_adapter(adapters.write(folder, model, name, **changes)), arch.build(checkpoint(model)))


def spans(*rows: tuple[int, int, int]) -> np.ndarray:
    return np.array(rows, np.int32).reshape(-1, 3)


def loaded(model: str) -> ReferenceBackend:
    backend = ReferenceBackend(np.float64)
    backend.load(arch.build(checkpoint(model)), LIMITS)
    return backend


@pytest.mark.parametrize("model, name", EACH)
def test_logits_with_an_adapter_are_those_of_peft(tmp_path, model, name):
    backend = loaded(model)
    slot = backend.add_adapter(read(tmp_path, model, name))
    inputs = step([(tiny.prompt(model), 0, range(3))], wanted=range(7, 40, 8))
    ours = backend.run(replace(inputs, adapted=spans((0, 40, slot))))
    assert np.abs(ours - np.array(GOLDEN[model][name])).max() < CLOSE
    assert np.abs(ours - backend.run(inputs)).max() > 0.1  # it is no adapter that does nothing


def test_rows_of_one_step_have_their_own_adapters_or_none(tmp_path):
    backend, prompt = loaded("llama"), tiny.prompt("llama")
    slots = {name: backend.add_adapter(read(tmp_path, "llama", name)) for name in adapters.ADAPTERS}
    rows = [(prompt, 0, range(i * 3, i * 3 + 3)) for i in range(4)]
    inputs = step(rows, wanted=range(39, 160, 40))
    alone = backend.run(step(rows[:1], wanted=[39]))[0]
    together = backend.run(replace(inputs, adapted=spans((0, 40, slots["some"]), (80, 120, slots["attention"]))))
    for row, name in ((0, "some"), (2, "attention")):
        assert np.abs(together[row] - np.array(GOLDEN["llama"][name])[-1]).max() < CLOSE
    for row in (1, 3):
        assert np.abs(together[row] - alone).max() < 1e-5


def test_a_slot_that_was_dropped_is_given_out_again(tmp_path):
    backend = loaded("llama")
    first, second = (backend.add_adapter(read(tmp_path, "llama", name)) for name in ("some", "everywhere"))
    backend.drop_adapter(first)
    assert backend.add_adapter(read(tmp_path, "llama", "patterns")) == first != second
    inputs = step([(tiny.prompt("llama"), 0, range(3))], wanted=[39])
    for slot, name in ((first, "patterns"), (second, "everywhere")):
        ours = backend.run(replace(inputs, adapted=spans((0, 40, slot))))
        assert np.abs(ours[0] - np.array(GOLDEN["llama"][name])[-1]).max() < CLOSE


def _row(slot: int | None, count: int) -> Row:
    request = Request("r", tuple(range(count)), adapter=slot)
    return Row(Sequence(request, 0, 0, list(range(count)), blocks=list(range(64))), 0, count)


def test_spans_are_runs_of_one_adapter_that_are_not_too_long():
    rows = [_row(slot, count) for slot, count in ((None, 3), (2, 5), (2, 1), (0, 2), (None, 1), (0, SPAN + 10))]
    found = pack(Batch(rows), 16).adapted.tolist()
    assert found == [[3, 9, 2], [9, 11, 0], [12, 12 + SPAN, 0], [12 + SPAN, 22 + SPAN, 0]]
    assert pack(Batch([_row(None, 3)]), 16).adapted.shape == (0, 3)
    covered = adapted_spans([_row(1, 1)] * (3 * SPAN), range(3 * SPAN + 1))
    assert covered.tolist() == [[i, i + SPAN, 1] for i in range(0, 3 * SPAN, SPAN)]


def test_an_adapter_knows_its_size_and_its_files(tmp_path):
    some, again, other = (
        read(tmp_path / at, "llama", "some", lora_alpha=a) for at, a in (("a", 3), ("b", 3), ("c", 4))
    )
    assert some.digest == again.digest != other.digest
    assert some.rank == 1 and read(tmp_path, "llama", "patterns").rank == 20
    assert some.elements == sum(array.size for array in adapters.tensors("llama", "some").values())


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"peft_type": "LOHA"}, "\"peft_type\" = 'LOHA' is not supported"),
        ({"task_type": "SEQ_CLS"}, '"task_type" = .* is not supported'),
        ({"bias": "all"}, '"bias" = .* is not supported'),
        ({"use_dora": True}, '"use_dora" = True is not supported'),
        ({"modules_to_save": ["lm_head"]}, '"modules_to_save" = .* is not supported'),
        ({"trainable_token_indices": [1]}, '"trainable_token_indices" = .* is not supported'),
        ({"layer_replication": [[0, 2]]}, '"layer_replication" = .* is not supported'),
        ({"fan_in_fan_out": True}, '"fan_in_fan_out" = True is not supported'),
        ({"init_lora_weights": "pissa_niter_4"}, "belong to a base model that was changed"),
        ({"alpha_pattern": {"v_(a|b)+": 2}}, "only names of modules are"),
    ],
)
def test_what_would_be_another_sum_is_refused_by_name(tmp_path, changes, message):
    with pytest.raises(UnsupportedModel, match=message):
        read(tmp_path, "llama", "some", **changes)


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"r": None}, 'adapter_config.json lacks "r"'),
        ({"r": 2}, "has rank 1, and its config says 2"),
        ({"lora_alpha": "many"}, '"lora_alpha" must be a number'),
        ({"lora_alpha": float("inf")}, '"lora_alpha" is not finite'),
        ({"use_rslora": 1}, '"use_rslora" must be true or false'),
    ],
)
def test_a_config_that_contradicts_itself_or_the_tensors_is_invalid(tmp_path, changes, message):
    with pytest.raises(InvalidModel, match=message):
        read(tmp_path, "llama", "some", **changes)


def _with(folder: Path, tensors: dict[str, np.ndarray], **changes: Any) -> Adapter:
    path = adapters.write(folder, "llama", "some", **changes)
    save_file(tensors, path / "adapter_model.safetensors")
    return adapter(open_adapter(path), arch.build(checkpoint("llama")))


_V = "base_model.model.model.layers.1.self_attn.v_proj"


@pytest.mark.parametrize(
    "name, array, kind, message",
    [
        (
            "base_model.model.lm_head.lora_A.weight",
            (1, 96),
            UnsupportedModel,
            "only A and B of q_proj, .* are supported",
        ),
        (f"{_V}.lora_magnitude_vector", (32,), UnsupportedModel, "only A and B of"),
        ("base_model.model.model.layers.1.mlp.gate.lora_A.weight", (1, 96), UnsupportedModel, "only A and B of"),
        (
            "base_model.model.model.layers.1.mlp.experts.3.up_proj.lora_A.weight",
            (1, 96),
            UnsupportedModel,
            "experts of a mixture cannot be adapted",
        ),
        ("base_model.model.vision.layers.1.mlp.up_proj.lora_A.weight", (1, 96), UnsupportedModel, "only A and B of"),
        (
            "base_model.model.model.layers.7.mlp.up_proj.lora_A.weight",
            (1, 96),
            InvalidModel,
            "lora_A of .* and not the",
        ),
        (f"{_V}.lora_A.default.weight", (1, 96), InvalidModel, "a second tensor"),
        (f"{_V}.lora_A.weight", (1, 95), InvalidModel, r"for another model: .* is \[32, 96\], and not for A \[1, 95\]"),
        (f"{_V}.lora_A.weight", (96,), InvalidModel, "for another model"),
        (f"{_V}.lora_B.weight", (32, 2), InvalidModel, "for another model"),
    ],
)
def test_tensors_that_do_not_fit_are_refused_by_name(tmp_path, name, array, kind, message):
    given = adapters.tensors("llama", "some") | {name: np.zeros(array, np.float32)}
    with pytest.raises(kind, match=message):
        _with(tmp_path, given)


def test_an_adapter_for_more_layers_than_there_are_is_for_another_model(tmp_path):
    given = {k.replace("layers.1", "layers.7"): v for k, v in adapters.tensors("llama", "some").items()}
    with pytest.raises(InvalidModel, match=r"for another model: this one has no model.layers.7.mlp.up_proj"):
        _with(tmp_path, given)


def test_a_rank_is_at_most_256(tmp_path):
    for rank, fits in ((256, True), (257, False)):
        sides = {"A": (rank, 96), "B": (32, rank)}
        given = {f"{_V}.lora_{side}.weight": np.ones(shape, np.float32) for side, shape in sides.items()}
        if fits:
            assert _with(tmp_path, given, r=rank).rank == rank
        else:
            with pytest.raises(UnsupportedModel, match="at most 256 is supported"):
                _with(tmp_path, given, r=rank)


def test_an_adapter_without_tensors_or_with_numbers_that_are_none_is_invalid(tmp_path):
    with pytest.raises(InvalidModel, match="it would change nothing"):
        _with(tmp_path, {})
    given = adapters.tensors("llama", "some")
    given[f"{_V}.lora_B.weight"][3] = np.nan
    with pytest.raises(InvalidModel, match="not finite"):
        loaded("llama").add_adapter(_with(tmp_path, given))


def test_paths_under_a_vision_model_are_those_of_the_text_model(tmp_path):
    plain = adapters.tensors("llama", "some")
    given = {name.replace("model.layers", "model.language_model.layers"): array for name, array in plain.items()}
    assert _with(tmp_path, given).pairs.keys() == read(tmp_path / "plain", "llama", "some").pairs.keys()
