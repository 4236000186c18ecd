"""Makes the golden files beside it: what transformers reads from a GGUF file. Needs torch, transformers and gguf.

    python make_golden.py MODEL.gguf OUT.json

Per tensor: its name, its shape and the first 16 hex digits of the SHA-256 of its float32 bytes.
"""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import torch
import transformers

KEYS = (
    *("model_type", "vocab_size", "hidden_size", "intermediate_size", "num_hidden_layers", "num_attention_heads"),
    *("num_key_value_heads", "head_dim", "hidden_act", "hidden_activation", "max_position_embeddings", "rms_norm_eps"),
    *("bos_token_id", "eos_token_id", "pad_token_id", "tie_word_embeddings", "attention_bias", "mlp_bias"),
    *("sliding_window", "layer_types", "query_pre_attn_scalar"),
)


def main(model: Path, out: Path) -> None:
    loaded = transformers.AutoModelForCausalLM.from_pretrained(model.parent, gguf_file=model.name, dtype=torch.float32)
    config = loaded.config.to_dict()
    rope = config["rope_parameters"]
    found = {key: config[key] for key in KEYS if key in config}
    found["rope_theta"] = rope.get("full_attention", rope)["rope_theta"]
    if "sliding_attention" in rope:
        found["rope_local_base_freq"] = rope["sliding_attention"]["rope_theta"]
    tensors = {
        name: [list(tensor.shape), hashlib.sha256(tensor.contiguous().numpy().tobytes()).hexdigest()[:16]]
        for name, tensor in loaded.state_dict().items()
    }
    golden = {"transformers": transformers.__version__, "config": found, "tensors": tensors}
    out.write_text(json.dumps(golden, indent=0) + "\n")


if __name__ == "__main__":
    main(Path(sys.argv[1]), Path(sys.argv[2]))
