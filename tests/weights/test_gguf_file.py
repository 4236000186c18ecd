"""The GGUF container: everything the specification has is read, everything broken is refused in one sentence."""

from __future__ import annotations

import os
import struct
import tracemalloc
from dataclasses import replace
from pathlib import Path

import gguf
import numpy as np
import pytest

from imp.weights.checkpoint import InvalidModel, UnsupportedModel, open_checkpoint
from imp.weights.gguf_file import StringArray, parse
from imp.weights.mapped import map_file
from tests.weights import ggufmaker as make
from tests.weights.ggufmaker import Gguf, Key, Tensor


def write(directory: Path, content: bytes, name: str = "model.gguf") -> Path:
    path = directory / name
    path.write_bytes(content)
    return path


def refusal(directory: Path, content: bytes, kind: type[Exception] = InvalidModel) -> str:
    """The sentence a file is refused with; names the file, is one line, and cost neither memory nor time."""
    path = write(directory, content)
    tracemalloc.start()
    try:
        with pytest.raises(kind) as caught:
            open_checkpoint(path)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
    sentence = str(caught.value)
    assert sentence.startswith("model.gguf: ") and "\n" not in sentence and len(sentence) < 300
    return sentence


@pytest.mark.parametrize("version", [2, 3])
def test_every_metadata_type_is_read(tmp_path, version):
    metadata = parse(map_file(write(tmp_path, replace(make.tiny(), version=version).packed()))).metadata
    for kind, expected in make.SCALARS.items():
        assert metadata[f"x.{kind}"] == expected
        assert type(metadata[f"x.{kind}"]) is type(expected)
        assert list(metadata[f"x.array.{kind}"]) == [expected, expected]
    numbers, strings = metadata["x.nested"]
    assert numbers.tolist() == [1, 2] and list(strings) == ["x", "y"]


def test_numeric_arrays_are_views_of_the_file(tmp_path):
    file = map_file(write(tmp_path, make.tiny().packed()))
    scores = parse(file).metadata["tokenizer.ggml.scores"]
    assert np.shares_memory(scores, file.data) and not scores.flags.writeable


def test_string_arrays_behave_like_lists_and_decode_late(tmp_path):
    raw = struct.pack("<IQ", make.STRING, 3) + make.string("a") + make.string(b"\xff") + make.string("é")
    path = write(tmp_path, make.tiny().with_key("x.strings", make.ARRAY, raw=raw).packed())
    strings = parse(map_file(path)).metadata["x.strings"]
    assert isinstance(strings, StringArray)
    assert len(strings) == 3 and strings[0] == "a" and strings[-1] == "é" and strings[2:] == ["é"]
    assert [strings.raw(i) for i in range(3)] == [b"a", b"\xff", "é".encode()]
    with pytest.raises(IndexError):
        strings[3]
    with pytest.raises(InvalidModel, match=r"model\.gguf: .* not UTF-8"):
        strings[1]
    with pytest.raises(InvalidModel, match=r"model\.gguf: .* not UTF-8"):
        list(strings)


@pytest.mark.parametrize("alignment", [8, 32, 64, 4096])
def test_alignment_moves_the_tensors(tmp_path, alignment):
    made = replace(make.tiny().with_key("general.alignment", make.U32, alignment), alignment=alignment)
    checkpoint = open_checkpoint(write(tmp_path, made.packed()))
    assert checkpoint.weight("model.embed_tokens.weight").float32().tolist() == np.arange(32.0).reshape(4, 8).tolist()


