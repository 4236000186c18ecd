"""A mixture of experts as launches: who goes where, its products, and their sum (kernels/experts.cu has the words).

A program for a shape of step has room for the most rows that its tokens can need; how many there are is known on the
device alone."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from ..model.buffers import Buffer
from ..model.ops import Experts, StepLimits
from ..weights.checkpoint import UnsupportedModel, Weight
from . import entries
from .layouts import Packed, stacks
from .program import SIZES, Activation, Launch, Op, Place, ScaledActivation, padded

MOST, MOST_CHOSEN = 512, 32  # experts that the kernels tell apart, and of a token
SOFTMAX, SOFTMAX_OF_CHOSEN = 0, 1  # where weights come from


class Matrices:
    """One matrix of every expert, or a stack of several: packed alike, one behind the other in the device's memory."""

    def __init__(self, packed: Sequence[Packed]) -> None:
        self.packed, self.one = packed, packed[0]
        if any(each.layout is not self.one.layout for each in packed):
            named = self.one.weights[0].name
            raise UnsupportedModel(f"the experts beside {named!r} have formats of their own; all must be kept alike")

    @property
    def apart(self) -> int:
        """Bytes from one to the next."""
        first, last = self.packed[0], self.packed[-1]
        return (last.address - first.address) // max(1, len(self.packed) - 1)


