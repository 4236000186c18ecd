"""Tiny checkpoints made of a seed: the same arrays for our model and for the judge that wrote golden_tiny.json."""

from __future__ import annotations

from typing import Any

import numpy as np

BASE: dict[str, Any] = {
    "vocab_size": 160,
    "hidden_size": 96,
    "intermediate_size": 96,
    "num_hidden_layers": 3,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "rms_norm_eps": 1e-5,
    "max_position_embeddings": 256,
    "rope_theta": 10000.0,
}

CONFIGS: dict[str, dict[str, Any]] = {
    "llama": BASE | {"model_type": "llama", "tie_word_embeddings": True},
    "llama-biased": BASE
    | {"model_type": "llama", "tie_word_embeddings": False, "attention_bias": True, "mlp_bias": True},
    "llama-multi-head": BASE | {"model_type": "llama", "tie_word_embeddings": False, "num_key_value_heads": 6},
    "llama-linear": BASE
    | {"model_type": "llama", "tie_word_embeddings": True, "rope_scaling": {"rope_type": "linear", "factor": 4.0}},
    "llama-llama3": BASE
    | {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_theta": 500000.0,
        "rope_scaling": {
            "rope_type": "llama3",
            "factor": 8.0,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4.0,
            "original_max_position_embeddings": 64,
        },
    },
    "llama-yarn": BASE
    | {
        "model_type": "llama",
        "tie_word_embeddings": True,
        "rope_scaling": {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64},
    },
    "mistral-sliding": BASE | {"model_type": "mistral", "tie_word_embeddings": False, "sliding_window": 12},
    "gemma3": BASE
    | {
        "model_type": "gemma3_text",
        "tie_word_embeddings": True,
        "num_hidden_layers": 7,
        "rms_norm_eps": 1e-6,
        "rope_theta": 1000000.0,
        "rope_local_base_freq": 10000.0,
        "sliding_window": 10,
        "layer_types": ["full_attention" if (i + 1) % 6 == 0 else "sliding_attention" for i in range(7)],
        "query_pre_attn_scalar": 16,
        "hidden_activation": "gelu_pytorch_tanh",
    },
    "mixtral": BASE
    | {
        "model_type": "mixtral",
        "tie_word_embeddings": False,
        "intermediate_size": 64,
        "num_local_experts": 4,
        "num_experts_per_tok": 2,
    },
    "qwen2": BASE | {"model_type": "qwen2", "tie_word_embeddings": True},
    "qwen3": BASE | {"model_type": "qwen3", "tie_word_embeddings": True},
    "qwen3-moe": BASE
    | {
        "model_type": "qwen3_moe",
        "tie_word_embeddings": False,
        "num_experts": 11,
        "num_experts_per_tok": 4,
        "moe_intermediate_size": 32,
        "norm_topk_prob": True,
    },
    "qwen3-moe-unnormalised": BASE
    | {
        "model_type": "qwen3_moe",
        "tie_word_embeddings": True,
        "num_experts": 5,
        "num_experts_per_tok": 3,
        "moe_intermediate_size": 40,
        "norm_topk_prob": False,
        "num_hidden_layers": 4,
        "decoder_sparse_step": 2,
        "mlp_only_layers": [3],
    },
}


def gated(at: str, names: tuple[str, str, str], inner: int, hidden: int) -> dict[str, tuple[int, int]]:
    """Shapes of gate, up and down."""
    return dict(zip([f"{at}.{name}" for name in names], ((inner, hidden), (inner, hidden), (hidden, inner)), strict=True))


def mixture(config: dict[str, Any], layer: int) -> dict[str, tuple[int, int]]:
    """Shapes of a layer's router and experts, as published; {}: it has none."""
    hidden = config["hidden_size"]
    if "num_local_experts" in config:
        at, names, inner = "block_sparse_moe", ("w1", "w3", "w2"), config["intermediate_size"]
        count = config["num_local_experts"]
    elif "num_experts" in config:
        if layer in config.get("mlp_only_layers", ()) or (layer + 1) % config.get("decoder_sparse_step", 1):
            return {}
        at, names, inner = "mlp", ("gate_proj", "up_proj", "down_proj"), config["moe_intermediate_size"]
        count = config["num_experts"]
    else:
        return {}
    each = [gated(f"{at}.experts.{i}", names, inner, hidden) for i in range(count)]
    return {f"{at}.gate": (count, hidden)} | {name: shape for one in each for name, shape in one.items()}


def tensors(name: str) -> dict[str, np.ndarray]:
    """float32 arrays under their Hugging Face names."""
    config = CONFIGS[name]
    rng = np.random.default_rng(sorted(CONFIGS).index(name))
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, vocab = config["num_attention_heads"], config["num_key_value_heads"], config["vocab_size"]
    gemma = config["model_type"] == "gemma3_text"
    normed = gemma or config["model_type"].startswith("qwen3")

    def matrix(*shape: int) -> np.ndarray:
        return (rng.standard_normal(shape) * 0.25).astype(np.float32)

    def norm(size: int) -> np.ndarray:
        return ((0.0 if gemma else 1.0) + 0.2 * rng.standard_normal(size)).astype(np.float32)

    out = {"model.embed_tokens.weight": matrix(vocab, hidden), "model.norm.weight": norm(hidden)}
    if not config["tie_word_embeddings"]:
        out["lm_head.weight"] = matrix(vocab, hidden)
    for i in range(config["num_hidden_layers"]):
        at = f"model.layers.{i}"
        shapes = {
            "self_attn.q_proj": (heads * d, hidden),
            "self_attn.k_proj": (kv_heads * d, hidden),
            "self_attn.v_proj": (kv_heads * d, hidden),
            "self_attn.o_proj": (hidden, heads * d),
            **(mixture(config, i) or gated("mlp", ("gate_proj", "up_proj", "down_proj"), inner, hidden)),
        }
        for key, shape in shapes.items():
            out[f"{at}.{key}.weight"] = matrix(*shape)
            own = config["model_type"] == "qwen2" and key in ("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj")
            if own or config.get("attention_bias" if "attn" in key else "mlp_bias"):
                out[f"{at}.{key}.bias"] = matrix(shape[0])
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        out |= {f"{at}.{key}.weight": norm(hidden) for key in norms}
        if normed:
            out |= {f"{at}.self_attn.{key}.weight": norm(d) for key in ("q_norm", "k_norm")}
    return out


def prompt(name: str, length: int = 40) -> list[int]:
    rng = np.random.default_rng(1000 + sorted(CONFIGS).index(name))
    return rng.integers(0, CONFIGS[name]["vocab_size"], length).tolist()
