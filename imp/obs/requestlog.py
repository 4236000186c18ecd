"""--log-requests: one JSON line a request, with what was asked and answered, written by a thread of its own.

The event loop only puts records into a bounded queue. A target that is full, slow or gone costs lines, which are
counted and warned about once; it never costs a request.
"""

from __future__ import annotations

import json
import logging
import os
import stat
from collections import deque
from contextlib import suppress
from enum import Enum
from threading import Condition, Thread
from typing import Any

from imp.obs.record import RequestRecord

MAX_BODY_BYTES = 1024 * 1024  # of a request and of a response in a line; what is longer is cut, and text
MAX_WAITING = 1024  # records
MAX_WAITING_BYTES = 64 * 1024 * 1024  # of their bodies
STDOUT = "-"

log = logging.getLogger(__name__)


class _Order(Enum):
    REOPEN = "reopen"
    STOP = "stop"


class RequestLog:
    """Writes to a file (appended to, created for its owner alone), to a FIFO, or to standard output ("-").

    A FIFO may wait for its reader; until there is one, lines are dropped. `lines` and `dropped` may be read anywhere.
    """

    def __init__(self, target: str) -> None:
        """Raises OSError for a file that cannot be opened."""
        self.target = target
        self.lines = 0  # the writer thread's
        self._unqueued = 0  # the loop's
        self._unwritten = 0  # the writer thread's
        self._waiting: deque[RequestRecord | _Order] = deque()
        self._waiting_bytes = 0
        self._ready = Condition()
        self._file: int | None = None if _is_fifo(target) else _open(target)
        self._torn = False  # the file ends in the middle of a line
        self._warned = False
        self._thread = Thread(target=self._run, name="request-log", daemon=True)
        self._thread.start()

    @property
    def dropped(self) -> int:
        return self._unqueued + self._unwritten

    def write(self, record: RequestRecord) -> None:
        """Queue a line; never waits."""
        size = _size(record)
        with self._ready:
            full = len(self._waiting) >= MAX_WAITING or self._waiting_bytes + size > MAX_WAITING_BYTES
            if not full:
                self._waiting.append(record)
                self._waiting_bytes += size
                self._ready.notify()
        if full:
            self._unqueued += 1
            self._warn("lines come faster than they can be written")

    def reopen(self) -> None:
        """Open the file anew, after what was queued before: the old one was moved away."""
        self._order(_Order.REOPEN)

    def close(self, timeout_s: float = 2.0) -> None:
        """Write what is queued, for at most this long, and end."""
        self._order(_Order.STOP)
        self._thread.join(timeout_s)

    def _order(self, order: _Order) -> None:
        with self._ready:
            self._waiting.append(order)
            self._ready.notify()

    # -- the writer thread ------------------------------------------------------------------------

    def _run(self) -> None:
        while (item := self._take()) is not _Order.STOP:
            if item is _Order.REOPEN:
                self._reopen_file()
            else:
                self._put(item)
        self._close_file()

    def _take(self) -> RequestRecord | _Order:
        with self._ready:
            self._ready.wait_for(lambda: self._waiting)
            item = self._waiting.popleft()
            if isinstance(item, RequestRecord):
                self._waiting_bytes -= _size(item)
            return item

    def _put(self, record: RequestRecord) -> None:
        try:
            line = json_line(record)
            if self._file is None:
                self._file = _open(self.target)
            self._write_all(line)
        except OSError as error:
            self._drop(f"{error.strerror or error}")
            self._close_file()  # the next line tries again from the start
        except Exception:
            self._drop("a line cannot be made")
            log.exception("request %s cannot be logged", record.request_id)
        else:
            self.lines += 1

    def _write_all(self, line: bytes) -> None:
        assert self._file is not None
        data = b"\n" + line if self._torn else line
        sent = 0
        while sent < len(data):
            try:
                sent += os.write(self._file, data[sent:])
            except OSError:
                self._torn = (self._torn or sent > 0) and stat.S_ISREG(os.fstat(self._file).st_mode)
                raise
        self._torn = False

    def _reopen_file(self) -> None:
        self._close_file()
        with suppress(OSError):  # the next line tries again, and says so
            self._file = _open(self.target)

    def _close_file(self) -> None:
        file, self._file = self._file, None
        if file is not None:
            os.close(file)

    def _drop(self, why: str) -> None:
        self._unwritten += 1
        self._warn(why)

    def _warn(self, why: str) -> None:
        if not self._warned:
            self._warned = True
            log.warning("the request log loses lines (see imp_request_log_dropped_total): %s", why)


def _size(record: RequestRecord) -> int:
    return len(record.request) + (len(record.response) if isinstance(record.response, bytes) else 0)


def _is_fifo(target: str) -> bool:
    try:
        return target != STDOUT and stat.S_ISFIFO(os.stat(target).st_mode)
    except OSError:
        return False


def _open(target: str) -> int:
    """A file descriptor to append to. OSError, also for a FIFO nobody reads."""
    if target == STDOUT:
        return os.dup(1)
    flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NONBLOCK
    file = os.open(target, flags, 0o600)  # not blocking: else a FIFO would wait here for its reader
    os.set_blocking(file, True)
    return file


def json_line(record: RequestRecord) -> bytes:
    """The line, with its newline. Keys that end in `?` in the documentation are left out where there is nothing."""
    fields: dict[str, Any] = {
        "ts_ms": record.arrived_ns // 1_000_000,
        "req_id": record.request_id,
        "endpoint": record.endpoint,
        "client_ip": record.client_ip,
        "status": record.status,
        "outcome": record.outcome.value,
        "model": record.model or None,
        "stream": record.streamed,
        "latency_ms": _milliseconds(record.duration_s),
        "queue_ms": _milliseconds(record.queue_s),
        "ttft_ms": _milliseconds(record.ttft_s),
        "prompt_tokens": record.prompt_tokens,
        "cached_tokens": record.cached_tokens,
        "completion_tokens": record.completion_tokens,
        "finish_reason": record.finish_reasons[0] if record.finish_reasons else None,
        "request": _body(record.request),
        "response": _response(record.response),
    }
    if record.client_request_id is not None:
        fields["client_request_id"] = record.client_request_id
    if record.trace is not None:
        fields |= {"trace_id": record.trace.trace_id, "span_id": record.trace.span_id}
    return _dumps(fields) + b"\n"


def _milliseconds(seconds: float | None) -> float | None:
    return None if seconds is None else round(seconds * 1e3, 3)


def _dumps(value: Any) -> bytes:
    """Compact JSON without a raw newline; half of a surrogate pair, which a refused body may hold, stays an escape."""
    text = json.dumps(value, ensure_ascii=False, separators=(",", ":"), allow_nan=False)
    return text.encode("utf-8", "backslashreplace")


def _body(body: bytes) -> Any:
    """A body as the object it is, else as text; null for none."""
    if not body:
        return None
    if len(body) > MAX_BODY_BYTES:
        return _cut(body)
    try:
        value = json.loads(body, parse_constant=_not_json)
        _dumps(value)
    except (ValueError, RecursionError):
        return body.decode("utf-8", "replace")
    return value if isinstance(value, dict) else body.decode("utf-8", "replace")


def _not_json(literal: str) -> Any:
    raise ValueError(literal)


def _response(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, bytes):
        return _body(value)
    data = _dumps(value)
    return value if len(data) <= MAX_BODY_BYTES else _cut(data)


def _cut(data: bytes) -> str:
    return f"{data[:MAX_BODY_BYTES].decode('utf-8', 'replace')}... ({len(data)} bytes)"
