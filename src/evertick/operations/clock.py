"""Repairs times that a wrong clock has written to the ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from evertick.ledger.clock_repair import Astray, ClockRepairer
from evertick.operations.context import Context
from evertick.when import from_us

__all__ = ["ClockRepair", "repair_clock"]


class ClockRepair(msgspec.Struct, frozen=True, kw_only=True):
    """Wrong times in an app, and whether they were repaired."""

    app: str
    # By the store's clock.
    at: datetime
    is_repaired: bool
    # The first and last write time in the future.
    wrong_from: datetime | None
    wrong_to: datetime | None
    schedules: tuple[Astray, ...]
    # Rows by kind; in a dry run, at most as many as the store counts.
    rows: dict[str, int]

    @property
    def is_empty(self) -> bool:
        return not self.schedules and not self.rows


async def repair_clock(
    context: Context,
    app: str | None = None,
    *,
    dry_run: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> ClockRepair:
    """Restart cursors that are far ahead, and make runs due that wait for a wrong time. Nodes may be running.

    Schedules come first, because the rows show which of them count from a wrong time. After an interruption, call it
    again. `app`: another app of the database.
    """
    context = context if app is None else context.for_app(app)
    repairer = ClockRepairer(context.store, context.app, context.clock, context.settings.tz)
    traces = await repairer.traces()
    found, rows = [each async for each in repairer.schedules(traces)], dict(traces.rows)
    if not dry_run:
        for count, each in enumerate(found, 1):
            await repairer.repair(each, traces)
            on_step(count)
        rows = await repairer.mend_rows(traces, lambda mended: on_step(len(found) + mended))
    return ClockRepair(
        app=context.app,
        at=from_us(traces.now),
        is_repaired=not dry_run,
        wrong_from=None if traces.first_at is None else from_us(traces.first_at),
        wrong_to=None if traces.last_at is None else from_us(traces.last_at),
        schedules=tuple(found),
        rows=rows,
    )
