"""A model's forward as a list of launches: which kernel each op becomes, over which grid, reading and writing what.

Recorded once; what a launch looks like in a program for a shape of step is asked later (`Op.launch`), when all memory
has its addresses. Activations are float32 rows to begin with; as the operand of a matrix they are brought into the form
its weights multiply (entries.F16, BF16, F32), by who made them where that can be.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np

from ..model.buffers import Buffer
from ..model.kv import KVFormat
from ..model.ops import Attention, Experts, Linear, Norm, StepLimits
from ..weights.checkpoint import Weight
from . import entries
from .adapters import Site, Sites
from .entries import BF16, F16, F32
from .experts import Mixture
from .layouts import Packed, stacks
from .products import Operand, Ordered, Target, product
from .program import SIZES, Activation, Constant, Launch, Op, Place, ScaledActivation, padded
from .step import PARTIAL_ROWS, POOLED, TOKENS, WANTED

OPERANDS = {"bf16": BF16, "f32": F32}  # by kind of weights; float16 for all others


class Recorder:
    """model.ops.Ops whose calls are kept in `ops`. Weights and constants are collected and uploaded afterwards."""

    def __init__(
        self, limits: StepLimits, kv: KVFormat, planes: Sequence[tuple[Buffer, int]], warp_groups: bool = False
    ) -> None:
        """planes: of each layer, its part of the KV cache and the bytes of a block in it. warp_groups: whether products
        may be theirs in some programs."""
        self.limits, self.kv, self.planes, self.warp_groups = limits, kv, planes, warp_groups
        self.weights: dict[tuple[Weight, ...], Packed] = {}
        self.constants: list[Constant] = []
        self.centres: dict[int, Constant] = {}  # of each layer's turned keys, float32 [kv heads, d]
        self.attentions: list[Attention] = []
        self.hidden_out: Buffer | None = None  # float32 [tokens, stride]: wanted hidden states
        self.logits_out: Buffer | None = None  # float32 [logit rows, vocab]
        self.sites = Sites()
        self._tables: dict[int, tuple[np.ndarray, Constant]] = {}
        self._slots: list[list[Op]] = []
        self._ordered: dict[Buffer, Ordered] = {}  # by what it is made of

    @property
    def ops(self) -> list[Op]:
        return [op for slot in self._slots for op in slot]

    # -- Ops -------------------------------------------------------------------------------------

    def embed(self, table: Weight, scale: float = 1.0) -> Activation:
        packed, x = self._packed(table), self._floats(table.shape[1], "residual")
        out = x.floats
        assert out

        def launch(place: Place) -> Launch:
            sizes = packed.inputs, packed.columns, x.stride, scale
            arguments = (*packed.addresses, place.at("tokens"), place.counts, out.address, *sizes)
            return Launch(entries.embed(packed.layout.number), (place.shape.tokens, 1, 1), arguments)

        self._record(launch, [], [out])
        return x

    def norm(self, x: Activation, norm: Norm) -> Activation:
        return self._norm(x, norm, self.limits.tokens, TOKENS, "")

    def linear(self, x: Activation, linear: Linear) -> Activation:
        out = self._floats(linear.outputs, "linear")
        assert out.floats
        self._products(x, linear, out.floats, out.stride, TOKENS, add=False)
        return out

    def linear_add(self, x: Activation, linear: Linear, residual: Activation) -> Activation:
        out = self._again(residual)
        assert out.floats
        self._products(x, linear, out.floats, out.stride, TOKENS, add=True)
        return out

    def norm_add(self, x: Activation, norm: Norm, residual: Activation) -> Activation:
        out, weight = self._again(residual), self._constant(norm.weight)
        source, target = x.floats, out.floats
        assert source and target

        def launch(place: Place) -> Launch:
            arrays = source.address, weight.address, target.address, place.counts
            arguments = (*arrays, x.columns, x.stride, out.stride, norm.eps)
            return Launch(entries.RMS_NORM_ADD, (place.shape.tokens, 1, 1), arguments)

        self._record(launch, [source, target], [target])
        return out

    def rotate_store(self, qkv: Activation, attention: Attention) -> Activation:
        a, source = attention, qkv.floats
        assert source
        form = self._query_form()
        columns = a.heads * a.head_dim
        q = Buffer(self.limits.tokens * padded(columns) * SIZES[form], "q")
        plane, block_bytes = self.planes[a.layer]
        cos, sin = (None, None) if a.rope is None else (self._table(a.rope.cos), self._table(a.rope.sin))
        norms = [None if each is None else self._constant(each.weight) for each in (a.q_norm, a.k_norm)]
        epsilons = [0.0 if each is None else each.eps for each in (a.q_norm, a.k_norm)]
        centre = self._constant(np.zeros((a.kv_heads, a.head_dim), np.float32)) if self.kv.turns else None
        self.attentions.append(a)
        if centre:
            self.centres[a.layer] = centre
        half = 0 if a.rope is None else a.rope.cos.shape[1]
        entry = entries.rotate_store(entries.KV_NUMBERS[self.kv.name], a.head_dim)

        def launch(place: Place) -> Launch:
            step = place.at("positions"), place.at("slots"), place.counts
            tables = [each.address if each else 0 for each in (cos, sin, *norms, centre)]
            sizes = block_bytes, qkv.stride, padded(columns), a.heads, a.kv_heads, half
            arguments = (source.address, *step, *tables, q.address, plane.address, *sizes, *epsilons)
            return Launch(entry, (place.shape.tokens, a.heads + 2 * a.kv_heads, 1), arguments)

        self._record(launch, [source], [q])
        return Activation(self.limits.tokens, columns, _unasked, _unmade, q)

    def attend(self, q: Activation, attention: Attention) -> Activation:
        source = q.floats
        assert source
        kv, group = entries.KV_NUMBERS[self.kv.name], attention.heads // attention.kv_heads
        slot = self._slot()
        partial_bytes = PARTIAL_ROWS * attention.heads * (attention.head_dim + 2) * 4

        def make(form: int, out: Buffer, scales: Buffer) -> Op:
            partial = Buffer(partial_bytes, "partial")
            slot.append(Op(self._attended(q, attention, form, out, partial), [source], [out, partial]))

            def combined(place: Place) -> Launch:
                splits = place.shape.splits
                arrays = partial.address, place.counts, out.address
                arguments = (*arrays, form, padded(q.columns), attention.heads, splits)
                entry = entries.combine(kv, attention.head_dim, group, place.shape.tile_rows)
                return Launch(entry, (place.shape.tokens if splits > 1 else 0, attention.heads, 1), arguments)

            return Op(combined, [partial], [out])

        return Activation(self.limits.tokens, q.columns, slot.append, make)

    def _attended(
        self, q: Activation, a: Attention, form: int, out: Buffer, partial: Buffer
    ) -> Callable[[Place], Launch]:
        source = q.floats
        assert source
        plane, block_bytes = self.planes[a.layer]
        kv, group = entries.KV_NUMBERS[self.kv.name], a.heads // a.kv_heads

        def launch(place: Place) -> Launch:
            shape = place.shape
            step = [place.at(name) for name in ("table", "table_starts", "contexts", "row_starts", "tiles")]
            arrays = source.address, plane.address, *step, place.counts, out.address, partial.address
            sizes = block_bytes, form, q.stride, padded(q.columns), a.kv_heads
            arguments = (*arrays, *sizes, a.scale, a.softcap or 0.0, a.window or 0, shape.splits)
            entry = entries.attend(kv, a.head_dim, group, shape.tile_rows)
            return Launch(entry, (a.kv_heads, shape.tiles, shape.splits), arguments)

        return launch

    def glu(self, gate_up: Activation, activation: str) -> Activation:
        source, columns = gate_up.floats, gate_up.columns // 2
        assert source
        kind = entries.ACTIVATIONS[activation]

        def make(form: int, out: Buffer, scales: Buffer) -> Op:
            def launch(place: Place) -> Launch:
                arrays = source.address, out.address, scales.address, form, place.counts
                arguments = (*arrays, columns, gate_up.stride, padded(columns), kind)
                return Launch(entries.GLU, (place.shape.tokens, 1, 1), arguments)

            return Op(launch, [source], [out, scales])

        return ScaledActivation(self.limits.tokens, columns, self._slot().append, make)

    def experts_add(self, x: Activation, scores: Activation, experts: Experts, residual: Activation) -> Activation:
        out = self._again(residual)
        for op in Mixture(experts, self.limits, self._packed).ops(x, scores, out, _form):
            self._append(op)
        return out

    def keep_hidden(self, x: Activation, norm: Norm) -> None:
        self.hidden_out, _ = self._norm(x, norm, self.limits.tokens, POOLED, "pooled").operand(F32)

    def logits(self, x: Activation, norm: Norm, head: Linear, softcap: float | None = None) -> None:
        rows = self.limits.logit_rows
        out = self.logits_out = Buffer(rows * head.outputs * 4, "logits")
        self._products(self._norm(x, norm, rows, WANTED, "wanted"), head, out, head.outputs, WANTED, add=False)
        if softcap is None:
            return

        def launch(place: Place) -> Launch:
            blocks = -(-head.outputs // entries.SOFTCAP_COLUMNS)
            arguments = (out.address, place.counts, WANTED, head.outputs, head.outputs, softcap)
            return Launch(entries.SOFTCAP, (place.shape.wanted, blocks, 1), arguments)

        self._record(launch, [out], [out])

    # -- recording -------------------------------------------------------------------------------

    def _slot(self) -> list[Op]:
        """A place in the order of the ops, for those that are known later."""
        slot: list[Op] = []
        self._slots.append(slot)
        return slot

    def _record(self, launch: Callable[[Place], Launch], reads: list[Buffer], writes: list[Buffer]) -> None:
        self._append(Op(launch, reads, writes))

    def _append(self, op: Op) -> None:
        self._slot().append(op)

    def _packed(self, *weights: Weight) -> Packed:
        return self.weights.setdefault(weights, Packed(*weights))

    def _constant(self, values: np.ndarray) -> Constant:
        self.constants.append(Constant(values.astype(np.float32)))
        return self.constants[-1]

    def _table(self, values: np.ndarray) -> Constant:
        """A constant that several layers share."""
        if id(values) not in self._tables:
            self._tables[id(values)] = values, self._constant(values)
        return self._tables[id(values)][1]

    def _query_form(self) -> int:
        """The form attention multiplies keys in."""
        return {"fp32": F32, "bf16": BF16}.get(self.kv.name, F16)

    def _floats(self, columns: int, name: str) -> Activation:
        return self._of_floats(Buffer(self.limits.tokens * padded(columns) * 4, name), columns)

    def _again(self, residual: Activation) -> Activation:
        """The same memory with new contents: forms made of the old ones do not count."""
        assert residual.floats
        return self._of_floats(residual.floats, residual.columns)

    def _of_floats(self, floats: Buffer, columns: int) -> Activation:
        """Rows an op writes. They may be changed later, so a form made of them is made when it is asked for."""
        stride = padded(columns)

        def make(form: int, out: Buffer, scales: Buffer) -> Op:
            def launch(place: Place) -> Launch:
                arguments = (floats.address, out.address, form, place.counts, columns, stride, stride)
                return Launch(entries.CONVERT, (place.shape.tokens, 1, 1), arguments)

            return Op(launch, [floats], [out])

        return Activation(self.limits.tokens, columns, self._append, make, floats)

    def _norm(self, x: Activation, norm: Norm, rows: int, word: int, chosen: str) -> Activation:
        """chosen: the array of the step that says which rows; "" for all."""
        weight, source = self._constant(norm.weight), x.floats
        assert source

        def make(form: int, out: Buffer, scales: Buffer) -> Op:
            def launch(place: Place) -> Launch:
                arrays = source.address, weight.address, place.at(chosen) if chosen else 0, place.counts
                arguments = (*arrays, word, out.address, form, x.columns, x.stride, x.stride, norm.eps)
                return Launch(entries.RMS_NORM, (place.shape.count(word), 1, 1), arguments)

            return Op(launch, [source], [out])

        return Activation(rows, x.columns, self._slot().append, make)

    def _products(self, x: Activation, linear: Linear, out: Buffer, stride: int, word: int, add: bool) -> None:
        """One launch for parts that are kept alike; they write neighbouring columns."""
        bias = None if linear.bias is None else self._constant(linear.bias)
        column = 0
        for parts in stacks(linear.parts):
            packed = self._packed(*parts)
            operand = self._operand(x, packed, word)
            launch = product(packed, operand, bias, Target(out, stride, column, add), word)
            self._record(launch, [*operand.buffers, *([out] if add or column else [])], [out])
            column += packed.outputs
        if linear.names:
            self._adapt(x, linear, out, stride)

    def _operand(self, x: Activation, packed: Packed, word: int) -> Operand:
        source, scales = x.operand(_form(packed))
        scaled = scales if isinstance(x, ScaledActivation) and packed.kind not in OPERANDS else None
        ordered = None
        if self.warp_groups and word == TOKENS and entries.in_warp_groups(packed.layout):
            if source not in self._ordered:
                self._ordered[source] = Ordered(source, x.rows, x.stride)
                self._append(self._ordered[source].op(word))
            ordered = self._ordered[source]
        return Operand(source, x.stride, scaled, ordered)

    def _adapt(self, x: Activation, linear: Linear, out: Buffer, stride: int) -> None:
        """What adapters add: one launch for the site, one for each part; none in programs of steps without adapters."""
        site = self.sites.add(linear.names, x.stride)
        form = _form(Packed(linear.parts[0]))
        source, scales = x.operand(form)
        scaled = scales if isinstance(x, ScaledActivation) and form == F16 else None
        hidden = Buffer(self.limits.tokens * site.hidden * 4, "adapted")

        def shrink(place: Place) -> Launch:
            operand = source.address, form, scales.address if scaled else 0
            step = place.at("adapters"), place.counts, self.sites.table_address(site.table)
            sizes = x.stride, site.hidden
            return Launch(entries.SHRINK, (_adapted_tokens(place), 1, 1), (*operand, *step, hidden.address, *sizes))

        self._record(shrink, [source, *([scaled] if scaled else [])], [hidden])
        column = 0
        for i, part in enumerate(linear.parts):
            self._record(self._expand(site, i, hidden, out, column, part.shape[0], stride), [hidden, out], [out])
            column += part.shape[0]

    def _expand(
        self, site: Site, part: int, hidden: Buffer, out: Buffer, column: int, outputs: int, stride: int
    ) -> Callable[[Place], Launch]:
        def launch(place: Place) -> Launch:
            step = place.at("adapters"), place.counts, self.sites.table_address(site.table + 1 + part)
            arguments = (hidden.address, *step, out.address, column, outputs, site.hidden, stride)
            blocks = -(-outputs // entries.EXPAND_COLUMNS)
            return Launch(entries.EXPAND, (_adapted_tokens(place), blocks, 1), arguments)

        return launch


def _form(packed: Packed) -> int:
    """What these weights multiply."""
    return OPERANDS.get(packed.kind, F16)


def _adapted_tokens(place: Place) -> int:
    return place.shape.tokens if place.shape.adapted else 0


def _unmade(form: int, out: Buffer, scales: Buffer) -> Op:
    raise AssertionError("queries are read by attention alone")


def _unasked(op: Op) -> None: ...
