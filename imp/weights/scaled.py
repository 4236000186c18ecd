"""Matrices of a safetensors directory whose scales are tensors of their own: FP8, NVFP4, MXFP4 and MXFP8.

Which tensors make up a matrix `W` their names and types say, as compressed-tensors, TensorRT Model Optimizer,
transformers' fine-grained FP8 and gpt-oss have them:

| numbers | scales | what |
| --- | --- | --- |
| `W` F8_E4M3 | `W_scale` or `W_scale_inv`: floats, one for all, for a row, or for a block of rows and columns | FP8 |
| `W` F8_E4M3 | `W_scale`: powers of two for 32 columns | MXFP8 |
| `W`, `W_packed` U8 | `W_scale`: F8_E4M3 for 16 columns; `W_scale_2` multiplies all, `W_global_scale` divides | NVFP4 |
| `W`, `W_packed` U8, `W_blocks` U8 [.., 16] | `W_scale` or `W_scales`: powers of two for 32 columns | MXFP4 |

U8: two columns a byte. What such files say of activations is for those who round them, too: here they stay as they are.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from .mapped import MappedFile, TensorEntry
from .quant import F4_E2M1, F8_E4M3, F8_E8M0, FORMATS, QuantFormat, TensorType
from .weight import Scales, UnsupportedModel, Weight

SUFFIXES = ("_packed", "_blocks", "")  # of the name of a matrix's numbers
SCALES = ("_scale", "_scale_inv", "_scales")
WHOLE = {"_scale_2": 1, "_global_scale": -1}  # what multiplies the matrix, by the power of it that does
OF_ACTIVATIONS = (".input_scale", ".input_global_scale", ".k_scale", ".v_scale", ".output_scale")
BYTE_FORMATS = {"F8_E4M3": F8_E4M3, "U8": F8_E8M0, "F8_E8M0": F8_E8M0}  # of scales, by type
IN_GROUPS = {  # (two columns a byte, format of scales): what it is, and how many columns share one
    (True, F8_E4M3): ("NVFP4", 16),
    (True, F8_E8M0): ("MXFP4", 32),
    (False, F8_E8M0): ("MXFP8", 32),
}
FLOATS = ("F32", "F16", "BF16")
USUAL_BLOCK = (128, 128)  # rows and columns with a scale of their own, where the config does not say
MULTIPLE = 32  # of columns: what backends read at a time


@dataclass(frozen=True, slots=True)
class ScaledEntry:
    """A matrix of several tensors, in the place of a `mapped.TensorEntry`."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    size: int  # bytes of all of it
    numbers: TensorEntry
    format: QuantFormat
    scales: Scales

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    @property
    def file(self) -> MappedFile:
        return self.numbers.file

    def weight(self, name: str) -> Weight:
        """The matrix under the name it is wanted by."""
        return Weight(name, _bytes(self.numbers, math.prod(self.shape[:-1])), self.format, self.shape, self.scales)


def assembled(tensors: Mapping[str, TensorEntry], config: Mapping[str, Any]) -> dict[str, TensorEntry | ScaledEntry]:
    """Matrices with their scales under the names of the matrices, and all other tensors.

    config: the model's. Raises InvalidModel where scales do not fit their matrix, UnsupportedModel where it is packed
    in a way that is not read here."""
    quantised = config.get("quantization_config")
    own: Mapping[str, Any] = quantised if isinstance(quantised, dict) else {}
    found: dict[str, TensorEntry | ScaledEntry] = {}
    used: set[str] = set()
    for name, entry in tensors.items():
        base = next(name.removesuffix(suffix) for suffix in SUFFIXES if name.endswith(suffix))
        scales = next((base + each for each in SCALES if base + each in tensors), None)
        if entry.type.name not in ("F8_E4M3", "U8") or scales is None or len(entry.shape) < 2 or not entry.elements:
            continue
        whole = next((base + each for each in WHOLE if base + each in tensors), None)
        found[base] = _scaled(base, entry, tensors[scales], tensors[whole] if whole else None, own)
        used |= {name, scales, whole or name}
    if found and own.get("transform_config"):
        raise UnsupportedModel("config.json: matrices are turned (transform_config), which is not supported")
    rest = {name: e for name, e in tensors.items() if name not in used and not name.endswith(OF_ACTIVATIONS)}
    return rest | found


