"""The GGUF container: header, metadata, tensor table. Knows bytes and bounds, not what the keys mean.

Format: versions 2 and 3 of the GGUF specification (docs/gguf.md of the GGML project), little-endian. Nothing read
from the file is trusted: every count is held against the bytes that are left before anything is made of it.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, overload

import numpy as np

from .mapped import MappedFile, TensorEntry, refuse_overlaps, tensor_size
from .quant import GGML_TYPES
from .weight import InvalidModel, UnsupportedModel

MAGIC = b"GGUF"
VERSIONS = (2, 3)
MAX_KEYS = 1 << 16
MAX_TENSORS = 1 << 17
MAX_KEY_BYTES = 65535  # of the specification
MAX_NAME_BYTES = 64  # of the specification
MAX_TEXT_BYTES = 1 << 26  # one string value; chat templates are the longest in practice
MAX_DIMENSIONS = 4
MAX_ALIGNMENT = 1 << 20
MAX_DEPTH = 4  # arrays in arrays
MAX_NESTED = 1 << 16  # arrays that are elements of arrays, in one file
DEFAULT_ALIGNMENT = 32

BOOL, STRING, ARRAY = 7, 8, 9
NUMBERS: dict[int, str] = {
    **{0: "<u1", 1: "<i1", 2: "<u2", 3: "<i2", 4: "<u4", 5: "<i4"},
    **{6: "<f4", 10: "<u8", 11: "<i8", 12: "<f8"},
}  # value type -> NumPy dtype
SMALLEST = {BOOL: 1, STRING: 8, ARRAY: 12} | {kind: np.dtype(dtype).itemsize for kind, dtype in NUMBERS.items()}

_U32 = struct.Struct("<I").unpack_from
_U64 = struct.Struct("<Q").unpack_from


class StringArray(Sequence[str]):
    """Strings that stay in the file until asked for. Raises InvalidModel for one that is not UTF-8."""

    __slots__ = ("_data", "_file", "_starts")

    def __init__(self, file: MappedFile, starts: array[int]) -> None:
        """starts: where each string's bytes begin, and where one more would; 8 bytes of length lie between them."""
        self._file = file
        self._data = memoryview(file.data)
        self._starts = starts

    def __len__(self) -> int:
        return len(self._starts) - 1

    def raw(self, index: int) -> bytes:
        """The undecoded bytes of one string."""
        if not -len(self) <= index < len(self):
            raise IndexError(index)
        index %= len(self)
        return bytes(self._data[self._starts[index] : self._starts[index + 1] - 8])

    @overload
    def __getitem__(self, index: int) -> str: ...
    @overload
    def __getitem__(self, index: slice) -> list[str]: ...
    def __getitem__(self, index: int | slice) -> str | list[str]:
        if isinstance(index, slice):
            return [self._text(i) for i in range(*index.indices(len(self)))]
        return self._text(index)

    def __iter__(self) -> Iterator[str]:
        data = self._data
        try:
            for start, after in pairwise(self._starts):
                yield str(data[start : after - 8], "utf-8")
        except UnicodeDecodeError as error:
            raise self._not_text() from error

    def _text(self, index: int) -> str:
        try:
            return self.raw(index).decode()
        except UnicodeDecodeError as error:
            raise self._not_text() from error

    def _not_text(self) -> InvalidModel:
        return self._file.invalid(f"a string of an array of {len(self)} is not UTF-8")


