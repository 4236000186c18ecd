"""Every format equals the `gguf` package's dequantiser, bit for bit."""

from __future__ import annotations

import gguf
import numpy as np
import pytest
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType

from imp.weights.quant import FORMATS, GGML_FORMATS, GGML_TYPES

NAMES = [
    *("F32", "F16", "BF16", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q8_0"),
    *("Q2_K", "Q3_K", "Q4_K", "Q5_K", "Q6_K", "IQ4_NL", "IQ4_XS", "MXFP4"),
]

# byte offsets of the float16 scales of a block
HALF_SCALES = {
    **{"Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0], "IQ4_NL": [0], "IQ4_XS": [0]},
    **{"Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208]},
}

EXTREME_HALVES = np.array(
    [0.0, -0.0, 6e-8, -6e-8, 6.1e-5, 65504.0, -65504.0, 1.0, -1.0, 0.333], dtype=np.float16
)  # zeros, smallest subnormals, smallest normal, largest finite values


def judge(name: str, raw: np.ndarray) -> np.ndarray:
    kind = GGMLQuantizationType[name]
    if name in ("F32", "F16"):  # the package wants these already typed
        raw = raw.view({"F32": np.float32, "F16": np.float16}[name])
    return gguf.dequantize(raw, kind)


def assert_same_bits(ours: np.ndarray, theirs: np.ndarray) -> None:
    assert ours.dtype == theirs.dtype == np.float32
    assert ours.shape == theirs.shape
    numbers = ~np.isnan(theirs)
    np.testing.assert_array_equal(np.isnan(ours), ~numbers)
    np.testing.assert_array_equal(ours[numbers].view(np.uint32), theirs[numbers].view(np.uint32))


def random_raw(name: str, rows: int, blocks: int, seed: int) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 256, (rows, blocks * FORMATS[name].size), dtype=np.uint8)


def test_every_promised_format_is_registered():
    assert sorted(FORMATS) == sorted(NAMES)


def test_type_numbers_and_sizes_are_those_of_ggml():
    theirs = {kind.value: (kind.name, *GGML_QUANT_SIZES[kind]) for kind in GGML_QUANT_SIZES}
    assert {number: (t.name, t.block, t.size) for number, t in GGML_TYPES.items()} == theirs
    for number, format in GGML_FORMATS.items():
        assert theirs[number] == (format.name, format.block, format.size)


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning:gguf")
def test_random_blocks_equal_the_judge(name):
    raw = random_raw(name, rows=64, blocks=12, seed=1)
    assert_same_bits(FORMATS[name].dequantize(raw), judge(name, raw))


@pytest.mark.parametrize("name", sorted(HALF_SCALES))
@pytest.mark.parametrize("extreme", EXTREME_HALVES)
def test_extreme_scales_equal_the_judge(name, extreme):
    raw = random_raw(name, rows=8, blocks=4, seed=2)
    blocks = raw.reshape(-1, FORMATS[name].size)
    for offset in HALF_SCALES[name]:
        blocks[:, offset : offset + 2] = np.frombuffer(extreme.tobytes(), np.uint8)
    ours = FORMATS[name].dequantize(raw)
    assert np.isfinite(ours).all()
    assert_same_bits(ours, judge(name, raw))


@pytest.mark.filterwarnings("ignore:overflow:RuntimeWarning:gguf")
def test_every_mxfp4_exponent_equals_the_judge():
    raw = random_raw("MXFP4", rows=256, blocks=1, seed=3)
    raw[:, 0] = np.arange(256)
    ours = FORMATS["MXFP4"].dequantize(raw)
    assert_same_bits(ours, judge("MXFP4", raw))


@pytest.mark.parametrize("name", ["F16", "BF16"])
def test_every_sixteen_bit_pattern_equals_the_judge(name):
    raw = np.arange(65536, dtype="<u2").view(np.uint8).reshape(16, -1)
    assert_same_bits(FORMATS[name].dequantize(raw), judge(name, raw))


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.filterwarnings("ignore:.*:RuntimeWarning:gguf")
def test_leading_dimensions_and_strided_rows_are_kept(name):
    raw = random_raw(name, rows=12, blocks=4, seed=4)
    expected = judge(name, raw)
    shaped = FORMATS[name].dequantize(raw.reshape(3, 4, -1))
    assert_same_bits(shaped, expected.reshape(3, 4, -1))
    half = FORMATS[name].size * 2  # the first two blocks of every other row: not contiguous
    assert_same_bits(FORMATS[name].dequantize(raw[::2, :half]), expected[::2, : FORMATS[name].block * 2])
    assert FORMATS[name].dequantize(raw[:0]).shape == (0, FORMATS[name].block * 4)


@pytest.mark.parametrize(
    ("name", "worst"),
    [("Q4_0", 0.4), ("Q4_1", 0.3), ("Q5_0", 0.2), ("Q5_1", 0.15), ("Q8_0", 0.02), ("BF16", 0.02), ("F16", 0.002)],
)
def test_what_the_judge_quantised_comes_back_close(name, worst):
    values = np.random.default_rng(5).standard_normal((16, 256)).astype(np.float32)
    raw = gguf.quantize(values, GGMLQuantizationType[name]).view(np.uint8)
    assert np.abs(FORMATS[name].dequantize(raw) - values).max() < worst
