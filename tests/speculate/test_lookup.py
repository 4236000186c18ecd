"""What the lookup finds, against a search in plain Python; and what it keeps, for whom."""

from __future__ import annotations

import random

import pytest

from imp.speculate.history import History, search_code
from imp.speculate.lookup import BEFORE, SuffixLookup
from imp.speculate.search import CANDIDATES, GAP, LENGTH_BITS, LONGEST, NEAR, REPLACEMENT, RUN
from imp.types import Drafting, Request, Sequence, Source


@pytest.fixture(scope="module")
def code(kernel_folder):
    return search_code(kernel_folder)


@pytest.fixture
def lookup(kernel_folder):
    return SuffixLookup(kernel_folder, 2, 4096)


A, B, BUSY = ("a", b""), ("a", b"salt"), ("busy", b"")


def sequence(prompt, tenant=None, prediction=()):
    """tenant: None: it shares nothing; else its owner's name and the salt."""
    drafting = Drafting(shares=tenant is not None, prediction=tuple(prediction))
    owner, salt = tenant or ("", b"")
    request = Request("r", tuple(prompt), salt=salt, drafting=drafting, owner=owner)
    return Sequence(request, 0, 0, list(prompt))


def ended(lookup, seq, output):
    seq.tokens += output
    lookup.ended(seq)


def run(tokens, place, end):
    """How many tokens before `place` are those before `end`."""
    length = 0
    while length < min(LONGEST, place, end) and GAP != tokens[place - 1 - length] == tokens[end - 1 - length]:
        length += 1
    return length


def found(history, most=8):
    result = history.continuation([], [], most)
    return history.code.buffer[: result & 255], result >> LENGTH_BITS & 255, result >> 2 * LENGTH_BITS & 255


@pytest.mark.parametrize("seed", range(40))
def test_the_longest_run_is_found_wherever_it_is(code, seed):
    rng = random.Random(seed)
    least, letters = rng.randrange(1, 5), rng.choice([2, 5, 40, 50_000])
    history, text, judged, stays = History(code, least), [], 0, False
    for _ in range(rng.randrange(1, 120)):
        # copies of earlier text, so that there is something to find
        start = rng.randrange(len(text) + 1)
        piece = text[start : start + rng.randrange(30)] if rng.random() < 0.5 else []
        piece = [*piece, rng.choice([GAP, *range(letters)]) if rng.random() < 0.1 else rng.randrange(letters)]
        history.extend(piece)
        text += piece
        end = len(text)
        guess, matched, how = found(history)
        places = [p for p in range(1, end) if run(text, p, end) >= (1 if how == NEAR else least) and text[p] != GAP]
        lengths = {p: run(text, p, end) for p in places}
        if len(places) <= CANDIDATES // 2 and how == RUN:  # all were looked at, also where hashes collide
            assert matched == max(lengths.values(), default=0)
            judged += 1
        if not matched:
            assert guess == [] or how == REPLACEMENT
            continue
        followed = [p for p, length in lengths.items() if length == matched]
        continuations = [continuation(text, p, 8) for p in followed]
        assert guess in continuations
        if len(places) <= CANDIDATES // 2 and how == RUN and guess != continuations[-1]:
            assert stays, "the latest of equal ones is followed, if none of them is already"
        stays = matched > 2 or how == NEAR
    assert list(history.tokens) == text
    assert judged or letters < 50


def continuation(text, place, most):
    said = text[place:]
    while len(said) < most and GAP not in said:
        said.append(said[len(said) - (len(text) - place)])
    said = said[:most]
    return said[: said.index(GAP)] if GAP in said else said


def test_a_text_that_turns_in_a_circle_is_followed_around_it(code):
    history = History(code, 2)
    history.extend([9, 1, 2, 3, 1, 2])
    assert found(history) == ([3, 1, 2, 3, 1, 2, 3, 1], 2, RUN)


def test_text_may_come_in_any_pieces(code):
    rng = random.Random(5)
    text = [rng.randrange(3) for _ in range(700)]
    whole, pieces = History(code, 3), History(code, 3)
    whole.extend(text)
    at = 0
    while at < len(text):
        fresh = text[at : at + rng.randrange(1, 9)]
        pieces.continuation(fresh, [], 4)
        at += len(fresh)
    assert found(pieces) == found(whole)


def test_guessed_tokens_are_looked_at_and_not_kept(code, lookup):
    seq = sequence([1, 2, 3, 4, 5, 6, 7, 1])
    assert lookup.guess(seq, [2, 3, 4], 3) == ([5, 6, 7], Source.RUN, 4, 0)
    assert lookup.guess(seq, [5, 6], 2) == ([7, 1], Source.NEAR, 2, 0)
    seq.tokens += [2]
    assert lookup.guess(seq, [], 3).tokens == [3, 4, 5]


def test_a_prompt_longer_than_the_buffer_is_taken_in(lookup):
    seq = sequence(range(5000))
    assert lookup.guess(seq, [], 4) is None
    seq.tokens += list(range(100, 2100))
    assert lookup.guess(seq, [], 4).tokens == [2100, 2101, 2102, 2103]


# -- what the caller expects


PREDICTED = list(range(1000, 1040))


