"""Schedules as read: due ones for the tick, stored ones for planning and editing, listed ones for people; calendars."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from evertick.model import Schedule
from evertick.store.base import Due, DuePlace, DueSchedule, ScheduleFilter, StoredSchedule
from evertick.store.rows import FORMAT, due_of, json_text, schedule_of, stored_of
from evertick.store.sqlite.json_chunks import PART_MOST
from evertick.store.sqlite.queries import SQL

__all__ = [
    "calendar_users",
    "calendars",
    "computed_with",
    "declared_schedules",
    "due_schedules",
    "fingerprints",
    "put_calendar",
    "remove_calendar",
    "schedules",
    "stored_schedules",
]

_rows = msgspec.json.Decoder(list[tuple[Any, ...]])
# Of the columns of a due schedule.
_ID, _AT = DueSchedule.__struct_fields__.index("id"), DueSchedule.__struct_fields__.index("at")


def due_schedules(db: sqlite3.Connection, now: int, app: str, limit: int, after: DuePlace) -> Due:
    schedules: list[DueSchedule] = []
    goes_on: DuePlace | None = after
    for first in range(0, limit, PART_MOST):
        if goes_on is None:
            break
        most = min(PART_MOST, limit - first)
        rows = _rows.decode(db.execute(SQL["due_schedules"], (app, now, FORMAT, most, *goes_on)).fetchone()[0])
        schedules += due_of(rows)
        goes_on = DuePlace(rows[-1][_AT], rows[-1][_ID]) if len(rows) == most else None
    following = db.execute(SQL["due_schedules.next"], (app, now, FORMAT)).fetchone()
    next_at = None if following is None else following["at"]
    return Due(now=now, schedules=schedules, next_at=next_at, goes_on=goes_on)


def stored_schedules(
    db: sqlite3.Connection, now: int, app: str, ids: Sequence[int], keys: Sequence[str]
) -> list[StoredSchedule]:
    rows = db.execute(SQL["stored_schedules.by_ids"], (app, json_text(list(ids)), FORMAT)).fetchall() if ids else []
    rows += db.execute(SQL["stored_schedules.by_keys"], (app, json_text(list(keys)), FORMAT)).fetchall() if keys else []
    return _readable(rows)


def declared_schedules(db: sqlite3.Connection, now: int, app: str) -> list[StoredSchedule]:
    return _readable(db.execute(SQL["declared_schedules"], (app, FORMAT)).fetchall())


def fingerprints(db: sqlite3.Connection, now: int, app: str) -> dict[str, int]:
    return {row["fingerprint"]: row["id"] for row in db.execute(SQL["fingerprints"], (app, FORMAT))}


def computed_with(
    db: sqlite3.Connection, now: int, app: str, fingerprint: str, after: int, limit: int
) -> list[StoredSchedule]:
    return _readable(db.execute(SQL["computed_with"], (app, fingerprint, after, FORMAT, limit)).fetchall())


def _readable(rows: Sequence[sqlite3.Row]) -> list[StoredSchedule]:
    # By id: one that was asked for by id and by key comes once.
    by_id = {row["id"]: stored_of(row) for row in rows}
    return [stored for stored in by_id.values() if stored is not None]


def schedules(db: sqlite3.Connection, now: int, app: str, wanted: ScheduleFilter) -> list[Schedule]:
    rows = db.execute(
        SQL["schedules.by_due" if wanted.is_by_due else "schedules"],
        (
            app,
            wanted.after_key or "",
            FORMAT,
            None if wanted.keys is None else json_text(wanted.keys),
            wanted.is_paused,
            json_text(wanted.labels),
            wanted.limit,
        ),
    ).fetchall()
    return [
        schedule_of(
            app,
            stored,
            db.execute(SQL["schedules.last_run"], (stored.id,)).fetchone(),
            db.execute(SQL["schedules.counts"], (stored.id,)).fetchall() if wanted.with_counts else (),
        )
        for stored in _readable(rows)
    ]


def calendars(db: sqlite3.Connection, now: int, app: str) -> dict[str, bytes]:
    return {row["name"]: bytes(row["content"]) for row in db.execute(SQL["calendars"], (app,))}


def calendar_users(db: sqlite3.Connection, now: int, app: str, name: str, limit: int) -> list[str]:
    return [row["key"] for row in db.execute(SQL["calendar_users"], (app, name, limit))]


def remove_calendar(db: sqlite3.Connection, now: int, app: str, name: str) -> bool:
    # Asked in the transaction that removes: a schedule added meanwhile keeps its calendar.
    if calendar_users(db, now, app, name, 1):
        return False
    return db.execute(SQL["remove_calendar"], (app, name)).rowcount > 0


def put_calendar(db: sqlite3.Connection, now: int, app: str, name: str, version: str, content: bytes) -> None:
    newest = db.execute(SQL["put_calendar.newest"], (app, name)).fetchone()
    if newest is not None and newest["content"] == content:
        return
    db.execute(SQL["put_calendar.forget"], (app, name, version))
    db.execute(SQL["put_calendar"], (app, name, version, content, now))
