"""The candidates of one row of logits: found, weighed, ordered and compacted without sorting the vocabulary.

Owns the workspace of a row and the passes over the vocabulary. Knows no plans and no parameters of sampling: sample.py
composes these. Functions take the workspace's address `w`; it starts with the words below.
"""

from __future__ import annotations

import numpy as np

from ..jit import njit
from .simd import (
    I1,
    I8,
    I32,
    I64,
    V,
    _Emission,
    bits,
    call,
    constant,
    exp,
    f32x8,
    float32,
    int64,
    largest,
    load,
    load_f32,
    load_f32x8,
    load_f64,
    load_i32,
    loop,
    maximum,
    micro,
    select,
    splat,
    store,
    store_f32,
    store_i32,
    total,
    word,
    zeros,
)

GROUP = 64  # tokens whose maximum is kept
BUCKETS = 512
SMALL = 32  # so few candidates are put in order by insertion
HUGE = float(np.finfo(np.float32).max)  # candidates are finite

# Words at the start of the workspace: the row at hand (its address and length), its groups, and addresses of arrays
(
    X, VOCAB, GROUPS,
    MAXIMA, SUMS,  # float32 [groups]
    TAIL,  # float32 [64]: the last group, filled up with -inf
    IDS, VALUES, WEIGHTS,  # int32, float32, float32: the candidates
    KEYS, SPARE_KEYS, SPARE_WEIGHTS,  # float32, as many
    HISTOGRAM,  # float64 [BUCKETS]
    COPY,  # float32: a row whose raw logits are still needed
    DRAW, MIROSTAT_DRAW, REPORT,  # machine code
) = range(17)  # fmt: skip
HEADER = 24


# ---- micro-kernels


