"""The machine code of a history: where a run of tokens stood before, and what came after it.

A history is an int64 header (the words below) over three int32 arrays: the tokens; a hash table whose entry says where
the last run of LEAST tokens with that hash ended; and the chain from there to the runs before it (LZ77's hash chains).
Adding a token costs a few nanoseconds whatever the length, and a search looks at CANDIDATES places at most, so both are
bounded for every text. A place is the index of the token behind a run; 0 ends a chain. GAP stands between texts: it
matches nothing, and no guess goes across it.

Where the text was last found to follow a place is kept as its cursor. Text that was changed is mostly followed by what
followed it in the original: so while no run of LEAST tokens is back in step, places near the cursor are tried whose
token before is the last one; and if there is none, the original at the same distance, as if tokens had been replaced.
"""

from __future__ import annotations

import numpy as np

from ..jit import carray, njit, pointer

GAP = -1
(
    COUNT, MASK, LEAST,  # tokens; entries of the table - 1; tokens of the shortest run that is found
    TOKENS, CHAIN, TABLE,  # addresses
    CURSOR, CURSOR_AT,  # the place that followed the text when it had CURSOR_AT tokens; -1: none
    EXPECTED,  # so many tokens at the beginning are not the text but what is expected of it
    WORDS,
) = range(10)  # fmt: skip

LONGEST = 32  # a match of so many tokens is as good as any
CANDIDATES = 24  # places tried
BACK, AHEAD = 8, 24  # near the cursor: tokens before it, and behind it
REPLACED = 4  # tokens after which text at the same distance is given up ...
LOST = 48  # ... and after which the cursor is

RUN, NEAR, REPLACEMENT = range(3)  # how a guess was found
LENGTH_BITS = 8  # a result is tokens | matched << 8 | how << 16 | tokens that were expected << 24; 0: nothing


@njit
def _hash(tokens, end, least, mask):
    x = np.uint64(0)
    for i in range(end - least, end):
        x = (x ^ np.uint64(np.uint32(tokens[i]))) * np.uint64(0x9E3779B97F4A7C15)
        x ^= x >> np.uint64(29)
    return np.int64((x >> np.uint64(32)) & np.uint64(mask))


@njit
def _append(header, fresh, count):
    """Room is the caller's care."""
    n, mask, least = header[COUNT], header[MASK], header[LEAST]
    tokens = carray(pointer(header[TOKENS]), n + count, np.int32)
    chain = carray(pointer(header[CHAIN]), n + count + 1, np.int32)
    table = carray(pointer(header[TABLE]), mask + 1, np.int32)
    for i in range(count):
        tokens[n] = fresh[i]
        n += 1
        if n >= least:
            slot = _hash(tokens, n, least, mask)
            chain[n] = table[slot]
            table[slot] = n
    header[COUNT] = n


@njit
def _matched(tokens, place, query, end):
    """How many tokens before `place` are those before `end` of the query, LONGEST at most."""
    length = 0
    while length < LONGEST and length < place and length < end:
        token = tokens[place - 1 - length]
        if token == GAP or token != query[end - 1 - length]:
            break
        length += 1
    return length


@njit
def _longest_run(header, tokens, query, end, last):
    """(place, length) of the longest match; of equal ones the latest. Length 0: none. Nothing comes after `last`."""
    least, mask = header[LEAST], header[MASK]
    place, length = 0, 0
    if end < least:
        return place, length
    chain = carray(pointer(header[CHAIN]), header[COUNT] + 1, np.int32)
    table = carray(pointer(header[TABLE]), mask + 1, np.int32)
    at = table[_hash(query, end, least, mask)]
    for _ in range(CANDIDATES):
        if at == 0 or length == LONGEST:
            break
        if at < last and tokens[at] != GAP:
            here = _matched(tokens, at, query, end)
            if here >= least and here > length:
                place, length = at, here
        at = chain[at]
    return place, length


@njit
def _near(header, tokens, end, expected):
    """The place nearest to the `expected` one whose token before is the last, and how many match; length 0: none."""
    for distance in range(AHEAD + 1):
        for side in range(2):
            place = expected + distance if side == 0 else expected - distance
            if (side == 1 and (distance == 0 or distance > BACK)) or place < 1 or place >= header[COUNT]:
                continue
            if tokens[place] == GAP:
                continue
            length = _matched(tokens, place, tokens, end)
            if length > 0:
                return place, length
    return 0, 0


@njit
def _result(header, tokens, place, end, out, most, how, length):
    """Write the guess that begins at `place`. What runs over the text's end goes on with the guess itself."""
    count = 0
    while count < most:
        at = place + count
        token = tokens[at] if at < end else out[at - end]
        if token == GAP:
            break
        out[count] = token
        count += 1
    if count == 0:
        return 0
    expected = min(max(header[EXPECTED] - place, 0), count)
    return count | length << LENGTH_BITS | how << 2 * LENGTH_BITS | expected << 3 * LENGTH_BITS


def extend(header_address, fresh, count, unused, unused_too):
    """Append `count` tokens (address of int32)."""
    header = carray(pointer(header_address), WORDS, np.int64)
    _append(header, carray(pointer(fresh), count, np.int32), count)
    return 0


def continue_own(header_address, buffer, fresh, ahead, most):
    """Append the first `fresh` tokens of the buffer and guess what follows them and the next `ahead` tokens, which are
    looked at and not kept. The guess, `most` tokens at most, takes the place of what was in the buffer."""
    header = carray(pointer(header_address), WORDS, np.int64)
    given = carray(pointer(buffer), fresh + ahead + most, np.int32)
    _append(header, given, fresh)
    n = header[COUNT]
    end = n + ahead
    tokens = carray(pointer(header[TOKENS]), end, np.int32)
    for i in range(ahead):
        tokens[n + i] = given[fresh + i]
    place, length = _longest_run(header, tokens, tokens, end, end)
    how = RUN
    cursor, advanced = header[CURSOR], end - header[CURSOR_AT]
    if cursor >= 0 and advanced > LOST:
        header[CURSOR] = cursor = -1
    followed = cursor + advanced
    if cursor >= 0 and 0 < followed < end and tokens[followed] != GAP:
        here = _matched(tokens, followed, tokens, end)
        if here >= max(length, header[LEAST]):  # of places that are as good, the one in the text that is followed
            place, length = followed, here
    if cursor >= 0 and length <= 2:
        near, close = _near(header, tokens, end, followed)
        if close > 0 and close >= length:
            place, length, how = near, close, NEAR
    if length > 2 or how == NEAR:
        header[CURSOR], header[CURSOR_AT] = place, end
    elif length == 0:
        if cursor < 0 or advanced > REPLACED or followed >= n:
            return 0
        place, how = followed, REPLACEMENT
    return _result(header, tokens, place, end, given, most, how, length)


def continue_other(header_address, other, ahead, buffer, most):
    """As continue_own, from this history, of what ends with the `other` one's tokens and the `ahead` behind them."""
    header = carray(pointer(header_address), WORDS, np.int64)
    theirs = carray(pointer(other), WORDS, np.int64)
    end = theirs[COUNT] + ahead
    query = carray(pointer(theirs[TOKENS]), end, np.int32)
    tokens = carray(pointer(header[TOKENS]), header[COUNT], np.int32)
    place, length = _longest_run(header, tokens, query, end, header[COUNT])
    if length == 0:
        return 0
    most = min(most, header[COUNT] - place)
    return _result(header, tokens, place, header[COUNT], carray(pointer(buffer), most, np.int32), most, RUN, length)
