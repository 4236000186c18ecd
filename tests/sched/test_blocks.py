"""The block pool alone: states, hashes, eviction order, pins."""

from __future__ import annotations

import random

import pytest

from imp.sched.blocks import BlockPool, chain


def filled(pool: BlockPool, tokens: list[int], salt: bytes = b"") -> tuple[list[int], list[bytes]]:
    """Blocks held and published as if these tokens had been computed."""
    hashes = chain(tokens, pool.size, salt, [])
    blocks = pool.take(len(hashes))
    assert blocks is not None
    for block, h in zip(blocks, hashes, strict=True):
        pool.publish(block, h)
    return blocks, hashes


def test_taking_more_than_there_is_changes_nothing():
    pool = BlockPool(4, 2)
    assert pool.take(5) is None and pool.available == 4
    assert pool.take(4) is not None and pool.take(1) is None
    assert pool.take(0) == []


def test_released_blocks_are_found_again_until_they_are_evicted():
    pool = BlockPool(4, 2)
    blocks, hashes = filled(pool, [1, 2, 3, 4])
    pool.release(blocks)
    assert pool.match(hashes) == blocks and pool.reclaimable == 2
    pool.check([])
    taken = pool.take(4)
    assert taken is not None and pool.match(hashes) == [] and pool.evictions == 2
    pool.check([taken])


def test_blank_blocks_go_before_cached_ones_and_continuations_before_their_prefix():
    pool = BlockPool(5, 1)
    blocks, hashes = filled(pool, [7, 8, 9])
    pool.release(blocks)
    pool.take(2)
    assert pool.match(hashes) == blocks
    pool.take(1)
    assert pool.match(hashes) == blocks[:2]
    pool.take(1)
    assert pool.match(hashes) == blocks[:1]


def test_using_a_prefix_saves_it_from_eviction():
    pool = BlockPool(4, 1)
    old, old_hashes = filled(pool, [1, 2])
    new, new_hashes = filled(pool, [3, 4])
    pool.release(old)
    pool.release(new)
    pool.share(old)
    pool.release(old)  # used last now
    pool.take(2)
    assert pool.match(old_hashes) == old and pool.match(new_hashes) == []


def test_equal_content_is_published_once():
    pool = BlockPool(4, 2)
    first, hashes = filled(pool, [1, 2])
    second, _ = filled(pool, [1, 2])
    assert pool.match(hashes) == first != second
    pool.release(second)
    assert pool.reclaimable == 0
    pool.check([first])


# G07-07
@pytest.mark.parametrize(
    ("tokens", "salt"),
    [([1, 2, 3, 4], b"x"), ([1, 2, 3, 4], b"y"), ([1, 2, 4, 3], b""), ([0, 0, 3, 4], b""), ([3, 4], b"")],
)
def test_a_hash_depends_on_tokens_on_all_before_them_and_on_the_salt(tokens, salt):
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


def test_pins_hold_blocks_and_are_replaced_by_name():
    pool = BlockPool(6, 1)
    first, _ = filled(pool, [1, 2])
    second, _ = filled(pool, [3])
    pool.pin("a", first)
    pool.pin("b", first[:1])
    pool.release(first)
    assert (pool.pinned, pool.live, pool.available) == (2, 1, 3)
    pool.pin("a", second)
    pool.release(second)
    pool.check([])
    assert (pool.pinned, pool.live, pool.available) == (2, 0, 4)
    pool.unpin("a")
    pool.unpin("a")
    pool.unpin("b")
    pool.check([])
    assert (pool.pinned, pool.available) == (0, 6)


def test_a_pin_may_be_renewed_with_the_blocks_it_has():
    pool = BlockPool(2, 1)
    blocks, hashes = filled(pool, [1, 2])
    pool.pin("a", blocks)
    pool.release(blocks)
    pool.pin("a", blocks)
    pool.check([])
    assert pool.match(hashes) == blocks and pool.pinned_prefix(hashes) == 2


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
    held: list[list[int]] = []
    for _ in range(300):
        action = rng.randrange(6)
        if action < 2:
            tokens = [rng.randrange(2) for _ in range(rng.randrange(12))]
            hashes = chain(tokens, pool.size, b"", [])
            cached = pool.match(hashes)
            if len(hashes) - len(cached) + pool.idle_among(cached) <= pool.available:
                pool.share(cached)
                fresh = pool.take(len(hashes) - len(cached))
                assert fresh is not None
                held.append(cached + fresh)
                for block, h in list(zip(held[-1], hashes, strict=True))[: rng.randrange(12)]:
                    pool.publish(block, h)
        elif action < 4 and held:
            pool.release(held.pop(rng.randrange(len(held))))
        elif action == 4 and held:
            blocks = rng.choice(held)
            pool.pin(rng.choice("ab"), blocks[: rng.randrange(len(blocks) + 1)])
        elif rng.random() < 0.5:
            pool.unpin(rng.choice("ab"))
        elif rng.random() < 0.1:
            pool.reset()
        pool.check(held)
    for blocks in held:
        pool.release(blocks)
    pool.reset()
    pool.check([])
    assert pool.available == pool.count and not pool.by_hash
