"""Matrices with scales in tensors of their own: what was written by other programs is read as these read it."""

from __future__ import annotations

import json
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file

from imp.weights import small
from imp.weights.checkpoint import InvalidModel, UnsupportedModel, Weight, open_checkpoint
from imp.weights.quant import F4_E2M1, F8_E4M3, F8_E8M0, FORMATS
from tests.weights.test_safetensors import directory, line, packed

SCALED = Path(__file__).parent / "golden/scaled"  # by golden/make_scaled.py
EXPECTED = load_file(SCALED / "expected.safetensors")
SIZES = {"U8": 1, "F8_E4M3": 1, "F8_E8M0": 1, "BF16": 2, "F16": 2, "F32": 4}


@pytest.mark.parametrize("name", sorted(EXPECTED))
def test_other_programs_matrices(name):
    checkpoint = open_checkpoint(SCALED)
    assert name in checkpoint
    weight = checkpoint.weight(name)
    assert weight.shape == EXPECTED[name].shape
    np.testing.assert_allclose(weight.float32(), EXPECTED[name], rtol=1e-6, atol=0)
    flat = EXPECTED[name].reshape(len(weight.data), -1)
    for rows in (slice(3, 9), slice(5, 6), slice(0, 0), slice(10, 99)):
        np.testing.assert_allclose(weight.values(rows), flat[rows], rtol=1e-6, atol=0)


def test_what_a_matrix_consists_of_is_no_tensor_of_its_own():
    checkpoint = open_checkpoint(SCALED)
    assert set(checkpoint.names()) == set(EXPECTED)
    assert checkpoint.parameters == sum(each.size for each in EXPECTED.values())
    assert checkpoint.quantization == "FP8"
    assert not checkpoint.weight("nvfp4.weight").data.flags.owndata


def small_float(code: int, exponent: int, mantissa: int) -> Fraction:
    """OCP: (-1)^s 2^(e - bias) (1 + m), subnormal for e = 0."""
    sign, power = -1 if code >> exponent + mantissa else 1, code >> mantissa & (1 << exponent) - 1
    fraction, bias = Fraction(code & (1 << mantissa) - 1, 1 << mantissa), (1 << exponent - 1) - 1
    return sign * (fraction + (power > 0)) * Fraction(2) ** (max(power, 1) - bias)


def test_every_code():
    codes = np.arange(256, dtype=np.uint8)[None]
    e4m3 = F8_E4M3.dequantize(codes)[0]
    assert all(np.isnan(e4m3[code]) for code in (0x7F, 0xFF))
    assert all(Fraction(float(e4m3[c])) == small_float(c, 4, 3) for c in range(256) if c & 0x7F != 0x7F)
    pairs = F4_E2M1.dequantize(codes)[0].reshape(256, 2)
    assert all(
        Fraction(float(v)) == small_float(c >> 4 * i & 15, 2, 1) for c in range(256) for i, v in enumerate(pairs[c])
    )
    powers = F8_E8M0.dequantize(codes)[0]
    assert np.isnan(powers[255]) and all(Fraction(float(powers[c])) == Fraction(2) ** (c - 127) for c in range(255))


def model(path: Path, config: dict[str, object] | None = None, **tensors: tuple[str, list[int]]) -> Path:
    """Tensors of ones' bytes, by name with __ for dots."""
    header, end = {}, 0
    for name, (kind, shape) in tensors.items():
        size = int(np.prod(shape)) * SIZES[kind]
        header[name.replace("__", ".")] = line(kind, shape, (end, end + size))
        end += size
    directory(path, packed(header, b"\x3f" * end))
    (path / "config.json").write_text(json.dumps({"model_type": "llama", "quantization_config": config or {}}))
    return path


@pytest.mark.parametrize(
    ("tensors", "kind", "why"),
    [
        ({"w": ("F8_E4M3", [4, 64]), "w_scale": ("F32", [3])}, InvalidModel, "do not fit"),
        ({"w": ("F8_E4M3", [4, 64]), "w_scale": ("F32", [2, 3])}, InvalidModel, "do not fit"),
        ({"w": ("F8_E4M3", [4, 64]), "w_scale": ("U8", [4, 3])}, InvalidModel, "do not fit"),
        ({"w": ("F8_E4M3", [4, 40]), "w_scale": ("F32", [])}, UnsupportedModel, "40 columns, not a multiple of 32"),
        ({"w": ("F8_E4M3", [4, 64]), "w_scale": ("F8_E4M3", [4, 4])}, UnsupportedModel, "scales of the type F8_E4M3"),
        ({"w_packed": ("U8", [4, 32]), "w_scale": ("F32", [4, 4])}, UnsupportedModel, "scales of the type F32"),
        ({"w_packed": ("U8", [4, 32]), "w_scale": ("F8_E4M3", [4, 2])}, InvalidModel, "do not fit"),
        (
            {"w": ("U8", [4, 32]), "w_scale": ("F8_E4M3", [4, 4]), "w_scale_2": ("F32", [2])},
            InvalidModel,
            "is not one F32",
        ),
        ({"w_blocks": ("U8", [4, 2, 16]), "w_scales": ("U8", [4, 3])}, InvalidModel, "do not fit"),
    ],
)
def test_what_does_not_fit_is_refused(tmp_path, tensors, kind, why):
    with pytest.raises(kind, match=why):
        open_checkpoint(model(tmp_path, **tensors))


