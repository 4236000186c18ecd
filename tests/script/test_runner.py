"""The scripted model through its public door: batches in, tokens out."""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import pytest

from imp.script import vocabulary
from imp.script.file import Reply
from imp.script.runner import FAILS, NO_REPLY, WAIT_S, ScriptRunner
from imp.types import Batch, Limits, Request, Row, Sampling, Sequence

TEMPLATE = "{{ '<|im_start|>' }}"


class Clock:
    """Time that passes only where somebody sleeps."""

    def __init__(self):
        self.now = 100.0
        self.slept: list[float] = []

    def __call__(self) -> float:
        return self.now

    def sleep(self, seconds: float) -> None:
        self.slept.append(seconds)
        self.now += seconds


class Allow:
    """A constraint that always allows the same tokens."""

    done = False

    def __init__(self, *tokens: int):
        self.tokens = tokens

    def start(self):
        return self

    def ready(self) -> bool:
        return True

    def fill_mask(self, out) -> None:
        for token in self.tokens:
            out[token // 32] |= 1 << token % 32

    def accept(self, token: int) -> bool:
        return token in self.tokens

    def rollback(self, count: int) -> None: ...
    def forced(self) -> list[int]:
        return []


def runner_of(*replies: Reply, loop: bool = True):
    clock = Clock()
    tokenizer = vocabulary.tokenizer(TEMPLATE, [], [piece for reply in replies for piece in reply.pieces])
    scripted = [(reply, vocabulary.token_ids(reply.pieces, tokenizer)) for reply in replies]
    return ScriptRunner(scripted, loop, tokenizer, lambda: np.arange(tokenizer.vocab_size), clock, clock.sleep), tokenizer, clock


def sequence(tokenizer, prompt: str = "hi", index: int = 0, constraint=None, **limits):
    limits = {"max_tokens": 50, "stop_ids": tokenizer.eos_ids} | limits
    request = Request(f"r{prompt}", tuple(prompt.encode()), Sampling(), Limits(**limits), constraint=constraint)
    return Sequence(request, index, 0, list(request.prompt), constraint=constraint)


def step(runner, *seqs: Sequence):
    batch = Batch([Row(seq, 0, len(seq.tokens) + len(seq.draft)) for seq in seqs])
    results = runner.step(batch)
    for seq, result in zip(seqs, results, strict=True):
        seq.tokens += result.tokens
    return results


def said(runner, tokenizer, seq: Sequence, most: int = 60) -> str:
    """What the sequence says until its end token, an error, or `most` tokens."""
    for _ in range(most):
        [result] = step(runner, seq)
        if result.error or (result.tokens and result.tokens[0] in tokenizer.eos_ids):
            break
    return tokenizer.decode(seq.tokens[len(seq.request.prompt) :])


def test_each_piece_is_one_token_and_bytes_that_are_no_text_too():
    runner, tokenizer, _ = runner_of(Reply((b"Hello", b"\xf0\x9f", b"\xa6\x9c", b"a", b"Hello")))
    seq = sequence(tokenizer)
    assert said(runner, tokenizer, seq) == "Hello\U0001f99caHello<|endoftext|>"
    tokens = seq.tokens[2:]
    assert len(tokens) == 6 and tokens[0] == tokens[4] and tokens[3] == ord("a")
    assert tokenizer.token_bytes(tokens[1]) == b"\xf0\x9f"


def test_text_is_encoded_a_token_a_byte_and_pieces_never_occur_in_it():
    _, tokenizer, _ = runner_of(Reply((b"Hello",)))
    assert tokenizer.encode("Hello é") == list("Hello é".encode())
    assert tokenizer.encode("<|im_start|>x", parse_special=True) == [tokenizer.token_id("<|im_start|>"), ord("x")]
    assert len(tokenizer.encode("<|im_start|>")) == len("<|im_start|>")


def test_a_piece_spelled_like_a_control_token_is_that_token():
    runner, tokenizer, _ = runner_of(Reply((b"a", b"<|im_start|>")))
    seq = sequence(tokenizer)
    said(runner, tokenizer, seq)
    assert (
        tokenizer.token_id("<|im_start|>") in tokenizer.special_ids and tokenizer.token_id("<|im_start|>") in seq.tokens
    )


@pytest.mark.parametrize(
    ("template", "tokens"),
    [
        ("{{ bos_token }}[INST] x [/INST]", ["[INST]", "[/INST]"]),
        ("<start_of_turn>user<end_of_turn>", ["<start_of_turn>", "<end_of_turn>"]),
        ("<|start_header_id|>{{ m['role'] }}<|end_header_id|>", ["<|start_header_id|>", "<|end_header_id|>"]),
        ("{% if a <b> c %}<extra_id_0>System", ["<extra_id_0>"]),
        ("<｜User｜>", ["<｜User｜>"]),
        ("{{ tools | tojson }} <tool_call> [messages[0]]", []),
    ],
)
def test_control_tokens_are_found_in_templates(template, tokens):
    assert vocabulary.control_tokens(template) == tokens


def test_replies_are_taken_in_order_by_choice_and_come_again():
    runner, tokenizer, _ = runner_of(Reply((b"one",)), Reply((b"two",)))
    seqs = [sequence(tokenizer, "a"), sequence(tokenizer, "b", 0), sequence(tokenizer, "b", 1)]
    assert [said(runner, tokenizer, seq) for seq in seqs] == [f"{text}<|endoftext|>" for text in ("one", "two", "one")]
    assert [(e["prompt"], e["choice"], e["reply"]) for e in runner.log] == [("a", 0, 0), ("b", 0, 1), ("b", 1, 0)]


def test_without_loop_the_replies_run_out():
    runner, tokenizer, _ = runner_of(Reply((b"one",)), loop=False)
    said(runner, tokenizer, sequence(tokenizer))
    assert step(runner, sequence(tokenizer, "b"))[0].error == NO_REPLY
    assert runner.log[-1]["reply"] is None


def test_a_reply_with_an_error_fails_after_its_pieces_and_alone():
    runner, tokenizer, _ = runner_of(Reply((b"x",), error="engine_step_failed"), Reply((b"y", b"z")))
    bad, good = sequence(tokenizer, "a"), sequence(tokenizer, "b")
    assert [r.error for r in step(runner, bad, good)] == ["", ""]
    results = step(runner, bad, good)
    assert [r.error for r in results] == [FAILS, ""] and not results[0].tokens and results[1].tokens


def test_a_delay_holds_up_its_own_sequence_alone():
    runner, tokenizer, clock = runner_of(Reply((b"s", b"l"), delay_s=1.0, first_delay_s=10.0), Reply((b"q",) * 5))
    slow, quick = sequence(tokenizer, "a"), sequence(tokenizer, "b")
    for i in range(4):
        results = step(runner, slow, quick)
        assert not results[0].tokens and len(results[1].tokens) == 1 and quick.generated == i + 1
    assert clock.slept == []
    results = step(runner, slow)
    assert not results[0].tokens and clock.slept == [WAIT_S]  # nobody is due, and letters are not kept waiting
    clock.now = 109.999
    step(runner, slow)
    assert clock.slept[-1] == pytest.approx(0.001) and clock.now == pytest.approx(110)
    clock.now = 110.0
    assert step(runner, slow)[0].tokens
    clock.now = 110.9
    assert not step(runner, slow)[0].tokens
    clock.now = 111.0
    assert step(runner, slow)[0].tokens


def test_an_endless_reply_repeats():
    runner, tokenizer, _ = runner_of(Reply((b"ab", b"c"), endless=True))
    assert said(runner, tokenizer, sequence(tokenizer), most=7) == "abcabcabcab"


@pytest.mark.parametrize("limits", [{"min_tokens": 5}, {"stop_ids": frozenset()}])
def test_a_request_that_must_go_on_hears_the_pieces_again(limits):
    runner, tokenizer, _ = runner_of(Reply((b"ab", b"c")))
    assert said(runner, tokenizer, sequence(tokenizer, **limits), most=5) == "abcabcab"


def test_an_end_token_in_the_script_is_not_said_too_early():
    runner, tokenizer, _ = runner_of(Reply((b"<|endoftext|>",)))
    seq = sequence(tokenizer, min_tokens=2)
    assert said(runner, tokenizer, seq) == '""<|endoftext|>'


def test_a_forbidden_piece_is_replaced_by_what_ends_the_text_soonest():
    runner, tokenizer, _ = runner_of(Reply((b"forbidden", b"b", b"forbidden")))
    end = tokenizer.eos_id
    assert step(runner, sequence(tokenizer, constraint=Allow(*b"ba\t ")))[0].tokens == list(b"a")
    assert step(runner, sequence(tokenizer, constraint=Allow(*b'\t a}"')))[0].tokens == list(b'"')
    assert step(runner, sequence(tokenizer, constraint=Allow(9, end, *b'"')))[0].tokens == [end]
    assert step(runner, sequence(tokenizer, constraint=Allow(9, 10)))[0].tokens == [9]
    seq = sequence(tokenizer, constraint=Allow(*b"abc"))
    assert said(runner, tokenizer, seq, most=4) == "abaa"


class Spells(Allow):
    """A constraint that allows one text, token by token."""

    def __init__(self, tokens: list[int]):
        self.left = list(tokens)
        self.taken: list[int] = []

    @property
    def tokens(self):
        return self.left[:1]

    @property
    def done(self):
        return not self.left

    def accept(self, token: int) -> bool:
        if token != self.left[0]:
            return False
        self.taken.append(self.left.pop(0))
        return True

    def rollback(self, count: int) -> None:
        for _ in range(count):
            self.left.insert(0, self.taken.pop())


@pytest.mark.parametrize("guessed", range(5))
def test_guesses_are_followed_as_far_as_they_are_right(guessed):
    runner, tokenizer, _ = runner_of(Reply((b"a", b"b", b"c", b"d")))
    for constraint in (None, Spells(list(b"abcd"))):
        seq = sequence(tokenizer, constraint=constraint)
        seq.draft = [*b"abcd"[:guessed], *b"xyz"][:4]
        [result] = step(runner, seq)
        end = [tokenizer.eos_id] if constraint is None else []  # the constraint is done by then
        assert result.tokens == [*b"abcd", *end][: guessed + 1]
        assert constraint is None or constraint.left == list(b"abcd")  # the scheduler advances it, nobody else


def test_what_was_guessed_before_a_failure_is_said():
    runner, tokenizer, _ = runner_of(Reply((b"a", b"b"), error="engine_step_failed"))
    seq = sequence(tokenizer)
    seq.draft = list(b"ab")
    [result] = step(runner, seq)
    assert (result.tokens, result.error) == (list(b"ab"), "")
    seq.draft = []
    assert step(runner, seq)[0].error == FAILS


def test_prompts_that_want_no_token_take_no_reply():
    runner, tokenizer, _ = runner_of(Reply((b"x",)))
    assert step(runner, sequence(tokenizer, max_tokens=0))[0].tokens == []
    assert runner.log[0]["reply"] is None
    assert said(runner, tokenizer, sequence(tokenizer, "b")).startswith("x")


@pytest.mark.parametrize("own", [-0.1, -0.7, -3.0, -20.0, 0.0])
def test_log_probabilities_are_those_of_a_distribution(own):
    runner, tokenizer, _ = runner_of(Reply((b"xyz",), logprob=own))
    seq = sequence(tokenizer)
    seq.request = replace(seq.request, sampling=Sampling(logprobs=20))
    [report] = step(runner, seq)[0].logprobs
    assert report.logprob == own and len(report.top) == 20
    values = [value for _, value in report.top]
    assert values == sorted(values, reverse=True) and len({token for token, _ in report.top}) == 20
    assert sum(map(math.exp, values)) <= 1 + 1e-9
    better = sum(value > own for token, value in report.top if token != report.token)
    assert report.rank == better + 1 if better < 20 else report.rank > 20


def test_a_sequence_that_is_gone_is_forgotten():
    runner, tokenizer, _ = runner_of(Reply((b"x",), endless=True))
    for i in range(50):
        step(runner, sequence(tokenizer, str(i)))
    assert len(runner._progress) <= 1
