"""Schedules: queries (due, stored, failing, for display), calendars, and changes by users.

A change (add, edit, pause, resume, remove) first settles the old definition (`fires.apply_advance`), guarded like a
fire, and raises the version. A replaced definition is texts for the runs that were recorded under it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from typing import Any

import msgspec

from evertick.model import Definition, Reason, Schedule, Verdict
from evertick.store.base import (
    FIRST_PLACE,
    Change,
    Due,
    DuePlace,
    DueSchedule,
    Failing,
    NewCalendar,
    ScheduleFilter,
    StoredSchedule,
)
from evertick.store.rows import FORMAT, due_of, json_text, schedule_of, stored_of
from evertick.store.sqlite.connection import PART_MOST, SQL
from evertick.store.sqlite.endings import count_from_end, end
from evertick.store.sqlite.feed import publish
from evertick.store.sqlite.fires import Claimant, apply_advance
from evertick.store.sqlite.outbox import write_messages
from evertick.store.verdicts import CHANGE_KINDS, Ending, change_event

__all__ = [
    "calendar_users",
    "calendars",
    "change_schedules",
    "computed_with",
    "declared_schedules",
    "due_schedules",
    "failing",
    "fingerprints",
    "put_calendar",
    "remove_calendar",
    "schedules",
    "stored_schedules",
]

_rows = msgspec.json.Decoder(list[tuple[Any, ...]])
# Columns of a due schedule.
_ID, _AT = DueSchedule.__struct_fields__.index("id"), DueSchedule.__struct_fields__.index("at")


def due_schedules(db: sqlite3.Connection, now: int, app: str, limit: int, after: DuePlace = FIRST_PLACE) -> Due:
    schedules: list[DueSchedule] = []
    next_place: DuePlace | None = after
    for first in range(0, limit, PART_MOST):
        if next_place is None:
            break
        most = min(PART_MOST, limit - first)
        rows = _rows.decode(db.execute(SQL["due_schedules"], (app, now, FORMAT, most, *next_place)).fetchone()[0])
        schedules += due_of(rows)
        next_place = DuePlace(rows[-1][_AT], rows[-1][_ID]) if len(rows) == most else None
    following = db.execute(SQL["due_schedules.next"], (app, now, FORMAT)).fetchone()
    next_at = None if following is None else following["at"]
    return Due(now=now, schedules=schedules, next_at=next_at, next_place=next_place)


def stored_schedules(
    db: sqlite3.Connection, now: int, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
) -> list[StoredSchedule]:
    rows = db.execute(SQL["stored_schedules.by_ids"], (app, json_text(list(ids)), FORMAT)).fetchall() if ids else []
    rows += db.execute(SQL["stored_schedules.by_keys"], (app, json_text(list(keys)), FORMAT)).fetchall() if keys else []
    return _readable(rows)


def declared_schedules(db: sqlite3.Connection, now: int, app: str) -> list[StoredSchedule]:
    return _readable(db.execute(SQL["declared_schedules"], (app, FORMAT)).fetchall())


def fingerprints(db: sqlite3.Connection, now: int, app: str) -> dict[str, int]:
    return {row["fingerprint"]: row["id"] for row in db.execute(SQL["fingerprints"], (app, FORMAT))}


def computed_with(
    db: sqlite3.Connection, now: int, app: str, fingerprint: str, *, after: int, limit: int
) -> list[StoredSchedule]:
    return _readable(db.execute(SQL["computed_with"], (app, fingerprint, after, FORMAT, limit)).fetchall())


def _readable(rows: Sequence[sqlite3.Row]) -> list[StoredSchedule]:
    # By id, so that a schedule requested by id and by key is returned once.
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


def calendar_users(db: sqlite3.Connection, now: int, app: str, name: str, *, limit: int = 1000) -> list[str]:
    return [row["key"] for row in db.execute(SQL["calendar_users"], (app, name, limit))]


def remove_calendar(db: sqlite3.Connection, now: int, app: str, name: str) -> bool:
    # In the same transaction, so that a schedule added meanwhile keeps its calendar.
    if calendar_users(db, now, app, name, limit=1):
        return False
    return db.execute(SQL["remove_calendar"], (app, name)).rowcount > 0


def put_calendar(db: sqlite3.Connection, now: int, app: str, name: str, version: str, content: bytes) -> None:
    newest = db.execute(SQL["put_calendar.newest"], (app, name)).fetchone()
    if newest is not None and newest["content"] == content:
        return
    db.execute(SQL["put_calendar.forget"], (app, name, version))
    db.execute(SQL["put_calendar"], (app, name, version, content, now))


# --- schedules to pause after repeated failures -----------------------------------------------------------------------


def failing(
    db: sqlite3.Connection, now: int, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000
) -> list[Failing]:
    if ids is None:
        candidates = db.execute(SQL["failing.all"], (app, FORMAT))
    else:
        candidates = db.execute(SQL["failing.of"], (app, json_text(list(ids)), FORMAT))
    found: list[Failing] = []
    for row in candidates:
        if len(found) == limit:
            break
        if (failed := _failing(db, row)) is not None:
            found.append(failed)
    return found


def _failing(db: sqlite3.Connection, row: sqlite3.Row) -> Failing | None:
    """Reads up to the newest success, which is mostly the first row."""
    newest: sqlite3.Row | None = None
    count = 0
    for run in db.execute(SQL["failing.verdicts"], (row["id"], row["counts_from"], row["pause_after"])):
        if run["verdict"] == Verdict.SUCCEEDED:
            return None
        newest = newest or run
        count += 1
    if newest is None or count < row["pause_after"]:
        return None
    return Failing(
        schedule_id=row["id"],
        key=row["key"],
        version=row["version"],
        count=count,
        run=newest["id"],
        verdict=Verdict(newest["verdict"]),
        reason=newest["reason"],
        error=newest["error"],
    )


# --- changes ----------------------------------------------------------------------------------------------------------


def change_schedules(
    db: sqlite3.Connection,
    now: int,
    app: str,
    changes: Sequence[Change],
    *,
    all_or_none: bool = False,
    calendars: Sequence[NewCalendar] = (),
) -> list[bool]:
    """With `all_or_none`, a True beside a False means that this change alone would have been applied."""
    db.execute("SAVEPOINT changes")
    for calendar in calendars:
        put_calendar(db, now, app, calendar.name, calendar.version, calendar.content)
    taken = [_apply(db, now, app, change) for change in changes]
    if all_or_none and not all(taken):
        db.execute("ROLLBACK TO changes")
    db.execute("RELEASE changes")
    return taken


def _apply(db: sqlite3.Connection, now: int, app: str, change: Change) -> bool:
    is_taken = _add(db, now, app, change) if change.kind == "add" else _change(db, now, app, change)
    if is_taken:
        write_messages(db, now, app, change.messages)
        publish(db, now, app, CHANGE_KINDS[change.kind], [change_event(change)])
    return is_taken


def _add(db: sqlite3.Connection, now: int, app: str, change: Change) -> bool:
    definition = change.definition
    assert definition is not None, "an add has a definition"
    added = db.execute(
        SQL["change_schedules.add"],
        (
            app,
            change.key,
            change.created_at or now,
            definition.format,
            json_text(definition),
            None if change.pause is None else json_text(change.pause),
            None if change.declared is None else json_text(change.declared),
        ),
    ).fetchone()
    if added is None:
        return False
    cursor = (change.fire_at, change.at, change.fingerprint)
    db.execute(SQL["change_schedules.add_due"], (added["id"], app, definition.format, *cursor))
    _keep_version(db, app, change.key, added["id"], definition)
    return True


def _change(db: sqlite3.Connection, now: int, app: str, change: Change) -> bool:
    settle = change.settle
    assert settle is not None, f"{change.kind} settles the old definition"
    found = db.execute(SQL["change_schedules.find"], (app, change.key, settle.schedule_id)).fetchone()
    claimant = Claimant(db, None)
    if found is None or not apply_advance(db, now, app, settle, claimant, bump=1):
        return False
    claimant.publish(now, app)
    if change.kind == "remove":
        _remove(db, now, app, settle.schedule_id)
        return True
    if change.definition is not None:
        _define(db, app, change.key, settle.schedule_id, change.definition, found["definition"])
    if change.declared is not None:
        db.execute(SQL["change_schedules.declare"], (settle.schedule_id, json_text(change.declared)))
    if change.kind == "resume":
        db.execute(SQL["change_schedules.pause"], (settle.schedule_id, None))
        db.execute(SQL["change_schedules.count_failures_anew"], (settle.schedule_id,))
    elif change.pause is not None:
        db.execute(SQL["change_schedules.pause"], (settle.schedule_id, json_text(change.pause)))
    count_from_end(db, now, [settle.schedule_id])
    return True


def _define(db: sqlite3.Connection, app: str, key: str, schedule: int, definition: Definition, before: str) -> None:
    text = json_text(definition)
    if text == before:
        return
    db.execute(SQL["change_schedules.define"], (schedule, text, definition.format))
    db.execute(SQL["change_schedules.define_due"], (schedule, definition.format))
    db.execute(SQL["change_schedules.count_failures_anew"], (schedule,))
    _keep_version(db, app, key, schedule, definition)


def _keep_version(db: sqlite3.Connection, app: str, key: str, schedule: int, definition: Definition) -> None:
    texts = (json_text(definition), json_text(definition.args))
    db.execute(SQL["change_schedules.keep_version"], (app, key, schedule, *texts))


def _remove(db: sqlite3.Connection, now: int, app: str, schedule: int) -> None:
    idle = [row["id"] for row in db.execute(SQL["schedule.idle_runs"], (schedule,))]
    db.execute(SQL["change_schedules.give_up_untaken"], (schedule, Reason.REMOVED, now))
    db.execute(SQL["change_schedules.remove"], (schedule,))
    db.execute(SQL["change_schedules.remove_due"], (schedule,))
    end(db, now, app, [Ending(id_, Verdict.CANCELLED, Reason.REMOVED) for id_ in idle])
