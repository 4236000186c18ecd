"""Recording: a model's forward becomes a list of kernels with their arguments, once, and is replayed for every step.

Owns which kernel an op becomes, which buffers it reads and writes, and in which form.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..model.buffers import Buffer
from ..model.ops import Attention, Experts, Linear, Norm, Rope, StepLimits
from ..model.sparse import ALL, Sparse
from ..weights.checkpoint import Weight
from .activations import SPAN, pairs_bytes, quantised_bytes, shorts_bytes
from .adapters import Sites
from .attention import AttentionWork
from .choosing import Choice
from .experts import Mixture, Rows
from .kept import Kept
from .kv import KEPT
from .matmul import MATMULS, shares_of
from .pack import BLOCK, BYTES, FLOATS, SHORTS, Packed
from .pair_glu import PAIR_GLUS
from .pair_products import COLUMNS, PAIR_PRODUCTS, X
from .pointwise import (
    EMBEDS,
    GLUS,
    ROTATE_STORES,
    norm,
    norm_add,
    norm_pooled,
    norm_wanted,
    quantise,
    softcap,
)
from .program import (
    STEP_PROMPTS,
    STEP_TOKENS,
    STEP_WANTED,
    Argument,
    Kernel,
    Op,
    row_bytes,
)


def _vector(values: np.ndarray) -> np.ndarray:
    """float32, filled with zeros so that whole vectors of 16 may be read at its end."""
    padded = np.zeros(len(values) + 16, np.float32)
    padded[: len(values)] = values
    return padded


class Activation:
    """What an op made, [rows, columns]: as float32 rows, quantised in tiles of bytes or of shorts, as rows of pairs
    (activations.py), whichever later ops ask for. Of positions that have pairs the tiles have nothing.

    Its maker's argument block has a place for each form it can write itself; the first request fills it. A form the
    maker cannot write is made by an op of its own."""

    def __init__(self, rows: int, columns: int, floats: Buffer | None = None, stride: int = 0) -> None:
        """stride: bytes from one row of floats to the next; 0: what keeps rows apart."""
        self.rows, self.columns, self.stride = rows, columns, stride or row_bytes(columns)
        self.floats = floats
        self.tiles: Buffer | None = None
        self.shorts: Buffer | None = None
        self.pairs: Buffer | None = None
        self.maker: Op | None = None
        self.products: list[tuple[Packed, Op | None]] = []  # of a linear without biases: parts, ops of prompts
        self.gate_up: tuple[Activation, str] | None = None  # what it is act(gate) * up of, and the activation
        self.floats_at = self.tiles_at = self.shorts_at = self.pairs_at = 0  # places in the maker's arguments
        self.span = columns // BLOCK  # blocks whose scales are made of one unit

    def made_by(self, op: Op, floats_at: int, tiles_at: int) -> Activation:
        """The places for shorts and pairs are behind that for tiles."""
        self.maker, self.floats_at = op, floats_at
        self.tiles_at, self.shorts_at, self.pairs_at = tiles_at, tiles_at + 1, tiles_at + 2
        return self


class Recorder:
    """model.ops.Ops whose calls append to `ops`. Weights are collected in `weights` and packed afterwards."""

    def __init__(
        self,
        limits: StepLimits,
        threads: int,
        planes: Sequence[tuple[int, int]],
        logits: np.ndarray,
        kept: Kept = KEPT["fp16"],
        hidden: np.ndarray | None = None,
        sites: Sites | None = None,
        beside: Recorder | None = None,
        sparse: Sparse = ALL,
        kind: str = "portable",
        apart: bool = False,
    ) -> None:
        """hidden: float32 [tokens of a step, n]: where wanted hidden states go, n columns rounded up to whole vectors.
        None: the program keeps none. sites: where adapters add; None: nowhere. beside: has recorded the same model,
        whose weights there are only once. kind: of the code that will run it (variants.py).
        apart: whether positions from STEP_PROMPTS on are multiplied as pairs."""
        self.kind, self.apart = kind, apart
        self.limits, self.threads = limits, threads
        self.planes = planes  # of each layer: address of its KV cache, bytes of a block in it
        self.kept = kept  # how keys and values are
        # of each layer's turned keys, [kv heads, d]: may be set any time
        self.centres: dict[int, np.ndarray] = {} if beside is None else beside.centres
        self.ropes: dict[int, Rope | None] = {}  # of each layer
        self.logits_out, self.hidden_out, self.sites = logits, hidden, sites
        self.ops: list[Op] = []
        self.weights: dict[Weight, Packed] = {} if beside is None else beside.weights
        self.work = AttentionWork.sized(limits, kind, Choice.sized(sparse, limits) if sparse.top else None)
        self._append(self.work.planned())

    # -- Ops -------------------------------------------------------------------------------------

    def embed(self, table: Weight, scale: float = 1.0) -> Activation:
        packed = self._packed(table)
        out = self._floats(packed.inputs, "residual")
        assert out.floats
        args = (packed, packed.blocks, packed.group_bytes, float(scale), out.floats, out.stride)
        self._record(EMBEDS[packed.layout.name], args, writes=[out.floats], joins=True)
        return out

    def norm(self, x: Activation, norm_: Norm) -> Activation:
        return self._norm(norm, x, norm_, self.limits.tokens)

    def linear(self, x: Activation, linear: Linear) -> Activation:
        out = self._floats(linear.outputs, "linear")
        products = self._matmul(x, linear, out, add=False)
        out.products = products if linear.bias is None else []
        return out

    def linear_add(self, x: Activation, linear: Linear, residual: Activation) -> Activation:
        out = self._again(residual)
        self._matmul(x, linear, out, add=True)
        return out

    def norm_add(self, x: Activation, norm_: Norm, residual: Activation) -> Activation:
        source, out = self._as_floats(x), self._again(residual)
        assert out.floats
        weight = _vector(norm_.weight)
        args = (source, x.stride, x.columns, weight, float(norm_.eps), out.floats, out.stride)
        self._record(norm_add, args, reads=[source, out.floats], writes=[out.floats], weight=weight)
        return out

    def rotate_store(self, qkv: Activation, attention: Attention) -> Activation:
        a, source = attention, self._as_floats(qkv)
        columns = a.heads * a.head_dim
        q = Activation(self.limits.tokens, columns, Buffer(self.limits.tokens * columns * 4, "q"), columns * 4)
        assert q.floats
        plane, block_bytes = self.planes[a.layer]
        rope = a.rope
        if rope is None:
            turn: tuple[Argument, ...] = (0, 0, 0)
        else:
            turn = (_rows(rope.cos), _rows(rope.sin), rope.cos.shape[1])
        norms: list[Argument] = []
        for each in (a.q_norm, a.k_norm):
            norms += [0, 0.0] if each is None else [_vector(each.weight), float(each.eps)]
        args = (source, qkv.stride, q.floats, a.heads, a.kv_heads, a.head_dim, *turn, *norms, plane, block_bytes)
        centre = self.centres.setdefault(a.layer, np.zeros((a.kv_heads, a.head_dim), np.float32))
        self.ropes[a.layer] = rope
        args += (self.kept.format.record_bytes(a.head_dim), centre)
        self._record(ROTATE_STORES[self.kept], args, reads=[source], writes=[q.floats])
        return q

    def attend(self, q: Activation, attention: Attention) -> Activation:
        plane, block_bytes = self.planes[attention.layer]
        ops, out = self.work.attended(self._as_floats(q), attention, plane, block_bytes, self.kept)
        for op in ops:
            self._append(op)
        columns = attention.heads * attention.head_dim
        return Activation(self.limits.tokens, columns, out, columns * 4)

    def glu(self, gate_up: Activation, activation: str) -> Activation:
        source = self._as_floats(gate_up)
        out = Activation(self.limits.tokens, gate_up.columns // 2)
        out.gate_up = gate_up, activation
        args: list[Argument] = [source, gate_up.stride, out.columns, 0, out.stride, 0, 0, 0, STEP_TOKENS]
        out.span = SPAN // BLOCK
        return out.made_by(self._record(GLUS[activation], args, reads=[source]), floats_at=3, tiles_at=5)

    def experts_add(self, x: Activation, scores: Activation, experts: Experts, residual: Activation) -> Activation:
        out = self._again(residual)
        given = [Rows(self._as_floats(each), each.stride) for each in (x, scores, out)]
        for op in Mixture(experts, self.limits.tokens, self._packed).ops(*given):
            self._append(op)
        return out

    def keep_hidden(self, x: Activation, norm_: Norm) -> None:
        if self.hidden_out is None:
            return
        source, out = self._as_floats(x), self.hidden_out
        args = (source, x.stride, x.columns, _vector(norm_.weight), float(norm_.eps), out, x.stride, 0, 0, 0)
        self._record(norm_pooled, args, reads=[source])

    def logits(self, x: Activation, norm_: Norm, head: Linear, softcap_: float | None = None) -> None:
        rows, columns = self.logits_out.shape
        assert columns == head.outputs, "the head has as many outputs as the model says"
        wanted = self._norm(norm_wanted, x, norm_, rows)
        self._products(wanted, head, self.logits_out, columns * 4, False, STEP_WANTED)
        if softcap_ is not None:
            self._record(softcap, (self.logits_out, columns * 4, columns, float(softcap_)))

    # -- recording -------------------------------------------------------------------------------

    def _record(
        self,
        kernel: Kernel,
        args: Sequence[Argument],
        reads: Sequence[Buffer] = (),
        writes: Sequence[Buffer] = (),
        joins: bool = False,
        weight: Packed | np.ndarray | None = None,
    ) -> Op:
        return self._append(Op(kernel, args, list(reads), list(writes), joins, weight))

    def _append(self, op: Op) -> Op:
        self.ops.append(op)
        return op

    def _packed(self, weight: Weight) -> Packed:
        return self.weights.setdefault(weight, Packed(weight, self.kind))

    def _floats(self, columns: int, name: str) -> Activation:
        rows = self.limits.tokens
        return Activation(rows, columns, Buffer(rows * row_bytes(columns), name))

    def _again(self, residual: Activation) -> Activation:
        """The same memory with new contents: forms made of the old ones do not count."""
        return Activation(residual.rows, residual.columns, self._as_floats(residual), residual.stride)

    def _as_floats(self, x: Activation) -> Buffer:
        if x.floats is None:
            assert x.maker is not None
            x.floats = Buffer(x.rows * x.stride, f"{x.maker.kernel.name} out")
            _fill_place(x.maker, x.floats_at, x.floats)
        return x.floats

    def _as_tiles(self, x: Activation) -> Buffer:
        if x.tiles is None:
            x.tiles = Buffer(quantised_bytes(x.rows, x.columns), "tiles")
            _fill_place(self._quantiser(x), x.tiles_at, x.tiles)
        return x.tiles

    def _as_shorts(self, x: Activation) -> Buffer:
        if x.shorts is None:
            x.shorts = Buffer(shorts_bytes(x.rows, x.columns), "shorts")
            _fill_place(self._quantiser(x), x.shorts_at, x.shorts)
        return x.shorts

    def _as(self, form: str, x: Activation) -> Buffer:
        """What products of a layout take."""
        return {FLOATS: self._as_floats, BYTES: self._as_tiles, SHORTS: self._as_shorts}[form](x)

    def _as_pairs(self, x: Activation) -> Buffer:
        if x.pairs is None:
            x.pairs = Buffer(pairs_bytes(x.rows, x.columns), "pairs")
            if x.floats is not None or self.sites is not None or not self._gated_at_once(x, x.pairs):
                _fill_place(self._quantiser(x), x.pairs_at, x.pairs)
        return x.pairs

    def _gated_at_once(self, x: Activation, pairs: Buffer) -> bool:
        """Have the products of gate and up write act(gate) * up themselves, of prompts, if they can. Then there are no
        floats of it."""
        if x.gate_up is None or x.columns % BLOCK:
            return False
        (source, activation), maker = x.gate_up, x.maker
        found = [(part, op) for part, op in source.products if op is not None]
        layouts = {part.layout.name for part, _ in found}
        if len(found) != len(source.products) or len(layouts) != 1 or {p.outputs for p, _ in found} != {x.columns}:
            return False
        (gate, op), (up, other) = found
        shares = shares_of(x.columns // BLOCK, 4 * gate.group_bytes, self.threads)
        given, columns = op.args[X], op.args[COLUMNS]
        op.kernel = PAIR_GLUS[gate.layout.name, activation]
        op.args = (gate, up, gate.blocks, gate.group_bytes, shares, given, columns, pairs, x.columns)
        op.writes = [pairs]
        self.ops.remove(other)
        assert maker is not None and isinstance(maker.args, list)
        maker.args[-1] = STEP_PROMPTS
        return True

    def _quantiser(self, x: Activation) -> Op:
        """What makes tiles, shorts and pairs of it: its maker, or an op of its own."""
        if x.maker is None:
            assert x.floats is not None
            made = self._record(quantise, [x.floats, x.stride, x.columns, 0, 0, 0], reads=[x.floats])
            x.made_by(made, floats_at=0, tiles_at=3)
        assert x.maker is not None
        return x.maker

    def _norm(self, kernel: Kernel, x: Activation, norm_: Norm, rows: int) -> Activation:
        source = self._as_floats(x)
        out = Activation(rows, x.columns)
        weight = _vector(norm_.weight)
        args: list[Argument] = [source, x.stride, x.columns, weight, float(norm_.eps), 0, out.stride, 0, 0, 0]
        return out.made_by(self._record(kernel, args, reads=[source], weight=weight), floats_at=5, tiles_at=7)

    def _matmul(
        self, x: Activation, linear: Linear, out: Activation, add: bool
    ) -> list[tuple[Packed, Op | None]]:
        assert out.floats
        products = self._products(x, linear, out.floats, out.stride, add, STEP_TOKENS)
        if self.sites is not None and linear.names:
            source, to = self._as_floats(x), out.floats
            for op in self.sites.adapted(linear, source, x.stride, to, out.stride, lambda c: _Offset(to, c * 4)):
                self._append(op)
        return products

    def _products(
        self, x: Activation, linear: Linear, out: Buffer | np.ndarray, stride: int, add: bool, tokens_word: int
    ) -> list[tuple[Packed, Op | None]]:
        """One op for each part, or two where prompts are multiplied apart; the parts write neighbouring columns, and
        all run side by side. Returns the parts, each with its op of prompts."""
        parts = [self._packed(part) for part in linear.parts]
        apart = self.apart and tokens_word == STEP_TOKENS
        pairs = [self._as_pairs(x) if apart and part.layout.integers else None for part in parts]
        sources = [self._as(part.layout.form, x) for part in parts]
        bias = None if linear.bias is None else _vector(linear.bias)
        touched = [out] if isinstance(out, Buffer) else []
        column, found = 0, list[tuple[Packed, Op | None]]()
        for i, (part, source, pair) in enumerate(zip(parts, sources, pairs, strict=True)):
            weight = (part, part.blocks, part.outputs, part.group_bytes, part.groups)
            place = (_Offset(out, column * 4), stride, 0 if bias is None else bias[column:], int(add))
            again = touched if add else []
            shares = shares_of(part.groups, part.group_bytes, self.threads)
            args: tuple[Argument, ...] = (*weight, shares, source, x.stride, *place)
            words = (tokens_word if pair is None else STEP_PROMPTS, max(1, x.span))
            self._record(MATMULS[part.layout.name], args + words, [source, *again], touched, i > 0, part)
            found.append((part, None))
            if pair is not None:
                shares = shares_of(-(-part.groups // 2), 2 * part.group_bytes, self.threads)
                args = (*weight, shares, pair, x.columns, *place)
                of_prompts = self._record(PAIR_PRODUCTS[part.layout.name], args, [pair, *again], touched, joins=True)
                found[-1] = part, of_prompts
            column += part.outputs
        return found


class _Offset:
    """An address some bytes into a buffer or an array."""

    def __init__(self, base: Buffer | np.ndarray, offset: int) -> None:
        self.base, self.offset = base, offset

    @property
    def address(self) -> int:
        base = self.base
        return (base.ctypes.data if isinstance(base, np.ndarray) else base.address) + self.offset


def _fill_place(op: Op, at: int, buffer: Buffer) -> None:
    assert isinstance(op.args, list) and isinstance(op.writes, list)
    op.args[at] = buffer
    op.writes.append(buffer)


def _rows(table: np.ndarray) -> np.ndarray:
    return np.ascontiguousarray(table, np.float32)
