"""The gate against lost speed, on figures made up here: what it calls a loss does not depend on luck or on load."""

from __future__ import annotations

import random
import subprocess
import sys

import pytest

from bench import gate
from bench.gate import LEAST, MOST_ROUNDS, ROUNDS, TURNS, judged, lost, turn_ratio

CASES = ("pp128", "tg24", "Q4_0*1")


class Machine:
    """Pairs of processes on a machine that does other things: a turn takes up to three times as long, a process is some
    percent faster or slower than its twin, and a case of the new revision has `speed` of the base's."""

    def __init__(self, seed: int, speed: dict[str, float]) -> None:
        self.rng, self.speed, self.asked = random.Random(seed), speed, []

    def measure(self, cases):
        self.asked.append(tuple(cases))
        return {case: self.ratio(self.speed.get(case, 1.0)) for case in cases}

    def ratio(self, speed: float) -> float:
        twin = self.rng.gauss(1, 0.02)
        turns = [(self.turn(), self.turn() / speed * twin) for _ in range(TURNS)]
        return turn_ratio(*zip(*turns, strict=True))

    def turn(self) -> float:
        return 0.1 * self.rng.lognormvariate(0, 0.06) * self.rng.choice((1, 1, 1, 1, 1.5, 3))


@pytest.mark.parametrize("seed", range(50))
def test_a_kernel_that_is_a_fifth_slower_fails(seed):
    machine = Machine(seed, {"tg24": 1 / 1.2})
    assert lost(judged(machine.measure, CASES)) == ["tg24"]


@pytest.mark.parametrize("seed", range(50))
def test_the_same_code_passes_whatever_else_the_machine_does(seed):
    assert lost(judged(Machine(seed, {}).measure, CASES)) == []


def test_a_twentieth_is_no_loss_and_an_eighth_is_one():
    exact = {"pp128": 0.95, "tg24": 1 / 1.125}
    assert lost(judged(lambda cases: {case: exact.get(case, 1.0) for case in cases}, CASES)) == ["tg24"]


def test_who_is_under_suspicion_is_measured_again_alone():
    machine = Machine(1, {"tg24": 0.5})
    ratios = judged(machine.measure, CASES)
    assert machine.asked == [CASES] * ROUNDS + [("tg24",)] * (MOST_ROUNDS - ROUNDS)
    assert len(ratios["pp128"]) == ROUNDS and len(ratios["tg24"]) == MOST_ROUNDS


def test_a_loss_that_does_not_come_again_is_none():
    answers = iter([0.8, 0.8, 1.0, 1.0, 1.0])
    ratios = judged(lambda cases: {"pp128": next(answers)}, ["pp128"])
    assert ratios == {"pp128": [0.8, 0.8, 1.0, 1.0]} and not lost(ratios)


def test_what_was_disturbed_does_not_count():
    assert turn_ratio([1.0, 9.0, 9.0, 9.0], [30.0, 30.0, 2.0, 30.0]) == 0.5
    assert turn_ratio([1.0, 3.0, 9.0, 9.0, 9.0], [4.0, 4.0, 5.0, 6.0, 7.0]) == 0.5  # of five, the fastest two
    assert LEAST == 0.9


def test_the_base_is_a_revision_and_its_files_are_had():
    if not gate.known(gate.BASE):
        pytest.skip("a shallow clone")
    assert not gate.known("0" * 40)
    with gate.tree_of(gate.BASE) as tree:
        assert (tree / "imp" / "cpu" / "threads.py").is_file() and (tree / "bench" / "model.py").is_file()
    assert not tree.exists()


def test_a_side_that_dies_is_an_error(tmp_path):
    with (
        gate.Worker(tmp_path, tmp_path / "no.gguf", 1) as worker,
        pytest.raises(RuntimeError, match="ended with status"),
    ):
        worker.answer()


def test_a_clone_without_the_base_says_that_nothing_was_compared():
    command = [sys.executable, "-m", "bench.gate", "--base", "0" * 40]
    done = subprocess.run(command, cwd=gate.ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and done.stdout.startswith("NOT COMPARED")
