"""What a step's arrays say of its positions: which are outputs', which are prompts', and in which order they come."""

from __future__ import annotations

import numpy as np

from imp.model.inputs import StepInputs, outputs_first, pack, packed, prompt_inputs
from imp.model.runner import ModelRunner
from imp.model.sampling import Drawn, SamplingPlan, reference_sample
from imp.types import Batch, Request, Row, Sampling, Sequence

NAMES = "abcdef"


def row(name: str, prompt: int, tokens: int, start: int, count: int) -> Row:
    """Of a sequence whose tokens tell its name and their positions."""
    known = [100 * NAMES.index(name) + i for i in range(tokens)]
    request = Request(name, tuple(known[:prompt]), Sampling(temperature=0))
    return Row(Sequence(request, 0, 0, known, blocks=[8 * NAMES.index(name) + i for i in range(8)]), start, count)


def test_positions_of_outputs_come_before_those_of_prompts():
    rows = [row("a", 3, 5, 4, 1), row("b", 4, 8, 4, 3), row("c", 6, 6, 2, 4), row("d", 2, 2, 1, 1)]
    inputs = pack(Batch(rows), 4)
    assert inputs.prompts_from == 4
    assert inputs.tokens.tolist() == [4, 104, 105, 106, 202, 203, 204, 205, 301]


def test_rows_of_outputs_are_put_first_and_keep_their_order_otherwise():
    rows = [row("a", 3, 3, 2, 1), row("b", 2, 5, 4, 1), row("c", 9, 9, 0, 5), row("d", 1, 6, 1, 4)]
    assert [each.seq.request.id for each in outputs_first(rows)] == ["b", "d", "a", "c"]


def test_a_step_of_one_kind_says_which():
    assert pack(Batch([row("a", 3, 5, 4, 1)]), 4).prompts_from == 1
    assert pack(Batch([row("a", 5, 5, 0, 5)]), 4).prompts_from == 0
    assert prompt_inputs(range(8), 2, 6, 4).prompts_from == 0


def test_of_arrays_made_by_hand_nothing_is_a_prompt_unless_said():
    arrays = [packed(values) for values in ((1, 2), (0, 1), (0, 1), (0, 2), (2,), (0, 1), (0,), ())]
    assert StepInputs(*arrays).prompts_from == 2
    assert StepInputs(*arrays, prompts_from=1).prompts_from == 1


class Echo:
    """A backend whose tokens are 1 more than what they follow."""

    aside = None

    def __init__(self) -> None:
        self.seen: list[StepInputs] = []

    def run(self, inputs: StepInputs) -> np.ndarray:
        self.seen.append(inputs)
        logits = np.zeros((len(inputs.wanted), 1000), np.float32)
        logits[np.arange(len(inputs.wanted)), inputs.tokens[inputs.wanted] + 1] = 1.0
        return logits

    def hidden(self) -> np.ndarray:
        return np.zeros((0, 1), np.float32)

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        return reference_sample(logits, plan)


def test_results_are_in_the_order_of_the_batch_whatever_order_it_is_computed_in():
    backend = Echo()
    rows = [row("a", 3, 3, 2, 1), row("b", 2, 5, 4, 1), row("c", 9, 9, 0, 5), row("d", 1, 6, 1, 5)]
    results = ModelRunner(backend, 1000, 4).step(Batch(rows))
    assert [result.tokens for result in results] == [[3], [105], [], [306]]
    [inputs] = backend.seen
    assert inputs.prompts_from == 6 and inputs.tokens.tolist() == [104, 301, 302, 303, 304, 305, 2, 200, 201, 202, 203, 204]
