"""The process with a request log, traces and step timing switched on: what a person sees, SIGHUP, and the end."""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import httpx
import pytest

from imp import settings
from tests.obs.collector import collecting
from tests.real.process import ROOT, server
from tests.real.test_reload import until

ASK = {"messages": [{"role": "user", "content": "canary"}]}


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def script(folder: Path) -> str:
    path = folder / "script.json"
    path.write_text(json.dumps({"replies": [{"pieces": ["Hello", " you"]}]}))
    return str(path)


def test_the_log_is_reopened_on_sighup_and_the_last_spans_are_sent(tmp_path: Path) -> None:
    target, moved = tmp_path / "requests.jsonl", tmp_path / "requests.jsonl.1"
    env = dict(os.environ) | {"OTEL_EXPORTER_OTLP_HEADERS": "x-key=a%20secret"}
    with collecting() as collector:
        options = ["--script", script(tmp_path), "--log-requests", str(target)]
        options += ["--set", f"server.otlp_endpoint={collector.url}", "--set", "server.otlp_service_name=mine"]
        options += ["--set", "diagnostics.step_timing=true"]
        with server(*options, env=env) as process:
            assert httpx.post(process.url + "/v1/chat/completions", json=ASK).status_code == 200
            until(lambda: target.exists() and len(lines(target)) == 1)
            target.rename(moved)
            process.process.send_signal(signal.SIGHUP)
            until(target.exists)
            assert httpx.post(process.url + "/v1/chat/completions", json=ASK).status_code == 200
            found = process.metrics()
            assert found["imp_requests_total"] == 2 and found["imp_steps_timed_total"] >= 2
            assert process.stop() == 0
        assert [line["response"]["choices"][0]["message"]["content"] for line in lines(moved)] == ["Hello you"]
        [line] = lines(target)
        assert line["request"] == ASK
        roots = [span for span in collector.spans() if span["kind"] == 2]
        assert [root["traceId"] for root in roots] == [lines(moved)[0]["trace_id"], line["trace_id"]]
        assert all(headers["x-key"] == "a secret" for _, headers, _ in collector.requests)
    assert f"prompts and answers are written to {target}" in process.log
    assert "canary" not in process.log and "a secret" not in process.log


def test_rendered_prompts_are_logged_only_when_asked_for(tmp_path: Path) -> None:
    with server("--script", script(tmp_path), "--set", "diagnostics.debug_template=true") as process:
        assert "this log holds prompts" in process.log
        assert httpx.post(process.url + "/v1/chat/completions", json=ASK).status_code == 200
        until(lambda: "canary" in process.log)
        [told] = [line for line in process.lines if "canary" in line]
        assert "<|im_start|>user\\x0acanary<|im_end|>" in told  # one line, whatever is in it


@pytest.mark.slow
def test_a_collector_that_hangs_does_not_hold_up_the_end(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as silent:
        endpoint = f"http://127.0.0.1:{silent.getsockname()[1]}"
        with server("--script", script(tmp_path), "--set", f"server.otlp_endpoint={endpoint}") as process:
            for _ in range(3):
                assert httpx.post(process.url + "/v1/chat/completions", json=ASK).status_code == 200
            time.sleep(1.2)  # a batch is under way
            assert process.stop(20) == 0


@pytest.mark.parametrize(
    "option, value, code",
    [
        ("--log-requests", "missing/folder/log", 4),
        ("--log-requests", ".", 1),
        ("--set", "server.otlp_endpoint=collector:4318", 1),
    ],
)
def test_what_cannot_be_opened_is_said_at_the_start(option: str, value: str, code: int) -> None:
    command = [sys.executable, "-m", "imp", "--port", "0", option, value]
    ended = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=60)
    assert ended.returncode == code and ended.stderr.startswith("imp-server: error: ")
    assert value.rpartition("=")[2] in ended.stderr or "OTLP endpoint" in ended.stderr


def test_otlp_headers_that_are_none_are_refused_without_repeating_them() -> None:
    assert settings.load([], {"OTEL_EXPORTER_OTLP_HEADERS": "a=b=c, d=%2C"}).paths.otlp_headers == (("a", "b=c"), ("d", ","))
    for given in ("secret", "a b=secret", "a=secret%0d%0ab: c", "=secret"):
        with pytest.raises(settings.SettingsError) as error:
            settings.load([], {"OTEL_EXPORTER_OTLP_HEADERS": given})
        assert "secret" not in str(error.value)
