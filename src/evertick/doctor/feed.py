"""What can be wrong with the feed: a transaction that stays open holds it up."""

from __future__ import annotations

from collections.abc import Iterator

from evertick.doctor.finding import Finding, Severity
from evertick.store.base import FeedState
from evertick.when.moment import MINUTE, SECOND

__all__ = ["about_feed", "held_words"]

# Transactions of programs that answer people are over by then.
_HELD_MOST = MINUTE


def about_feed(state: FeedState | None) -> Iterator[Finding]:
    """None: there is no feed."""
    if state is None or state.held_at is None or state.now - state.held_at <= _HELD_MOST:
        return
    yield Finding(
        severity=Severity.WARNING,
        check="feed_held_up",
        what=held_words(state, state.held_at),
        fix="end it, or what keeps it open; set idle_in_transaction_session_timeout so that none stays open for ever",
    )


def held_words(state: FeedState, held_at: int) -> str:
    """How far behind readers are since then, and because of whom."""
    holder = state.holder or "a transaction that has ended meanwhile"
    return (
        f"readers of the feed are {(state.now - held_at) // SECOND} s behind: {holder} is open, and nothing that was "
        "written after its beginning can be read before its end"
    )
