"""--log-requests: the lines, and targets that are full, slow, gone or moved away."""

from __future__ import annotations

import json
import os
import threading
import time
from pathlib import Path
from typing import Any

import pytest

from imp.obs import requestlog
from imp.obs.record import RequestRecord
from imp.obs.requestlog import MAX_BODY_BYTES, MAX_WAITING, RequestLog, json_line
from imp.obs.trace import TraceContext
from tests.obs.records import record


def line_of(made: RequestRecord) -> Any:
    data = json_line(made)
    assert data.endswith(b"\n") and data.count(b"\n") == 1
    return json.loads(data)


def lines(path: Path) -> list[Any]:
    return [json.loads(line) for line in path.read_text().split("\n")[:-1]]


def until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.002)


def test_every_key_of_the_contract_is_there() -> None:
    body = b'{\n "messages": [{"role": "user", "content": "h\\u00e9"}]\n}'
    line = line_of(record(client_request_id="mine", request=body, response={"id": "chatcmpl-1"}))
    assert line == {
        "ts_ms": 1_000_000,
        "req_id": "r",
        "client_request_id": "mine",
        "endpoint": "/v1/chat/completions",
        "client_ip": "192.0.2.7",
        "status": 200,
        "outcome": "succeeded",
        "model": "toy",
        "stream": False,
        "latency_ms": 2000.0,
        "queue_ms": 250.0,
        "ttft_ms": 500.0,
        "prompt_tokens": 7,
        "cached_tokens": 3,
        "completion_tokens": 5,
        "finish_reason": "stop",
        "request": {"messages": [{"role": "user", "content": "hé"}]},
        "response": {"id": "chatcmpl-1"},
        "trace_id": "4bf92f3577b34da6a3ce929d0e0e4736",
        "span_id": "00f067aa0ba902b7",
    }


def test_what_is_not_there_is_null_or_left_out() -> None:
    line = line_of(record(status=401, queue_s=None, ttft_s=None, finish_reasons=(), trace=None))
    assert {"client_request_id", "trace_id", "span_id"}.isdisjoint(line)
    assert line["finish_reason"] is line["request"] is line["response"] is line["ttft_ms"] is None


@pytest.mark.parametrize(
    "body",
    [
        b"not json",
        b'{"a": NaN}',
        b'{"a": 1e999}',
        b"[1, 2]",
        b'"text"',
        b"\xff\xfe{",
        b"[" * 100_000,
        b'{"a": ' + b"9" * 5000 + b"}",
        b'{"a": "half a pair: \\ud800"}',
    ],
)
def test_any_body_makes_one_line_of_valid_json(body: bytes) -> None:
    line = line_of(record(status=400, request=body))
    if b"ud800" in body:
        assert line["request"] == {"a": "half a pair: \ud800"}
    else:
        assert line["request"] == body.decode("utf-8", "replace")


def test_big_bodies_are_cut_and_text() -> None:
    body = json.dumps({"prompt": "x" * 2 * MAX_BODY_BYTES}).encode()
    line = line_of(record(request=body, response={"text": "y" * 2 * MAX_BODY_BYTES}))
    assert line["request"].startswith('{"prompt": "xxx') and line["request"].endswith(f"... ({len(body)} bytes)")
    assert line["response"].startswith('{"text":"yyy') and len(line["response"]) < MAX_BODY_BYTES + 100


