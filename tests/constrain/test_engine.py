"""Constraints between logits and text: the real scheduler, runner, plan and matcher over scores made of the history.

What each sampling field means beside a constraint is in docs/CONSTRAINTS.md; here is the proof.
"""

from __future__ import annotations

import json
import random
import re
from dataclasses import replace

import jsonschema
import numpy as np
import pytest

from imp.constrain.nfa import Nfa
from imp.constrain.reference import Reference
from imp.constrain.schema import compile_schema
from imp.types import ConstraintKind, Limits, Reason, Request, Sampling
from tests.toylogits import compiler, likes, request, stage
from tests.toys import BOS, EOS, VOCAB, unsuspecting

S, R, C, G = ConstraintKind.JSON_SCHEMA, ConstraintKind.REGEX, ConstraintKind.CHOICE, ConstraintKind.GRAMMAR
STOP = frozenset({EOS})
PERSON = {
    "type": "object",
    "properties": {
        "full_name": {"type": "string", "maxLength": 12},
        "age_in_years": {"type": "integer", "minimum": 0, "maximum": 150},
        "tags": {"type": "array", "items": {"enum": ["one", "two"]}, "maxItems": 3},
    },
    "required": ["full_name", "age_in_years", "tags"],
    "additionalProperties": False,
}
GREEDY, SEEDED = Sampling(temperature=0.0), Sampling(temperature=1.2, seed=7)


@pytest.fixture(scope="module")
def made(code_folder):
    return compiler(code_folder)


def only(made, kind: ConstraintKind | None, text: object, *, taste=lambda row, last: None, jump: bool = True, **options):
    """What one request alone gives."""
    spec = text if isinstance(text, str) else json.dumps(text)
    driven = stage(made, taste=taste, jump=jump)
    driven.submit(request(made, "r", kind, spec, **options))
    return driven.run()["r"]


def begins(schema: object, text: str) -> bool:
    nfa = Nfa()
    reference = Reference(nfa, compile_schema(schema, nfa))
    return bool(reference.advance(reference.first, text.encode()))


def eos_lover(row: np.ndarray, last: int) -> None:
    row[EOS] += 40


def eos_hater(row: np.ndarray, last: int) -> None:
    row[EOS] = -np.inf


# ---- every row of every batch


def test_constrained_and_free_rows_share_batches_and_do_not_notice(made):
    kinds = [(S, json.dumps(PERSON)), (None, ""), (R, "[0-9]{3,9}"), (C, '["one", "two"]'), (G, 'root ::= ("x" | "yz")+'), (None, "")]
    asked = [
        request(made, f"{i}-{seed}", kind, text, sampling=Sampling(temperature=1.0, seed=seed), limits=Limits(60, stop_ids=STOP), prompt=5 + 7 * seed)
        for seed in range(3)
        for i, (kind, text) in enumerate(kinds)
    ]
    together = stage(made, blocks=400, max_tokens=24)  # prompts in chunks, between rows that decode
    together.submit(*asked)
    transcript = together.run()
    assert any(len({count > 1 for _, _, count in batch}) == 2 for batch in together.batches), "no mixed batch"
    for each in asked:
        alone = stage(made)
        alone.submit(each)
        assert transcript[each.id].essence == alone.run()[each.id].essence


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED, replace(SEEDED, logprobs=3)], ids=["greedy", "seeded", "logprobs"])
def test_g04_10_forced_drafts_never_change_the_output(made, sampling):
    outputs = []
    for jump in (True, False):
        driven = stage(made, jump=jump, blocks=400)
        for i in range(8):
            asked = replace(sampling, seed=i)
            driven.submit(request(made, f"r{i}", S, json.dumps(PERSON), sampling=asked, limits=Limits(200, stop_ids=STOP), n=2))
        transcript = driven.run()
        outputs.append({key: out.essence for key, out in transcript.outputs.items()})
        drafted = sum(out.finished.usage.drafted for out in transcript.outputs.values())
        accepted = sum(out.finished.usage.accepted for out in transcript.outputs.values())
        assert (drafted > 0) == jump and accepted == drafted
        steps = len(driven.batches)
        for out in transcript.outputs.values():
            if out.finished.reason is Reason.STOP:
                jsonschema.validate(json.loads(out.text), PERSON)
    assert outputs[0] == outputs[1]
    assert steps > 0


def test_mirostat_takes_no_drafts(made):
    sampling = Sampling(temperature=1.0, mirostat=2, seed=3)
    on, off = (only(made, S, PERSON, sampling=sampling, jump=jump) for jump in (True, False))
    assert on.essence == off.essence and on.finished.usage.drafted == 0


