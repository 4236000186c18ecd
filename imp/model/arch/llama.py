"""The llama family: Llama 2 and 3, SmolLM2, Mistral, Qwen 2, whose queries, keys and values have biases, Qwen 3, whose
queries and keys are normed, mixtures of experts of it and of Mistral, and all else published under these types."""

from __future__ import annotations

from ...weights.checkpoint import Checkpoint, InvalidModel
from .. import rope
from ..balance import balanced
from ..config import Config
from ..layers import Block, Decoder, GatedMlp, SelfAttention
from ..ops import Attention, Linear
from ..rescaling import IGNORES_DIVISORS
from .mixtures import mixtures
from .parts import Tensors

MODEL_TYPES = ("llama", "mistral", "mixtral", "qwen2", "qwen3", "qwen3_moe")


def build(checkpoint: Checkpoint, context: int = 0) -> Decoder:
    config, tensors = Config(checkpoint.config), Tensors(checkpoint)
    config.require("hidden_act", "silu", "swish")
    config.require("pretraining_tp", 1)
    hidden, heads = config.integer("hidden_size"), config.integer("num_attention_heads")
    kv_heads = config.integer("num_key_value_heads", heads)
    head_dim = config.integer("head_dim", hidden // heads)
    if heads % kv_heads:
        raise InvalidModel(f"{heads} attention heads cannot share {kv_heads} key/value heads evenly")
    inner, vocab, eps = config.integer("intermediate_size"), config.integer("vocab_size"), config.number("rms_norm_eps")
    layers = config.integer("num_hidden_layers")
    mixed = mixtures(config, config.text("model_type"), layers, hidden)
    config.require("use_sliding_window", False)
    slides = "use_sliding_window" not in config  # else the config may name a window that none of its layers has
    normed = "model.layers.0.self_attn.q_norm.weight" in checkpoint
    trained = config.integer("max_position_embeddings")
    theta, scaling = rope.settings(config)
    lengths = rope.lengths(trained, context, scaling)
    has_divisors = "rope_freqs.weight" in checkpoint and not config.flag(IGNORES_DIVISORS)
    divisors = tensors.vector("rope_freqs.weight", head_dim // 2) if has_divisors else None
    freqs, factor = rope.frequencies(theta, head_dim, scaling, lengths, divisors)
    turning = rope.table(freqs, lengths.served, factor)

    def plain_mlp(at: str) -> GatedMlp:
        return GatedMlp(
            tensors.linear(f"{at}.mlp", {"gate_proj": inner, "up_proj": inner}, hidden),
            tensors.linear(f"{at}.mlp", {"down_proj": hidden}, inner),
            "silu",
        )

    def block(i: int) -> Block:
        at = f"model.layers.{i}"
        q_norm = k_norm = None
        if normed:
            q_norm, k_norm = balanced(
                tensors.norm(f"{at}.self_attn.q_norm", head_dim, eps),
                tensors.norm(f"{at}.self_attn.k_norm", head_dim, eps),
                turning,
            )
        attention = Attention(
            layer=i,
            heads=heads,
            kv_heads=kv_heads,
            head_dim=head_dim,
            scale=head_dim**-0.5,
            rope=turning,
            window=config.integer("sliding_window", None) if slides else None,
            q_norm=q_norm,
            k_norm=k_norm,
        )
        qkv = {"q_proj": heads * head_dim, "k_proj": kv_heads * head_dim, "v_proj": kv_heads * head_dim}
        return Block(
            mixer_norm=tensors.norm(f"{at}.input_layernorm", hidden, eps),
            mixer=SelfAttention(
                tensors.linear(f"{at}.self_attn", qkv, hidden),
                tensors.linear(f"{at}.self_attn", {"o_proj": hidden}, heads * head_dim),
                attention,
            ),
            mlp_norm=tensors.norm(f"{at}.post_attention_layernorm", hidden, eps),
            mlp=(mixed and mixed.at(i, tensors)) or plain_mlp(at),
        )

    embedding = tensors.matrix("model.embed_tokens.weight", vocab, hidden)
    tied = config.flag("tie_word_embeddings") or "lm_head.weight" not in checkpoint
    return Decoder(
        embedding=embedding,
        blocks=tuple(block(i) for i in range(layers)),
        norm=tensors.norm("model.norm", hidden, eps),
        head=Linear((embedding,)) if tied else tensors.linear("", {"lm_head": vocab}, hidden),
        hidden=hidden,
        vocab=vocab,
        context=trained,
    )