def test_a_file_of_the_gguf_package_is_read(tmp_path):
    rng = np.random.default_rng(0)
    path = tmp_path / "written.gguf"
    writer = gguf.GGUFWriter(path, "llama")
    writer.add_block_count(1)
    writer.add_embedding_length(64)
    writer.add_head_count(2)
    writer.add_custom_alignment(64)
    writer.add_array("x.list", [1, 2, 3])
    writer.add_token_list(["a", "b"])
    dense = rng.standard_normal((5, 64)).astype(np.float32)
    quantised = {kind: gguf.quantize(dense, gguf.GGMLQuantizationType[kind]) for kind in ("Q4_1", "Q8_0", "BF16")}
    writer.add_tensor("token_embd.weight", dense)
    writer.add_tensor("half", dense.astype(np.float16))
    writer.add_tensor("cube", dense.reshape(5, 2, 32))
    for kind, raw in quantised.items():
        writer.add_tensor(kind, raw, raw_dtype=gguf.GGMLQuantizationType[kind])
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()

    checkpoint = open_checkpoint(path)
    assert list(checkpoint.names()) == ["model.embed_tokens.weight", "half", "cube", "Q4_1", "Q8_0", "BF16"]
    np.testing.assert_array_equal(checkpoint.weight("model.embed_tokens.weight").float32(), dense)
    np.testing.assert_array_equal(checkpoint.weight("half").float32(), dense.astype(np.float16).astype(np.float32))
    np.testing.assert_array_equal(checkpoint.weight("cube").float32(), dense.reshape(5, 2, 32))
    assert checkpoint.weight("cube").data.shape == (10, 128)
    for kind, raw in quantised.items():
        weight = checkpoint.weight(kind)
        assert weight.format.name == kind and weight.shape == (5, 64)
        np.testing.assert_array_equal(weight.data, raw.view(np.uint8))
        np.testing.assert_array_equal(weight.float32(), gguf.dequantize(raw, gguf.GGMLQuantizationType[kind]))


def tensor(**changed) -> Gguf:
    """A file of one tensor that is wrong in one way."""
    return Gguf(make.model_keys(), [replace(Tensor("t", 0, (8, 4), make.floats(32)), **changed)])


