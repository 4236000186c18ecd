"""What speculation gains on the real model, what it never costs, and that it changes no output and no distribution.

Speeds are compared on one server, request against request: `"speculative": false` is the other side of each pair. What
else runs on the machine only ever takes time away, so the fastest of each side's rounds are compared; medians are shown.
"""

from __future__ import annotations

import json
import math
import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

import httpx
import jsonschema
import pytest

from imp.cpu.backend import CpuBackend
from imp.model import arch
from imp.model.ops import StepLimits
from imp.model.runner import ModelRunner
from imp.sched.blocks import BlockPool
from imp.sched.scheduler import Scheduler
from imp.sched.speculation import Speculation
from imp.speculate.lookup import SuffixLookup
from imp.types import Delta, Drafting, Finished, Limits, Request, Sampling
from tests.model import tiny
from tests.model.test_arch import checkpoint
from tests.real.process import ServerProcess, server
from tests.real.prompts import PROMPTS
from tests.realmodel import smollm2
from tests.toys import ToyDecoder

LEAST_GAIN, LEAST_ACCEPTED, LEAST_ESSAY = 1.8, 0.5, 0.97
SAMPLES = 24_000

NAMES = ["apple", "banana", "cherry", "grape", "lemon", "mango", "melon", "olive", "orange", "peach"]
CONFIG = "\n".join(
    f'[{name}]\nhost = "{name}.example.org"\nport = {8000 + i}\ndebug = false\nretries = 3\n'
    for i, name in enumerate(NAMES)
)
EDIT = f"Rewrite this configuration file with debug = true in every section, and everything else unchanged:\n\n{CONFIG}"
ESSAYS = (
    "Write a long essay about the history of the sea trade in Europe.",
    "Explain how a violin is made, from the tree to the concert hall.",
    "Tell the story of a lighthouse keeper who finds a letter in a bottle.",
)


@pytest.fixture(scope="module")
def running() -> Iterator[ServerProcess]:
    with server("--model", str(smollm2()), "--served-model-name", "smollm2") as process:
        yield process


@dataclass(frozen=True)
class Answer:
    text: str
    tokens: int
    rate: float  # tokens per second of decoding
    drafted: int
    accepted: int


def ask(url: str, content: str, **fields: Any) -> Answer:
    body = {"messages": [{"role": "user", "content": content}], "timings": True} | fields
    answer = httpx.post(url + "/v1/chat/completions", json=body, timeout=600)
    assert answer.status_code == 200, answer.text
    told = answer.json()
    details = told["usage"]["completion_tokens_details"]
    counts = [details.get(f"imp_spec_{name}", 0) for name in ("drafted", "accepted")]
    tokens = told["usage"]["completion_tokens"]
    return Answer(
        told["choices"][0]["message"]["content"], tokens, tokens / told["timings"]["decode_ms"] * 1e3, *counts
    )


def pairs(url: str, content: str, rounds: int, **fields: Any) -> list[tuple[Answer, Answer]]:
    """With guesses and without, alternating; the text is the same each time."""
    fields |= {"cache_prompt": False}  # an earlier answer is no help
    ask(url, content, **fields)
    found = []
    for _ in range(rounds):
        off = ask(url, content, speculative=False, **fields)
        on = ask(url, content, **fields)
        assert on.text == off.text and on.tokens == off.tokens and not off.drafted
        found.append((on, off))
    return found


def gain(found: list[tuple[Answer, Answer]], what: Callable[[Iterable[float]], float] = max) -> float:
    return what(on.rate for on, _ in found) / what(off.rate for _, off in found)


def figures(found: list[tuple[Answer, Answer]]) -> str:
    on, off = ([pair[side].rate for pair in found] for side in (0, 1))
    return (
        f"{gain(found):.3f} times (medians {gain(found, statistics.median):.3f}): {max(on):.0f} and {max(off):.0f}"
        f" tokens/s at most, {found[-1][0].accepted} of {found[-1][0].drafted} guesses right"
    )


