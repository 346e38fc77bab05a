"""The health and the findings of an app, the time of its store, and the apps of the database."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import msgspec

from evertick.doctor import examine
from evertick.doctor.finding import Finding
from evertick.doctor.health import AppHealth, health_of, look, problems_of, with_schedules
from evertick.doctor.snapshot import Frame, frame_of
from evertick.doctor.thresholds import Thresholds
from evertick.operations.context import Context, check_limit, checked
from evertick.when import from_us

__all__ = ["AppStatus", "app_status", "apps", "findings", "snapshot", "store_time"]


class AppStatus(msgspec.Struct, frozen=True, kw_only=True):
    """The figures of an app, and its warnings and errors, the worst first."""

    health: AppHealth
    problems: list[Finding]


@checked(limit=check_limit)
async def apps(context: Context, *, limit: int = 100) -> list[str]:
    """The apps of this database with a schedule, a node or a run, by name."""
    return await context.store.apps(limit=limit)


async def store_time(context: Context) -> datetime:
    """The time of the store's clock."""
    return from_us(await context.store.now())


async def app_status(
    context: Context, thresholds: Thresholds, *, killed: Mapping[str, int] | None = None, seconds_most: float
) -> AppStatus:
    """The health of the app, for monitors. Schedules are checked one by one for at most `seconds_most`.

    `killed`, here and below: the process id by node id, for nodes whose process is gone from this machine.
    """
    evidence = await look(context.store, context.app, killed=killed)
    evidence = await with_schedules(evidence, context.store, seconds_most=seconds_most)
    return AppStatus(health=health_of(evidence), problems=problems_of(evidence, thresholds))


async def snapshot(context: Context, *, killed: Mapping[str, int] | None = None) -> Frame:
    """A frame of `evertick top`: running jobs, the next fires, the last results, the nodes and the problems."""
    return await frame_of(context.store, context.app, killed or {})


async def findings(context: Context, *, killed: Mapping[str, int] | None = None) -> list[Finding]:
    """The findings of the doctor about the app: problems and how to fix them."""
    return await examine(context.store, context.app, from_us(context.clock.now_us()), killed=killed)
