"""A GGUF model under Hugging Face's names: names, row order, config, parts, and two real models."""

from __future__ import annotations

import hashlib
import json
import time
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from imp.weights.checkpoint import GgufVocabulary, InvalidModel, open_checkpoint
from tests.weights import ggufmaker as make
from tests.weights.ggufmaker import Gguf, Key, Tensor

GOLDEN = Path(__file__).parent / "golden"


def opened(directory: Path, made: Gguf, name: str = "model.gguf"):
    (directory / name).write_bytes(made.packed())
    return open_checkpoint(directory / name)


GATED = "mlp.gate_proj mlp.up_proj mlp.down_proj"
SPLIT = "input_layernorm self_attn.q_proj self_attn.k_proj self_attn.v_proj self_attn.o_proj post_attention_layernorm"
FUSED = "input_layernorm self_attn.qkv_proj self_attn.o_proj post_attention_layernorm mlp.gate_up_proj mlp.down_proj"
NAMES = {
    "llama": f"{SPLIT} {GATED}",
    "gemma2": f"{SPLIT} pre_feedforward_layernorm post_feedforward_layernorm {GATED}",
    "phi3": FUSED,
}
NAMES |= dict.fromkeys(["qwen2", "gemma"], NAMES["llama"])
NAMES |= {
    "qwen3": NAMES["llama"] + " self_attn.q_norm self_attn.k_norm",
    "gemma3": NAMES["gemma2"] + " self_attn.q_norm self_attn.k_norm",
}
EXPERTS = {
    "llama": ("block_sparse_moe.gate", *(f"block_sparse_moe.experts.{part}" for part in ("w1", "w3", "w2"))),
    "qwen3moe": ("mlp.gate", *(f"mlp.experts.{part}" for part in ("gate_proj", "up_proj", "down_proj"))),
}


@pytest.mark.parametrize("arch", NAMES)
def test_names_are_those_the_gguf_package_maps_from(tmp_path, arch):
    kind = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    judge = gguf.get_tensor_name_map(kind, 12)
    expected = ["model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"]
    expected += [f"model.layers.{i}.{part}.weight" for i in (0, 11) for part in NAMES[arch].split()]
    theirs = [judge.get_name(name, try_suffixes=(".weight",)) for name in expected]
    if arch in ("gemma", "gemma2"):  # always tied: the map knows no output of theirs
        theirs[2] = "output.weight"
    assert None not in theirs
    tensors = [Tensor(name, 0, (8, 8), make.floats(64)) for name in theirs]
    checkpoint = opened(tmp_path, Gguf(make.model_keys(arch, block_count=12), tensors))
    assert list(checkpoint.names()) == expected


@pytest.mark.parametrize("arch", EXPERTS)
def test_names_of_experts_are_those_the_gguf_package_maps_from(tmp_path, arch):
    kind = {name: kind for kind, name in gguf.MODEL_ARCH_NAMES.items()}[arch]
    judge = gguf.get_tensor_name_map(kind, 2)
    expected = [f"model.layers.1.{part}.weight" for part in EXPERTS[arch]]
    theirs = [judge.get_name(name, try_suffixes=(".weight",)) for name in expected]
    assert None not in theirs
    keys = make.model_keys(arch, block_count=2, expert_count=3, expert_used_count=2)
    shapes = [(8, 3), *[(8, 8, 3)] * 3]
    tensors = [
        Tensor(name, 0, shape, make.floats(int(np.prod(shape)))) for name, shape in zip(theirs, shapes, strict=True)
    ]
    checkpoint = opened(tmp_path, Gguf(keys, tensors))
    assert list(checkpoint.names()) == expected
    assert checkpoint.weight(expected[3]).shape == (3, 8, 8)


