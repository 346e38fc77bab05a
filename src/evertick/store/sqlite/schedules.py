"""Schedules as read: due ones for the tick, stored ones for planning and editing, listed ones for people; calendars."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

import msgspec

from evertick.model import Definition, Occurrence, OccurrenceEdit, Schedule, State, Verdict
from evertick.store.base import DeclaredBy, Due, DueSchedule, ScheduleFilter, StoredSchedule
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.rows import FORMAT, json_text, moment, stored_of
from evertick.when.moment import SECOND, from_us

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


def due_schedules(db: sqlite3.Connection, now: int, app: str, limit: int) -> Due:
    rows = db.execute(SQL["due_schedules"], (app, now, FORMAT, limit)).fetchall()
    following = db.execute(SQL["due_schedules.next"], (app, now, FORMAT)).fetchone()
    return Due(
        now=now,
        schedules=[DueSchedule(**dict(row)) for row in rows],
        next_at=None if following is None else following["at"],
    )


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
    return [_schedule_of(db, app, stored, with_counts=wanted.with_counts) for stored in _readable(rows)]


def _schedule_of(db: sqlite3.Connection, app: str, stored: StoredSchedule, *, with_counts: bool) -> Schedule:
    definition, pause = stored.definition, stored.pause
    last = db.execute(SQL["schedules.last_run"], (stored.id,)).fetchone()
    counts = db.execute(SQL["schedules.counts"], (stored.id,)).fetchall() if with_counts else []
    return Schedule(
        key=stored.key,
        app=app,
        task=definition.task,
        when=definition.when,
        args=definition.args,
        queue=definition.queue,
        priority=definition.priority,
        labels=definition.labels,
        catch_up=definition.catch_up,
        catch_up_limit=definition.catch_up_limit,
        grace_seconds=None if definition.grace is None else definition.grace / SECOND,
        overlap=definition.overlap,
        version=stored.version,
        created_at=from_us(stored.created_at),
        next_fire_at=moment(stored.fire_at),
        next_due_at=moment(stored.at),
        is_paused=pause is not None,
        paused_at=None if pause is None else from_us(pause.at),
        pause_note="" if pause is None else pause.note,
        paused_until=None if pause is None else moment(pause.until),
        occurrences=tuple(_edit_of(occurrence) for occurrence in stored.occurrences if occurrence.kind != "done"),
        unique=definition.unique,
        blackout=definition.blackout,
        blackout_fate=definition.blackout_fate,
        pause_after=definition.pause_after,
        is_declared=stored.declared is not None,
        overrides=_overrides(definition, stored.declared),
        fires=stored.fires,
        last_run_id=None if last is None else last["id"],
        last_fire_at=None if last is None else from_us(last["fire_at"]),
        last_state=None if last is None else State(last["state"]),
        last_verdict=None if last is None or last["verdict"] is None else Verdict(last["verdict"]),
        last_reason=None if last is None else last["reason"],
        counts={row["verdict"]: row["count"] for row in counts},
        error=stored.error,
    )


def _edit_of(occurrence: Occurrence) -> OccurrenceEdit:
    return OccurrenceEdit(
        fire_at=from_us(occurrence.fire_at), kind=occurrence.kind, to=moment(occurrence.to), note=occurrence.note
    )


def _overrides(definition: Definition, declared: DeclaredBy | None) -> tuple[str, ...]:
    if declared is None:
        return ()
    names = msgspec.structs.fields(Definition)
    return tuple(
        field.name for field in names if getattr(definition, field.name) != getattr(declared.definition, field.name)
    )


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
