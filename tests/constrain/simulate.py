"""A naive simulator of the byte automaton, written from its description in nfa.py: sets of configurations, no caches."""

from __future__ import annotations

from imp.constrain.nfa import UNBOUNDED, Kind, Nfa

Stack = tuple | None
Config = tuple[int, int, Stack]
ACCEPT: Config = (-1, 0, None)


def closure(nfa: Nfa, configs: set[Config]) -> frozenset[Config]:
    """What is reachable without a byte; kept are BYTE nodes and ACCEPT."""
    seen, work, kept = set(configs), list(configs), set()
    while work:
        config = work.pop()
        place, count, stack = config
        if nfa.nodes[place].kind == Kind.LAZY:
            nfa.lower(place)
        node = nfa.nodes[place]
        found: list[Config] = []
        match node.kind:
            case Kind.BYTE:
                kept.add(config)
            case Kind.EPS:
                found = [(target, count, stack) for _, _, target in node.edges]
            case Kind.CALL:
                tail = nfa.nodes[node.b].kind == Kind.RET
                found = [(node.a, 0, stack if tail else (node.b, count, stack))]
            case Kind.RET:
                if stack is None:
                    kept.add(ACCEPT)
                else:
                    found = [stack]
            case Kind.TEST:
                if node.high == UNBOUNDED or count < node.high:
                    found.append((node.a, count, stack))
                if count >= node.low:
                    found.append((node.b, 0, stack))
            case Kind.INC:
                test = nfa.nodes[node.a]
                count += 1
                found = [(node.a, min(count, test.low) if test.high == UNBOUNDED else count, stack)]
        for config in found:
            if config not in seen:
                seen.add(config)
                work.append(config)
    return frozenset(kept)


def begin(nfa: Nfa, start: int) -> frozenset[Config]:
    return closure(nfa, {(start, 0, None)})


def step(nfa: Nfa, state: frozenset[Config], byte: int) -> frozenset[Config]:
    return closure(
        nfa,
        {
            (target, count, stack)
            for place, count, stack in state
            if place >= 0
            for first, last, target in nfa.nodes[place].edges
            if first <= byte <= last
        },
    )


def run(nfa: Nfa, start: int, data: bytes) -> frozenset[Config]:
    state = begin(nfa, start)
    for byte in data:
        state = step(nfa, state, byte)
    return state


def accepts(nfa: Nfa, start: int, data: bytes) -> bool:
    return ACCEPT in run(nfa, start, data)


def live_bytes(nfa: Nfa, state: frozenset[Config]) -> set[int]:
    return {
        byte
        for place, _, _ in state
        if place >= 0
        for first, last, _ in nfa.nodes[place].edges
        for byte in range(first, last + 1)
    }


def reachable(nfa: Nfa, start: int, limit: int = 20_000) -> dict[frozenset[Config], set[frozenset[Config]]]:
    """Every state and its successors; for automata with few states."""
    first = begin(nfa, start)
    graph: dict[frozenset[Config], set[frozenset[Config]]] = {}
    work = [first]
    while work:
        state = work.pop()
        if state in graph:
            continue
        assert len(graph) < limit
        graph[state] = {step(nfa, state, byte) for byte in live_bytes(nfa, state)}
        work += graph[state]
    return graph


def dead_ends(nfa: Nfa, start: int) -> int:
    """How many reachable states can never accept."""
    graph = reachable(nfa, start)
    alive = {state for state in graph if ACCEPT in state}
    grown = True
    while grown:
        more = {state for state, targets in graph.items() if state not in alive and targets & alive}
        alive |= more
        grown = bool(more)
    return len(graph) - len(alive)
