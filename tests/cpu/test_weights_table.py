"""What docs/WEIGHTS.md says formats are kept as is what they are kept as."""

from __future__ import annotations

from bench import weights
from bench.lines import with_section


def test_the_table_is_what_bench_weights_writes():
    page = weights.DOCS.read_text()
    assert page == with_section(page, weights.section(), *weights.MARKS), "run python -m bench.weights --write-docs"


def test_a_loss_is_that_of_the_kind():
    """Formats that lose nothing lose nothing; Q2_K is requantised to steps of 1/127 of the largest of 16."""
    lost = {name: weights.loss(given) for name, given in weights.examples().items()}
    assert [name for name, loss in lost.items() if not loss] == [
        *("F32", "F16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0", "IQ4_NL", "BF16", "MXFP4"),
    ]
    assert 1e-3 < lost["Q2_K"] < 1 / 127 and max(lost[name] for name in ("Q3_K", "IQ4_XS", "NVFP4")) < 2**-11
