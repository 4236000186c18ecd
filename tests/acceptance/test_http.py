"""How fast the HTTP layer is, and how much it bears: figures of a quiet machine with two cores."""

from __future__ import annotations

import asyncio
import os
import re
import resource
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx
import pytest
import uvloop

from bench.http import CHAT, request_cost_us, token_cost_us
from tests.real.process import ServerProcess, server

LEAST_REQUESTS_PER_S = 8000
MOST_US_PER_TOKEN = 40.0
IDLE_CONNECTIONS = 10_000
MOST_KIB_PER_CONNECTION = 16


@contextmanager
def scripted(tmp_path: Path, *arguments: str) -> Iterator[ServerProcess]:
    script = tmp_path / "script.json"
    script.write_text('{"replies": [{"pieces": ["word "], "endless": true, "delay_ms": 5}]}')
    with server("--script", str(script), "--http-keep-alive-max", "0", *arguments) as process:
        yield process


def cpu_s(pid: int) -> float:
    """Seconds of CPU a process has used (proc(5): utime and stime, in ticks)."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def test_health_is_answered_8000_times_a_second(tmp_path):
    if shutil.which("wrk") is None:
        pytest.skip("wrk is not installed")
    cores = sorted(os.sched_getaffinity(0))
    if len(cores) < 2:
        pytest.skip("client and server need a core each")
    with scripted(tmp_path) as process:
        os.sched_setaffinity(process.process.pid, {cores[0]})
        for thread in Path(f"/proc/{process.process.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[0]})
        command = ["taskset", "-c", str(cores[1]), "wrk", "-t1", "-c32", "-d5", process.url + "/health"]
        rates, per_cpu_s = [], []
        for _ in range(3):
            used = cpu_s(process.process.pid)
            told = subprocess.run(command, check=True, capture_output=True, text=True).stdout
            assert "Non-2xx" not in told and "Socket errors" not in told
            rates.append(float(re.search(r"Requests/sec:\s+([\d.]+)", told)[1]))
            per_cpu_s.append(int(re.search(r"(\d+) requests in", told)[1]) / (cpu_s(process.process.pid) - used))
    print(f"\nGET /health, 32 connections: {max(rates):.0f} requests/s, of {[round(rate) for rate in rates]};")
    print(f"for a second of the server's CPU {max(per_cpu_s):.0f}; load average {os.getloadavg()[0]:.1f}")
    # the server wants nothing but CPU: where others had its core too, what it did with its share is the rate
    assert max(rates + per_cpu_s) >= LEAST_REQUESTS_PER_S


def test_a_request_and_a_token_cost_little():
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(f"\nGET /health without sockets: {runner.run(request_cost_us()):.1f} us of CPU")
        for path in (CHAT, "/v1/completions", "/v1/messages"):
            more = {"prompt": "hi", "messages": None} if path == "/v1/completions" else {}
            cost = min(runner.run(token_cost_us(path=path, tokens=200, **more)) for _ in range(3))
            print(f"{path}: {cost:.1f} us of the loop's CPU for each token of 64 streams")
            assert cost <= MOST_US_PER_TOKEN


def test_ten_thousand_idle_connections(tmp_path):
    """Each has had an answer and stays; another client is not kept waiting, and all are served again."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    if hard < IDLE_CONNECTIONS + 500:
        pytest.skip(f"this user may open {hard} files")
    resource.setrlimit(resource.RLIMIT_NOFILE, (hard, hard))
    ask = b"GET /health HTTP/1.1\r\nHost: a\r\n\r\n"
    with scripted(tmp_path, "--http-read-timeout", "300") as process:
        port = int(process.url.rsplit(":", 1)[1])
        peers: list[socket.socket] = []

        def answered(peer: socket.socket) -> bool:
            peer.sendall(ask)
            return peer.recv(4096).startswith(b"HTTP/1.1 200 ")

        try:
            for _ in range(200):  # what is there once
                peers.append(socket.create_connection(("127.0.0.1", port)))
                assert answered(peers[-1])
            before = process.rss_bytes()
            began = time.monotonic()
            while len(peers) < IDLE_CONNECTIONS:
                peers.append(socket.create_connection(("127.0.0.1", port)))
                assert answered(peers[-1])
            opening_s = time.monotonic() - began
            each = (process.rss_bytes() - before) / (IDLE_CONNECTIONS - 200)
            waits = []
            for _ in range(20):
                began = time.monotonic()
                assert httpx.get(process.url + "/health").status_code == 200
                waits.append(time.monotonic() - began)
            assert all(map(answered, peers[:: IDLE_CONNECTIONS // 100]))
            rate = IDLE_CONNECTIONS / opening_s
            print(f"\n{IDLE_CONNECTIONS} idle connections: {each / 1024:.1f} KiB each, opened at {rate:.0f} a second;")
            print(f"another client's /health meanwhile: median {sorted(waits)[10] * 1e3:.1f} ms")
            assert each <= MOST_KIB_PER_CONNECTION * 1024
            assert sorted(waits)[10] < 0.2
        finally:
            for peer in peers:
                peer.close()
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
