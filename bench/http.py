"""What the HTTP layer itself costs: requests through a connection without a socket, and tokens through event streams."""

from __future__ import annotations

import asyncio
import json
import selectors
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from imp.http.connection import Connection
from imp.http.turns import Turns
from tests.http.scripted import Harness, serving

HEALTH = b"GET /health HTTP/1.1\r\nHost: 127.0.0.1:8080\r\n\r\n"
CHAT = "/v1/chat/completions"


class Sink:
    """A transport that counts what is written and sends it nowhere."""

    def __init__(self) -> None:
        self.written_bytes = 0
        self.writes = 0

    def write(self, data: bytes) -> None:
        self.written_bytes += len(data)
        self.writes += 1

    def is_closing(self) -> bool:
        return False

    def get_write_buffer_size(self) -> int:
        return 0

    def __getattr__(self, name: str) -> Callable[..., Any]:  # whatever else a transport can do
        return lambda *values, **named: None


async def request_cost_us(raw: bytes = HEALTH, count: int = 500, rounds: int = 20) -> float:
    """CPU microseconds from the bytes of a request to those of its answer; of the best round."""
    async with serving() as harness:
        harness.server.settings = replace(harness.server.settings, keep_alive_max=0)
        harness.server.turns = Turns(float("inf"))  # all of them in one turn of the loop
        connection, sink = Connection(harness.server), Sink()
        connection.connection_made(sink)  # type: ignore[arg-type]
        best = float("inf")
        try:
            for _ in range(rounds):
                before, began = sink.writes, time.thread_time()
                for _ in range(count):
                    connection.data_received(raw)
                best = min(best, (time.thread_time() - began) / count)
                assert sink.writes - before == count
                await asyncio.sleep(0)
        finally:
            connection.connection_lost(None)
    return best * 1e6


class Readers(threading.Thread):
    """Clients that ask for streams and throw away what they get; on a thread of their own, with plain sockets."""

    def __init__(self, port: int, path: str, body: dict[str, Any], streams: int) -> None:
        super().__init__(daemon=True)
        self.port, self.streams, self.read_bytes = port, streams, 0
        data = json.dumps(body | {"stream": True}).encode()
        head = f"POST {path} HTTP/1.1\r\nHost: a\r\nConnection: close\r\nContent-Type: application/json\r\n"
        self.raw = f"{head}Content-Length: {len(data)}\r\n\r\n".encode() + data

    def run(self) -> None:
        with selectors.DefaultSelector() as selector:
            for _ in range(self.streams):
                sock = socket.create_connection(("127.0.0.1", self.port))
                sock.sendall(self.raw)
                selector.register(sock, selectors.EVENT_READ)
            while selector.get_map():
                for key, _ in selector.select():
                    sock = key.fileobj  # type: ignore[assignment]
                    data = sock.recv(1 << 20)
                    self.read_bytes += len(data)
                    if not data:
                        selector.unregister(sock)
                        sock.close()
                time.sleep(0.001)


async def token_cost_us(
    streams: int = 64, tokens: int = 100, path: str = CHAT, step_s: float = 0.015, **more: Any
) -> float:
    """CPU microseconds of the event loop's thread for each token of each of `streams` streams.

    step_s: long enough for the loop to be done with a step before the next, so that each token is a write of its own.
    """
    body = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": tokens} | more
    async with serving(["word "] * tokens, rows=streams, blocks=streams * 40, step_s=step_s) as harness:
        await _read_all(harness, path, body | {"max_tokens": 2}, 2)  # what is done once
        began = time.thread_time()
        await _read_all(harness, path, body, streams)
        return (time.thread_time() - began) / (streams * tokens) * 1e6


async def _read_all(harness: Harness, path: str, body: dict[str, Any], streams: int) -> None:
    readers = Readers(harness.server.addresses[0][1], path, body, streams)
    readers.start()
    while readers.is_alive():
        await asyncio.sleep(0.02)
    assert readers.read_bytes > 100 * streams


def main() -> None:
    import uvloop

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        print(f"GET /health: {runner.run(request_cost_us()):.1f} us of CPU")
        for path in (CHAT, "/v1/completions", "/v1/messages"):
            more = {"prompt": "hi", "messages": None} if path == "/v1/completions" else {}
            costs = [runner.run(token_cost_us(path=path, **more)) for _ in range(3)]
            print(f"{path}: {min(costs):.1f} us of CPU a token of 64 streams")


if __name__ == "__main__":
    main()