# SCENARIOS G10-13
BROKEN = {
    "empty file": (b"", "is empty"),
    "wrong magic": (replace(make.tiny(), magic=b"GGML").packed(), "does not begin with GGUF"),
    "only the magic": (b"GGUF", "the version at byte 4 needs 4 bytes, but 0 are left"),
    "header cut": (make.tiny().packed()[:20], "number of tensors at byte 8 is 3, more than the 4 bytes left"),
    "key count": (replace(make.tiny(), key_count=1 << 60).packed(), "number of metadata keys at byte 16"),
    "tensor count": (replace(make.tiny(), tensor_count=(1 << 64) - 1).packed(), "number of tensors at byte 8"),
    "one tensor too many": (replace(make.tiny(), tensor_count=4).packed(), ""),
    "one key too many": (replace(make.tiny(), key_count=len(make.tiny().keys) + 1).packed(), ""),
    "key twice": (Gguf([Key("a", make.U8, 1), Key("a", make.U8, 1)]).packed(), "'a' occurs twice"),
    "key not UTF-8": (Gguf([Key(b"\xff", make.U8, 1)]).packed(), "metadata key 0 at byte 24 is not UTF-8"),
    "key with a zero byte": (Gguf([Key("a\0b", make.U8, 1)]).packed(), "metadata key 0 at byte 24 is empty or holds"),
    "empty key": (Gguf([Key("", make.U8, 1)]).packed(), "metadata key 0 at byte 24 is empty"),
    "long key": (Gguf([Key("k" * 65536, make.U8, 1)]).packed(), "length of metadata key 0"),
    "value type": (Gguf([Key("a", 13, raw=b"xxxx")]).packed(), "'a' has the unknown type 13"),
    "element type": (make.tiny().with_key("a", 9, raw=struct.pack("<IQ", 99, 1)).packed(), "unknown type 99"),
    "string length": (
        make.tiny().with_key("a", 8, raw=struct.pack("<Q", 1 << 40)).packed(),
        "value of metadata key 'a'",
    ),
    "array of 2^61 u64": (
        make.tiny().with_key("a", 9, raw=struct.pack("<IQ", 10, 1 << 61)).packed(),
        "number of elements",
    ),
    "array of 2^64-1 strings": (
        make.tiny().with_key("a", 9, raw=struct.pack("<IQ", 8, (1 << 64) - 1)).packed(),
        "number of elements",
    ),
    "array string length": (
        make.tiny().with_key("a", 9, raw=struct.pack("<IQQ", 8, 1, (1 << 64) - 1)).packed(),
        "past the end of the file",
    ),
    "array string count": (
        Gguf([Key("a", 9, raw=struct.pack("<IQ", 8, 3) + make.string("x" * 20) + make.string("y"))]).packed(),
        "after 2 of 3 strings",
    ),
    "deep nesting": (
        make.tiny().with_key("a", 9, raw=struct.pack("<IQ", 9, 1) * 5 + struct.pack("<IQ", 0, 0)).packed(),
        "nested deeper",
    ),
    "value not UTF-8": (make.tiny().with_key("a", 8, b"\xc3").packed(), "'a' at byte"),
    **{
        f"alignment {n}": (make.tiny().with_key("general.alignment", make.U32, n).packed(), "general.alignment is")
        for n in (0, 1, 24, 1 << 30)
    },
    "alignment type": (make.tiny().with_key("general.alignment", make.STRING, "32").packed(), "general.alignment is"),
    "million dimensions": (tensor(n_dims=1_000_000).packed(), "'t' has 1000000 dimensions"),
    "five dimensions": (tensor(dims=(1, 1, 1, 1, 1)).packed(), "'t' has 5 dimensions"),
    "no dimensions": (tensor(dims=()).packed(), "'t' has 0 dimensions"),
    "zero dimension": (tensor(dims=(8, 0)).packed(), "dimension of zero"),
    "product wraps to 0": (tensor(dims=(1 << 32, 1 << 32)).packed(), "past the end of the file"),
    "huge dimension": (tensor(dims=((1 << 63) + 8, 2)).packed(), "impossible shape"),
    "unknown type": (tensor(type=77).packed(), "'t' has the unknown type 77"),
    "removed type": (tensor(type=4).packed(), "'t' has the unknown type 4"),
    "rows of broken blocks": (tensor(type=8, dims=(8, 4)).packed(), "not a multiple of Q8_0's block of 32"),
    "offset not aligned": (tensor(offset=4).packed(), "offset 4, which is not a multiple"),
    "offset past the end": (tensor(offset=1 << 40).packed(), "past the end of the file"),
    "offset wraps": (tensor(offset=(1 << 64) - 32).packed(), "past the end of the file"),
    "data cut by one byte": (tensor().packed()[:-1], "past the end of the file"),
    "empty tensor name": (tensor(name="").packed(), "name of tensor 0"),
    "long tensor name": (tensor(name="n" * 65).packed(), "name of tensor 0"),
    "tensor name not UTF-8": (tensor(name=b"\x80").packed(), "name of tensor 0 at byte"),
    "tensor twice": (replace(tensor(), tensors=tensor().tensors * 2).packed(), "'t' occurs twice"),
    "overlap": (
        replace(tensor(), tensors=[*tensor().tensors, Tensor("u", 0, (8,), make.floats(8), offset=96)]).packed(),
        "'t' and 'u' overlap",
    ),
    "two names of one": (
        Gguf(
            make.model_keys(),
            [
                Tensor("output.weight", 0, (8,), make.floats(8)),
                Tensor("lm_head.weight", 0, (8,), make.floats(8)),
            ],
        ).packed(),
        "both stand for 'lm_head.weight'",
    ),
    "no architecture": (make.tiny().without_key("general.architecture").packed(), "lacks general.architecture"),
    "architecture type": (make.tiny().with_key("general.architecture", make.U8, 1).packed(), "general.architecture"),
    "no heads": (make.tiny().without_key("llama.attention.head_count").packed(), "num_attention_heads"),
    "zero heads": (make.tiny().with_key("llama.attention.head_count", make.U32, 0).packed(), "head_count is 0"),
    "billions of layers": (make.tiny().with_key("llama.block_count", make.U32, 4_000_000_000).packed(), "block_count"),
    "layers as text": (make.tiny().with_key("llama.block_count", make.STRING, "1").packed(), "block_count is '1'"),
    "infinite epsilon": (
        make.tiny().with_key("llama.attention.layer_norm_rms_epsilon", make.F32, float("inf")).packed(),
        "not a finite number",
    ),
    "tokens are numbers": (
        make.tiny().with_key("tokenizer.ggml.tokens", 9, (make.U8, [1])).packed(),
        "array of strings",
    ),
    "merges are numbers": (make.tiny().with_key("tokenizer.ggml.merges", make.U8, 1).packed(), "array of strings"),
    "fewer scores than tokens": (
        make.tiny().with_key("tokenizer.ggml.scores", 9, (make.F32, [0.0])).packed(),
        "1 entries for 4 tokens",
    ),
    "types are text": (
        make.tiny().with_key("tokenizer.ggml.token_type", 9, (make.STRING, ["a"] * 4)).packed(),
        "array of numbers",
    ),
    "template is a number": (make.tiny().with_key("tokenizer.chat_template", make.U8, 1).packed(), "not a string"),
}


