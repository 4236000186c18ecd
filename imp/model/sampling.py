"""How a token is drawn: the parameters of a step as arrays, the order of operations, and the NumPy reference.

Order, for each row of raw logits x [V]:
  1. logprobs (where asked for) are those of x itself: log_softmax(x), before anything below;
  2. x[t] += bias[t] (logit_bias), and DRY: for a token that would extend a repetition of length n >= allowed_length,
     x -= multiplier * base^(n - allowed_length);
  3. tokens a constraint forbids, tokens past the tokenizer's vocabulary and stop tokens before min_tokens: -inf;
  4. repetition penalty r on every distinct token of the last `repeat_last_n` tokens of prompt and output:
     x > 0 ? x / r : x * r (Keskar et al. 2019, as transformers does it); then over the *generated* ones of that window
     x -= frequency * count + presence (OpenAI);
  5. temperature <= 1e-5: the largest x, the lowest id among equals. Nothing below matters then;
  6. x /= temperature;
  7. mirostat 1 / 2 truncates by its surprise target and skips 8 to 12 (Basu et al. 2020);
  8. top_k: the k largest (equals: lower ids first);  9. typical_p (Meister et al. 2022);
  10. top_p: the shortest prefix, in falling order, whose probability sum reaches p;  11. min_p: p >= min_p * p_max;
  12. XTC: with its probability, of the tokens with p >= threshold all but the least likely go;
  13. one uniform number u of the counter RNG; the token where the running sum, in order of token ids, passes u * total.
One token always survives. The RNG is a pure function of (seed, sequence index, position): the same draw whatever
else is in the batch, after preemption, and after a restart.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

GREEDY_BELOW = 1e-5  # temperatures at or below: argmax


@dataclass(slots=True)
class SamplingPlan:
    """What a step draws: one entry per row of logits. Unused lists are empty CSR ranges."""

    temperature: np.ndarray  # float32 [R]
    top_k: np.ndarray  # int32 [R]; 0: off
    top_p: np.ndarray  # float32 [R]; 1: off
    min_p: np.ndarray  # float32 [R]; 0: off
    typical_p: np.ndarray  # float32 [R]; 1: off
    repetition: np.ndarray  # float32 [R]; 1: off
    frequency: np.ndarray  # float32 [R]
    presence: np.ndarray  # float32 [R]
    xtc_probability: np.ndarray  # float32 [R]; 0: off
    xtc_threshold: np.ndarray  # float32 [R]
    mirostat: np.ndarray  # int32 [R]; 0: off
    mirostat_tau: np.ndarray  # float32 [R]
    mirostat_eta: np.ndarray  # float32 [R]
    mu: np.ndarray  # float32 [R]; in and out
    uniform: np.ndarray  # float64 [R, 2] in [0, 1): the draw, and XTC's coin
    bias_starts: np.ndarray  # int32 [R + 1]
    bias_tokens: np.ndarray  # int32
    bias_values: np.ndarray  # float32: logit_bias and DRY (already computed), summed per token; -inf bans
    seen_starts: np.ndarray  # int32 [R + 1]
    seen_tokens: np.ndarray  # int32: distinct tokens of the penalty window, prompt and output
    seen_counts: np.ndarray  # int32: how often each was generated in the window; 0: prompt only
    masks: np.ndarray  # uint32 [n, ceil(B / 32)]: constraint masks; bit b is bit b % 32 of word b // 32
    mask_rows: np.ndarray  # int32 [R]: row of `masks`; -1: unconstrained
    mask_tokens: np.ndarray  # int32 [B]: the token of each bit
    mask_aliases: np.ndarray  # int32 [n, 2]: (token, bit) of the tokens that share another token's bit
    vocab: int  # tokens >= vocab (padding rows of the head) are never drawn
    top_logprobs: np.ndarray  # int32 [R]: alternatives wanted; -1: no logprobs at all
    targets: np.ndarray  # int32 [R]: >= 0: nothing is drawn, report the logprob of this token; -1: draw


@dataclass(slots=True)
class Drawn:
    tokens: np.ndarray  # int32 [R]; the target where one was given
    logprobs: np.ndarray  # float32 [R]: raw, of tokens[r]; 0 where not asked for
    ranks: np.ndarray  # int32 [R]: 1 + tokens with a larger raw logit; 0 where not asked for
    top_tokens: np.ndarray  # int32 [R, K], likeliest first (equals: lower ids first); K the largest top_logprobs
    top_values: np.ndarray  # float32 [R, K] raw logprobs


_MASK = (1 << 64) - 1


def _mix(x: int) -> int:
    """splitmix64's finaliser (Steele, Lea & Flood 2014)."""
    x = (x + 0x9E3779B97F4A7C15) & _MASK
    x = ((x ^ (x >> 30)) * 0xBF58476D1CE4E5B9) & _MASK
    x = ((x ^ (x >> 27)) * 0x94D049BB133111EB) & _MASK
    return x ^ (x >> 31)


