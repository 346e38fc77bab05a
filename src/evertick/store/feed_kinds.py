"""What changes and outcomes are told as in the feed; the same for every store."""

from __future__ import annotations

from collections.abc import Mapping

from evertick.model.feed import FeedKind
from evertick.store.base import Change
from evertick.store.rows import plain_text

__all__ = ["CHANGES_TOLD", "PUT_BACK_TOLD", "told_of"]

# By the kind of a change, and by the kind of an outcome that does not end its run.
CHANGES_TOLD: Mapping[str, FeedKind] = {
    "add": "schedule.added",
    "edit": "schedule.edited",
    "pause": "schedule.paused",
    "resume": "schedule.resumed",
    "remove": "schedule.removed",
}
PUT_BACK_TOLD: Mapping[str, FeedKind] = {
    "retry": "run.retrying",
    "release": "run.released",
    "park": "run.parked",
    "dispatch": "run.dispatched",
}


def told_of(change: Change) -> tuple[object, ...]:
    """A change as `evertick.feed` reads it."""
    if change.pause is None:
        return (change.key,)
    return (change.key, plain_text(change.pause.note), change.pause.until)
