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
}


def tensors(name: str) -> dict[str, np.ndarray]:
    """float32 arrays under their Hugging Face names."""
    config = CONFIGS[name]
    rng = np.random.default_rng(sorted(CONFIGS).index(name))
    hidden, inner, d = config["hidden_size"], config["intermediate_size"], config["head_dim"]
    heads, kv_heads, vocab = config["num_attention_heads"], config["num_key_value_heads"], config["vocab_size"]
    gemma = config["model_type"] == "gemma3_text"

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
            "mlp.gate_proj": (inner, hidden),
            "mlp.up_proj": (inner, hidden),
            "mlp.down_proj": (hidden, inner),
        }
        for key, shape in shapes.items():
            out[f"{at}.{key}.weight"] = matrix(*shape)
            if config.get("attention_bias" if "attn" in key else "mlp_bias"):
                out[f"{at}.{key}.bias"] = matrix(shape[0])
        norms = ["input_layernorm", "post_attention_layernorm"]
        norms += ["pre_feedforward_layernorm", "post_feedforward_layernorm"] if gemma else []
        out |= {f"{at}.{key}.weight": norm(hidden) for key in norms}
        if gemma:
            out |= {f"{at}.self_attn.{key}.weight": norm(d) for key in ("q_norm", "k_norm")}
    return out


def prompt(name: str, length: int = 40) -> list[int]:
    rng = np.random.default_rng(1000 + sorted(CONFIGS).index(name))
    return rng.integers(0, CONFIGS[name]["vocab_size"], length).tolist()