def test_rows_of_blocks_are_those_the_config_says(tmp_path):
    path = model(
        tmp_path, {"weight_block_size": [3, 32]}, w=("F8_E4M3", [4, 64]), w_scale_inv=("F32", [2, 2]), v=("F32", [4])
    )
    scales = open_checkpoint(path).weight("w").scales
    assert (scales.of_rows, scales.of_columns) == (3, 32)


def test_other_ways_of_packing_are_refused(tmp_path):
    checkpoint = open_checkpoint(model(tmp_path, {"quant_method": "awq"}, w__qweight=("U8", [4, 64])))
    with pytest.raises(UnsupportedModel, match=r"'w.weight' is quantised in a way that is not supported \(awq\)"):
        checkpoint.weight("w.weight")
    turned = {"transform_config": {"config_groups": {}}}
    with pytest.raises(UnsupportedModel, match="transform_config"):
        open_checkpoint(model(tmp_path, turned, w=("F8_E4M3", [4, 64]), w_scale=("F32", [])))


def whole(kind: str, fields: dict[str, np.ndarray]) -> np.ndarray:
    """float64 [rows, columns] of the fields of a kind, as small.py describes it."""
    q, row = np.ascontiguousarray(fields["q"]).view(np.uint8), fields["row"].astype(np.float64)[:, None, None]
    if kind.startswith("fp8"):
        numbers = np.array([float(small_float(code, 4, 3)) for code in range(256)])[q]
        return (row * numbers * fields.get("d", np.float64(1))[..., None]).reshape(len(q), -1)
    halves = np.concatenate([q & 15, q >> 4], axis=-1)
    numbers = np.array([float(small_float(code, 2, 1)) for code in range(16)])[halves]
    if kind == "mxfp4":
        return (row * 2.0 ** (fields["powers"][..., None].astype(float) - 24) * numbers).reshape(len(q), -1)
    pairs = np.ascontiguousarray(fields["e4m3"]).view(np.uint8)
    of_16 = np.array([float(small_float(code, 4, 3)) for code in range(256)])[pairs].reshape(len(q), -1, 1)
    return (row * of_16 * numbers.reshape(len(q), -1, 16)).reshape(len(q), -1)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        *(("tensor.weight", "fp8"), ("channel.weight", "fp8"), ("block.weight", "fp8_blocks")),
        *(("fine.weight", "fp8_blocks"), ("mxfp8.weight", "fp8_blocks"), ("nvfp4.weight", "nvfp4")),
        *(("optimizer.weight", "nvfp4"), ("mxfp4.weight", "mxfp4"), ("experts.up", "mxfp4")),
    ],
)
def test_kinds_of_small_floats(name, kind):
    weight = open_checkpoint(SCALED).weight(name)
    found, read = small.reader(weight)
    assert found == kind
    exact = 1e-6 if kind != "fp8_blocks" else 2.0**-11
    expected = EXPECTED[name].reshape(len(weight.data), -1)
    for rows in (slice(0, 99), slice(3, 8)):
        np.testing.assert_allclose(whole(kind, read(weight, rows)), expected[rows], rtol=exact, atol=0)


def test_gguf_mxfp4_and_other_formats():
    rng = np.random.default_rng(0)
    data = rng.integers(0, 256, (9, 3, 17), dtype=np.uint8)
    data[..., 0] = rng.integers(100, 124, (9, 3))
    weight = Weight("w", data.reshape(9, -1), FORMATS["MXFP4"], (9, 96))
    kind, read = small.reader(weight)
    np.testing.assert_array_equal(whole(kind, read(weight, slice(0, 9))), weight.float32())
    assert small.reader(Weight("w", data.reshape(9, -1)[:, :34], FORMATS["Q4_0"], (9, 32))) is None


def test_powers_far_below_a_row_s_largest_are_next_to_nothing():
    data = np.full((2, 2, 17), 0x77, np.uint8)
    data[..., 0] = [[130, 90], [0, 0]]
    weight = Weight("w", data.reshape(2, -1), FORMATS["MXFP4"], (2, 64))
    kind, read = small.reader(weight)
    found = whole(kind, read(weight, slice(0, 2)))
    assert (found[0, :32] == 6 * 2.0**3).all() and (found[0, 32:] == 6 * 2.0**-21).all()
    assert (found[1] == weight.float32()[1]).all()
