"""Moments that were written without a zone, like "2026-12-24 18:30": read by the clock of whoever is meant.

That is the zone given with --tz, else that of the schedule that the command is about, else that of this machine.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from evertick.cli.parameters import ZoneParameter
from evertick.scheduler import Scheduler
from evertick.survey import survey

__all__ = ["moments_tz_option", "with_zone", "zone_of"]

_TZ = "moments_tz"

moments_tz_option = click.option(
    "--tz",
    _TZ,
    type=ZoneParameter(),
    help="The zone of times written without one; default: that of the schedule, else of this machine.",
)


async def with_zone(scheduler: Scheduler, given: dict[str, Any]) -> dict[str, Any]:
    """The parameters of a command, each moment of them with its zone."""
    zone = given.pop(_TZ, None)
    bare = {name: value for name, value in given.items() if isinstance(value, datetime) and value.tzinfo is None}
    if not bare:
        return given
    if zone is None:
        zone = await zone_of(scheduler, given.get("key") or given.get("run"))
    # Without a zone `astimezone` takes the wall clock to be that of the machine.
    placed = {name: value.astimezone() if zone is None else value.replace(tzinfo=zone) for name, value in bare.items()}
    return {**given, **placed}


async def zone_of(scheduler: Scheduler, key: str | None) -> ZoneInfo | None:
    """The zone of the rule of a schedule, where there is one that can be read."""
    if key is None:
        return None
    async for each in survey(await scheduler._store(), scheduler.app, keys=[key]):
        return None if each.rule is None else each.rule.zone
    return None