def test_preemption_is_invisible(made):
    asked = [request(made, f"r{i}", S, json.dumps(PERSON), sampling=Sampling(temperature=1.0, seed=i), limits=Limits(120, stop_ids=STOP)) for i in range(5)]
    tight, wide = unsuspecting(stage(made, blocks=50)), stage(made, blocks=400)
    for driven in (tight, wide):
        driven.submit(*asked)
    narrow, roomy = tight.run(), wide.run()
    assert tight.sched.snapshot().preemptions > 0
    for each in asked:
        assert narrow[each.id].essence == roomy[each.id].essence


def test_sequences_of_one_request_go_their_own_ways(made):
    driven = stage(made)
    driven.submit(request(made, "r", R, "[a-z]{6}", sampling=Sampling(temperature=2.0), n=4))
    transcript = driven.run()
    texts = [transcript["r", i].text for i in range(4)]
    assert len(set(texts)) > 1 and all(re.fullmatch("[a-z]{6}", text) for text in texts)


# ---- where a text ends


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_the_end_may_be_drawn_exactly_where_nothing_is_missing(made, sampling):
    out = only(made, R, "a{3,9}", taste=eos_lover, sampling=sampling)
    assert out.text == "aaa" and (out.finished.reason, out.finished.stop) == (Reason.STOP, None)
    assert EOS not in out.tokens and out.finished.usage.generated == 4
    out = only(made, R, "a{3,9}", taste=eos_hater, sampling=sampling)
    assert out.text == "a" * 9 and (out.finished.reason, out.finished.stop) == (Reason.STOP, None)
    assert out.finished.usage.generated == 9  # complete without an end token


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_ignore_eos_ends_a_constrained_text_where_it_may_end(made, sampling):
    """There is no text behind the end of a constraint, so its end is not ignored."""
    ignoring = Limits(50, stop_ids=frozenset())
    out = only(made, R, "(ab){2,}", taste=eos_lover, sampling=sampling, limits=ignoring)
    assert out.text == "abab" and out.finished.reason is Reason.STOP and EOS not in out.tokens
    out = only(made, R, "(ab){2,}", taste=eos_hater, sampling=sampling, limits=ignoring)
    assert out.text == "ab" * 25 and out.finished.reason is Reason.LENGTH


@pytest.mark.parametrize("count", [0, 1, 5, 17, 30])
def test_g04_13_max_tokens_leaves_a_valid_prefix(made, count):
    out = only(made, S, PERSON, taste=eos_hater, limits=Limits(count, stop_ids=STOP))
    assert out.finished.reason is Reason.LENGTH and out.finished.usage.generated == count and begins(PERSON, out.text)


@pytest.mark.parametrize("jump", [True, False])
def test_g04_13_stop_strings_cut_as_the_client_wished(made, jump):
    out = only(made, S, PERSON, sampling=SEEDED, jump=jump, limits=Limits(200, stop_ids=STOP, stop_strings=("age_in",)))
    assert (out.finished.reason, out.finished.stop) == (Reason.STOP, "age_in") and out.text.rstrip().endswith('"')
    out = only(made, R, "(ab){3}", jump=jump, limits=Limits(50, stop_ids=STOP, stop_strings=("b",)))
    assert (out.text, out.finished.reason, out.finished.stop) == ("a", Reason.STOP, "b")


def test_a_stop_token_ends_where_the_constraint_lets_it_through(made):
    out = only(made, R, "[ab]{2}-[ab]{2}", limits=Limits(50, stop_ids=STOP | {ord("-")}))
    assert len(out.text) == 2 and out.finished.stop == ord("-")


def test_min_tokens_holds_the_end_off_where_the_text_can_go_on(made):
    out = only(made, R, "a*", taste=eos_lover, sampling=GREEDY, limits=Limits(50, 5, STOP))
    assert out.text == "aaaaa" and out.finished.reason is Reason.STOP
    out = only(made, C, '["ab"]', limits=Limits(50, 10, STOP))
    assert out.text == "ab" and out.finished.reason is Reason.STOP  # complete: nothing can follow


# ---- beside other wishes


def test_biases_choose_among_what_is_allowed(made):
    for word in ("yes", "no"):
        sampling = Sampling(temperature=1.0, bias=((ord(word[0]), 100.0), (ord("x"), 100.0), (EOS, 100.0)))
        assert only(made, C, '["yes", "no"]', sampling=sampling).text == word


def test_what_a_request_forbids_itself_ends_with_an_error_for_it_alone(made):
    for sampling in (
        Sampling(temperature=0.0, banned=((ord("b"),),)),
        Sampling(temperature=1.0, allowed=(ord("a"), ord("c"))),
    ):
        driven = stage(made)
        driven.submit(request(made, "bad", R, "ab", sampling=sampling), request(made, "good", R, "ab"))
        transcript = driven.run()
        assert transcript.failed["bad"].code == "unsatisfiable_constraint"
        assert "cannot be continued in the required format" in transcript.failed["bad"].message
        assert transcript["good"].text == "ab"


