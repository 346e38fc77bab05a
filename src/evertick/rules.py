"""Definitions and their parsed rules, remembered by (schedule, version).

A version never changes its meaning, so what is remembered is never stale: an edit, a pause and a new calendar all raise
the version. Bounded, since a store may hold a million schedules.
"""

from __future__ import annotations

import msgspec

from evertick.errors import EvertickError, InvalidWhen
from evertick.store.base import DueSchedule, Store, StoredSchedule
from evertick.when import Calendar, When, parse_when

__all__ = ["KnownSchedule", "Rules", "load_calendars", "rule_of"]

_KNOWN_MAX = 50_000


class KnownSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule with its rule, or with the reason why it has none."""

    stored: StoredSchedule
    rule: When | None
    error: str | None = None


async def load_calendars(store: Store, app: str) -> dict[str, Calendar]:
    return {name: Calendar.from_json(content) for name, content in (await store.calendars(app)).items()}


def rule_of(stored: StoredSchedule, calendars: dict[str, Calendar]) -> When:
    """The bound rule of a stored schedule."""
    rule = parse_when(stored.definition.when, calendars)
    return rule.bind(key=stored.key, created=stored.created_at, calendars=calendars)


class Rules:
    """The schedules this node has met, by version."""

    def __init__(self, store: Store, app: str) -> None:
        self._store = store
        self._app = app
        self._known: dict[tuple[int, int], KnownSchedule] = {}

    async def of(self, due: list[DueSchedule]) -> dict[int, KnownSchedule]:
        """The schedules behind these rows, by id. One that was removed or changed meanwhile is left out."""
        missing = [row.id for row in due if (row.id, row.version) not in self._known]
        if missing:
            await self._load(missing)
        found = ((row.id, self._known.get((row.id, row.version))) for row in due)
        return {schedule_id: known for schedule_id, known in found if known is not None}

    async def _load(self, ids: list[int]) -> None:
        if len(self._known) + len(ids) > _KNOWN_MAX:
            self._known.clear()
        stored = await self._store.stored_schedules(self._app, ids=ids)
        needs_calendars = any("calendar=" in schedule.definition.when for schedule in stored)
        calendars = await load_calendars(self._store, self._app) if needs_calendars else {}
        for schedule in stored:
            self._known[schedule.id, schedule.version] = _know(schedule, calendars)


def _know(stored: StoredSchedule, calendars: dict[str, Calendar]) -> KnownSchedule:
    try:
        return KnownSchedule(stored=stored, rule=rule_of(stored, calendars))
    except (EvertickError, InvalidWhen) as error:
        return KnownSchedule(stored=stored, rule=None, error=str(error))
