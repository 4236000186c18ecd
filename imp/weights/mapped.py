"""Files mapped into memory, and tensors as checked byte ranges of them. Knows neither GGUF nor safetensors."""

from __future__ import annotations

import errno
import math
import mmap
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from .quant import FORMATS, TensorType
from .weight import InvalidModel, UnsupportedModel, Weight

MAX_DIMENSION = 1 << 48  # no file is that large; keeps every product far from the 64-bit limits


@dataclass(frozen=True, slots=True, eq=False)
class MappedFile:
    """A whole file as read-only bytes. The mapping lives until the last array over it is gone."""

    path: Path
    data: np.ndarray  # uint8 [file size]

    @property
    def name(self) -> str:
        return self.path.name

    def invalid(self, fault: str) -> InvalidModel:
        return InvalidModel(f"{self.name}: {fault}")


def map_file(path: Path) -> MappedFile:
    """Raises InvalidModel where the file cannot be read or is empty, MemoryError where there is no room to map it."""
    try:
        with path.open("rb") as file:
            mapping = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
    except FileNotFoundError as error:
        raise InvalidModel(f"{path.name}: there is no such file in {path.parent}") from error
    except OSError as error:
        if error.errno == errno.ENOMEM:
            raise MemoryError(f"{path.name} cannot be mapped: {error.strerror}") from error
        raise InvalidModel(f"{path.name}: cannot be read ({error.strerror or error})") from error
    except ValueError as error:  # what mmap says of an empty file
        raise InvalidModel(f"{path.name}: the file is empty") from error
    return MappedFile(path, np.frombuffer(mapping, dtype=np.uint8))


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """A tensor's place: bytes [start, start + size) of `file`, already known to lie inside it."""

    name: str
    type: TensorType
    shape: tuple[int, ...]
    file: MappedFile
    start: int
    size: int

    @property
    def elements(self) -> int:
        return math.prod(self.shape)

    def weight(self, name: str) -> Weight:
        """The tensor under the name it is wanted by. Raises UnsupportedModel where its type has no dequantiser."""
        format = FORMATS.get(self.type.name)
        if format is None:
            raise UnsupportedModel(
                f"{self.file.name}: tensor {self.name!r} has the type {self.type.name}, which is not supported; "
                f"supported are {', '.join(FORMATS)}"
            )
        rows = math.prod(self.shape[:-1])
        data = self.file.data[self.start : self.start + self.size].reshape(rows, self.size // rows if rows else 0)
        return Weight(name, data, format, self.shape)


def tensor_size(type: TensorType, shape: tuple[int, ...], refuse: Callable[[str], Exception]) -> int:
    """Bytes of a tensor. Raises what `refuse` makes of the fault where its rows are not whole blocks."""
    if any(n > MAX_DIMENSION for n in shape):
        raise refuse(f"has an impossible shape {list(shape)}")
    last = shape[-1] if shape else 1
    if last % type.block:
        raise refuse(f"has rows of {last} elements, which is not a multiple of {type.name}'s block of {type.block}")
    return math.prod(shape) // type.block * type.size


def refuse_overlaps(entries: Iterable[TensorEntry]) -> None:
    """Entries of one file. Raises InvalidModel where two of them share bytes."""
    previous: TensorEntry | None = None
    for entry in sorted((e for e in entries if e.size), key=lambda e: e.start):
        if previous is not None and entry.start < previous.start + previous.size:
            raise entry.file.invalid(
                f"tensors {previous.name!r} and {entry.name!r} overlap at byte {entry.start} of the file"
            )
        previous = entry


def main_type(sizes: Iterable[tuple[str, int]]) -> str:
    """Of (type, bytes) of tensors, the name of the type that holds most bytes; "F32" where there are none."""
    held: Counter[str] = Counter()
    for name, size in sizes:
        held[name] += size
    return held.most_common(1)[0][0] if held else "F32"