def test_lines_are_appended_for_the_owner_alone(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    for name in ("first", "second"):
        log = RequestLog(str(path))
        log.write(record(request_id=name))
        log.close()
        assert (log.lines, log.dropped) == (1, 0)
    assert [line["req_id"] for line in lines(path)] == ["first", "second"]
    assert path.stat().st_mode & 0o777 == 0o600


def test_a_file_that_cannot_be_opened_is_known_at_the_start(tmp_path: Path) -> None:
    with pytest.raises(OSError):
        RequestLog(str(tmp_path / "missing" / "requests.jsonl"))
    with pytest.raises(OSError):
        RequestLog(str(tmp_path))


def test_a_file_that_was_moved_away_is_left_for_a_new_one(tmp_path: Path) -> None:
    path, old = tmp_path / "requests.jsonl", tmp_path / "requests.jsonl.1"
    log = RequestLog(str(path))
    log.write(record(request_id="before"))
    until(lambda: log.lines == 1)
    path.rename(old)
    log.write(record(request_id="moved"))
    until(lambda: log.lines == 2)
    log.reopen()
    until(path.exists)
    log.write(record(request_id="after"))
    log.close()
    assert [line["req_id"] for line in lines(old)] == ["before", "moved"]
    assert [line["req_id"] for line in lines(path)] == ["after"]


def test_standard_output_is_a_target(capfd: pytest.CaptureFixture[str]) -> None:
    log = RequestLog("-")
    log.write(record())
    log.reopen()  # nothing was moved away
    log.write(record())
    log.close()
    assert [json.loads(line)["req_id"] for line in capfd.readouterr().out.splitlines()] == ["r", "r"]


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="this system has no /dev/full")
def test_a_full_disk_costs_lines_and_one_warning(caplog: pytest.LogCaptureFixture) -> None:
    log = RequestLog("/dev/full")
    for _ in range(5):
        log.write(record())
    log.close()
    assert (log.lines, log.dropped) == (0, 5)
    assert len([r for r in caplog.records if r.levelname == "WARNING"]) == 1


def test_a_line_that_was_cut_does_not_spoil_the_next(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "requests.jsonl"
    real, calls = os.write, [0]

    def half(file: int, data: bytes) -> int:  # the disk fills in the middle of the first line, then has room again
        calls[0] += 1
        if calls[0] == 2:
            raise OSError(28, "No space left on device")
        return real(file, data[:50] if calls[0] == 1 else data)

    log = RequestLog(str(path))
    monkeypatch.setattr(requestlog.os, "write", half)
    log.write(record(request_id="cut"))
    until(lambda: log.dropped == 1)
    log.write(record(request_id="whole"))
    log.write(record(request_id="next"))
    log.close()
    monkeypatch.undo()
    torn, *rest = path.read_text().split("\n")[:-1]
    assert len(torn) == 50 and [json.loads(line)["req_id"] for line in rest] == ["whole", "next"]


def test_a_fifo_may_wait_for_its_reader_and_lose_it(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    log = RequestLog(str(path))
    log.write(record(request_id="nobody reads"))
    until(lambda: log.dropped == 1)
    for name in ("one", "two"):  # two readers, one after the other
        reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
        written = log.lines
        log.write(record(request_id=name))
        until(lambda written=written: log.lines == written + 1)
        assert json.loads(os.read(reader, 65536))["req_id"] == name
        os.close(reader)
        dropped = log.dropped
        log.write(record(request_id="gone"))
        until(lambda dropped=dropped: log.dropped == dropped + 1)
    log.close()


def test_a_reader_that_takes_nothing_holds_nobody_up(tmp_path: Path) -> None:
    path = tmp_path / "fifo"
    os.mkfifo(path)
    reader = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    try:
        log = RequestLog(str(path))
        big = json.dumps({"prompt": "x" * 100_000}).encode()  # more than a pipe holds
        for _ in range(MAX_WAITING + 100):  # none of these may wait: the pipe is full after the first
            log.write(record(request=big))
        assert log.dropped > 0
        log.close(timeout_s=0.1)  # returns, though a line is under way
        assert threading.main_thread().is_alive()
    finally:
        os.close(reader)


def test_lines_stay_whole_whoever_writes(tmp_path: Path) -> None:
    path = tmp_path / "requests.jsonl"
    log = RequestLog(str(path))

    def write() -> None:
        for i in range(100):
            log.write(record(request_id=str(i), trace=TraceContext("1" * 32, "2" * 16)))

    threads = [threading.Thread(target=write) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    log.close()
    assert len(lines(path)) == log.lines == 400
