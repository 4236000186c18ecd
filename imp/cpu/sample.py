"""One token per row of logits, drawn in one call into machine code that never sorts the vocabulary.

Owns the fast twin of `model/sampling.reference_sample`, which is its judge and whose docstring gives the order of
operations. Knows no requests, sequences or seeds: the plan carries the uniform numbers.

The idea: one pass takes the largest logit of every run of 64 tokens (a *group*). Those few maxima bound from below any
token that can survive the filters (the k-th largest maximum is never above the k-th largest logit; a token less likely
than (1 - top_p) / V cannot be in the top_p prefix), so only groups that reach the bound are read again. What they hold
become the *candidates*, kept in order of token ids; each filter compacts them. "The shortest prefix in falling order
whose weights reach a sum" is found by a histogram that zooms into the bucket with the boundary, not by sorting.

Weights are exp((x - largest x) / temperature), computed eight at a time in float32 and added up in float64.
"""

from __future__ import annotations

import ctypes
import math

import numpy as np
from llvmlite import ir

from ..model.sampling import GREEDY_BELOW, Drawn, SamplingPlan
from .cache import CompiledKernels
from .candidates import (
    BUCKETS,
    COPY,
    DRAW,
    GROUP,
    GROUPS,
    HEADER,
    HUGE,
    IDS,
    KEYS,
    MAXIMA,
    MIROSTAT_DRAW,
    REPORT,
    SUMS,
    VALUES,
    VOCAB,
    WEIGHTS,
    X,
    copy,
    first_with,
    gather,
    gather_largest,
    group,
    jit,
    keep,
    keep_largest,
    keep_prefix,
    keep_weights,
    move,
    nth_maximum,
    take_maxima,
    take_sums,
    weigh,
    weight_of,
)
from .simd import (
    F32,
    F64,
    I1,
    I64,
    VOID,
    V,
    _Emission,
    call,
    constant,
    float64,
    int64,
    load,
    load_f32,
    load_f64,
    load_i32,
    load_u32,
    micro,
    store,
    store_f32,
    store_i32,
    word,
)

LOG_SMALLEST = -745.13  # exp of less is 0 in float64
SLACK = 1e-3  # bounds are this much lower, in units of log weight, than rounding could need

# Words of the call's block: the plan, the logits and what is drawn. Addresses, but for the last five.
(
    TEMPERATURE, TOP_K, TOP_P, MIN_P, TYPICAL_P, REPETITION, FREQUENCY, PRESENCE, XTC_PROBABILITY, XTC_THRESHOLD,
    MIROSTAT, MIROSTAT_TAU, MIROSTAT_ETA, MU, UNIFORM, BIAS_STARTS, BIAS_TOKENS, BIAS_VALUES, SEEN_STARTS, SEEN_TOKENS,
    SEEN_COUNTS, MASKS, MASK_ROWS, MASK_TOKENS, MASK_ALIASES, TOP_LOGPROBS, TARGETS,
    LOGITS, TOKENS, LOGPROBS, RANKS, TOP_TOKENS, TOP_VALUES,
    STRIDE, MASK_WORDS, MASK_BITS, ALIASES, WIDTH,  # floats of a row of logits; of masks; alternatives of a row
) = range(38)  # fmt: skip

_SIGNATURE = "void(int64, int64, int64)"


