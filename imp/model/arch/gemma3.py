"""Gemma 3, text: sliding and global layers with their own rope, q/k norms, post norms, scaled embeddings."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ...weights.checkpoint import Checkpoint, InvalidModel
from .. import rope
from ..balance import balanced
from ..config import Config
from ..layers import Block, Decoder, GatedMlp, SelfAttention
from ..ops import Attention, Linear
from .parts import Tensors

MODEL_TYPES = ("gemma3_text", "gemma3")


def build(checkpoint: Checkpoint, context: int = 0) -> Decoder:
    config, tensors = Config(checkpoint.config), Tensors(checkpoint)
    config.require("hidden_activation", "gelu_pytorch_tanh")
    config.require("attention_bias", False)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads, head_dim = config.integer("num_key_value_heads", heads), config.integer("head_dim")
    if heads % kv_heads:
        raise InvalidModel(f"{heads} attention heads cannot share {kv_heads} key/value heads evenly")
    inner, vocab, eps = config.integer("intermediate_size"), config.integer("vocab_size"), config.number("rms_norm_eps")
    trained = config.integer("max_position_embeddings")
    layers, window = config.integer("num_hidden_layers"), config.integer("sliding_window")
    offset = config.number("norm_weight_offset", 1.0)  # published weights leave the 1 out; GGUF has it in
    scale = config.number("query_pre_attn_scalar", float(head_dim)) ** -0.5
    far = rope.settings(config, "full_attention", "rope_theta", 1e6)
    near = rope.settings(config, "sliding_attention", "rope_local_base_freq", 1e4)
    lengths, tables = rope.lengths(trained, context, far[1]), {}
    for slides, (theta, scaling) in ((False, far), (True, near)):
        freqs, factor = rope.frequencies(theta, head_dim, scaling, lengths)
        tables[slides] = rope.table(freqs, lengths.served, factor)

    def block(i: int, slides: bool) -> Block:
        at = f"model.layers.{i}"
        q_norm, k_norm = balanced(
            tensors.norm(f"{at}.self_attn.q_norm", head_dim, eps, offset),
            tensors.norm(f"{at}.self_attn.k_norm", head_dim, eps, offset),
            tables[slides],
        )
        attention = Attention(
            layer=i,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=scale,
            rope=tables[slides],
            window=window if slides else None,
            softcap=config.number("attn_logit_softcapping", None),
            q_norm=q_norm,
            k_norm=k_norm,
        )
        qkv = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
        return Block(
            mixer_norm=tensors.norm(f"{at}.input_layernorm", hidden, eps, offset),
            mixer=SelfAttention(
                tensors.linear(f"{at}.self_attn", qkv, hidden),
                tensors.linear(f"{at}.self_attn", {"o_proj": hidden}, heads * head_dim),
                attention,
            ),
            mixer_post_norm=tensors.norm(f"{at}.post_attention_layernorm", hidden, eps, offset),
            mlp_norm=tensors.norm(f"{at}.pre_feedforward_layernorm", hidden, eps, offset),
            mlp=GatedMlp(
                tensors.linear(f"{at}.mlp", {"gate_proj": inner, "up_proj": inner}, hidden),
                tensors.linear(f"{at}.mlp", {"down_proj": hidden}, inner),
                "gelu_tanh",
                tensors.norm(f"{at}.post_feedforward_layernorm", hidden, eps, offset),
            ),
        )

    embedding = tensors.matrix("model.embed_tokens.weight", vocab, hidden)
    tied = config.flag("tie_word_embeddings", True) or "lm_head.weight" not in checkpoint
    return Decoder(
        embedding=embedding,
        blocks=tuple(block(i, slides) for i, slides in enumerate(sliding_layers(config, layers))),
        norm=tensors.norm("model.norm", hidden, eps, offset),
        head=Linear((embedding,)) if tied else tensors.linear("", {"lm_head": vocab}, hidden),
        hidden=hidden,
        vocab=vocab,
        context=trained,
        embedding_scale=float(np.float32(hidden**0.5)),
        logit_softcap=config.number("final_logit_softcapping", None),
    )


def sliding_layers(config: Config, layers: int) -> list[bool]:
    """Per layer: does it slide? From `layer_types`, else every `sliding_window_pattern`-th layer is global."""
    kinds = config.values.get("layer_types")
    if isinstance(kinds, Sequence) and not isinstance(kinds, str):
        if len(kinds) != layers:
            raise InvalidModel(f"config lists {len(kinds)} layer_types for {layers} layers")
        return [kind == "sliding_attention" for kind in kinds]
    pattern = config.integer("sliding_window_pattern", 6)
    return [(i + 1) % pattern != 0 for i in range(layers)]