def test_a_repetitive_edit_is_much_faster(running: ServerProcess) -> None:
    for name, fields in (("prompt", {}), ("prediction", {"prediction": {"type": "content", "content": CONFIG}})):
        found = pairs(running.url, EDIT, 9, temperature=0, max_tokens=600, **fields)
        on = found[-1][0]
        print(f"\nedit, {name}: {figures(found)}")
        assert on.accepted > LEAST_ACCEPTED * on.drafted
        assert gain(found) >= LEAST_GAIN


@pytest.mark.parametrize("essay", range(len(ESSAYS)))
def test_an_essay_is_never_slower(running: ServerProcess, essay: int) -> None:
    for temperature in (0, 1):
        found = pairs(running.url, ESSAYS[essay], 9, temperature=temperature, seed=7, max_tokens=300)
        print(f"\nessay {essay}, temperature {temperature}: {figures(found)}")
        assert gain(found) >= LEAST_ESSAY


def test_no_output_changes_greedy_or_seeded(running: ServerProcess) -> None:
    """Fifty prompts, at two temperatures, four at once; with guesses they come in other company than without."""

    def both(case: tuple[int, str]) -> tuple[int, int]:
        number, prompt = case
        accepted = 0
        for temperature in (0, 1):
            fields = {"temperature": temperature, "seed": number, "max_tokens": 120, "cache_prompt": number % 2 == 0}
            on = ask(running.url, prompt, **fields)
            off = ask(running.url, prompt, speculative=False, **fields)
            assert on.text == off.text, (prompt, temperature)
            accepted += on.accepted
        return number, accepted

    with ThreadPoolExecutor(4) as pool:
        accepted = sum(count for _, count in pool.map(both, enumerate(PROMPTS)))
    print(f"\n{len(PROMPTS)} prompts greedy and seeded: the same text, {accepted} guesses accepted")
    assert accepted > 100


def test_g04_10_wrong_json_in_the_prompt_with_eight_at_once(running: ServerProcess) -> None:
    schema = {
        "type": "object",
        "properties": {
            "name": {"type": "string", "maxLength": 30},
            "age": {"type": "integer"},
            "tags": {"type": "array", "items": {"enum": ["new", "old"]}, "maxItems": 3},
        },
        "required": ["name", "age", "tags"],
        "additionalProperties": False,
    }
    wrong = '{"name": "Ada", "age": "36", "tags": ["young"], "extra": true}\n' * 4
    form = {"type": "json_schema", "json_schema": {"name": "person", "schema": schema}}

    def one(case: tuple[int, bool]) -> str:
        prompt = f"{wrong}\nWrite a JSON object for person {case[0]} like these."
        fields = {"temperature": 0, "max_tokens": 150, "response_format": form, "speculative": case[1]}
        return ask(running.url, prompt, **fields).text

    with ThreadPoolExecutor(8) as pool:
        guessed, plain = (list(pool.map(one, ((i, on) for i in range(8)))) for on in (True, False))
    assert guessed == plain
    for text in guessed:
        jsonschema.validate(json.loads(text), schema)
    assert "ERROR" not in running.log


# -- the distribution


