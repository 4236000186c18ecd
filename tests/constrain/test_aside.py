"""Masks that take long: worked out beside, while only the sequences that need them wait; given up when that is too long."""

from __future__ import annotations

import json
import threading
import time

import numpy as np
import pytest

from imp.constrain import aside
from imp.constrain.automaton import Grammar, Limits
from imp.constrain.clock import tick
from imp.constrain.nfa import Nfa
from imp.types import ConstraintKind, Request
from imp.types import Limits as Length
from tests.constrain.test_engine import PERSON, SEEDED, STOP
from tests.toylogits import compiler, request, stage
from tests.toys import VOCAB

S, G = ConstraintKind.JSON_SCHEMA, ConstraintKind.GRAMMAR


@pytest.fixture(scope="module")
def made(code_folder):
    return compiler(code_folder)


def slow(made, code_folder, work) -> Grammar:
    """`~x`, and `work` takes its time over what follows the `x`, which is `b` or `c`."""
    nfa = Nfa()

    def lower() -> int:
        work()
        return nfa.byte([(ord("b"), ord("c"), nfa.ret)])

    start = nfa.literal(b"~x", nfa.lazy(lower))
    return Grammar(nfa, start, made.tables, Limits(seconds=60), code_folder)


def busy(seconds: float) -> None:
    until = time.thread_time() + seconds
    while time.thread_time() < until:
        tick(8)


def wait_until_ready(matcher) -> None:
    until = time.monotonic() + 60
    while not matcher.ready():
        assert time.monotonic() < until
        time.sleep(0.001)


def letters(matcher) -> str:
    bits = matcher.grammar.tables.token_bits(matcher.row())
    return "".join(sorted(VOCAB[token].decode() for token in np.flatnonzero(bits)))


def test_what_takes_long_is_done_by_another_thread(made, code_folder):
    done_by = []

    def work() -> None:
        busy(0.05)
        done_by.append(threading.current_thread())

    matcher = slow(made, code_folder, work).start()
    assert matcher.ready() and matcher.accept(ord("~"))
    assert not matcher.ready() and not done_by
    wait_until_ready(matcher)
    assert letters(matcher) == "x" and [thread.name.startswith("masks") for thread in done_by] == [True]


def test_what_is_quick_is_done_at_once(made, code_folder):
    done_by = []
    matcher = slow(made, code_folder, lambda: done_by.append(threading.current_thread())).start()
    assert matcher.accept(ord("~")) and matcher.ready()
    assert done_by == [threading.current_thread()] and letters(matcher) == "x"


def test_while_one_mask_is_made_all_of_its_grammar_wait(made, code_folder):
    going, may_end = threading.Event(), threading.Event()

    def work() -> None:
        busy(0.01)
        if threading.current_thread() is not threading.main_thread():
            going.set()
            assert may_end.wait(60)

    grammar = slow(made, code_folder, work)
    one, other = grammar.start(), grammar.start()
    assert one.accept(ord("~")) and other.ready()
    assert not one.ready() and going.wait(60)
    assert not one.ready() and not other.ready(), "its arrays are another thread's"
    may_end.set()
    wait_until_ready(one)
    assert other.ready() and letters(other) == "~" and letters(one) == "x"


def test_whoever_can_wait_takes_it_back(made, code_folder):
    """As programs do that are no server: they ask for the mask alone."""
    grammar = slow(made, code_folder, lambda: busy(0.05))
    matcher = grammar.start()
    assert matcher.accept(ord("~")) and not matcher.ready()
    assert letters(matcher) == "x" and matcher.ready()


@pytest.mark.parametrize("why", ["time", "error"])
def test_a_mask_that_cannot_be_made_is_an_error_of_that_state_alone(made, code_folder, monkeypatch, why):
    monkeypatch.setattr(aside, "SECONDS", 0.05)

    def work() -> None:
        busy(10 if why == "time" else 0.01)
        raise MemoryError("no room")

    grammar = slow(made, code_folder, work)
    one, other = grammar.start(), grammar.start()
    assert one.accept(ord("~"))
    wait_until_ready(one)
    assert one.row() is None and ("a mask takes more than 0.05 s" if why == "time" else "no room") in one.error
    assert one.done and one.ready() and other.ready() and letters(other) == "~" and other.error is None


def test_work_beside_rests_as_it_is_told(made, code_folder):
    took = []
    grammar = slow(made, code_folder, lambda: busy(0.05))
    grammar.prepare_aside(0, took.append)
    matcher = grammar.start()
    assert matcher.accept(ord("~"))
    wait_until_ready(matcher)
    assert sum(took) > 0.03 and max(took) < 0.02


# ---- in the engine's steps


def driven(made, asked: list[Request], **options):
    found = stage(made, blocks=400, **options)
    found.submit(*asked)
    return found, found.run()


def people(made, count: int) -> list[Request]:
    length = Length(120, stop_ids=STOP)
    return [request(made, f"r{i}", S, json.dumps(PERSON | {"title": str(i)}), sampling=SEEDED, limits=length, n=1 + i % 2) for i in range(count)]


@pytest.mark.parametrize("jump", [True, False])
def test_outputs_do_not_depend_on_who_made_the_masks(code_folder, monkeypatch, jump):
    """Every new mask sits a step out: the texts, and everything else, are the same."""
    at_once, wanted = driven(compiler(code_folder), people(compiler(code_folder), 4), jump=jump)
    monkeypatch.setattr(aside, "AT_ONCE_S", 0.0)
    made = compiler(code_folder)
    found, transcript = driven(made, people(made, 4), jump=jump)
    assert {key: out.essence for key, out in transcript.outputs.items()} == {key: out.essence for key, out in wanted.outputs.items()}
    assert len(found.batches) > len(at_once.batches), "nobody waited"


def test_others_go_on_while_a_mask_is_made(made, code_folder):
    """A step takes no time here, so that all others have ended before the mask is there."""
    free = [request(made, f"free{i}", None, limits=Length(40)) for i in range(3)]
    may_end = threading.Event()

    def work() -> None:
        busy(0.01)
        if threading.current_thread() is not threading.main_thread():
            assert may_end.wait(60)

    held = request(made, "held", None, limits=Length(20))
    held = Request(held.id, held.prompt, held.sampling, held.limits, constraint=slow(made, code_folder, work))
    found = stage(made, blocks=400)
    found.submit(held, *free)
    until = time.monotonic() + 60
    while len(found.transcript.outputs) < 4 or not all(found.transcript[each.id].finished for each in free):
        found.step()
        assert time.monotonic() < until
    assert found.transcript["held"].finished is None and found.transcript["held"].text == "~"
    may_end.set()
    assert found.run()["held"].text in ("~xb", "~xc")


def test_a_mask_that_takes_too_long_ends_its_request_alone(made, code_folder, monkeypatch):
    monkeypatch.setattr(aside, "SECONDS", 0.05)
    free = request(made, "free", None, limits=Length(400))
    held = request(made, "held", None, limits=Length(20))
    held = Request(held.id, held.prompt, held.sampling, held.limits, constraint=slow(made, code_folder, lambda: busy(10)))
    _, transcript = driven(made, [held, free])
    assert "a mask takes more than" in transcript.failed["held"].message
    assert transcript["free"].finished.usage.generated == 400
