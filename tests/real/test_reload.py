"""SIGHUP at the real process: keys change, and a broken key file changes nothing."""

from __future__ import annotations

import signal
import time
from collections.abc import Callable
from pathlib import Path

import httpx

from tests.real.process import server


def until(condition: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 10
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_keys_are_read_again_on_sighup(tmp_path: Path) -> None:
    path = tmp_path / "keys"
    path.write_text("sk-old\nsk-stays\n")
    path.chmod(0o644)
    with server("--models-dir", str(tmp_path), "--api-key", f"@{path}", "--api-key", "sk-given") as process:
        assert "can be read by others" in process.log

        def status(key: str) -> int:
            return httpx.get(process.url + "/v1/models", headers={"x-api-key": key}).status_code

        assert [status(key) for key in ("sk-old", "sk-stays", "sk-given", "sk-new")] == [200, 200, 200, 401]
        path.write_text("sk-new\nsk-stays\n")
        process.process.send_signal(signal.SIGHUP)
        until(lambda: status("sk-new") == 200)
        assert [status(key) for key in ("sk-old", "sk-stays", "sk-given", "sk-new")] == [401, 200, 200, 200]
        path.write_text("# all gone\n")
        process.process.send_signal(signal.SIGHUP)
        until(lambda: "stay as they are" in process.log)
        assert [status(key) for key in ("sk-new", "sk-stays", "sk-given", "")] == [200, 200, 200, 401]
        assert not any(key in process.log for key in ("sk-old", "sk-stays", "sk-given", "sk-new"))
        assert process.stop() == 0
