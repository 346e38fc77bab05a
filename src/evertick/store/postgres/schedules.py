"""Schedules as read: due ones for the tick, stored ones for planning and editing, listed ones for people; calendars."""

from __future__ import annotations

from collections.abc import Sequence

from evertick.model import Schedule, Verdict
from evertick.store.base import Due, DuePlace, Failing, ScheduleFilter, StoredSchedule
from evertick.store.postgres.session import Statements
from evertick.store.rows import FORMAT, Row, due_of, json_text, plain_text, schedule_of, stored_of

__all__ = [
    "calendar_users",
    "calendars",
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


# What a tick reads, a column each.
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


async def due_schedules(db: Statements, app: str, limit: int, after: DuePlace) -> Due:
    found = await db.only_row("due_schedules", app, FORMAT, limit, *after)
    columns = [found[name] or () for name in _DUE]
    ids, ats = found["ids"] or [], found["ats"] or []
    return Due(
        now=found["now"],
        schedules=due_of(zip(*columns, strict=True)),
        next_at=found["next_at"],
        # Arrays are in the order of the index by their plan, which SQL does not promise.
        goes_on=DuePlace(*max(zip(ats, ids, strict=True))) if len(ids) >= limit else None,
    )


async def stored_schedules(db: Statements, app: str, ids: Sequence[int], keys: Sequence[str]) -> list[StoredSchedule]:
    if not ids and not keys:
        return []
    names = [plain_text(key) for key in keys]
    return _readable(await db.rows("stored_schedules", app, list(ids), names, FORMAT))


async def declared_schedules(db: Statements, app: str) -> list[StoredSchedule]:
    return _readable(await db.rows("declared_schedules", app, FORMAT))


async def fingerprints(db: Statements, app: str) -> dict[str, int]:
    return {row["fingerprint"]: row["id"] for row in await db.rows("fingerprints", app, FORMAT)}


async def computed_with(db: Statements, app: str, fingerprint: str, after: int, limit: int) -> list[StoredSchedule]:
    return _readable(await db.rows("computed_with", app, plain_text(fingerprint), after, FORMAT, limit))


def _readable(rows: Sequence[Row]) -> list[StoredSchedule]:
    return [stored for row in rows if (stored := stored_of(row)) is not None]


async def schedules(db: Statements, app: str, wanted: ScheduleFilter) -> list[Schedule]:
    rows = await db.rows(
        "schedules.by_due" if wanted.is_by_due else "schedules",
        app,
        plain_text(wanted.after_key) or "",
        FORMAT,
        None if wanted.keys is None else [plain_text(key) for key in wanted.keys],
        wanted.is_paused,
        json_text({plain_text(k): plain_text(v) for k, v in wanted.labels.items()}) if wanted.labels else None,
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


async def calendar_users(db: Statements, app: str, name: str, limit: int) -> list[str]:
    return [row["key"] for row in await db.rows("calendar_users", app, plain_text(name), limit)]


async def remove_calendar(db: Statements, app: str, name: str) -> bool:
    return await db.count("remove_calendar", app, plain_text(name)) > 0


async def failing(db: Statements, app: str, ids: Sequence[int] | None, limit: int) -> list[Failing]:
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
