"""The operations a backend supplies, and the plain values a model hands to them.

A model's `forward(ops)` is a pure composition of these calls on opaque arrays. It is called by
  * `reference.ReferenceBackend`, which executes every call at once in NumPy (the judge of every kernel), once per step;
  * a compiled backend, which *records* the calls once per model into a program over fixed buffers and replays it.
So `forward` must not look inside an array, and must not branch on anything that changes from step to step: the token
count, positions, block tables and wanted rows are data of the step (`inputs.StepInputs`) that only the ops read.

Shapes: T positions in the step, R of them wanting logits, D hidden size, H query heads, G key/value heads, d head size.
Activations are float32 to the outside; a backend may keep them in any form in between. Weights are float values: what a
backend loses by requantising them must stay below what their own format lost.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

import numpy as np

from ..weights.checkpoint import Weight

Array = Any  # the backend's own; [T, n] unless said otherwise


@dataclass(frozen=True, slots=True, eq=False)
class Linear:
    """y = x @ W^T + bias. `parts` are stacked along the outputs: (wq, wk, wv) make one [H*d + 2*G*d, D] matrix.

    Positions that have an adapter with a pair for a part get scale * (x @ A^T) @ B^T more in that part's outputs."""

    parts: tuple[Weight, ...]
    bias: np.ndarray | None = None  # float32 [outputs]
    names: tuple[str, ...] = ()  # of the parts' modules, such as model.layers.0.self_attn.q_proj; (): never adapted

    @property
    def outputs(self) -> int:
        return sum(part.shape[0] for part in self.parts)

    @property
    def inputs(self) -> int:
        return self.parts[0].shape[1]


@dataclass(frozen=True, slots=True, eq=False)
class Experts:
    """Gated MLPs of which every token goes through a few (Shazeer et al. 2017). Adapters cannot add to them.

    A token's weights are the softmax of its scores over all experts. Those with the largest are its own, of equals the
    first; `normalised`: their weights are divided by their sum."""

    gate: tuple[Weight, ...]  # of each expert [F, D]
    up: tuple[Weight, ...]
    down: tuple[Weight, ...]  # [D, F]
    chosen: int  # experts of a token
    normalised: bool
    activation: str  # as glu's

    @property
    def count(self) -> int:
        return len(self.gate)

    @property
    def inner(self) -> int:
        return self.gate[0].shape[0]

    @property
    def weights(self) -> tuple[Weight, ...]:
        return (*self.gate, *self.up, *self.down)


@dataclass(frozen=True, slots=True, eq=False)
class Norm:
    """RMS norm: y = x / sqrt(mean(x^2) + eps) * weight, over the last axis (Zhang & Sennrich 2019)."""

    weight: np.ndarray  # float32 [n]; any architecture's "+1" is already in it
    eps: float


@dataclass(frozen=True, slots=True, eq=False)
class Rope:
    """Rotary position embedding, half-split layout: (x[i], x[i + r/2]) turn by the angle of column i.

    Only the first r = 2 * columns values of a head turn; the rest pass through.
    """

    cos: np.ndarray  # float32 [positions, r / 2]; any attention scaling (yarn) is already in it
    sin: np.ndarray


@dataclass(frozen=True, slots=True, eq=False)
class Attention:
    """One attention layer as the ops see it. `layer` numbers the KV cache planes from 0."""

    layer: int
    heads: int
    kv_heads: int
    head_dim: int
    scale: float  # multiplies q.k
    rope: Rope | None
    window: int | None = None  # a query sees the last `window` keys, itself included; None: all
    softcap: float | None = None  # scores become cap * tanh(score / cap)
    q_norm: Norm | None = None  # per head, before rope
    k_norm: Norm | None = None


class Ops(Protocol):
    """All arrays are float32 [T, n] unless said otherwise. No op changes its arguments, except where it says so."""

    def embed(self, table: Weight, scale: float = 1.0) -> Array:
        """[T, D]: the rows of `table` [vocab, D] for the step's tokens, times `scale`."""

    def norm(self, x: Array, norm: Norm) -> Array: ...

    def linear(self, x: Array, linear: Linear) -> Array:
        """[T, outputs]"""

    def linear_add(self, x: Array, linear: Linear, residual: Array) -> Array:
        """residual + linear(x). `residual` is spent: the result may live in its memory."""

    def norm_add(self, x: Array, norm: Norm, residual: Array) -> Array:
        """residual + norm(x). `residual` is spent."""

    def rotate_store(self, qkv: Array, attention: Attention) -> Array:
        """Split qkv [T, H*d + G*d + G*d]; norm q and k per head where asked; rope both; store k and v in the KV cache
        at the step's slots. Returns q [T, H*d] (not yet scaled)."""

    def attend(self, q: Array, attention: Attention) -> Array:
        """[T, H*d]: softmax(scale * q.k) v over the keys of the token's own sequence at positions <= its own (and
        inside the window; sparse.py: of chosen blocks), read from the KV cache through the block table. Query head h
        reads kv head h // (H/G)."""

    def glu(self, gate_up: Array, activation: str) -> Array:
        """gate_up [T, 2F] -> act(gate) * up, [T, F]; gate is the first half. activation: silu | gelu_tanh"""

    def experts_add(self, x: Array, scores: Array, experts: Experts, residual: Array) -> Array:
        """residual + the sum over a token's experts, from the one with the largest weight on, of
        weight * down(act(gate x) * up x). scores [T, experts]: what the router says of x. `residual` is spent."""

    def keep_hidden(self, x: Array, norm: Norm) -> None:
        """norm(x) for the rows of the step whose hidden states are wanted: they are what Backend.hidden returns."""

    def logits(self, x: Array, norm: Norm, head: Linear, softcap: float | None = None) -> Array:
        """[R, vocab]: head(norm(x)) for the rows of the step that want logits; softcap as in Attention."""


