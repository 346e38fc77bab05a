"""The event feed on SQLite: events are written in the transaction of the change they report, and read in that order.

There is one writer at a time, and a row gets its number when it is written, so a reader that has read up to a number
has read everything below it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from evertick.model.feed import Cursor, FeedKind, in_rows
from evertick.store.base import FeedRead, FeedRow, FeedState
from evertick.store.rows import json_text, storable_text
from evertick.store.sqlite.connection import SQL

__all__ = [
    "feed",
    "feed_state",
    "keep_feed",
    "prune_feed",
    "publish",
    "publish_ended",
    "publish_gaps",
    "publish_nodes",
    "publish_runs",
]


# --- publish ----------------------------------------------------------------------------------------------------------


def publish(db: sqlite3.Connection, now: int, app: str, kind: FeedKind, items: Sequence[tuple[object, ...]]) -> None:
    """Events in the form that `evertick.feed` reads."""
    if items and _has_feed(db, app):
        db.executemany(SQL["feed.publish"], [(app, now, kind, json_text(part)) for part in in_rows(items)])


def publish_runs(
    db: sqlite3.Connection,
    now: int,
    app: str,
    kind: FeedKind,
    ids: Sequence[str],
    reasons: Sequence[str | None] | None = None,
) -> None:
    """Changes of live runs; without a given reason, with the reason of the run."""
    if not ids or not _has_feed(db, app):
        return
    texts = [storable_text(reason) for reason in reasons] if reasons is not None else [None] * len(ids)
    for part in in_rows(list(zip(ids, texts, strict=True))):
        db.execute(SQL["feed.publish_runs"], (app, now, kind, json_text(part)))


def publish_ended(db: sqlite3.Connection, now: int, app: str, ids: Sequence[str]) -> None:
    """Runs that have moved to history, each with its own reason."""
    if ids and _has_feed(db, app):
        for part in in_rows([(id_, None) for id_ in ids]):
            db.execute(SQL["feed.publish_ended"], (app, now, "run.finished", json_text(part)))


def publish_gaps(db: sqlite3.Connection, now: int, app: str, ids: Sequence[int]) -> None:
    if ids and _has_feed(db, app):
        for part in in_rows(list(dict.fromkeys(ids))):
            db.execute(SQL["feed.publish_gaps"], (app, now, json_text(part)))


def publish_nodes(db: sqlite3.Connection, now: int, kind: FeedKind, ids: Sequence[str]) -> None:
    """Nodes of any app; only apps with a feed get the event."""
    for part in in_rows(ids):
        db.execute(SQL["feed.publish_nodes"], (now, kind, json_text(part)))


def _has_feed(db: sqlite3.Connection, app: str) -> bool:
    return db.execute(SQL["feed.exists"], (app,)).fetchone() is not None


# --- keep and read ----------------------------------------------------------------------------------------------------


def keep_feed(db: sqlite3.Connection, app: str, kept: int | None, epoch: str) -> None:
    if kept is None:
        db.execute(SQL["keep_feed.end"], (app,))
    else:
        db.execute(SQL["keep_feed"], (app, epoch, kept))


def feed(
    db: sqlite3.Connection,
    now: int,
    app: str,
    *,
    start: Cursor | None,
    since: int | None,
    kinds: Sequence[str] | None,
    limit: int,
) -> FeedRead | None:
    wanted = None if kinds is None else json_text(list(kinds))
    rows = db.execute(SQL["feed"], (app, 0 if start is None else start.seq, since or 0, wanted, limit)).fetchall()
    if not rows:
        return None
    head = rows[0]
    return FeedRead(
        now=now,
        first=Cursor(head["epoch"], 0, head["pruned_seq"] + 1),
        end=Cursor(head["epoch"], 0, head["last_seq"] + 1),
        rows=[
            FeedRow(txid=0, seq=row["seq"], at=row["at"], kind=row["kind"], body=row["body"])
            for row in rows
            if row["seq"] is not None
        ],
    )


def feed_state(db: sqlite3.Connection, now: int, app: str) -> FeedState | None:
    row = db.execute(SQL["feed_state"], (app,)).fetchone()
    return None if row is None else FeedState(now=now, kept=row["kept"])


def prune_feed(db: sqlite3.Connection, now: int, app: str, limit: int) -> int:
    pruned = [row["seq"] for row in db.execute(SQL["prune.feed"], (app, now, limit)).fetchall()]
    if pruned:
        db.execute(SQL["prune.feed_mark"], (app, max(pruned)))
    return len(pruned)
