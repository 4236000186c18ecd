"""What --check and --check-config find, over toys; and once over the real model."""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import tokenizers

from imp import check
from imp.__main__ import main
from imp.chat.prepare import ModelFacts
from imp.chat.template import BUILTIN, ChatTemplate
from imp.check import Finding, Level
from imp.types import Sampling
from tests.real.process import ROOT
from tests.text.toys import BEGIN, byte_alphabet_in_order, byte_tokenizer

NO_CONFIG = {"HOME": "/nowhere"}


def bundle(template: str | None = BUILTIN["chatml"], **tokenizer: Any) -> Any:
    """As much of a Bundle as the checks of text look at."""
    made = byte_tokenizer(**tokenizer)
    facts = ModelFacts(
        tokenizer=made,
        template=None if template is None else ChatTemplate(template, special_tokens={"bos_token": BEGIN}),
        defaults=Sampling(),
        context=4096,
        control_spellings=(),
        dry_breakers=frozenset,
    )
    return SimpleNamespace(tokenizer=made, facts=facts)


def only(findings: Any) -> Finding:
    (finding,) = findings
    return finding


# -- settings


def config(capsys: Any, *arguments: str) -> str:
    assert main(["--check-config", *arguments]) == 0
    return capsys.readouterr().out


def test_the_settings_printed_are_a_config_file_that_says_the_same(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    arguments = ["--port", "9", "--set", "server.cors_origins=https://a,https://b", "--model", 'a "b" #c']
    told = config(capsys, *arguments)
    assert "port = 9  # --port" in told and "# --set" in told and 'host = "127.0.0.1"  # default' in told
    assert tomllib.loads(told)["server"]["cors_origins"] == ["https://a", "https://b"]
    (tmp_path / "imp.conf").write_text(told)
    again = config(capsys)
    assert tomllib.loads(again) == tomllib.loads(told)
    assert "port = 9  # imp.conf" in again


def test_keys_are_counted_and_never_printed(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    path = tmp_path / "keys"
    path.write_text("sk-one\nsk-two\n")
    path.chmod(0o600)
    for more in ([], ["--json"]):
        told = config(capsys, "--api-key", "sk-three", "--api-key", f"@{path}", *more)
        assert "3 hidden" in told and "sk-" not in told


def test_settings_as_json(tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    told = json.loads(config(capsys, "--json", "--port", "9"))
    assert told["server.port"] == {"value": 9, "from": "--port"}
    assert told["model.model"] == {"value": None, "from": "default"}


@pytest.mark.parametrize(
    "arguments, code",
    [
        (["--port", "x"], 1),
        (["--api-key", "@/does/not/exist"], 4),
        (["--api-key", "two words"], 1),
        (["--config", "/does/not/exist"], 4),
        (["--lora", "a"], 1),
        (["--mmproj", "a"], 6),
    ],
)
def test_what_the_server_would_refuse_is_refused(arguments, code, capsys):
    assert main(["--check-config", *arguments]) == code
    assert capsys.readouterr().err.startswith("imp-server: error: ")


# -- the model


def test_text_that_comes_back_changed_is_wrong_where_it_is_plain():
    honest = byte_tokenizer()
    assert only(check.round_trips(honest)).level is Level.OK

    def lossy(characters: str) -> Any:
        def decode(ids: list[int]) -> str:
            return "".join(c for c in honest.decode(ids) if c not in characters)

        return SimpleNamespace(encode=honest.encode, decode=decode)

    assert only(check.round_trips(lossy("ß"))).level is Level.NOTE
    assert only(check.round_trips(lossy("q"))).level is Level.WRONG


def test_control_tokens_of_the_template_are_one_token_each():
    assert only(check.control_tokens(bundle("{{ messages[0].content }}<|im_end|>"))).level is Level.OK
    wrong = only(check.control_tokens(bundle("{{ messages[0].content }}<|im_end|><|nowhere|>")))
    assert wrong.level is Level.WRONG and "<|nowhere|>" in wrong.detail and "im_end" not in wrong.detail
    assert not list(check.control_tokens(bundle(None)))


def test_a_template_is_rendered():
    assert only(check.template(bundle())).level is Level.OK
    forgetful = only(check.template(bundle("{{ messages[1].content }}")))
    assert forgetful.level is Level.WRONG and "leaves out" in forgetful.detail
    broken = only(check.template(bundle("{{ raise_exception('no') }}")))
    assert broken.level is Level.WRONG
    twice = "{{ bos_token }}{{ bos_token }}{% for m in messages %}{{ m.content }}{% endfor %}"
    assert "two BOS" in only(check.template(bundle(twice, add_bos_token=True))).detail
    assert only(check.template(bundle(None))).level is Level.NOTE


def write_tokenizer_json(path: Path, order: list[str]) -> None:
    made = tokenizers.Tokenizer(tokenizers.models.BPE({piece: i for i, piece in enumerate(order)}, []))
    made.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    made.decoder = tokenizers.decoders.ByteLevel()
    made.save(str(path))


def test_a_tokenizer_json_beside_a_gguf_file_is_compared(tmp_path):
    model = tmp_path / "m.gguf"
    assert not list(check.other_vocabularies(byte_tokenizer(), model))
    order = byte_alphabet_in_order()
    write_tokenizer_json(tmp_path / "tokenizer.json", order)
    assert only(check.other_vocabularies(byte_tokenizer(), model)).level is Level.OK
    order[65], order[66] = order[66], order[65]
    write_tokenizer_json(tmp_path / "tokenizer.json", order)
    assert only(check.other_vocabularies(byte_tokenizer(), model)).level is Level.WRONG
    (tmp_path / "tokenizer.json").write_text("{}")
    assert only(check.other_vocabularies(byte_tokenizer(), model)).level is Level.NOTE


def test_a_shipped_example_is_compared(tmp_path):
    model, example = tmp_path / "m.gguf", tmp_path / check.EXAMPLE
    assert not list(check.shipped_example(bundle(), model))
    messages = [{"role": "user", "content": "hi"}]
    chatml = "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n"
    for prompt, level in ((chatml, Level.OK), (chatml + " ", Level.WRONG)):
        example.write_text(json.dumps({"messages": messages, "prompt": prompt}))
        assert only(check.shipped_example(bundle(), model)).level is level
    for broken in ("", "[]", '{"messages": 1, "prompt": ""}', '{"messages": [{}], "prompt": ""}'):
        example.write_text(broken)
        assert only(check.shipped_example(bundle(), model)).level is Level.NOTE


@pytest.mark.slow
def test_the_real_model_passes(smollm2_path):
    command = [sys.executable, "-m", "imp", "--check=json", "--model", str(smollm2_path), "--max-model-len", "512"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert {finding["level"] for finding in told["findings"]} == {"ok"}
    assert [finding["what"] for finding in told["findings"]] == [
        "round trip",
        "control tokens",
        "chat template",
        "generation",
    ]
    memory = told["memory"]
    assert memory["context"] == 512 and memory["kv_bytes"] == memory["kv_blocks"] * memory["kv_block_bytes"]
    assert memory["weights_bytes"] <= smollm2_path.stat().st_size


def test_a_model_that_cannot_be_loaded_ends_the_check_with_its_code(tmp_path):
    broken = tmp_path / "broken.gguf"
    broken.write_bytes(b"GGUF\3\0\0\0" + b"\xff" * 60)
    for path, code in ((broken, 5), (tmp_path / "nowhere.gguf", 4)):
        command = [sys.executable, "-m", "imp", "--check", "--model", str(path)]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
        assert done.returncode == code and "error:" in done.stderr and "Traceback" not in done.stderr
