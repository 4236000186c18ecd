"""Automata of texts: a Dfa over characters, perhaps with a limit on their number, as nodes over bytes."""

from __future__ import annotations

from .charset import CharSet, Encoding, Template, add_template, template
from .clock import tick
from .dfa import Dfa
from .layout import WIDE
from .nfa import UNBOUNDED, Nfa

NEVER = 2**31 - 1  # a counter does not get here
COUNTED = 4


def free(nfa: Nfa, after: int, char: Template, low: int, high: int) -> int:
    """low to high characters of one kind."""

    def one(then: int) -> int:
        node = nfa.byte()
        add_template(nfa, node, char, then)
        return node

    if (low, high) == (0, UNBOUNDED):
        loop = nfa.eps(after)
        nfa.link(loop, one(loop))
        return loop
    return nfa.call(nfa.repeat(low, high, nfa.ret, one), after)


def plain(nfa: Nfa, after: int, dfa: Dfa, encoding: Encoding) -> int:
    """A text the Dfa accepts. Deterministic; states that cannot accept do not appear.

    Where it only counts characters of a wide set, a counter does, so that masks see a loop."""
    counts, counted_over = _countable(dfa)
    bodies = []
    for state in range(len(dfa.rows)):
        tick(2)
        bodies.append(nfa.eps() if state in counts else nfa.byte())
    entries = [nfa.eps(body, after) if ends else body for body, ends in zip(bodies, dfa.accepts, strict=True)]
    for state, (body, targets) in enumerate(zip(bodies, dfa.targets, strict=True)):
        if state in counts:
            chars, count, end = counts[state]
            nfa.link(body, free(nfa, entries[end], template(chars, encoding), count, count))
        elif state not in counted_over:
            for target, chars in targets:
                tick(4 + len(chars.ranges))
                add_template(nfa, body, template(chars, encoding), entries[target])
    return entries[0]


def _countable(dfa: Dfa) -> tuple[dict[int, tuple[CharSet, int, int]], set[int]]:
    """Ways of COUNTED or more characters of one wide set, with no other way in or out: by the state where they begin
    the set, how many, and the state where they end; and the states between."""
    ways_in, only = [0] * len(dfa.rows), {}
    for state, targets in enumerate(dfa.targets):
        for target, _ in targets:
            ways_in[target] += 1
        if len(targets) == 1 and not dfa.accepts[state] and len(targets[0][1]) >= WIDE:
            only[state] = targets[0]
    inner = {end for end, chars in only.values() if ways_in[end] == 1 and end in only and only[end][1] == chars}
    found, between = {}, set[int]()
    for state, (end, chars) in only.items():
        passed = []
        while state not in inner and end in inner:
            passed.append(end)
            end = only[end][0]
        if len(passed) + 1 >= COUNTED:
            found[state] = chars, len(passed) + 1, end
            between.update(passed)
    return found, between


def run(dfa: Dfa) -> tuple[CharSet, int, int] | None:
    """(chars, low, high) if the language is all texts of low to high characters of one set."""
    chars: CharSet | None = None
    state, length = 0, 0
    low: int | None = None
    while True:
        if dfa.accepts[state] and low is None:
            low = length
        if (low is not None and not dfa.accepts[state]) or len(dfa.targets[state]) > 1:
            return None
        if not dfa.targets[state]:
            return (chars, low, length) if chars is not None and low is not None else None
        target, members = dfa.targets[state][0]
        if chars not in (None, members) or target < state:
            return None
        chars = members
        if target == state:
            return (chars, low, UNBOUNDED) if low is not None else None
        state, length = target, length + 1


def counted(nfa: Nfa, after: int, dfa: Dfa, encoding: Encoding, high: int) -> int:
    """A text the Dfa accepts with at most `high` characters, in a frame that counts them.

    A character is read only where what remains is enough to accept: no state is entered in which the text cannot end.
    """
    states = [nfa.eps(nfa.ret) if ends else nfa.eps() for ends in dfa.accepts]
    steps = [nfa.inc(_while_at_most(nfa, high, state)) for state in states]
    for state, targets in zip(states, dfa.targets, strict=True):
        for target, chars in targets:
            tick(4 + len(chars.ranges))
            room = high - 1 - (dfa.fewest[target] or 0)
            if room >= 0:
                char = nfa.byte()
                add_template(nfa, char, template(chars, encoding), steps[target])
                nfa.link(state, _while_at_most(nfa, room, char))
    return nfa.call(states[0], after)


def _while_at_most(nfa: Nfa, count: int, then: int) -> int:
    """Goes on at `then`, with the counter as it is, if that is at most `count`."""
    return nfa.test(NEVER, count + 1, then, nfa.ret)
