"""The adapters of one loaded model, by name: read, kept by its backend, given up.

Names and slots are the event loop's to change; what takes long runs on a thread, for one adapter at a time.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path

from .memory import OutOfMemory, available_bytes
from .model import lora
from .model.lora import Adapter
from .model.ops import Backend
from .weights.adapter import open_adapter
from .weights.checkpoint import InvalidModel, UnsupportedModel


@dataclass(frozen=True, slots=True)
class LoadedAdapter:
    name: str
    path: Path
    slot: int  # the backend's
    digest: bytes  # of its files
    rank: int
    parameters: int
    size_bytes: int
    loaded_at: int  # unix seconds


@dataclass(frozen=True, slots=True)
class Shapes:
    """What an adapter has to fit: lora.Base without the model."""

    modules: Mapping[str, tuple[int, int]]
    formats: frozenset[str]


@dataclass(slots=True)
class Adapters:
    shapes: Shapes
    backend: Backend
    planned_bytes: int = 0  # of those that the memory plan counts
    known: dict[str, LoadedAdapter] = field(default_factory=dict)

    def __iter__(self) -> Iterator[LoadedAdapter]:
        return iter(self.known.values())

    def get(self, name: str | None) -> LoadedAdapter | None:
        return None if name is None else self.known.get(name)

    @property
    def size_bytes(self) -> int:
        return sum(each.size_bytes for each in self)

    def load(self, name: str, path: Path) -> LoadedAdapter:
        """Read it and give it to the backend; requests find it once it is `known`. Raises InvalidModel,
        UnsupportedModel, OutOfMemory."""
        adapter = lora.adapter(open_adapter(path), self.shapes)
        size, free = self.backend.adapter_bytes(self.shapes, adapter), available_bytes()
        if size > free:
            needs = f"the adapter needs {size / 2**20:.0f} MiB"
            raise OutOfMemory(f"there is too little memory: {needs}; {free / 2**20:.0f} MiB are free")
        return self.keep(name, path, adapter)

    def keep(self, name: str, path: Path, adapter: Adapter) -> LoadedAdapter:
        """As `load`, of one that is read and for which there is room. Raises InvalidModel."""
        size, slot = self.backend.adapter_bytes(self.shapes, adapter), self.backend.add_adapter(adapter)
        known = adapter.digest, adapter.rank, adapter.elements, size
        return LoadedAdapter(name, path, slot, *known, loaded_at=int(time.time()))

    def drop(self, adapter: LoadedAdapter) -> None:
        """No request uses it any more."""
        self.backend.drop_adapter(adapter.slot)


def read_named(given: Mapping[str, Path], base: lora.Base) -> list[tuple[str, Path, Adapter]]:
    """The adapters of --lora. Raises InvalidModel and UnsupportedModel, which name the one that is wrong, and
    FileNotFoundError."""
    found = []
    for name, path in given.items():
        if not path.is_dir():
            raise FileNotFoundError(f"--lora {name}={path}: there is no such directory")
        try:
            found.append((name, path, lora.adapter(open_adapter(path), base)))
        except (InvalidModel, UnsupportedModel) as error:
            raise type(error)(f"--lora {name}: {error}") from None
    return found
