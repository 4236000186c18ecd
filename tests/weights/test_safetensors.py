"""Safetensors directories: what the library wrote is read without copying, what is broken is refused."""

from __future__ import annotations

import json
import struct
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import safetensors
from safetensors.numpy import save_file

from imp.weights import safetensors as reader
from imp.weights.checkpoint import InvalidModel, TokenizerFiles, UnsupportedModel, open_checkpoint

SINGLE, INDEX = "model.safetensors", "model.safetensors.index.json"


def directory(path: Path, weights: bytes | None = None, **files: Any) -> Path:
    """A model directory; other files by their name with dots as underscores, as JSON, text or bytes."""
    (path / "config.json").write_text(json.dumps({"model_type": "llama"}))
    if weights is not None:
        (path / SINGLE).write_bytes(weights)
    for name, content in files.items():
        target = path / name.replace("_json", ".json").replace("_jinja", ".jinja").replace("_bin", ".bin")
        target.write_bytes(content if isinstance(content, bytes) else json.dumps(content).encode())
    return path


def packed(header: dict[str, Any] | bytes, data: bytes = b"", length: int | None = None) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text) if length is None else length) + text + data


def line(dtype: Any = "F32", shape: Any = (2,), offsets: Any = (0, 8)) -> dict[str, Any]:
    return {"dtype": dtype, "shape": shape, "data_offsets": offsets}


def test_a_file_of_the_library_is_read_without_copying(tmp_path):
    rng = np.random.default_rng(0)
    tensors = {
        "matrix": rng.standard_normal((3, 4)).astype(np.float32),
        "vector": rng.standard_normal(5).astype(np.float16),
        "cube": rng.standard_normal((2, 3, 4)).astype(np.float16),
        "scalar": np.array(1.5, dtype=np.float32),
    }
    save_file(tensors, tmp_path / SINGLE, metadata={"format": "pt"})
    checkpoint = open_checkpoint(directory(tmp_path))
    assert set(checkpoint.names()) == set(tensors)
    assert "matrix" in checkpoint and "other" not in checkpoint
    for name, expected in tensors.items():
        weight = checkpoint.weight(name)
        assert weight.shape == expected.shape
        assert not weight.data.flags.writeable and not weight.data.flags.owndata
        assert weight.data.tobytes() == expected.tobytes()
        np.testing.assert_array_equal(weight.float32(), expected.astype(np.float32))
    assert [checkpoint.weight(n).data.shape for n in ("matrix", "vector", "cube", "scalar")] == [
        (3, 16),
        (1, 10),
        (6, 8),
        (1, 4),
    ]
    assert checkpoint.parameters == 12 + 5 + 24 + 1
    assert checkpoint.size_bytes == 48 + 10 + 48 + 4
    assert checkpoint.quantization == "F16"
    with pytest.raises(InvalidModel, match="no tensor 'other'"):
        checkpoint.weight("other")


def test_bfloat16_is_read_without_copying(tmp_path):
    # 1.0, -2.0, 3.140625, the largest finite value: bfloat16 is the upper half of float32
    expected = np.array([[1.0, -2.0], [3.140625, 3.3895314e38]], dtype=np.float32)
    bits = (expected.view(np.uint32) >> 16).astype("<u2").tobytes()
    path = directory(tmp_path, packed({"w": line("BF16", [2, 2])}, bits))
    with safetensors.safe_open(path / SINGLE, "numpy") as judge:
        assert judge.get_slice("w").get_dtype() == "BF16"
    checkpoint = open_checkpoint(path)
    weight = checkpoint.weight("w")
    assert weight.format.name == "BF16" and not weight.data.flags.owndata
    np.testing.assert_array_equal(weight.float32(), expected)


