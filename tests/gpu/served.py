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
TOKENS: dict[str, Any] = {"vocab_size": VOCAB, "eos_token_id": 256, "bos_token_id": 256, "hidden_act": "silu"}


def write_model(path: Path, dtype: type = np.float16, name: str = "llama") -> Path:
    """One of the tiny models with a token for each byte, its matrices as `dtype`."""
    path.mkdir()
    config, given = tiny.CONFIGS[name] | TOKENS, tiny.tensors(name)
    rng = np.random.default_rng(5)
    for matrix in [name for name in ("model.embed_tokens.weight", "lm_head.weight") if name in given]:
        given[matrix] = (rng.standard_normal((VOCAB, config["hidden_size"])) * 0.25).astype(np.float32)
    save_file({name: each.astype(dtype) for name, each in given.items()}, path / "model.safetensors")
    (path / "config.json").write_text(json.dumps(config))
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(byte_alphabet_in_order())}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.add_special_tokens([tokenizers.AddedToken(END, special=True)])
    made.save(str(path / "tokenizer.json"))
    (path / "tokenizer_config.json").write_text(json.dumps({"eos_token": END}))
    return path
