"""What becomes of claimed rows that turn out to make no sense: out of the way of the others, where people find them.

A row of a newer format is not claimed at all. This is about damage, and about mistakes: a hand in the database, a
release that has forgotten to raise the format.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence

from evertick.model import MessageOutcome, Outcome, Reason
from evertick.store.rows import Row
from evertick.when.moment import DAY

__all__ = ["unreadable_messages", "unreadable_runs"]

log = logging.getLogger("evertick.store")

# A dead message that nobody could read is kept this long, for people to look at.
_KEPT = 30 * DAY


def unreadable_runs(bad: Sequence[tuple[Row, str]], fence: int) -> list[Outcome]:
    """Parked, until somebody cancels them."""
    for row, error in bad:
        log.error("run %s of %r cannot be read, and is parked: %s", row["id"], row["task"], error)
    return [
        Outcome(
            id=str(row["id"]), fence=fence, kind="park", reason=Reason.UNREADABLE, error=f"it cannot be read: {error}"
        )
        for row, error in bad
    ]


def unreadable_messages(bad: Sequence[tuple[Row, str]]) -> list[MessageOutcome]:
    """Dead, until somebody drops them, or tries again once they are mended."""
    for row, error in bad:
        log.error("message %s of channel %r cannot be read, and is dead: %s", row["id"], row["channel"], error)
    return [
        MessageOutcome(
            id=str(row["id"]),
            fence=row["fence"],
            kind="dead",
            attempts=row["attempts"],
            remember=_KEPT,
            error=f"it cannot be read: {error}",
        )
        for row, error in bad
    ]
