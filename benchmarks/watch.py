"""Which share of a core the workers and the server use while something goes on, and how much memory at most."""

from __future__ import annotations

import time
from types import TracebackType
from typing import Self

from benchmarks.figure import Figure
from benchmarks.processes import Workers
from benchmarks.stage import Stage

__all__ = ["SHARES", "Watch"]

SHARES = (
    Figure("node", "node", "% of a core", better="less"),
    Figure("server", "server", "% of a core", better="less"),
)
_LOOK_SECONDS = 0.5


class Watch:
    """From the beginning of the block to its end."""

    def __init__(self, stage: Stage, workers: Workers) -> None:
        self._place, self._workers = stage.place, workers
        self.shares: dict[str, float] = {}
        # At most, and when the block ended.
        self.megabytes = 0.0
        self.last_megabytes = 0.0

    def __enter__(self) -> Self:
        self._began = self._next = time.perf_counter()
        self._before = self._workers.seconds(), self._place.server_seconds()
        return self

    def look_until(self, moment: float) -> None:
        """Until that moment (seconds since 1970), see to it that nobody dies, and how large they get."""
        while (left := moment - time.time()) > 0:
            self._workers.check_alive()
            self._look()
            time.sleep(min(left, _LOOK_SECONDS))

    def glance(self) -> None:
        """How large they are, for whoever waits by itself: as seldom as otherwise, however often it is asked."""
        if time.perf_counter() >= self._next:
            self._look()

    def _look(self) -> None:
        self.megabytes = max(self.megabytes, self._workers.megabytes())
        self._next = time.perf_counter() + _LOOK_SECONDS

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None:
            node, server = self._before
            took = time.perf_counter() - self._began
            self.shares["node"] = (self._workers.seconds() - node) / took * 100
            self.shares["server"] = (self._place.server_seconds() - server) / took * 100
            self.last_megabytes = self._workers.megabytes()
            self.megabytes = max(self.megabytes, self.last_megabytes)
