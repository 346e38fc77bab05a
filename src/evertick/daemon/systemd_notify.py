"""The notification socket of systemd, which other supervisors know, too: state, reloads, and the watchdog.

A datagram of a few lines goes to the socket that the environment names, if it names one. A supervisor that does not
listen never stops or delays a node: a datagram that cannot be sent is dropped.

The watchdog has a thread of its own, so that a busy event loop is not taken for a dead one. It looks at that loop
before each ping, so that a dead one is not taken for a busy one. A store that is away does not stop the pings: no
restart brings it back.
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
# A full queue of the supervisor is waited for this long, on whichever thread it is.
_SEND_SECONDS = 1.0


class Notify:
    """A line to the supervisor, or to none."""

    def __init__(self, address: str | None, *, watchdog_seconds: float | None = None) -> None:
        self._socket = None if address is None else _connected(address)
        # It expects a ping within this time, again and again; None: no watchdog.
        self.watchdog_seconds = None if self._socket is None else watchdog_seconds

    @classmethod
    def from_environment(cls, environ: MutableMapping[str, str]) -> Notify:
        """The supervisor that has started this process. The variables go: commands of jobs must not use them."""
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
        """With the time, by which the supervisor tells this reload from an earlier one."""
        self._send("RELOADING=1", f"MONOTONIC_USEC={supervisor_us()}", f"STATUS={_line(status)}")

    def stopping(self, status: str, *, seconds: float) -> None:
        self._send("STOPPING=1", f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", f"STATUS={_line(status)}")

    def status(self, text: str) -> None:
        self._send(f"STATUS={_line(text)}")

    def not_yet(self, status: str, *, seconds: float) -> None:
        """The start takes longer, up to so many seconds."""
        self._send(f"EXTEND_TIMEOUT_USEC={round(seconds * 1e6)}", f"STATUS={_line(status)}")

    def alive(self) -> None:
        self._send("WATCHDOG=1")

    def close(self) -> None:
        line, self._socket = self._socket, None
        if line is not None:
            line.close()

    def _send(self, *lines: str) -> None:
        line = self._socket
        if line is None:
            return
        try:
            line.send("\n".join(lines).encode())
        except OSError as error:
            log.debug("the supervisor did not get %s: %s", lines[0], error)


def _connected(address: str) -> socket.socket | None:
    # "@" is how a name without a file is written.
    name = f"\0{address[1:]}" if address.startswith("@") else address
    line = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    line.settimeout(_SEND_SECONDS)
    try:
        line.connect(name)
    except OSError as error:
        with contextlib.suppress(OSError):
            line.close()
        log.warning("the supervisor's socket %s cannot be reached (%s): it gets no notifications", address, error)
        return None
    return line


def _line(text: str) -> str:
    return printable(text)[:_STATUS_MOST]


# Pings in the time that the supervisor waits for one: two may get lost.
_PINGS = 3


class Watchdog:
    """Pings from `start` to `stop`, if the supervisor expects it."""

    def __init__(self, notify: Notify, is_alive: Callable[[], bool]) -> None:
        self._notify = notify
        self._is_alive = is_alive
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        seconds = self._notify.watchdog_seconds
        if seconds is not None:
            log.debug("watchdog: a ping to the supervisor every %.1f s", seconds / _PINGS)
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
                is_silent = False
                self._notify.alive()
            elif not is_silent:
                is_silent = True
                log.error("the event loop is stuck: watchdog pings to the supervisor are suspended")
