"""The feed: what happens in an app, kept for other programs, which read it in an order that never changes behind them.

A store writes rows, each with many facts of one kind and one transaction; a reader gets single events. The cursor of an
event says where the next one is: (epoch, transaction, row, place in the row). An epoch is a stretch without a hole. It
begins when the feed is turned on, and anew when it was off meanwhile or its order was lost. Pure: stores read and
write, `operations/feed.py` asks them.
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

# Facts in one row of a feed: a reader that asks for one row gets some hundred kilobytes at most. The statements of the
# PostgreSQL store that tell of what they write themselves have the same number.
ITEMS_MOST = 500
# A token and three numbers, none of which is too large for a database; what is longer is no cursor.
_CURSOR = re.compile(r"([0-9a-f]{1,32})\.([0-9]{1,18})\.([0-9]{1,18})\.([0-9]{1,6})")


class FeedEvent(msgspec.Struct, frozen=True, kw_only=True):
    """One fact. What a kind does not speak of is None."""

    # Where the next event is: store it, and go on after it.
    cursor: str
    kind: FeedKind
    app: str
    # When the store wrote it.
    at: datetime
    schedule_key: str | None = None
    # The name of a node that joins or ends, for people.
    node_name: str | None = None
    node: str | None = None
    run_id: str | None = None
    task: str | None = None
    # As the ledger has them (`Cause`, `Verdict`); a word of newer code is passed on as it is.
    cause: str | None = None
    fire_at: datetime | None = None
    due_at: datetime | None = None
    attempts: int | None = None
    verdict: str | None = None
    reason: str | None = None
    # Of a gap: its moments, from the first to the last.
    first_at: datetime | None = None
    last_at: datetime | None = None
    count: int | None = None
    # Of a pause.
    note: str | None = None
    until: datetime | None = None


class FeedPage(msgspec.Struct, frozen=True, kw_only=True):
    """Events in their order. `cursor` is where to go on, also when there was none; `is_end`: there is no more now."""

    events: list[FeedEvent]
    cursor: str
    is_end: bool


# --- cursors -----------------------------------------------------------------------------------------------------


class Cursor(msgspec.Struct, frozen=True, order=True):
    """The place of the next event. Ordered within an epoch."""

    epoch: str
    txid: int
    seq: int
    # How many facts of that row are read already.
    index: int = 0

    def __str__(self) -> str:
        return f"{self.epoch}.{self.txid}.{self.seq}.{self.index}"

    @classmethod
    def parse(cls, text: Any) -> Self:
        found = _CURSOR.fullmatch(text) if isinstance(text, str) else None
        if found is None:
            raise InvalidInput(
                f"after: {text!r:.80} is no cursor",
                setting="after",
                fix="pass the `cursor` of an event or a page, or None for the oldest",
            )
        epoch, txid, seq, index = found.groups()
        return cls(epoch, int(txid), int(seq), int(index))


def cursor_of(after: str | None, first: Cursor, end: Cursor, app: str) -> Cursor:
    """Where to read from: `after`, if everything from there on is there; else it is refused, never a silent hole."""
    if after is None:
        return first
    wanted = Cursor.parse(after)
    if wanted.epoch != first.epoch:
        raise CursorGone(
            f"the cursor {after} is of another feed than the one that app {app!r} has here: of another database, or of "
            f"before the feed was turned off and on again, or before the database was restored; begin anew, the oldest "
            f"cursor is {first}",
            oldest=str(first),
        )
    if wanted < first:
        raise CursorGone(
            f"the cursor {after} is older than what the feed of app {app!r} keeps; begin anew, the oldest cursor is "
            f"{first}, or keep the feed for longer",
            oldest=str(first),
        )
    if wanted > end:
        raise CursorGone(
            f"the cursor {after} is ahead of all that the feed of app {app!r} has, as after the restore of a backup; "
            f"begin anew, the oldest cursor is {first}",
            oldest=str(first),
        )
    return wanted


# --- rows --------------------------------------------------------------------------------------------------------


def in_rows(items: Sequence[T]) -> Iterator[Sequence[T]]:
    """Facts as many as go into one row, row by row."""
    return (items[first : first + ITEMS_MOST] for first in range(0, len(items), ITEMS_MOST))


class _Run(msgspec.Struct, array_like=True):
    """As stores write it; newer code may write more behind it."""

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
    """The events of a row whose place is `cursor`, from its index on. A kind of newer code is passed over."""
    if kind not in FEED_KINDS:
        return
    items = _DECODERS[kind.partition(".")[0]].decode(body)
    for index, item in enumerate(items[cursor.index :], cursor.index + 1):
        is_last = index == len(items)
        following = Cursor(cursor.epoch, cursor.txid, cursor.seq + is_last, 0 if is_last else index)
        yield FeedEvent(cursor=str(following), kind=kind, app=app, at=from_us(at), **item.fields())