class Cursor:
    """A position in the file that only moves over bytes that exist. `what` names what is being read, for errors."""

    __slots__ = ("at", "end", "file", "nested")

    def __init__(self, file: MappedFile) -> None:
        self.file = file
        self.nested = MAX_NESTED  # how many more arrays in arrays there may be
        self.at = 0
        self.end = len(file.data)

    @property
    def left(self) -> int:
        return self.end - self.at

    def skip(self, size: int, what: str) -> int:
        """Steps over `size` bytes and returns where they begin."""
        if size > self.left:
            raise self.file.invalid(f"{what} at byte {self.at} needs {size} bytes, but {self.left} are left")
        start = self.at
        self.at += size
        return start

    def u32(self, what: str) -> int:
        return _U32(self.file.data, self.skip(4, what))[0]

    def u64(self, what: str) -> int:
        return _U64(self.file.data, self.skip(8, what))[0]

    def count(self, what: str, smallest: int, limit: int) -> int:
        """A number of things of at least `smallest` bytes each."""
        start, count = self.at, self.u64(what)
        if count > min(limit, self.left // smallest):
            raise self.file.invalid(
                f"{what} at byte {start} is {count}, more than the {self.left} bytes left in the file can hold"
                if count > self.left // smallest
                else f"{what} at byte {start} is {count}, more than the {limit} allowed"
            )
        return count

    def text(self, what: str, limit: int) -> str:
        start = self.at
        size = self.count(f"the length of {what}", 1, limit)
        begin = self.skip(size, what)
        try:
            return self.file.data[begin : begin + size].tobytes().decode()
        except UnicodeDecodeError as error:
            raise self.file.invalid(f"{what} at byte {start} is not UTF-8") from error

    def name(self, what: str, limit: int) -> str:
        start, name = self.at, self.text(what, limit)
        if not name or "\0" in name:
            raise self.file.invalid(f"{what} at byte {start} is empty or holds a zero byte")
        return name


@dataclass(frozen=True, slots=True)
class GgufFile:
    """One parsed file. Tensor names are GGUF's; shapes are row-major (GGUF lists them the other way round)."""

    file: MappedFile
    version: int
    metadata: dict[str, Any]
    tensors: dict[str, TensorEntry]


def parse(file: MappedFile) -> GgufFile:
    """Raises InvalidModel for a broken file, UnsupportedModel for a big-endian one or another version."""
    cursor = Cursor(file)
    version = read_version(cursor)
    # 33: an empty name, one dimension, a type and an offset; 13: an empty key, a type and one byte
    tensor_count = cursor.count("the number of tensors", 33, MAX_TENSORS)
    key_count = cursor.count("the number of metadata keys", 13, MAX_KEYS)
    metadata = read_metadata(cursor, key_count)
    alignment = alignment_of(file, metadata)
    tensors = read_tensors(cursor, tensor_count, alignment)
    return GgufFile(file, version, metadata, tensors)


def read_version(cursor: Cursor) -> int:
    file = cursor.file
    magic = file.data[:4].tobytes()
    if magic == MAGIC[::-1]:
        raise UnsupportedModel(f"{file.name}: the file is big-endian GGUF; only little-endian is supported")
    if magic != MAGIC:
        raise file.invalid("the file does not begin with GGUF")
    cursor.skip(4, "the magic")
    version = cursor.u32("the version")
    if version and version & 0xFFFF == 0:
        raise UnsupportedModel(f"{file.name}: the file is big-endian GGUF; only little-endian is supported")
    if version not in VERSIONS:
        raise UnsupportedModel(f"{file.name}: GGUF version {version} is not supported; versions 2 and 3 are")
    return version


def read_metadata(cursor: Cursor, count: int) -> dict[str, Any]:
    metadata: dict[str, Any] = {}
    for i in range(count):
        key = cursor.name(f"metadata key {i}", MAX_KEY_BYTES)
        if key in metadata:
            raise cursor.file.invalid(f"metadata key {shown(key)} occurs twice")
        what = f"the value of metadata key {shown(key)}"
        metadata[key] = read_value(cursor, cursor.u32(what), what, MAX_DEPTH)
    return metadata


def shown(name: str) -> str:
    """A name from the file, fit for one line of an error message."""
    return repr(name if len(name) <= 80 else f"{name[:80]}…")


def read_value(cursor: Cursor, kind: int, what: str, depth: int) -> Any:
    """int, float, bool, str, a NumPy view of numbers, a NumPy array of bools, a StringArray or a list of arrays."""
    if kind in NUMBERS:
        dtype = np.dtype(NUMBERS[kind])
        start = cursor.skip(dtype.itemsize, what)
        return cursor.file.data[start : start + dtype.itemsize].view(dtype)[0].item()
    if kind == BOOL:
        return bool(cursor.file.data[cursor.skip(1, what)])
    if kind == STRING:
        return cursor.text(what, MAX_TEXT_BYTES)
    if kind == ARRAY:
        return read_array(cursor, what, depth - 1)
    raise cursor.file.invalid(f"{what} has the unknown type {kind}")


def read_array(cursor: Cursor, what: str, depth: int) -> Any:
    if depth < 0:
        raise cursor.file.invalid(f"{what} has arrays nested deeper than {MAX_DEPTH}")
    kind = cursor.u32(f"the element type of {what}")
    if kind not in SMALLEST:
        raise cursor.file.invalid(f"{what} is an array of the unknown type {kind}")
    limit = cursor.nested if kind == ARRAY else cursor.left
    count = cursor.count(f"the number of elements of {what}", SMALLEST[kind], limit)
    if kind in NUMBERS or kind == BOOL:
        dtype = np.dtype(NUMBERS.get(kind, "<u1"))
        start = cursor.skip(count * dtype.itemsize, what)
        numbers = cursor.file.data[start : start + count * dtype.itemsize].view(dtype)
        return numbers != 0 if kind == BOOL else numbers
    if kind == STRING:
        return read_strings(cursor, count, what)
    cursor.nested -= count
    return [read_array(cursor, what, depth - 1) for _ in range(count)]


def read_strings(cursor: Cursor, count: int, what: str) -> StringArray:
    """Finds where each string begins. One tight loop: vocabularies have hundreds of thousands of them."""
    data, at, last = memoryview(cursor.file.data), cursor.at, cursor.end - 8
    starts = array("q")
    for i in range(count):
        if at > last:
            raise cursor.file.invalid(f"{what} ends with the file, after {i} of {count} strings")
        starts.append(at + 8)
        at += 8 + _U64(data, at)[0]
    if at > cursor.end:
        raise cursor.file.invalid(f"{what} has a last string that goes on past the end of the file")
    starts.append(at + 8)
    cursor.at = at
    return StringArray(cursor.file, starts)


def alignment_of(file: MappedFile, metadata: dict[str, Any]) -> int:
    alignment = metadata.get("general.alignment", DEFAULT_ALIGNMENT)
    if type(alignment) is not int or not 8 <= alignment <= MAX_ALIGNMENT or alignment & (alignment - 1):
        raise file.invalid(f"general.alignment is {alignment!r}, not a power of two from 8 to {MAX_ALIGNMENT}")
    return alignment


@dataclass(frozen=True, slots=True)
class Described:
    """A line of the tensor table, not yet placed: where the data begins is known only after the last line."""

    name: str
    type: int
    shape: tuple[int, ...]
    offset: int


def read_tensors(cursor: Cursor, count: int, alignment: int) -> dict[str, TensorEntry]:
    described: dict[str, Described] = {}
    for i in range(count):
        line = read_description(cursor, i)
        if line.name in described:
            raise cursor.file.invalid(f"tensor {line.name!r} occurs twice")
        described[line.name] = line
    base = -(-cursor.at // alignment) * alignment
    entries = {name: place(cursor.file, line, base, alignment) for name, line in described.items()}
    refuse_overlaps(entries.values())
    return entries


def read_description(cursor: Cursor, i: int) -> Described:
    name = cursor.name(f"the name of tensor {i}", MAX_NAME_BYTES)
    what = f"tensor {name!r}"
    dimensions = cursor.u32(f"the number of dimensions of {what}")
    if not 1 <= dimensions <= MAX_DIMENSIONS:
        raise cursor.file.invalid(f"{what} has {dimensions} dimensions, not 1 to {MAX_DIMENSIONS}")
    shape = tuple(cursor.u64(f"the shape of {what}") for _ in range(dimensions))[::-1]
    if 0 in shape:
        raise cursor.file.invalid(f"{what} has a dimension of zero")
    return Described(name, cursor.u32(f"the type of {what}"), shape, cursor.u64(f"the offset of {what}"))


def place(file: MappedFile, line: Described, base: int, alignment: int) -> TensorEntry:
    def refuse(fault: str) -> InvalidModel:
        return file.invalid(f"tensor {line.name!r} {fault}")

    kind = GGML_TYPES.get(line.type)
    if kind is None:
        raise refuse(f"has the unknown type {line.type}")
    size = tensor_size(kind, line.shape, refuse)
    if line.offset % alignment:
        raise refuse(f"has the offset {line.offset}, which is not a multiple of the alignment {alignment}")
    start = base + line.offset
    if start + size > len(file.data):
        raise refuse(f"ends at byte {start + size}, past the end of the file at byte {len(file.data)}")
    return TensorEntry(line.name, kind, line.shape, file, start, size)
