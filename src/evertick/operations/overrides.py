"""Single moments of a schedule: skip the next, move one, run the next early, take a decision back."""

from __future__ import annotations

from datetime import datetime

from evertick.definition.settings import check_key
from evertick.model import Run, Schedule
from evertick.operations.context import Context, check_note
from evertick.operations.runs import get_run
from evertick.operations.schedules import schedule
from evertick.when import to_us

__all__ = ["move", "run_early", "skip_next", "undo"]


async def skip_next(context: Context, key: str, *, note: str = "") -> Schedule:
    """The next moment will not run. When it comes it is a gap: skipped, by hand."""
    await context.override_editor().skip_next(check_key(key), note=check_note(note))
    context.wake_fires()
    return await schedule(context, key)


async def move(context: Context, key: str, fire_at: datetime, *, to: datetime, note: str = "") -> Schedule:
    """The moment `fire_at` of the schedule, which is still to come, runs at another time, earlier or later."""
    await context.override_editor().move(check_key(key), to_us(fire_at), to=to_us(to), note=check_note(note))
    context.wake_fires()
    return await schedule(context, key)


async def run_early(context: Context, key: str) -> Run:
    """Run the next moment now instead of at its time. Refused while paused, or while overlap forbids it."""
    run_id = await context.override_editor().run_early(check_key(key))
    context.wake_fires()
    context.wake_runs()
    return await get_run(context, run_id)


async def undo(context: Context, key: str, fire_at: datetime | None = None) -> Schedule:
    """Take back a skip, a move or a run before its time: of this moment, or the next one there is.

    Until it happens: a skip or a move until its time has come, a run that was made early until a node has begun it.
    """
    await context.override_editor().undo(check_key(key), None if fire_at is None else to_us(fire_at))
    context.wake_fires()
    context.wake_runs()  # what an early run held up may start
    return await schedule(context, key)
