"""The event feed on PostgreSQL: events are written in the transaction of the change they report, and read below all
open transactions.

Numbers of a sequence are given before the commit, so a reader by number alone would miss late commits. So rows carry
their transaction id; they are read in the order of transactions, and only those older than any open transaction. That
order never changes. The price: a transaction that has written something and stays open, anywhere on the server, delays
all feeds until it ends.
"""

from __future__ import annotations

from collections.abc import Sequence

from evertick.model.feed import Cursor, FeedKind, in_rows
from evertick.store.base import FeedRead, FeedRow, FeedState
from evertick.store.postgres.connection import Statements
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import Row, json_text, storable_text

__all__ = ["feed", "feed_state", "keep_feed", "prune_feed", "publish", "publish_runs"]

# Of 32 hexadecimal digits, because every row has it.
_EPOCH_DIGITS = 16


# --- publish ----------------------------------------------------------------------------------------------------------


async def publish(db: Statements, app: str, kind: FeedKind, items: Sequence[tuple[object, ...]]) -> None:
    """Events in the form that `evertick.feed` reads."""
    if items and db.has_feed is not False:
        await db.count("feed.publish", app, kind, [json_text(part) for part in in_rows(items)])


async def publish_runs(
    db: Statements, app: str, kind: FeedKind, ids: Sequence[str], reasons: Sequence[str | None] = ()
) -> None:
    """Changes of live runs. The statement that ends a run publishes its end."""
    if ids and db.has_feed is not False:
        await db.count("feed.publish_runs", app, kind, list(ids), [storable_text(reason) for reason in reasons])


# --- keep and read ----------------------------------------------------------------------------------------------------


async def keep_feed(db: Statements, app: str, kept: int | None) -> None:
    if kept is None:
        await db.count("keep_feed.end", app)
    else:
        await db.count("keep_feed", app, _new_epoch(db), kept)


def _new_epoch(db: Statements) -> str:
    return db.clock.new_token()[:_EPOCH_DIGITS]


async def feed(
    session: StoreSession, app: str, *, start: Cursor | None, since: int | None, kinds: Sequence[str] | None, limit: int
) -> FeedRead | None:
    place = (str(0 if start is None else start.txid), 0 if start is None else start.seq)
    wanted = (since or 0, None if kinds is None else list(kinds), limit)
    rows = await session.ask(lambda db: db.rows("feed", app, *place, *wanted))
    if rows and not rows[0]["is_in_order"]:
        await session.ask(lambda db: db.count("feed.renew", app, _new_epoch(db)))
        rows = await session.ask(lambda db: db.rows("feed", app, *place, *wanted))
    return _read(rows) if rows else None


def _read(rows: Sequence[Row]) -> FeedRead:
    head = rows[0]
    return FeedRead(
        now=head["now"],
        first=Cursor(head["epoch"], head["pruned_txid"], head["pruned_seq"] + 1),
        end=Cursor(head["epoch"], head["open_txid"], 0),
        rows=[
            FeedRow(txid=row["txid"], seq=row["seq"], at=row["at"], kind=row["kind"], body=row["body"])
            for row in rows
            if row["seq"] is not None
        ],
    )


async def feed_state(db: Statements, app: str) -> FeedState | None:
    row = await db.row("feed_state", app)
    if row is None:
        return None
    held_at = row["held_at"]
    return FeedState(
        now=row["now"], kept=row["kept"], held_at=held_at, holder=None if held_at is None else row["holder"]
    )


async def prune_feed(db: Statements, app: str, limit: int) -> int:
    pruned: int = (await db.only_row("prune.feed", app, limit))["count"]
    return pruned + (await db.count("prune.feed_ends", app, limit - pruned) if pruned < limit else 0)
