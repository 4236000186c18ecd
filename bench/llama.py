"""llama.cpp as the peer: built in a scratch folder, its benches run, their output read. Knows nothing of our code."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import sys
import tarfile
import time
import venv
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

from bench.model import COPIED_FROM, Case

SDIST = "llama-cpp-python==0.3.36"  # a Python package that carries the tree of llama.cpp
TARGETS = ("llama-bench", "llama-batched-bench", "llama-quantize", "llama-server")
FLAGS = (
    *("-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release", "-DGGML_NATIVE=ON", "-DLLAMA_CURL=OFF", "-DLLAMA_OPENSSL=OFF"),
    *("-DLLAMA_BUILD_UI=OFF", "-DLLAMA_USE_PREBUILT_UI=OFF"),
)

# GCC 12 is told of the first 8 bytes alone that ldtilecfg reads, and drops the stores of the rest: llama.cpp's path for
# AMX dies of an illegal instruction.
_TILE_CONFIG = """\
#if defined(__AMX_TILE__) && defined(__GNUC__) && !defined(__clang__) && __GNUC__ < 13
#include <immintrin.h>
#define _tile_loadconfig(config) asm volatile("ldtilecfg %0" ::"m"(*(const char(*)[64])(config)))
#endif
"""


def build(scratch: Path) -> Path:
    """The folder of the programs, built natively unless they are there; wants a C++ compiler and a quarter of an hour."""
    programs = scratch / "build" / "bin"
    if all((programs / name).is_file() for name in TARGETS):
        return programs
    scratch.mkdir(parents=True, exist_ok=True)
    tools = scratch / "venv" / "bin"
    if not (tools / "cmake").is_file():
        venv.create(scratch / "venv", with_pip=True)
        _run(tools / "python", "-m", "pip", "install", "--quiet", "scikit-build-core", "cmake", "ninja")
    tree = next(scratch.glob("llama_cpp_python-*/vendor/llama.cpp"), None) or _fetch(scratch, tools)
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    header = scratch / "tile_config.h"
    header.write_text(_TILE_CONFIG)
    flags = (*FLAGS, f"-DCMAKE_CXX_FLAGS=-include {header}")
    _run(tools / "cmake", *flags, "-S", tree, "-B", scratch / "build", **path)
    _run(tools / "cmake", "--build", scratch / "build", "--target", *TARGETS, **path)
    return programs


def _fetch(scratch: Path, tools: Path) -> Path:
    source_only = ("--no-deps", "--no-binary", ":all:", "--no-build-isolation")
    path = {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    _run(tools / "python", "-m", "pip", "download", "--quiet", *source_only, "--dest", scratch, SDIST, **path)
    with tarfile.open(next(scratch.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(scratch, filter="data")
    return next(scratch.glob("llama_cpp_python-*/vendor/llama.cpp"))


def _run(*command: object, **env: str) -> None:
    subprocess.run([str(word) for word in command], check=True, env=os.environ | env)


def quantized(programs: Path, source: Path, name: str, folder: Path, threads: int) -> Path:
    """The model with its matrices in another format (embedding in Q8_0, as llama-quantize does for tied ones)."""
    out = folder / f"{source.stem}.{name}.gguf"
    if not out.is_file():
        part = out.with_suffix(".part")
        keep = ("--allow-requantize", "--token-embedding-type", "q8_0")
        command = [programs / "llama-quantize", *keep, source, part, name, str(threads)]
        subprocess.run([str(word) for word in command], check=True, capture_output=True)
        part.rename(out)
    return out


def version(programs: Path) -> str:
    done = subprocess.run([programs / "llama-bench", "--version"], capture_output=True, text=True, check=False)
    lines = [line for line in (done.stdout + done.stderr).splitlines() if "version" in line]
    return f"{SDIST}, {lines[0].strip()}" if lines else SDIST


# the programs say it at a level of their log that drowns everything else; the library says it when asked
_FEATURES = """
import ctypes, sys
library = ctypes.CDLL(sys.argv[1])
library.llama_print_system_info.restype = ctypes.c_char_p
print(library.llama_print_system_info().decode())
"""


def features(programs: Path) -> str:
    """The instructions and paths that this build uses here, such as "AVX2 AMX_INT8 REPACK"; "?" where it cannot say."""
    command = [sys.executable, "-c", _FEATURES, str(programs / "libllama.so")]
    return read_features(subprocess.run(command, capture_output=True, text=True, check=False).stdout)


def read_features(output: str) -> str:
    """Of llama.cpp's system info: `CPU : SSE3 = 1 | AVX2 = 1 | OPENMP = 1 | `."""
    return " ".join(re.findall(r"(\w+) = 1\b", output)) or "?"


