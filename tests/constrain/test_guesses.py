"""Guesses between logits and text: with them every request says what it says without, drawn with the same numbers.

The real scheduler, lookup, runner, plan and matcher over scores made of the history, which like to go in circles, so
that many guesses are right and many are wrong.
"""

from __future__ import annotations

import json
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from imp.sched.costs import StepCosts
from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from imp.types import ConstraintKind, Drafting, Limits, Sampling
from tests.toylogits import compiler, request, stage
from tests.toys import EOS

S, R = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX
STOP = frozenset({EOS})
SAMPLINGS = {
    "greedy": Sampling(temperature=0),
    "greedy penalised": Sampling(temperature=0, repetition_penalty=1.2, presence_penalty=0.5),
    "warm": Sampling(temperature=1.0, seed=1),
    "hot": Sampling(temperature=1.9, seed=2),
    "top_k": Sampling(temperature=1.0, top_k=5, seed=3),
    "top_p": Sampling(temperature=1.1, top_p=0.8, seed=4),
    "min_p": Sampling(temperature=1.2, min_p=0.1, seed=5),
    "typical_p": Sampling(temperature=1.0, typical_p=0.7, seed=6),
    "penalties": Sampling(temperature=1.0, repetition_penalty=1.4, frequency_penalty=0.6, presence_penalty=0.4, seed=7),
    "short memory": Sampling(temperature=1.0, repetition_penalty=1.5, repeat_last_n=6, seed=8),
    "dry": Sampling(temperature=1.0, dry_multiplier=2.0, dry_breakers=frozenset({99}), seed=9),
    "xtc": Sampling(temperature=1.0, xtc_probability=0.5, seed=10),
    "bias": Sampling(temperature=1.0, bias=((97, 4.0), (98, -100.0)), seed=11),
    "banned": Sampling(temperature=1.0, banned=((97, 98), (100,)), seed=12),
    "allowed": Sampling(temperature=1.0, allowed=(*range(48, 58), *range(97, 110)), seed=13),
    "logprobs": Sampling(temperature=1.0, logprobs=3, logprob_tokens=(97, 120), seed=14),
    "mirostat": Sampling(temperature=1.0, mirostat=2, seed=15),
    "mirostat 1": Sampling(temperature=1.0, mirostat=1, seed=16),
}
CASES = {
    "free": (None, "", {"limits": Limits(50, stop_ids=STOP)}),
    "stop strings": (None, "", {"limits": Limits(60, stop_strings=("cdeb", "aaaa"), stop_ids=STOP)}),
    "stop ids": (None, "", {"limits": Limits(60, stop_ids=frozenset({EOS, 101}), min_tokens=9)}),
    "regex": (R, "([a-e]{1,4}[0-9])+", {"limits": Limits(60, stop_ids=STOP)}),
}


def circles(row: np.ndarray, last: int) -> None:
    """abcde, over and over, if nothing comes between."""
    row[97 + (last - 96) % 5 if 97 <= last < 102 else 97] += 7
    row[EOS] -= 3


@pytest.fixture(scope="module")
def made(code_folder):
    return compiler(code_folder)


@pytest.fixture
def guessing(code_folder):
    return lambda costs=None, most=8: Speculation(SuffixLookup(code_folder, 2, 4096), most=most, costs=costs)


def outputs(made, requests, speculation=None):
    driven = stage(made, taste=circles)
    if speculation is not None:
        driven.sched.speculation = speculation
    driven.submit(*requests)
    return driven.run().outputs


def same(made, requests, speculation):
    """Outputs with guesses, which are those without."""
    found = outputs(made, requests, speculation)
    assert {key: out.essence for key, out in found.items()} == {
        key: out.essence for key, out in outputs(made, requests).items()
    }
    return found


