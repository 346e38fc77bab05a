"""Schedules: queries (due, stored, failing, for display), calendars, and changes by users.

A change (add, edit, pause, resume, remove) first settles the old definition (`fires.apply_advances`), guarded like a
fire, and raises the version. A replaced definition is kept for the runs that were recorded under it. Consecutive
changes of one kind are written together.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import groupby
from typing import Any

from evertick.model import Definition, Reason, Schedule, State, Verdict
from evertick.store.base import FIRST_PLACE, Change, Due, DuePlace, Failing, NewCalendar, ScheduleFilter, StoredSchedule
from evertick.store.postgres.connection import Statements, columns_of
from evertick.store.postgres.endings import count_from_end, end
from evertick.store.postgres.feed import publish
from evertick.store.postgres.fires import apply_advances, lock_in_order
from evertick.store.postgres.outbox import write_messages
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import FORMAT, Row, due_of, json_text, schedule_of, storable_text, stored_of
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

# The columns of a due schedule.
_DUE = (
    "ids",
    "keys",
    "versions",
    "created_ats",
    "definitions",
    "pauses",
    "occurrences",
    "fire_ats",
    "ats",
    "fires",
    "failures",
    "lives",
    "stamps",
)


async def due_schedules(db: Statements, app: str, limit: int, after: DuePlace = FIRST_PLACE) -> Due:
    found = await db.only_row("due_schedules", app, FORMAT, limit, *after)
    columns = [found[name] or () for name in _DUE]
    ids, ats = found["ids"] or [], found["ats"] or []
    return Due(
        now=found["now"],
        schedules=due_of(zip(*columns, strict=True)),
        next_at=found["next_at"],
        # Arrays are in the order of the index with the present plan, but SQL does not promise it.
        next_place=DuePlace(*max(zip(ats, ids, strict=True))) if len(ids) >= limit else None,
    )


async def stored_schedules(
    db: Statements, app: str, *, ids: Sequence[int] = (), keys: Sequence[str] = ()
) -> list[StoredSchedule]:
    if not ids and not keys:
        return []
    names = [storable_text(key) for key in keys]
    return _readable(await db.rows("stored_schedules", app, list(ids), names, FORMAT))


async def declared_schedules(db: Statements, app: str) -> list[StoredSchedule]:
    return _readable(await db.rows("declared_schedules", app, FORMAT))


async def fingerprints(db: Statements, app: str) -> dict[str, int]:
    return {row["fingerprint"]: row["id"] for row in await db.rows("fingerprints", app, FORMAT)}


async def computed_with(db: Statements, app: str, fingerprint: str, *, after: int, limit: int) -> list[StoredSchedule]:
    return _readable(await db.rows("computed_with", app, storable_text(fingerprint), after, FORMAT, limit))


def _readable(rows: Sequence[Row]) -> list[StoredSchedule]:
    return [stored for row in rows if (stored := stored_of(row)) is not None]


async def schedules(db: Statements, app: str, wanted: ScheduleFilter) -> list[Schedule]:
    rows = await db.rows(
        "schedules.by_due" if wanted.is_by_due else "schedules",
        app,
        storable_text(wanted.after_key) or "",
        FORMAT,
        None if wanted.keys is None else [storable_text(key) for key in wanted.keys],
        wanted.is_paused,
        json_text({storable_text(k): storable_text(v) for k, v in wanted.labels.items()}) if wanted.labels else None,
        wanted.limit,
    )
    found = _readable(rows)
    ids = [stored.id for stored in found]
    last = {row["schedule_id"]: row for row in await db.rows("schedules.last_runs", ids)}
    counts: dict[int, list[Row]] = {}
    for row in await db.rows("schedules.counts", ids) if wanted.with_counts else ():
        counts.setdefault(row["schedule_id"], []).append(row)
    return [schedule_of(app, stored, last.get(stored.id), counts.get(stored.id, ())) for stored in found]


async def calendars(db: Statements, app: str) -> dict[str, bytes]:
    return {row["name"]: bytes(row["content"]) for row in await db.rows("calendars", app)}


async def calendar_users(db: Statements, app: str, name: str, *, limit: int = 1000) -> list[str]:
    return [row["key"] for row in await db.rows("calendar_users", app, storable_text(name), limit)]


async def remove_calendar(db: Statements, app: str, name: str) -> bool:
    return await db.count("remove_calendar", app, storable_text(name)) > 0


async def failing(db: Statements, app: str, *, ids: Sequence[int] | None = None, limit: int = 1000) -> list[Failing]:
    return [
        Failing(
            schedule_id=row["id"],
            key=row["key"],
            version=row["version"],
            count=row["count"],
            run=row["run"],
            verdict=Verdict(row["verdict"]),
            reason=row["reason"],
            error=row["error"],
        )
        for row in await db.rows("failing", app, FORMAT, None if ids is None else list(ids), limit)
    ]


async def put_calendar(db: Statements, app: str, name: str, version: str, content: bytes) -> None:
    await db.rows("put_calendar.lock", app, name)
    await db.count("put_calendar.forget", app, name, version, content)
    await db.count("put_calendar", app, name, version, content)


# --- changes ----------------------------------------------------------------------------------------------------------


_IDLE = ("waiting", "blocked", "parked")


class NotAllApplied(Exception):
    """Raised to roll back a batch of all or none; `taken`: which changes would have been applied alone."""

    def __init__(self, taken: list[bool]) -> None:
        super().__init__(taken)
        self.taken = taken


async def change_schedules(
    session: StoreSession,
    app: str,
    changes: Sequence[Change],
    *,
    all_or_none: bool = False,
    calendars: Sequence[NewCalendar] = (),
) -> list[bool]:
    try:
        return await session.write(lambda db: change_in(db, app, changes, all_or_none, calendars))
    except NotAllApplied as refusal:
        return refusal.taken


async def change_in(
    db: Statements, app: str, changes: Sequence[Change], all_or_none: bool, calendars: Sequence[NewCalendar]
) -> list[bool]:
    """With `all_or_none`, a True beside a False means that this change alone would have been applied."""
    taken = [False] * len(changes)
    # Before any row lock, as in `put_calendar`; by name, so that no two sessions deadlock.
    for calendar in sorted(calendars, key=lambda each: each.name):
        await put_calendar(db, app, calendar.name, calendar.version, calendar.content)
    await _lock_in_order(db, app, changes)
    for places in _batches(changes):
        batch = [changes[place] for place in places]
        if batch[0].kind == "add":
            answers = await _add(db, app, batch)
        else:
            answers = await _change(db, app, batch)
        for place, answer in zip(places, answers, strict=True):
            taken[place] = answer
    accepted = [change for change, answer in zip(changes, taken, strict=True) if answer]
    await _publish(db, app, accepted)
    await write_messages(db, app, [message for change in accepted for message in change.messages])
    if all_or_none and not all(taken):
        raise NotAllApplied(taken)
    if any(taken):
        db.wake(app)
    return taken


async def _lock_in_order(db: Statements, app: str, changes: Sequence[Change]) -> None:
    settles = [change.settle for change in changes if change.settle is not None]
    if settles:
        removed = [c.settle.schedule_id for c in changes if c.settle is not None and c.kind == "remove"]
        await lock_in_order(db, app, settles, removed=removed)


async def _publish(db: Statements, app: str, changes: Sequence[Change]) -> None:
    """In their order; consecutive changes of one kind together."""
    for kind, group in groupby(changes, key=lambda change: change.kind):
        await publish(db, app, CHANGE_KINDS[kind], [change_event(change) for change in group])


def _batches(changes: Sequence[Change]) -> list[list[int]]:
    """Places of changes that can be written together: adds or others, and no schedule twice."""
    batches: list[list[int]] = []
    keys: set[str] = set()
    for place, change in enumerate(changes):
        last = changes[place - 1] if place else None
        if last is None or (last.kind == "add") != (change.kind == "add") or change.key in keys:
            batches.append([])
            keys = set()
        batches[-1].append(place)
        keys.add(change.key)
    return batches


async def _add(db: Statements, app: str, changes: Sequence[Change]) -> list[bool]:
    # By key, so that two processes that add the same schedules do not deadlock.
    rows = [_added(change) for change in sorted(changes, key=lambda change: change.key)]
    added = {row["key"]: row["id"] for row in await db.rows("change_schedules.add", app, *columns_of(rows))}
    new = [(added[change.key], change, _defined(change)) for change in changes if change.key in added]
    if new:
        cursors = [(id_, of.format, change.fire_at, change.at, change.fingerprint) for id_, change, of in new]
        await db.count("change_schedules.add_due", app, *columns_of(cursors))
        versions = [(id_, change.key, json_text(of), json_text(of.args)) for id_, change, of in new]
        await db.count("change_schedules.keep_version", app, *columns_of(versions))
    return [change.key in added for change in changes]


def _defined(change: Change) -> Definition:
    assert change.definition is not None, "an add has a definition"
    return change.definition


def _added(change: Change) -> tuple[object, ...]:
    text, format_, *filters = _definition_columns(_defined(change))
    return (
        change.key,
        change.created_at or None,
        format_,
        text,
        *filters,
        None if change.pause is None else json_text(change.pause),
        None if change.declared is None else json_text(change.declared),
    )


def _definition_columns(definition: Definition) -> tuple[Any, ...]:
    """Its text and format, and the columns for filters."""
    labels = {storable_text(name): storable_text(value) for name, value in definition.labels.items()}
    return (
        json_text(definition),
        definition.format,
        json_text(labels) if labels else None,
        definition.pause_after,
        storable_text(definition.when),
        storable_text(definition.blackout),
    )


async def _change(db: Statements, app: str, changes: Sequence[Change]) -> list[bool]:
    settles = []
    for change in changes:
        assert change.settle is not None, f"{change.kind} settles the old definition"
        settles.append(change.settle)
    ids = [settle.schedule_id for settle in settles]
    found = {
        row["id"]: row["definition"]
        for row in await db.rows("change_schedules.find", app, ids, [change.key for change in changes])
    }
    known = [settle for settle in settles if settle.schedule_id in found]
    applied = await apply_advances(db, app, known, [1] * len(known))
    taken = {
        settle.schedule_id: change
        for settle, change in zip(settles, changes, strict=True)
        if settle.schedule_id in applied.taken
    }
    await _remove(db, app, [id_ for id_, change in taken.items() if change.kind == "remove"])
    staying = {id_: change for id_, change in taken.items() if change.kind != "remove"}
    await _define(db, app, staying, found)
    await _declare_and_pause(db, staying)
    await count_from_end(db, list(staying))
    return [settle.schedule_id in applied.taken for settle in settles]


async def _define(db: Statements, app: str, changes: dict[int, Change], before: dict[int, str]) -> None:
    rows = []
    for id_, change in changes.items():
        if change.definition is None or json_text(change.definition) == before[id_]:
            continue
        rows.append((id_, change.key, *_definition_columns(change.definition), json_text(change.definition.args)))
    if not rows:
        return
    ids, keys, texts, formats, *filters, args = columns_of(rows)
    await db.count("change_schedules.define", ids, texts, formats, *filters)
    await db.count("change_schedules.define_due", ids, formats)
    await db.count("change_schedules.keep_version", app, ids, keys, texts, args)


async def _declare_and_pause(db: Statements, changes: dict[int, Change]) -> None:
    declared = [(id_, json_text(change.declared)) for id_, change in changes.items() if change.declared is not None]
    if declared:
        await db.count("change_schedules.declare", *columns_of(declared))
    resumed = [(id_, None) for id_, change in changes.items() if change.kind == "resume"]
    paused = [
        (id_, json_text(change.pause))
        for id_, change in changes.items()
        if change.kind != "resume" and change.pause is not None
    ]
    if resumed or paused:
        await db.count("change_schedules.pause", *columns_of([*resumed, *paused]))
    if resumed:
        await db.count("change_schedules.count_failures_anew", [id_ for id_, _ in resumed])


async def _remove(db: Statements, app: str, schedules: Sequence[int]) -> None:
    if not schedules:
        return
    live = await db.rows("schedule.live_runs", schedules)
    await db.count("change_schedules.remove", schedules)
    dispatched = [row["id"] for row in live if row["state"] == State.DISPATCHED]
    if dispatched:
        await db.count("change_schedules.give_up_untaken", dispatched, Reason.REMOVED)
    idle = [row["id"] for row in live if row["state"] in _IDLE]
    await end(db, app, [Ending(id_, Verdict.CANCELLED, Reason.REMOVED) for id_ in idle])