def test_shards_are_read_through_the_index(tmp_path):
    save_file({"a": np.arange(4, dtype=np.float32), "stale": np.zeros(1, np.float32)}, tmp_path / "m-1.safetensors")
    save_file({"b": np.arange(6, dtype=np.float32)}, tmp_path / "m-2.safetensors")
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "m-1.safetensors", "b": "m-2.safetensors"}}))
    checkpoint = open_checkpoint(directory(tmp_path))
    assert list(checkpoint.names()) == ["a", "b"]
    assert checkpoint.weight("b").float32().tolist() == [0, 1, 2, 3, 4, 5]


def test_weights_outlive_the_checkpoint(tmp_path):
    checkpoint = open_checkpoint(directory(tmp_path, packed({"w": line()}, struct.pack("<2f", 1, 2))))
    weight = checkpoint.weight("w")
    checkpoint.close()
    assert weight.float32().tolist() == [1, 2]
    assert not list(checkpoint.names())


def test_symbolic_links_to_the_weights_are_followed(tmp_path):  # SCENARIOS G10-14; download caches are made of them
    (tmp_path / "blob").write_bytes(packed({"w": line()}, bytes(8)))
    (tmp_path / SINGLE).symlink_to(tmp_path / "blob")
    assert "w" in open_checkpoint(directory(tmp_path))


SOUND = {"w": line()}
TWICE = json.dumps(SOUND).encode()[:-1] + b"," + json.dumps(SOUND).encode()[1:]
DAMAGED = "model.safetensors: the file is damaged or incomplete ("
# SCENARIOS G10-14: what we find ourselves
REFUSED_BY_US = {
    "no bytes": (b"", "the file is empty"),
    "seven bytes": (bytes(7), "too few"),
    "header length 0": (packed({}, bytes(8), length=0), "the header is said to have 0 bytes"),
    "header longer than the file": (packed(SOUND, bytes(8), length=1000), "the header is said to have 1000 bytes"),
    "header of exabytes": (packed(SOUND, bytes(8), length=1 << 63), "9223372036854775808 bytes"),
    "name twice": (packed(TWICE, bytes(8)), "the header is not valid JSON (a key occurs twice in one object)"),
    "too many dimensions": (packed({"w": line(shape=[1] * 8 + [2])}, bytes(8)), "tensor 'w' has 9 dimensions"),
    "absurd empty tensor": (packed({"w": line(shape=[0, 1 << 62], offsets=[0, 0])}), "'w' has an impossible shape"),
}
# SCENARIOS G10-14: what the library finds
REFUSED_BY_THE_LIBRARY = {
    "header not UTF-8": packed(b'{"\xff": 1}'),
    "header not JSON": packed(b"{'a': 1}"),
    "header a list": packed(b"[]"),
    "header deep": packed(b"[" * 100_000),
    "header deep inside": packed(b'{"w": {"x": ' + b"[" * 100_000),
    "huge integer": packed(b'{"w": ' + b"9" * 10_000 + b"}"),
    "metadata not strings": packed({"__metadata__": {"a": 1}, **SOUND}, bytes(8)),
    "line not an object": packed({"w": 1}, bytes(8)),
    "no dtype": packed({"w": {"shape": [2], "data_offsets": [0, 8]}}, bytes(8)),
    "unknown dtype": packed({"w": line("F31")}, bytes(8)),
    "dtype a list": packed({"w": line(["F32"])}, bytes(8)),
    "negative dimension": packed({"w": line(shape=[-2])}, bytes(8)),
    "fractional dimension": packed({"w": line(shape=[2.0])}, bytes(8)),
    "boolean dimension": packed({"w": line(shape=[True, 2])}, bytes(8)),
    "absurd dimension": packed({"w": line(shape=[1 << 62, 4])}, bytes(8)),
    "size is not dtype times shape": packed({"w": line(shape=[3])}, bytes(8)),
    "range backwards": packed({"w": line(offsets=[8, 0])}, bytes(8)),
    "range past the end": packed({"w": line(offsets=[8, 16])}, bytes(8)),
    "three offsets": packed({"w": line(offsets=[0, 4, 8])}, bytes(8)),
    "one byte short": packed(SOUND, bytes(7)),
    "one byte more": packed(SOUND, bytes(9)),
    "overlap": packed({"v": line(offsets=[4, 12]), "w": line()}, bytes(12)),
    "gap": packed({"w": line(), "v": line(offsets=[12, 20])}, bytes(20)),
    "name of many lines": packed({"a\nb\x1b[2J" * 1000: line(offsets=[8, 0])}, bytes(8)),
}


