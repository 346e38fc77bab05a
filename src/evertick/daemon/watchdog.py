"""Telling the supervisor that the node is alive, as long as it is.

It has a thread of its own, so that a busy event loop is not taken for a dead one; and it looks at that loop before each
word, so that a dead one is not taken for a busy one. A store that is away is no reason to be silent: no restart brings
it back.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from evertick.daemon.notify import Notify

__all__ = ["Watchdog"]

log = logging.getLogger("evertick.daemon")

# Words in the time that the supervisor waits for one: two may get lost.
_WORDS = 3


class Watchdog:
    """Speaks from `start` to `stop`, if the supervisor wants to hear it."""

    def __init__(self, notify: Notify, is_alive: Callable[[], bool]) -> None:
        self._notify = notify
        self._is_alive = is_alive
        self._ending = threading.Event()
        self._thread: threading.Thread | None = None

    def start(self) -> None:
        seconds = self._notify.watchdog_seconds
        if seconds is not None:
            log.debug("the supervisor hears every %.1f s that this node is alive", seconds / _WORDS)
            self._thread = threading.Thread(
                target=self._speak, args=(seconds / _WORDS,), name="evertick watchdog", daemon=True
            )
            self._thread.start()

    def stop(self) -> None:
        self._ending.set()
        if self._thread is not None:
            self._thread.join()
            self._thread = None

    def _speak(self, every: float) -> None:
        is_silent = False
        while not self._ending.wait(every):
            if self._is_alive():
                is_silent = False
                self._notify.alive()
            elif not is_silent:
                is_silent = True
                log.error("the node does not move: the supervisor is not told any more that it is alive")
