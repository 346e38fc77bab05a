"""Commands about single moments: skip-next, move, run-early and undo, and backfill of moments that passed."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import click
import msgspec

from evertick.cli.command.completion import complete_keys
from evertick.cli.command.runs import hint_if_stuck, row_of
from evertick.cli.command.schedules import show_data, upcoming_of
from evertick.cli.database import on_store
from evertick.cli.parameters import ArgumentsParameter, MomentParameter
from evertick.cli.show.output import as_json_option, hint, print_facts, print_json, say
from evertick.cli.show.progress import note_if_interrupted, progress, repeated
from evertick.cli.show.words import decision_words, distance, now, stamp
from evertick.cli.time_zone import moments_tz_option
from evertick.doctor.nodes import node_state
from evertick.model import Schedule
from evertick.operations.backfills import BACKFILL_MOST, Backfill, BackfillStep
from evertick.scheduler.scheduler import Scheduler

__all__ = [
    "backfill",
    "move",
    "run_early",
    "skip_next",
    "undo",
]

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
    """Print the decisions, and the next fires with them."""
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    moment = now()
    fires = [
        f"{stamp(each, is_exact=True)}  {distance(each, moment)}" for each in await upcoming_of(scheduler, schedule)
    ]
    decided = [decision_words(each) for each in schedule.occurrences] or "nothing"
    print_facts([("Schedule", schedule.key), ("Decided", decided), ("Next fires", fires or "never")])


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option("--from", "start", type=MomentParameter(is_past=True), required=True, help="The first; a duration: ago.")
@click.option("--to", "end", type=MomentParameter(is_past=True), help="The last; a duration: ago; default: now.")
@click.option("--overlap", type=click.Choice(["allow"]), help="Side by side instead of one after the other.")
@click.option("--pace", metavar="DURATION", help="At least so far apart.")
@click.option("--args", type=ArgumentsParameter(), help="Arguments for these runs, as a JSON object.")
@click.option("--limit", type=click.IntRange(1), default=BACKFILL_MOST, show_default=True, help="So many moments.")
@click.option("--dry-run", is_flag=True, help="Only count.")
@moments_tz_option
@as_json_option
@on_store
async def backfill(
    scheduler: Scheduler,
    key: str,
    start: datetime,
    end: datetime | None,
    overlap: Any,
    pace: str | None,
    args: dict[str, Any] | None,
    limit: int,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Make up for moments of the past that got no run.

    One after the other and in order, each when the one before has ended; nodes carry them out, and without one it
    waits. It may be broken off, and asked for again: what has a run is left out. Exit code 1 if any of them failed.

    \b
    Example:
      evertick backfill report --from 2026-01-01 --to 2026-01-31 --dry-run
      evertick backfill report --from 7d --overlap allow
    """
    wish = {"start": start, "end": end or now(), "overlap": overlap, "pace": pace, "args": args, "limit": limit}
    last = await scheduler.backfill(key, **wish, dry_run=True)
    if not dry_run:
        if last.to_make:
            await _hint_if_no_node(scheduler, key)
        last = await _made(scheduler.backfill(key, **wish), last, as_json)
    if as_json:
        print_json({**msgspec.structs.asdict(last), "to_make": last.to_make})
    else:
        say(_words(last))
    if last.failed:
        raise click.exceptions.Exit(1)


async def _hint_if_no_node(scheduler: Scheduler, key: str) -> None:
    """Warn before a wait for runs that no node can carry out. Beside JSON, too: else the wait has no reason."""
    schedule, moment = await scheduler.schedule(key), now()
    for node in await scheduler.nodes():
        if node_state(node, moment) == "alive" and schedule.task in node.tasks and schedule.queue in node.queues:
            return
    hint(
        f"note: no live node knows the task {schedule.task!r} and works on the queue {schedule.queue!r}; this waits "
        "until one is started, Ctrl-C breaks it off"
    )


async def _made(work: Backfill, counted: BackfillStep, as_json: bool) -> BackfillStep:
    """Go through a backfill, and tell how far it is. Nothing is known of it before its first run: what was counted."""
    last = counted

    def broken_off() -> str:
        live = f", {last.live} of them not ended yet" if last.live else ""
        return f"made {last.made} of {_total(last)}{live}; ask again to go on"

    with note_if_interrupted(broken_off), progress(f"backfilling {counted.key}", is_quiet=as_json) as report:
        async with repeated(report, _total(counted)) as tell:
            async for step in work:
                last = step
                tell(step.done, _total(step))
    return last


def _total(step: BackfillStep) -> int:
    return step.moments - step.left_out


def _words(last: BackfillStep) -> str:
    had = f"{last.left_out} of {last.moments} moments of {last.key} have a run already"
    if last.is_dry_run:
        return f"{had}; {last.to_make} would be made"
    failed = f", {last.failed} of them failed" if last.failed else ""
    return f"{had}; {last.made} were made{failed}"
