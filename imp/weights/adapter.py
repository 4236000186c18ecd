"""A PEFT adapter's directory: adapter_config.json and adapter_model.safetensors. What the tensors are for is not known
here."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from hashlib import blake2b
from pathlib import Path
from typing import Any

from .mapped import map_file
from .safetensors import parse_json, read_file, read_tensors
from .weight import InvalidModel, UnsupportedModel, Weight

CONFIG, TENSORS = "adapter_config.json", "adapter_model.safetensors"
MAX_CONFIG = 1 << 22  # bytes


@dataclass(frozen=True, slots=True, eq=False)
class AdapterFiles:
    """digest: 16 bytes of both files; what is in them and nothing else decides it."""

    path: Path
    config: dict[str, Any]
    weights: Mapping[str, Weight]  # by their names in the file
    digest: bytes


def open_adapter(path: Path) -> AdapterFiles:
    """Raises InvalidModel for what is broken or not there, UnsupportedModel for what is sound but beyond us."""
    if not path.is_dir():
        raise InvalidModel(f"{path.name}: an adapter is a directory with {CONFIG} and {TENSORS}; there is none here")
    config = read_file(path / CONFIG, MAX_CONFIG)
    values = parse_json(config, CONFIG)
    if not (path / TENSORS).exists() and (path / "adapter_model.bin").exists():
        raise UnsupportedModel(f"{path.name}: the weights are pickled, which is not safe to load; use safetensors")
    entries = read_tensors(path / TENSORS)
    seen = blake2b(config, digest_size=16, person=b"imp adapter")
    seen.update(map_file(path / TENSORS).data)
    return AdapterFiles(path, values, {name: entry.weight(name) for name, entry in entries.items()}, seen.digest())
