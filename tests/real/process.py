"""The server as a person runs it: a process, found by the URL it prints."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import httpx

ROOT = Path(__file__).resolve().parents[2]


class ServerProcess:
    """`python -m imp` on a free port. `url` is there once it has printed that it is ready."""

    def __init__(self, *arguments: str, env: dict[str, str] | None = None):
        command = [sys.executable, "-m", "imp", "--port", "0", *arguments]
        self.started = time.monotonic()
        self.process = subprocess.Popen(
            command, cwd=ROOT, stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True, env=env
        )
        self.lines: list[str] = []
        self.url = ""
        self._ready = threading.Event()
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stderr is not None
        for line in self.process.stderr:
            self.lines.append(line.rstrip("\n"))
            if found := re.search(r"listens +(http://\S+)", line):
                self.url = found.group(1)
                self.ready_after_s = time.monotonic() - self.started
                self._ready.set()
        self._ready.set()  # it ended

    def wait(self, seconds: float = 300) -> ServerProcess:
        assert self._ready.wait(seconds) and self.url, "the server did not start:\n" + "\n".join(self.lines)
        return self

    @property
    def log(self) -> str:
        return "\n".join(self.lines)

    def stop(self, seconds: float = 20) -> int:
        """SIGTERM, and the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        try:
            code = self.process.wait(seconds)
        except subprocess.TimeoutExpired:
            self.process.kill()
            raise
        self._reader.join(5)
        return code

    def rss_bytes(self) -> int:
        """Resident memory of the process."""
        lines = Path(f"/proc/{self.process.pid}/status").read_text().splitlines()
        return next(int(line.split()[1]) * 1024 for line in lines if line.startswith("VmRSS"))

    def cpu_s(self) -> float:
        """Processor time of all its threads so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def metrics(self) -> dict[str, float]:
        """Every unlabelled sample of /metrics."""
        text = httpx.get(self.url + "/metrics", timeout=10).text
        pairs = (line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        return {name: float(value) for name, value in pairs if "{" not in name}


@contextmanager
def server(*arguments: str, env: dict[str, str] | None = None) -> Iterator[ServerProcess]:
    running = ServerProcess(*arguments, env=env)
    try:
        yield running.wait()
    finally:
        running.stop()
