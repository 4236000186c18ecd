"""Blocks that architectures are composed of. They branch only on what they were given, never on who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from ..weights.checkpoint import Weight
from .ops import Array, Attention, KVLayer, Linear, Norm, Ops


@dataclass(frozen=True, slots=True)
class SelfAttention:
    qkv: Linear  # q, k and v stacked
    out: Linear
    attention: Attention

    def __call__(self, ops: Ops, x: Array) -> Array:
        """[T, D] -> [T, H*d], before the output projection."""
        return ops.attend(ops.rotate_store(ops.linear(x, self.qkv), self.attention), self.attention)


@dataclass(frozen=True, slots=True)
class GatedMlp:
    gate_up: Linear  # gate and up stacked
    down: Linear
    activation: str

    def __call__(self, ops: Ops, x: Array) -> Array:
        """[T, D] -> [T, F], before the down projection."""
        return ops.glu(ops.linear(x, self.gate_up), self.activation)


@dataclass(frozen=True, slots=True)
class Block:
    """x += [norm](out(mixer(norm(x)))); x += [norm](down(mlp(norm(x)))). The norms in brackets are Gemma's."""

    mixer_norm: Norm
    mixer: SelfAttention
    mlp_norm: Norm
    mlp: GatedMlp
    mixer_post_norm: Norm | None = None
    mlp_post_norm: Norm | None = None

    def __call__(self, ops: Ops, x: Array) -> Array:
        x = _join(ops, x, self.mixer(ops, ops.norm(x, self.mixer_norm)), self.mixer.out, self.mixer_post_norm)
        return _join(ops, x, self.mlp(ops, ops.norm(x, self.mlp_norm)), self.mlp.down, self.mlp_post_norm)


def _join(ops: Ops, x: Array, inner: Array, projection: Linear, post_norm: Norm | None) -> Array:
    if post_norm is None:
        return ops.linear_add(inner, projection, x)
    return ops.norm_add(ops.linear(inner, projection), post_norm, x)


@dataclass(frozen=True, slots=True, eq=False)
class Decoder:
    """A causal language model: embedding, blocks, norm, head. Implements ops.Model."""

    embedding: Weight
    blocks: tuple[Block, ...]
    norm: Norm
    head: Linear
    hidden: int
    vocab: int
    context: int
    embedding_scale: float = 1.0
    logit_softcap: float | None = None

    @property
    def kv_layers(self) -> tuple[KVLayer, ...]:
        attentions = [block.mixer.attention for block in self.blocks]
        return tuple(KVLayer(a.kv_heads, a.head_dim) for a in attentions)

    @property
    def formats(self) -> frozenset[str]:
        return frozenset(part.format.name for linear in (self.head, *self._linears()) for part in linear.parts)

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        named = [pair for linear in self._linears() for pair in zip(linear.names, linear.parts, strict=True)]
        return {name: (part.shape[0], part.shape[1]) for name, part in named}

    def _linears(self) -> list[Linear]:
        """Of the blocks."""
        each = [(b.mixer.qkv, b.mixer.out, b.mlp.gate_up, b.mlp.down) for b in self.blocks]
        return [linear for four in each for linear in four]

    def forward(self, ops: Ops) -> Array:
        x = ops.embed(self.embedding, self.embedding_scale)
        for block in self.blocks:
            x = block(ops, x)
        ops.keep_hidden(x, self.norm)
        return ops.logits(x, self.norm, self.head, self.logit_softcap)
