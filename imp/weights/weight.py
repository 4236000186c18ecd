"""The plain values every checkpoint format is read into, and the two ways reading can fail. Knows no file format."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from .quant import QuantFormat

CHUNK = 1 << 20  # elements dequantised at a time: the temporaries of a format are several times its output


class InvalidModel(Exception):
    """The files are broken or contradict each other. The message is one sentence that names the file and the fault."""


class UnsupportedModel(Exception):
    """The files are sound but need something this server does not have. The message is one sentence."""


class ContextTooLong(UnsupportedModel):
    """More positions are asked for than the model was made for. The message is one sentence."""


@dataclass(frozen=True, slots=True, eq=False)
class Scales:
    """What the numbers of a matrix are multiplied by, where that lies in tensors of its own.

    data: uint8 [rows of scales, bytes per row], read-only, numbers of `format`: each is for `of_rows` rows and
    `of_columns` columns. whole: for all of the matrix.
    """

    data: np.ndarray
    format: QuantFormat
    of_rows: int
    of_columns: int
    whole: float = 1.0

    def values(self, rows: range) -> np.ndarray:
        """float32 [rows, scales of a row] of neighbouring rows."""
        first = rows.start // self.of_rows
        few = self.format.dequantize(self.data[first : -(-rows.stop // self.of_rows)]) * np.float32(self.whole)
        return few[np.arange(rows.start, rows.stop) // self.of_rows - first]


@dataclass(frozen=True, slots=True, eq=False)
class Weight:
    """A tensor as it lies in the file, with the format of its bytes.

    data: uint8 [rows, bytes per row], read-only; a view of the file's mapping unless rows had to be reordered. Rows
    are the product of all dimensions but the last; vectors and scalars have one row.
    shape: logical, row-major: (out, in) for matrices, (n,) for vectors.
    scales: what numbers of the format are multiplied by; None: nothing.
    """

    name: str
    data: np.ndarray
    format: QuantFormat
    shape: tuple[int, ...]
    scales: Scales | None = None

    def values(self, rows: slice) -> np.ndarray:
        """Some rows dequantised: float32 [rows, columns]."""
        numbers = self.format.dequantize(self.data[rows])
        if self.scales is None:
            return numbers
        scales = self.scales.values(range(*rows.indices(len(self.data))))
        return numbers * np.repeat(scales, self.scales.of_columns, axis=1)[:, : numbers.shape[1]]

    def float32(self) -> np.ndarray:
        """Dequantised copy: float32 of shape `shape`."""
        rows, row_bytes = self.data.shape
        columns = row_bytes // self.format.size * self.format.block
        out = np.empty((rows, columns), dtype=np.float32)
        step = max(1, CHUNK // max(1, columns))
        for start in range(0, rows, step):
            out[start : start + step] = self.values(slice(start, start + step))
        return out.reshape(self.shape)


@dataclass(frozen=True, slots=True)
class TokenizerFiles:
    """The tokenizer of a Hugging Face directory."""

    tokenizer_json: bytes | None
    config: dict[str, Any] = field(default_factory=dict)  # tokenizer_config.json
    special_tokens: dict[str, Any] = field(default_factory=dict)  # special_tokens_map.json


@dataclass(frozen=True, slots=True)
class GgufVocabulary:
    """The tokenizer of a GGUF file: `general.architecture` and every `tokenizer.*` key.

    String arrays are `StringArray` (a `Sequence[str]` decoded on access, with `raw(i) -> bytes`), numeric arrays are
    read-only NumPy views; both keep the file mapped for as long as they are held.
    """

    metadata: Mapping[str, Any]