def test_a_llama_with_experts_is_mixtral_and_with_none_of_them_a_llama(tmp_path):
    """Converters of plain models have written a count of 0."""
    sizes = {"expert_count": 8, "expert_used_count": 2}
    assert config(tmp_path, "llama", **sizes).items() >= {
        "model_type": "mixtral",
        "architectures": ["MixtralForCausalLM"],
        "num_local_experts": 8,
        "num_experts_per_tok": 2,
        "intermediate_size": 16,
    }.items()
    plain = config(tmp_path, "llama", expert_count=0, expert_used_count=0)
    assert plain["model_type"] == "llama" and not {"num_local_experts", "num_experts_per_tok"} & plain.keys()
    sizes |= {"expert_feed_forward_length": 12}
    assert config(tmp_path, "qwen3moe", **sizes).items() >= {
        "model_type": "qwen3_moe",
        "num_local_experts": 8,
        "moe_intermediate_size": 12,
        "norm_topk_prob": True,
    }.items()


def test_names_without_a_counterpart_stay(tmp_path):
    names = ["rope_freqs.weight", "blk.0.unheard_of.weight", "blk.x.attn_q.weight", "blk.0.attn_q.scale"]
    checkpoint = opened(tmp_path, Gguf(make.model_keys(), [Tensor(n, 0, (8,), make.floats(8)) for n in names]))
    assert list(checkpoint.names()) == names


