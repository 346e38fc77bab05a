"""Looking ahead: the fires to come."""

from __future__ import annotations

from datetime import datetime

import msgspec

from evertick.manage.schedules import ManagesSchedules
from evertick.rules import load_calendars, rule_of
from evertick.when import from_us, upcoming_over

__all__ = ["Foresees", "Planned"]

_PAGE = 1_000


class Planned(msgspec.Struct, frozen=True, kw_only=True):
    """A fire to come."""

    fire_at: datetime
    key: str
    task: str


class Foresees(ManagesSchedules):
    """What is going to happen."""

    async def preview(
        self, *, count: int = 10, until: datetime | None = None, after: datetime | None = None, key: str | None = None
    ) -> list[Planned]:
        """The next fires over all schedules that are not paused (or of one), in order."""
        store = await self._store()
        schedules = [await self.schedule(key)] if key is not None else await self.schedules(is_paused=False)
        calendars = await load_calendars(store, self.app)
        rules, tasks, left = {}, {}, {}
        for start in range(0, len(schedules), _PAGE):
            keys = [schedule.key for schedule in schedules[start : start + _PAGE]]
            for stored in await store.stored_schedules(self.app, keys=keys):
                if stored.fire_at is not None:
                    rules[stored.key] = rule_of(stored, calendars)
                    tasks[stored.key] = stored.definition.task
                    if (most := rules[stored.key].bounds.max_fires) is not None:
                        left[stored.key] = most - stored.fires
        since = after if after is not None else from_us(await store.now())
        upcoming = upcoming_over(rules, since, count=count, until=until, most=left)
        return [Planned(fire_at=moment, key=each, task=tasks[each]) for moment, each in upcoming]