class Sampler:
    """A tiny model whose outputs of three tokens are drawn thousands of times."""

    LIMITS = StepLimits(tokens=640, rows=64, logit_rows=256, context=64, blocks=1024)

    def __init__(self, folder: Path) -> None:
        self.backend = CpuBackend(None, folder)
        self.backend.load(arch.build(checkpoint("llama")), self.LIMITS)
        self.folder, self.vocab = folder, tiny.CONFIGS["llama"]["vocab_size"]
        # a prompt in which much repeats itself, so that the lookup has something to say as well
        self.prompt = tuple(tiny.prompt("llama", 12) * 3)

    def draw(
        self, seeds: range, guesses: bool, temperature: float, prediction: tuple[int, ...] = ()
    ) -> tuple[list[tuple[int, ...]], int, int]:
        """Outputs of these seeds, and the guesses that were verified and right."""
        lookup = SuffixLookup(self.folder, 1, 0) if guesses else None
        scheduler = Scheduler(
            BlockPool(self.LIMITS.blocks, 16),
            context=64,
            max_rows=64,
            max_tokens=640,
            max_logit_rows=256,
            new_decoder=ToyDecoder,
            speculation=Speculation(lookup, most=3),
        )
        runner = ModelRunner(self.backend, self.vocab, 16)
        said: dict[str, tuple[int, ...]] = {}
        drafted = accepted = 0
        sampling = [Sampling(temperature=temperature, seed=seed) for seed in seeds]
        limits, drafting = Limits(3), Drafting(guesses, prediction)
        coming = iter(zip(seeds, sampling, strict=True))
        while True:
            # as many as come in in one step: there are no guesses while a short prompt waits
            for seed, each in islice(coming, 0 if scheduler.running or scheduler.waiting else 8):
                scheduler.submit(Request(str(seed), self.prompt, each, limits, drafting=drafting), 0.0)
            if (batch := scheduler.plan(0.0)) is None:
                break
            for event in scheduler.apply(batch, runner.step(batch), 0.0):
                if isinstance(event, Delta):
                    said[event.request] = said.get(event.request, ()) + event.tokens
                elif isinstance(event, Finished):
                    drafted, accepted = drafted + event.usage.drafted, accepted + event.usage.accepted
        return [said[str(seed)] for seed in seeds], drafted, accepted


def chi_squared(one: Counter[Any], other: Counter[Any]) -> float:
    """How many standard deviations the statistic of homogeneity lies above what equal distributions give, by Wilson and
    Hilferty's cube root; kinds seen less than ten times are one."""
    kinds = [kind for kind in one | other if one[kind] + other[kind] >= 10]
    columns = [(one[kind], other[kind]) for kind in kinds]
    rest = one.total() - sum(a for a, _ in columns), other.total() - sum(b for _, b in columns)
    columns += [rest] if sum(rest) >= 10 else []
    totals, everything = (one.total(), other.total()), one.total() + other.total()
    statistic = sum(
        (seen - (expected := sum(column) * total / everything)) ** 2 / expected
        for column in columns
        for seen, total in zip(column, totals, strict=True)
    )
    freedom = len(columns) - 1
    assert freedom > 10, "there is too little to compare"
    return ((statistic / freedom) ** (1 / 3) - (1 - 2 / (9 * freedom))) / math.sqrt(2 / (9 * freedom))


def test_the_distribution_at_temperature_1_is_that_without_guesses(kernel_folder: Path) -> None:
    """Each position's tokens, and whole outputs, of seeds that the other side does not have."""
    sampler = Sampler(kernel_folder)
    greedy, _, _ = sampler.draw(range(1), False, 0.0)
    plain, none, _ = sampler.draw(range(SAMPLES), False, 1.0)
    guessed, drafted, accepted = sampler.draw(range(SAMPLES, 2 * SAMPLES), True, 1.0, greedy[0])
    warmer, _, _ = sampler.draw(range(2 * SAMPLES, 3 * SAMPLES), False, 1.08)
    print(f"\n{SAMPLES} outputs of 3 tokens on each side; {accepted} of {drafted} guesses right")
    assert not none and drafted > SAMPLES / 2 and accepted > SAMPLES / 20 and drafted - accepted > SAMPLES / 20
    views = {"first": 0, "second": 1, "third": 2}
    for name, at in views.items():
        z = chi_squared(Counter(each[at] for each in plain), Counter(each[at] for each in guessed))
        print(f"{name} token: {z:+.2f} standard deviations")
        assert z < 3.1  # p = 0.001
    z = chi_squared(Counter(plain), Counter(guessed))
    print(f"whole outputs: {z:+.2f}")
    assert z < 3.1
    z = chi_squared(Counter(plain), Counter(warmer))
    print(f"at temperature 1.08, whole outputs: {z:+.2f}")
    assert z > 3.1, "the test would not notice a small difference"
    assert guessed == sampler.draw(range(SAMPLES, 2 * SAMPLES), False, 1.0)[0], "a seed gives the same tokens"
