"""Commands about single moments of a schedule: skip-next, move, run-early, undo."""

from __future__ import annotations

from datetime import datetime

import click

from evertick.cli.candidates import complete_keys
from evertick.cli.command.history import row_of
from evertick.cli.command.runs import hint_if_stuck
from evertick.cli.command.schedules import show_data, upcoming_of
from evertick.cli.database import on_store
from evertick.cli.parameters import MomentParameter
from evertick.cli.show.output import as_json_option, print_facts, print_json, say
from evertick.cli.show.words import decision_words, distance, now, stamp
from evertick.cli.time_zone import moments_tz_option
from evertick.model import Schedule
from evertick.scheduler.scheduler import Scheduler

__all__ = ["move", "run_early", "skip_next", "undo"]

_NOTE = click.option("--note", default="", help="Why; kept with the decision.")


@click.command("skip-next")
@click.argument("key", shell_complete=complete_keys)
@_NOTE
@as_json_option
@on_store
async def skip_next(scheduler: Scheduler, key: str, note: str, as_json: bool) -> None:
    """Leave out the next moment of a schedule.

    When its time comes it is recorded as skipped, by hand. Called again, the one after it is skipped, too.

    \b
    Example:
      evertick skip-next report --note "the numbers come late"
    """
    await _answer(scheduler, await scheduler.skip_next(key, note=note), as_json)


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.argument("moment", type=MomentParameter(), metavar="MOMENT")
@click.option("--to", type=MomentParameter(), required=True, help="When it is to run instead.")
@_NOTE
@moments_tz_option
@as_json_option
@on_store
async def move(scheduler: Scheduler, key: str, moment: datetime, to: datetime, note: str, as_json: bool) -> None:
    """Let one moment of a schedule run at another time.

    MOMENT is one that is still to come, as `evertick preview` shows it; others stay as they are.

    \b
    Example:
      evertick move report 2026-12-24T09:00:00Z --to 2026-12-23T09:00:00Z
    """
    await _answer(scheduler, await scheduler.move(key, moment, to=to, note=note), as_json)


@click.command("run-early")
@click.argument("key", shell_complete=complete_keys)
@as_json_option
@on_store
async def run_early(scheduler: Scheduler, key: str, as_json: bool) -> None:
    """Run the next moment of a schedule now.

    Unlike trigger it is that moment, which then does not come again at its time. Until a node has begun it, undo gives
    the moment back.

    \b
    Example:
      evertick run-early report
    """
    run = await scheduler.run_early(key)
    if as_json:
        print_json(await row_of(scheduler, run))
        return
    say(f"{key} runs early: run {run.id}, for the moment {stamp(run.fire_at, is_exact=True)}")
    await hint_if_stuck(scheduler, run)


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.argument("moment", type=MomentParameter(), required=False, metavar="[MOMENT]")
@moments_tz_option
@as_json_option
@on_store
async def undo(scheduler: Scheduler, key: str, moment: datetime | None, as_json: bool) -> None:
    """Take back what was decided about one moment, until it happens.

    A skip, a move, or a run before its time that no node has begun yet: that run is cancelled, and the moment comes at
    its own time. Of this MOMENT, or of the next one about which something was decided.

    \b
    Example:
      evertick undo report
    """
    await _answer(scheduler, await scheduler.undo(key, moment), as_json)


async def _answer(scheduler: Scheduler, schedule: Schedule, as_json: bool) -> None:
    """What is decided, and what fires next by it."""
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    moment = now()
    fires = [
        f"{stamp(each, is_exact=True)}  {distance(each, moment)}" for each in await upcoming_of(scheduler, schedule)
    ]
    decided = [decision_words(each) for each in schedule.occurrences] or "nothing"
    print_facts([("Schedule", schedule.key), ("Decided", decided), ("Next fires", fires or "never")])
