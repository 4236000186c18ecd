"""The formats we can dequantise, by name and by GGML type number, and the room every known GGML type takes.

To add a format: a file here, and a line in each of the two tables.
"""

from __future__ import annotations

from .format import QuantFormat, TensorType
from .iq import IQ4_NL, IQ4_XS
from .k_quants import Q2_K, Q3_K, Q4_K, Q5_K, Q6_K
from .legacy import Q4_0, Q4_1, Q5_0, Q5_1, Q8_0
from .mxfp4 import MXFP4
from .plain import BF16, F16, F32
from .small_floats import F4_E2M1, F8_E4M3, F8_E8M0, small_floats

__all__ = [
    "F4_E2M1",
    "F8_E4M3",
    "F8_E8M0",
    "FORMATS",
    "GGML_FORMATS",
    "GGML_TYPES",
    "QuantFormat",
    "TensorType",
    "small_floats",
]

# GGML type number -> format (enum ggml_type of ggml.h)
GGML_FORMATS: dict[int, QuantFormat] = {
    0: F32,
    1: F16,
    2: Q4_0,
    3: Q4_1,
    6: Q5_0,
    7: Q5_1,
    8: Q8_0,
    10: Q2_K,
    11: Q3_K,
    12: Q4_K,
    13: Q5_K,
    14: Q6_K,
    20: IQ4_NL,
    23: IQ4_XS,
    30: BF16,
    39: MXFP4,
}

FORMATS: dict[str, QuantFormat] = {format.name: format for format in GGML_FORMATS.values()}

# types that exist but have no dequantiser here; their room is known, so a file that holds them can still be checked
_UNREADABLE: dict[int, TensorType] = {
    9: TensorType("Q8_1", 32, 40),
    15: TensorType("Q8_K", 256, 292),
    16: TensorType("IQ2_XXS", 256, 66),
    17: TensorType("IQ2_XS", 256, 74),
    18: TensorType("IQ3_XXS", 256, 98),
    19: TensorType("IQ1_S", 256, 50),
    21: TensorType("IQ3_S", 256, 110),
    22: TensorType("IQ2_S", 256, 82),
    24: TensorType("I8", 1, 1),
    25: TensorType("I16", 1, 2),
    26: TensorType("I32", 1, 4),
    27: TensorType("I64", 1, 8),
    28: TensorType("F64", 1, 8),
    29: TensorType("IQ1_M", 256, 56),
    34: TensorType("TQ1_0", 256, 54),
    35: TensorType("TQ2_0", 256, 66),
    40: TensorType("NVFP4", 64, 36),
    41: TensorType("Q1_0", 128, 18),
}

GGML_TYPES: dict[int, TensorType] = {
    number: TensorType(format.name, format.block, format.size) for number, format in GGML_FORMATS.items()
} | _UNREADABLE
