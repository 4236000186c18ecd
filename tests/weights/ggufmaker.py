"""Writes GGUF files byte by byte, sound or hostile. From the specification, not from the reader under test."""

from __future__ import annotations

import struct
from dataclasses import dataclass, field, replace
from typing import Any

U8, I8, U16, I16, U32, I32, F32, BOOL, STRING, ARRAY, U64, I64, F64 = range(13)
PACKED = {U8: "<B", I8: "<b", U16: "<H", I16: "<h", U32: "<I", I32: "<i", F32: "<f", BOOL: "<?"} | {
    U64: "<Q",
    I64: "<q",
    F64: "<d",
}


def string(text: str | bytes) -> bytes:
    raw = text.encode() if isinstance(text, str) else text
    return struct.pack("<Q", len(raw)) + raw


def value(kind: int, given: Any) -> bytes:
    """The bytes of a value without its type. Arrays are given as (element type, elements)."""
    if kind == STRING:
        return string(given)
    if kind == ARRAY:
        inner, items = given
        return struct.pack("<IQ", inner, len(items)) + b"".join(value(inner, item) for item in items)
    return struct.pack(PACKED[kind], given)


@dataclass(frozen=True)
class Key:
    name: str | bytes
    kind: int
    given: Any = None
    raw: bytes | None = None  # instead of what `given` packs to

    def packed(self) -> bytes:
        body = value(self.kind, self.given) if self.raw is None else self.raw
        return string(self.name) + struct.pack("<I", self.kind) + body


@dataclass(frozen=True)
class Tensor:
    name: str | bytes
    type: int
    dims: tuple[int, ...]  # GGUF's order: the row length first
    data: bytes
    offset: int | None = None  # None: where it falls
    n_dims: int | None = None  # None: len(dims)


@dataclass(frozen=True)
class Gguf:
    keys: list[Key] = field(default_factory=list)
    tensors: list[Tensor] = field(default_factory=list)
    version: int = 3
    magic: bytes = b"GGUF"
    alignment: int = 32
    key_count: int | None = None
    tensor_count: int | None = None
    tail: bytes = b""

    def with_key(self, name: str | bytes, kind: int, given: Any = None, raw: bytes | None = None) -> Gguf:
        """The same file with one key replaced or added."""
        kept = [key for key in self.keys if key.name != name]
        return replace(self, keys=[*kept, Key(name, kind, given, raw)])

    def without_key(self, name: str) -> Gguf:
        return replace(self, keys=[key for key in self.keys if key.name != name])

    def packed(self) -> bytes:
        tensor_count = len(self.tensors) if self.tensor_count is None else self.tensor_count
        key_count = len(self.keys) if self.key_count is None else self.key_count
        head = self.magic + struct.pack("<IQQ", self.version, tensor_count, key_count)
        head += b"".join(key.packed() for key in self.keys)
        data = b""
        for tensor in self.tensors:
            offset = len(data) if tensor.offset is None else tensor.offset
            n_dims = len(tensor.dims) if tensor.n_dims is None else tensor.n_dims
            head += string(tensor.name) + struct.pack("<I", n_dims)
            head += struct.pack(f"<{len(tensor.dims)}Q", *tensor.dims) + struct.pack("<IQ", tensor.type, offset)
            data += tensor.data + bytes(-len(tensor.data) % self.alignment)
        return head + (bytes(-len(head) % self.alignment) + data if self.tensors else b"") + self.tail


def model_keys(arch: str = "llama", **changed: int) -> list[Key]:
    """Metadata of a model with one layer of two heads of size 4."""
    sizes = {
        "block_count": 1,
        "embedding_length": 8,
        "feed_forward_length": 16,
        "context_length": 64,
        "attention.head_count": 2,
        "attention.head_count_kv": 1,
    } | changed
    return [
        Key("general.architecture", STRING, arch),
        *(Key(f"{arch}.{name}", U32, size) for name, size in sizes.items()),
        Key(f"{arch}.attention.layer_norm_rms_epsilon", F32, 1e-5),
    ]


def tokenizer_keys(tokens: list[str]) -> list[Key]:
    return [
        Key("tokenizer.ggml.model", STRING, "gpt2"),
        Key("tokenizer.ggml.tokens", ARRAY, (STRING, tokens)),
        Key("tokenizer.ggml.scores", ARRAY, (F32, [float(-i) for i in range(len(tokens))])),
        Key("tokenizer.ggml.token_type", ARRAY, (I32, [1] * len(tokens))),
        Key("tokenizer.ggml.bos_token_id", U32, 0),
        Key("tokenizer.ggml.eos_token_id", U32, 1),
    ]


def floats(count: int, first: float = 0.0) -> bytes:
    return struct.pack(f"<{count}f", *(first + i for i in range(count)))


def tiny() -> Gguf:
    """A sound file with every kind of metadata value and three tensors, one of them quantised."""
    return Gguf(
        keys=[
            *model_keys(),
            *tokenizer_keys(["a", "bc", "", "é"]),
            Key("tokenizer.chat_template", STRING, "{{ messages }}"),
            *(Key(f"x.{kind}", kind, given) for kind, given in SCALARS.items()),
            *(Key(f"x.array.{kind}", ARRAY, (kind, [given, given])) for kind, given in SCALARS.items()),
            Key("x.nested", ARRAY, (ARRAY, [(U8, [1, 2]), (STRING, ["x", "y"])])),
        ],
        tensors=[
            Tensor("token_embd.weight", 0, (8, 4), floats(32)),
            Tensor("blk.0.attn_q.weight", 0, (8, 8), floats(64)),
            Tensor("blk.0.ffn_down.weight", 8, (32, 2), bytes(range(68))),
        ],
    )


SCALARS = {
    **{U8: 250, I8: -7, U16: 60000, I16: -30000, U32: 4000000000, I32: -2000000000, F32: 1.5, BOOL: True},
    **{STRING: "ж", U64: 1 << 63, I64: -(1 << 62), F64: 2.25},
}
