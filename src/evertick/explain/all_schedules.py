"""All schedules of an app with their parsed rules, read a page at a time."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence

import msgspec

from evertick.errors import EvertickError
from evertick.ledger.clock_repair import Astray, astray_of
from evertick.ledger.parsed_rules import blackout_of, load_calendars, rule_of
from evertick.model import Schedule
from evertick.plan.forecast import Expected
from evertick.plan.overrides import pending, without_decided
from evertick.store.base import DeclaredBy, ScheduleFilter, Store, StoredSchedule
from evertick.when import Calendar, When
from evertick.when.subset import Within

__all__ = ["ParsedSchedule", "survey"]

_PAGE = 1_000


class ParsedSchedule(msgspec.Struct, frozen=True, kw_only=True):
    """A schedule, and its rule or the reason why that cannot be parsed."""

    schedule: Schedule
    rule: When | None
    # The part of the rule that fires, if a blackout or overrides remove moments.
    part: When | None = None
    # The new times of moved moments.
    moved: tuple[int, ...] = ()
    rule_error: str | None = None
    # Evertick paused it after too many failures in a row.
    is_failing: bool = False
    # Evertick paused it because it is no longer declared.
    is_left_over: bool = False
    # How a wrong clock has stopped it.
    astray: Astray | None = None
    # The declaration in force.
    declared: DeclaredBy | None = None

    @property
    def expected(self) -> Expected | None:
        """The expected fires; None for a schedule that is paused, over, or has an invalid rule."""
        if self.rule is None or self.schedule.is_paused:
            return None
        if self.schedule.next_fire_at is None:  # only moved moments are left
            return Expected(rule=self.rule, part=self.part, left=0, moved=self.moved) if self.moved else None
        most = self.rule.bounds.max_fires
        left = None if most is None else most - self.schedule.fires - len(self.moved)
        return Expected(rule=self.rule, part=self.part, left=left, moved=self.moved)


async def survey(
    store: Store, app: str, *, keys: Sequence[str] = (), labels: Mapping[str, str] | None = None
) -> AsyncIterator[ParsedSchedule]:
    """All schedules, by key, or those with these keys and labels."""
    calendars = await load_calendars(store, app)
    wanted = ScheduleFilter(keys=tuple(keys) or None, labels=dict(labels or {}), limit=_PAGE, with_counts=False)
    while True:
        page = await store.schedules(app, wanted)
        stored = await store.stored_schedules(app, keys=[schedule.key for schedule in page])
        by_key, now = {each.key: each for each in stored}, await store.now()
        for schedule in page:
            if schedule.key in by_key:  # not removed meanwhile
                yield await _parsed(store, schedule, by_key[schedule.key], calendars, now)
        if len(page) < _PAGE:
            return
        wanted = msgspec.structs.replace(wanted, after_key=page[-1].key)


async def _parsed(
    store: Store, schedule: Schedule, stored: StoredSchedule, calendars: dict[str, Calendar], now: int
) -> ParsedSchedule:
    pause = stored.pause
    found = ParsedSchedule(
        schedule=schedule,
        rule=None,
        is_failing=pause is not None and pause.is_failing,
        is_left_over=pause is not None and pause.is_left_over,
        declared=stored.declared,
    )
    try:
        rule = rule_of(stored, calendars)
        blackout = blackout_of(stored, rule, calendars)
        part = _part(rule, stored, blackout)
        moved = tuple(each.to for each in pending(stored.occurrences) if each.to is not None)
        astray = await astray_of(store, schedule.app, stored, rule, blackout, now)
        return msgspec.structs.replace(found, rule=rule, part=part, moved=moved, astray=astray)
    except EvertickError as error:
        return msgspec.structs.replace(found, rule_error=str(error))


def _part(rule: When, stored: StoredSchedule, blackout: Calendar | None) -> When | None:
    """The rule without moments in a blackout and overridden ones; None: the whole rule."""
    part = rule if blackout is None else Within(rule, blackout)
    part = without_decided(part, stored.occurrences)
    return None if part is rule else part