def test_a_constraint_that_becomes_too_ambiguous_ends_its_request_alone_and_says_so(made):
    """Three counted loops in one another: after k letters there are k * k * k / 6 ways to have counted them."""
    grammar = 'root ::= s{1,900}\ns ::= r{1,900}\nr ::= "a"{1,900}'
    driven = stage(made, taste=likes("a", 50), blocks=200)
    driven.submit(request(made, "bad", G, grammar, limits=Limits(500)), request(made, "good", R, "ab"))
    transcript = driven.run()
    assert transcript.failed["bad"].code == "constraint_too_large"
    assert transcript.failed["bad"].message.endswith("too ambiguous")
    assert transcript["good"].text == "ab"


SAMPLERS = [
    {"min_p": 0.9},
    {"top_k": 1},
    {"top_p": 0.01},
    {"typical_p": 0.05},
    {"xtc_probability": 1.0, "xtc_threshold": 0.01},
    {"mirostat": 1},
    {"mirostat": 2, "mirostat_tau": 0.1},
    {"dry_multiplier": 50.0, "dry_allowed_length": 1},
    {"repetition_penalty": 50.0, "frequency_penalty": 2.0, "presence_penalty": 2.0},
    {"temperature": 50.0},
    {"temperature": 0.0, "repetition_penalty": 0.01},
]


@pytest.mark.parametrize("fields", SAMPLERS, ids=str)
def test_no_sampler_leads_out_of_the_language(made, fields):
    driven = stage(made, blocks=600, max_rows=16, max_tokens=128)
    sampling = replace(Sampling(temperature=1.0), **fields)
    for i in range(4):
        driven.submit(request(made, f"s{i}", S, json.dumps(PERSON), sampling=replace(sampling, seed=i), limits=Limits(300, stop_ids=STOP)))
        driven.submit(request(made, f"r{i}", R, "(one| two|[a-c]+;){2,5}", sampling=replace(sampling, seed=i), limits=Limits(80, stop_ids=STOP)))
    transcript = driven.run()
    assert not transcript.failed
    for i in range(4):
        out, other = transcript[f"s{i}"], transcript[f"r{i}"]
        assert begins(PERSON, out.text)
        if out.finished.reason is Reason.STOP:
            jsonschema.validate(json.loads(out.text), PERSON)
        if other.finished.reason is Reason.STOP:
            assert re.fullmatch("(one| two|[a-c]+;){2,5}", other.text)


def test_logprobs_are_the_models_own_whatever_is_allowed(made):
    out = only(made, C, '["yes", "no"]', sampling=Sampling(temperature=1.0, logprobs=5))
    free = only(made, None, "", sampling=Sampling(temperature=0.0, logprobs=5), limits=Limits(1))
    assert len(out.logprobs) == len(out.tokens) and out.logprobs[0].top == free.logprobs[0].top
    assert out.logprobs[0].logprob <= free.logprobs[0].logprob and out.logprobs[0].rank >= 1


