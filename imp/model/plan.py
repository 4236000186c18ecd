"""From the rows of a batch to the arrays of a SamplingPlan: what each wanted position draws, bans and reports."""

from __future__ import annotations

from collections.abc import Iterator
from collections.abc import Sequence as Seq
from dataclasses import dataclass
from time import perf_counter

import numpy as np

from ..types import Batch, Row, Sampling, Sequence
from .inputs import wanted_count
from .sampling import SamplingPlan, uniform


@dataclass(frozen=True, slots=True)
class MaskBits:
    """What the bits of this vocabulary's constraint masks stand for."""

    tokens: np.ndarray  # int32 [B]: the token of each bit
    aliases: np.ndarray  # int32 [n, 2]: (token, bit) of the tokens that share another token's bit

    @classmethod
    def in_order(cls, vocab: int) -> MaskBits:
        """Bit t is token t."""
        return cls(np.arange(vocab, dtype=np.int32), np.zeros((0, 2), np.int32))

    @property
    def words(self) -> int:
        """uint32 words of a mask."""
        return -(-len(self.tokens) // 32)

    def mask_of(self, allowed: Seq[int]) -> np.ndarray:
        """uint32 [words]: the mask that lets these tokens through, and with them those that share their bits."""
        inside = np.isin(self.tokens, np.asarray(allowed))
        inside[self.aliases[np.isin(self.aliases[:, 0], allowed), 1]] = True
        padded = np.zeros(self.words * 32, bool)
        padded[: len(inside)] = inside
        return np.packbits(padded, bitorder="little").view(np.uint32)

    def shared_with(self, allowed: Seq[int]) -> list[int]:
        """The tokens that `mask_of` lets through although they are not allowed."""
        if not len(self.aliases):
            return []
        pairs = np.stack([self.aliases[:, 0], self.tokens[self.aliases[:, 1]]], 1)  # [n, 2] tokens of one bit
        inside = np.isin(pairs, np.asarray(allowed))
        touched = np.isin(self.aliases[:, 1], self.aliases[inside.any(1), 1])
        return np.unique(pairs[touched][~inside[touched]]).tolist()


@dataclass(slots=True)
class Draw:
    """One wanted position: the token after `history` (its sequence's tokens, then `drafted` of its drafts)."""

    seq: Sequence
    drafted: int
    target: int = -1  # >= 0: only this token's logprob is wanted
    logprobs: int = -1

    @property
    def length(self) -> int:
        return len(self.seq.tokens) + self.drafted

    def history(self) -> list[int]:
        seq = self.seq
        return seq.tokens + seq.draft[: self.drafted] if self.drafted else seq.tokens


def draws_of(row: Row) -> list[Draw]:
    """The wanted positions of a row, ascending: prompt positions (where asked for), then the ones that draw."""
    seq, sampling = row.seq, row.seq.request.sampling
    count = wanted_count(row)
    wanted = -1 if sampling.logprobs is None else sampling.logprobs
    draws = []
    for position in range(row.start + row.count - count, row.start + row.count):
        following = position + 1
        if following >= len(seq.tokens):
            draws.append(Draw(seq, following - len(seq.tokens), logprobs=wanted))
        else:
            is_prompt = following < len(seq.request.prompt)
            asked = sampling.prompt_logprobs if is_prompt and sampling.prompt_logprobs is not None else -1
            draws.append(Draw(seq, 0, target=seq.tokens[following], logprobs=asked))
    return draws


def plan_step(batch: Batch, vocab: int, width: int, bits: MaskBits) -> tuple[SamplingPlan, list[list[Draw]]]:
    """The plan of a step whose logits are [R, width], and the draws of each row. Tokens >= vocab are never drawn."""
    by_row = [draws_of(row) for row in batch.rows]
    return plan_draws(by_row, vocab, width, bits), by_row


def plan_draws(by_row: list[list[Draw]], vocab: int, width: int, bits: MaskBits) -> SamplingPlan:
    """The plan of these draws; those in a list follow each other in one sequence."""
    draws = [draw for row in by_row for draw in row]
    floats = np.array([_floats(d) for d in draws], np.float32).reshape(len(draws), 12).T.copy()
    ints = np.array([_ints(d) for d in draws], np.int32).reshape(len(draws), 4).T.copy()
    bias_starts, bias_tokens, bias_values = _ranges([_biases(d, vocab, bits) for d in draws], (np.int32, np.float32))
    all_seen = [seen for row in by_row for seen in _seen_by(row, vocab)]
    seen_starts, seen_tokens, seen_counts = _ranges(all_seen, (np.int32, np.int32))
    masks, mask_rows = _masks(by_row, bits)
    return SamplingPlan(
        temperature=floats[0],
        top_p=floats[1],
        min_p=floats[2],
        typical_p=floats[3],
        repetition=floats[4],
        frequency=floats[5],
        presence=floats[6],
        xtc_probability=floats[7],
        xtc_threshold=floats[8],
        mirostat_tau=floats[9],
        mirostat_eta=floats[10],
        mu=floats[11],
        top_k=ints[0],
        mirostat=ints[1],
        top_logprobs=ints[2],
        targets=ints[3],
        uniform=np.array([_uniforms(d) for d in draws], np.float64).reshape(len(draws), 2),
        bias_starts=bias_starts,
        bias_tokens=bias_tokens,
        bias_values=bias_values,
        seen_starts=seen_starts,
        seen_tokens=seen_tokens,
        seen_counts=seen_counts,
        masks=masks,
        mask_rows=mask_rows,
        mask_tokens=bits.tokens,
        mask_aliases=bits.aliases,
        vocab=min(vocab, width),
    )


def _floats(draw: Draw) -> tuple[float, ...]:
    s = draw.seq.request.sampling
    mu = draw.seq.mu or 2.0 * s.mirostat_tau
    return (
        s.temperature,
        s.top_p,
        s.min_p,
        s.typical_p,
        s.repetition_penalty,
        s.frequency_penalty,
        s.presence_penalty,
        s.xtc_probability,
        s.xtc_threshold,
        s.mirostat_tau,
        s.mirostat_eta,
        mu,
    )


def _ints(draw: Draw) -> tuple[int, ...]:
    s = draw.seq.request.sampling
    return max(s.top_k, 0), s.mirostat, draw.logprobs, draw.target


def _uniforms(draw: Draw) -> tuple[float, float]:
    s = draw.seq.request.sampling
    if draw.target >= 0 or s.temperature == 0:
        return 0.0, 0.0
    at = draw.seq.index, draw.length
    return uniform(s.seed, *at), uniform(s.seed, *at, stream=1) if s.xtc_probability else 0.0


def _biases(draw: Draw, vocab: int, bits: MaskBits) -> dict[int, float]:
    request = draw.seq.request
    sampling, limits = request.sampling, request.limits
    if draw.target >= 0:
        return {}
    out = dict(sampling.bias)
    if sampling.dry_multiplier:
        for token, penalty in dry_penalties(draw.history(), sampling).items():
            out[token] = out.get(token, 0.0) - penalty
    if draw.length - len(request.prompt) < limits.min_tokens:
        out.update(dict.fromkeys(limits.stop_ids, -np.inf))
    if sampling.banned:
        out.update(dict.fromkeys(_completing(draw.history()[len(request.prompt) :], sampling.banned), -np.inf))
    if sampling.allowed is not None:
        out.update(dict.fromkeys(bits.shared_with(sampling.allowed), -np.inf))
    return {token: value for token, value in out.items() if 0 <= token < vocab}


def _completing(output: Seq[int], banned: Seq[tuple[int, ...]]) -> list[int]:
    """The tokens that would complete one of the banned sequences now."""
    return [last for *before, last in banned if not before or list(output[-len(before) :]) == before]


def _seen_by(row: list[Draw], vocab: int) -> Iterator[dict[int, int]]:
    """_seen of each of these draws: behind a guess, what was seen before it and the guess."""
    seen: dict[int, int] = {}
    for i, draw in enumerate(row):
        sampling, follows = draw.seq.request.sampling, i > 0 and row[i - 1].target < 0
        if follows and sampling.repeat_last_n < 0 and _penalises(sampling):
            token = draw.seq.draft[draw.drafted - 1]
            seen = seen | {token: seen.get(token, 0) + 1} if token < vocab else seen
        else:
            seen = _seen(draw, vocab)
        yield seen


def _penalises(sampling: Sampling) -> bool:
    s = sampling
    return s.repetition_penalty != 1.0 or bool(s.frequency_penalty) or bool(s.presence_penalty)


def _seen(draw: Draw, vocab: int) -> dict[int, int]:
    """Distinct tokens of the penalty window -> how often each was generated in it."""
    s, prompt = draw.seq.request.sampling, len(draw.seq.request.prompt)
    if not _penalises(s) or not s.repeat_last_n or draw.target >= 0:
        return {}
    history = draw.history()
    first = 0 if s.repeat_last_n < 0 else max(0, len(history) - s.repeat_last_n)
    counts: dict[int, int] = {}
    if s.repetition_penalty != 1.0:
        counts = dict.fromkeys(history[first:prompt], 0)
    for token in history[max(first, prompt) :]:
        counts[token] = counts.get(token, 0) + 1
    return {token: count for token, count in counts.items() if token < vocab}


def _ranges(rows: list[dict[int, float]] | list[dict[int, int]], kinds: tuple[type, type]) -> tuple[np.ndarray, ...]:
    """CSR arrays of the rows' keys and values."""
    starts = np.zeros(len(rows) + 1, np.int32)
    np.cumsum([len(row) for row in rows], out=starts[1:])
    keys: np.ndarray = np.fromiter((key for row in rows for key in row), kinds[0], int(starts[-1]))
    values: np.ndarray = np.fromiter((value for row in rows for value in row.values()), kinds[1], int(starts[-1]))
    return starts, keys, values


def _masks(by_row: list[list[Draw]], bits: MaskBits) -> tuple[np.ndarray, np.ndarray]:
    """Masks of the drawing positions of constrained rows, and of those that name the tokens they allow. A constraint
    is walked over its drafts and back."""
    masked = [[d for d in draws if d.target < 0] for draws in by_row if draws and _is_masked(draws[0].seq)]
    masks = np.zeros((sum(map(len, masked)), bits.words), np.uint32)
    mask_rows = np.full(sum(map(len, by_row)), -1, np.int32)
    at, used = 0, 0
    for draws in by_row:
        if not draws or not _is_masked(draws[0].seq):
            at += len(draws)
            continue
        seq, accepted, tried, began = draws[0].seq, 0, False, perf_counter()
        constraint, allowed = seq.constraint, seq.request.sampling.allowed
        only = None if allowed is None else bits.mask_of(allowed)
        for draw in draws:
            if draw.target < 0:
                if constraint:
                    constraint.fill_mask(masks[used])
                if only is not None:
                    masks[used] = only & masks[used] if constraint else only
                mask_rows[at], used = used, used + 1
                if constraint and draw.drafted < len(seq.draft):
                    tried = True
                    accepted += constraint.accept(seq.draft[draw.drafted])
            at += 1
        if constraint and tried:
            constraint.rollback(accepted)
        if constraint:
            seq.masking_s += perf_counter() - began
    return masks, mask_rows


def _is_masked(seq: Sequence) -> bool:
    return seq.constraint is not None or seq.request.sampling.allowed is not None


def dry_penalties(history: Seq[int], sampling: Sampling) -> dict[int, float]:
    """Token -> multiplier * base^(n - allowed_length), n >= allowed_length the longest repetition it would extend.

    A repetition is a suffix of the window that also stands earlier in it; none reaches across a breaker token. After
    p-e-w's DRY sampler as served by llama.cpp; lengths are bounded by 64.
    """
    window = (
        history if sampling.dry_penalty_last_n < 0 else history[max(0, len(history) - sampling.dry_penalty_last_n) :]
    )
    tokens = np.asarray(window, np.int64)
    size = len(tokens)
    if size < 2 or not sampling.dry_penalty_last_n:
        return {}
    ends = np.arange(size - 1)  # an earlier copy of the suffix ends here; the token after it would be the repetition
    lengths = np.zeros(size - 1, np.int64)
    for back in range(min(size - 1, 64)):
        last = tokens[size - 1 - back]
        if int(last) in sampling.dry_breakers:
            break
        ends = ends[(ends >= back)]
        ends = ends[tokens[ends - back] == last]
        if not len(ends):
            break
        lengths[ends] = back + 1
    out: dict[int, float] = {}
    for end in np.flatnonzero(lengths >= max(sampling.dry_allowed_length, 1)):
        token = int(tokens[end + 1])
        penalty = sampling.dry_multiplier * sampling.dry_base ** float(lengths[end] - sampling.dry_allowed_length)
        out[token] = max(out.get(token, 0.0), penalty)
    return {token: value for token, value in out.items() if token not in sampling.dry_breakers}
