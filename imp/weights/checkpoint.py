"""What a model on disk is to the rest of the server: names to tensors, a config, a tokenizer's data.

The only door to this package. Which of the two formats a path holds is decided here; nobody above can tell.
"""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Any, Protocol

from .gguf import PART, GgufCheckpoint
from .quant import QuantFormat
from .safetensors import INDEX, SINGLE, SafetensorsCheckpoint
from .weight import ContextTooLong, GgufVocabulary, InvalidModel, TokenizerFiles, UnsupportedModel, Weight

__all__ = [
    "Checkpoint",
    "ContextTooLong",
    "GgufVocabulary",
    "InvalidModel",
    "QuantFormat",
    "TokenizerFiles",
    "UnsupportedModel",
    "Weight",
    "open_checkpoint",
]


class Checkpoint(Protocol):
    """An opened model. Names and config are Hugging Face's, whatever the format."""

    path: Path
    files: tuple[Path, ...]  # that tensors and config are read from
    config: dict[str, Any]  # as config.json; `norm_weight_offset` 0 where gemma's norms already have their 1 added
    generation: dict[str, Any]  # sampling defaults, as generation_config.json; {} where there are none
    chat_template: str | None
    chat_templates: dict[str, str]  # further ones by name, such as "tool_use"
    pooling: str | None  # "mean", "cls" or "last", where the model says how a text becomes one vector
    size_bytes: int  # of all tensors as stored
    parameters: int  # elements of all tensors
    quantization: str  # the type that holds most bytes, such as "Q4_1"

    def names(self) -> Iterable[str]:
        """Tensor names, such as `model.layers.0.self_attn.q_proj.weight`."""

    def __contains__(self, name: object) -> bool: ...

    def weight(self, name: str) -> Weight:
        """Raises InvalidModel where there is no such tensor, UnsupportedModel where its type cannot be read."""

    def tokenizer(self) -> TokenizerFiles | GgufVocabulary: ...

    def close(self) -> None:
        """Ends the mapping once no weight of it is held any more; the checkpoint gives no weights afterwards."""


def open_checkpoint(path: Path) -> Checkpoint:
    """A .gguf file (of several parts: the first), or a directory of safetensors or of one GGUF model.

    Raises InvalidModel for what is broken or not there, UnsupportedModel for what is sound but beyond us.
    """
    if path.is_dir():
        inside = None if (path / SINGLE).exists() or (path / INDEX).exists() else gguf_inside(path)
        return SafetensorsCheckpoint(path) if inside is None else GgufCheckpoint(inside)
    if not path.exists():
        raise InvalidModel(f"{path}: there is no such file or directory")
    if not path.is_file():
        raise InvalidModel(f"{path}: this is neither a file nor a directory")
    if path.suffix == ".safetensors":
        raise InvalidModel(f"{path.name}: a safetensors model is opened by its directory, {path.parent}")
    return GgufCheckpoint(path)


def gguf_inside(directory: Path) -> Path | None:
    """The one GGUF model of a directory; None where there is none."""
    parts = {path: PART.fullmatch(path.name) for path in sorted(directory.glob("*.gguf"))}
    found = [path for path, part in parts.items() if part is None or int(part[2]) == 1]
    if len(found) > 1:
        raise InvalidModel(f"{directory.name}: the directory has {len(found)} GGUF models; name the file to open")
    return found[0] if found else None
