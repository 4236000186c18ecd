"""SCENARIOS G10-13, G10-14: tens of thousands of damaged files either open or are refused; nothing else happens.

GGUF files live in memory here, as the reader sees a mapping; safetensors are real files, because the library opens them
by path. What opens is read to the last tensor and token, so that a wrong bound shows.
"""

from __future__ import annotations

import json
import random
import struct
import tracemalloc
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from imp.weights import gguf
from imp.weights.checkpoint import InvalidModel, UnsupportedModel
from imp.weights.gguf_file import StringArray
from imp.weights.mapped import MappedFile
from imp.weights.safetensors import read_tensors
from tests.weights import ggufmaker as make
from tests.weights.ggufmaker import Gguf, Key, Tensor

GGUF_ROUNDS, SAFETENSORS_ROUNDS = 10_000, 10_000
MOST_BYTES = 1 << 19  # allocated at once while a file of 2 kB is opened and read

# what lengths, counts, dimensions, types and offsets are overwritten with
INTERESTING = [0, 1, 2, 3, 4, 5, 7, 8, 9, 10, 12, 13, 31, 32, 33, 64, 100, 255, 256, 4096, 65535, 65536, 1 << 20] + [
    (1 << bits) + delta for bits in (31, 32, 33, 48, 61, 62, 63, 64) for delta in (-32, -8, -1, 0, 1)
]


def memory_file(content: bytes) -> MappedFile:
    return MappedFile(Path("fuzzed"), np.frombuffer(content, dtype=np.uint8))


def damaged(rng: random.Random, content: bytes) -> bytes:
    """One to four bit flips, truncations, rewritten integers, moved, repeated or dropped pieces."""
    data = bytearray(content)
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        if len(data) < 16:
            break
        rng.choice((flip, flip, cut, rewrite, rewrite, rewrite, move, repeat, drop))(rng, data)
    return bytes(data)


def flip(rng: random.Random, data: bytearray) -> None:
    data[rng.randrange(len(data))] ^= 1 << rng.randrange(8)


def cut(rng: random.Random, data: bytearray) -> None:
    del data[rng.randrange(len(data)) :]


def rewrite(rng: random.Random, data: bytearray) -> None:
    width = rng.choice((4, 8))
    at = rng.randrange(len(data) - width)
    data[at : at + width] = (rng.choice(INTERESTING) % (1 << 8 * width)).to_bytes(width, "little")


def move(rng: random.Random, data: bytearray) -> None:
    size = rng.randrange(1, 16)
    source, target = rng.randrange(len(data)), rng.randrange(len(data))
    piece = data[source : source + size]
    data[target : target + len(piece)] = piece