@dataclass(frozen=True, slots=True)
class KVLayer:
    """The shape of one layer's keys and values."""

    kv_heads: int
    head_dim: int


class Model(Protocol):
    """What an architecture file builds (arch/): immutable once built."""

    kv_layers: tuple[KVLayer, ...]
    formats: frozenset[str]  # names of the formats its matrices are stored in, the embedding's aside
    weights: tuple[Weight, ...]  # its matrices, the embedding among them, each once
    hidden: int
    vocab: int  # rows of the logits; may exceed the tokenizer's vocabulary
    context: int  # positions the model was trained for
    modules: Mapping[str, tuple[int, int]]  # (outputs, inputs) of the matrices that adapters may add to, by name

    def forward(self, ops: Ops) -> Array:
        """Record or compute one step; returns `ops.logits(...)`."""


@dataclass(frozen=True, slots=True)
class StepLimits:
    """The largest step a backend must be ready for. Buffers are sized by it once."""

    tokens: int  # T
    rows: int  # sequences
    logit_rows: int  # R
    context: int  # positions of one sequence
    blocks: int  # of the KV cache
    block_size: int = 16


class Aside(Protocol):
    """Computes a step a piece at a time, with other steps of its backend in between. Owned by the engine thread."""

    limits: StepLimits  # the largest such step; it has no logits

    def begin(self, inputs: Any) -> None:
        """A step (inputs.StepInputs) of which no logits are wanted; one that had not ended is given up. The blocks it
        writes are nobody else's until it has ended."""

    def go_on(self, seconds: float) -> bool:
        """Compute on with it for so long, or to its end (math.inf). True: it has ended."""

    def hidden(self) -> np.ndarray:
        """As Backend.hidden, of the step that was begun last, once it has ended."""


class Logits(Protocol):
    """What a step gives: as an array float32 [R, vocab], whose numbers may have to be brought over to be read."""

    @property
    def shape(self) -> tuple[int, ...]: ...
    def __len__(self) -> int: ...
    def __getitem__(self, key: Any) -> Any: ...


@dataclass(frozen=True, slots=True)
class Room:
    """What there is for a model in the memory of a device of its own, and what the model takes of it, in bytes."""

    free_bytes: int  # that it may take
    weights_bytes: int
    work_bytes: int  # beside weights and KV cache


@dataclass(frozen=True, slots=True)
class DeviceMemory:
    """A device's own memory at this moment, in bytes."""

    free_bytes: int
    budget_bytes: int  # that this process may take
    own_bytes: int  # that it has taken
    own_peak_bytes: int


class Backend(Protocol):
    """A device with one model on it. Owned by the engine thread; `load` may run on another one before."""

    name: str  # "cpu" | "cuda" | "reference"

    @property
    def aside(self) -> Aside | None:
        """There once it is loaded, where it can do that."""

    @property
    def tells_apart(self) -> bool:
        """Whether a position of a prompt may have other numbers than the same one of an output."""

    def describe(self) -> str:
        """One line for people: the device, its features, the threads."""

    def room(self, model: Model, limits: StepLimits) -> Room | None:
        """Where the model would be loaded; limits.blocks does not matter. None: into the machine's own memory."""

    def weights_bytes(self, model: Model) -> int:
        """What its matrices take where the backend keeps them, and as it does."""

    def device_memory(self) -> DeviceMemory | None:
        """May be called in any thread. None: there is only the machine's own."""

    def load(self, model: Model, limits: StepLimits) -> None: ...

    def kv_block_bytes(self, model: Model, block_size: int) -> int:
        """Device bytes of one block over all layers, K and V."""

    def kv_format(self, model: Model) -> str:
        """The number format in which this model's keys and values are kept."""

    def copy_blocks(self, copies: Sequence[tuple[int, int]]) -> None:
        """KV of all layers from block to block, in this order."""

    def read_block(self, block: int) -> np.ndarray:
        """A copy of a block's KV of all layers: uint8 [kv_block_bytes]."""

    def write_block(self, block: int, content: np.ndarray) -> None:
        """Put back what `read_block` gave, now or in an earlier process of the same `fingerprint`, into any block."""

    def fingerprint(self) -> bytes:
        """What KV depends on besides the model's files, the tokens and our sources: the machine's features, the format,
        what was measured. Asked after `load` and `centre_keys`."""

    def centre_keys(self, tokens: Sequence[int]) -> None:
        """Measure the mean of keys on this prompt, and take it off all that come, where their format does that. Comes
        once, before any other step, or not at all: then keys of such formats are less exact."""

    def adapter_bytes(self, base: Any, adapter: Any) -> int:
        """Device bytes, at most, of an adapter (lora.Adapter) for a model (lora.Base); asked before `load`, too."""

    def add_adapter(self, adapter: Any) -> int:
        """Keep an adapter of the loaded model; the slot that names it in StepInputs.adapted. Raises InvalidModel where
        its numbers are none. This and `drop_adapter` may be called on any one thread, also while steps run."""

    def drop_adapter(self, slot: int) -> None:
        """Forget it; no later step may name the slot until it is given out again."""

    def run(self, inputs: Any) -> Logits:
        """One step (inputs.StepInputs): KV of every position is stored; returns float32 logits [R, vocab], which stay
        valid until the next run."""

    def hidden(self) -> np.ndarray:
        """float32 [P, D]: what the last run left for StepInputs.pooled; valid until the next run."""

    def sample(self, logits: Any, plan: Any) -> Any:
        """One token per row of the last run's logits (sampling.SamplingPlan -> sampling.Drawn); may overwrite them."""

    def close(self) -> None:
        """Stop threads and give memory back. Idempotent."""