def converters_order(rows: np.ndarray, heads: int) -> np.ndarray:
    """What the GGML project's converter does to q and k of a llama: halves of a head become neighbours."""
    return rows.reshape(heads, 2, len(rows) // heads // 2, *rows.shape[1:]).swapaxes(1, 2).reshape(rows.shape)


@pytest.mark.parametrize("kind", ["F32", "F16", "Q8_0", "Q4_1"])
def test_llama_query_and_key_rows_come_back_in_hugging_faces_order(tmp_path, kind):
    heads, kv_heads, size, hidden = 6, 2, 8, 64
    type = gguf.GGMLQuantizationType[kind]
    rng = np.random.default_rng(0)
    originals, tensors = {}, []
    for part, count in {"q": heads, "k": kv_heads, "v": kv_heads}.items():
        matrix = gguf.quantize(rng.standard_normal((count * size, hidden)).astype(np.float32), type)
        bias = rng.standard_normal(count * size).astype(np.float32)
        originals[f"{part}_proj.weight"] = gguf.dequantize(matrix, type)
        originals[f"{part}_proj.bias"] = bias
        if part != "v":
            matrix, bias = converters_order(matrix, count), converters_order(bias, count)
        data = np.ascontiguousarray(matrix).tobytes()
        tensors.append(Tensor(f"blk.0.attn_{part}.weight", type.value, (hidden, count * size), data))
        tensors.append(Tensor(f"blk.0.attn_{part}.bias", 0, (count * size,), bias.tobytes()))
    sizes = {"attention.head_count": heads, "attention.head_count_kv": kv_heads, "embedding_length": hidden}
    checkpoint = opened(tmp_path, Gguf(make.model_keys(**sizes), tensors))
    for name, expected in originals.items():
        weight = checkpoint.weight(f"model.layers.0.self_attn.{name}")
        assert not weight.data.flags.writeable
        np.testing.assert_array_equal(weight.float32(), expected)


def test_other_architectures_keep_their_rows(tmp_path):
    checkpoint = opened(
        tmp_path, Gguf(make.model_keys("qwen2"), [Tensor("blk.0.attn_q.weight", 0, (8, 8), make.floats(64))])
    )
    weight = checkpoint.weight("model.layers.0.self_attn.q_proj.weight")
    assert weight.float32().reshape(-1).tolist() == list(range(64))
    assert not weight.data.flags.owndata


@pytest.mark.parametrize("rows", [6, 5, 7])
def test_rows_that_are_not_whole_heads_are_refused(tmp_path, rows):
    tensor = Tensor("blk.0.attn_q.weight", 0, (8, rows), make.floats(8 * rows))
    checkpoint = opened(tmp_path, Gguf(make.model_keys(), [tensor]))
    with pytest.raises(InvalidModel, match=r"model\.gguf: tensor .*q_proj\.weight' has \d rows"):
        checkpoint.weight("model.layers.0.self_attn.q_proj.weight")


def config(directory: Path, arch: str, *keys: Key, tensors: tuple[Tensor, ...] = (), **sizes: int) -> dict:
    return opened(directory, Gguf([*make.model_keys(arch, **sizes), *keys], list(tensors))).config


def test_the_common_keys_are_mapped(tmp_path):
    found = config(
        tmp_path,
        "llama",
        Key("llama.rope.freq_base", make.F32, 5e5),
        Key("llama.vocab_size", make.U32, 99),
        Key("tokenizer.ggml.bos_token_id", make.U32, 7),
    )
    assert found == {
        "model_type": "llama",
        "architectures": ["LlamaForCausalLM"],
        "hidden_act": "silu",
        "hidden_size": 8,
        "intermediate_size": 16,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "num_key_value_heads": 1,
        "head_dim": 4,
        "max_position_embeddings": 64,
        "rms_norm_eps": float(np.float32(1e-5)),
        "rope_theta": 5e5,
        "vocab_size": 99,
        "bos_token_id": 7,
        "tie_word_embeddings": True,
        "attention_bias": False,
        "mlp_bias": False,
    }


def test_what_tensors_tell_is_in_the_config(tmp_path):
    names = {
        "output.weight": (8, 3),
        "token_embd.weight": (8, 3),
        "blk.0.attn_q.bias": (8,),
        "blk.0.ffn_down.bias": (8,),
    }
    tensors = tuple(Tensor(n, 0, dims, make.floats(int(np.prod(dims)))) for n, dims in names.items())
    found = config(tmp_path, "llama", tensors=tensors)
    assert found["vocab_size"] == 3 and found["tie_word_embeddings"] is False
    assert found["attention_bias"] is True and found["mlp_bias"] is True


def test_head_size_and_partial_rotation(tmp_path):
    found = config(
        tmp_path, "phi3", Key("phi3.attention.key_length", make.U32, 16), Key("phi3.rope.dimension_count", make.U32, 12)
    )
    assert found["head_dim"] == 16 and found["partial_rotary_factor"] == 0.75


def test_values_per_layer_are_one_value_where_they_agree(tmp_path):
    key = "llama.feed_forward_length"
    made = Gguf(make.model_keys(block_count=2))
    assert opened(tmp_path, made.with_key(key, make.ARRAY, (make.U32, [16, 16]))).config["intermediate_size"] == 16
    assert opened(tmp_path, made.with_key(key, make.ARRAY, (make.U32, [16, 24]))).config["intermediate_size"] == [
        16,
        24,
    ]
    for wrong in ([16], [16, 0], []):
        with pytest.raises(InvalidModel, match=key):
            opened(tmp_path, made.with_key(key, make.ARRAY, (make.U32, wrong)))


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ({}, None),
        ({"type": "none"}, None),
        ({"type": "linear", "factor": 8.0}, {"rope_type": "linear", "factor": 8.0}),
        ({"factor": 4.0}, {"rope_type": "linear", "factor": 4.0}),
        (
            {"type": "yarn", "factor": 4.0, "original_context_length": 32},
            {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 32},
        ),
        (
            {"type": "yarn", "factor": 4.0, "yarn_attn_factor": 1.5, "yarn_beta_fast": 16.0, "yarn_beta_slow": 2.0},
            {"rope_type": "yarn", "factor": 4.0, "attention_factor": 1.5, "beta_fast": 16.0, "beta_slow": 2.0},
        ),
        ({"type": "novel", "factor": 2.0}, {"rope_type": "novel"}),
    ],
)
def test_rope_scaling_has_hugging_faces_form(tmp_path, keys, expected):
    kinds = {str: make.STRING, float: make.F32, int: make.U32}
    made = [Key(f"qwen2.rope.scaling.{name}", kinds[type(value)], value) for name, value in keys.items()]
    assert config(tmp_path, "qwen2", *made).get("rope_scaling") == expected