@micro(int64, returns=float32)
def _group_maximum(p: V) -> V:
    v = [load_f32x8(p + i * 32) for i in range(GROUP // 8)]
    while len(v) > 1:
        v = [maximum(a, b) for a, b in zip(v[::2], v[1::2], strict=True)]
    return largest(v[0])


def _weight(x: V, top: V, rate: V) -> V:
    """exp((x - top) * rate), 0 below e^-87."""
    z = (x - top) * rate
    return select(z < -87.0, zeros(f32x8), exp(z))


@micro(int64, float32, float32, returns=float32)
def _group_sum(p: V, top: V, rate: V) -> V:
    """Sum of the weights of a group."""
    v = [_weight(load_f32x8(p + i * 32), splat(top), splat(rate)) for i in range(GROUP // 8)]
    while len(v) > 1:
        v = [a + b for a, b in zip(v[::2], v[1::2], strict=True)]
    return total(v[0])


@micro(int64, int64, int64, float32, float32)
def weigh(values: V, weights: V, count: V, top: V, rate: V) -> None:
    """Weights of values; up to 7 past `count` are written too."""
    for i in loop(0, count, 8):
        store(weights + i * 4, _weight(load_f32x8(values + i * 4), splat(top), splat(rate)))


@micro(int64, float32, returns=int64)
def _at_least(p: V, low: V) -> V:
    """Bit i is set where float i of 8 is >= low."""
    mask = load_f32x8(p) >= splat(low)
    return V(_Emission.builder.zext(bits(mask, I8).ir, I64))


@micro(int64, returns=int64)
def _first_bit(a: V) -> V:
    return call("llvm.cttz.i64", I64, a, constant(1, I1))


@micro(int64, int64, int64, int64)
def move(source: V, at: V, destination: V, to: V) -> None:
    """destination[to] = source[at], 4 bytes."""
    store(destination + to * 4, load(source + at * 4, I32))


@micro(int64, int64, int64)
def keep(w: V, at: V, to: V) -> None:
    """Candidate `at` becomes candidate `to`."""
    for array in (IDS, VALUES, WEIGHTS):
        move(word(w, array), at, word(w, array), to)


@micro(int64, int64, int64)
def copy(source: V, destination: V, count: V) -> None:
    for i in loop(count):
        move(source, i, destination, i)


@micro(int64, int64, returns=int64)
def group(w: V, g: V) -> V:
    """Address of the logits of group g."""
    return select(g < word(w, VOCAB) / GROUP, word(w, X) + g * (GROUP * 4), word(w, TAIL))


# The functions below pass numbers on as np.int64(n), because Numba compiles anew for every literal.
jit = njit(error_model="numpy")


# ---- passes over the vocabulary, a group at a time


@jit
def take_maxima(w):
    """Fill MAXIMA and TAIL; returns the largest logit."""
    maxima, vocab = word(w, MAXIMA), word(w, VOCAB)
    for i in range(GROUP):
        t = vocab // GROUP * GROUP + i
        store_f32(word(w, TAIL) + i * 4, load_f32(word(w, X) + t * 4) if t < vocab else -np.inf)
    top = np.float32(-np.inf)
    for g in range(word(w, GROUPS)):
        here = _group_maximum(group(w, g))
        store_f32(maxima + g * 4, here)
        top = max(top, here)
    return top


@jit
def take_sums(w, top, rate):
    """Fill SUMS with the weights of every group; returns the weight of all tokens."""
    sums, weight = word(w, SUMS), 0.0
    for g in range(word(w, GROUPS)):
        here = _group_sum(group(w, g), top, rate)
        store_f32(sums + g * 4, here)
        weight += np.float64(here)
    return weight


@jit
def first_with(w, top):
    """The lowest token id whose logit is `top`; 0 if none is."""
    for g in range(word(w, GROUPS)):
        if load_f32(word(w, MAXIMA) + g * 4) == top:
            for i in range(GROUP):
                if load_f32(group(w, g) + i * 4) == top and g * GROUP + i < word(w, VOCAB):
                    return g * GROUP + i
    return 0


@jit
def gather(w, low):
    """Candidates become all tokens with logits >= low, which is finite. Returns how many."""
    maxima, ids, values = word(w, MAXIMA), word(w, IDS), word(w, VALUES)
    count = np.int64(0)
    for g in range(word(w, GROUPS)):
        if load_f32(maxima + g * 4) >= low:
            here = group(w, g)
            for i in range(0, GROUP, 8):
                found = _at_least(here + i * 4, low)
                while found != 0:
                    lane = i + _first_bit(found)
                    store_i32(ids + count * 4, g * GROUP + lane)
                    move(here, lane, values, count)
                    count += 1
                    found &= found - 1
    return count


# ---- order without sorting


@jit
def _prefix(w, keys, weights, count, target):
    """The shortest prefix, in falling order of keys (equals: as they come), whose weights add up to `target`.

    Returns (lowest key inside, how many of those equal to it are inside): at least one, all if the sum is not reached.
    """
    spare_keys, spare_weights, histogram = word(w, SPARE_KEYS), word(w, SPARE_WEIGHTS), word(w, HISTOGRAM)
    above = 0.0  # weight of everything known to be inside
    low = high = np.float32(0.0)
    while True:
        if count <= SMALL:
            _insert(keys, weights, count, spare_keys, spare_weights)
            keys, weights = spare_keys, spare_weights
            break
        low = high = load_f32(keys)
        for i in range(1, count):
            key = load_f32(keys + i * 4)
            low, high = min(low, key), max(high, key)
        if low == high:
            break
        scale = (BUCKETS - 1) / (np.float64(high) - np.float64(low))
        _fill_histogram(histogram, keys, weights, count, high, scale)
        chosen, running = 0, above
        for b in range(BUCKETS):
            here = load_f64(histogram + b * 8)
            if here > 0.0:
                chosen, above = b, running
                running += here
                if running >= target:
                    break
        kept = np.int64(0)
        for i in range(count):
            inside = np.int64((np.float64(high) - load_f32(keys + i * 4)) * scale) == chosen
            move(keys, i, spare_keys, kept)
            move(weights, i, spare_weights, kept)
            kept += inside
        count, keys, weights = kept, spare_keys, spare_weights
    ties, last = 0, np.float32(0.0)
    for i in range(count):
        key = load_f32(keys + i * 4)
        ties = ties + 1 if i > 0 and key == last else 1
        last = key
        above += load_f32(weights + i * 4)
        if above >= target:
            break
    return last, ties


@jit
def _fill_histogram(histogram, keys, weights, count, high, scale):
    """Weight by key: bucket 0 holds the highest."""
    for b in range(BUCKETS):
        store(histogram + b * 8, 0.0)
    for i in range(count):
        at = histogram + np.int64((np.float64(high) - load_f32(keys + i * 4)) * scale) * 8
        store(at, load_f64(at) + load_f32(weights + i * 4))


@jit
def _insert(keys, weights, count, to_keys, to_weights):
    """Put in falling order, stably, into other arrays or in place."""
    for i in range(count):
        key, weight, j = load_f32(keys + i * 4), load_f32(weights + i * 4), i
        while j > 0 and load_f32(to_keys + (j - 1) * 4) < key:
            move(to_keys, j - 1, to_keys, j)
            move(to_weights, j - 1, to_weights, j)
            j -= 1
        store_f32(to_keys + j * 4, key)
        store_f32(to_weights + j * 4, weight)


@jit
def nth_maximum(w, n):
    """The n-th largest finite group maximum: at least n logits are as large. -HUGE if there are not so many."""
    maxima, keys, weights = word(w, MAXIMA), word(w, SPARE_KEYS), word(w, SPARE_WEIGHTS)
    count = np.int64(0)
    for g in range(word(w, GROUPS)):
        move(maxima, g, keys, count)
        store_f32(weights + count * 4, 1.0)
        count += load_f32(maxima + g * 4) >= -HUGE
    if n > count:
        return np.float32(-HUGE)
    return _prefix(w, keys, weights, count, np.float64(n))[0]


@jit
def keep_prefix(w, keys, count, target):
    """Compact the candidates to the shortest prefix in falling order of keys with this weight."""
    low, ties = _prefix(w, keys, word(w, WEIGHTS), count, target)
    kept = np.int64(0)
    for i in range(count):
        key = load_f32(keys + i * 4)
        inside = key > low or (key == low and ties > 0)
        ties -= key == low
        keep(w, i, kept)
        kept += inside
    return kept


@jit
def keep_weights(w, count, bound):
    """Compact the candidates to those of at least this weight."""
    weights, kept = word(w, WEIGHTS), np.int64(0)
    for i in range(count):
        inside = np.float64(load_f32(weights + i * 4)) >= bound
        keep(w, i, kept)
        kept += inside
    return kept


@jit
def weight_of(w, count):
    weight = 0.0
    for i in range(count):
        weight += np.float64(load_f32(word(w, WEIGHTS) + i * 4))
    return weight


@jit
def keep_largest(w, k, count):
    """top_k."""
    if count <= k:
        return count
    for i in range(count):
        store_f32(word(w, WEIGHTS) + i * 4, 1.0)
    return keep_prefix(w, word(w, VALUES), count, np.float64(k))


@jit
def gather_largest(w, n):
    """Candidates become the n largest finite logits, falling (equals: lower ids first). Returns how many."""
    count = keep_largest(w, n, gather(w, nth_maximum(w, n)))
    ids, values = word(w, IDS), word(w, VALUES)
    gap = 1
    while gap < count:
        gap = 3 * gap + 1
    while gap > 0:  # Shell's sort
        for i in range(gap, count):
            value, t, j = load_f32(values + i * 4), load_i32(ids + i * 4), i
            while j >= gap:
                other = load_f32(values + (j - gap) * 4)
                if other > value or (other == value and load_i32(ids + (j - gap) * 4) < t):
                    break
                move(values, j - gap, values, j)
                move(ids, j - gap, ids, j)
                j -= gap
            store_f32(values + j * 4, value)
            store_i32(ids + j * 4, t)
        gap //= 3
    return count
