"""An automaton run the slow way: every configuration with its whole stack, breadth first. A judge; shares no code."""

from __future__ import annotations

import random

from imp.constrain.nfa import UNBOUNDED, Kind, Nfa

Config = tuple[int, tuple[int, ...], tuple[int, ...]]  # node, counters of all frames, where frames go on


class TooMany(Exception):
    """More configurations, or deeper stacks, than this judge follows."""


def spread(nfa: Nfa, configs: set[Config]) -> set[Config]:
    """All that is reached without a byte."""
    reached, fresh = set(configs), list(configs)
    while fresh:
        node, counters, returns = fresh.pop()
        entry = nfa.nodes[node]
        ways: list[Config] = []
        if entry.kind is Kind.EPS:
            ways = [(target, counters, returns) for _, _, target in entry.edges]
        elif entry.kind is Kind.CALL:
            ways = [(entry.a, (*counters, 0), (*returns, entry.b))]
        elif entry.kind is Kind.RET and returns:
            ways = [(returns[-1], counters[:-1], returns[:-1])]
        elif entry.kind is Kind.TEST:
            rounds = counters[-1]
            if entry.high == UNBOUNDED or rounds < entry.high:
                ways.append((entry.a, counters, returns))
            if rounds >= entry.low:
                ways.append((entry.b, (*counters[:-1], 0), returns))
        elif entry.kind is Kind.INC:
            ways = [(entry.a, (*counters[:-1], counters[-1] + 1), returns)]
        for way in ways:
            if way not in reached:
                reached.add(way)
                fresh.append(way)
        if len(reached) > 3000 or any(len(way[2]) > 60 or max(way[1]) > 60 for way in ways):
            raise TooMany
    return reached


def begin(nfa: Nfa, start: int) -> set[Config]:
    return spread(nfa, {(start, (0,), ())})


def feed(nfa: Nfa, configs: set[Config], data: bytes) -> set[Config]:
    for byte in data:
        moved = {
            (target, counters, returns)
            for node, counters, returns in configs
            if nfa.nodes[node].kind is Kind.BYTE
            for low, high, target in nfa.nodes[node].edges
            if low <= byte <= high
        }
        configs = spread(nfa, moved)
    return configs


def alive(nfa: Nfa, configs: set[Config]) -> bool:
    """Whether a byte may follow, or the text may end."""
    return ends(nfa, configs) or any(nfa.nodes[node].kind is Kind.BYTE for node, _, _ in configs)


def ends(nfa: Nfa, configs: set[Config]) -> bool:
    return any(nfa.nodes[node].kind is Kind.RET and not returns for node, _, returns in configs)


def random_nfa(draw: random.Random) -> tuple[Nfa, int]:
    """Places that lead anywhere: loops without bytes, rules without text, rules that call themselves, dead ends."""
    nfa = Nfa()
    places = [nfa.ret, *(nfa.eps() for _ in range(draw.randrange(3, 14)))]
    for place in places[1:]:
        one, other, third = (draw.choice(places) for _ in range(3))
        kind = draw.choices(["byte", "eps", "call", "repeat"], (6, 3, 2, 1))[0]
        if kind == "byte":
            nfa.link(place, nfa.byte([_edge(draw, target) for target in (one, other, third)[: draw.randrange(4)]]))
        elif kind == "eps":
            for target in (one, other, third)[: draw.randrange(4)]:
                nfa.link(place, target)
        elif kind == "call":
            nfa.link(place, nfa.call(one, other))
        else:
            nfa.link(place, nfa.call(_loop(nfa, draw, one), other))
    return nfa, draw.choice(places[1:])


def _loop(nfa: Nfa, draw: random.Random, rule: int) -> int:
    """A counted loop over letters, or over a rule, that is a rule of its own."""
    low = draw.randrange(3)
    high = draw.choice([UNBOUNDED, low + draw.randrange(3)])
    if draw.random() < 0.5:
        return nfa.repeat(low, high, nfa.ret, lambda again: nfa.byte([(97, 98, again)]))
    return nfa.repeat(low, high, nfa.ret, lambda again: nfa.call(rule, again))


def _edge(draw: random.Random, target: int) -> tuple[int, int, int]:
    low = draw.choice([97, 97, 98, 99, 0x80, 0xC3])
    return low, min(low + draw.choice([0, 0, 1, 2, 63]), 255), target
