"""Matrices of 8- and 4-bit floats as they are, for backends that multiply these: kinds beside those of `fields.py`.

| kind | a weight is |
| --- | --- |
| fp8 | row * e4m3 |
| fp8_blocks | row * d * e4m3, with a float16 d for 32 columns |
| nvfp4 | row * s * e2m1, with an e4m3 s for 16 columns |
| mxfp4 | row * 2 ** (p - 24) * e2m1, with p from 0 to 24 for 32 columns |

`row` is a float32 for each row. What that costs: nothing but fp8_blocks, whose d, at most 1, are rounded to 2^-11 of
themselves, and mxfp4 where a power is less than 2^-24 of the row's largest and taken for that.
"""

from __future__ import annotations

import numpy as np

from .fields import BLOCK, Fields, Reader
from .quant import F4_E2M1, F8_E4M3, F8_E8M0
from .weight import Weight

LARGEST_POWER = 24


def reader(weight: Weight) -> tuple[str, Reader] | None:
    """The kind of the weight and what reads some of its rows; None where it is of none of these.

    Fields: q as in fields.py; of 32 columns `powers`, uint8 [rows, blocks], or `e4m3`, two of them as uint16 [rows,
    blocks], or float16 d; row: float32 [rows]."""
    if weight.format.name == "MXFP4":
        return "mxfp4", _read_gguf_mxfp4
    scales = weight.scales
    if weight.format is F8_E4M3:
        if scales is None or scales.of_columns >= weight.shape[-1]:
            return "fp8", _read_fp8
        return ("fp8_blocks", _read_fp8_blocks) if scales.of_columns % BLOCK == 0 else None
    if weight.format is F4_E2M1 and scales is not None and scales.of_rows == 1:
        return GROUPED.get((scales.format.name, scales.of_columns))
    return None


def _read_fp8(weight: Weight, rows: slice) -> Fields:
    scales = _scales(weight, rows)
    return {"q": _e4m3(weight, rows), "row": scales[:, 0]}


def _read_fp8_blocks(weight: Weight, rows: slice) -> Fields:
    assert weight.scales
    q, scales = _e4m3(weight, rows), _scales(weight, rows)
    largest = np.abs(scales).max(axis=1)
    row = np.where(largest > 0, largest, np.float32(1))
    d = np.repeat(scales / row[:, None], weight.scales.of_columns // BLOCK, axis=1)[:, : q.shape[1]]
    return {"q": q, "d": d.astype(np.float16), "row": row}


def _read_nvfp4(weight: Weight, rows: slice) -> Fields:
    assert weight.scales
    e4m3 = np.ascontiguousarray(weight.scales.data[rows]).view("<u2")
    whole = np.full(len(e4m3), weight.scales.whole, np.float32)
    return {"q": _e2m1(weight, rows), "e4m3": e4m3, "row": whole}


def _read_mxfp4(weight: Weight, rows: slice) -> Fields:
    assert weight.scales
    return {"q": _e2m1(weight, rows), **_powers(weight.scales.data[rows])}


def _read_gguf_mxfp4(weight: Weight, rows: slice) -> Fields:
    """Powers are one more than those of its doubled numbers (quant/mxfp4.py): those of e2m1."""
    records = np.ascontiguousarray(weight.data[rows]).view(np.dtype([("e", "u1"), ("q", "u1", 16)]))
    return {"q": np.ascontiguousarray(records["q"]).view("<u4"), **_powers(records["e"])}


GROUPED: dict[tuple[str, int], tuple[str, Reader]] = {  # e2m1, by format of scales and how many columns share one
    ("F8_E4M3", 16): ("nvfp4", _read_nvfp4),
    ("F8_E8M0", 32): ("mxfp4", _read_mxfp4),
}


def _powers(exponents: np.ndarray) -> Fields:
    """e8m0 uint8 [rows, blocks] as powers less than the largest of their row."""
    largest = exponents.max(axis=1)
    powers = exponents.astype(np.int16) - largest[:, None] + LARGEST_POWER
    return {"powers": np.maximum(powers, 0).astype(np.uint8), "row": F8_E8M0.dequantize(largest[:, None])[:, 0]}


def _scales(weight: Weight, rows: slice) -> np.ndarray:
    """float32 [rows, scales of a row]."""
    found = range(*rows.indices(len(weight.data)))
    return np.ones((len(found), 1), np.float32) if weight.scales is None else weight.scales.values(found)


def _e4m3(weight: Weight, rows: slice) -> np.ndarray:
    """Quads [rows, blocks, 8]."""
    data = np.ascontiguousarray(weight.data[rows])
    return data.view("<u4").reshape(len(data), -1, BLOCK // 4)


def _e2m1(weight: Weight, rows: slice) -> np.ndarray:
    """Quads [rows, blocks, 4] of columns j and j + 16, from bytes of columns 2 j and 2 j + 1."""
    data = weight.data[rows].reshape(len(weight.data[rows]), -1, BLOCK // 2)
    codes = np.stack([data & 15, data >> 4], axis=-1).reshape(*data.shape[:2], BLOCK)
    return (codes[..., : BLOCK // 2] | codes[..., BLOCK // 2 :] << 4).view("<u4")
