"""The program as a person starts and stops it. Ids in comments are scenarios."""

from __future__ import annotations

import os
import platform
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import httpx
import pytest

from tests.real.process import ROOT, ServerProcess, server


def imp(*arguments: str, **options) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "imp", *arguments]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False, **options)


@pytest.mark.parametrize(
    "arguments, code, words",
    [
        (["--port", "nope"], 1, "--port must be a whole number"),
        (["--wat"], 1, "--wat"),
        (["--set", "runtime.thread=1"], 1, "runtime.threads"),
        (["--config", "/does/not/exist"], 4, "does not exist"),
        (["--port", "0", "--model", "/does/not/exist.gguf"], 4, "/does/not/exist.gguf"),
    ],
)
def test_mistakes_are_one_sentence_and_an_exit_code(arguments, code, words):
    done = imp(*arguments)
    assert done.returncode == code, done.stderr
    last = done.stderr.strip().splitlines()[-1]
    assert last.startswith("imp-server: error: ") and words in last and "Traceback" not in done.stderr


def test_a_broken_model_file_is_exit_code_5(tmp_path):
    path = tmp_path / "broken.gguf"
    path.write_bytes(b"GGUF" + b"\x03\0\0\0" + b"\xff" * 64)
    done = imp("--port", "0", "--model", str(path))
    assert done.returncode == 5 and "broken.gguf" in done.stderr and "Traceback" not in done.stderr


def test_help_and_version_are_quick_and_plain():
    began = time.monotonic()
    done = imp("--help")
    assert done.returncode == 0 and "--model PATH|NAME" in done.stdout and "server:" in done.stdout
    assert imp("--version").stdout.startswith("imp-server ")
    assert time.monotonic() - began < 10


@pytest.mark.skipif(platform.machine() != "x86_64" or sys.platform != "linux", reason="LLVM loads kernels there")
def test_a_server_that_finds_its_kernels_on_disk_has_no_compiler_in_memory(smollm2_server, smollm2_path):
    """By now, another server has left them there."""
    with server("--model", str(smollm2_path)) as running:
        assert "llvmlite" not in Path(f"/proc/{running.process.pid}/maps").read_text()


def test_a_taken_port_is_said(smollm2_server):
    port = smollm2_server.url.rsplit(":", 1)[1]
    done = imp("--port", port)
    assert done.returncode == 1 and "cannot listen on" in done.stderr


def test_without_a_model_the_server_serves_what_needs_none(tmp_path):
    process = ServerProcess("--models-dir", str(tmp_path)).wait()
    try:
        health = httpx.get(process.url + "/health").json()
        assert health["model_loaded"] is False
        ready = httpx.get(process.url + "/ready")
        assert ready.status_code == 503 and ready.json()["error"]["code"] == "no_model"
        chat = httpx.post(process.url + "/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
        assert chat.status_code == 503 and chat.json()["error"]["code"] == "no_model"
    finally:
        assert process.stop() == 0


def test_a_signal_lets_streams_finish_and_refuses_new_ones(smollm2_path):  # G10-08
    with server("--model", str(smollm2_path)) as process:
        body = {"prompt": "Once upon a time", "max_tokens": 200, "stream": True, "temperature": 0, "ignore_eos": True}
        seen: list[str] = []
        first = threading.Event()

        def read() -> None:
            with httpx.stream("POST", process.url + "/v1/completions", json=body, timeout=60) as answer:
                for line in answer.iter_lines():
                    seen.append(line)
                    first.set()

        reader = threading.Thread(target=read)
        reader.start()
        assert first.wait(30)
        process.process.send_signal(signal.SIGTERM)
        deadline = time.monotonic() + 5
        while httpx.get(process.url + "/ready").status_code != 503:
            assert time.monotonic() < deadline
        refused = httpx.post(process.url + "/v1/completions", json=body)
        assert refused.status_code == 503 and refused.json()["error"]["code"] == "draining"
        assert refused.headers["connection"] == "close"
        reader.join(60)
        assert seen[-2:] == ["data: [DONE]", ""] or "data: [DONE]" in seen[-3:]
        assert process.process.wait(20) == 0
        with pytest.raises(httpx.ConnectError):
            httpx.get(process.url + "/health")


def test_a_drain_that_takes_too_long_ends_streams_in_band(smollm2_path):  # G10-08
    with server("--model", str(smollm2_path), "--set", "server.model_swap_drain_ms=300") as process:
        body = {"prompt": "x", "max_tokens": 4000, "stream": True, "ignore_eos": True, "temperature": 0}
        with httpx.stream("POST", process.url + "/v1/completions", json=body, timeout=60) as answer:
            lines = answer.iter_lines()
            next(lines)
            process.process.send_signal(signal.SIGTERM)
            rest = [line for line in lines if line]
        assert rest[-1] == "data: [DONE]" and '"draining"' in rest[-2]
        assert process.process.wait(20) == 0


def test_a_signal_while_loading_ends_at_once(smollm2_path):  # G10-08
    process = ServerProcess("--model", str(smollm2_path))
    deadline = time.monotonic() + 30
    while not process.lines:
        assert time.monotonic() < deadline
        time.sleep(0.02)
    began = time.monotonic()
    assert process.stop() == 0
    assert time.monotonic() - began < 5


def test_readiness_is_told_to_the_service_manager(smollm2_path, tmp_path):
    path = str(tmp_path / "notify")
    told: list[bytes] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
        manager.bind(path)
        manager.settimeout(60)

        def listen() -> None:
            while not told or told[-1] != b"STOPPING=1":
                told.append(manager.recv(1000))

        listener = threading.Thread(target=listen)
        listener.start()
        env = dict(os.environ, NOTIFY_SOCKET=path, WATCHDOG_USEC="200000")
        with server("--model", str(smollm2_path), env=env):
            deadline = time.monotonic() + 20
            while told.count(b"WATCHDOG=1") < 3 or b"READY=1" not in told:
                assert time.monotonic() < deadline, told
                time.sleep(0.05)
        listener.join(20)
    assert told[-1] == b"STOPPING=1" and told.count(b"READY=1") == 1
