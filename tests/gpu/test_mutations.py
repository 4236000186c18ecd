"""Some of the mistakes of mutations.py, found; `make acceptance-mutations` puts in all of them."""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu.mutations import MUTATIONS, Mutation, found, normed

EVERY = 9


def test_every_mistake_can_be_made_in_the_kernels_as_they_are() -> None:
    assert len({str(m) for m in MUTATIONS}) == len(MUTATIONS) >= 40
    for mutation in MUTATIONS:
        assert mutation.applied() != mutation.before


def test_what_is_no_mistake_is_not_found(tmp_path: Path) -> None:
    harmless = Mutation("norm.cu", "for all threads of the block", "for all the threads of a block", normed())
    assert found(harmless, tmp_path / "kernels") is None


@pytest.mark.parametrize("mutation", MUTATIONS[::EVERY], ids=str)
def test_a_mistake_is_found(mutation: Mutation, tmp_path: Path) -> None:
    assert found(mutation, tmp_path / "kernels") is not None
