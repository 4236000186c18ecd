"""An OTLP collector for tests: a real HTTP server that keeps what it gets."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


class FakeCollector:
    """Keeps every request it gets and answers as it is told."""

    def __init__(self) -> None:
        self.requests: list[tuple[str, dict[str, str], bytes]] = []
        self.status, self.answer = 200, b"{}"
        outer = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                outer.requests.append((self.path, dict(self.headers), body))
                self.send_response(outer.status)
                self.send_header("Content-Length", str(len(outer.answer)))
                self.end_headers()
                self.wfile.write(outer.answer)

            def log_message(self, *arguments: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}"
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def spans(self) -> list[dict[str, Any]]:
        out = []
        for _, _, body in self.requests:
            for resource in json.loads(body)["resourceSpans"]:
                for scope in resource["scopeSpans"]:
                    out += scope["spans"]
        return out

    def close(self) -> None:
        self.server.shutdown()
        self.server.server_close()


@contextmanager
def collecting() -> Iterator[FakeCollector]:
    collector = FakeCollector()
    try:
        yield collector
    finally:
        collector.close()


def attributes(owner: dict[str, Any]) -> dict[str, Any]:
    """Name -> (kind, value) of AnyValues, each of which must have exactly one kind."""
    out = {}
    for each in owner["attributes"]:
        assert set(each) == {"key", "value"}
        [(kind, value)] = each["value"].items()
        out[each["key"]] = (kind, value)
    assert len(out) == len(owner["attributes"])
    return out
