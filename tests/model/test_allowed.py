"""Banned sequences and allowed tokens in the plan of a step, over any order of mask bits."""

from __future__ import annotations

import numpy as np
import pytest

from imp.model.plan import MaskBits, plan_step
from imp.model.sampling import reference_sample
from imp.types import Batch, Request, Row, Sampling, Sequence

VOCAB = 70


def row(sampling: Sampling, generated: tuple[int, ...] = (), draft: tuple[int, ...] = ()) -> Row:
    seq = Sequence(Request("r", (1, 2), sampling), 0, 0, [1, 2, *generated], draft=list(draft))
    return Row(seq, len(seq.tokens) - 1, 1 + len(draft))


def drawn(rows: list[Row], logits: np.ndarray, bits: MaskBits) -> list[int]:
    plan, _ = plan_step(Batch(rows), VOCAB, logits.shape[1], bits)
    return reference_sample(logits, plan).tokens.tolist()


def orders() -> list[MaskBits]:
    """Bits in order, in another order, and with tokens that share a bit: 10 with 20, 30 with 31."""
    rng = np.random.default_rng(3)
    shared = [token for token in rng.permutation(VOCAB).tolist() if token not in (20, 31)]
    aliases = np.array([(20, shared.index(10)), (31, shared.index(30))], np.int32)
    return [
        MaskBits.in_order(VOCAB),
        MaskBits(rng.permutation(VOCAB).astype(np.int32), np.zeros((0, 2), np.int32)),
        MaskBits(np.array(shared, np.int32), aliases),
    ]


@pytest.mark.parametrize("bits", orders(), ids=["in order", "permuted", "shared"])
@pytest.mark.parametrize("allowed", [(5,), (10,), (20,), (10, 20), (31, 7), (30, 31, 69), tuple(range(VOCAB))])
def test_only_allowed_tokens_are_drawn(bits: MaskBits, allowed: tuple[int, ...]) -> None:
    rng = np.random.default_rng(len(allowed))
    logits = rng.standard_normal((3, VOCAB + 2)).astype(np.float32)
    rows = [row(Sampling(temperature=0)), row(Sampling(temperature=0, allowed=allowed)), row(Sampling(temperature=0))]
    best = [int(line[:VOCAB].argmax()) for line in logits]
    best[1] = max(allowed, key=lambda token: logits[1, token])
    assert drawn(rows, logits, bits) == best
    seen = set()
    for seed in range(60):
        hot = [row(Sampling(temperature=2.0, allowed=allowed, seed=seed))]
        seen |= set(drawn(hot, np.zeros((1, VOCAB), np.float32), bits))
    assert seen <= set(allowed) and (len(allowed) > 3 or seen == set(allowed))


class OddTokens:
    """A constraint that lets odd tokens through."""

    done = False

    def ready(self) -> bool:
        return True

    def fill_mask(self, out: np.ndarray) -> None:
        out[:] = 0xAAAAAAAA

    def accept(self, token: int) -> bool:
        return True

    def rollback(self, count: int) -> None: ...
    def forced(self) -> list[int]:
        return []


def test_a_constraint_and_allowed_tokens_hold_together() -> None:
    logits = np.arange(VOCAB, dtype=np.float32)[None].repeat(2, 0)
    rows = [row(Sampling(temperature=0, allowed=(4, 9, 12, 60))), row(Sampling(temperature=0))]
    rows[0].seq.constraint = rows[1].seq.constraint = OddTokens()
    assert drawn(rows, logits, MaskBits.in_order(VOCAB)) == [9, 69]


def test_a_banned_sequence_is_never_completed() -> None:
    logits = np.zeros((1, VOCAB), np.float32)
    logits[0, 8], logits[0, 9] = 5.0, 4.0
    banned = Sampling(temperature=0, banned=((8,),))
    assert drawn([row(banned)], logits, MaskBits.in_order(VOCAB)) == [9]
    pair = Sampling(temperature=0, banned=((6, 7, 8),))
    for generated, token in (((), 8), ((6,), 8), ((7, 6), 8), ((5, 6, 7), 9), ((6, 7, 1), 8)):
        assert drawn([row(pair, generated)], logits, MaskBits.in_order(VOCAB)) == [token]
    prompt = Sampling(temperature=0, banned=((1, 2, 8),))  # the prompt's tokens begin no word of the output
    assert drawn([row(prompt)], logits, MaskBits.in_order(VOCAB)) == [8]


def test_drafts_count_as_output() -> None:
    logits = np.zeros((2, VOCAB), np.float32)
    logits[:, 8], logits[:, 9] = 5.0, 4.0
    banned = Sampling(temperature=0, banned=((8, 8),))
    assert drawn([row(banned, draft=(8,))], logits, MaskBits.in_order(VOCAB)) == [8, 9]