def test_phi3_long_rope_factors_are_in_the_config(tmp_path):
    tensors = (
        Tensor("rope_factors_long.weight", 0, (2,), make.floats(2, 4.0)),
        Tensor("rope_factors_short.weight", 0, (2,), make.floats(2, 1.0)),
    )
    keys = [
        Key("phi3.rope.scaling.original_context_length", make.U32, 32),
        Key("phi3.rope.scaling.attn_factor", make.F32, 1.25),
    ]
    found = config(tmp_path, "phi3", *keys, tensors=tensors)
    assert found["rope_scaling"] == {
        "rope_type": "longrope",
        "long_factor": [4.0, 5.0],
        "short_factor": [1.0, 2.0],
        "original_max_position_embeddings": 32,
        "attention_factor": 1.25,
    }
    assert found["original_max_position_embeddings"] == 32


# published configs: gemma-2-9b, gemma-2-27b, gemma-3-4b and gemma-3-27b
@pytest.mark.parametrize(
    ("arch", "layers", "hidden", "heads", "head_dim", "scalar"),
    [
        ("gemma2", 42, 3584, 16, 256, 256),
        ("gemma2", 46, 4608, 32, 128, 144),
        ("gemma3", 34, 2560, 8, 256, 256),
        ("gemma3", 62, 5376, 32, 128, 168),
    ],
)
def test_gemma_query_scalars_are_the_published_ones(tmp_path, arch, layers, hidden, heads, head_dim, scalar):
    sizes = {"block_count": layers, "embedding_length": hidden, "attention.head_count": heads}
    found = config(tmp_path, arch, Key(f"{arch}.attention.key_length", make.U32, head_dim), **sizes)
    assert found["query_pre_attn_scalar"] == scalar


def test_gemma2_has_its_fixed_values(tmp_path):
    found = config(tmp_path, "gemma2", block_count=4)
    assert found["model_type"] == "gemma2" and found["norm_weight_offset"] == 0
    assert (found["attn_logit_softcapping"], found["final_logit_softcapping"]) == (50.0, 30.0)
    assert found["sliding_window"] == 4096 and found["hidden_activation"] == "gelu_pytorch_tanh"
    assert found["layer_types"] == ["sliding_attention", "full_attention"] * 2


def test_gemma3_every_sixth_layer_is_global(tmp_path):
    key = Key("gemma3.attention.sliding_window", make.U32, 512)
    found = config(tmp_path, "gemma3", key, block_count=13)
    assert [i for i, kind in enumerate(found["layer_types"]) if kind == "full_attention"] == [5, 11]
    assert found["sliding_window_pattern"] == 6 and found["rope_local_base_freq"] == 10000.0


def test_a_pattern_per_layer_is_followed(tmp_path):
    keys = [
        Key("gemma3.attention.sliding_window", make.U32, 512),
        Key("gemma3.attention.sliding_window_pattern", make.ARRAY, (make.BOOL, [True, False])),
    ]
    assert config(tmp_path, "gemma3", *keys, block_count=2)["layer_types"] == ["sliding_attention", "full_attention"]
    with pytest.raises(InvalidModel, match="sliding_window_pattern"):
        config(tmp_path, "gemma3", *keys, block_count=3)


def test_a_window_of_zero_means_none(tmp_path):
    found = config(tmp_path, "phi3", Key("phi3.attention.sliding_window", make.U32, 0))
    assert found["sliding_window"] is None and "layer_types" not in found


def test_sampling_defaults_and_templates_are_found(tmp_path):
    keys = [
        *make.model_keys(),
        *make.tokenizer_keys(["a", "b", "c"]),
        Key("general.sampling.temp", make.F32, 0.5),
        Key("general.sampling.top_k", make.I32, 40),
        Key("general.sampling.penalty_repeat", make.F32, 1.25),
        Key("tokenizer.ggml.eot_token_id", make.U32, 2),
        Key("tokenizer.chat_template", make.STRING, "D"),
        Key("tokenizer.chat_template.tool_use", make.STRING, "U"),  # SCENARIOS G06-09
        Key("tokenizer.chat_templates", make.ARRAY, (make.STRING, ["tool_use"])),
    ]
    checkpoint = opened(tmp_path, Gguf(keys))
    assert checkpoint.generation == {
        "temperature": 0.5,
        "top_k": 40,
        "repetition_penalty": 1.25,
        "eos_token_id": [1, 2],
    }
    assert checkpoint.chat_template == "D" and checkpoint.chat_templates == {"tool_use": "U"}
    vocabulary = checkpoint.tokenizer()
    assert isinstance(vocabulary, GgufVocabulary)
    assert vocabulary.metadata["general.architecture"] == "llama"
    assert list(vocabulary.metadata["tokenizer.ggml.tokens"]) == ["a", "b", "c"]
    assert vocabulary.metadata["tokenizer.ggml.scores"].tolist() == [0, -1, -2]
    assert not any(key.startswith("llama.") for key in vocabulary.metadata)


