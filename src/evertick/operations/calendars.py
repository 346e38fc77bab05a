"""Named calendars: kept in the store, shared by the schedules of an app."""

from __future__ import annotations

from evertick.errors import InvalidInput, NotFound, Refused
from evertick.ledger.parsed_rules import load_calendars
from evertick.operations.context import Managing
from evertick.text.values import shown
from evertick.when import Calendar
from evertick.when.base import check_name

__all__ = ["ManagesCalendars"]

_USERS_MOST = 100_000
_USERS_SHOWN = 10


class ManagesCalendars(Managing):
    """What people do with calendars."""

    async def set_calendar(self, calendar: Calendar) -> None:
        """Define or change a named calendar. Schedules that use it go by it from now on."""
        check_calendar(calendar)
        await self._editor(await self._store()).put_calendar(calendar)
        self._wake_fires()

    async def calendars(self) -> list[Calendar]:
        """The named calendars, by name."""
        return list((await load_calendars(await self._store(), self.app)).values())

    async def calendar(self, name: str) -> Calendar:
        """One calendar. Raises NotFound."""
        found = (await load_calendars(await self._store(), self.app)).get(check_name(name, what="calendar"))
        if found is None:
            raise NotFound(f"there is no calendar {name!r} in app {self.app!r}")
        return found

    async def calendar_users(self, name: str) -> list[str]:
        """The keys of the schedules that use a calendar, in their rule or as their blackout. Raises NotFound."""
        await self.calendar(name)
        return await (await self._store()).calendar_users(self.app, name, limit=_USERS_MOST)

    async def remove_calendar(self, name: str) -> None:
        """Forget a calendar. Refused while a schedule uses it."""
        await self.calendar(name)
        store = await self._store()
        if await store.remove_calendar(self.app, name):
            return
        users = await store.calendar_users(self.app, name, limit=_USERS_SHOWN + 1)
        if not users:
            raise NotFound(f"there is no calendar {name!r} in app {self.app!r} any more; somebody has removed it")
        shown = ", ".join(map(repr, users[:_USERS_SHOWN])) + (" and others" if len(users) > _USERS_SHOWN else "")
        raise Refused(f"calendar {name!r} is used by {shown}; change or remove these first")


def check_calendar(calendar: object) -> None:
    if not isinstance(calendar, Calendar):
        raise InvalidInput(f"calendar: {shown(calendar)} is no Calendar")
