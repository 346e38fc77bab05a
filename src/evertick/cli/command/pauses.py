"""The commands pause and resume: of one schedule, or of all that have a label."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import datetime

import click

from evertick.cli.candidates import complete_keys
from evertick.cli.database import on_store
from evertick.cli.parameters import MomentParameter, labels_option
from evertick.cli.show.output import as_json_option, hint, print_json, say
from evertick.cli.show.plan import (
    checked_days,
    days_option,
    dry_run_option,
    plan_data,
    print_plan,
    say_nothing_changed,
)
from evertick.cli.show.progress import progress, told_if_broken_off
from evertick.cli.show.words import distance, now, stamp
from evertick.cli.time_zone import moments_tz_option
from evertick.operations.bulk import OnChange
from evertick.scheduler.scheduler import Scheduler
from evertick.text.time_span import span

__all__ = ["pause", "resume"]


@click.command()
@click.argument("key", required=False, shell_complete=complete_keys)
@labels_option
@click.option("--note", default="", help="Why; shown wherever the schedule is.")
@click.option("--until", type=MomentParameter(), help="Resume by itself then.")
@dry_run_option
@days_option
@moments_tz_option
@as_json_option
@on_store
async def pause(
    scheduler: Scheduler,
    key: str | None,
    labels: tuple[tuple[str, str], ...],
    note: str,
    until: datetime | None,
    dry_run: bool,
    days: int | None,
    as_json: bool,
) -> None:
    """Stop a schedule from firing, or all with a label.

    What runs, runs on; the moments that pass are recorded as skipped when the pause ends. With --dry-run nothing is
    written: it shows which fires would not come.

    \b
    Example:
      evertick pause report --note "the warehouse moves" --until 2h
      evertick pause report --until 2026-01-31T09:00:00Z
      evertick pause --label team=sales
      evertick pause report --until 48h --dry-run
    """
    is_many, look_days = _is_many(key, labels), checked_days(days, dry_run)
    if dry_run:
        await _look(scheduler, key, dict(labels), until, look_days, as_json)
        return
    if is_many:
        await _pause_many(scheduler, dict(labels), note, until, as_json)
        return
    assert key is not None
    schedule = await scheduler.pause(key, note=note, until=until)
    if as_json:
        print_json(schedule)
    else:
        say(f"paused {key}{_until_words(schedule.paused_until, f'`evertick resume {key}`')}")


async def _look(
    scheduler: Scheduler,
    key: str | None,
    labels: Mapping[str, str],
    until: datetime | None,
    days: int,
    as_json: bool,
) -> None:
    """What a pause would do: of one schedule its fires, of many a sentence each."""
    if key is not None:
        print_plan(await scheduler.preview_change(key, pause=True, until=until, days=days), as_json)
        return
    found, plans = await scheduler.schedules(labels=labels, is_paused=False), []
    with progress("looked at", is_quiet=as_json) as report:
        for count, schedule in enumerate(found, 1):
            plans.append(await scheduler.preview_change(schedule.key, pause=True, until=until, days=days))
            report(count, len(found))
    if as_json:
        print_json([plan_data(plan) for plan in plans])
        return
    for plan in plans:
        say(plan.words())
    if plans:
        say_nothing_changed()
    else:
        _hint_nothing_to_pause(scheduler, labels)


def _hint_nothing_to_pause(scheduler: Scheduler, labels: Mapping[str, str]) -> None:
    hint(f"no schedule that is not paused has {_words(labels)} in app {scheduler.app!r}")


async def _pause_many(
    scheduler: Scheduler, labels: Mapping[str, str], note: str, until: datetime | None, as_json: bool
) -> None:
    with _counted("paused", as_json) as on_change:
        keys = await scheduler.pause_many(labels=labels, note=note, until=until, on_change=on_change)
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"paused {key}{_until_words(until, f'`evertick resume {key}`')}")
    if not keys:
        _hint_nothing_to_pause(scheduler, labels)


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
    with _counted("resumed", as_json) as on_change:
        keys = await scheduler.resume_many(labels=labels, on_change=on_change)
    if as_json:
        print_json(keys)
        return
    for key in keys:
        say(f"resumed {key}")
    if not keys:
        hint(f"no schedule that somebody paused has {_words(labels)} in app {scheduler.app!r}")


@contextmanager
def _counted(verb: str, as_json: bool) -> Iterator[OnChange]:
    """Tell how many it were until now, also when somebody breaks it off."""
    changed = 0

    with (
        told_if_broken_off(lambda: f"{verb} {changed}; ask again to go on"),
        progress(verb, is_quiet=as_json) as report,
    ):

        def on_change(_: str, count: int) -> None:
            nonlocal changed
            changed = count
            report(count, None)

        yield on_change


def _is_many(key: str | None, labels: tuple[tuple[str, str], ...]) -> bool:
    if (key is None) == (not labels):
        raise click.UsageError("name one schedule by its key, or several by --label")
    return key is None


def _until_words(until: datetime | None, otherwise: str) -> str:
    return f", until {otherwise}" if until is None else f" until {stamp(until)} ({distance(until, now())})"


def _words(labels: Mapping[str, str]) -> str:
    return " and ".join(f"{name}={value}" for name, value in labels.items())
