"""The time zone of a command: it reads moments without a zone, like "2026-12-24 18:30", and shows moments in it.

The zone is that of --tz, else of the schedule that the command names (by its key or by one of its runs), else of this
machine. In a list of next fires, each row has the zone of its schedule.
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
    help="The zone in which times are read and shown; default: that of the schedule, else of this machine.",
)


async def clock_of(scheduler: Scheduler, given: dict[str, Any]) -> ZoneInfo | None:
    """The zone of a command with these parameters; --tz is removed from them. None: the zone of the machine."""
    zone: ZoneInfo | None = given.pop(_TZ, None)
    name = given.get("key") or given.get("run")
    return await _zone_of(scheduler, name) if zone is None and isinstance(name, str) else zone


def with_zone(given: dict[str, Any], zone: ZoneInfo | None) -> dict[str, Any]:
    """The parameters of a command, with a zone for each moment."""
    naive = {name: value for name, value in given.items() if isinstance(value, datetime) and value.tzinfo is None}
    # `astimezone` reads a moment without a zone in the zone of the machine.
    aware = {name: value.astimezone() if zone is None else value.replace(tzinfo=zone) for name, value in naive.items()}
    return {**given, **aware}


def zone_of_rule(rule: str) -> ZoneInfo | None:
    """The zone of a rule; None if the rule cannot be parsed."""
    try:
        return parse_when(rule).zone
    except EvertickError:
        return None


async def _zone_of(scheduler: Scheduler, word: str) -> ZoneInfo | None:
    """The zone of a schedule, or of the schedule of a run; None if neither exists, or its rule cannot be parsed."""
    zone = await call(scheduler, rule_zone, word)
    if zone is None and len(word) >= PREFIX_LEAST:
        for run in await call(scheduler, runs_with_prefix, word, limit=1):
            zone = None if run.schedule_key is None else await call(scheduler, rule_zone, run.schedule_key)
    return zone