@pytest.mark.parametrize("number, name", [(None, None), (0, None), (1, "mean"), (2, "cls"), (3, "last"), (4, None)])
def test_the_pooling_type_has_sentence_transformers_name(tmp_path, number, name):
    keys = [] if number is None else [Key("llama.pooling_type", make.U32, number)]
    assert opened(tmp_path, Gguf([*make.model_keys("llama"), *keys])).pooling == name


def part(number: int, count: int, tensors: list[Tensor], total: int = 3) -> Gguf:
    keys = make.model_keys() if number == 0 else []
    keys += [Key("split.no", make.U16, number), Key("split.count", make.U16, count)]
    return Gguf([*keys, Key("split.tensors.count", make.I32, total)], tensors)


def write_parts(directory: Path, **changed: Gguf) -> Path:
    parts = {
        "m-00001-of-00003.gguf": part(0, 3, [Tensor("a", 0, (2,), make.floats(2))]),
        "m-00002-of-00003.gguf": part(1, 3, [Tensor("b", 0, (2,), make.floats(2, 5))]),
        "m-00003-of-00003.gguf": part(2, 3, [Tensor("c", 0, (2,), make.floats(2, 9))]),
    }
    for i, (name, made) in enumerate(parts.items()):
        (directory / name).write_bytes(changed.get(f"part{i}", made).packed())
    return directory / "m-00001-of-00003.gguf"


def test_a_model_in_parts_is_one_model(tmp_path):
    path = write_parts(tmp_path)
    for given in (path, tmp_path):
        checkpoint = open_checkpoint(given)
        assert [checkpoint.weight(name).float32().tolist() for name in "abc"] == [[0, 1], [5, 6], [9, 10]]
        assert checkpoint.parameters == 6 and checkpoint.size_bytes == 24


def test_parts_that_do_not_fit_are_refused(tmp_path):  # SCENARIOS G10-14
    path = write_parts(tmp_path)
    with pytest.raises(InvalidModel, match=r"m-00002-of-00003\.gguf: the file is not the first"):
        open_checkpoint(tmp_path / "m-00002-of-00003.gguf")
    for fault, changed in {
        "part 2 of 3": part(2, 3, []),
        "part 2 of 3'?": part(1, 4, []),
        "'a' is also in m-00001": part(1, 3, [Tensor("a", 0, (2,), make.floats(2))]),
        "2 tensors, not the 3 announced": part(1, 3, []),
    }.items():
        write_parts(tmp_path, part1=changed)
        with pytest.raises(InvalidModel, match=fault):
            open_checkpoint(path)
    write_parts(tmp_path)
    renamed = path.rename(tmp_path / "other.gguf")
    with pytest.raises(InvalidModel, match=r"one of 3 parts, but is not named NAME-00001-of-00003\.gguf"):
        open_checkpoint(renamed)
    write_parts(tmp_path)
    (tmp_path / "m-00003-of-00003.gguf").unlink()
    with pytest.raises(InvalidModel, match=r"m-00003-of-00003\.gguf: there is no such file"):
        open_checkpoint(path)


def test_a_directory_of_several_models_is_refused(tmp_path):
    opened(tmp_path, make.tiny(), "a.gguf")
    assert open_checkpoint(tmp_path).parameters
    opened(tmp_path, make.tiny(), "b.gguf")
    with pytest.raises(InvalidModel, match="2 GGUF models"):
        open_checkpoint(tmp_path)