@pytest.mark.parametrize("fault", BROKEN)
def test_a_broken_file_is_refused_in_one_sentence(tmp_path, fault):  # SCENARIOS G10-13
    content, expected = BROKEN[fault]
    assert expected in refusal(tmp_path, content)


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (replace(make.tiny(), magic=b"FUGG").packed(), "big-endian"),
        (b"GGUF" + struct.pack(">IQQ", 3, 0, 0) + bytes(64), "big-endian"),
        *((replace(make.tiny(), version=v).packed(), f"version {v} is not supported") for v in (0, 1, 4, 99)),
    ],
)
def test_other_dialects_of_gguf_are_refused_as_unsupported(tmp_path, content, expected):  # SCENARIOS G10-13
    assert expected in refusal(tmp_path, content, UnsupportedModel)


def test_a_tensor_of_a_known_type_without_dequantiser_is_refused_when_used(tmp_path):
    made = replace(tensor(), tensors=[Tensor("iq", 16, (256,), bytes(66)), *tensor().tensors])
    checkpoint = open_checkpoint(write(tmp_path, made.packed()))
    assert checkpoint.weight("t").shape == (4, 8)
    with pytest.raises(UnsupportedModel, match=r"model\.gguf: tensor 'iq' has the type IQ2_XXS"):
        checkpoint.weight("iq")


def test_every_truncation_of_a_sound_file_is_refused(tmp_path):
    content = make.tiny().packed()
    content = content[: len(content) - (-68 % 32)]  # the padding after the last tensor is not needed
    path = write(tmp_path, content)
    open_checkpoint(path)
    for length in range(len(content) - 1, -1, -1):
        os.truncate(path, length)
        with pytest.raises(InvalidModel, match=r"^model\.gguf: "):
            open_checkpoint(path)


def test_ids_outside_the_vocabulary_count_as_absent(tmp_path):
    made = make.tiny().with_key("tokenizer.ggml.eos_token_id", make.U32, 0xFFFFFFFF)
    made = made.with_key("tokenizer.ggml.padding_token_id", make.I32, -1)
    config = open_checkpoint(write(tmp_path, made.packed())).config
    assert config["bos_token_id"] == 0
    assert "eos_token_id" not in config and "pad_token_id" not in config


def test_paths_that_are_no_model_are_refused(tmp_path):
    for path in (tmp_path / "absent.gguf", tmp_path, Path("/dev/null")):
        with pytest.raises(InvalidModel):
            open_checkpoint(path)
