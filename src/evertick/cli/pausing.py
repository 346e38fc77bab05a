"""The commands pause and resume: of one schedule, or of all that have a label."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime

import click

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.output import as_json_option, hint, print_json, say
from evertick.cli.parameters import MomentParameter, labels_option
from evertick.cli.progress import progress
from evertick.cli.words import distance, now, span, stamp
from evertick.scheduler import Scheduler

__all__ = ["pause", "resume"]


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@labels_option
@click.option("--note", default="", help="Why; shown wherever the schedule is.")
@click.option("--until", type=MomentParameter(), help="Resume by itself then.")
@as_json_option
@on_store
async def pause(
    scheduler: Scheduler,
    key: str | None,
    labels: tuple[tuple[str, str], ...],
    note: str,
    until: datetime | None,
    as_json: bool,
) -> None:
    """Stop a schedule from firing, or all with a label.

    What runs, runs on; the moments that pass are recorded as skipped when the pause ends.

    \b
    Example:
      evertick pause report --note "the warehouse moves" --until 2h
      evertick pause report --until 2026-01-31T09:00:00Z
      evertick pause --label team=sales
    """
    if _is_many(key, labels):
        await _pause_many(scheduler, dict(labels), note, until, as_json)
        return
    assert key is not None
    schedule = await scheduler.pause(key, note=note, until=until)
    if as_json:
        print_json(schedule)
    else:
        say(f"paused {key}{_until_words(schedule.paused_until, f'`evertick resume {key}`')}")


async def _pause_many(
    scheduler: Scheduler, labels: Mapping[str, str], note: str, until: datetime | None, as_json: bool
) -> None:
    with progress("paused", is_quiet=as_json) as report:
        keys = await scheduler.pause_many(
            labels=labels, note=note, until=until, on_change=lambda _, count: report(count, None)
        )
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"paused {key}{_until_words(until, f'`evertick resume {key}`')}")
    if not keys:
        hint(f"no schedule that is not paused has {_words(labels)} in app {scheduler.app!r}")


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@labels_option
@as_json_option
@on_store
async def resume(scheduler: Scheduler, key: str | None, labels: tuple[tuple[str, str], ...], as_json: bool) -> None:
    """Let a paused schedule go on from now, or all with a label.

    The moments that have passed do not run.

    \b
    Example:
      evertick resume report
      evertick resume --label team=sales
    """
    if _is_many(key, labels):
        await _resume_many(scheduler, dict(labels), as_json)
        return
    assert key is not None
    before = await scheduler.schedule(key)
    schedule = await scheduler.resume(key)
    if as_json:
        print_json(schedule)
    elif not before.is_paused:
        say(f"{key} was not paused")
    else:
        next_fire = schedule.next_fire_at
        following = "" if next_fire is None else f"; next fire {stamp(next_fire)} ({distance(next_fire, now())})"
        stood = "" if before.paused_at is None else f" after {span(now() - before.paused_at)}"
        say(f"resumed {key}{stood}{following}")


async def _resume_many(scheduler: Scheduler, labels: Mapping[str, str], as_json: bool) -> None:
    with progress("resumed", is_quiet=as_json) as report:
        keys = await scheduler.resume_many(labels=labels, on_change=lambda _, count: report(count, None))
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"resumed {key}")
    if not keys:
        hint(f"no schedule that somebody paused has {_words(labels)} in app {scheduler.app!r}")


def _is_many(key: str | None, labels: tuple[tuple[str, str], ...]) -> bool:
    if (key is None) == (not labels):
        raise click.UsageError("name one schedule by its key, or several by --label")
    return key is None


def _until_words(until: datetime | None, otherwise: str) -> str:
    return f", until {otherwise}" if until is None else f" until {stamp(until)} ({distance(until, now())})"


def _words(labels: Mapping[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in labels.items())
