"""Mistakes put into the CUDA kernels, one at a time: the checks of the kernels find every one.

make acceptance-mutations; prints how each was found, and "N injected, N caught".
"""

from __future__ import annotations

from pathlib import Path

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from tests.gpu.mutations import MUTATIONS, found


def test_every_mistake_is_found(tmp_path: Path) -> None:
    missed = []
    for k, mutation in enumerate(MUTATIONS):
        how = found(mutation, tmp_path / str(k))
        print(f"{'caught' if how else 'MISSED'}  {mutation}\n        {how or ''}"[:240], flush=True)
        if how is None:
            missed.append(str(mutation))
    print(f"{len(MUTATIONS)} injected, {len(MUTATIONS) - len(missed)} caught")
    assert not missed
