"""Machine code of one kernel of each kind: 128-bit loads, matrix instructions, no local memory. `make acceptance-gpu` looks
at all."""

from __future__ import annotations

import pytest

pytest.importorskip("cuda.bindings", reason="needs the cuda packages")

from imp.cuda.compile import Source
from tests.gpu.sass import check, disassembler
from tests.gpu.variants import ATTEND, EMBED, LINEAR, PLAIN, ROTATE, WGMMA

pytestmark = pytest.mark.skipif(disassembler() is None, reason="needs cuobjdump")


@pytest.mark.parametrize(
    "source",
    [LINEAR[4], LINEAR[9], LINEAR[20], WGMMA[0], WGMMA[6], EMBED[3], *PLAIN[:2], ROTATE[4], ATTEND[6], ATTEND[-3]],
    ids=str,
)
def test_machine_code(source: Source) -> None:
    check("sm_90a", source)