def uniform(seed: int, index: int, position: int, stream: int = 0) -> float:
    """The counter RNG: a float64 in [0, 1) for a seed, sequence of the request, position and stream (0 draw, 1 XTC)."""
    return (_mix(_mix(_mix(_mix(seed & _MASK) ^ index) ^ position) ^ stream) >> 11) * 2.0**-53


def log_softmax(x: np.ndarray) -> np.ndarray:
    """float64 log-probabilities along the last axis; -inf stays -inf."""
    x = x.astype(np.float64)
    top = x.max(axis=-1, keepdims=True)
    return x - top - np.log(np.exp(x - top).sum(axis=-1, keepdims=True))


def logprobs_at(logits: np.ndarray, tokens: Sequence[int]) -> np.ndarray:
    """float64 log-probabilities of some tokens of one row of raw logits [V]; -inf for a token the row does not have."""
    top = logits.max()
    total = top + np.log(np.exp(logits - top).sum(dtype=np.float64))
    known = np.asarray(tokens)
    inside = (known >= 0) & (known < len(logits))
    return np.where(inside, logits[np.where(inside, known, 0)] - total, -np.inf)


def reference_sample(logits: np.ndarray, plan: SamplingPlan) -> Drawn:
    """The judge: float64, sorting, one row after the other."""
    rows, width = logits.shape[0], max(int(plan.top_logprobs.max(initial=0)), 0)
    drawn = Drawn(
        tokens=np.zeros(rows, np.int32),
        logprobs=np.zeros(rows, np.float32),
        ranks=np.zeros(rows, np.int32),
        top_tokens=np.zeros((rows, width), np.int32),
        top_values=np.zeros((rows, width), np.float32),
    )
    for r in range(rows):
        raw = logits[r, : plan.vocab]
        target = int(plan.targets[r])
        token = target if target >= 0 else _draw(raw.astype(np.float64), plan, r)
        drawn.tokens[r] = token
        if plan.top_logprobs[r] >= 0:
            _report(raw, token, int(plan.top_logprobs[r]), drawn, r)
    return drawn


def _report(raw: np.ndarray, token: int, count: int, drawn: Drawn, r: int) -> None:
    values = log_softmax(raw)
    drawn.logprobs[r] = values[token]
    drawn.ranks[r] = 1 + int((raw > raw[token]).sum())
    best = np.argsort(-raw, kind="stable")[:count]
    drawn.top_tokens[r, : len(best)] = best
    drawn.top_values[r, : len(best)] = values[best]


def _draw(x: np.ndarray, plan: SamplingPlan, r: int) -> int:
    x = _penalised(x, plan, r)
    temperature = float(plan.temperature[r])
    if temperature <= GREEDY_BELOW or not np.isfinite(x).any():
        return int(np.argmax(x))
    x = x / temperature
    p = np.exp(log_softmax(x))
    if plan.mirostat[r]:
        return _mirostat(p, plan, r)
    keep = _kept(x, p, plan, r)
    running = np.cumsum(np.where(keep, p, 0.0))
    return min(
        int(np.searchsorted(running, plan.uniform[r, 0] * running[-1], side="right")), int(np.flatnonzero(keep)[-1])
    )


