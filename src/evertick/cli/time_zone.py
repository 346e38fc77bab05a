"""The zone of a command, in which moments without a zone, like "2026-12-24 18:30", are read, and moments are shown.

It is the zone given with --tz, else that of the schedule that the command is about (by its key, or by one of its
runs), else that of this machine. Where each row is about the next fire of a schedule, each row has the zone of its own.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any
from zoneinfo import ZoneInfo

import click

from evertick.cli.named import PREFIX_LEAST
from evertick.cli.parameters import ZoneParameter
from evertick.errors import EvertickError
from evertick.operations.runs import runs_with_prefix
from evertick.operations.schedules import rule_zone
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.when import parse_when

__all__ = ["clock_of", "moments_tz_option", "with_zone", "zone_of_rule"]

_TZ = "moments_tz"

moments_tz_option = click.option(
    "--tz",
    _TZ,
    type=ZoneParameter(),
    help="The zone of times, as written and as shown; default: that of the schedule, else of this machine.",
)


async def clock_of(scheduler: Scheduler, given: dict[str, Any]) -> ZoneInfo | None:
    """The zone of a command with these parameters, of which --tz is taken; None: that of the machine."""
    zone: ZoneInfo | None = given.pop(_TZ, None)
    about = given.get("key") or given.get("run")
    return await _zone_of(scheduler, about) if zone is None and isinstance(about, str) else zone


def with_zone(given: dict[str, Any], zone: ZoneInfo | None) -> dict[str, Any]:
    """The parameters of a command, each moment of them with its zone."""
    bare = {name: value for name, value in given.items() if isinstance(value, datetime) and value.tzinfo is None}
    # Without a zone `astimezone` takes the wall clock to be that of the machine.
    placed = {name: value.astimezone() if zone is None else value.replace(tzinfo=zone) for name, value in bare.items()}
    return {**given, **placed}


def zone_of_rule(rule: str) -> ZoneInfo | None:
    """None: it cannot be read."""
    try:
        return parse_when(rule).zone
    except EvertickError:
        return None


async def _zone_of(scheduler: Scheduler, word: str) -> ZoneInfo | None:
    """The zone of the rule of a schedule, or of the schedule of a run; None if there is none that can be read."""
    zone = await call(scheduler, rule_zone, word)
    if zone is None and len(word) >= PREFIX_LEAST:
        for run in await call(scheduler, runs_with_prefix, word, limit=1):
            zone = None if run.schedule_key is None else await call(scheduler, rule_zone, run.schedule_key)
    return zone
