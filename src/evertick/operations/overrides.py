"""Single moments of a schedule: skip the next, move one, run the next early, take a decision back."""

from __future__ import annotations

from datetime import datetime

from evertick.definition.settings import check_key
from evertick.ledger.override_editor import OverrideEditor
from evertick.model import Run, Schedule
from evertick.operations.context import check_note
from evertick.operations.schedules import ManagesSchedules
from evertick.when import to_us

__all__ = ["ManagesOccurrences"]


class ManagesOccurrences(ManagesSchedules):
    """What people decide about single moments."""

    async def skip_next(self, key: str, *, note: str = "") -> Schedule:
        """The next moment will not run. When it comes it is a gap: skipped, by hand."""
        await (await self._decider()).skip_next(check_key(key), note=check_note(note))
        self._wake_fires()
        return await self.schedule(key)

    async def move(self, key: str, fire_at: datetime, *, to: datetime, note: str = "") -> Schedule:
        """The moment `fire_at` of the schedule, which is still to come, runs at another time, earlier or later."""
        await (await self._decider()).move(check_key(key), to_us(fire_at), to=to_us(to), note=check_note(note))
        self._wake_fires()
        return await self.schedule(key)

    async def run_early(self, key: str) -> Run:
        """Run the next moment now instead of at its time. Refused while paused, or while overlap forbids it."""
        run_id = await (await self._decider()).run_early(check_key(key))
        self._wake_fires()
        self._wake_runs()
        return await self.get_run(run_id)

    async def undo(self, key: str, fire_at: datetime | None = None) -> Schedule:
        """Take back a skip, a move or a run before its time: of this moment, or the next one there is.

        Until it happens: a skip or a move until its time has come, a run that was made early until a node has begun it.
        """
        await (await self._decider()).undo(check_key(key), None if fire_at is None else to_us(fire_at))
        self._wake_fires()
        self._wake_runs()  # what an early run held up may start
        return await self.schedule(key)

    async def _decider(self) -> OverrideEditor:
        return OverrideEditor(
            await self._store(), self.app, self._clock, self.settings.tz, self.settings.schedule_limits
        )
