"""Mixtures of experts as they are published: both file formats against transformers, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

import gguf
import numpy as np
import pytest
from safetensors.numpy import save_file

from imp.model import arch
from imp.model.layers import Decoder, GatedMlp, Mixture
from imp.model.ops import StepLimits
from imp.model.reference import ReferenceBackend
from imp.weights.checkpoint import Checkpoint, InvalidModel, open_checkpoint

from . import tiny
from .test_arch import GOLDEN, JUDGE, checkpoint, run_in_steps

LIMITS = StepLimits(tokens=64, rows=4, logit_rows=64, context=256, blocks=64)
ARCHITECTURES = {"mixtral": "llama", "qwen3-moe": "qwen3moe"}  # GGUF's names


def logits(opened: Checkpoint, name: str) -> np.ndarray:
    backend = ReferenceBackend(np.float64)
    backend.load(arch.build(opened), LIMITS)
    return run_in_steps(backend, tiny.prompt(name), [40])[3::4]


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_files_of_safetensors_give_the_logits_of_transformers(tmp_path, name):
    save_file(tiny.tensors(name), tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(tiny.CONFIGS[name]))
    assert np.abs(logits(open_checkpoint(tmp_path), name) - np.array(GOLDEN[name])).max() < JUDGE


def stacked(name: str) -> dict[str, np.ndarray]:
    """The tensors as converters write them: the experts of a layer in one."""
    config, given = tiny.CONFIGS[name], tiny.tensors(name)
    found: dict[str, list[np.ndarray]] = {}
    for key, array in given.items():
        parts = key.split(".")
        if "experts" in parts:
            at = parts.index("experts")
            key = ".".join((*parts[: at + 1], *parts[at + 2 :]))
        elif ARCHITECTURES[name] == "llama" and parts[-2] in ("q_proj", "k_proj"):
            heads = config["num_attention_heads" if parts[-2] == "q_proj" else "num_key_value_heads"]
            array = array.reshape(heads, 2, -1, array.shape[1]).swapaxes(1, 2).reshape(array.shape)
        found.setdefault(key, []).append(array)
    return {key: np.stack(arrays) if "experts" in key else arrays[0] for key, arrays in found.items()}


def write_gguf(path: Path, name: str) -> None:
    config, kind = tiny.CONFIGS[name], ARCHITECTURES[name]
    writer = gguf.GGUFWriter(path, kind)
    writer.add_block_count(config["num_hidden_layers"])
    writer.add_context_length(config["max_position_embeddings"])
    writer.add_embedding_length(config["hidden_size"])
    writer.add_feed_forward_length(config["intermediate_size"])
    writer.add_head_count(config["num_attention_heads"])
    writer.add_head_count_kv(config["num_key_value_heads"])
    writer.add_key_length(config["head_dim"])
    writer.add_layer_norm_rms_eps(config["rms_norm_eps"])
    writer.add_rope_freq_base(config["rope_theta"])
    writer.add_expert_count(config.get("num_experts") or config["num_local_experts"])
    writer.add_expert_used_count(config["num_experts_per_tok"])
    if "moe_intermediate_size" in config:
        writer.add_expert_feed_forward_length(config["moe_intermediate_size"])
    kinds = {known: kind for kind, known in gguf.MODEL_ARCH_NAMES.items()}
    names = gguf.get_tensor_name_map(kinds[kind], config["num_hidden_layers"])
    for key, array in stacked(name).items():
        writer.add_tensor(names.get_name(key, try_suffixes=(".weight",)), array)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()


@pytest.mark.parametrize("name", ARCHITECTURES)
def test_a_gguf_file_gives_the_logits_of_transformers(tmp_path, name):
    """In a file of the GGML project's own writer, under its own names."""
    write_gguf(tmp_path / "model.gguf", name)
    opened = open_checkpoint(tmp_path / "model.gguf")
    assert opened.parameters == sum(array.size for array in tiny.tensors(name).values())
    assert np.abs(logits(opened, name) - np.array(GOLDEN[name])).max() < JUDGE


def kinds(model: Decoder) -> list[type]:
    return [type(block.mlp) for block in model.blocks]


def test_layers_without_experts_are_those_the_config_names():
    assert kinds(arch.build(checkpoint("qwen3-moe"))) == [Mixture] * 3
    assert kinds(arch.build(checkpoint("qwen3-moe-unnormalised"))) == [GatedMlp, Mixture, GatedMlp, GatedMlp]


@pytest.mark.parametrize(
    "changes, message",
    [
        ({"num_experts": 12}, "experts.11.gate_proj.weight is missing"),
        ({"num_experts": 10}, r"mlp.gate.weight has shape \(11, 96\), the config says \(10, 96\)"),
        ({"num_experts_per_tok": 12}, "cannot go through 12 of 11 experts"),
        ({"moe_intermediate_size": 64}, r"has shape \(32, 96\), the config says \(64, 96\)"),
        ({"num_experts": None}, 'lacks "num_local_experts"'),
        ({"mlp_only_layers": "1"}, '"mlp_only_layers" must be an array'),
    ],
)
def test_a_config_that_contradicts_the_experts_is_an_invalid_model(changes, message):
    with pytest.raises(InvalidModel, match=message):
        arch.build(checkpoint("qwen3-moe", **changes))


def test_adapters_can_add_to_everything_but_experts_and_their_router():
    names = {name.rpartition("layers.")[2] for name in arch.build(checkpoint("qwen3-moe-unnormalised")).modules}
    own = {f"{layer}.self_attn.{part}_proj" for layer in range(4) for part in "qkvo"}
    assert names == own | {f"{layer}.mlp.{part}_proj" for layer in (0, 2, 3) for part in ("gate", "up", "down")}