def refusal(path: Path, content: bytes) -> str:
    with pytest.raises(InvalidModel) as caught:
        open_checkpoint(directory(path, content))
    return str(caught.value)


@pytest.mark.parametrize("fault", REFUSED_BY_US)
def test_what_the_library_does_not_judge_is_refused_in_one_sentence(tmp_path, fault):
    content, expected = REFUSED_BY_US[fault]
    sentence = refusal(tmp_path, content)
    assert sentence.startswith("model.safetensors: ") and sentence.isprintable() and expected in sentence


@pytest.mark.parametrize("fault", REFUSED_BY_THE_LIBRARY)
def test_what_the_library_refuses_is_refused_in_one_sentence(tmp_path, fault):
    sentence = refusal(tmp_path, REFUSED_BY_THE_LIBRARY[fault])
    assert sentence.startswith(DAMAGED) and sentence.isprintable() and len(sentence) < 400
    with pytest.raises(safetensors.SafetensorError) as judge:
        safetensors.deserialize(REFUSED_BY_THE_LIBRARY[fault])
    said = str(judge.value).removeprefix("Error while deserializing: ")
    assert fault == "name of many lines" or said[:300] in sentence


def test_a_range_that_is_wrong_is_named(tmp_path):
    assert "`w`" in refusal(tmp_path, REFUSED_BY_THE_LIBRARY["range past the end"])


def test_a_type_of_part_bytes_is_unsupported(tmp_path):
    content = packed({"w": line("F4", [2], [0, 1])}, bytes(1))
    assert safetensors.deserialize(content)[0][1]["dtype"] == "F4"
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors: tensor 'w' has the type F4"):
        open_checkpoint(directory(tmp_path, content))


def test_tensors_lie_in_the_order_of_their_bytes_not_of_their_lines(tmp_path):
    data = struct.pack("<5f", 1, 2, 3, 4, 5)
    lines = {"z": line("F32", [3], [8, 20]), "none": line("F32", [0], [8, 8]), "a": line("F32", [2], [0, 8])}
    checkpoint = open_checkpoint(directory(tmp_path, packed(lines, data)))
    got = {name: checkpoint.weight(name).float32().tolist() for name in checkpoint.names()}
    assert got == {"a": [1, 2], "none": [], "z": [3, 4, 5]}
    with safetensors.safe_open(tmp_path / SINGLE, "numpy") as judge:
        assert got == {name: judge.get_tensor(name).tolist() for name in lines}


@pytest.mark.parametrize("length", [100_000_001, 1 << 40, (1 << 64) - 1])
def test_a_header_beyond_the_limits_never_reaches_the_library(tmp_path, monkeypatch, length):  # SCENARIOS G10-14
    monkeypatch.setattr(reader, "safe_open", lambda *args, **options: pytest.fail("the library was called"))
    with (tmp_path / SINGLE).open("wb") as file:
        file.write(struct.pack("<Q", length))
        file.truncate(8 + 100_000_001)  # a hole: no disk space is used
    with pytest.raises(InvalidModel, match=rf"model\.safetensors: the header .* {length} bytes"):
        open_checkpoint(directory(tmp_path))


class PanicException(BaseException):
    """Named and derived as the one that PyO3 raises where Rust code panics."""


@pytest.mark.parametrize("error", [PanicException("index out of bounds"), OSError(5, "input/output error")])
def test_whatever_the_library_raises_names_the_file(tmp_path, monkeypatch, error):
    def raising(*args: Any, **options: Any) -> None:
        raise error

    monkeypatch.setattr(reader, "safe_open", raising)
    assert refusal(tmp_path, packed(SOUND, bytes(8))) == f"{DAMAGED}{error})"


