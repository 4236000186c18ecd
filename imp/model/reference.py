"""Ops in plain NumPy: slow, obvious, the judge of every kernel.

Executes each call at once. Dequantised weights are kept, so a second step is only as slow as its matrix products.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import numpy as np

from ..weights.checkpoint import Weight
from . import centring, sparse
from .inputs import StepInputs
from .kv import FORMATS, turned
from .lora import Adapter, Base
from .ops import Attention, Experts, Linear, Model, Norm, Rope, StepLimits
from .rope import rotate
from .sampling import Drawn, SamplingPlan, reference_sample
from .sparse import ALL, Sparse


def rms_norm(x: np.ndarray, norm: Norm) -> np.ndarray:
    mean = np.mean(np.square(x, dtype=np.float64), axis=-1, keepdims=True)
    return (x / np.sqrt(mean + norm.eps) * norm.weight).astype(x.dtype)


def silu(x: np.ndarray) -> np.ndarray:
    return x / (1.0 + np.exp(-x))


def gelu_tanh(x: np.ndarray) -> np.ndarray:
    """The tanh form of GELU (Hendrycks & Gimpel 2016)."""
    return 0.5 * x * (1.0 + np.tanh(math.sqrt(2.0 / math.pi) * (x + 0.044715 * x**3)))


ACTIVATIONS = {"silu": silu, "gelu_tanh": gelu_tanh}


class ReferenceBackend:
    """Backend and Ops in one: `forward` is called for every step. Activations are float32, or float64, and so are keys
    and values, with what the cache's format makes of them."""

    name = "reference"
    aside = None

    def __init__(self, dtype: type = np.float32, kv_dtype: str = "auto", sparse: Sparse = ALL):
        """kv_dtype: a name of kv.FORMATS; auto: keys and values as they are."""
        self.sparse = sparse
        self.dtype = dtype
        self.form = None if kv_dtype == "auto" else FORMATS[kv_dtype]
        self.ropes: dict[int, Rope | None] = {}  # of each layer
        self.weights: dict[
            int, tuple[Weight, np.ndarray]
        ] = {}  # by id; the Weight is kept so that the id stays its own

    def describe(self) -> str:
        return f"NumPy reference, {np.dtype(self.dtype).name}"

    # -- Backend ---------------------------------------------------------------------------------

    @property
    def tells_apart(self) -> bool:
        """Where outputs are sparse."""
        return bool(self.sparse.top)

    def room(self, model: Model, limits: StepLimits) -> None:
        return None

    def weights_bytes(self, model: Model) -> int:
        return sum(math.prod(weight.shape) for weight in model.weights) * np.dtype(self.dtype).itemsize

    def device_memory(self) -> None:
        return None

    def load(self, model: Model, limits: StepLimits) -> None:
        self.model, self.limits = model, limits
        self.adapters: dict[int, dict[str, tuple[np.ndarray, np.ndarray]]] = {}  # by slot: A and scale * B of modules
        slots = limits.blocks * limits.block_size
        shapes = [(slots, kv.kv_heads, kv.head_dim) for kv in model.kv_layers]
        self.keys: list[np.ndarray] = [np.zeros(shape, self.dtype) for shape in shapes]
        self.values: list[np.ndarray] = [np.zeros(shape, self.dtype) for shape in shapes]
        self.centres = {i: np.zeros((kv.kv_heads, kv.head_dim), np.float32) for i, kv in enumerate(model.kv_layers)}

    def centre_keys(self, tokens: Sequence[int]) -> None:
        if self.form is None or not self.form.turns:
            return
        read = 0
        for inputs in centring.steps(tokens, self.limits):
            self.run(inputs)
            read = int(inputs.contexts[0])
        if read:
            for layer, keys in enumerate(self.keys):
                self.centres[layer] = centring.centre(turned(keys[:read]), self.ropes[layer])

    def kv_block_bytes(self, model: Model, block_size: int) -> int:
        item = np.dtype(self.dtype).itemsize
        return sum(2 * block_size * kv.kv_heads * kv.head_dim * item for kv in model.kv_layers)

    def kv_format(self, model: Model) -> str:
        return np.dtype(self.dtype).name if self.form is None else self.form.name

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        size = self.limits.block_size
        for plane in (*self.keys, *self.values):
            for source, target in copies:
                plane[target * size : (target + 1) * size] = plane[source * size : (source + 1) * size]

    def adapter_bytes(self, base: Base, adapter: Adapter) -> int:
        return adapter.elements * np.dtype(self.dtype).itemsize

    def add_adapter(self, adapter: Adapter) -> int:
        slot = next(i for i in range(len(self.adapters) + 1) if i not in self.adapters)
        pairs = {name: pair.matrices() for name, pair in adapter.pairs.items()}
        self.adapters[slot] = {name: (a.astype(self.dtype), b.astype(self.dtype)) for name, (a, b) in pairs.items()}
        return slot

    def drop_adapter(self, slot: int) -> None:
        del self.adapters[slot]

    def read_block(self, block: int) -> np.ndarray:
        return np.concatenate([plane.reshape(-1).view(np.uint8) for plane in self._planes(block)])

    def write_block(self, block: int, content: np.ndarray) -> None:
        start = 0
        for plane in self._planes(block):
            end = start + plane.nbytes
            plane[:] = content[start:end].view(plane.dtype).reshape(plane.shape)
            start = end

    def _planes(self, block: int) -> list[np.ndarray]:
        """The block's part of every layer's keys and values."""
        size = self.limits.block_size
        return [plane[block * size : (block + 1) * size] for plane in (*self.keys, *self.values)]

    def fingerprint(self) -> bytes:
        return f"{np.__version__} {self.kv_format(self.model)}".encode() + b"".join(map(bytes, self.centres.values()))

    def run(self, inputs: StepInputs) -> np.ndarray:
        self.inputs = inputs
        return self.model.forward(self).astype(np.float32)

    def hidden(self) -> np.ndarray:
        return self.kept

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        return reference_sample(logits, plan)

    def close(self) -> None:
        self.weights.clear()
        self.keys, self.values = [], []

    # -- Ops -------------------------------------------------------------------------------------

    def _weight(self, weight: Weight) -> np.ndarray:
        if id(weight) not in self.weights:
            self.weights[id(weight)] = (weight, weight.float32().astype(self.dtype))
        return self.weights[id(weight)][1]

    def embed(self, table: Weight, scale: float = 1.0) -> np.ndarray:
        return self._weight(table)[self.inputs.tokens] * self.dtype(scale)

    def norm(self, x: np.ndarray, norm: Norm) -> np.ndarray:
        return rms_norm(x, norm)

    def linear(self, x: np.ndarray, linear: Linear) -> np.ndarray:
        outs = [x @ self._weight(part).T for part in linear.parts]
        for name, out in zip(linear.names, outs, strict=False):
            for first, after, slot in self.inputs.adapted:
                if pair := self.adapters[slot].get(name):
                    out[first:after] += x[first:after] @ pair[0].T @ pair[1].T
        out = np.concatenate(outs, axis=-1)
        return out if linear.bias is None else out + linear.bias.astype(self.dtype)

    def linear_add(self, x: np.ndarray, linear: Linear, residual: np.ndarray) -> np.ndarray:
        return residual + self.linear(x, linear)

    def norm_add(self, x: np.ndarray, norm: Norm, residual: np.ndarray) -> np.ndarray:
        return residual + rms_norm(x, norm)

    def rotate_store(self, qkv: np.ndarray, attention: Attention) -> np.ndarray:
        a, count = attention, len(qkv)
        split = a.heads * a.head_dim, (a.heads + a.kv_heads) * a.head_dim
        q, k, v = (part.reshape(count, -1, a.head_dim) for part in np.split(qkv, split, axis=-1))
        q = rms_norm(q, a.q_norm) if a.q_norm else q
        k = rms_norm(k, a.k_norm) if a.k_norm else k
        self.ropes[a.layer] = a.rope
        if a.rope:
            cos, sin = (t[self.inputs.positions].astype(self.dtype) for t in (a.rope.cos, a.rope.sin))
            q, k = rotate(q, cos, sin), rotate(k, cos, sin)
        if self.form is not None:
            k, v = self.form.through(k, self.centres[a.layer]), self.form.through(v)
        self.keys[a.layer][self.inputs.slots] = k
        self.values[a.layer][self.inputs.slots] = v
        return q.reshape(count, -1)

    def attend(self, q: np.ndarray, attention: Attention) -> np.ndarray:
        a, out = attention, np.empty_like(q)
        for b in range(len(self.inputs.contexts)):
            rows = slice(self.inputs.row_starts[b], self.inputs.row_starts[b + 1])
            slots = self._slots(b)
            k, v = self.keys[a.layer][slots], self.values[a.layer][slots]  # [context, G, d]
            k, v = (np.repeat(part, a.heads // a.kv_heads, axis=1) for part in (k, v))
            query = q[rows].reshape(-1, a.heads, a.head_dim)
            scores = np.einsum("qhd,khd->hqk", query, k) * self.dtype(a.scale)
            if a.softcap:
                scores = a.softcap * np.tanh(scores / a.softcap)
            at, key = self.inputs.positions[rows][:, None], np.arange(len(slots))[None]
            seen = np.repeat((key <= at)[None], a.heads, axis=0)  # [H, queries, keys]
            if a.window:
                seen &= key > at - a.window
            else:
                self._leave_out(scores, seen, b, a)
            scores = np.where(seen, scores, -np.inf)
            p = np.exp(scores - scores.max(axis=-1, keepdims=True))
            p /= p.sum(axis=-1, keepdims=True)
            out[rows] = np.einsum("hqk,khd->qhd", p, v).reshape(len(query), -1)
        return out

    def _leave_out(self, scores: np.ndarray, seen: np.ndarray, b: int, attention: Attention) -> None:
        """Take out of `seen` [heads, queries, keys] what sparse positions of row b do not attend to."""
        size, inputs = self.limits.block_size, self.inputs
        begin = sparse.first_sparse(self.sparse, inputs.outputs, inputs, b)
        groups = scores.reshape(attention.kv_heads, -1, *scores.shape[1:])  # [G, H/G, queries, keys]
        for q, position in enumerate(inputs.positions[inputs.row_starts[b] : inputs.row_starts[b + 1]].tolist()):
            if position < begin:
                continue
            known = -(-(position + 1) // size)
            for g, group in enumerate(groups):
                padded = np.full(known * size, -np.inf)
                padded[: position + 1] = group[:, q, : position + 1].max(axis=0)
                keep = np.repeat(sparse.chosen(padded.reshape(-1, size).max(axis=1), position, self.sparse, size), size)
                share = len(group)
                seen[g * share : (g + 1) * share, q, : position + 1] &= keep[: position + 1]

    def _slots(self, b: int) -> np.ndarray:
        """Where the keys of row b's sequence are, in the order of their positions."""
        size = self.limits.block_size
        blocks = self.inputs.table[self.inputs.table_starts[b] : self.inputs.table_starts[b + 1]]
        return (blocks[:, None] * size + np.arange(size)).reshape(-1)[: self.inputs.contexts[b]]

    def glu(self, gate_up: np.ndarray, activation: str) -> np.ndarray:
        gate, up = np.split(gate_up, 2, axis=-1)
        return ACTIVATIONS[activation](gate) * up

    def experts_add(self, x: np.ndarray, scores: np.ndarray, experts: Experts, residual: np.ndarray) -> np.ndarray:
        weights = np.exp(scores - scores.max(axis=1, keepdims=True))
        weights /= weights.sum(axis=1, keepdims=True)
        chosen = np.argsort(-scores, axis=1, kind="stable")[:, : experts.chosen]
        weights = np.take_along_axis(weights, chosen, axis=1)
        if experts.normalised:
            weights /= weights.sum(axis=1, keepdims=True)
        out, activation = residual.copy(), ACTIVATIONS[experts.activation]
        for expert in np.unique(chosen):
            rows, places = np.nonzero(chosen == expert)
            gate, up, down = (self._weight(each[expert]) for each in (experts.gate, experts.up, experts.down))
            inner = activation(x[rows] @ gate.T) * (x[rows] @ up.T)
            out[rows] += weights[rows, places, None] * (inner @ down.T)
        return out

    def keep_hidden(self, x: np.ndarray, norm: Norm) -> None:
        self.kept = rms_norm(x[self.inputs.pooled], norm).astype(np.float32)

    def logits(self, x: np.ndarray, norm: Norm, head: Linear, softcap: float | None = None) -> np.ndarray:
        out = self.linear(rms_norm(x[self.inputs.wanted], norm), head)
        return out if softcap is None else softcap * np.tanh(out / softcap)