def test_weights_and_vocabulary_outlive_the_checkpoint(tmp_path):
    checkpoint = opened(tmp_path, replace(make.tiny(), tail=bytes(5)))
    weight, vocabulary = checkpoint.weight("model.embed_tokens.weight"), checkpoint.tokenizer()
    checkpoint.close()
    assert weight.float32()[0, 1] == 1.0
    assert list(vocabulary.metadata["tokenizer.ggml.tokens"]) == ["a", "bc", "", "é"]


def test_public_vocabularies_open():
    directory = Path(__file__).resolve().parents[2] / "../shared/data/vocab"
    files = sorted(directory.glob("*.gguf"))
    if not files:
        pytest.skip("the public vocabulary files are not beside the project")
    for path in files:
        checkpoint = open_checkpoint(path)
        tokens = checkpoint.tokenizer().metadata["tokenizer.ggml.tokens"]
        assert checkpoint.config["vocab_size"] == len(tokens)
        assert all(isinstance(token, str) for token in tokens)


def digest(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()[:16]


def assert_equals_transformers(checkpoint, golden: dict) -> None:
    """Every tensor, by name, shape and float32 bits, is what transformers makes of the same file."""
    expected = {name: value for name, value in golden["tensors"].items() if name != "lm_head.weight"}  # tied
    assert sorted(checkpoint.names()) == sorted(expected)
    for name, (shape, sha) in expected.items():
        weight = checkpoint.weight(name)
        assert list(weight.shape) == shape, name
        values = weight.float32()
        if checkpoint.config.get("norm_weight_offset") == 0 and name.endswith("norm.weight"):
            values = values - np.float32(1)  # transformers takes the converter's 1 off again
        assert digest(values) == sha, name
    for key, value in golden["config"].items():
        assert checkpoint.config[key] == value, key


def assert_equals_gguf_package(checkpoint) -> None:
    """One layer and the embedding's first rows, as the package dequantises their bytes."""
    for name in (n for n in checkpoint.names() if n.startswith(("model.layers.0.", "model.embed"))):
        weight = checkpoint.weight(name)
        raw = weight.data[:1024] if weight.format.block > 1 else weight.data.view(np.float32)
        expected = gguf.dequantize(raw, gguf.GGMLQuantizationType[weight.format.name])
        assert np.array_equal(weight.format.dequantize(weight.data[:1024]), expected), name


# size_bytes: the file less its header; parameters: the published counts
def test_smollm2_equals_its_judges(smollm2_path):
    checkpoint = open_checkpoint(smollm2_path)
    assert_equals_transformers(checkpoint, json.loads((GOLDEN / "smollm2_q4_1.json").read_text()))
    assert_equals_gguf_package(checkpoint)
    assert checkpoint.quantization == "Q4_1" and checkpoint.parameters == 134_515_008
    assert 0 < smollm2_path.stat().st_size - checkpoint.size_bytes < 2_000_000
    assert checkpoint.chat_template.startswith("{% for message in messages %}")


@pytest.mark.slow
def test_gemma3_equals_its_judges(gemma3_path):
    checkpoint = open_checkpoint(gemma3_path)
    assert_equals_transformers(checkpoint, json.loads((GOLDEN / "gemma3_q4_k_m.json").read_text()))
    assert_equals_gguf_package(checkpoint)
    assert checkpoint.config["norm_weight_offset"] == 0
    assert checkpoint.quantization == "Q8_0" and checkpoint.parameters == 268_098_176
    assert 0 < gemma3_path.stat().st_size - checkpoint.size_bytes < 8_000_000
    assert checkpoint.chat_template is None


def test_a_vocabulary_of_262144_opens_in_under_a_second(gemma3_path):
    started = time.process_time()
    checkpoint = open_checkpoint(gemma3_path)
    assert time.process_time() - started < 1.0
    tokens = checkpoint.tokenizer().metadata["tokenizer.ggml.tokens"]
    assert len(tokens) == 262144 and tokens[105] == "<start_of_turn>"
