"""What a client and the server say to each other, and whom else a client wanted to speak to."""

from __future__ import annotations

import re
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress

_REQUEST = re.compile(rb"([A-Z]{3,} /\S*) HTTP/1\.1\r\n")
_STATUS = re.compile(rb"HTTP/1\.1 (\d{3}) ")


class Wire:
    """A relay in front of the server that keeps the bytes of both directions. url: where clients find it."""

    def __init__(self, target: tuple[str, int]):
        self.target = target
        self.url = ""
        self.sent, self.received = bytearray(), bytearray()  # by clients, from the server

    @property
    def requests(self) -> list[str]:
        """Method and target of every request."""
        return [line.decode() for line in _REQUEST.findall(bytes(self.sent))]

    @property
    def statuses(self) -> list[int]:
        return [int(code) for code in _STATUS.findall(bytes(self.received))]

    def header(self, name: str) -> list[str]:
        """Every value of a header of responses."""
        return [v.decode() for v in re.findall(rb"(?im)^" + name.encode() + rb": (.*)\r$", bytes(self.received))]

    def _serve(self, client: socket.socket) -> None:
        with client, socket.create_connection(self.target) as upstream:
            back = threading.Thread(target=_copy, args=(upstream, client, self.received), daemon=True)
            back.start()
            _copy(client, upstream, self.sent)
            back.join()


def _copy(source: socket.socket, sink: socket.socket, kept: bytearray) -> None:
    with suppress(OSError):
        while data := source.recv(65536):
            kept += data
            sink.sendall(data)
    with suppress(OSError):
        sink.shutdown(socket.SHUT_WR)


@contextmanager
def relay(url: str) -> Iterator[Wire]:
    """In front of the server at this URL."""
    host, _, port = url.removeprefix("http://").partition(":")
    wire = Wire((host, int(port)))
    with _listening(wire._serve) as port:
        wire.url = f"http://127.0.0.1:{port}"
        yield wire


@contextmanager
def outside() -> Iterator[tuple[str, list[str]]]:
    """A proxy that refuses everything: its URL, and the first line of each request it got."""
    asked: list[str] = []

    def refuse(client: socket.socket) -> None:
        with client, suppress(OSError):
            asked.append(client.recv(65536).split(b"\r\n")[0].decode(errors="replace"))
            client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")

    with _listening(refuse) as port:
        yield f"http://127.0.0.1:{port}", asked


@contextmanager
def _listening(serve: Callable[[socket.socket], None]) -> Iterator[int]:
    """Every connection gets a thread."""
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def accept() -> None:
            with suppress(OSError):
                while True:
                    client, _ = listener.accept()
                    threading.Thread(target=serve, args=(client,), daemon=True).start()

        threading.Thread(target=accept, daemon=True).start()
        try:
            yield listener.getsockname()[1]
        finally:
            listener.shutdown(socket.SHUT_RDWR)
