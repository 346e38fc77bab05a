"""Notifications to the supervisor, by the socket protocol of systemd: state, reloads, and the watchdog.

Datagrams go to the socket in NOTIFY_SOCKET, if it is set. A datagram that cannot be sent is dropped, so a supervisor
that does not read never delays the node.

The watchdog has its own thread, so that a busy event loop does not miss pings. Before each ping it checks that the
event loop responds. It keeps pinging while the store is unavailable, since a restart would not help.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import threading
from collections.abc import Callable, MutableMapping

from evertick.clock import supervisor_us
from evertick.text.printable import printable

__all__ = ["Notify", "Watchdog"]

log = logging.getLogger("evertick.daemon")

_STATUS_MOST = 400
# How long a send waits while the supervisor's queue is full.
_SEND_SECONDS = 1.0


class Notify:
    """The connection to the supervisor; without one, calls do nothing."""

    def __init__(self, address: str | None, *, watchdog_seconds: float | None = None) -> None:
        self._socket = None if address is None else _connected(address)
        # The supervisor expects a ping at least this often; None: no watchdog.
        self.watchdog_seconds = None if self._socket is None else watchdog_seconds

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notify:
        """The supervisor that started this process. Removes the variables, so that commands of jobs do not use them."""
        address = environ.pop("NOTIFY_SOCKET", None)
        wanted, pid = environ.pop("WATCHDOG_USEC", ""), environ.pop("WATCHDOG_PID", "")
        is_ours = not pid or pid == str(os.getpid())
        seconds = int(wanted) / 1e6 if is_ours and wanted.isdecimal() and int(wanted) > 0 else None
        return cls(address or None, watchdog_seconds=seconds)

    @property
    def is_heard(self) -> bool:
        return self._socket is not None

    def ready(self, status: str) -> None:
        self._send("READY=1", f"STATUS={_line(status)}")

    def reloading(self, status: str) -> None:
        """The time in it distinguishes this reload from an earlier one."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={supervisor_us()}", f"STATUS={_line(status)}")

    def stopping(self, status: str, *, seconds: float) -> None:
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", f"STATUS={_line(status)}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={_line(text)}")

    def extend_start(self, status: str, *, seconds: float) -> None:
        """Ask for up to `seconds` more for the start."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", f"STATUS={_line(status)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def close(self) -> None:
        connection, self._socket = self._socket, None
        if connection is not None:
            connection.close()

    def _send(self, *lines: str) -> None:
        connection = self._socket
        if connection is None:
            return
        try:
            connection.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("supervisor: sending %s failed: %s", lines[0], error)


def _connected(address: str) -> socket.socket | None:
    # "@" stands for the NUL byte of an abstract socket.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    connection.settimeout(_SEND_SECONDS)
    try:
        connection.connect(name)
    except OSError as error:
        with contextlib.suppress(OSError):
            connection.close()
        log.warning("supervisor socket %s: unreachable (%s); no notifications are sent", address, error)
        return None
    return connection


def _line(text: str) -> str:
    return printable(text)[:_STATUS_MOST]


# Pings per watchdog timeout, so that two may get lost.
_PINGS = 3


class Watchdog:
    """Sends pings from `start` to `stop`, if the supervisor expects them."""

    def __init__(self, notify: Notify, is_alive: Callable[[], bool]) -> None:
        self._notify = notify
        self._is_alive = is_alive
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        seconds = self._notify.watchdog_seconds
        if seconds is not None:
            log.debug("watchdog: pinging the supervisor every %.1f s", seconds / _PINGS)
            self._thread = threading.Thread(
                target=self._ping, args=(seconds / _PINGS,), name="evertick watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _ping(self, every: float) -> None:
        is_silent = False
        while not self._ending.wait(every):
            if self._is_alive():
                if is_silent:
                    log.warning("watchdog: the event loop responds again; pings to the supervisor are resumed")
                is_silent = False
                self._notify.alive()
            elif not is_silent:
                is_silent = True
                log.error("watchdog: the event loop is stuck; pings to the supervisor are suspended")
