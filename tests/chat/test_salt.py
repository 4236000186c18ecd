"""Salts are equal only where everything they are made of is."""

from __future__ import annotations

from itertools import combinations

import pytest

from imp.chat.salt import salt
from imp.types import Limits, Request
from tests.toys import Stage, reference

# G07-07: what once shared a cache with something else
APART = {
    "nothing": salt(),
    "salt x": salt("x"),
    "salt y": salt("y"),
    "empty salt": salt(""),
    "adapter x": salt(adapter=b"x"),
    "adapter x, replaced": salt(adapter=b"x2"),
    "adapter x, salt y": salt("y", b"x"),
    "salt that spells an adapter": salt("a\0\0\0\1x"),
    "image x": salt(media=[b"x"]),
    "images x, y": salt(media=[b"x", b"y"]),
    "images y, x": salt(media=[b"y", b"x"]),
    "one image xy": salt(media=[b"xy"]),
    "image x, adapter x, salt x": salt("x", b"x", [b"x"]),
}


def test_all_are_different():  # G07-07
    for (one, a), (other, b) in combinations(APART.items(), 2):
        assert a != b, (one, other)
    assert salt("x", b"y", [b"z"]) == salt("x", b"y", [b"z"]) and salt() == b""


@pytest.mark.parametrize("first", APART)
def test_g07_07_no_key_finds_what_another_has_cached_and_each_finds_its_own(first):
    prompt, stage = tuple(range(40)), Stage(blocks=400)
    order = [first, *(name for name in APART if name != first), first]
    for i, name in enumerate(order):
        request = Request(str(i), prompt, salt=APART[name], limits=Limits(3))
        stage.submit(request)
        stage.run()
        assert stage.transcript[str(i)].essence == reference(request).essence
    cached = [stage.transcript[str(i)].started.cached for i in range(len(order))]
    assert cached == [0] * (len(order) - 1) + [39]