def _scaled(
    name: str, numbers: TensorEntry, scales: TensorEntry, whole: TensorEntry | None, config: Mapping[str, Any]
) -> ScaledEntry:
    pairs = numbers.type.name == "U8"
    shape = _shape(numbers) if pairs else numbers.shape
    if shape[-1] % MULTIPLE:
        raise UnsupportedModel(f"{numbers.file.name}: {name!r} has {shape[-1]} columns, not a multiple of {MULTIPLE}")
    form = BYTE_FORMATS.get(scales.type.name) or FORMATS.get(scales.type.name)
    if form is None or ((pairs, form) not in IN_GROUPS and (pairs or scales.type.name not in FLOATS)):
        what = f"{name!r} has scales of the type {scales.type.name}"
        raise UnsupportedModel(f"{numbers.file.name}: {what}, which is not supported")
    if (pairs, form) in IN_GROUPS:
        kind, of_columns = IN_GROUPS[pairs, form]
        of_rows, fits = 1, scales.shape == (*shape[:-1], shape[-1] // of_columns)
    else:
        kind, (of_rows, of_columns) = "FP8", _spread(shape, scales, config)
        fits = of_rows > 0
    if not fits:
        raise scales.file.invalid(f"scales {list(scales.shape)} of {name!r} do not fit its shape {list(shape)}")
    data = _bytes(scales, math.prod(scales.shape[:-1]) if of_columns < shape[-1] else scales.elements)
    multipliers = Scales(data, form, of_rows, of_columns, _number(whole))
    size = numbers.size + scales.size + (whole.size if whole else 0)
    return ScaledEntry(name, TensorType(kind, 1, 1), shape, size, numbers, F4_E2M1 if pairs else F8_E4M3, multipliers)


def _shape(numbers: TensorEntry) -> tuple[int, ...]:
    """Of a matrix of two columns a byte."""
    if numbers.name.endswith("_blocks"):
        return (*numbers.shape[:-2], 2 * numbers.shape[-2] * numbers.shape[-1])
    return (*numbers.shape[:-1], 2 * numbers.shape[-1])


def _spread(shape: tuple[int, ...], scales: TensorEntry, config: Mapping[str, Any]) -> tuple[int, int]:
    """Rows and columns that share a float; (0, 0) where there are not as many as that takes."""
    rows, columns = math.prod(shape[:-1]), shape[-1]
    if scales.elements == 1:
        return rows, columns
    if scales.shape in ((rows,), (*shape[:-1], 1)):
        return 1, columns
    for of_rows, of_columns in _blocks(shape, scales.shape, config):
        if scales.shape == (-(-shape[0] // of_rows), -(-columns // of_columns)):
            return of_rows, of_columns
    return 0, 0


def _blocks(shape: tuple[int, ...], scales: tuple[int, ...], config: Mapping[str, Any]) -> list[tuple[int, int]]:
    """Rows and columns of the blocks that scales may be for: what the config says, or groups of a row's columns."""
    if not len(scales) == len(shape) == 2:
        return []
    groups = config.get("config_groups")
    weights = [
        group.get("weights") if isinstance(group, dict) else None
        for group in (groups.values() if isinstance(groups, dict) else ())
    ]
    said = [config.get("weight_block_size"), *(w.get("block_structure") for w in weights if isinstance(w, dict))]
    found = [(each[0], each[1]) for each in said if isinstance(each, list) and _is_block(each)] or [USUAL_BLOCK]
    if scales[1] and shape[1] % scales[1] == 0:
        found.append((1, shape[1] // scales[1]))
    return found


def _is_block(said: list[Any]) -> bool:
    return len(said) == 2 and all(type(size) is int and size > 0 for size in said)


def _number(whole: TensorEntry | None) -> float:
    if whole is None:
        return 1.0
    if whole.elements != 1 or whole.type.name != "F32":
        raise whole.file.invalid(f"tensor {whole.name!r} is not one F32")
    number = float(_bytes(whole, 1).view(np.float32)[0, 0])
    power = next(power for suffix, power in WHOLE.items() if whole.name.endswith(suffix))
    if not (math.isfinite(number) and number > 0):
        raise whole.file.invalid(f"tensor {whole.name!r} is {number}")
    return number**power


def _bytes(entry: TensorEntry, rows: int) -> np.ndarray:
    """uint8 [rows, bytes of one], a view of the file."""
    return entry.file.data[entry.start : entry.start + entry.size].reshape(rows, -1)
