"""People's changes to schedules: add, edit, pause, resume, remove.

A change first settles the account of the old definition (see `fires.take`), guarded like every fire, and raises the
version. A definition that is replaced is kept for the runs that were recorded under it.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence

from evertick.model import Definition, Reason, Verdict
from evertick.store.base import Change, NewCalendar
from evertick.store.ending import Ending
from evertick.store.feed_kinds import CHANGES_TOLD, told_of
from evertick.store.rows import json_text
from evertick.store.sqlite.endings import count_from_end, end
from evertick.store.sqlite.feed import tell
from evertick.store.sqlite.fires import take
from evertick.store.sqlite.new_runs import Claimant
from evertick.store.sqlite.outbox import write_messages
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.schedules import put_calendar

__all__ = ["change_schedules"]


def change_schedules(
    db: sqlite3.Connection,
    now: int,
    app: str,
    changes: Sequence[Change],
    all_or_none: bool,
    calendars: Sequence[NewCalendar],
) -> list[bool]:
    """With `all_or_none` a True beside a False means: this one would have been taken."""
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
        tell(db, now, app, CHANGES_TOLD[change.kind], [told_of(change)])
    return is_taken


def _add(db: sqlite3.Connection, now: int, app: str, change: Change) -> bool:
    definition = change.definition
    assert definition is not None, "an add brings a definition"
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
    assert settle is not None, f"{change.kind} settles what was owed before"
    found = db.execute(SQL["change_schedules.find"], (app, change.key, settle.schedule_id)).fetchone()
    claimant = Claimant(db, None)
    if found is None or not take(db, now, app, settle, claimant, bump=1):
        return False
    claimant.tell(now, app)
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
    kept = (json_text(definition), json_text(definition.args))
    db.execute(SQL["change_schedules.keep_version"], (app, key, schedule, *kept))


def _remove(db: sqlite3.Connection, now: int, app: str, schedule: int) -> None:
    idle = [row["id"] for row in db.execute(SQL["schedule.idle_runs"], (schedule,))]
    db.execute(SQL["change_schedules.give_up_untaken"], (schedule, Reason.REMOVED, now))
    db.execute(SQL["change_schedules.remove"], (schedule,))
    db.execute(SQL["change_schedules.remove_due"], (schedule,))
    end(db, now, app, [Ending(id_, Verdict.CANCELLED, Reason.REMOVED) for id_ in idle])
