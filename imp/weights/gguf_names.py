"""GGUF's words in Hugging Face's: tensor names per architecture, metadata keys to `config.json` and sampling defaults.

Names come from the `gguf` package's tensor map, values from what the GGML project's converter writes and its loader
assumes where a key is absent. To add an architecture: an entry in `ARCHITECTURES`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .gguf_file import StringArray, shown
from .mapped import TensorEntry
from .weight import InvalidModel

WHOLE = {
    "token_embd.weight": "model.embed_tokens.weight",
    "output_norm.weight": "model.norm.weight",
    "output_norm.bias": "model.norm.bias",
    "output.weight": "lm_head.weight",
    "output.bias": "lm_head.bias",
}

BLOCK_PARTS = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_qkv": "self_attn.qkv_proj",
    "attn_output": "self_attn.o_proj",
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}

MIXTURE = {
    "ffn_gate_inp": "mlp.gate",
    "ffn_gate_exps": "mlp.experts.gate_proj",
    "ffn_up_exps": "mlp.experts.up_proj",
    "ffn_down_exps": "mlp.experts.down_proj",
}

MIXTRAL = {
    "ffn_gate_inp": "block_sparse_moe.gate",
    "ffn_gate_exps": "block_sparse_moe.experts.w1",
    "ffn_up_exps": "block_sparse_moe.experts.w3",
    "ffn_down_exps": "block_sparse_moe.experts.w2",
}

SANDWICH_NORMS = {
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}

BLOCK_TENSOR = re.compile(r"blk\.([0-9]{1,5})\.([a-z0-9_]+)\.(weight|bias)")

# the converter adds the 1 of gemma's norms, which Hugging Face's weights leave out
GEMMA = {"hidden_act": "gelu_pytorch_tanh", "hidden_activation": "gelu_pytorch_tanh", "norm_weight_offset": 0}


@dataclass(frozen=True, slots=True)
class Architecture:
    """What one `general.architecture` means beyond the common keys and names."""

    model_type: str
    class_name: str | None = None  # for `architectures`
    parts: Mapping[str, str] = field(default_factory=dict)  # block parts named otherwise than in BLOCK_PARTS
    interleaved: Mapping[str, str] = field(default_factory=dict)  # part -> config key of its number of heads
    defaults: Mapping[str, Any] = field(default_factory=dict)  # config entries GGUF need not carry
    global_every: int | None = None  # with a sliding window: every how many layers one attends globally
    query_scalar: bool = False  # gemma 2 and 3: `query_pre_attn_scalar` is the head size ...
    query_scalar_of_hidden: int | None = None  # ... but hidden size / heads in the model of so many layers
    mixture: Architecture | None = None  # what it means where there are experts


# the converter reorders these rows, from halves to neighbouring pairs; `halves_from_pairs` undoes it
PAIRS = {"attn_q": "num_attention_heads", "attn_k": "num_key_value_heads"}
ARCHITECTURES: dict[str, Architecture] = {
    "llama": Architecture(
        "llama",
        "LlamaForCausalLM",
        interleaved=PAIRS,
        defaults={"hidden_act": "silu"},
        mixture=Architecture(
            "mixtral", "MixtralForCausalLM", parts=MIXTRAL, interleaved=PAIRS, defaults={"hidden_act": "silu"}
        ),
    ),
    "qwen2": Architecture("qwen2", "Qwen2ForCausalLM", defaults={"hidden_act": "silu"}),
    "qwen3": Architecture("qwen3", "Qwen3ForCausalLM", defaults={"hidden_act": "silu"}),
    "qwen3moe": Architecture(
        "qwen3_moe",
        "Qwen3MoeForCausalLM",
        parts=MIXTURE,
        defaults={"hidden_act": "silu", "norm_topk_prob": True},  # as llama.cpp computes all of them
    ),
    "gemma": Architecture("gemma", "GemmaForCausalLM", defaults=GEMMA),
    "gemma2": Architecture(
        "gemma2",
        "Gemma2ForCausalLM",
        parts=SANDWICH_NORMS,
        defaults=GEMMA | {"attn_logit_softcapping": 50.0, "final_logit_softcapping": 30.0, "sliding_window": 4096},
        global_every=2,
        query_scalar=True,
        query_scalar_of_hidden=46,
    ),
    "gemma3": Architecture(
        "gemma3_text",
        "Gemma3ForCausalLM",
        parts=SANDWICH_NORMS,
        defaults=GEMMA | {"rope_local_base_freq": 10000.0},
        global_every=6,
        query_scalar=True,
        query_scalar_of_hidden=62,
    ),
    "phi3": Architecture(
        "phi3", "Phi3ForCausalLM", parts={"ffn_up": "mlp.gate_up_proj"}, defaults={"hidden_act": "silu"}
    ),
}


def architecture(keys: Keys) -> Architecture:
    """Unknown ones get the common names and keys; whether the model can run is the model layer's to say."""
    known = ARCHITECTURES.get(keys.arch) or Architecture(keys.arch)
    return known.mixture if known.mixture and keys.integer(".expert_count", MAX_EXPERTS, low=0) else known


