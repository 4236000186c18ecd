"""A Hugging Face directory as a `Checkpoint`: safetensors files, one or sharded, and the JSON files beside them.

Format: 8 bytes of header length, a JSON header of names, types, shapes and byte ranges, then the bytes without holes
(the safetensors project's README). The library reads and validates the header; the tensors' bytes are mapped here,
because its NumPy interface copies and has no bfloat16. Pickled weights are never loaded.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from safetensors import safe_open

from .mapped import MappedFile, TensorEntry, main_type, map_file, tensor_size
from .quant import TensorType
from .scaled import assembled
from .weight import InvalidModel, TokenizerFiles, UnsupportedModel, Weight

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"
MAX_HEADER = 100_000_000  # of the format
MAX_DIMENSIONS = 8
MAX_REASON = 300  # characters of the library's own words in an error; it repeats names of any length
MAX_JSON = 1 << 26  # config.json and its like
MAX_TOKENIZER = 1 << 28  # tokenizer.json; gemma's is 33 MB

TYPES = {
    name: TensorType(name, 1, size)
    for size, names in {
        1: "BOOL U8 I8 F8_E4M3 F8_E5M2 F8_E8M0 F8_E4M3FNUZ F8_E5M2FNUZ",
        2: "F16 BF16 I16 U16",
        4: "F32 I32 U32",
        8: "F64 I64 U64 C64",
    }.items()
    for name in names.split()
}


class SafetensorsCheckpoint:
    """See `checkpoint.Checkpoint`."""

    def __init__(self, path: Path) -> None:
        """Raises InvalidModel and UnsupportedModel. Reads headers only; weights are read when used."""
        self.path = path
        stored = read_all(path)
        self.files = (path / "config.json", *sorted({entry.file.path for entry in stored.values()}))
        self.config = read_json(path / "config.json", required=True)
        self._tensors = assembled(stored, self.config)
        self.generation = read_json(path / "generation_config.json")
        self.pooling = pooling_of(read_json(path / "1_Pooling" / "config.json"))
        self._tokenizer = read_tokenizer(path)
        self.chat_template, self.chat_templates = read_templates(path, self._tokenizer.config)
        self.size_bytes = sum(entry.size for entry in self._tensors.values())
        self.parameters = sum(entry.elements for entry in self._tensors.values())
        self.quantization = main_type((entry.type.name, entry.size) for entry in self._tensors.values())
        self._closed = False

    def names(self) -> Iterable[str]:
        return self._tensors.keys()

    def __contains__(self, name: object) -> bool:
        return name in self._tensors

    def weight(self, name: str) -> Weight:
        """Raises InvalidModel where there is no such tensor, UnsupportedModel where it cannot be dequantised."""
        assert not self._closed
        entry = self._tensors.get(name)
        if entry is not None:
            return entry.weight(name)
        if isinstance(quantised := self.config.get("quantization_config"), dict):
            how = quantised.get("format") or quantised.get("quant_method")
            raise UnsupportedModel(f"{self.path.name}: {name!r} is quantised in a way that is not supported ({how})")
        raise InvalidModel(f"{self.path.name}: the model has no tensor {name!r}")

    def tokenizer(self) -> TokenizerFiles:
        return self._tokenizer

    def close(self) -> None:
        """Lets go of the mappings; each ends with the last weight that still looks into it."""
        self._closed = True
        self._tensors = {}


def read_all(path: Path) -> dict[str, TensorEntry]:
    """Every tensor of the directory, by name."""
    if (path / SINGLE).exists():
        return read_tensors(path / SINGLE)
    if (path / INDEX).exists():
        return read_shards(path)
    if any(path.glob("*.bin")) or any(path.glob("*.pt")) or any(path.glob("*.pth")):
        raise UnsupportedModel(f"{path.name}: the weights are pickled, which is not safe to load; use safetensors")
    raise InvalidModel(f"{path.name}: the directory has neither {SINGLE} nor {INDEX}")


def read_shards(path: Path) -> dict[str, TensorEntry]:
    """The index decides which file a tensor is read from; each must be there."""
    placed = read_json(path / INDEX, required=True).get("weight_map")
    if not isinstance(placed, dict) or not placed:
        raise InvalidModel(f"{INDEX}: weight_map is not an object that names a file for each tensor")
    for tensor, shard in placed.items():
        # a plain name in this directory: no separators of any system, no "..", no drive letters
        if not isinstance(shard, str) or not shard.endswith(".safetensors") or set(shard) & set("/\\:\0"):
            raise InvalidModel(f"{INDEX}: tensor {tensor!r} is said to be in {shard!r}, which is not a plain file name")
    shards = {shard: read_tensors(path / shard) for shard in sorted(set(placed.values()))}
    tensors: dict[str, TensorEntry] = {}
    for tensor, shard in placed.items():
        if tensor not in shards[shard]:
            raise InvalidModel(f"{shard}: tensor {tensor!r} is not in the file {INDEX} names for it")
        tensors[tensor] = shards[shard][tensor]
    return tensors


def read_tensors(path: Path) -> dict[str, TensorEntry]:
    """The tensors of one file by name, in the order of their bytes.

    The library has made sure that they follow each other without hole or overlap, so each starts where the one before
    it ends. Raises InvalidModel, and UnsupportedModel for a type whose elements are not whole bytes.
    """
    file = map_file(path)
    start = data_start(file)
    entries: dict[str, TensorEntry] = {}
    for name, dtype, shape in described(file):
        entries[name] = place(file, name, dtype, shape, start)
        start += entries[name].size
    if start != len(file.data):
        raise file.invalid(f"its tensors end at byte {start}, but the file has {len(file.data)} bytes")
    return entries


def data_start(file: MappedFile) -> int:
    """Where the header ends. Refuses a header that the file cannot hold or the format does not allow."""
    total = len(file.data)
    if total < 8:
        raise file.invalid(f"the file has {total} bytes, too few for the length of a header")
    length = int.from_bytes(file.data[:8].tobytes(), "little")
    if not 2 <= length <= total - 8:
        raise file.invalid(f"the header is said to have {length} bytes, but {total - 8} are left in the file")
    if length > MAX_HEADER:
        raise file.invalid(f"the header has {length} bytes, more than the {MAX_HEADER} the format allows")
    return 8 + length


def described(file: MappedFile) -> list[tuple[str, str, list[int]]]:
    """Name, type and shape of each tensor, ordered by offset, as the library reads and validates them."""
    try:
        with safe_open(file.path, framework="numpy") as opened:
            views = [(name, opened.get_slice(name)) for name in opened.offset_keys()]
            tensors = [(name, view.get_dtype(), view.get_shape()) for name, view in views]
    except BaseException as error:
        # a panic of the library's Rust code is no Exception, and its class cannot be imported
        if not isinstance(error, Exception) and type(error).__name__ != "PanicException":
            raise
        raise file.invalid(f"the file is damaged or incomplete ({reason(error)})") from error
    # the library keeps the last of two lines of one name, which the format forbids
    parse_json(file.data[8 : data_start(file)].tobytes(), f"{file.name}: the header")
    return tensors


def reason(error: BaseException) -> str:
    """What the library says, short and on one line, whatever bytes of the file it repeats."""
    said = str(error).removeprefix("Error while deserializing header: ") or type(error).__name__
    said = said if len(said) <= MAX_REASON else said[:MAX_REASON] + "..."
    return "".join(character if character.isprintable() else "\N{REPLACEMENT CHARACTER}" for character in said)


def place(file: MappedFile, name: str, dtype: str, shape: list[int], start: int) -> TensorEntry:
    def refuse(fault: str) -> InvalidModel:
        return file.invalid(f"tensor {name!r} {fault}")

    if dtype not in TYPES:
        raise UnsupportedModel(f"{file.name}: tensor {name!r} has the type {dtype}, which is not supported")
    if len(shape) > MAX_DIMENSIONS:
        raise refuse(f"has {len(shape)} dimensions, more than {MAX_DIMENSIONS}")
    return TensorEntry(name, TYPES[dtype], tuple(shape), file, start, tensor_size(TYPES[dtype], tuple(shape), refuse))


def read_file(path: Path, limit: int) -> bytes:
    try:
        with path.open("rb") as file:
            content = file.read(limit + 1)
    except OSError as error:
        raise InvalidModel(f"{path.name}: cannot be read ({error.strerror or error})") from error
    if len(content) > limit:
        raise InvalidModel(f"{path.name}: the file is larger than {limit} bytes")
    return content


def read_json(path: Path, required: bool = False) -> dict[str, Any]:
    """A JSON object; {} for a file that is not there and not required."""
    if not path.exists():
        if required:
            raise InvalidModel(f"{path.name}: there is no such file in {path.parent}")
        return {}
    return parse_json(read_file(path, MAX_JSON), path.name)


def parse_json(content: bytes, what: str) -> dict[str, Any]:
    """A JSON object without duplicate keys."""

    def unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
        found = dict(pairs)
        if len(found) < len(pairs):
            raise ValueError("a key occurs twice in one object")
        return found

    try:
        value = json.loads(content.decode(), object_pairs_hook=unique)
    except RecursionError as error:
        raise InvalidModel(f"{what} is nested too deeply") from error
    except ValueError as error:  # not UTF-8, not JSON, duplicate keys
        raise InvalidModel(f"{what} is not valid JSON ({error})") from error
    if not isinstance(value, dict):
        raise InvalidModel(f"{what} is not a JSON object")
    return value


def read_tokenizer(path: Path) -> TokenizerFiles:
    tokenizer = path / "tokenizer.json"
    return TokenizerFiles(
        tokenizer_json=read_file(tokenizer, MAX_TOKENIZER) if tokenizer.exists() else None,
        config=read_json(path / "tokenizer_config.json"),
        special_tokens=read_json(path / "special_tokens_map.json"),
    )


def read_templates(path: Path, tokenizer_config: dict[str, Any]) -> tuple[str | None, dict[str, str]]:
    """The chat template and the named others.

    In order of precedence: chat_template.jinja, tokenizer_config.json, chat_template.json; others also from
    additional_chat_templates/NAME.jinja. As Hugging Face's tokenizers read them: beside a chat_template.jinja no
    template of the JSON files counts.
    """
    files = {file.stem: text_file(file) for file in sorted(path.glob("additional_chat_templates/*.jinja"))}
    if (path / "chat_template.jinja").exists():
        return text_file(path / "chat_template.jinja"), files
    named: dict[str, str] = {}
    template: str | None = None
    for source in (read_json(path / "chat_template.json"), tokenizer_config):
        given = source.get("chat_template")
        if isinstance(given, str):
            template = given
        elif isinstance(given, list):
            named |= template_list(given)
        elif given is not None:
            raise InvalidModel(f"{path.name}: chat_template is neither a string nor a list of named templates")
    named |= files
    return named.pop("default", template), named


def template_list(given: list[Any]) -> dict[str, str]:
    try:
        pairs = {item["name"]: item["template"] for item in given}
    except (TypeError, KeyError) as error:
        raise InvalidModel("tokenizer_config.json: a chat_template of the list lacks its name or template") from error
    if not all(isinstance(text, str) for pair in pairs.items() for text in pair):
        raise InvalidModel("tokenizer_config.json: a chat_template of the list is not a string")
    return pairs


def text_file(path: Path) -> str:
    try:
        return read_file(path, MAX_JSON).decode()
    except UnicodeDecodeError as error:
        raise InvalidModel(f"{path.name}: the file is not UTF-8") from error


def pooling_of(config: Mapping[str, Any]) -> str | None:
    """What sentence-transformers' pooling module is set to, under its names without their prefix."""
    modes = {"pooling_mode_mean_tokens": "mean", "pooling_mode_cls_token": "cls", "pooling_mode_lasttoken": "last"}
    chosen = [name for key, name in modes.items() if config.get(key) is True]
    return chosen[0] if len(chosen) == 1 else None
