"""What a sequence writes is numbered as written, and what it reads as read, whoever reads or writes the same meanwhile.

In the toy model a position has another cell where it is a prompt's than where it is an output's, as in a backend that
computes the two in different arithmetic; so every judge in tests/toys.py tells them apart. Here prompts hold what others
say: only there the cache has one text in both kinds.
"""

from __future__ import annotations

import random
from dataclasses import replace

import pytest

from imp.sched.aside import Aside
from imp.sched.blocks import BlockPool
from imp.sched.speculation import Speculation
from imp.types import Limits, Request, Sampling
from tests.sched.test_blocks import filled
from tests.toys import LANGUAGE, AllowList, Stage, ToyRunner, reference

PROMPT = tuple(range(10))


def turn(name: str, before: Request, tail: int, **changes) -> Request:
    """A request that goes on after what the other one will say."""
    return replace(before, id=name, prompt=(*before.prompt, *reference(before).tokens, *range(tail)), n=1, **changes)


def test_who_writes_keeps_it_though_another_has_read_the_same():
    stage = Stage()
    writer = Request("writer", PROMPT, limits=Limits(20))
    stage.submit(writer)
    stage.step()
    reader = turn("reader", writer, 5, limits=Limits(8))
    stage.submit(reader)  # reads in one step what the other one writes in twenty
    transcript = stage.run()
    assert transcript["writer"].essence == reference(writer).essence
    assert transcript["reader"].essence == reference(reader).essence


def test_who_comes_back_takes_nothing_that_others_have_read_of_his_output():
    stage = Stage(blocks=16, max_rows=1)
    writer = Request("writer", PROMPT, limits=Limits(30))
    stage.submit(writer)
    for _ in range(20):
        stage.step()
    evicting = Request("evicting", tuple(range(100, 160)), limits=Limits(1), priority=-2)
    reader = turn("reader", writer, 8, priority=-1, limits=Limits(1))
    stage.submit(evicting, reader)
    transcript = stage.run()
    assert stage.sched.snapshot().preemptions == 1 and transcript["reader"].finished.usage.cached < len(PROMPT)
    assert transcript["writer"].essence == reference(writer).essence


def test_a_next_turn_takes_the_answer_as_it_was_written():
    stage = Stage()
    first = Request("first", PROMPT, limits=Limits(20))
    stage.submit(first)
    stage.run()
    second = turn("second", first, 7, limits=Limits(8))
    stage.submit(second)
    out = stage.run()["second"]
    assert out.finished.usage.cached == len(PROMPT) + 19  # all but the last token of the answer was computed
    assert out.essence == reference(second, written=range(len(PROMPT), len(PROMPT) + 19)).essence


def test_a_pool_tells_blocks_that_were_read_from_those_that_were_written():
    pool = BlockPool(8, 4, tells_apart=True)
    [read], [h] = filled(pool, [1, 2, 3, 4])
    [written], [same] = pool.take(1), pool.take(1)
    assert pool.publish(written, h, [1, 2, 3, 4], b"", 1) == written and pool.content[written] is None
    assert pool.publish(same, h, [1, 2, 3, 4], b"", 4) == read
    assert pool.serves(read, 4) and not pool.serves(read, 1)


def test_a_beginning_is_copied_up_to_where_the_output_began_unless_it_was_written_as_far():
    pool = BlockPool(8, 4, tells_apart=True)
    blocks, _ = filled(pool, [1, 2, 3, 4])
    [other] = pool.take(1)
    pool.offer(other, [5, 6, 7], blocks[0], 4)
    assert pool.beginning(blocks[0], [5, 6, 7], 4) == (other, 3)
    assert pool.beginning(blocks[0], [5, 6, 7], 2) == (other, 2) and pool.beginning(blocks[0], [5, 6, 7], 0) is None
    [own] = pool.take(1)
    pool.offer(own, [5, 6, 7], blocks[0], 2)
    assert pool.beginning(blocks[0], [5, 6, 7], 2) == (own, 3)


@pytest.mark.parametrize("seed", range(60))
def test_whatever_is_read_meanwhile_outputs_are_those_of_one_alone(seed):
    rng = random.Random(seed)
    size = rng.choice([1, 2, 4, 8])
    blocks = rng.randrange(110 // size, 320 // size)
    rows = rng.randrange(2, 7)
    drafter = (lambda seq, ahead: ahead(rng.randrange(5))) if rng.random() < 0.5 else None
    stage = Stage(
        blocks,
        size,
        runner=ToyRunner(blocks, size, drafter),
        max_rows=rows,
        max_tokens=rows + rng.randrange(2, 40),
        speculation=Speculation(jump_ahead=True),
        aside=rng.choice([None, Aside(rng.randrange(1, 40), rng.randrange(1, 5))]),
    )
    first = []
    for i in range(rng.randrange(3, 7)):
        one = frozenset(rng.sample(LANGUAGE, rng.randrange(1, 4)))
        request = Request(
            f"first {i}",
            tuple(rng.randrange(9) for _ in range(rng.randrange(1, 30))),
            Sampling(seed=rng.randrange(5), logprobs=rng.choice([None, 0]), prompt_logprobs=rng.choice([None, None, 0])),
            Limits(rng.randrange(5, 40)),
            n=rng.choice([1, 1, 2]),
            priority=rng.choice([0, 0, 1]),
            constraint=AllowList((one, frozenset(LANGUAGE))) if rng.random() < 0.3 else None,
        )
        first.append(request)
        stage.submit(request)
        for _ in range(rng.randrange(12)):
            stage.step()
        prompts = Sampling(prompt_logprobs=None)
        changes = {"priority": rng.choice([-1, 0, 1]), "limits": Limits(rng.randrange(1, 12)), "sampling": prompts}
        stage.submit(turn(f"next {i}", rng.choice(first), rng.randrange(1, 12), constraint=None, **changes))
        for _ in range(rng.randrange(12)):
            stage.step()
    transcript = stage.run()
    for request in first:
        for index in range(request.n):
            assert transcript[request.id, index].essence == reference(request, index).essence