def test_a_file_replaced_while_it_is_opened_is_refused(tmp_path, monkeypatch):
    later = tmp_path / "later.safetensors"
    later.write_bytes(packed({"w": line(shape=[3], offsets=[0, 12])}, bytes(12)))
    monkeypatch.setattr(reader, "safe_open", lambda path, framework: safetensors.safe_open(later, framework))
    assert "its tensors end at byte" in refusal(tmp_path, packed(SOUND, bytes(8)))


def test_an_interrupt_is_not_taken_for_a_damaged_file(tmp_path, monkeypatch):
    def interrupted(*args: Any, **options: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(reader, "safe_open", interrupted)
    with pytest.raises(KeyboardInterrupt):
        open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8))))


def test_weights_that_are_a_directory_are_refused(tmp_path):
    (tmp_path / SINGLE).mkdir()
    with pytest.raises(InvalidModel, match=r"model\.safetensors: cannot be read"):
        open_checkpoint(directory(tmp_path))


@pytest.mark.parametrize(
    ("placed", "expected"),
    [
        ({"w": "../../x.safetensors"}, "not a plain file name"),
        ({"w": "/etc/x.safetensors"}, "not a plain file name"),
        ({"w": "a\\x.safetensors"}, "not a plain file name"),
        ({"w": "c:x.safetensors"}, "not a plain file name"),
        ({"w": "x.bin"}, "not a plain file name"),
        ({"w": 1}, "not a plain file name"),
        ({"w": "absent.safetensors"}, "absent.safetensors: there is no such file"),
        ({"w": "there.safetensors", "v": "there.safetensors"}, "there.safetensors: tensor 'v' is not in the file"),
        ({}, "weight_map"),
        (["w"], "weight_map"),
    ],
)
def test_an_index_that_names_what_is_not_there_is_refused(tmp_path, placed, expected):  # SCENARIOS G10-14
    (tmp_path / "there.safetensors").write_bytes(packed(SOUND, bytes(8)))
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": placed}))
    with pytest.raises(InvalidModel) as caught:
        open_checkpoint(directory(tmp_path))
    assert expected in str(caught.value)


def test_pickled_weights_are_never_loaded(tmp_path):  # SCENARIOS G10-14
    with pytest.raises(UnsupportedModel, match="pickled"):
        open_checkpoint(directory(tmp_path, pytorch_model_bin=b"\x80\x02."))
    renamed = tmp_path / SINGLE
    renamed.write_bytes(b"\x80\x02}q\x00." + bytes(64))
    with pytest.raises(InvalidModel, match="header"):
        open_checkpoint(tmp_path)


@pytest.mark.parametrize("content", [b"{", b"[]", b"\xff", b'{"a": 1, "a": 2}', b"[" * 100_000])
@pytest.mark.parametrize("name", ["config_json", "generation_config_json", "tokenizer_config_json"])
def test_broken_json_beside_the_weights_is_refused(tmp_path, name, content):  # SCENARIOS G10-14
    with pytest.raises(InvalidModel) as caught:
        open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8)), **{name: content}))
    assert str(caught.value).startswith(name.replace("_json", ".json"))


def test_a_directory_without_config_or_weights_is_refused(tmp_path):
    with pytest.raises(InvalidModel, match=r"neither model\.safetensors nor"):
        open_checkpoint(tmp_path)
    (tmp_path / SINGLE).write_bytes(packed(SOUND, bytes(8)))
    with pytest.raises(InvalidModel, match=r"config\.json: there is no such file"):
        open_checkpoint(tmp_path)


def test_types_we_cannot_read_are_refused_when_used(tmp_path):
    path = directory(tmp_path, packed({"i": line("I64", [1]), "w": line(offsets=[8, 16])}, bytes(16)))
    checkpoint = open_checkpoint(path)
    assert checkpoint.weight("w").shape == (2,)
    with pytest.raises(UnsupportedModel, match=r"model\.safetensors: tensor 'i' has the type I64"):
        checkpoint.weight("i")