@dataclass(frozen=True, slots=True)
class Room:
    """For the rows of a step of so many tokens. An expert's begin at a multiple of `align`."""

    token_tiles: int
    tiles: int

    @property
    def align(self) -> int:
        return 8 * self.token_tiles

    @property
    def rows(self) -> int:
        return self.tiles * self.align

    @classmethod
    def of(cls, tokens: int, experts: Experts) -> Room:
        """Blocks of a product get as many rows as an expert has of the mean, in steps that depend on the power of two
        above `tokens` alone: there are few variants."""
        most = 1 << (tokens - 1).bit_length()
        mean = most * experts.chosen / experts.count
        token_tiles = next((n for n in entries.TOKEN_TILES if 8 * n >= mean), entries.TOKEN_TILES[-1])
        rows = tokens * experts.chosen
        used = min(rows, experts.count)
        return cls(token_tiles, used + (rows - used) // (8 * token_tiles))


class Mixture:
    """The ops of one layer's experts."""

    def __init__(self, experts: Experts, limits: StepLimits, packed: Callable[..., Packed]) -> None:
        """Raises UnsupportedModel."""
        if experts.count > MOST or experts.chosen > MOST_CHOSEN:
            raise UnsupportedModel(
                f"tokens go through {experts.chosen} of {experts.count} experts; on a GPU up to {MOST_CHOSEN} of {MOST}"
            )
        self.experts = experts
        self.inputs = [Matrices([packed(*stack) for stack in each]) for each in _stacked(experts.gate, experts.up)]
        self.down = Matrices([packed(weight) for weight in experts.down])
        largest = [1 << i for i in range(limits.tokens.bit_length())]  # steps of each variant
        rooms = [self._room(tokens) for tokens in (*largest, limits.tokens)]
        self.rows = max(room.rows for room in rooms)
        entry_bytes = limits.tokens * experts.chosen * 4
        self.chosen, self.weights = Buffer(entry_bytes, "experts"), Buffer(entry_bytes, "weights")
        self.places = Buffer(entry_bytes, "places")
        self.sizes, self.total = Buffer(experts.count * 4, "sizes"), Buffer(4, "rows")
        self.sources, self.owners = Buffer(self.rows * 4, "sources"), Buffer(max(r.tiles for r in rooms) * 4, "owners")

    def _room(self, tokens: int) -> Room:
        return Room.of(tokens, self.experts)

    def ops(self, x: Activation, scores: Activation, out: Activation, forms: Callable[[Packed], int]) -> list[Op]:
        """scores, out: float32 rows. What the experts say of x is added to out. forms: what weights multiply."""
        assert scores.floats and out.floats
        inner, hidden = self.experts.inner, self.down.one.outputs
        both, said = (Buffer(self.rows * padded(n) * 4, "experts out") for n in (2 * inner, hidden))
        found = self._placed(scores.floats, scores.stride)
        column = 0
        for matrices in self.inputs:
            source, scales = x.operand(forms(matrices.one))
            scaled = scales if isinstance(x, ScaledActivation) and forms(matrices.one) == entries.F16 else None
            found.append(self._product(matrices, source, scaled, x.stride, both, padded(2 * inner), column, True))
            column += matrices.one.outputs
        form = forms(self.down.one)
        gated = Buffer(self.rows * padded(inner) * SIZES[form], "experts in")
        scales = Buffer(self.rows * 4, "row scales")
        found.append(Op(self._gate(both, gated, scales, form), [both, self.total], [gated, scales]))
        scaled = scales if form == entries.F16 else None
        found.append(self._product(self.down, gated, scaled, padded(inner), said, padded(hidden), 0, False))
        reads = [said, self.places, self.weights, out.floats]
        found.append(Op(self._gather(said, padded(hidden), out.floats, out.stride), reads, [out.floats]))
        return found

    def _placed(self, scores: Buffer, stride: int) -> list[Op]:
        e = self.experts

        def route(place: Place) -> Launch:
            kind = SOFTMAX_OF_CHOSEN if e.normalised else SOFTMAX
            arrays = scores.address, 0, place.counts, self.chosen.address, self.weights.address
            arguments = (*arrays, e.count, e.chosen, stride, kind, int(e.normalised), 1.0)
            return Launch(entries.ROUTE, (place.shape.tokens, 1, 1), arguments)

        def count(place: Place) -> Launch:
            arguments = (self.chosen.address, place.counts, self.sizes.address, e.chosen)
            return Launch(entries.COUNT_ENTRIES, (e.count, 1, 1), arguments)

        def put(place: Place) -> Launch:
            room = self._room(place.shape.tokens)
            results = (each.address for each in (self.places, self.sources, self.owners, self.total))
            arrays = self.chosen.address, self.sizes.address, place.counts, *results
            return Launch(entries.PLACE, (e.count, 1, 1), (*arrays, e.count, e.chosen, room.align, room.tiles))

        return [
            Op(route, [scores], [self.chosen, self.weights]),
            Op(count, [self.chosen], [self.sizes]),
            Op(put, [self.chosen, self.sizes], [self.places, self.sources, self.owners, self.total]),
        ]

    def _product(
        self,
        matrices: Matrices,
        source: Buffer,
        scales: Buffer | None,
        source_stride: int,
        out: Buffer,
        stride: int,
        column: int,
        gathered: bool,
    ) -> Op:
        """gathered: the source has a row for each token, not for each row."""

        def launch(place: Place) -> Launch:
            one, room = matrices.one, self._room(place.shape.tokens)
            operand = source.address, scales.address if scales else 0, 0, out.address + 4 * column
            sizes = one.outputs, one.columns, source_stride, stride, int(gathered)
            rows = self.sources.address, self.owners.address
            apart = matrices.apart
            arguments = (*one.addresses, *operand, *rows, *sizes, apart // 16, apart, apart // 4)
            entry = entries.linear_experts(one.layout.number, room.token_tiles)
            return Launch(entry, (-(-one.outputs // 16), room.tiles, 1), arguments)

        reads = [source, self.sources, self.owners, *([scales] if scales else []), *([out] if column else [])]
        return Op(launch, reads, [out])

    def _gate(self, both: Buffer, out: Buffer, scales: Buffer, form: int) -> Callable[[Place], Launch]:
        inner, kind = self.experts.inner, entries.ACTIVATIONS[self.experts.activation]

        def launch(place: Place) -> Launch:
            arrays = both.address, out.address, scales.address, form, self.total.address
            arguments = (*arrays, inner, padded(2 * inner), padded(inner), kind)
            return Launch(entries.GLU, (self._room(place.shape.tokens).rows, 1, 1), arguments)

        return launch

    def _gather(self, said: Buffer, stride: int, out: Buffer, out_stride: int) -> Callable[[Place], Launch]:
        columns, chosen = self.down.one.outputs, self.experts.chosen

        def launch(place: Place) -> Launch:
            arrays = said.address, self.places.address, self.weights.address, place.counts, out.address
            arguments = (*arrays, columns, chosen, stride, out_stride)
            return Launch(entries.GATHER, (place.shape.tokens, 1, 1), arguments)

        return launch


def _stacked(gate: Sequence[Weight], up: Sequence[Weight]) -> list[list[tuple[Weight, ...]]]:
    """Both of every expert as one matrix, where that can be; else all of the one, and all of the other."""
    pairs = [stacks(pair) for pair in zip(gate, up, strict=True)]
    if all(len(found) == 1 for found in pairs):
        return [[stack for (stack,) in pairs]]
    return [[(weight,) for weight in each] for each in (gate, up)]
