"""Named calendars: kept in the store, shared by the schedules of an app."""

from __future__ import annotations

from evertick.errors import InvalidInput
from evertick.manage.base import Managing
from evertick.rules import load_calendars
from evertick.when import Calendar

__all__ = ["ManagesCalendars"]


class ManagesCalendars(Managing):
    """What people do with calendars."""

    async def set_calendar(self, calendar: Calendar) -> None:
        """Define or change a named calendar. Schedules that use it go by it from now on."""
        if not isinstance(calendar, Calendar):
            raise InvalidInput(f"calendar: {calendar!r} is no Calendar")
        await self._editor(await self._store()).put_calendar(calendar)
        self._wake_fires()

    async def calendars(self) -> list[Calendar]:
        return list((await load_calendars(await self._store(), self.app)).values())
