"""Processor time of those who work and of the server, between two moments, for each of what was done meanwhile."""

from __future__ import annotations

import time
from dataclasses import dataclass

from benchmarks.processes import Workers
from benchmarks.store.place import Place

__all__ = ["Used"]


@dataclass(frozen=True)
class Used:
    """In seconds, up to the moment at which it was read."""

    node: float
    server: float

    @classmethod
    def by(cls, workers: Workers, place: Place) -> Used:
        return cls(workers.seconds(), place.server_seconds())

    @classmethod
    def here(cls, place: Place) -> Used:
        """By this very process, where a measurement is in one."""
        return cls(time.process_time(), place.server_seconds())

    def since(self, before: Used) -> Used:
        return Used(self.node - before.node, self.server - before.server)

    def each(self, count: int) -> dict[str, float]:
        """The figures of `CPU`."""
        return {"node_us": self.node / count * 1e6, "server_us": self.server / count * 1e6}
