"""A tiny random model as a directory that the server loads."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import tokenizers
from safetensors.numpy import save_file

from tests.model import tiny
from tests.text.toys import byte_alphabet_in_order

END = "<|end|>"
VOCAB = 272  # bytes, the end, and rows of the head that no token has
CONFIG: dict[str, Any] = tiny.CONFIGS["llama"] | {
    "vocab_size": VOCAB,
    "architectures": ["LlamaForCausalLM"],
    "eos_token_id": 256,
    "bos_token_id": 256,
    "hidden_act": "silu",
}


def write_model(path: Path, dtype: type = np.float16) -> Path:
    """The tiny llama with a token for each byte, its matrices as `dtype`."""
    path.mkdir()
    given = tiny.tensors("llama")
    given["model.embed_tokens.weight"] = (
        np.random.default_rng(5).standard_normal((VOCAB, CONFIG["hidden_size"])) * 0.25
    ).astype(np.float32)
    save_file({name: each.astype(dtype) for name, each in given.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(CONFIG))
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(byte_alphabet_in_order())}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(END, special=True)])
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return path
