"""Turns a Llama GGUF file into a float32 safetensors directory, as its maker might have published it.

    python make_safetensors.py PATH/smollm2.gguf OUT_DIR

Needs numpy, safetensors and gguf for the weights, and transformers for the two tokenizer files. The directory serves
to compare the two loaders of the project: same numbers, another container, other names. It is large; not committed.
"""

import json
import re
import sys
from collections.abc import Iterator
from pathlib import Path

import gguf
import numpy as np
from safetensors.numpy import save_file

# GGUF tensor name -> transformers' name, from gguf's own MODEL_TENSOR names (TensorNameMap) and the modelling files
TOP = {
    "token_embd": "model.embed_tokens",
    "output_norm": "model.norm",
    "output": "lm_head",
}
LLAMA_BLOCK = {
    "attn_norm": "input_layernorm",
    "attn_q": "self_attn.q_proj",
    "attn_k": "self_attn.k_proj",
    "attn_v": "self_attn.v_proj",
    "attn_output": "self_attn.o_proj",
    "ffn_norm": "post_attention_layernorm",
    "ffn_gate": "mlp.gate_proj",
    "ffn_up": "mlp.up_proj",
    "ffn_down": "mlp.down_proj",
}
GEMMA3_BLOCK = LLAMA_BLOCK | {
    "attn_q_norm": "self_attn.q_norm",
    "attn_k_norm": "self_attn.k_norm",
    "post_attention_norm": "post_attention_layernorm",
    "ffn_norm": "pre_feedforward_layernorm",
    "post_ffw_norm": "post_feedforward_layernorm",
}
BLOCKS = {"llama": LLAMA_BLOCK, "gemma3": GEMMA3_BLOCK}


def field(reader: gguf.GGUFReader, key: str, default=None):
    found = reader.fields.get(key)
    return default if found is None else found.contents()


def halves_first(weight: np.ndarray, heads: int) -> np.ndarray:
    """GGUF keeps a Llama head's rotary pairs adjacent (0 1 | 2 3 ...); transformers keeps the two halves apart."""
    rows, columns = weight.shape
    return weight.reshape(heads, rows // heads // 2, 2, columns).swapaxes(1, 2).reshape(rows, columns)


def hf_tensors(reader: gguf.GGUFReader) -> Iterator[tuple[str, np.ndarray]]:
    """Every tensor of a llama or gemma3 file under transformers' name, float32, in transformers' conventions."""
    arch = field(reader, "general.architecture")
    heads = {"attn_q": field(reader, f"{arch}.attention.head_count")}
    heads["attn_k"] = field(reader, f"{arch}.attention.head_count_kv", heads["attn_q"])
    for tensor in reader.tensors:
        weight = gguf.quants.dequantize(tensor.data, tensor.tensor_type).astype(np.float32)
        name = tensor.name.removesuffix(".weight")
        if block := re.fullmatch(r"blk\.(\d+)\.(.+)", name):
            part = block[2]
            hf_name = f"model.layers.{block[1]}.{BLOCKS[arch][part]}.weight"
            if arch == "llama" and part in heads:
                weight = halves_first(weight, heads[part])
        else:
            hf_name = f"{TOP[name]}.weight"
        if arch == "gemma3" and name.endswith("norm"):
            weight = weight - 1  # GGUF stores 1 + w, transformers stores w
        yield hf_name, np.ascontiguousarray(weight)


def llama_config(reader: gguf.GGUFReader) -> dict:
    def llama(key: str):
        return field(reader, f"llama.{key}")

    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "dtype": "float32",
        "torch_dtype": "float32",
        "hidden_act": "silu",
        "hidden_size": llama("embedding_length"),
        "intermediate_size": llama("feed_forward_length"),
        "num_hidden_layers": llama("block_count"),
        "num_attention_heads": llama("attention.head_count"),
        "num_key_value_heads": llama("attention.head_count_kv"),
        "head_dim": llama("rope.dimension_count"),
        "max_position_embeddings": llama("context_length"),
        "rms_norm_eps": llama("attention.layer_norm_rms_epsilon"),
        "rope_theta": llama("rope.freq_base"),
        "vocab_size": llama("vocab_size"),
        "bos_token_id": field(reader, "tokenizer.ggml.bos_token_id"),
        "eos_token_id": field(reader, "tokenizer.ggml.eos_token_id"),
        "pad_token_id": field(reader, "tokenizer.ggml.padding_token_id"),
        "attention_bias": False,
        "mlp_bias": False,
        "tie_word_embeddings": not any(tensor.name == "output.weight" for tensor in reader.tensors),
    }


def main() -> None:
    source, target = Path(sys.argv[1]), Path(sys.argv[2])
    target.mkdir(parents=True, exist_ok=True)
    reader = gguf.GGUFReader(source)
    assert field(reader, "general.architecture") == "llama", "config.json is written for Llama models only"
    save_file(dict(hf_tensors(reader)), target / "model.safetensors", metadata={"format": "pt"})
    (target / "config.json").write_text(json.dumps(llama_config(reader), indent=2) + "\n")

    from transformers import AutoTokenizer

    AutoTokenizer.from_pretrained(source.parent, gguf_file=source.name).save_pretrained(target)


if __name__ == "__main__":
    main()
