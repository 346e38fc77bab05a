"""Repair of what a wrong clock has left in the ledger."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime

import msgspec

from evertick.clock import Clock
from evertick.ledger.clock_repair import Astray, ClockRepairer
from evertick.store.base import Store
from evertick.when import from_us

__all__ = ["ClockRepair", "repair_clock"]


class ClockRepair(msgspec.Struct, frozen=True, kw_only=True):
    """The traces of a wrong clock in an app, and whether they were repaired."""

    app: str
    # By the store's clock.
    at: datetime
    is_repaired: bool
    # Between which times rows say that they were written, though these are still to come.
    wrong_from: datetime | None
    wrong_to: datetime | None
    schedules: tuple[Astray, ...]
    # By kind, how many rows: of a look at most as many as were counted.
    rows: dict[str, int]

    @property
    def is_empty(self) -> bool:
        return not self.schedules and not self.rows


async def repair_clock(
    store: Store,
    app: str,
    clock: Clock,
    tz: str,
    *,
    dry_run: bool = False,
    on_step: Callable[[int], None] = lambda _: None,
) -> ClockRepair:
    """Restart cursors that are far ahead, and let go what waits for a time that will not come. Nodes may go on running.

    Schedules are first, for rows tell which of them count from a wrong time. Stopped in the middle, it is called again.
    """
    repairer = ClockRepairer(store, app, clock, tz)
    traces = await repairer.traces()
    found, rows = [each async for each in repairer.schedules(traces)], dict(traces.rows)
    if not dry_run:
        for count, each in enumerate(found, 1):
            await repairer.repair(each, traces)
            on_step(count)
        rows = await repairer.mend_rows(traces, lambda mended: on_step(len(found) + mended))
    return ClockRepair(
        app=app,
        at=from_us(traces.now),
        is_repaired=not dry_run,
        wrong_from=None if traces.first_at is None else from_us(traces.first_at),
        wrong_to=None if traces.last_at is None else from_us(traces.last_at),
        schedules=tuple(found),
        rows=rows,
    )
