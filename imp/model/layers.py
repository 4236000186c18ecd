"""Blocks that architectures are composed of. They branch only on what they were given, never on who is asking."""

from __future__ import annotations

from dataclasses import dataclass

from ..weights.checkpoint import Weight
from .ops import Array, Attention, Experts, KVLayer, Linear, Norm, Ops


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
    post_norm: Norm | None = None

    def __call__(self, ops: Ops, x: Array, residual: Array) -> Array:
        """residual + [norm](down(act(gate x) * up x)), [T, D]"""
        inner = ops.glu(ops.linear(x, self.gate_up), self.activation)
        return _join(ops, residual, inner, self.down, self.post_norm)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """That adapters may add to."""
        return self.gate_up, self.down

    @property
    def others(self) -> tuple[Weight, ...]:
        """All other matrices."""
        return ()


@dataclass(frozen=True, slots=True)
class Mixture:
    router: Linear  # one output for each expert
    experts: Experts

    def __call__(self, ops: Ops, x: Array, residual: Array) -> Array:
        """residual + the weighted sum of the experts that the router chooses, [T, D]"""
        return ops.experts_add(x, ops.linear(x, self.router), self.experts, residual)

    @property
    def linears(self) -> tuple[Linear, ...]:
        """That adapters may add to."""
        return ()

    @property
    def others(self) -> tuple[Weight, ...]:
        """All other matrices."""
        return *self.router.parts, *self.experts.weights


@dataclass(frozen=True, slots=True)
class Block:
    """x += [norm](out(mixer(norm(x)))); x += mlp(norm(x)). The norm in brackets is Gemma's."""

    mixer_norm: Norm
    mixer: SelfAttention
    mlp_norm: Norm
    mlp: GatedMlp | Mixture
    mixer_post_norm: Norm | None = None

    def __call__(self, ops: Ops, x: Array) -> Array:
        x = _join(ops, x, self.mixer(ops, ops.norm(x, self.mixer_norm)), self.mixer.out, self.mixer_post_norm)
        return self.mlp(ops, ops.norm(x, self.mlp_norm), x)


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
        return frozenset(weight.format.name for weight in self._matrices())

    @property
    def weights(self) -> tuple[Weight, ...]:
        return tuple(dict.fromkeys((self.embedding, *self._matrices())))

    @property
    def modules(self) -> dict[str, tuple[int, int]]:
        named = [pair for linear in self._linears() for pair in zip(linear.names, linear.parts, strict=True)]
        return {name: (part.shape[0], part.shape[1]) for name, part in named}

    def _linears(self) -> list[Linear]:
        """Of the blocks."""
        return [linear for b in self.blocks for linear in (b.mixer.qkv, b.mixer.out, *b.mlp.linears)]

    def _matrices(self) -> list[Weight]:
        """All but the embedding, unless that is the head, too."""
        others = [weight for b in self.blocks for weight in b.mlp.others]
        return [part for linear in (self.head, *self._linears()) for part in linear.parts] + others

    def forward(self, ops: Ops) -> Array:
        x = ops.embed(self.embedding, self.embedding_scale)
        for block in self.blocks:
            x = block(ops, x)
        ops.keep_hidden(x, self.norm)
        return ops.logits(x, self.norm, self.head, self.logit_softcap)
