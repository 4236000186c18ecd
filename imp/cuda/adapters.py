"""Adapters on the device: a site is a product that can be added to, with tables of what each slot adds. The kernels of
kernels/lora.cu read the tables, so graphs that are captured stay as they are when adapters come and go.

A of all the parts of a site lie one below the other, so that x is read once; B of a part is transposed. Both are
float32.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np

from ..model.lora import MAX_RANK, Adapter
from ..weights.checkpoint import UnsupportedModel
from .driver import Buffer, Device, Stream

SLOTS = 64
ENTRY = np.dtype([("a", "<u8"), ("b", "<u8"), ("rank", "<i4"), ("first", "<i4")])  # Pair of lora.cu
TABLE_BYTES = SLOTS * ENTRY.itemsize
ALIGNMENT = 256


@dataclass(frozen=True, slots=True, eq=False)
class Site:
    """names: of the modules of its parts. stride: of a row of x. table: which of the tables is its first; one for the
    site is followed by one for each part."""

    names: tuple[str, ...]
    stride: int
    table: int

    @property
    def hidden(self) -> int:
        """Numbers of a token between A and B, at most."""
        return len(self.names) * MAX_RANK


class Sites:
    """Those of a model, in the order they are recorded. Tables are on the device once `place` has put them there."""

    def __init__(self) -> None:
        self._sites: list[Site] = []
        self._tables = 0
        self.address = 0

    def add(self, names: tuple[str, ...], stride: int) -> Site:
        self._sites.append(Site(names, stride, self._tables))
        self._tables += 1 + len(names)
        return self._sites[-1]

    def __iter__(self) -> Iterator[Site]:
        return iter(self._sites)

    @property
    def bytes(self) -> int:
        return self._tables * TABLE_BYTES

    def table_address(self, number: int) -> int:
        return self.address + number * TABLE_BYTES


class Adapters:
    """The adapters of a loaded model. `add` and `drop` may be called on any one thread, also while steps run: a step
    reads only the entries of slots it names."""

    def __init__(self, device: Device, sites: Sites) -> None:
        self._device, self._sites = device, sites
        self._memory: dict[int, Buffer] = {}  # by slot
        self._stream: Stream = device.stream()

    def add(self, adapter: Adapter) -> int:
        """The slot it gets. Raises InvalidModel where its numbers are none, UnsupportedModel where all slots are taken,
        driver.CudaOutOfMemory."""
        self._device.bind_thread()
        slot = next((i for i in range(SLOTS) if i not in self._memory), None)
        if slot is None:
            raise UnsupportedModel(f"{SLOTS} adapters are loaded, and a GPU has no room for more")
        matrices = {name: pair.matrices() for name, pair in adapter.pairs.items()}
        arrays: list[np.ndarray] = []
        entries: list[tuple[int, int, int, int, int]] = []  # table, numbers of the arrays with a and b, rank, first
        for site in self._sites:
            entries += _of_site(site, matrices, arrays)
        places = np.cumsum([0, *(_aligned(each.nbytes) for each in arrays)])
        memory = self._device.alloc(max(int(places[-1]), ALIGNMENT))
        for place, each in zip(places, arrays, strict=False):
            self._stream.upload(memory.address + int(place), each.ctypes.data, each.nbytes)
        self._set(slot, entries, [memory.address + int(place) for place in places])
        self._memory[slot] = memory
        return slot

    def _set(self, slot: int, entries: Sequence[tuple[int, int, int, int, int]], places: Sequence[int]) -> None:
        """The slot's entries in all tables; tables that are not named get nothing."""
        numbers = {table: (a, b, rank, first) for table, a, b, rank, first in entries}
        for number in range(self._sites.bytes // TABLE_BYTES):
            a, b, rank, first = numbers.get(number, (-1, -1, 0, 0))
            entry = np.array([(places[a] if a >= 0 else 0, places[b] if b >= 0 else 0, rank, first)], ENTRY)
            at = self._sites.table_address(number) + slot * ENTRY.itemsize
            self._stream.upload(at, entry.ctypes.data, entry.nbytes)
        self._stream.synchronize()

    def drop(self, slot: int) -> None:
        self._device.bind_thread()
        self._memory.pop(slot).free()

    def free(self) -> None:
        for memory in self._memory.values():
            memory.free()
        self._memory.clear()
        self._stream.destroy()


def adapter_bytes(adapter: Adapter) -> int:
    """Of the device, at most: rows of A are filled up, and every array is aligned."""
    pairs = adapter.pairs.values()
    wide = sum(4 * pair.rank * (_wide(pair.down.shape[1]) + pair.up.shape[0]) for pair in pairs)
    return wide + 2 * ALIGNMENT * len(adapter.pairs)


def _of_site(
    site: Site, matrices: dict[str, tuple[np.ndarray, np.ndarray]], arrays: list[np.ndarray]
) -> list[tuple[int, int, int, int, int]]:
    """Entries of a site's tables; what they point to is appended to `arrays`."""
    found = [(i, *matrices[name]) for i, name in enumerate(site.names) if name in matrices]
    if not found:
        return []
    downs, entries, first = [], [], 0
    for i, down, up in found:
        arrays.append(np.ascontiguousarray(up.T, np.float32))
        entries.append((site.table + 1 + i, -1, len(arrays) - 1, len(down), first))
        downs.append(np.pad(down, ((0, 0), (0, site.stride - down.shape[1]))))
        first += len(down)
    arrays.append(np.concatenate(downs).astype(np.float32))
    return [(site.table, len(arrays) - 1, -1, first, 0), *entries]


def _wide(columns: int) -> int:
    return -(-columns // 64) * 64


def _aligned(size: int) -> int:
    return -(-size // ALIGNMENT) * ALIGNMENT
