"""W3C Trace Context: the specification's own examples, and nonsense."""

from __future__ import annotations

import random
import re

import pytest

from imp.obs.trace import begin, join

TRACE, SPAN = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
VALID = f"00-{TRACE}-{SPAN}-01"


def test_a_callers_trace_is_joined_with_a_span_of_our_own() -> None:
    context = join([VALID], ["rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"])
    assert context is not None
    assert (context.trace_id, context.parent_id, context.sampled) == (TRACE, SPAN, True)
    assert context.state == "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE"
    assert re.fullmatch(r"[0-9a-f]{16}", context.span_id) and context.span_id != SPAN
    assert context.traceparent == f"00-{TRACE}-{context.span_id}-01"


@pytest.mark.parametrize("flags, sampled", [("00", False), ("01", True), ("02", False), ("03", True), ("ff", True)])
def test_only_the_lowest_flag_says_sampled(flags: str, sampled: bool) -> None:
    context = join([f"00-{TRACE}-{SPAN}-{flags}"], [])
    assert context is not None and context.sampled is sampled and context.traceparent.endswith(f"-{sampled:02d}")


@pytest.mark.parametrize(
    "parents",
    [
        [],
        [""],
        [VALID, VALID],
        [VALID.upper()],
        [VALID + "-more"],
        [VALID[:-1]],
        [VALID.replace("-", "_")],
        [f"ff-{TRACE}-{SPAN}-01"],
        [f"00-{'0' * 32}-{SPAN}-01"],
        [f"00-{TRACE}-{'0' * 16}-01"],
        [f"00-{TRACE}-{SPAN}-0g"],
        [f"01-{TRACE}-{SPAN}-01x"],
    ],
)
def test_what_is_not_valid_is_no_parent(parents: list[str]) -> None:
    assert join(parents, []) is None


def test_a_later_version_may_say_more() -> None:
    context = join([f"cc-{TRACE}-{SPAN}-01-what-the-future-will-be-like"], [])
    assert context is not None and context.trace_id == TRACE


@pytest.mark.parametrize(
    "states, kept",
    [
        (["a=1", "b=2"], "a=1,b=2"),
        ([" a=1 ,\tb=2 ,"], "a=1,b=2"),
        (["tenant@vendor=x y"], "tenant@vendor=x y"),
        (["a=1,a=2"], ""),
        (["A=1"], ""),
        (["a"], ""),
        (["a=é"], ""),
        (["a=1 =2"], ""),
        ([",".join(f"k{i}=1" for i in range(32))], ",".join(f"k{i}=1" for i in range(32))),
        ([",".join(f"k{i}=1" for i in range(33))], ""),
        (["a=" + "x" * 600], ""),
    ],
)
def test_a_tracestate_is_passed_on_or_left_out_whole(states: list[str], kept: str) -> None:
    context = join([VALID], states)
    assert context is not None and context.state == kept


def test_own_traces_differ() -> None:
    one, other = begin(), begin()
    assert one.trace_id != other.trace_id and one.sampled and one.parent_id is None
    assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-01", one.traceparent)


def test_nonsense_is_no_parent_or_a_well_formed_one_seed_5() -> None:
    rng = random.Random(5)
    joined = 0
    for _ in range(5000):
        text = list(VALID)
        for _ in range(rng.choice((0, 1, 1, 2))):
            text[rng.randrange(len(text))] = chr(rng.choice((rng.randrange(128), rng.randrange(48, 103), 0x663)))
        context = join(["".join(text)], ["".join(chr(rng.randrange(256)) for _ in range(rng.randrange(20)))])
        if context is not None:
            joined += 1
            assert re.fullmatch(r"00-[0-9a-f]{32}-[0-9a-f]{16}-0[01]", context.traceparent)
            assert context.parent_id and re.fullmatch(r"[0-9a-f]{16}", context.parent_id)
    assert 1000 < joined < 5000
