"""The feed: a change stream of an app, which other programs read in a stable order.

A store writes rows, each with many events of one kind and one transaction; a reader gets single events. The cursor of
an event is the position of the next one: (epoch, transaction, row, index in the row). Within an epoch no event is
missing. A new epoch begins when the feed is turned on, and when its order was lost. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from datetime import datetime
from typing import Any, Literal, Self, TypeVar, get_args

import msgspec

from evertick.errors import CursorGone, InvalidInput
from evertick.when.moment import from_us

__all__ = [
    "FEED_KINDS",
    "ITEMS_MOST",
    "Cursor",
    "FeedEvent",
    "FeedKind",
    "FeedPage",
    "cursor_of",
    "events_of",
    "in_rows",
]

T = TypeVar("T")

FeedKind = Literal[
    "run.recorded",
    "run.started",
    "run.retrying",
    "run.released",
    "run.parked",
    "run.dispatched",
    "run.taken",
    "run.finished",
    "gap.recorded",
    "schedule.added",
    "schedule.edited",
    "schedule.paused",
    "schedule.resumed",
    "schedule.removed",
    "node.joined",
    "node.left",
    "node.died",
]
FEED_KINDS: tuple[FeedKind, ...] = get_args(FeedKind)

# Events in one row, so that a row has some hundred kilobytes at most. queries.sql of the PostgreSQL store has the same
# number.
ITEMS_MOST = 500
# A token and three numbers, each small enough for a database.
_CURSOR = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,6})")


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One event. Fields that its kind does not have are None."""

    # The position of the next event: store it to continue from there.
    cursor: str
    kind: FeedKind
    app: str
    # When the store wrote it.
    at: datetime
    schedule_key: str | None = None
    # The name of a node that starts or stops.
    node_name: str | None = None
    node: str | None = None
    run_id: str | None = None
    task: str | None = None
    # As in the ledger (`Cause`, `Verdict`); unknown values of newer releases are passed on.
    cause: str | None = None
    fire_at: datetime | None = None
    due_at: datetime | None = None
    attempts: int | None = None
    verdict: str | None = None
    reason: str | None = None
    # Of a gap.
    first_at: datetime | None = None
    last_at: datetime | None = None
    count: int | None = None
    # Of a pause.
    note: str | None = None
    until: datetime | None = None


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in order. `cursor`: where the next page begins. `is_end`: there are no more events yet."""

    events: list[FeedEvent]
    cursor: str
    is_end: bool


# --- cursors -----------------------------------------------------------------------------------------------------


class Cursor(msgspec.Struct, frozen=True, order=True):
    """The position of the next event. Ordered within an epoch."""

    epoch: str
    txid: int
    seq: int
    # The number of events of that row that were read.
    index: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.txid}.{self.seq}.{self.index}"

    @classmethod
    def parse(cls, text: Any) -> Self:
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(
                f"after: {text!r:.80} is not a cursor",
                setting="after",
                fix="pass the `cursor` of an event or a page, or None for the oldest",
            )
        epoch, txid, seq, index = found.groups()
        return cls(epoch, int(txid), int(seq), int(index))


def cursor_of(after: str | None, first: Cursor, end: Cursor, app: str) -> Cursor:
    """The position to read from: `after`, or the oldest. Raises CursorGone if events after `after` are missing."""
    if after is None:
        return first
    wanted = Cursor.parse(after)
    if wanted.epoch != first.epoch:
        raise CursorGone(
            f"cursor {after} is of another feed than the current one of app {app!r}: the feed was turned off and on, "
            f"or the database was restored or replaced; start again from the oldest cursor, {first}",
            oldest=str(first),
        )
    if wanted < first:
        raise CursorGone(
            f"cursor {after} is older than the feed of app {app!r}; start again from the oldest cursor, {first}, or "
            "keep the feed for longer",
            oldest=str(first),
        )
    if wanted > end:
        raise CursorGone(
            f"cursor {after} is ahead of the feed of app {app!r}, as after the restore of a backup; start again from "
            f"the oldest cursor, {first}",
            oldest=str(first),
        )
    return wanted


# --- rows --------------------------------------------------------------------------------------------------------


def in_rows(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Split events into rows."""
    return (items[first : first + ITEMS_MOST] for first in range(0, len(items), ITEMS_MOST))


class _Run(msgspec.Struct, array_like=True):
    """An event of a run as stores write it; newer releases may append fields."""

    id: str
    schedule_key: str | None
    task: str
    fire_at: int
    due_at: int
    cause: str
    verdict: str | None
    reason: str | None
    attempts: int
    node: str | None

    def fields(self) -> dict[str, Any]:
        return {
            "run_id": self.id,
            "schedule_key": self.schedule_key,
            "task": self.task,
            "fire_at": from_us(self.fire_at),
            "due_at": from_us(self.due_at),
            "cause": self.cause,
            "verdict": self.verdict,
            "reason": self.reason,
            "attempts": self.attempts,
            "node": self.node,
        }


class _Gap(msgspec.Struct, array_like=True):
    schedule_key: str
    first_at: int
    last_at: int
    count: int
    verdict: str
    reason: str

    def fields(self) -> dict[str, Any]:
        return {
            "schedule_key": self.schedule_key,
            "first_at": from_us(self.first_at),
            "last_at": from_us(self.last_at),
            "count": self.count,
            "verdict": self.verdict,
            "reason": self.reason,
        }


class _Schedule(msgspec.Struct, array_like=True):
    key: str
    note: str | None = None
    until: int | None = None

    def fields(self) -> dict[str, Any]:
        until = None if self.until is None else from_us(self.until)
        return {"schedule_key": self.key, "note": self.note or None, "until": until}


class _Node(msgspec.Struct, array_like=True):
    id: str
    name: str

    def fields(self) -> dict[str, Any]:
        return {"node": self.id, "node_name": self.name}


_DECODERS: dict[str, msgspec.json.Decoder[Any]] = {
    "run": msgspec.json.Decoder(list[_Run]),
    "gap": msgspec.json.Decoder(list[_Gap]),
    "schedule": msgspec.json.Decoder(list[_Schedule]),
    "node": msgspec.json.Decoder(list[_Node]),
}


def events_of(app: str, cursor: Cursor, at: int, kind: str, body: str) -> Iterator[FeedEvent]:
    """The events of the row at `cursor`, from its index on. Unknown kinds of newer releases are skipped."""
    if kind not in FEED_KINDS:
        return
    items = _DECODERS[kind.partition(".")[0]].decode(body)
    for index, item in enumerate(items[cursor.index :], cursor.index + 1):
        is_last = index == len(items)
        following = Cursor(cursor.epoch, cursor.txid, cursor.seq + is_last, 0 if is_last else index)
        yield FeedEvent(cursor=str(following), kind=kind, app=app, at=from_us(at), **item.fields())
