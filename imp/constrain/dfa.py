"""Deterministic automata over code points: from an expression, minimal and in canonical form, and their products."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property

from . import expr as e
from .charset import ALL, LINE_TERMINATORS, WORD, CharSet, partition
from .clock import tick
from .errors import too_large
from .expr import EVERYWHERE, Expr, Side, context
from .nfa import UNBOUNDED
from .positions import MAX_POSITIONS, Positions, bits

MAX_STATES = 20_000
MAX_CELLS = 400_000  # states times classes
MAX_WORK = 3_000_000  # steps of the subset construction, about a second


@dataclass(frozen=True)
class Dfa:
    """Minimal, complete, and numbered breadth first, so that equal languages are equal values. State 0 starts."""

    classes: tuple[CharSet, ...]  # characters no state tells apart, by their first code points; together: all
    rows: tuple[tuple[int, ...], ...]  # [state][class] -> state
    accepts: tuple[bool, ...]

    @cached_property
    def _hash(self) -> int:
        return hash((self.classes, self.rows, self.accepts))

    def __hash__(self) -> int:
        return self._hash

    @cached_property
    def fewest(self) -> tuple[int | None, ...]:
        """For each state the characters it takes at least to accept; None where it never does."""
        sources: list[list[int]] = [[] for _ in self.rows]
        for state, row in enumerate(self.rows):
            tick(1 + len(row) // 4)
            for target in set(row):
                sources[target].append(state)
        least: list[int | None] = [0 if accepting else None for accepting in self.accepts]
        queue = [state for state, accepting in enumerate(self.accepts) if accepting]
        for state in queue:  # grows, breadth first
            for source in sources[state]:
                if least[source] is None:
                    least[source] = (least[state] or 0) + 1
                    queue.append(source)
        return tuple(least)

    @cached_property
    def live(self) -> tuple[bool, ...]:
        """Which states can still accept."""
        return tuple(least is not None for least in self.fewest)

    @cached_property
    def longest(self) -> int:
        """Characters of the longest text, 0 if there is none; UNBOUNDED where a state that can accept is on a cycle."""
        entries = [0] * len(self.rows)
        for targets in self.targets:
            tick()
            for target, _ in targets:
                entries[target] += 1
        depth, done = [0] * len(self.rows), 0
        ready = [state for state, count in enumerate(entries) if not count]
        while ready:  # in topological order
            state = ready.pop()
            tick()
            done += 1
            for target, _ in self.targets[state]:
                depth[target] = max(depth[target], depth[state] + 1)
                entries[target] -= 1
                if not entries[target]:
                    ready.append(target)
        return UNBOUNDED if done < len(self.rows) else max(depth)

    @cached_property
    def targets(self) -> tuple[tuple[tuple[int, CharSet], ...], ...]:
        """For each state: where it can go, and with which characters; states that cannot accept are left out."""
        merged: list[tuple[tuple[int, CharSet], ...]] = []
        for row in self.rows:
            tick(len(row))
            chars: dict[int, CharSet] = {}
            for target, members in zip(row, self.classes, strict=True):
                if self.live[target]:
                    chars[target] = chars[target] | members if target in chars else members
            merged.append(tuple(chars.items()))
        return tuple(merged)


def complement(dfa: Dfa) -> Dfa:
    return Dfa(dfa.classes, dfa.rows, tuple(not accepting for accepting in dfa.accepts))


# --- subsets ----------------------------------------------------------------------------------------------------------


def from_expr(expr: Expr, search: bool = False) -> Dfa:
    """The texts that match as a whole, or with `search` those that hold a match somewhere."""
    if search:
        items = _items(expr)
        anything = e.star(e.Chars(ALL))
        before = [] if _is_anchor(items[:1], e.TEXT_START) else [anything]
        after = [] if _is_anchor(items[-1:], e.TEXT_END) else [anything]
        expr = e.concat([*before, *items, *after])
    expr = unanchored(expr)
    chain = _chain(expr)
    if chain is not None:
        return _from_chain(chain)
    positions = Positions(expr)
    return _Subsets(positions, 1 << len(positions.sets) - 1 if search and after else 0).dfa()


def unanchored(expr: Expr) -> Expr:
    """Without an anchor at the very beginning and the very end, for a match of the whole text."""
    items = _items(expr)
    if _is_anchor(items[:1], e.TEXT_START):
        items = items[1:]
    if _is_anchor(items[-1:], e.TEXT_END):
        items = items[:-1]
    return e.concat(items)


def _items(expr: Expr) -> list[Expr]:
    return list(expr.items) if isinstance(expr, e.Concat) else [expr]


def _is_anchor(items: Sequence[Expr], contexts: int) -> bool:
    return any(isinstance(item, e.Assert) and item.contexts == contexts for item in items)


Link = tuple[CharSet, int, int]  # how many characters of a set, at least and at most


def _chain(expr: Expr) -> list[Link] | None:
    """Characters of sets one after the other, where only how many the last set has is open; None for anything else."""
    links: list[Link] = []
    for item in _items(expr):
        node, low, high = (item.body, item.low, item.high) if isinstance(item, e.Repeat) else (item, 1, 1)
        if not isinstance(node, e.Chars) or not node.chars or (links and links[-1][1] != links[-1][2]):
            return None
        links.append((node.chars, low, high))
    return (
        links if links and links[-1][2] != 0 and sum(max(low, high) for _, low, high in links) < MAX_POSITIONS else None
    )


def _from_chain(chain: Sequence[Link]) -> Dfa:
    """No two of its states are equal: from each, other numbers of characters are possible."""
    sets = list(dict.fromkeys(chars for chars, _, _ in chain))
    parts = partition(sets)
    wanted: list[CharSet] = []  # for each state but the last two the characters that lead to the next one
    for chars, low, high in chain:
        wanted += [chars] * max(low, high)
    last, dead = len(wanted), len(wanted) + 1
    if (dead + 1) * len(parts) > MAX_CELLS:
        raise too_large("the automaton of the pattern has too many states")
    places = {chars: 1 << at for at, chars in enumerate(sets)}
    rows = []
    for state, chars in enumerate(wanted):
        tick(1 + len(parts) // 4)
        rows.append(tuple(state + 1 if mask & places[chars] else dead for _, mask in parts))
    chars, low, high = chain[-1]
    rows.append(tuple(last if high == UNBOUNDED and mask & places[chars] else dead for _, mask in parts))
    rows.append((dead,) * len(parts))
    open_from = last if high == UNBOUNDED else last - (high - low)
    accepts = [open_from <= state <= last for state in range(dead + 1)]
    return _canonical([chars for chars, _ in parts], rows, accepts, range(dead + 1))


class _Subsets:
    """The subset construction. A state: positions and, where contexts matter, the kind of the last character."""

    def __init__(self, positions: Positions, absorbing: int):
        self.follow, self.last, self.absorbing = positions.follow, positions.last, absorbing
        guards = {guard for guarded in [*self.follow, self.last] for guard in guarded}
        self.plain = guards <= {EVERYWHERE}
        marks: dict[CharSet, int] = {}
        for at, chars in enumerate(positions.sets):
            tick(1 + at // 4096)
            marks[chars] = marks.get(chars, 0) | 1 << at
        kinds = [] if self.plain else [LINE_TERMINATORS, WORD]
        parts = partition([*marks, *kinds])
        sets = list(marks.values())
        self.classes = [chars for chars, _ in parts]
        self.marks = [_union(sets, mask) for _, mask in parts]
        self.kinds = [Side.OTHER if self.plain else _kind(mask >> len(sets)) for _, mask in parts]

    def dfa(self) -> Dfa:
        start = (1, Side.OTHER if self.plain else Side.EDGE)
        numbers, states, work = {start: 0}, [start], 0
        rows: list[tuple[int, ...]] = []
        for state in states:  # grows
            row = []
            tick(state[0].bit_count() + len(self.classes))
            work += state[0].bit_count() * (1 + len(self.follow) // 2000) + len(self.classes)
            for target in self.successors(*state):
                number = numbers.setdefault(target, len(states))
                if number == len(states):
                    states.append(target)
                row.append(number)
            rows.append(tuple(row))
            if work > MAX_WORK or len(states) > MAX_STATES or len(states) * len(self.classes) > MAX_CELLS:
                raise too_large("the automaton of the pattern has too many states")
        return minimal(self.classes, rows, [self.accepts(*state) for state in states])

    def successors(self, positions: int, kind: int) -> Iterator[tuple[int, int]]:
        follow: list[int] = [0, 0, 0, 0]  # by the kind of the next character
        for at in bits(positions):
            for guard, targets in self.follow[at].items():
                for after in (Side.OTHER,) if self.plain else (Side.LINE, Side.WORD, Side.OTHER):
                    if guard & context(kind, after):
                        follow[after] |= targets
        for mark, after in zip(self.marks, self.kinds, strict=True):
            target = follow[after] & mark
            if target & self.absorbing:
                target = self.absorbing
            yield target, after if target & ~self.absorbing else Side.OTHER

    def accepts(self, positions: int, kind: int) -> bool:
        return any(positions & at and guard & context(kind, Side.EDGE) for guard, at in self.last.items())


def _union(sets: Sequence[int], mask: int) -> int:
    union = 0
    for at in bits(mask & ((1 << len(sets)) - 1)):
        union |= sets[at]
    return union


def _kind(mask: int) -> int:
    return Side.LINE if mask & 1 else Side.WORD if mask & 2 else Side.OTHER


# --- minimisation -----------------------------------------------------------------------------------------------------


def minimal(classes: Sequence[CharSet], rows: Sequence[tuple[int, ...]], accepts: Sequence[bool]) -> Dfa:
    """The minimal automaton in canonical form; every state must be reachable from state 0."""
    return _canonical(classes, rows, accepts, _blocks(rows, accepts))


def _canonical(
    classes: Sequence[CharSet], rows: Sequence[tuple[int, ...]], accepts: Sequence[bool], block: Sequence[int]
) -> Dfa:
    """The automaton of the blocks of equal states that state 0 leads to. block: of each state."""
    members = dict(zip(block, range(len(rows)), strict=True))  # one of each
    columns: dict[tuple[int, ...], CharSet] = {}
    order = sorted(members)
    for at, chars in enumerate(classes):
        tick(len(order))
        column = tuple(block[rows[members[b]][at]] for b in order)
        columns[column] = columns[column] | chars if column in columns else chars
    merged = sorted(columns.items(), key=lambda item: item[1].ranges)
    by_block = dict(zip(order, zip(*(column for column, _ in merged), strict=True), strict=True))
    numbers = {block[0]: 0}
    queue = [block[0]]
    for b in queue:  # grows
        tick(1 + len(merged) // 8)
        for target in by_block[b]:
            if target not in numbers:
                numbers[target] = len(queue)
                queue.append(target)
    renumbered = []
    for b in queue:
        tick(1 + len(merged) // 8)
        renumbered.append(tuple(numbers[target] for target in by_block[b]))
    return Dfa(
        tuple(chars for _, chars in merged),
        tuple(renumbered),
        tuple(bool(accepts[members[b]]) for b in queue),
    )


def _blocks(rows: Sequence[tuple[int, ...]], accepts: Sequence[bool]) -> list[int]:
    """For each state the number of its class of equivalent states (Hopcroft 1971: split by the smaller half)."""
    width = len(rows[0])
    sources: list[dict[int, list[int]]] = [{} for _ in range(width)]
    for state, row in enumerate(rows):
        tick(1 + width // 4)
        for column, target in zip(sources, row, strict=True):
            column.setdefault(target, []).append(state)
    block = [int(accepting) for accepting in accepts]
    blocks = [{s for s, b in enumerate(block) if b == which} for which in (0, 1)]
    waiting = [0, 1]
    while waiting:
        splitter = list(blocks[waiting.pop()])
        for column in sources:
            tick(1 + len(splitter))
            touched: dict[int, list[int]] = {}
            for target in splitter:
                for source in column.get(target, ()):
                    touched.setdefault(block[source], []).append(source)
            for old, moved in touched.items():
                tick(len(moved) // 4)
                if len(moved) == len(blocks[old]):
                    continue
                new = set(moved)
                blocks[old] -= new
                if len(new) > len(blocks[old]):
                    blocks[old], new = new, blocks[old]
                for state in new:
                    block[state] = len(blocks)
                waiting.append(len(blocks))
                blocks.append(new)
    return block


def intersection(left: Dfa, right: Dfa) -> Dfa:
    """The product automaton, minimised."""
    parts = partition([*left.classes, *right.classes])
    shift = len(left.classes)
    pairs = [((mask & ((1 << shift) - 1)).bit_length() - 1, (mask >> shift).bit_length() - 1) for _, mask in parts]
    numbers, states = {(0, 0): 0}, [(0, 0)]
    dead = (-1, -1)
    rows: list[tuple[int, ...]] = []
    for state in states:  # grows
        tick(len(pairs))
        row = []
        for i, j in pairs:
            target = dead if state == dead else (left.rows[state[0]][i], right.rows[state[1]][j])
            if not (target != dead and left.live[target[0]] and right.live[target[1]]):
                target = dead
            number = numbers.setdefault(target, len(states))
            if number == len(states):
                states.append(target)
            row.append(number)
        rows.append(tuple(row))
        if len(states) > MAX_STATES or len(states) * len(parts) > MAX_CELLS:
            raise too_large("the combination of patterns has too many states")
    accepts = [state != dead and left.accepts[state[0]] and right.accepts[state[1]] for state in states]
    return minimal([chars for chars, _ in parts], rows, accepts)


def from_texts(texts: Sequence[str]) -> Dfa:
    """The automaton of finitely many texts; texts with surrogates are never written and left out."""
    children: list[dict[int, int]] = [{}]
    ends: set[int] = set()
    for text in texts:
        if any("\ud800" <= char <= "\udfff" for char in text):
            continue
        state = 0
        tick(len(text))
        for char in text:
            state = children[state].setdefault(ord(char), len(children))
            if state == len(children):
                children.append({})
                if state > MAX_STATES:
                    raise too_large(f"the texts have more than {MAX_STATES} characters")
        ends.add(state)
    codes = sorted({code for child in children for code in child})
    parts = partition([CharSet(((code, code),)) for code in codes])
    if len(children) * len(parts) > MAX_CELLS:
        raise too_large("the texts have too many different characters")
    dead = len(children)
    first = [chars.ranges[0][0] if mask else None for chars, mask in parts]
    rows = [tuple(dead if code is None else child.get(code, dead) for code in first) for child in [*children, {}]]
    return minimal([chars for chars, _ in parts], rows, [state in ends for state in range(dead + 1)])
