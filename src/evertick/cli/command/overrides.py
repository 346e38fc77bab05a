"""The commands about single moments: skip-next, move, run-early, undo, and backfill for past moments."""

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

_NOTE = click.option("--note", default="", help="The reason; stored with the override.")


@click.command("skip-next")
@click.argument("key", shell_complete=complete_keys)
@_NOTE
@as_json_option
@on_store
async def skip_next(scheduler: Scheduler, key: str, note: str, as_json: bool) -> None:
    """Skip the next moment of a schedule.

    When its time comes it is recorded as skipped (by_hand). A second call skips the moment after it, too.

    \b
    Example:
      evertick skip-next report --note "the numbers come late"
    """
    await _answer(scheduler, await scheduler.skip_next(key, note=note), as_json)


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.argument("moment", type=MomentParameter(), metavar="MOMENT")
@click.option("--to", type=MomentParameter(), required=True, help="The new time.")
@_NOTE
@moments_tz_option
@as_json_option
@on_store
async def move(scheduler: Scheduler, key: str, moment: datetime, to: datetime, note: str, as_json: bool) -> None:
    """Move one moment of a schedule to another time.

    MOMENT is a future moment, as `evertick preview` shows it. Other moments are not changed.

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

    Unlike trigger, it uses up that moment, which does not fire again at its time. Until a node has started the run,
    undo restores the moment.

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
    """Undo skip-next, move or run-early for one moment.

    The moment must be in the future. A run that was made early is cancelled, unless a node has started it, and the
    moment fires at its own time. Without MOMENT: the next moment with an override.

    \b
    Example:
      evertick undo report
    """
    await _answer(scheduler, await scheduler.undo(key, moment), as_json)


async def _answer(scheduler: Scheduler, schedule: Schedule, as_json: bool) -> None:
    """Print the overrides and the next fires."""
    if as_json:
        print_json(await show_data(scheduler, schedule))
        return
    moment = now()
    fires = [
        f"{stamp(each, is_exact=True)}  {distance(each, moment)}" for each in await upcoming_of(scheduler, schedule)
    ]
    overrides = [decision_words(each) for each in schedule.occurrences] or "none"
    print_facts([("Schedule", schedule.key), ("Overrides", overrides), ("Next fires", fires or "never")])


@click.command()
@click.argument("key", shell_complete=complete_keys)
@click.option(
    "--from", "start", type=MomentParameter(is_past=True), required=True, help="First moment, or a duration ago."
)
@click.option("--to", "end", type=MomentParameter(is_past=True), help="Last moment, or a duration ago; default: now.")
@click.option("--overlap", type=click.Choice(["allow"]), help="Run side by side instead of one after the other.")
@click.option("--pace", metavar="DURATION", help="The least time between two runs.")
@click.option("--args", type=ArgumentsParameter(), help="Arguments for these runs, as a JSON object.")
@click.option("--limit", type=click.IntRange(1), default=BACKFILL_MOST, show_default=True, help="Refuse more moments.")
@click.option("--dry-run", is_flag=True, help="Change nothing; count the moments.")
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
    """Run past moments that have no run.

    Makes one run after the other, in order; nodes do them, and without a live node it waits. It can be interrupted and
    called again: moments that have a run are left out. Exit code 1 if a run failed.

    \b
    Example:
      evertick backfill report --from 2026-01-01 --to 2026-01-31 --dry-run
      evertick backfill report --from 7d --overlap allow
    """
    options = {"start": start, "end": end or now(), "overlap": overlap, "pace": pace, "args": args, "limit": limit}
    last = await scheduler.backfill(key, **options, dry_run=True)
    if not dry_run:
        if last.to_make:
            await _hint_if_no_node(scheduler, key)
        last = await _run_to_end(scheduler.backfill(key, **options), last, as_json)
    if as_json:
        print_json({**msgspec.structs.asdict(last), "to_make": last.to_make})
    else:
        say(_words(last))
    if last.failed:
        raise click.exceptions.Exit(1)


async def _hint_if_no_node(scheduler: Scheduler, key: str) -> None:
    """Warn before waiting for runs that no node can do. Also with JSON, because the wait has no other sign."""
    schedule, moment = await scheduler.schedule(key), now()
    for node in await scheduler.nodes():
        if node_state(node, moment) == "alive" and schedule.task in node.tasks and schedule.queue in node.queues:
            return
    hint(
        f"note: no live node knows the task {schedule.task!r} and works on the queue {schedule.queue!r}; this waits "
        "until one is started, Ctrl-C ends it"
    )


async def _run_to_end(work: Backfill, counted: BackfillStep, as_json: bool) -> BackfillStep:
    """Run a backfill to its end, and show its progress. `counted`: the result of its dry run."""
    last = counted

    def interrupted() -> str:
        live = f", {last.live} of them not ended yet" if last.live else ""
        return f"made {last.made} of {_total(last)} runs{live}; call it again to continue"

    with note_if_interrupted(interrupted), progress(f"backfilling {counted.key}", is_quiet=as_json) as report:
        async with repeated(report, _total(counted)) as update:
            async for step in work:
                last = step
                update(step.done, _total(step))
    return last


def _total(step: BackfillStep) -> int:
    return step.moments - step.left_out


def _words(last: BackfillStep) -> str:
    existing = f"{last.left_out} of {last.moments} moments of {last.key} have a run already"
    if last.is_dry_run:
        return f"{existing}; {last.to_make} runs would be made"
    failed = f", {last.failed} of them failed" if last.failed else ""
    return f"{existing}; {last.made} runs were made{failed}"
