"""Overrides of single moments: skip the next, move one, run the next early, undo an override."""

from __future__ import annotations

from datetime import datetime

from evertick.definition.settings import check_key
from evertick.model import Run, Schedule
from evertick.operations.context import Context, check_note, checked
from evertick.operations.runs import get_run
from evertick.operations.schedules import schedule
from evertick.when import to_us

__all__ = ["move", "run_early", "skip_next", "undo"]


@checked(key=check_key, note=check_note)
async def skip_next(context: Context, key: str, *, note: str = "") -> Schedule:
    """Skip the next moment. When it comes, it is recorded as a gap: skipped, by hand."""
    await context.override_editor().skip_next(key, note=note)
    context.wake_fires()
    return await schedule(context, key)


@checked(key=check_key, fire_at=to_us, to=to_us, note=check_note)
async def move(context: Context, key: str, fire_at: datetime, *, to: datetime, note: str = "") -> Schedule:
    """Move the future moment `fire_at` of the schedule to another time, earlier or later."""
    await context.override_editor().move(key, to_us(fire_at), to=to_us(to), note=note)
    context.wake_fires()
    return await schedule(context, key)


@checked(key=check_key)
async def run_early(context: Context, key: str) -> Run:
    """Run the next moment now instead of at its time. Refused while paused, or if overlap forbids it."""
    run_id = await context.override_editor().run_early(key)
    context.wake_fires()
    context.wake_runs()
    return await get_run(context, run_id)


@checked(key=check_key, fire_at=to_us)
async def undo(context: Context, key: str, fire_at: datetime | None = None) -> Schedule:
    """Undo a skip, a move or an early run, of this moment or of the next overridden one.

    Possible until the moment or its new time has come, and for an early run until a node has started it.
    """
    await context.override_editor().undo(key, None if fire_at is None else to_us(fire_at))
    context.wake_fires()
    context.wake_runs()  # runs that the early run blocked may start
    return await schedule(context, key)
