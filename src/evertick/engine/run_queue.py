"""Runs that are claimed, and wait for a slot of this node.

A claim takes the store a millisecond or two. Where runs are over in less, a node that claims for its free slots alone
waits for the store most of the time. So where all slots are taken anew within a
moment, it claims more than they are: as many as end here in such a moment, which is how long the last of them will
wait. Who turns out to wait longer is given back.

Never where a claim must be a start: a run that is to be started at most once, or that counts under a limit. When a
node dies, what it has claimed has lost a claim, begun or not: one more reason to bound the line by time. A node that
has just started has ended nothing yet, and claims for its slots alone; so what kills its node at each start takes no
more with it than before.
"""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Sequence

from evertick.engine.node import Attempt, LocalNode

__all__ = ["RunQueue"]

log = logging.getLogger("evertick.work")

# How long the last in line is expected to wait, and how long it may wait.
_AHEAD_SECONDS, _PATIENCE_SECONDS = 0.02, 0.2


class RunQueue:
    """First come, first served."""

    def __init__(
        self, node: LocalNode, begin: Callable[[Sequence[Attempt]], None], give_back: Callable[[Attempt], None]
    ) -> None:
        self._node = node
        self._begin = begin
        self._give_back = give_back
        self._attempts: deque[Attempt] = deque()
        # How many may be claimed ahead, as of the last look; how many runs have ended since.
        self._most = 0
        self._ended = 0
        self._looked_at = node.clock.elapsed()
        self._is_filling = False

    def look(self) -> int:
        """How many may be in line, or on their way into it."""
        now, ended = self._node.clock.elapsed(), self._ended
        seconds, self._looked_at, self._ended = max(now - self._looked_at, 0.001), now, 0
        coming = min(int(ended / seconds * _AHEAD_SECONDS), self._node.batch_size)
        is_worth_it = self._node.may_claim_ahead and self._node.has_lease and coming >= self._node.hold.capacity
        self._most = coming if is_worth_it else 0
        return self._most

    @property
    def is_worth_a_claim(self) -> bool:
        """Whether the slots that are free, and the places in line, are worth a statement."""
        room = self._node.hold.room + self._most
        return self._node.is_batch(room) and 2 * room >= self._most

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Nearly all of them find a free slot."""
        self._attempts.extend(attempts)
        self._fill_slots()
        if left := [attempt for attempt in attempts if not attempt.has_slot and not attempt.is_over]:
            asyncio.get_running_loop().call_later(_PATIENCE_SECONDS, self._lose_patience, left)

    def leave(self, attempt: Attempt) -> None:
        self._attempts.remove(attempt)

    def run_ended(self) -> None:
        """Its slot is for the next in line. Not at once: one that begins may end at once, and so on."""
        self._ended += 1
        if self._attempts and not self._is_filling:
            self._is_filling = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_filling = False
        if not self._node.has_lease:
            self._forget_all()
        elif self._node.is_draining:
            self._lose_patience(list(self._attempts))
        else:
            self._fill_slots()

    def _fill_slots(self) -> None:
        count = min(self._node.hold.idle, len(self._attempts))
        self._begin([self._attempts.popleft() for _ in range(count)])

    def _forget_all(self) -> None:
        """We were frozen, and others may have them. The next beat gives them back, or tells us that we are dead."""
        log.warning("the lease ran out while %d runs waited for a slot: they are not started here", len(self._attempts))
        for attempt in self._attempts:
            self._node.hold.work_ended(attempt)
            self._node.hold.let_go(attempt)
        self._attempts.clear()

    def _lose_patience(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not attempt.has_slot and not attempt.is_over:
                self._give_back(attempt)