def test_config_generation_and_tokenizer_are_handed_on(tmp_path):
    path = directory(
        tmp_path,
        packed(SOUND, bytes(8)),
        generation_config_json={"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]},
        tokenizer_json=b'{"version": "1.0"}',
        tokenizer_config_json={"bos_token": "<s>", "chat_template": "T"},
        special_tokens_map_json={"eos_token": "</s>"},
    )
    checkpoint = open_checkpoint(path)
    assert checkpoint.config == {"model_type": "llama"}
    assert checkpoint.generation == {"temperature": 0.6, "top_k": 20, "eos_token_id": [1, 2]}
    assert checkpoint.chat_template == "T" and checkpoint.chat_templates == {}
    assert checkpoint.tokenizer() == TokenizerFiles(
        b'{"version": "1.0"}', {"bos_token": "<s>", "chat_template": "T"}, {"eos_token": "</s>"}
    )


@pytest.mark.parametrize(
    "config, name",
    [
        ({}, None),
        ({"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}, "mean"),
        ({"pooling_mode_cls_token": True}, "cls"),
        ({"pooling_mode_lasttoken": True, "pooling_mode_mean_tokens": False}, "last"),
    ],
)
def test_the_pooling_module_is_read(tmp_path, config, name):
    made = directory(tmp_path, packed({"a": line()}, b"\0" * 8))
    (made / "1_Pooling").mkdir()
    (made / "1_Pooling" / "config.json").write_text(json.dumps(config))
    assert open_checkpoint(made).pooling == name


def test_a_bare_directory_has_empty_defaults(tmp_path):
    checkpoint = open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8))))
    assert checkpoint.generation == {} and checkpoint.chat_template is None and checkpoint.chat_templates == {}
    assert checkpoint.tokenizer() == TokenizerFiles(None, {}, {})


NAMED = [{"name": "default", "template": "D"}, {"name": "tool_use", "template": "U"}]


# SCENARIOS G06-09: .jinja wins over tokenizer_config.json, which wins over chat_template.json
@pytest.mark.parametrize(
    ("files", "template", "named"),
    [
        ({"tokenizer_config_json": {"chat_template": NAMED}}, "D", {"tool_use": "U"}),
        ({"tokenizer_config_json": {"chat_template": NAMED[1:]}}, None, {"tool_use": "U"}),
        ({"chat_template_json": {"chat_template": "J"}}, "J", {}),
        ({"chat_template_json": {"chat_template": "J"}, "tokenizer_config_json": {"chat_template": "C"}}, "C", {}),
        ({"chat_template_jinja": b"X", "tokenizer_config_json": {"chat_template": "C"}}, "X", {}),
        ({"chat_template_jinja": b"X", "tokenizer_config_json": {"chat_template": NAMED}}, "X", {}),
    ],
)
def test_g06_09_chat_templates_have_an_order(tmp_path, files, template, named):
    checkpoint = open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8)), **files))
    assert checkpoint.chat_template == template and checkpoint.chat_templates == named


def test_g06_09_additional_chat_templates_are_found(tmp_path):
    (tmp_path / "additional_chat_templates").mkdir()
    (tmp_path / "additional_chat_templates" / "rag.jinja").write_text("R")
    assert open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8)))).chat_templates == {"rag": "R"}
    files = {"chat_template_jinja": b"X", "tokenizer_config_json": {"chat_template": NAMED}}
    checkpoint = open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8)), **files))
    assert checkpoint.chat_template == "X" and checkpoint.chat_templates == {"rag": "R"}


@pytest.mark.parametrize(
    "given", [1, [1], [{"name": "x"}], [{"name": "x", "template": 1}], [{"name": 1, "template": "x"}]]
)
def test_a_chat_template_of_another_kind_is_refused(tmp_path, given):
    with pytest.raises(InvalidModel, match="chat_template"):
        open_checkpoint(directory(tmp_path, packed(SOUND, bytes(8)), tokenizer_config_json={"chat_template": given}))
