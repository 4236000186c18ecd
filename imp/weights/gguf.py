"""A GGUF model, in one file or several, as a `Checkpoint` under Hugging Face's names. Knows the container and the
name tables; the bytes are `gguf_file`'s, the words `gguf_names`'s."""

from __future__ import annotations

import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np

from .gguf_file import GgufFile, StringArray, parse
from .gguf_names import (
    Keys,
    architecture,
    config_of,
    generation_of,
    halves_from_pairs,
    heads_key,
    hugging_face_name,
    pooling_of,
)
from .mapped import TensorEntry, main_type, map_file
from .weight import GgufVocabulary, Weight

PART = re.compile(r"(.*)-([0-9]{5})-of-([0-9]{5})\.gguf", re.DOTALL)
TEMPLATE = "tokenizer.chat_template"


class GgufCheckpoint:
    """See `checkpoint.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidModel and UnsupportedModel. Reads metadata only; weights are read when used."""
        first = parse(map_file(path))
        files = [first, *other_parts(path, first)]
        tensors = merged(files)
        name = first.metadata.get("general.architecture")
        if not isinstance(name, str) or not name:
            raise first.file.invalid("the metadata lacks general.architecture")
        keys = Keys(first.metadata, name, first.file.invalid)
        check_vocabulary(keys)
        self.path = path
        self.files = tuple(part.file.path for part in files)
        self.config = config_of(keys, tensors)
        self.generation = generation_of(keys)
        self.pooling = pooling_of(keys)
        self.chat_template = keys.text(TEMPLATE)
        self.chat_templates = named_templates(keys)
        self.size_bytes = sum(entry.size for entry in tensors.values())
        self.parameters = sum(entry.elements for entry in tensors.values())
        self.quantization = main_type((entry.type.name, entry.size) for entry in tensors.values())
        self._file = first.file
        self._architecture = architecture(keys)
        self._vocabulary = GgufVocabulary(
            {k: v for k, v in first.metadata.items() if k.startswith("tokenizer.") or k == "general.architecture"}
        )
        self._tensors = self._renamed(tensors)
        self._closed = False

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def weight(self, name: str) -> Weight:
        """Raises InvalidModel where there is no such tensor, UnsupportedModel where its type has no dequantiser."""
        assert not self._closed
        entry = self._tensors.get(name)
        if entry is None:
            raise self._file.invalid(f"the model has no tensor {name!r}")
        weight = entry.weight(name)
        key = heads_key(self._architecture, entry.name)
        return weight if key is None else self._halves(weight, self.config[key])

    def tokenizer(self) -> GgufVocabulary:
        assert not self._closed
        return self._vocabulary

    def close(self) -> None:
        """Lets go of the mappings; each ends with the last weight or vocabulary that still looks into it."""
        self._closed = True
        self._tensors = {}
        self._vocabulary = GgufVocabulary({})
        del self._file

    def _renamed(self, tensors: dict[str, TensorEntry]) -> dict[str, TensorEntry]:
        renamed: dict[str, TensorEntry] = {}
        for entry in tensors.values():
            name = hugging_face_name(self._architecture, entry.name)
            if name in renamed:
                raise entry.file.invalid(f"tensors {renamed[name].name!r} and {entry.name!r} both stand for {name!r}")
            renamed[name] = entry
        return renamed

    def _halves(self, weight: Weight, heads: int | list[int]) -> Weight:
        """The weight with its rows (of a vector: its elements) back in Hugging Face's order."""
        if isinstance(heads, list):
            raise self._file.invalid(f"tensor {weight.name!r} cannot be reordered: the layers differ in their heads")
        rows = weight.shape[0]
        if rows % (2 * heads) or weight.data.size % rows or (len(weight.shape) == 1 and weight.format.block > 1):
            raise self._file.invalid(f"tensor {weight.name!r} has {rows} rows, which are not {heads} heads of pairs")
        data = weight.data.reshape(rows, -1)[halves_from_pairs(rows, heads)].reshape(weight.data.shape)
        data.flags.writeable = False
        return Weight(weight.name, data, weight.format, weight.shape)


def other_parts(path: Path, first: GgufFile) -> list[GgufFile]:
    """The files beside the first of a model in several; all of them must be there and agree."""
    count = first.metadata.get("split.count", 1)
    if type(count) is not int or count > 99999:
        raise first.file.invalid("split.count is not a number of files")
    if count <= 1:
        return []
    found = PART.fullmatch(path.name)
    if found is None or int(found[3]) != count:
        raise first.file.invalid(f"the file is one of {count} parts, but is not named NAME-00001-of-{count:05}.gguf")
    if first.metadata.get("split.no") != 0 or int(found[2]) != 1:
        raise first.file.invalid(f"the file is not the first of its {count} parts; open {found[1]}-00001-of-{found[3]}")
    parts = []
    for number in range(1, count):
        part = parse(map_file(path.with_name(f"{found[1]}-{number + 1:05}-of-{found[3]}.gguf")))
        if part.metadata.get("split.no") != number or part.metadata.get("split.count") != count:
            raise part.file.invalid(f"the file does not say that it is part {number + 1} of {count}")
        parts.append(part)
    return parts


def merged(files: list[GgufFile]) -> dict[str, TensorEntry]:
    """The tensors of all parts by their GGUF names."""
    tensors: dict[str, TensorEntry] = {}
    for part in files:
        for name, entry in part.tensors.items():
            if name in tensors:
                raise part.file.invalid(f"tensor {name!r} is also in {tensors[name].file.name}")
            tensors[name] = entry
    expected = files[0].metadata.get("split.tensors.count")
    if len(files) > 1 and expected is not None and expected != len(tensors):
        raise files[0].file.invalid(f"the {len(files)} parts hold {len(tensors)} tensors, not the {expected} announced")
    return tensors


def check_vocabulary(keys: Keys) -> None:
    """What the tokenizer will index by token must have an entry for each token."""
    tokens = keys.metadata.get("tokenizer.ggml.tokens")
    if tokens is not None and not isinstance(tokens, StringArray):
        raise keys.refuse("tokenizer.ggml.tokens is not an array of strings")
    if not isinstance(keys.metadata.get("tokenizer.ggml.merges", tokens), StringArray | None):
        raise keys.refuse("tokenizer.ggml.merges is not an array of strings")
    for key in ("tokenizer.ggml.scores", "tokenizer.ggml.token_type"):
        values: Any = keys.metadata.get(key)
        if values is None:
            continue
        if not isinstance(values, np.ndarray):
            raise keys.refuse(f"{key} is not an array of numbers")
        if tokens is not None and len(values) != len(tokens):
            raise keys.refuse(f"{key} has {len(values)} entries for {len(tokens)} tokens")


def named_templates(keys: Keys) -> dict[str, str]:
    """`tokenizer.chat_template.NAME` by NAME."""
    prefix = TEMPLATE + "."
    names = [key.removeprefix(prefix) for key in keys.metadata if key.startswith(prefix)]
    return {name: text for name in names if (text := keys.text(prefix + name)) is not None}
