"""Other nodes at the same schedules, and which of them are ours while there is enough for all.

Nodes find what is due each by itself, and of two that plan the same one does so in vain. That costs nothing worth
mentioning while they keep up. Those that are behind would be in each other's way without end: so whoever has met
another takes its own share first, by the ids of the schedules. Nobody has to keep to it: what a node leaves undone
comes to the front, where the others find nothing else.
"""

from __future__ import annotations

from collections.abc import Sequence

from evertick.engine.node import LocalNode
from evertick.store.base import DueSchedule

__all__ = ["PeerShare"]

# Whom a node has met it reckons with for so long; who else is there is asked as often.
_REMEMBERED_SECONDS = 10.0
# Neighbouring ids are often of one kind: spread by a factor that has nothing to do with their number.
_SPREAD, _SPREAD_BITS = 2_654_435_761, 16


class PeerShare:
    """Who else is there, for one node."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        # By `clock.elapsed`.
        self._is_here_until = 0.0
        self._asked_at: float | None = None
        # Which of how many this node is.
        self._number, self._count = 0, 1

    def meet(self) -> None:
        """Another node has taken what this one wanted to take."""
        self._is_here_until = self._node.clock.elapsed() + _REMEMBERED_SECONDS

    @property
    def is_here(self) -> bool:
        return self._node.clock.elapsed() < self._is_here_until

    async def look(self) -> None:
        """Who is there, asked only while somebody is."""
        now = self._node.clock.elapsed()
        if not self.is_here or (self._asked_at is not None and now < self._asked_at + _REMEMBERED_SECONDS):
            return
        alive = sorted(each.id for each in await self._node.store.nodes(self._node.app) if each.died_at is None)
        self._asked_at = now
        is_known = self._node.id in alive
        self._number, self._count = (alive.index(self._node.id), len(alive)) if is_known else (0, 1)

    def ours_first(self, rows: Sequence[DueSchedule]) -> tuple[list[DueSchedule], list[DueSchedule]]:
        """Our share of these, and that of the others."""
        ours, theirs = list[DueSchedule](), list[DueSchedule]()
        for row in rows:
            number = (row.id * _SPREAD >> _SPREAD_BITS) % self._count
            (ours if number == self._number else theirs).append(row)
        return ours, theirs

    def keeps_up(self, ours: Sequence[DueSchedule], theirs: Sequence[DueSchedule]) -> bool:
        """Whether the others do their part: where they do not, it is theirs that is longest due."""
        return len(ours) * self._count * 2 >= len(ours) + len(theirs)