def hugging_face_name(arch: Architecture, name: str) -> str:
    """Names without a counterpart, such as `rope_freqs.weight`, stay as they are."""
    found = BLOCK_TENSOR.fullmatch(name)
    if found is None:
        return WHOLE.get(name, name)
    layer, part, kind = found.groups()
    translated = arch.parts.get(part) or BLOCK_PARTS.get(part)
    return f"model.layers.{layer}.{translated}.{kind}" if translated else name


def heads_key(arch: Architecture, name: str) -> str | None:
    """The config key of the head count by which a tensor's rows were interleaved; None: they were not."""
    found = BLOCK_TENSOR.fullmatch(name)
    return arch.interleaved.get(found[2]) if found else None


def halves_from_pairs(rows: int, heads: int) -> np.ndarray:
    """int64 [rows]: which interleaved row each row of Hugging Face's order is.

    Rope turns pairs of rows. The converter puts the two of a pair next to each other; Hugging Face keeps the first of
    every pair in the upper half of a head and the second in the lower half.
    """
    return np.arange(rows).reshape(heads, rows // heads // 2, 2).swapaxes(1, 2).reshape(-1)


class Keys:
    """Typed reads of the metadata. Every wrong type or impossible value raises InvalidModel and names the key."""

    def __init__(self, metadata: Mapping[str, Any], arch: str, refuse: Callable[[str], InvalidModel]) -> None:
        self.metadata = metadata
        self.arch = arch
        self.refuse = refuse

    def full(self, key: str) -> str:
        """Keys that begin with a dot are the architecture's own."""
        return self.arch + key if key.startswith(".") else key

    def integer(self, key: str, high: int, low: int = 1) -> int | None:
        value = self.metadata.get(self.full(key))
        return None if value is None else self._checked(key, value, low, high)

    def integers(self, key: str, high: int, layers: int | None, low: int = 1) -> int | list[int] | None:
        """One value, or one per layer; a list only where the layers differ."""
        value = self.metadata.get(self.full(key))
        if not isinstance(value, np.ndarray):
            return self.integer(key, high, low)
        if not 1 <= len(value) == (layers or len(value)):
            raise self.refuse(f"{self.full(key)} lists {len(value)} values for {layers} layers")
        distinct = [self._checked(key, item, low, high) for item in np.unique(value).tolist()]
        return distinct[0] if len(distinct) == 1 else value.tolist()

    def number(self, key: str) -> int | float | None:
        value = self.metadata.get(self.full(key))
        if value is None:
            return None
        if type(value) not in (int, float) or not math.isfinite(value):
            raise self.refuse(f"{self.full(key)} is {describe(value)}, not a finite number")
        return value

    def text(self, key: str) -> str | None:
        value = self.metadata.get(self.full(key))
        if value is not None and not isinstance(value, str):
            raise self.refuse(f"{self.full(key)} is {describe(value)}, not a string")
        return value

    def _checked(self, key: str, value: Any, low: int, high: int) -> int:
        if type(value) is not int or not low <= value <= high:
            raise self.refuse(f"{self.full(key)} is {describe(value)}, not an integer from {low} to {high}")
        return value


def describe(value: Any) -> str:
    if isinstance(value, int | float):
        return str(value)
    return shown(value) if isinstance(value, str) else "an array"


# config key, GGUF key, largest sensible value
SIZES = [
    ("hidden_size", ".embedding_length", 1 << 24),
    ("max_position_embeddings", ".context_length", 1 << 31),
    ("vocab_size", ".vocab_size", 1 << 26),
    ("head_dim", ".attention.key_length", 1 << 16),
]
SIZES_PER_LAYER = [
    ("num_attention_heads", ".attention.head_count", 1 << 16),
    ("num_key_value_heads", ".attention.head_count_kv", 1 << 16),
    ("intermediate_size", ".feed_forward_length", 1 << 26),
]
NUMBERS = [
    ("rms_norm_eps", ".attention.layer_norm_rms_epsilon"),
    ("layer_norm_eps", ".attention.layer_norm_epsilon"),
    ("rope_theta", ".rope.freq_base"),
    ("rope_local_base_freq", ".rope.freq_base_swa"),
    ("attn_logit_softcapping", ".attn_logit_softcapping"),
    ("final_logit_softcapping", ".final_logit_softcapping"),
    ("logit_scale", ".logit_scale"),
    ("residual_multiplier", ".residual_scale"),
    ("embedding_multiplier", ".embedding_scale"),
    ("attention_multiplier", ".attention.scale"),
]
SPECIAL_IDS = [
    ("bos_token_id", "tokenizer.ggml.bos_token_id"),
    ("eos_token_id", "tokenizer.ggml.eos_token_id"),
    ("pad_token_id", "tokenizer.ggml.padding_token_id"),
    ("unk_token_id", "tokenizer.ggml.unknown_token_id"),
]
END_IDS = ["tokenizer.ggml.eos_token_id", "tokenizer.ggml.eot_token_id", "tokenizer.ggml.eom_token_id"]
SAMPLING = {
    "temperature": "temp",
    "top_k": "top_k",
    "top_p": "top_p",
    "min_p": "min_p",
    "repetition_penalty": "penalty_repeat",
    "repeat_last_n": "penalty_last_n",
    "xtc_probability": "xtc_probability",
    "xtc_threshold": "xtc_threshold",
    "mirostat": "mirostat",
    "mirostat_tau": "mirostat_tau",
    "mirostat_eta": "mirostat_eta",
}
EXPERT_SIZES = [
    ("num_local_experts", ".expert_count"),
    ("num_experts_per_tok", ".expert_used_count"),
    ("moe_intermediate_size", ".expert_feed_forward_length"),
]
MAX_LAYERS = 4096
MAX_EXPERTS = 1 << 16
REQUIRED = ("num_hidden_layers", "hidden_size", "num_attention_heads")


def config_of(keys: Keys, tensors: Mapping[str, TensorEntry]) -> dict[str, Any]:
    """The `config.json` a Hugging Face checkpoint of the same model would have. `tensors` by their GGUF names."""
    arch = architecture(keys)
    layers = keys.integer(".block_count", MAX_LAYERS)
    config: dict[str, Any] = {"model_type": arch.model_type, **arch.defaults, "rope_theta": 10000.0}
    if arch.class_name:
        config["architectures"] = [arch.class_name]
    found: dict[str, Any] = {"num_hidden_layers": layers}
    found |= {name: keys.integer(key, high) for name, key, high in SIZES}
    found |= {name: keys.integer(key, 1 << 26, low=0) or None for name, key in EXPERT_SIZES}  # 0: there are none
    found |= {name: keys.integers(key, high, layers) for name, key, high in SIZES_PER_LAYER}
    found |= {name: keys.number(key) for name, key in NUMBERS}
    found |= {name: special_id(keys, key) for name, key in SPECIAL_IDS}
    config |= {name: value for name, value in found.items() if value is not None}
    missing = [name for name in REQUIRED if name not in config]
    if missing and tensors:
        raise keys.refuse(f"the metadata of architecture {keys.arch!r} lacks what gives {missing[0]}")
    config.setdefault("num_key_value_heads", config.get("num_attention_heads"))
    add_vocabulary_size(config, keys, tensors)
    add_head_size(config, keys)
    add_sliding_window(config, keys, arch)
    add_rope_scaling(config, keys, tensors)
    if arch.query_scalar and "head_dim" in config:
        wide = layers == arch.query_scalar_of_hidden
        config["query_pre_attn_scalar"] = (
            config["hidden_size"] // config["num_attention_heads"] if wide else config["head_dim"]
        )
    config["tie_word_embeddings"] = "output.weight" not in tensors
    config["attention_bias"] = any(f"blk.0.{part}.bias" in tensors for part in ("attn_q", "attn_qkv"))
    config["mlp_bias"] = "blk.0.ffn_down.bias" in tensors
    return config


def vocabulary_size(keys: Keys) -> int | None:
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    return len(tokens) if isinstance(tokens, StringArray) else None


def special_id(keys: Keys, key: str) -> int | None:
    """None for ids outside the vocabulary: converters wrote -1 and the like for "there is none"."""
    token = keys.integer(key, (1 << 64) - 1, low=-(1 << 63))
    known = vocabulary_size(keys)
    return token if token is not None and 0 <= token < (known or 1 << 26) else None


def add_vocabulary_size(config: dict[str, Any], keys: Keys, tensors: Mapping[str, TensorEntry]) -> None:
    embedding = tensors.get("token_embd.weight")
    if embedding is not None:
        config["vocab_size"] = embedding.shape[0]
    elif "vocab_size" not in config and (known := vocabulary_size(keys)):
        config["vocab_size"] = known


def add_head_size(config: dict[str, Any], keys: Keys) -> None:
    heads, hidden = config.get("num_attention_heads"), config.get("hidden_size")
    if "head_dim" not in config and isinstance(heads, int) and hidden:
        config["head_dim"] = hidden // heads
    turned = keys.integer(".rope.dimension_count", 1 << 16)
    if turned and turned < config.get("head_dim", 0):
        config["partial_rotary_factor"] = turned / config["head_dim"]


def add_sliding_window(config: dict[str, Any], keys: Keys, arch: Architecture) -> None:
    """`layer_types` and `sliding_window_pattern` where only some layers slide. A window of 0 means none."""
    window = keys.integer(".attention.sliding_window", 1 << 31, low=0)
    if window is not None:
        config["sliding_window"] = window or None
    if not config.get("sliding_window") or "num_hidden_layers" not in config:
        return
    layers, own = config["num_hidden_layers"], keys.metadata.get(keys.full(".attention.sliding_window_pattern"))
    if isinstance(own, np.ndarray):  # one flag per layer
        if len(own) != layers:
            raise keys.refuse(f"{keys.full('.attention.sliding_window_pattern')} does not list {layers} layers")
        slides = own.astype(bool).tolist()
    elif every := keys.integer(".attention.sliding_window_pattern", MAX_LAYERS) or arch.global_every:
        slides = [(i + 1) % every != 0 for i in range(layers)]
        config["sliding_window_pattern"] = every
    else:
        return
    config["layer_types"] = ["sliding_attention" if slide else "full_attention" for slide in slides]


def add_rope_scaling(config: dict[str, Any], keys: Keys, tensors: Mapping[str, TensorEntry]) -> None:
    """Llama 3's scaling has no keys: its factors are the tensor `rope_freqs.weight`, left to the model."""
    kind = keys.text(".rope.scaling.type")
    factor = keys.number(".rope.scaling.factor") or keys.number(".rope.scale_linear")  # the second is the older key
    original = keys.integer(".rope.scaling.original_context_length", 1 << 31)
    if original:
        config["original_max_position_embeddings"] = original
    if "rope_factors_long.weight" in tensors:  # phi 3's converter writes no type
        kind = "longrope"
    if kind == "linear" or (kind is None and factor):
        if factor and factor != 1:
            config["rope_scaling"] = {"rope_type": "linear", "factor": factor}
    elif kind == "yarn":
        scaling: dict[str, Any] = {
            "factor": factor,
            "original_max_position_embeddings": original,
            "attention_factor": keys.number(".rope.scaling.yarn_attn_factor"),
            "beta_fast": keys.number(".rope.scaling.yarn_beta_fast"),
            "beta_slow": keys.number(".rope.scaling.yarn_beta_slow"),
        }
        config["rope_scaling"] = {"rope_type": "yarn"} | {k: v for k, v in scaling.items() if v is not None}
    elif kind == "longrope":
        scaling = {
            "long_factor": factors(tensors, "rope_factors_long.weight"),
            "short_factor": factors(tensors, "rope_factors_short.weight"),
            "original_max_position_embeddings": original,
            "attention_factor": keys.number(".rope.scaling.attn_factor"),
        }
        config["rope_scaling"] = {"rope_type": "longrope"} | {k: v for k, v in scaling.items() if v is not None}
    elif kind not in (None, "none"):
        config["rope_scaling"] = {"rope_type": kind}  # for the model to refuse by name


def factors(tensors: Mapping[str, TensorEntry], name: str) -> list[float] | None:
    entry = tensors.get(name)
    if entry is None:
        return None
    if len(entry.shape) != 1 or entry.elements > 1 << 16:
        raise entry.file.invalid(f"tensor {name!r} has the shape {list(entry.shape)}, not one per pair of a head")
    return entry.weight(name).float32().tolist()


def generation_of(keys: Keys) -> dict[str, Any]:
    """Sampling defaults under `generation_config.json`'s names; `eos_token_id` where there are several."""
    found = {name: keys.number(f"general.sampling.{key}") for name, key in SAMPLING.items()}
    generation: dict[str, Any] = {name: value for name, value in found.items() if value is not None}
    ends = dict.fromkeys(token for key in END_IDS if (token := special_id(keys, key)) is not None)
    if len(ends) > 1:
        generation["eos_token_id"] = list(ends)
    return generation


def pooling_of(keys: Keys) -> str | None:
    """ARCH.pooling_type under sentence-transformers' names; llama.cpp numbers none 0, and a classifier's head 4."""
    number = keys.integer(".pooling_type", high=4, low=0)
    return {1: "mean", 2: "cls", 3: "last"}.get(number or 0)