@pytest.mark.parametrize("sampling", SAMPLINGS.values(), ids=SAMPLINGS)
@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_every_sampling_draws_with_guesses_what_it_draws_without(made, guessing, sampling, case):
    """test_sampling.py holds the sampler to its definition; here each of its parts meets positions behind a guess."""
    kind, text, options = case
    asked = [
        request(made, f"r{i}", kind, text, sampling=replace(sampling, seed=sampling.seed + i), n=1 + i, **options)
        for i in range(2)
    ]
    plain = outputs(made, asked)
    nearly = [97 if i % 6 == 5 else token for i, token in enumerate(plain["r0", 0].tokens)]
    asked = [replace(each, drafting=Drafting(prediction=tuple(nearly))) for each in asked]
    found = outputs(made, asked, guessing())
    assert {key: out.essence for key, out in found.items()} == {key: out.essence for key, out in plain.items()}
    used = found["r0", 0].finished.usage
    if sampling.mirostat:
        assert not used.drafted
    else:
        assert used.accepted or used.generated < 3


def test_guesses_that_have_to_pay_change_nothing_either(made, guessing):
    asked = [
        request(made, f"r{i}", None, sampling=sampling, limits=Limits(80, stop_ids=STOP))
        for i, sampling in enumerate(SAMPLINGS.values())
    ]
    speculation = guessing(StepCosts(0.02))
    found = same(made, asked, speculation)
    drafted, accepted = (sum(getattr(out.finished.usage, name) for out in found.values()) for name in ("drafted", "accepted"))
    assert drafted > 100 and accepted > 50


def test_a_prediction_changes_nothing_however_wrong_it_is(made, guessing):
    plain = [request(made, f"r{i}", None, sampling=SAMPLINGS["warm"], limits=Limits(80, stop_ids=STOP)) for i in range(4)]
    said = {key[0]: out.tokens for key, out in outputs(made, plain).items()}
    wrong = [t if i % 7 else 97 + i % 5 for i, t in enumerate(said["r1"])]
    predictions = {"r0": said["r0"], "r1": wrong, "r2": said["r3"][::-1], "r3": [EOS] * 50}
    asked = [replace(each, drafting=Drafting(prediction=tuple(predictions[each.id]))) for each in plain]
    used = {key[0]: out.finished.usage for key, out in same(made, asked, guessing()).items()}
    assert used["r0"].predicted_accepted > 60 and used["r1"].predicted_accepted > 30
    assert used["r3"].predicted_accepted == 0


def test_g04_10_wrong_json_in_the_prompt_is_no_way_around_the_grammar(made, guessing):
    """The prompt holds almost what is wanted, a dozen times: guesses are cut at the first token the grammar refuses."""
    schema = {
        "type": "object",
        "properties": {"abc": {"type": "string", "maxLength": 20}, "cde": {"enum": ["ab", "bc"]}},
        "required": ["abc", "cde"],
        "additionalProperties": False,
    }
    wrong = b'{"abc": "abcdeab", "cde": "cd", "x": 1}\n' * 12 + b'{"abc": "'
    asked = [
        replace(request(made, f"r{i}", S, json.dumps(schema), sampling=Sampling(temperature=0)), prompt=tuple(wrong[i:]))
        for i in range(8)
    ]
    found = same(made, asked, guessing())
    drafted = 0
    for out in found.values():
        jsonschema.validate(json.loads(out.text), schema)
        drafted += out.finished.usage.drafted
    assert drafted > 50


def test_g04_10_the_search_goes_on_behind_what_is_forced(made, guessing):
    regex = r'\[\{"first": "[a-e]{2}", "second": "[a-e]{3}"\}(, \{"first": "[a-e]{2}", "second": "[a-e]{3}"\}){5}\]'
    asked = [request(made, "r", R, regex, sampling=SAMPLINGS["greedy"], limits=Limits(400, stop_ids=STOP))]
    steps, said = [], []
    for speculation in (Speculation(jump_ahead=False), Speculation(), guessing(most=16)):
        driven = stage(made, taste=circles)
        driven.sched.speculation = speculation
        driven.submit(*asked)
        said.append(driven.run()["r"].essence)
        steps.append(len(driven.batches))
    assert said[0] == said[1] == said[2]
    assert steps[2] < steps[1] < steps[0]
