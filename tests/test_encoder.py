"""The tokenizer's process: what it says is what the library says here, and it ends when it should and is replaced when
it should not have."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file

from imp.beside import Beside
from imp.encoder import EncoderGone, EncoderProcess, read_vocabulary
from imp.text.tokenizer import InvalidTokenizer, Tokenizer
from imp.weights.checkpoint import InvalidModel
from tests.text import corpus, toys
from tests.text.test_packed import assert_same
from tests.text.test_tokenizer import CONFIG, byte_level_json, unigram_json

TEXTS = [*corpus.texts(), "a\ud800b", "", "x" * 300_000]


def gguf(name: str) -> Path:
    toys.vocabulary(name)  # skips
    return toys.VOCABULARIES / f"ggml-vocab-{name}.gguf"


def directory(path: Path, tokenizer_json: str) -> Path:
    """A model of one number, with this tokenizer."""
    path.mkdir(exist_ok=True)
    save_file({"one": np.zeros(1, np.float32)}, path / "model.safetensors")
    (path / "config.json").write_text("{}")
    (path / "tokenizer.json").write_text(tokenizer_json)
    (path / "tokenizer_config.json").write_text(json.dumps(CONFIG))
    return path


@pytest.fixture
def small(tmp_path: Path) -> Path:
    return directory(tmp_path / "model", byte_level_json().to_str())


def until(true: Callable[..., bool], *arguments: Any) -> None:
    deadline = time.monotonic() + 30
    while not true(*arguments):
        assert time.monotonic() < deadline
        time.sleep(0.01)


def gone(pid: int) -> bool:
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except OSError:
        return True


@pytest.mark.parametrize("kind", ["gpt-2", "llama-spm", "bert-bge", "byte_level_json", "unigram_json"])
def test_it_says_what_the_library_says(kind: str, tmp_path: Path) -> None:
    made = {"byte_level_json": byte_level_json, "unigram_json": unigram_json}
    path = directory(tmp_path / "model", made[kind]().to_str()) if kind in made else gguf(kind)
    expected = read_vocabulary(path)
    vocabulary = EncoderProcess(path).vocabulary()
    assert_same(expected, vocabulary)
    for piece in [*expected.pieces[:400], *expected.pieces[-400:], "", "no such piece", "\ud800"]:
        assert vocabulary.encoder.token_id(piece) == expected.encoder.token_id(piece)
    here, there = Tokenizer(expected), Tokenizer(vocabulary)
    for text in TEXTS:
        for parses in (False, True):
            assert there.encode(text, parse_special=parses) == here.encode(text, parse_special=parses)


def test_many_threads_ask_at_once(small: Path) -> None:
    vocabulary = EncoderProcess(small).vocabulary()
    here = Tokenizer(read_vocabulary(small))
    there = Tokenizer(vocabulary)
    with ThreadPoolExecutor(12) as pool:
        for _ in range(5):
            assert list(pool.map(there.encode, TEXTS)) == [here.encode(text) for text in TEXTS]


def test_what_is_wrong_with_the_model_is_said_here(tmp_path: Path) -> None:
    broken = directory(tmp_path / "broken", "{}")
    with pytest.raises(InvalidTokenizer, match=r"tokenizer\.json has no model"):
        EncoderProcess(broken).vocabulary()
    (broken / "tokenizer.json").unlink()
    with pytest.raises(InvalidModel, match=r"has no tokenizer\.json"):
        EncoderProcess(broken).vocabulary()
    with pytest.raises(InvalidModel, match="there is no such file"):
        EncoderProcess(tmp_path / "none.gguf").vocabulary()


def test_a_process_that_dies_is_replaced(small: Path, caplog: pytest.LogCaptureFixture) -> None:
    encoder = EncoderProcess(small)
    tokenizer = Tokenizer(encoder.vocabulary())
    expected = tokenizer.encode("hello world")
    for _ in range(2):
        pid = encoder.pid
        os.kill(pid, signal.SIGKILL)
        with ThreadPoolExecutor(4) as pool:
            assert list(pool.map(tokenizer.encode, ["hello world"] * 8)) == [expected] * 8
        assert encoder.pid != pid
        until(gone, pid)
    assert [record.getMessage() for record in caplog.records] == [
        "the tokenizer's process has died; it is started again"
    ] * 2


def test_its_replacement_has_the_same_vocabulary_or_none(small: Path) -> None:
    encoder = EncoderProcess(small)
    tokenizer = Tokenizer(encoder.vocabulary())
    directory(small, unigram_json().to_str())
    os.kill(encoder.pid, signal.SIGKILL)
    with pytest.raises(EncoderGone, match="files have changed"):
        tokenizer.encode("hello")
    shutil.rmtree(small)
    with pytest.raises(InvalidModel):
        tokenizer.encode("hello")
    directory(small, byte_level_json().to_str())
    assert tokenizer.decode(tokenizer.encode("hello")) == "hello"


def test_it_ends_with_the_last_reference_to_its_encoder(small: Path) -> None:
    encoder = EncoderProcess(small)
    pid, tokenizer = encoder.pid, Tokenizer(encoder.vocabulary())
    del encoder
    assert tokenizer.encode("a") and not gone(pid)
    del tokenizer
    until(gone, pid)


@pytest.mark.parametrize("ending", ["sys.exit()", "os._exit(0)", "os.kill(os.getpid(), signal.SIGKILL)"])
@pytest.mark.parametrize("waits", [False, True])
def test_it_ends_with_the_process_that_started_it(small: Path, ending: str, waits: bool) -> None:
    program = (
        "import os, signal, sys; from pathlib import Path; from imp.encoder import EncoderProcess\n"
        f"encoder = EncoderProcess(Path({str(small)!r})); print(encoder.pid, flush=True)\n"
        f"if {waits}: encoder.vocabulary()\n"
        f"{ending}"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, timeout=60)
    until(gone, int(done.stdout))
    assert done.stderr == ""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP])
def test_signals_to_the_whole_group_leave_it_alone(small: Path, number: signal.Signals) -> None:
    """What runs is finished after them, which needs it."""
    encoder = EncoderProcess(small)
    pid, tokenizer = encoder.pid, Tokenizer(encoder.vocabulary())
    os.kill(pid, number)
    assert tokenizer.encode("hello") and encoder.pid == pid


def test_a_process_that_was_begun_early_is_the_encoders_and_ends_with_it(small: Path, tmp_path: Path) -> None:
    early = Beside("imp.encoder", small)
    encoder = EncoderProcess(small, early)
    pid, tokenizer = encoder.pid, Tokenizer(encoder.vocabulary())
    assert pid == early.pid and tokenizer.decode(tokenizer.encode("hello")) == "hello"
    del encoder, tokenizer
    until(gone, pid)  # though `early` refers to it
    other = Beside("imp.encoder", tmp_path / "another")
    encoder = EncoderProcess(small, other)
    assert encoder.pid != other.pid and Tokenizer(encoder.vocabulary()).encode("hello")
    until(gone, other.pid)
