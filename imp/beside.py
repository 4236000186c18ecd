"""A process beside this one: how it is started, and messages to and from it. Knows nothing of what they are about.

It can be started before anything large is imported here, so that it does the same meanwhile. It is killed when nothing
refers to it any more, and ends by itself when its channels do, however this process ended.
"""

from __future__ import annotations

import socket
import struct
import subprocess
import sys
import weakref
from collections.abc import Sequence
from pathlib import Path
from queue import SimpleQueue
from threading import Thread

CHANNELS = 6  # three threads prepare, two compile, the engine's looks ahead; whoever comes beyond these waits for one

_HEAD = struct.Struct("<BQ")  # a kind, and how many bytes follow


class Beside:
    """One process for a file, and the channels to it."""

    def __init__(self, program: str, path: Path) -> None:
        """program: a module, whose `main` is called over there with the path and the numbers of the channels. Raises
        OSError."""
        self.path = path
        pairs = [socket.socketpair() for _ in range(CHANNELS)]
        here, there = [pair[0] for pair in pairs], [pair[1] for pair in pairs]
        numbers = [each.fileno() for each in there]
        code = (
            "import os, sys\n"
            f"sys.path[:] = {sys.path!r}\n"
            # which the libraries read when they are loaded: whoever is asked does the work, on one thread
            "os.putenv('TOKENIZERS_PARALLELISM', 'false'); os.putenv('OPENBLAS_NUM_THREADS', '1')\n"
            f"from {program} import main; main({str(path)!r}, {numbers})"
        )
        try:
            process = subprocess.Popen(
                [sys.executable, "-I", "-c", code],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                pass_fds=numbers,
                start_new_session=True,  # an interrupt from the terminal is not for it
            )
        finally:
            for each in there:
                each.close()
        self.end = weakref.finalize(self, _end, process, here)  # callable more than once
        self.pid = process.pid
        self._first = here[0]
        self._free: SimpleQueue[socket.socket] = SimpleQueue()
        for each in here:
            self._free.put(each)

    def first(self) -> tuple[int, bytearray]:
        """What it says before anything is asked. Raises EOFError, OSError where it has died."""
        return receive(self._first)

    def ask(self, kind: int, data: bytes) -> tuple[int, bytearray]:
        """From any thread. Raises EOFError, OSError where it has died."""
        channel = self._free.get()
        try:
            send(channel, kind, data)
            return receive(channel)
        finally:
            self._free.put(channel)


def _end(process: subprocess.Popen[bytes], channels: Sequence[socket.socket]) -> None:
    for each in channels:
        each.close()
    process.kill()  # it has nothing to finish
    try:  # whoever drops the last reference may be the event loop
        Thread(target=process.wait, name="reaper", daemon=True).start()
    except RuntimeError:  # there are no new threads while the interpreter ends
        process.wait()


def send(channel: socket.socket, kind: int, data: bytes) -> None:
    channel.sendall(_HEAD.pack(kind, len(data)))
    channel.sendall(data)


def receive(channel: socket.socket) -> tuple[int, bytearray]:
    """EOFError where the other side has gone."""
    kind, size = _HEAD.unpack(_exactly(channel, _HEAD.size))
    return kind, _exactly(channel, size)


def _exactly(channel: socket.socket, size: int) -> bytearray:
    data = bytearray(size)
    left = memoryview(data)
    while left:
        count = channel.recv_into(left)
        if not count:
            raise EOFError
        left = left[count:]
    return data