def repeat(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    data[at:at] = data[at : at + rng.randrange(1, 64)]


def drop(rng: random.Random, data: bytearray) -> None:
    at = rng.randrange(len(data))
    del data[at : at + rng.randrange(1, 64)]


def outcome(read: Callable[[], None]) -> bool:
    """Whether it opened. Anything but the two refusals, or a large allocation, fails the test."""
    tracemalloc.reset_peak()
    before = tracemalloc.get_traced_memory()[0]
    try:
        read()
        opened = True
    except (InvalidModel, UnsupportedModel) as refusal:
        assert "\n" not in str(refusal) and "fuzzed" in str(refusal)
        opened = False
    assert tracemalloc.get_traced_memory()[1] - before < MOST_BYTES
    return opened


def small_gguf() -> Gguf:
    """Little besides structure, so that most damage hits it."""
    return Gguf(
        keys=[
            *make.model_keys("gemma3", **{"attention.sliding_window": 4}),
            *make.tokenizer_keys(["a", "b"]),
            Key("n", make.ARRAY, (make.ARRAY, [(make.STRING, ["x"]), (make.U64, [1])])),
        ],
        tensors=[
            Tensor("token_embd.weight", 0, (8, 2), make.floats(16)),
            Tensor("blk.0.attn_q.weight", 2, (32, 2), bytes(36)),
            Tensor("rope_factors_long.weight", 0, (2,), make.floats(2)),
        ],
    )


def repacked(rng: random.Random, base: Gguf) -> Gguf:
    """Whole-file hostility that bytes alone seldom reach: cyclic and overlapping offsets, lying counts and shapes."""
    tensors = list(base.tensors)
    i = rng.randrange(len(tensors))
    tensors[i] = replace(
        tensors[i],
        offset=rng.choice([None, rng.choice(INTERESTING) % (1 << 64), tensors[i - 1].offset or 32]),
        dims=tuple(rng.choice(INTERESTING) % (1 << 64) for _ in range(rng.randrange(6)))
        if rng.random() < 0.5
        else tensors[i].dims,
        type=rng.choice([tensors[i].type, rng.randrange(48)]),
        name=rng.choice([tensors[i].name, tensors[i - 1].name, b"\xff", ""]),
    )
    key = rng.choice(base.keys)
    hostile = rng.choice([None, struct.pack("<IQ", rng.randrange(14), rng.choice(INTERESTING) % (1 << 64))])
    keys = [replace(k, raw=hostile, kind=make.ARRAY if hostile else k.kind) if k is key else k for k in base.keys]
    return replace(
        base,
        tensors=tensors,
        keys=keys if rng.random() < 0.3 else base.keys,
        tensor_count=rng.choice([None, None, rng.choice(INTERESTING) % (1 << 64)]),
        key_count=rng.choice([None, None, None, rng.choice(INTERESTING) % (1 << 64)]),
    )


def read_gguf(monkeypatch: pytest.MonkeyPatch, content: bytes) -> None:
    monkeypatch.setattr(gguf, "map_file", lambda path: memory_file(content))
    checkpoint = gguf.GgufCheckpoint(Path("fuzzed"))
    for value in checkpoint.tokenizer().metadata.values():
        if isinstance(value, StringArray | np.ndarray):
            assert sum(1 for _ in value) == len(value)
    for name in list(checkpoint.names()):
        weight = checkpoint.weight(name)
        assert weight.float32().shape == weight.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_gguf_files_seed_1(monkeypatch):
    rng = random.Random(1)
    bases = [make.tiny(), small_gguf()]
    packed = [base.packed() for base in bases]
    tracemalloc.start()
    try:
        for content in packed:
            assert outcome(lambda content=content: read_gguf(monkeypatch, content))
        opened = 0
        for i in range(GGUF_ROUNDS):
            content = repacked(rng, bases[i % 2]).packed() if i % 4 == 0 else damaged(rng, packed[i % 2])
            opened += outcome(lambda content=content: read_gguf(monkeypatch, content))
    finally:
        tracemalloc.stop()
    assert GGUF_ROUNDS // 50 < opened < GGUF_ROUNDS // 2  # the damage neither always nor never matters


def small_safetensors() -> tuple[dict, bytes]:
    header = {
        "__metadata__": {"format": "pt"},
        "a": {"dtype": "F32", "shape": [2, 3], "data_offsets": [0, 24]},
        "b": {"dtype": "BF16", "shape": [4], "data_offsets": [24, 32]},
        "c": {"dtype": "F16", "shape": [], "data_offsets": [32, 34]},
        "d": {"dtype": "F8_E4M3", "shape": [2], "data_offsets": [34, 36]},
    }
    return header, bytes(range(36))


def pack_safetensors(header: dict, data: bytes, length: int | None = None) -> bytes:
    text = json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def relabelled(rng: random.Random) -> bytes:
    """The header says something else: other ranges, shapes, types, values of the wrong kind."""
    header, data = small_safetensors()
    for _ in range(rng.choice((1, 1, 2, 3))):
        line = header[rng.choice("abcd")]
        field = rng.choice(["dtype", "shape", "data_offsets"])
        line[field] = rng.choice(
            [
                rng.choice(["F32", "F16", "BF16", "I8", "U8", "F64", "F4", "X", "", None]),
                [rng.choice([*INTERESTING, -1, 24, 32, 34]) for _ in range(rng.randrange(4))],
                rng.choice([True, 1.5, {}, [[]], [1e400], ["1"], "24"]),
            ]
        )
    if rng.random() < 0.1:
        header["__metadata__"] = rng.choice([1, [], "x", {"a": 1}])
    length = rng.choice([None] * 9 + [rng.choice(INTERESTING) % (1 << 64)])
    return pack_safetensors(header, data, length)


def read_safetensors(path: Path, content: bytes) -> None:
    path.unlink(missing_ok=True)  # a new file each time: one that is still mapped must not shrink
    path.write_bytes(content)
    for name, entry in read_tensors(path).items():
        try:
            weight = entry.weight(name)
        except UnsupportedModel:
            continue
        assert weight.float32().shape == weight.shape


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::RuntimeWarning")
def test_damaged_safetensors_files_seed_2(tmp_path):
    rng = random.Random(2)
    path = tmp_path / "fuzzed.safetensors"
    sound = pack_safetensors(*small_safetensors())
    tracemalloc.start()
    try:
        assert outcome(lambda: read_safetensors(path, sound))
        opened = 0
        for i in range(SAFETENSORS_ROUNDS):
            content = relabelled(rng) if i % 2 else damaged(rng, sound)
            opened += outcome(lambda content=content: read_safetensors(path, content))
    finally:
        tracemalloc.stop()
    assert SAFETENSORS_ROUNDS // 50 < opened < SAFETENSORS_ROUNDS // 2
