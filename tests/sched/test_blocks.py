"""The block pool alone: states, hashes, eviction order, pins."""

from __future__ import annotations

import random
from hashlib import blake2b

import pytest

from imp.sched.blocks import BlockPool, chain


def publish(pool: BlockPool, blocks: list[int], tokens: list[int], salt: bytes = b"", first: int = 0) -> list[bytes]:
    """Full blocks of these tokens become known, from the `first` on; `blocks` are then those to hold."""
    hashes, size = chain(tokens, pool.size, salt, []), pool.size
    for i in range(first, len(hashes)):
        before = blocks[i - 1] if i else salt
        blocks[i] = pool.publish(blocks[i], hashes[i], tokens[i * size : (i + 1) * size], before, size)
    return hashes


def filled(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> tuple[list[int], list[bytes]]:
    """Blocks held and published as if these tokens had been computed."""
    blocks = pool.take(len(tokens) // pool.size)
    assert blocks is not None
    return blocks, publish(pool, blocks, tokens, salt)


def test_taking_more_than_there_is_changes_nothing():
    pool = BlockPool(4, 2)
    assert pool.take(5) is None and pool.available == 4
    assert pool.take(4) is not None and pool.take(1) is None
    assert pool.take(0) == []


def test_a_pool_grows_before_anything_is_evicted_and_only_as_far_as_it_may():
    pool = BlockPool(8, 2, most=13)
    blocks, hashes = filled(pool, list(range(16)))
    pool.release(blocks)
    taken = pool.take(1)
    assert taken == [8] and pool.count == 10 and pool.evictions == 0  # by a quarter
    assert pool.match(hashes, list(range(16)), b"") == blocks
    assert pool.make_available(13) is False and pool.count == 13
    more = pool.take(4)
    assert more is not None and pool.evictions == 0
    last = pool.take(1)
    assert last is not None and pool.evictions == 1 and pool.count == 13
    pool.check([taken + more + last])


def test_a_pool_that_is_granted_nothing_evicts():
    asked: list[int] = []

    def none(wanted: int) -> int:
        asked.append(wanted)
        return 0

    pool = BlockPool(4, 1, most=100, grant=none)
    blocks, _ = filled(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert pool.take(2) is not None and pool.evictions == 2 and asked == [2]
    assert pool.take(3) is None and pool.make_available(2) and not pool.make_available(3)
    pool.check([pool_held(pool)])


def pool_held(pool: BlockPool) -> list[int]:
    return [block for block, refs in enumerate(pool.refs) if refs]


def test_released_blocks_are_found_again_until_they_are_evicted():
    pool = BlockPool(4, 2)
    blocks, hashes = filled(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert pool.match(hashes, [1, 2, 3, 4], b"") == blocks and pool.reclaimable == 2
    pool.check([])
    taken = pool.take(4)
    assert taken is not None and pool.match(hashes, [1, 2, 3, 4], b"") == [] and pool.evictions == 2
    pool.check([taken])


def test_blank_blocks_go_before_cached_ones_and_continuations_before_their_prefix():
    pool = BlockPool(5, 1)
    blocks, hashes = filled(pool, [7, 8, 9])
    pool.release(blocks)
    pool.take(2)
    assert pool.match(hashes, [7, 8, 9], b"") == blocks
    pool.take(1)
    assert pool.match(hashes, [7, 8, 9], b"") == blocks[:2]
    pool.take(1)
    assert pool.match(hashes, [7, 8, 9], b"") == blocks[:1]


def test_blocks_without_content_are_taken_before_older_ones_with_content():
    pool = BlockPool(6, 1)
    blocks, hashes = filled(pool, [7, 8, 9])
    pool.release(blocks)
    rest = pool.take(3)
    pool.release(rest)
    pool.take(3)
    assert pool.match(hashes, [7, 8, 9], b"") == blocks and pool.evictions == 0


def test_using_a_prefix_saves_it_from_eviction():
    pool = BlockPool(4, 1)
    old, old_hashes = filled(pool, [1, 2])
    new, new_hashes = filled(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    pool.share(old)
    pool.release(old)  # used last now
    pool.take(2)
    assert pool.match(old_hashes, [1, 2], b"") == old and pool.match(new_hashes, [3, 4], b"") == []


def test_equal_blocks_become_one():
    pool = BlockPool(4, 2)
    first, hashes = filled(pool, [1, 2])
    second, _ = filled(pool, [1, 2])
    assert pool.match(hashes, [1, 2], b"") == first == second and pool.available == 3
    pool.release(second)
    assert pool.reclaimable == 0
    pool.check([first])


def test_a_prefix_outlives_its_continuations_whoever_computed_them():
    """Two compute the same beginning side by side; the first one leaves early, and its block is the older one."""
    pool = BlockPool(4, 1)
    early, late = pool.take(1), pool.take(2)
    publish(pool, early, [1])
    hashes = publish(pool, late, [1, 2])
    pool.release(early)
    pool.release(late)
    pool.check([])
    pool.take(3)
    assert pool.match(hashes, [1, 2], b"") == late[:1]


def test_a_beginning_is_found_behind_a_block_and_the_longest_is_taken():
    pool = BlockPool(8, 4)
    blocks, _ = filled(pool, [1, 2, 3, 4, 5, 6, 7, 8])
    rest, other = pool.take(1), pool.take(1)
    pool.offer(rest[0], [5, 6, 9], blocks[0], pool.size)
    pool.offer(other[0], [6], blocks[0], pool.size)
    assert pool.beginning(blocks[0], [5, 6, 7, 1], pool.size) == (blocks[1], 3)
    assert pool.beginning(blocks[0], [5, 6, 9, 1], pool.size) == (rest[0], 3)
    assert pool.beginning(blocks[0], [6, 6], pool.size) == (other[0], 1)
    assert pool.beginning(blocks[0], [7], pool.size) is None and pool.beginning(blocks[1], [5], pool.size) is None
    pool.check([blocks, rest, other])
    for each in (rest, other, blocks):
        pool.release(each)
    pool.check([])
    taken = pool.take(7)  # all but the first block
    assert pool.beginning(blocks[0], [5, 6], pool.size) is None
    pool.check([taken])


def test_what_is_offered_while_it_fills_is_one_block_when_it_is_full():
    pool = BlockPool(4, 2)
    blocks = pool.take(2)
    publish(pool, blocks, [1, 2])
    pool.offer(blocks[1], [3], blocks[0], pool.size)
    pool.check([blocks])
    hashes = publish(pool, blocks, [1, 2, 3, 4], first=1)
    assert pool.match(hashes, [1, 2, 3, 4], b"") == blocks
    assert pool.beginning(blocks[0], [3, 5], pool.size) == (blocks[1], 1)
    pool.check([blocks])
    again = pool.take(2)
    publish(pool, again, [1, 2])
    pool.offer(again[1], [3, 4], again[0], pool.size)  # is known already, so it stays its holder's own
    publish(pool, again, [1, 2, 3, 4], first=1)
    assert again == blocks
    pool.check([blocks, again])


@pytest.mark.parametrize(
    ("tokens", "salt"),
    [([1, 2, 3, 4], b"x"), ([1, 2, 3, 4], b"y"), ([1, 2, 4, 3], b""), ([0, 0, 3, 4], b""), ([3, 4], b"")],
)
def test_g07_07_a_hash_depends_on_tokens_on_all_before_them_and_on_the_salt(tokens, salt):
    plain = chain([1, 2, 3, 4], 2, b"", [])
    assert chain(tokens, 2, salt, [])[-1] not in plain


def test_a_salt_that_equals_a_block_hash_does_not_continue_that_block():
    first, second = chain([1, 2, 3, 4], 2, b"", [])
    assert chain([3, 4], 2, first, []) != [second]


def test_a_chain_is_the_same_whether_it_grew_or_was_made_at_once():
    tokens = list(range(23))
    grown: list[bytes] = []
    for end in range(24):
        chain(tokens[:end], 4, b"s", grown)
    assert grown == chain(tokens, 4, b"s", []) and len(grown) == 5


def test_g07_07_a_hash_that_says_too_little_never_gives_away_the_wrong_block(monkeypatch):
    """With hashes of a few values, everything collides; what is found is what was asked for nevertheless."""

    def weak(data=b"", *, digest_size=32, person=b""):
        return blake2b(data, digest_size=1, person=person)

    monkeypatch.setattr("imp.sched.blocks.blake2b", weak)
    for seed in range(30):
        rng = random.Random(seed)
        pool = BlockPool(400, 2)
        written: dict[int, tuple[bytes, list[int]]] = {}  # block -> all that its content depends on
        found = collided = 0
        for _ in range(80):
            salt = rng.choice([b"", b"x", b"y"])
            tokens = [rng.randrange(4) for _ in range(2 * rng.randrange(1, 7))]
            hashes = chain(tokens, 2, salt, [])
            known = pool.match(hashes, tokens, salt)
            collided += any(h in pool.by_hash for h in hashes[len(known) :])
            for i, block in enumerate(known):
                assert written[block] == (salt, tokens[: 2 * i + 2])
            found += len(known)
            pool.share(known)
            blocks = known + (pool.take(len(hashes) - len(known)) or [])
            for i in range(len(known), len(hashes)):
                written[blocks[i]] = salt, tokens[: 2 * i + 2]
            publish(pool, blocks, tokens, salt, len(known))
            pool.release(blocks)
            pool.check([])
        assert found and collided


def test_pins_hold_blocks_and_the_oldest_give_way():
    pool = BlockPool(6, 1)
    first, hashes = filled(pool, [1, 2])
    second, _ = filled(pool, [3])
    pool.pin(first, 2)
    pool.release(first)
    assert (pool.pinned, pool.live, pool.available) == (2, 1, 3)
    pool.pin(second, 2)
    pool.release(second)
    pool.check([])
    assert (pool.pinned, pool.live, pool.available) == (1, 0, 5)
    assert pool.match(hashes, [1, 2], b"") == first  # not pinned any more, but not evicted yet
    assert pool.unpin_oldest() and not pool.unpin_oldest()
    pool.check([])
    assert (pool.pinned, pool.available) == (0, 6)


def test_a_longer_pin_spends_those_it_contains():
    pool = BlockPool(8, 1)
    blocks, _ = filled(pool, [1, 2, 3])
    for length in (1, 2, 2, 3):
        pool.pin(blocks[:length], 5)
        assert pool.pinned == length and len(pool.pins) == 1
    pool.release(blocks)
    pool.check([])


def test_check_notices_a_leak_and_a_double_free():
    pool = BlockPool(4, 1)
    blocks = pool.take(2)
    assert blocks is not None
    with pytest.raises(AssertionError, match="leaked"):
        pool.check([blocks[:1]])
    pool.release(blocks)
    with pytest.raises(AssertionError, match="leaked"):
        pool.check([blocks])


@pytest.mark.parametrize("seed", range(20))
def test_random_use_keeps_every_invariant(seed):
    rng = random.Random(seed)
    pool = BlockPool(rng.randrange(1, 30), rng.randrange(1, 4))
    size = pool.size
    held: list[list[int]] = []
    for _ in range(300):
        action = rng.randrange(6)
        if action < 2:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(12))]
            hashes = chain(tokens, size, b"", [])
            known = pool.match(hashes, tokens, b"")
            if -(-len(tokens) // size) - len(known) + pool.idle_among(known) <= pool.available:
                pool.share(known)
                fresh = pool.take(-(-len(tokens) // size) - len(known))
                assert fresh is not None
                blocks = known + fresh
                full = rng.randrange(len(known), len(hashes) + 1)
                publish(pool, blocks, tokens[: full * size], first=len(known))
                rest = tokens[full * size : (full + 1) * size]
                if 0 < full < len(blocks) and len(rest[: size - 1]):
                    pool.offer(blocks[full], rest[: rng.randrange(1, size)] if size > 1 else [], blocks[full - 1], size)
                held.append(blocks)
        elif action < 4 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif action == 4 and held:
            blocks = [b for b in rng.choice(held) if pool.content[b] and pool.content[b].hash]
            pool.pin(blocks[: rng.randrange(len(blocks) + 1)], rng.randrange(10))
        elif rng.random() < 0.5:
            pool.unpin_oldest()
        elif rng.random() < 0.1 and not held:
            pool.reset()
        pool.check(held)
    for blocks in held:
        pool.release(blocks)
    pool.reset()
    pool.check([])
    assert pool.available == pool.count and not pool.by_hash
