"""The formats in which keys and values can be kept, and which one a model gets."""

from __future__ import annotations

from ..model.ops import Model
from .codes import E2M1, E4M3, INT4, INT8, MXFP4, NVFP4, UINT4, coded, one_scale
from .kept import BRAIN, FLOAT, HALF, Kept, floats

KEPT: dict[str, Kept] = {
    each.name: each
    for each in (
        floats("fp32", FLOAT),
        floats("fp16", HALF),
        floats("bf16", BRAIN),
        coded("fp8", E4M3, one_scale(448)),
        coded("int8", INT8, one_scale(127)),
        coded("int4", UINT4, INT4),
        coded("nvfp4", E2M1, NVFP4),
        coded("mxfp4", E2M1, MXFP4),
    )
}


def kept_for(model: Model, dtype: str = "auto") -> Kept:
    """The format of this name; auto: floats of 32 bits for a model whose matrices are all float32, of which float32
    results are expected: halves would be its largest error. For all others the halves' error is below that of their own
    weights, and they take half the room."""
    if dtype != "auto":
        return KEPT[dtype]
    return KEPT["fp32" if model.formats == {"F32"} else "fp16"]