class Sampler:
    """Draws tokens. Its machine code is compiled, or found on disk, when it is made; its workspace grows as needed.
    Used by one thread at a time."""

    def __init__(self, kernels: CompiledKernels) -> None:
        code = {body: kernels.address(f"sample.{body.__name__}", body, _SIGNATURE) for body in (_rows, *_PARTS)}
        self._call = ctypes.CFUNCTYPE(None, *[ctypes.c_int64] * 3)(code[_rows])  # calls release the GIL
        self._parts = [code[part] for part in _PARTS]
        self._workspace = np.zeros(0, np.int64)

    def sample(self, logits: np.ndarray, plan: SamplingPlan) -> Drawn:
        """Draw one token per row, as `reference_sample` does; may overwrite `logits`.

        logits: float32 [R, V], contiguous, V >= plan.vocab. A row's result depends on that row alone. Where the
        reference decides by less than float32 resolves (about 1e-6 of the probability), the neighbouring token may
        come out."""
        assert logits.dtype == np.float32 and logits.flags.c_contiguous and 0 < plan.vocab <= logits.shape[1]
        rows, width = len(logits), max(int(plan.top_logprobs.max(initial=0)), 0)
        drawn = Drawn(
            tokens=np.zeros(rows, np.int32),
            logprobs=np.zeros(rows, np.float32),
            ranks=np.zeros(rows, np.int32),
            top_tokens=np.zeros((rows, width), np.int32),
            top_values=np.zeros((rows, width), np.float32),
        )
        arrays = [
            *(plan.temperature, plan.top_k, plan.top_p, plan.min_p, plan.typical_p),
            *(plan.repetition, plan.frequency, plan.presence, plan.xtc_probability, plan.xtc_threshold),
            *(plan.mirostat, plan.mirostat_tau, plan.mirostat_eta, plan.mu, plan.uniform),
            *(plan.bias_starts, plan.bias_tokens, plan.bias_values),
            *(plan.seen_starts, plan.seen_tokens, plan.seen_counts),
            *(plan.masks, plan.mask_rows, plan.mask_tokens, plan.mask_aliases, plan.top_logprobs, plan.targets),
            *(logits, drawn.tokens, drawn.logprobs, drawn.ranks, drawn.top_tokens, drawn.top_values),
        ]
        sizes = logits.shape[1], plan.masks.shape[-1], len(plan.mask_tokens), len(plan.mask_aliases), width
        block = np.array([*(array.ctypes.data for array in arrays), *sizes], np.int64)
        self._call(block.ctypes.data, rows, self._prepared(plan.vocab))
        return drawn

    def _prepared(self, vocab: int) -> int:
        """Address of a workspace for rows of `vocab` logits."""
        groups = -(-vocab // GROUP)
        group_words, row_words = -(-groups // 2), groups * GROUP // 2
        sizes = [group_words] * 2 + [GROUP // 2] + [row_words] * 6 + [BUCKETS, row_words]
        if len(self._workspace) < HEADER + sum(sizes):
            self._workspace = np.zeros(HEADER + sum(sizes), np.int64)
        start = self._workspace.ctypes.data
        self._workspace[VOCAB : GROUPS + 1] = vocab, groups
        self._workspace[DRAW : REPORT + 1] = self._parts
        self._workspace[MAXIMA : COPY + 1] = start + 8 * np.cumsum([HEADER, *sizes[:-1]])
        return start


@micro(int64, int64, int64, returns=float64)
def _parameter(block: V, name: V, r: V) -> V:
    """The float32 of row r."""
    return V(_Emission.builder.fpext(load(word(block, name) + r * 4, F32).ir, F64))


@micro(int64, int64, int64, returns=int64)
def _start(block: V, name: V, r: V) -> V:
    """The int32 of row r."""
    return load_i32(word(block, name) + r * 4)


@micro(int64, int64, int64, int64)
def _call_part(code: V, block: V, r: V, w: V) -> None:
    b = _Emission.builder
    function = ir.FunctionType(VOID, [I64] * 3).as_pointer()
    b.call(b.inttoptr(code.ir, function), [block.ir, r.ir, w.ir])


# ---- the row


def _rows(block, rows, w):
    """The parts are called by address: compiling them apart takes less time than one tree."""
    for r in range(rows):
        raw = word(block, LOGITS) + r * word(block, STRIDE) * 4
        wanted = _start(block, TOP_LOGPROBS, r)
        store(w + X * 8, raw)
        store_i32(word(block, TOKENS) + r * 4, _start(block, TARGETS, r))
        if _start(block, TARGETS, r) < 0:
            if _edited(block, r):
                if wanted >= 0:
                    copy(raw, word(w, COPY), word(w, VOCAB))
                    store(w + X * 8, word(w, COPY))
                _edit(block, r, word(w, X), w)
            _call_part(word(w, MIROSTAT_DRAW if _start(block, MIROSTAT, r) != 0 else DRAW), block, r, w)
            store(w + X * 8, raw)
        if wanted >= 0:
            _call_part(word(w, REPORT), block, r, w)


# ---- steps 2 to 4: bias, masks, penalties


@jit
def _edited(block, r):
    biased = _start(block, BIAS_STARTS, r) < _start(block, BIAS_STARTS, r + 1)
    penalised = _start(block, SEEN_STARTS, r) < _start(block, SEEN_STARTS, r + 1)
    return biased or penalised or _start(block, MASK_ROWS, r) >= 0


@jit
def _edit(block, r, x, w):
    vocab = word(w, VOCAB)
    for i in range(_start(block, BIAS_STARTS, r), _start(block, BIAS_STARTS, r + 1)):
        t = load_i32(word(block, BIAS_TOKENS) + i * 4)
        if 0 <= t < vocab:
            bias = np.float64(load_f32(word(block, BIAS_VALUES) + i * 4))
            store_f32(x + t * 4, np.float64(load_f32(x + t * 4)) + bias)
    mask = _start(block, MASK_ROWS, r)
    if mask >= 0:
        mask = word(block, MASKS) + mask * word(block, MASK_WORDS) * 4
        if _allowed(block, mask) * 2 > vocab:
            _forbid(block, x, vocab, mask)
        else:
            _allow(block, x, w, mask)
    repetition = np.float64(load_f32(word(block, REPETITION) + r * 4))
    frequency = np.float64(load_f32(word(block, FREQUENCY) + r * 4))
    presence = np.float64(load_f32(word(block, PRESENCE) + r * 4))
    for i in range(_start(block, SEEN_STARTS, r), _start(block, SEEN_STARTS, r + 1)):
        t = load_i32(word(block, SEEN_TOKENS) + i * 4)
        if 0 <= t < vocab:
            generated = load_i32(word(block, SEEN_COUNTS) + i * 4)
            v = np.float64(load_f32(x + t * 4))
            v = v / repetition if v > 0 else v * repetition
            v -= frequency * generated + (presence if generated > 0 else 0.0)
            store_f32(x + t * 4, v)


@micro(int64, returns=int64)
def _ones(bits: V) -> V:
    return call("llvm.ctpop.i64", I64, bits)


@micro(int64, returns=int64)
def _lowest(bits: V) -> V:
    """Number of the lowest bit that is set."""
    return call("llvm.cttz.i64", I64, bits, constant(1, I1))


@jit
def _allowed(block, mask):
    """Bits that are set."""
    count = 0
    for i in range(word(block, MASK_WORDS)):
        count += _ones(load_u32(mask + i * 4))
    return count


@jit
def _forbid(block, x, vocab, mask):
    """x[t] = -inf for the tokens of clear bits: the way where they are few."""
    tokens, aliases = word(block, MASK_TOKENS), word(block, MASK_ALIASES)
    for i in range(word(block, MASK_WORDS)):
        clear = load_u32(mask + i * 4) ^ 0xFFFFFFFF
        while clear != 0:
            bit = i * 32 + _lowest(clear)
            clear &= clear - 1
            if bit < word(block, MASK_BITS):
                t = load_i32(tokens + bit * 4)
                if t < vocab:
                    store_f32(x + t * 4, -np.inf)
    for i in range(word(block, ALIASES)):
        t, bit = load_i32(aliases + i * 8), load_i32(aliases + i * 8 + 4)
        if load_u32(mask + bit // 32 * 4) >> (bit % 32) & 1 == 0 and t < vocab:
            store_f32(x + t * 4, -np.inf)


@jit
def _allow(block, x, w, mask):
    """x[t] = -inf for all tokens but those of set bits: the way where these are few."""
    tokens, aliases, vocab = word(block, MASK_TOKENS), word(block, MASK_ALIASES), word(w, VOCAB)
    count = np.int64(0)
    for i in range(word(block, MASK_WORDS)):
        left = load_u32(mask + i * 4)
        while left != 0:
            bit = i * 32 + _lowest(left)
            left &= left - 1
            if bit < word(block, MASK_BITS):
                count = _put_aside(w, x, load_i32(tokens + bit * 4), vocab, count)
    for i in range(word(block, ALIASES)):
        t, bit = load_i32(aliases + i * 8), load_i32(aliases + i * 8 + 4)
        if load_u32(mask + bit // 32 * 4) >> (bit % 32) & 1 == 1:
            count = _put_aside(w, x, t, vocab, count)
    for t in range(vocab):
        store_f32(x + t * 4, -np.inf)
    for i in range(count):
        move(word(w, VALUES), i, x, load_i32(word(w, IDS) + i * 4))


@jit
def _put_aside(w, x, t, vocab, count):
    if t >= vocab:
        return count
    store_i32(word(w, IDS) + count * 4, t)
    move(x, t, word(w, VALUES), count)
    return count + np.int64(1)


# ---- steps 5 to 13


def _draw(block, r, w):
    store_i32(word(block, TOKENS) + r * 4, _drawn(block, r, w))


@jit
def _is_greedy(temperature, top):
    return temperature <= GREEDY_BELOW or not -HUGE <= top <= HUGE


@jit
def _drawn(block, r, w):
    top = take_maxima(w)
    temperature = _parameter(block, TEMPERATURE, r)
    if _is_greedy(temperature, top):
        return first_with(w, top)
    u = load_f64(word(block, UNIFORM) + r * 16)
    top_k = load_i32(word(block, TOP_K) + r * 4)
    typical_p, top_p = _parameter(block, TYPICAL_P, r), _parameter(block, TOP_P, r)
    min_p, xtc = _parameter(block, MIN_P, r), _parameter(block, XTC_PROBABILITY, r)
    limited = 0 < top_k < word(w, VOCAB)
    excluding = xtc > 0 and load_f64(word(block, UNIFORM) + r * 16 + 8) < xtc
    if not limited and typical_p >= 1 and top_p >= 1 and min_p <= 0 and not excluding:
        return _draw_from_all(w, top, temperature, u)

    weight = -1.0  # of the whole vocabulary, where top_p is of that
    low = -HUGE
    if limited:
        low = np.float64(nth_maximum(w, top_k))
    elif typical_p >= 1 and (top_p < 1 or min_p > 0):
        share = min(min_p, 1.0)  # of the largest weight: no survivor is below
        if top_p < 1:
            weight = take_sums(w, top, 1.0 / temperature)
            share = max(share, (1.0 - top_p) * weight / word(w, VOCAB))
        low = max(low, np.float64(top) + temperature * (math.log(share) - SLACK))
    count = gather(w, np.float32(low))
    if limited:
        count = keep_largest(w, top_k, count)
    weigh(word(w, VALUES), word(w, WEIGHTS), count, top, 1.0 / temperature)
    if typical_p < 1:
        count = _keep_typical(w, typical_p, top, temperature, count)
    if top_p < 1:
        count = keep_prefix(w, word(w, VALUES), count, top_p * (weight if weight > 0 else weight_of(w, count)))
    if min_p > 0:
        count = _keep_likely(w, min(min_p, 1.0), count)
    if excluding:
        count = _exclude_top(w, _parameter(block, XTC_THRESHOLD, r), count)
    return load_i32(word(w, IDS) + _pick(w, count, u) * 4)


@jit
def _pick(w, count, u):
    """The candidate where the running sum passes u * total; the last one if rounding lets none."""
    target, running = u * weight_of(w, count), 0.0
    for i in range(count):
        running += np.float64(load_f32(word(w, WEIGHTS) + i * 4))
        if running > target:
            return i
    return count - 1


@jit
def _draw_from_all(w, top, temperature, u):
    """No filter: find the group by the groups' sums, then the token in it."""
    target = u * take_sums(w, top, 1.0 / temperature)
    before, chosen, running = 0.0, 0, 0.0
    for g in range(word(w, GROUPS)):
        here = np.float64(load_f32(word(w, SUMS) + g * 4))
        if here > 0:
            chosen, before = g, running
            running += here
            if running > target:
                break
    weights = word(w, WEIGHTS)
    weigh(group(w, chosen), weights, GROUP, top, 1.0 / temperature)
    lane = 0
    for i in range(GROUP):
        here = np.float64(load_f32(weights + i * 4))
        before += here
        if here > 0:
            lane = i
            if before > target:
                break
    return chosen * GROUP + lane


@jit
def _keep_typical(w, p, top, temperature, count):
    """Those whose surprise is nearest the mean: |-ln q - entropy| = |z - mean of z| with z = (x - top) / T."""
    values, weights, keys = word(w, VALUES), word(w, WEIGHTS), word(w, KEYS)
    mean = weight = 0.0
    for i in range(count):
        here = np.float64(load_f32(weights + i * 4))
        weight += here
        mean += here * ((np.float64(load_f32(values + i * 4)) - top) / temperature)
    mean /= weight
    for i in range(count):
        store_f32(keys + i * 4, -abs((np.float64(load_f32(values + i * 4)) - top) / temperature - mean))
    return keep_prefix(w, keys, count, p * weight)


@jit
def _keep_likely(w, share, count):
    """min_p: weights of at least this share of the largest left."""
    most = np.float32(0.0)
    for i in range(count):
        most = max(most, load_f32(word(w, WEIGHTS) + i * 4))
    return keep_weights(w, count, share * np.float64(most))


@jit
def _exclude_top(w, threshold, count):
    """XTC: of the tokens with probability >= threshold only the last in falling order stays."""
    values, weights = word(w, VALUES), word(w, WEIGHTS)
    bound = threshold * weight_of(w, count)
    likely = last = 0
    for i in range(count):
        if np.float64(load_f32(weights + i * 4)) >= bound:
            if likely == 0 or load_f32(values + i * 4) <= load_f32(values + last * 4):
                last = i
            likely += 1
    if likely < 2:
        return count
    kept = np.int64(0)
    for i in range(count):
        inside = np.float64(load_f32(weights + i * 4)) < bound or i == last
        keep(w, i, kept)
        kept += inside
    return kept


def _draw_mirostat(block, r, w):
    store_i32(word(block, TOKENS) + r * 4, _drawn_mirostat(block, r, w))


@jit
def _drawn_mirostat(block, r, w):
    """Step 7; updates mu."""
    top = take_maxima(w)
    temperature = _parameter(block, TEMPERATURE, r)
    if _is_greedy(temperature, top):
        return first_with(w, top)
    u = load_f64(word(block, UNIFORM) + r * 16)
    weight = take_sums(w, top, 1.0 / temperature)
    mu = _parameter(block, MU, r)
    if _start(block, MIROSTAT, r) == 1:
        k = _mirostat_count(w, top, weight, temperature, mu)
        count = keep_largest(w, k, gather(w, nth_maximum(w, k)))
        weigh(word(w, VALUES), word(w, WEIGHTS), count, top, 1.0 / temperature)
    else:
        least = min(weight * 2.0**-mu, 1.0)  # the largest weight is 1 and always stays
        low = np.float64(top) + temperature * (math.log(max(least, 1e-300)) - SLACK)
        count = gather(w, np.float32(max(low, -HUGE)))
        weigh(word(w, VALUES), word(w, WEIGHTS), count, top, 1.0 / temperature)
        if weight * 2.0**-mu > 1.0:
            count = keep_largest(w, np.int64(1), count)
            store_f32(word(w, WEIGHTS), 1.0)
        else:
            count = keep_weights(w, count, least)
    i = _pick(w, count, u)
    surprise = -math.log2(np.float64(load_f32(word(w, WEIGHTS) + i * 4)) / weight)  # before truncation
    tau, eta = _parameter(block, MIROSTAT_TAU, r), _parameter(block, MIROSTAT_ETA, r)
    store_f32(word(block, MU) + r * 4, mu - eta * (surprise - tau))
    return load_i32(word(w, IDS) + i * 4)


@jit
def _mirostat_count(w, top, weight, temperature, mu):
    """Mirostat 1: how many tokens to keep, by the Zipf exponent s of the likeliest hundred."""
    count, vocab = gather_largest(w, np.int64(101)), np.float64(word(w, VOCAB))
    values = word(w, VALUES)
    products = squares = 0.0
    for i in range(count - 1):
        here, following = np.float64(load_f32(values + i * 4)), np.float64(load_f32(values + i * 4 + 4))
        if (following - top) / temperature - math.log(weight) < LOG_SMALLEST:
            break
        t = math.log((i + 2.0) / (i + 1.0))
        products += t * ((here - following) / temperature)
        squares += t * t
    s = products / squares if squares > 0 else 1.0
    e = s - 1.0
    if s == 0.0 or e == 0.0:
        return 1
    k = ((e * 2.0**mu) / (1.0 - vocab**-e)) ** (1.0 / s)
    return max(1, np.int64(min(k, vocab))) if k == k else word(w, VOCAB)


# ---- step 1


def _report(block, r, w):
    """Raw logprob and rank of the row's token, and the likeliest ones."""
    token, wanted = _start(block, TOKENS, r), min(_start(block, TOP_LOGPROBS, r), word(w, VOCAB))
    top = take_maxima(w)
    normaliser = np.float64(top) + math.log(take_sums(w, top, 1.0))
    value = load_f32(word(w, X) + token * 4)
    rank = 1
    for g in range(word(w, GROUPS)):
        if load_f32(word(w, MAXIMA) + g * 4) > value:
            for i in range(GROUP):
                rank += load_f32(group(w, g) + i * 4) > value
    store_f32(word(block, LOGPROBS) + r * 4, np.float64(value) - normaliser)
    store_i32(word(block, RANKS) + r * 4, rank)
    if wanted > 0:
        tokens = word(block, TOP_TOKENS) + r * word(block, WIDTH) * 4
        values = word(block, TOP_VALUES) + r * word(block, WIDTH) * 4
        count = gather_largest(w, wanted)
        for i in range(count):
            move(word(w, IDS), i, tokens, i)
            store_f32(values + i * 4, np.float64(load_f32(word(w, VALUES) + i * 4)) - normaliser)
        for t in range(word(w, VOCAB)):
            if count == wanted:
                break
            if load_f32(word(w, X) + t * 4) < -HUGE:  # fewer finite logits than wanted: the impossible follow
                store_i32(tokens + count * 4, t)
                store_f32(values + count * 4, -np.inf)
                count += 1


_PARTS = (_draw, _draw_mirostat, _report)
