"""What is computed aside in a step ends when its time is up, or nearly at once where somebody more urgent waits."""

from __future__ import annotations

import math
from types import SimpleNamespace
from typing import Any

import pytest

from imp.model import runner as module
from imp.model.runner import PART_S, ModelRunner
from imp.types import Batch, Request, Row, Sequence


class Machine:
    """Computes aside for as long as it is told, on a clock of its own; a run takes `late_s` more."""

    def __init__(self, needs_s: float, late_s: float = 0.0) -> None:
        self.now, self.needs_s, self.late_s = 0.0, needs_s, late_s
        self.asked: list[float] = []

    def perf_counter(self) -> float:
        return self.now

    def begin(self, inputs: Any) -> None:
        self.asked = []

    def hidden(self) -> None: ...

    def go_on(self, seconds: float) -> bool:
        self.asked.append(seconds)
        took = min(seconds + self.late_s, self.needs_s)
        self.now += took
        self.needs_s -= took
        return self.needs_s <= 0.0


def piece(machine: Machine, monkeypatch: pytest.MonkeyPatch, aside_s: float, hurried_at_s: float = math.inf) -> bool:
    """Whether a chunk of one prompt has been computed in a step that may spend so long aside."""
    monkeypatch.setattr(module, "time", machine)
    seq = Sequence(Request("a", (1, 2, 3)), 0, 0, [1, 2, 3], 0.0, (0.0, 0, 0))
    seq.blocks = [0]
    backend: Any = SimpleNamespace(aside=machine)
    batch = Batch([], aside=[Row(seq, 0, 2)], aside_s=aside_s, hurried=lambda: machine.now >= hurried_at_s)
    [result] = ModelRunner(backend, 10, 16)._piece(batch)
    assert batch.aside_took_s == machine.now
    return not result.pending


@pytest.mark.parametrize("needs_s", [0.5 * PART_S, PART_S, 2.5 * PART_S])
def test_what_is_computed_in_time_has_ended(needs_s, monkeypatch):
    machine = Machine(needs_s)
    assert piece(machine, monkeypatch, 10 * PART_S)
    assert machine.now == needs_s


@pytest.mark.parametrize("aside_s", [0.0, 0.3 * PART_S, PART_S, 4.3 * PART_S])
def test_it_goes_on_for_as_long_as_it_may(aside_s, monkeypatch):
    machine = Machine(1.0, late_s=0.01 * PART_S)
    assert not piece(machine, monkeypatch, aside_s)
    assert aside_s <= machine.now <= aside_s + 0.02 * PART_S


def test_it_ends_soon_after_somebody_more_urgent_has_come(monkeypatch):
    machine = Machine(1.0)
    assert not piece(machine, monkeypatch, 10 * PART_S, hurried_at_s=2.5 * PART_S)
    assert machine.now == pytest.approx(3 * PART_S)


def test_it_gets_on_a_little_where_somebody_is_there_already(monkeypatch):
    machine = Machine(1.0)
    assert not piece(machine, monkeypatch, 10 * PART_S, hurried_at_s=0.0)
    assert machine.asked == [0.0]


def test_where_nothing_decodes_it_is_computed_to_its_end(monkeypatch):
    machine = Machine(1.0)
    assert piece(machine, monkeypatch, math.inf, hurried_at_s=0.0)
    assert machine.asked == [math.inf]
