"""Definitions and their parsed rules, remembered by (schedule, version).

A version never changes its meaning, so what is remembered is never stale: an edit, a pause, a decision about a single
moment and a new calendar all raise the version. Bounded, since a store may hold a million schedules.
"""

from __future__ import annotations

from hashlib import blake2b

import msgspec

from evertick.errors import EvertickError, InvalidWhen
from evertick.store.base import DueSchedule, Store, StoredSchedule
from evertick.when import Calendar, When, parse_when
from evertick.when.zone import zone_fingerprint

__all__ = ["KnownSchedule", "Rules", "blackout_named", "blackout_of", "fingerprint_of", "load_calendars", "rule_of"]

_KNOWN_MAX = 50_000


class KnownSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A stored schedule with its rule, or with the reason why it has none."""

    stored: StoredSchedule
    rule: When | None
    blackout: Calendar | None = None
    error: str | None = None


async def load_calendars(store: Store, app: str) -> dict[str, Calendar]:
    return {name: Calendar.from_json(content) for name, content in (await store.calendars(app)).items()}


def rule_of(stored: StoredSchedule, calendars: dict[str, Calendar]) -> When:
    """The bound rule of a stored schedule."""
    rule = parse_when(stored.definition.when, calendars)
    return rule.bind(key=stored.key, created=stored.created_at, calendars=calendars)


def blackout_of(stored: StoredSchedule, rule: When, calendars: dict[str, Calendar]) -> Calendar | None:
    """The calendar while which is closed nothing of the schedule fires, as its rule's zone sees it."""
    return blackout_named(stored.definition.blackout, stored.key, rule, calendars)


def blackout_named(name: str | None, key: str, rule: When, calendars: dict[str, Calendar]) -> Calendar | None:
    if name is None:
        return None
    if name not in calendars:
        raise InvalidWhen(f"the blackout {name!r} of {key!r} is a calendar that is not defined; define it first")
    return calendars[name].in_zone(rule.zone)


def fingerprint_of(rule: When, blackout: Calendar | None) -> str:
    """What a cursor was computed with: the rules of zones, the calendar of the rule, the blackout."""
    if blackout is None:
        return rule.fingerprint
    zone = blackout.zone.key
    parts = f"{rule.fingerprint} {zone}={zone_fingerprint(zone)} {blackout.name}={blackout.version}"
    return blake2b(parts.encode(), digest_size=8).hexdigest()


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
        needs_calendars = any(
            "calendar=" in schedule.definition.when or schedule.definition.blackout for schedule in stored
        )
        calendars = await load_calendars(self._store, self._app) if needs_calendars else {}
        for schedule in stored:
            self._known[schedule.id, schedule.version] = _know(schedule, calendars)


def _know(stored: StoredSchedule, calendars: dict[str, Calendar]) -> KnownSchedule:
    try:
        rule = rule_of(stored, calendars)
        return KnownSchedule(stored=stored, rule=rule, blackout=blackout_of(stored, rule, calendars))
    except (EvertickError, InvalidWhen) as error:
        return KnownSchedule(stored=stored, rule=None, error=str(error))
