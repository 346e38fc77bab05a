"""From where a look for what is due begins.

Behind a tick that left nothing undone there is nothing but what has come there since: a schedule that was added or
changed, of which a node hears, and a cursor that another node was late to commit. So most looks begin a little before
the end of the last. Only now and then one begins at the very first: a transaction that somebody keeps open for long
keeps every past entry of the index, too, and a look from the very first walks over all of them.

What was looked for from the very first, and not seen to its end, is looked for from there again: whether the tick
failed, was refused, left something to others, or had more than it may take.
"""

from __future__ import annotations

from evertick.clock import Clock
from evertick.store.base import VERY_FIRST, DuePlace
from evertick.when.moment import SECOND

__all__ = ["ScanPosition"]

# Before the end of the last look: commits take their time.
_BACK_US = SECOND
# Looks from the very first are so far apart at least and at most; in between, so that they take this share of the time.
_ALL_LEAST_SECONDS, _ALL_MOST_SECONDS = 1.0, 10.0
_ALL_SHARE = 0.05


class ScanPosition:
    """What was seen to its end, and when all was looked at."""

    def __init__(self, clock: Clock) -> None:
        self._clock = clock
        # By the store's time: what wanted to be looked at until then was, and is written.
        self._seen_until: int | None = None
        # By `clock.elapsed`: when to begin at the very first.
        self._all_again_at = 0.0
        # Of the look that is under way.
        self._is_all = False
        self._began_at = 0.0
        self._took = 0.0

    def look_at_all(self) -> None:
        """Something may have come due long ago. Said while a look is under way, it is for the next."""
        self._all_again_at = 0.0
        self._is_all = False

    def begin(self) -> DuePlace:
        """Where the look begins that comes now."""
        self._began_at = self._clock.elapsed()
        self._is_all = self._seen_until is None or self._began_at >= self._all_again_at
        return VERY_FIRST if self._seen_until is None or self._is_all else DuePlace(self._seen_until - _BACK_US, 0)

    def note_answer(self) -> None:
        self._took = self._clock.elapsed() - self._began_at

    def note_seen(self, until: int) -> None:
        """Nothing is left undone of what the look has found, up to this moment by the store's time."""
        self._seen_until = until
        if self._is_all:
            distance = max(self._took / _ALL_SHARE, _ALL_LEAST_SECONDS)
            self._all_again_at = self._clock.elapsed() + min(distance, _ALL_MOST_SECONDS)