def measure(programs: Path, model: Path, cases: list[Case], threads: int) -> dict[str, float]:
    """Tokens per second of one run of every case, by its name. Every program warms up by itself."""
    out = {}
    for case in cases:
        if case.batch > 1:
            out[str(case)] = _batched(programs, model, case, threads)
        else:
            out[str(case)] = _single(programs, model, case, threads)
    return out


def _single(programs: Path, model: Path, case: Case, threads: int) -> float:
    prompt, generated = (case.tokens, 0) if case.kind == "pp" else (0, case.tokens)
    sizes = ("-p", prompt, "-n", generated, "-d", case.depth)
    command = [programs / "llama-bench", "-m", model, "-t", threads, *sizes, "-r", 1, "-o", "json"]
    return read_bench(_output(command), case)


def _batched(programs: Path, model: Path, case: Case, threads: int) -> float:
    """Its sequences always have a prompt before: the depth, and one token at least. A deep one is computed once, and
    copied for the others."""
    assert case.kind == "tg"
    shared = ("-pps",) if case.depth >= COPIED_FROM else ()
    sizes = ("-npp", max(1, case.depth), "-ntg", case.tokens, "-npl", case.batch, *shared)
    room = case.batch * (case.tokens + max(1, case.depth))
    context = -(-room // 256) * 256 + 256 * case.batch
    options = ("-t", threads, "-tb", threads, "-c", context, "--output-format", "jsonl")
    return read_batched_bench(_output([programs / "llama-batched-bench", "-m", model, *sizes, *options]))


def _output(command: list[object]) -> str:
    done = subprocess.run([str(word) for word in command], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"{Path(str(command[0])).name} failed: {done.stderr[-500:]}")
    return done.stdout


def read_bench(output: str, case: Case) -> float:
    """Tokens per second in llama-bench's JSON: a list of tests, each with its sizes and `avg_ts`."""
    wanted = (case.tokens, 0) if case.kind == "pp" else (0, case.tokens)
    for test in json.loads(output):
        if (test["n_prompt"], test["n_gen"]) == wanted and test["n_depth"] == case.depth:
            return float(test["avg_ts"])
    raise ValueError(f"llama-bench did not report {case}")


def read_batched_bench(output: str) -> float:
    """Tokens per second of all sequences in llama-batched-bench's JSON lines; other lines are its log."""
    lines = [json.loads(line) for line in output.splitlines() if line.lstrip().startswith("{")]
    if len(lines) != 1:
        raise ValueError(f"llama-batched-bench reported {len(lines)} lines instead of one")
    return float(lines[0]["speed_tg"])


@contextmanager
def server(programs: Path, model: Path, threads: int, slots: int) -> Iterator[tuple[str, subprocess.Popen]]:
    """llama-server with a slot of 512 tokens for every client; the URL once /health is 200."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    options = ("-t", threads, "-tb", threads, "-np", slots, "-c", slots * 512, "--host", "127.0.0.1", "--port", port)
    command = [str(word) for word in (programs / "llama-server", "-m", model, *options)]
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    url = f"http://127.0.0.1:{port}"
    try:
        deadline = time.monotonic() + 120
        while not _healthy(url):
            if process.poll() is not None or time.monotonic() > deadline:
                raise RuntimeError("llama-server did not start")
            time.sleep(0.02)
        yield url, process
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(20)
        except subprocess.TimeoutExpired:
            print("llama-server ignored SIGTERM; killed", file=sys.stderr)
            process.kill()
            process.wait()


def _healthy(url: str) -> bool:
    try:
        return httpx.get(url + "/health", timeout=1).status_code == 200
    except httpx.TransportError:
        return False
