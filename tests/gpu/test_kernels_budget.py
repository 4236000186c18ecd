"""What kernels take of a multiprocessor, by what ptxas reports. The usual variants for one architecture, one of each
file and kind for the others; `make acceptance-gpu` has all of them for all."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from imp.cuda.compile import Source
from tests.gpu.variants import ARCHITECTURES, EVERYWHERE, USUAL, WGMMA, check


@pytest.mark.parametrize("source", [*USUAL, *WGMMA], ids=str)
def test_every_variant_fits(source: Source) -> None:
    check("sm_90a", source)


@pytest.mark.parametrize("architecture", sorted({*ARCHITECTURES} - {"sm_90a"}))
@pytest.mark.parametrize("source", EVERYWHERE, ids=str)
def test_every_kind_fits_everywhere(architecture: str, source: Source) -> None:
    check(architecture, source)