def test_what_is_expected_is_followed_from_its_beginning(lookup):
    seq = sequence([1, 2, 3], prediction=PREDICTED)
    assert lookup.guess(seq, [], 4) == (PREDICTED[:4], Source.REPLACEMENT, 0, 4)
    seq.tokens += PREDICTED[:1]
    assert lookup.guess(seq, [], 4) == (PREDICTED[1:5], Source.NEAR, 1, 4)
    seq.tokens += PREDICTED[1:6]
    assert lookup.guess(seq, [], 4) == (PREDICTED[6:10], Source.RUN, 6, 4)


def test_the_end_of_what_is_expected_is_not_gone_across(lookup):
    seq = sequence([1, 2, 3], prediction=PREDICTED)
    lookup.guess(seq, [], 4)
    seq.tokens += PREDICTED[:38]
    assert lookup.guess(seq, [], 8) == (PREDICTED[38:], Source.RUN, 32, 2)
    seq.tokens += PREDICTED[38:]
    assert lookup.guess(seq, [], 8) is None


def test_what_is_expected_is_followed_also_where_the_prompt_says_the_same(lookup):
    """So that what a client predicted is counted as that."""
    seq = sequence([1, *PREDICTED, 2, *PREDICTED, 3], prediction=PREDICTED)
    lookup.guess(seq, [], 4)
    for i in range(39):
        seq.tokens.append(PREDICTED[i])
        guess = lookup.guess(seq, [], 4)
        assert guess.tokens == PREDICTED[i + 1 : i + 5] and guess.expected == len(guess.tokens)


def test_a_replaced_token_does_not_lose_the_place(lookup):
    seq = sequence([1, 2, 3], prediction=PREDICTED)
    lookup.guess(seq, [], 4)
    seq.tokens += PREDICTED[:10]
    lookup.guess(seq, [], 4)
    seq.tokens += [7]  # for the eleventh
    assert lookup.guess(seq, [], 4) == (PREDICTED[11:15], Source.REPLACEMENT, 0, 4)


@pytest.mark.parametrize("written, goes_on", [([7, 8, 9, 1010], 11), ([1013], 14), ([7, 1012], 13)])
def test_tokens_put_in_or_left_out_do_not_lose_the_place(lookup, written, goes_on):
    seq = sequence([1, 2, 3], prediction=PREDICTED)
    lookup.guess(seq, [], 4)
    seq.tokens += PREDICTED[:10]
    lookup.guess(seq, [], 4)
    for token in written:
        seq.tokens.append(token)
        guess = lookup.guess(seq, [], 4)
    assert guess == (PREDICTED[goes_on : goes_on + 4], Source.NEAR, 1, 4)


def test_what_is_not_followed_for_long_is_let_go(lookup):
    seq = sequence([1, 2, 3], prediction=PREDICTED)
    for token in range(2000, 2100):
        seq.tokens.append(token)
        guess = lookup.guess(seq, [], 4)
        assert (guess is not None) == (token < 2004)


# -- what is kept of ended outputs


def test_an_output_serves_its_tenant_and_nobody_else(lookup):
    ended(lookup, sequence([1, 2], A), [30, 31, 32, 33, 34])
    others = [(tenant, None) for tenant in (B, ("b", b""), ("", b""), None)]
    for tenant, guess in [(A, ([32, 33, 34], Source.SHARED, 2, 0)), *others]:
        assert lookup.guess(sequence([5, 30, 31], tenant), [], 4) == guess
    ended(lookup, sequence([1, 2], None), [40, 41, 42, 43])
    for tenant in (A, B, None, ("", b"")):
        assert lookup.guess(sequence([5, 40, 41], tenant), [], 4) is None


def test_the_beginning_of_an_output_is_found_by_the_end_of_its_prompt(lookup):
    prompt = list(range(50))
    ended(lookup, sequence(prompt, A), [90, 91, 92])
    assert lookup.guess(sequence(prompt, A), [], 4) == ([90, 91, 92], Source.SHARED, BEFORE, 0)
    assert lookup.guess(sequence(prompt[:42], A), [], 4) is None, "of the prompt itself nothing more is kept"


def test_a_longer_match_of_the_own_text_wins(lookup):
    ended(lookup, sequence([1, 2], A), [30, 31, 32])
    assert lookup.guess(sequence([29, 30, 31, 77, 29, 30, 31], A), [], 1) == ([77], Source.RUN, 3, 0)
    assert lookup.guess(sequence([30, 31, 77, 8, 2, 30, 31], A), [], 1) == ([32], Source.SHARED, 3, 0)


def test_what_is_kept_is_bounded(lookup):
    """4096 tokens over all tenants, a quarter of them for one, the oldest and those not asked for forgotten."""
    for i in range(300):
        tenant = BUSY if i % 3 else (str(i), b"")
        ended(lookup, sequence([1, 2], tenant), [10_000 + 20 * i + k for k in range(18)])
        lookup.guess(sequence([1], BUSY), [], 1)
        assert lookup.kept == sum(store.capacity for store in lookup.tenants.values()) <= 4096
        assert all(store.capacity <= 1024 for store in lookup.tenants.values())
    assert lookup.guess(sequence([5, 10_000 + 20 * 299, 10_001 + 20 * 299], BUSY), [], 1).tokens == [10_002 + 20 * 299]
    assert ("0", b"") not in lookup.tenants and BUSY in lookup.tenants
    lookup.forget()
    assert lookup.guess(sequence([5, 10_000 + 20 * 299, 10_001 + 20 * 299], BUSY), [], 1) is None
    assert not lookup.kept


def test_an_output_too_long_for_a_tenants_share_is_not_kept(lookup):
    ended(lookup, sequence([1, 2], A), list(range(10, 600)))
    assert not lookup.tenants