def _penalised(x: np.ndarray, plan: SamplingPlan, r: int) -> np.ndarray:
    span = slice(plan.bias_starts[r], plan.bias_starts[r + 1])
    np.add.at(x, plan.bias_tokens[span], plan.bias_values[span].astype(np.float64))
    if plan.mask_rows[r] >= 0:
        words = plan.masks[plan.mask_rows[r]]
        aliases = plan.mask_aliases.reshape(-1, 2)
        tokens = np.concatenate([plan.mask_tokens, aliases[:, 0]])
        bits = np.concatenate([np.arange(len(plan.mask_tokens)), aliases[:, 1]])
        allowed = tokens[((words[bits >> 5] >> (bits & 31)) & 1).astype(bool)]
        left = np.full(len(x), -np.inf)
        allowed = allowed[allowed < len(x)]
        left[allowed] = x[allowed]
        x = left
    span = slice(plan.seen_starts[r], plan.seen_starts[r + 1])
    ids, counts = plan.seen_tokens[span], plan.seen_counts[span]
    values, penalty = x[ids], float(plan.repetition[r])
    values = np.where(values > 0, values / penalty, values * penalty)
    values = values - float(plan.frequency[r]) * counts - float(plan.presence[r]) * (counts > 0)
    x[ids] = values
    return x


def _kept(x: np.ndarray, p: np.ndarray, plan: SamplingPlan, r: int) -> np.ndarray:
    """bool [V]: what steps 8 to 12 leave. Each step sees the renormalised probabilities of what is left."""
    order = np.argsort(-x, kind="stable")
    left = order[np.isfinite(x[order])]
    if 0 < plan.top_k[r] < len(left):
        left = left[: plan.top_k[r]]
    if plan.typical_p[r] < 1:
        q = p[left] / p[left].sum()
        with np.errstate(divide="ignore"):  # probabilities that are 0 in float64 surprise infinitely
            surprise = -np.log(q)
        entropy = (q[q > 0] * surprise[q > 0]).sum()
        typical = np.argsort(np.abs(surprise - entropy), kind="stable")
        sums = np.cumsum(q[typical])
        left = left[np.sort(typical[: int(np.searchsorted(sums, plan.typical_p[r])) + 1])]
    if plan.top_p[r] < 1:
        sums = np.cumsum(p[left] / p[left].sum())
        left = left[: int(np.searchsorted(sums, plan.top_p[r])) + 1]
    if plan.min_p[r] > 0:
        left = left[p[left] >= min(float(plan.min_p[r]), 1.0) * p[left[0]]]
    if plan.xtc_probability[r] > 0 and plan.uniform[r, 1] < plan.xtc_probability[r]:
        likely = int((p[left] / p[left].sum() >= plan.xtc_threshold[r]).sum())
        if likely > 1:
            left = left[likely - 1 :]
    keep = np.zeros(len(x), bool)
    keep[left] = True
    return keep


def _mirostat(p: np.ndarray, plan: SamplingPlan, r: int) -> int:
    """Algorithms 1 and 2 of Basu et al. 2020; plan.mu[r] is updated by the surprise of the drawn token."""
    order = np.argsort(-p, kind="stable")
    order = order[p[order] > 0]
    surprise = -np.log2(p[order])
    if plan.mirostat[r] == 1:
        m = min(100, len(order) - 1)
        i = np.arange(1, m + 1)
        t = np.log((i + 1) / i)
        b = np.log(p[order[:m]] / p[order[1 : m + 1]])
        s = float((t * b).sum() / (t * t).sum()) if m else 1.0
        n, e, mu = np.float64(len(p)), s - 1.0, np.float64(plan.mu[r])
        with np.errstate(over="ignore"):  # infinite for nearly equal logits
            k = ((e * 2.0**mu) / (1.0 - n**-e)) ** (1.0 / s) if e and s else 1.0
        left = max(1, min(int(k) if np.isfinite(k) else len(order), len(order)))
    else:
        left = max(1, int((surprise <= plan.mu[r]).sum()))
    kept = np.sort(order[:left])
    running = np.cumsum(p[kept])
    token = int(kept[min(int(np.searchsorted(running, plan.uniform[r, 0] * running[-1], side="right")), left - 1)])
    plan.mu[r] -= plan.mirostat_eta[r] * (-np.log2(p[token]) - plan.mirostat_tau[r])  # p before truncation
    return token
