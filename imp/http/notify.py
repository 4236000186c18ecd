"""What systemd asks of a service: readiness, a watchdog, sockets handed over (sd_notify(3), sd_listen_fds(3)).

Reads no environment: the settings hand in NOTIFY_SOCKET, WATCHDOG_USEC, LISTEN_PID and LISTEN_FDS.
"""

from __future__ import annotations

import asyncio
import logging
import os
import socket

log = logging.getLogger(__name__)

FIRST_INHERITED_FD = 3


class Notifier:
    """Tells the service manager how we are. Without an address every call does nothing."""

    def __init__(self, address: str | None, watchdog_s: float | None = None) -> None:
        """address: a path, or "@name" in Linux' abstract namespace.  watchdog_s: silence after which we are killed."""
        self._address = "\0" + address[1:] if address and address.startswith("@") else address
        self._watchdog_s = watchdog_s

    def send(self, *assignments: str, patience_s: float = 1.0) -> None:
        """Send `READY=1`, `STOPPING=1`, `STATUS=...` and the like in one datagram. A deaf manager is only logged.

        patience_s: how long to wait where the manager's queue is full."""
        if not self._address:
            return
        try:
            with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as sock:
                sock.settimeout(patience_s)
                sock.sendto("\n".join(assignments).encode(), self._address)
        except OSError as error:
            log.warning("the service manager could not be told %s: %s", assignments[0].partition("=")[0], error)

    def ready(self) -> None:
        self.send("READY=1")

    def stopping(self) -> None:
        self.send("STOPPING=1")

    def extend_timeout(self, seconds: float) -> None:
        """Ask for more time to start or stop, from now."""
        self.send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}")

    async def watchdog(self) -> None:
        """Say that the loop turns, twice per watchdog period, until cancelled. Run it on the loop that serves."""
        if not self._address or not self._watchdog_s:
            return
        while True:
            self.send("WATCHDOG=1", patience_s=0)
            await asyncio.sleep(self._watchdog_s / 2)


def inherited_sockets(listen_pid: int | None, listen_fds: int) -> list[socket.socket]:
    """The listening sockets systemd opened for this process; none where they are meant for another."""
    if listen_pid != os.getpid():
        return []
    sockets = []
    for descriptor in range(FIRST_INHERITED_FD, FIRST_INHERITED_FD + listen_fds):
        os.set_inheritable(descriptor, False)
        sockets.append(socket.socket(fileno=descriptor))
    return sockets