@pytest.mark.parametrize("sampling", [GREEDY, Sampling(temperature=5.0)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("kind", [None, R])
def test_g04_11_padding_ids_are_never_drawn_nor_reported(made, kind, sampling):
    driven = stage(made)
    for seed in range(6):
        asked = replace(sampling, seed=seed, logprobs=20)
        driven.submit(request(made, f"r{seed}", kind, "[a-z ]{40}", sampling=asked, limits=Limits(40)))
    for out in driven.run().outputs.values():
        reported = {token for each in out.logprobs for token, _ in each.top}
        assert out.tokens and max(*out.tokens, *reported) < len(VOCAB)
        assert kind is None or re.fullmatch("[a-z ]+", out.text)


def test_control_tokens_are_no_text(made):
    taste = likes("")

    def control_lover(row: np.ndarray, last: int) -> None:
        taste(row, last)
        row[BOS] += 40

    assert only(made, R, "(?s:.){8}", taste=control_lover).finished.reason is Reason.STOP
    assert BOS not in only(made, R, "(?s:.){8}", taste=control_lover).tokens


# ---- scenarios with a model of strong tastes


@pytest.mark.parametrize("sampling", [GREEDY, SEEDED], ids=["greedy", "seeded"])
def test_g04_01_a_model_in_love_with_blanks_ends(made, sampling):
    schema = {"type": "object", "properties": {"a": {"type": "integer"}}, "required": ["a"]}

    def taste(row: np.ndarray, last: int) -> None:
        likes(" \n", 30)(row, last)
        likes("}", 20)(row, last)

    out = only(made, S, schema, taste=taste, sampling=sampling, limits=Limits(400, stop_ids=STOP))
    assert out.finished.reason is Reason.STOP and "a" in json.loads(out.text)
    assert not re.search(r"[ \t\n]{42}|\n[ \t]*\n", out.text) and out.text == out.text.strip()


CARELESS = [  # a schema, and what the model would write
    ({"type": "integer", "minimum": 3, "maximum": 17}, "29"),
    ({"type": "number", "exclusiveMinimum": 0}, "-0"),
    ({"type": "integer", "multipleOf": 5}, "7"),
    ({"const": "x"}, "y"),
    ({"type": "string", "format": "date"}, "9"),
    ({"type": "array", "items": {"enum": [1, 2]}, "uniqueItems": True, "minItems": 2}, "1"),
    ({"type": "object", "patternProperties": {"^n": {"type": "integer"}}, "maxProperties": 2, "additionalProperties": False}, 'n"x'),
    ({"type": "object", "propertyNames": {"pattern": "^[a-z]$"}, "maxProperties": 1}, "A"),
    ({"type": "array", "prefixItems": [{"type": "string", "maxLength": 3}], "items": False}, "1]"),
    ({"not": {"type": ["string", "object", "array"]}}, '"{['),
    ({"allOf": [{"minimum": 2}, {"maximum": 4}], "type": "integer"}, "5"),
    ({"type": "object", "properties": {"a": {"const": 1}, "b": {"const": 1}}, "dependentRequired": {"a": ["b"]}, "additionalProperties": False}, "a}"),
    ({"type": "object", "properties": {"a": {"const": 1}}, "minProperties": 1, "additionalProperties": False}, "}"),
    ({"type": "integer", "minimum": -12, "maximum": 105}, "9"),
]  # fmt: skip


@pytest.mark.parametrize(("schema", "wrong"), CARELESS, ids=range(len(CARELESS)))
def test_g04_03_a_model_that_tries_the_forbidden_first(made, schema, wrong):
    for seed in range(3):
        out = only(made, S, schema, taste=likes(wrong, 12), sampling=Sampling(temperature=1.0, seed=seed), limits=Limits(300, stop_ids=STOP))
        if out.finished.reason is Reason.STOP:
            jsonschema.validate(json.loads(out.text), schema, format_checker=jsonschema.Draft202012Validator.FORMAT_CHECKER)
        else:
            assert begins(schema, out.text)


def test_g04_05_a_model_that_loves_control_characters_and_half_escapes(made):
    schema = {"type": "array", "items": {"type": "string", "maxLength": 20}, "minItems": 3, "maxItems": 3}
    for seed in range(6):
        taste = likes("\n\x00\\uqé", 8)
        out = only(made, S, schema, taste=taste, sampling=Sampling(temperature=1.0, seed=seed), limits=Limits(500, stop_ids=STOP))
        assert out.finished.reason is Reason.STOP
        assert "\ufffd" not in out.text.replace("\\ufffd", "") or "\ufffd".encode() in out.text.encode()
        jsonschema.validate(json.loads(out.text, strict=True), schema)
        assert all(len(text) <= 20 for text in json.loads(out.text))


def test_g04_05_values_written_with_escapes_in_the_schema(made):
    schema = '{"type":"object","properties":{"na\\u00efve":{"enum":["caf\\u00e9","\\ud83d\\ude38"]}},"required":["na\\u00efve"],"additionalProperties":false}'
    texts = {only(made, S, schema, sampling=Sampling(temperature=3.0, seed=seed)).text for seed in range(10)}
    assert {json.loads(text)["naïve"] for text in texts} == {"café", "😸"}


def test_random_requests_stay_inside_their_language(made):
    """Kinds, lengths, samplers and step sizes at random; the judge reads the finished texts."""
    draw = random.Random(4)
    driven = stage(made, blocks=120, max_rows=6, max_tokens=20)
    patterns = ["[a-z]{1,20}", "(one|two)+;", "[^b]*b", "é{2,5}", "(?:日本|日)+。"]
    asked: list[tuple[Request, str]] = []
    for i in range(40):
        pattern = draw.choice(patterns)
        sampling = Sampling(temperature=draw.choice([0.0, 0.7, 3.0]), top_k=draw.choice([0, 3]), min_p=draw.choice([0.0, 0.3]), seed=i)
        limits = Limits(draw.choice([3, 25, 100]), draw.choice([0, 4]), draw.choice([STOP, frozenset()]))
        asked.append((request(made, f"r{i}", R, pattern, sampling=sampling, limits=limits, prompt=draw.randrange(1, 30)), pattern))
    for each, _ in asked:
        driven.submit(each)
        driven.step()
    transcript = driven.run()
    ended = 0
    for each, pattern in asked:
        out = transcript[each.id]
        if out.finished.reason is Reason.STOP:
            ended += 1
            assert re.fullmatch(pattern, out.text), (pattern, out.text)
    assert ended > 10 and not transcript.failed
