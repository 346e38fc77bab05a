"""The commands status and doctor: findings, which the doctor computes, for monitors and for people."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from enum import IntEnum
from typing import Any, NoReturn

import click
import msgspec
from msgspec.structs import replace

from evertick.cli.command.db import care_of
from evertick.cli.database import (
    Ledger,
    app_option,
    check_exists,
    config_option,
    daemons_of,
    database_option,
    killed_daemons_of,
    ledger_of,
)
from evertick.cli.exits import EXIT_UNKNOWN
from evertick.cli.parameters import DurationParameter
from evertick.cli.show.output import Column, as_json_option, clean, print_facts, print_json, print_table, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import counted, distance, stamp
from evertick.config.load import guess_ledger
from evertick.daemon.pending_reload import daemon_findings
from evertick.daemon.report import DaemonReport
from evertick.definition.settings import check_key
from evertick.doctor import Finding, Severity, about_store, examine_database
from evertick.doctor.finding import named
from evertick.doctor.health import AppHealth
from evertick.doctor.thresholds import Thresholds
from evertick.errors import EvertickError, InvalidConfiguration, Refused, StoreRefused, StoreUnavailable
from evertick.operations.health import AppStatus, app_status, findings
from evertick.scheduler.operation import call
from evertick.store.base import Maintenance
from evertick.text.time_span import span

__all__ = ["Grade", "doctor", "grade_of", "problem_data", "status"]

_DEFAULTS = Thresholds()


class Grade(IntEnum):
    """As monitors count them; the value is the exit code."""

    OK = 0
    WARNING = 1
    CRITICAL = 2
    UNKNOWN = EXIT_UNKNOWN


_GRADES = {Severity.ERROR: Grade.CRITICAL, Severity.WARNING: Grade.WARNING, Severity.NOTE: Grade.OK}
_STYLES = {Grade.OK: "bold green", Grade.WARNING: "bold yellow", Grade.CRITICAL: "bold red", Grade.UNKNOWN: "bold red"}


def grade_of(problems: list[Finding]) -> Grade:
    """That of the worst."""
    return max((_GRADES[problem.severity] for problem in problems), default=Grade.OK)


def problem_data(problem: Finding) -> dict[str, Any]:
    grade = _GRADES[problem.severity].name.lower()
    return {"grade": grade, "check": problem.check, "what": problem.what, "fix": problem.fix}


# --- status ----------------------------------------------------------------------------------------------------------


class _WrittenWrongly(click.UsageError):
    exit_code = Grade.UNKNOWN


class Monitored(click.Command):
    """A command whose exit codes are those of monitors: what is written wrongly is unknown, and not critical."""

    def make_context(
        self, info_name: str | None, args: list[str], parent: click.Context | None = None, **extra: Any
    ) -> click.Context:
        try:
            return super().make_context(info_name, args, parent, **extra)
        except click.UsageError as error:
            raise _WrittenWrongly(error.format_message(), error.ctx) from error


@click.command(cls=Monitored)
@click.option("--lag-warning", type=DurationParameter(), default="1m", show_default=True, help="Warn from this lag on.")
@click.option(
    "--lag-critical", type=DurationParameter(), default="10m", show_default=True, help="Critical from this lag on."
)
@click.option(
    "--failed-warning",
    type=click.IntRange(0),
    default=_DEFAULTS.failed_warning,
    show_default=True,
    help="Warn at so many failed or lost runs in the last hour; 0: never.",
)
@click.option(
    "--failed-critical",
    type=click.IntRange(0),
    default=_DEFAULTS.failed_critical,
    show_default=True,
    help="Critical at so many failed or lost runs in the last hour; 0: never.",
)
@click.option(
    "--timeout", type=DurationParameter(least="100ms"), default="10s", show_default=True, help="Give up after this."
)
@as_json_option
@database_option
@app_option
@config_option
def status(
    timeout: timedelta,
    as_json: bool,
    database: str | None,
    app: str | None,
    config: str | None,
    **limits: Any,
) -> None:
    """Tell whether all is well, also to monitors.

    Nodes, lag, what waits, what failed lately. The first line says the worst of it, with figures behind a bar. Exit
    codes: 0 ok, 1 warning, 2 critical, 3 unknown.

    \b
    Example:
      evertick status
      evertick status --lag-warning 30s --failed-warning 0
      evertick status --json | jq .problems
    """
    thresholds = Thresholds(**limits)
    try:
        ledger, daemons = _asked(database, app, config)
        found = asyncio.run(_look(ledger, thresholds, timeout))
    except (EvertickError, TimeoutError) as error:
        _end_without(error, timeout, as_json)
    health, problems = found.health, [*found.problems, *daemon_findings(daemons)]
    grade = grade_of(problems)
    if as_json:
        print_json({**_head(grade, _summary(health, problems), problems), **_data(health, daemons)})
    else:
        _print_status(health, daemons, problems, thresholds, grade)
    raise click.exceptions.Exit(grade)


def _asked(database: str | None, app: str | None, config: str | None) -> tuple[Ledger, list[DaemonReport]]:
    """The ledger, and the daemons that keep it on this machine.

    A file that became wrong under a running daemon says not for sure where its ledger is; the daemon does.
    """
    try:
        ledger = ledger_of(database, app, config)
        return ledger, daemons_of(ledger)
    except InvalidConfiguration as wrong:
        guessed = guess_ledger(config)
        if guessed is None:
            raise
        ledger = Ledger(url=guessed.database_url, app=app or guessed.app, state_directory=guessed.state_directory)
        file = str(guessed.file.absolute())
        daemons = [each for each in daemons_of(ledger) if each.config == file]
        if not daemons:
            raise
        return ledger, [replace(each, problems=each.problems or wrong.problems) for each in daemons]


async def _look(ledger: Ledger, thresholds: Thresholds, timeout: timedelta) -> AppStatus:
    """Half of the time is for looking at the schedules one by one; of very many the others are left out."""
    scheduler = ledger.scheduler()
    check_exists(scheduler.settings.url, ledger.searched)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            seconds = timeout.total_seconds() / 2
            return await call(scheduler, app_status, thresholds, killed=_killed(ledger), seconds_most=seconds)
    finally:
        await scheduler.close()


def _killed(ledger: Ledger) -> dict[str, int]:
    return {each.node_id: each.pid for each in killed_daemons_of(ledger)}


def _end_without(error: Exception, timeout: timedelta, as_json: bool) -> NoReturn:
    """A store that is away stops everything; that there is none, or none of that name, says nothing."""
    is_away = isinstance(error, StoreUnavailable | TimeoutError)
    grade = Grade.CRITICAL if is_away else Grade.UNKNOWN
    what = f"the database did not answer within {span(timeout)}" if isinstance(error, TimeoutError) else str(error)
    if as_json:
        print_json(_head(grade, what, []))
    else:
        say((grade.name, _STYLES[grade]), f": {clean(what)}")
    raise click.exceptions.Exit(grade)


def _data(health: AppHealth, daemons: list[DaemonReport]) -> dict[str, Any]:
    """Without what the jobs of daemons do, which are digests for `apply`."""
    each_told = [msgspec.structs.asdict(each) for each in daemons]
    told = [{name: value for name, value in each.items() if name != "does"} for each in each_told]
    return {**msgspec.structs.asdict(health), "daemons": told}


def _head(grade: Grade, summary: str, problems: list[Finding]) -> dict[str, Any]:
    told = [problem_data(each) for each in problems]
    return {"status": grade.name.lower(), "exit_code": int(grade), "summary": clean(summary), "problems": told}


def _summary(health: AppHealth, problems: list[Finding]) -> str:
    if problems:
        more = len(problems) - 1
        return problems[0].what + (f" (and {more} more)" if more else "")
    count = len(health.living)
    return (
        f"{count} {'node' if count == 1 else 'nodes'} alive, {_schedules(health)}, lag {_lag(health)}, "
        f"{counted(health.running)} running, {counted(health.waiting)} waiting"
    )


def _figures(health: AppHealth, thresholds: Thresholds) -> str:
    """As plugins of monitors write them: name=value[unit];warning;critical."""
    lag = f"{thresholds.lag_warning.total_seconds():g};{thresholds.lag_critical.total_seconds():g}"
    failed = ";".join(str(count or "") for count in (thresholds.failed_warning, thresholds.failed_critical))
    figures = {
        "nodes": f"{len(health.living)}",
        "lag": f"{health.lag_seconds:.3f}s;{lag}",
        "running": f"{health.running}",
        "waiting": f"{health.waiting}",
        "blocked": f"{health.blocked}",
        "parked": f"{health.parked}",
        "dispatched": f"{health.dispatched}",
        "failed": f"{health.failed};{failed}",
        "lost": f"{health.lost}",
    }
    return " ".join(f"{name}={value}" for name, value in figures.items())


def _schedules(health: AppHealth) -> str:
    return f"{health.schedules} {'schedule' if health.schedules == 1 else 'schedules'}"


def _lag(health: AppHealth) -> str:
    return span(timedelta(seconds=health.lag_seconds)) if health.lag_seconds else "0 s"


def _print_status(
    health: AppHealth, daemons: list[DaemonReport], problems: list[Finding], thresholds: Thresholds, grade: Grade
) -> None:
    # A bar is where figures begin.
    summary = clean(_summary(health, problems)).replace("|", "/")
    say((grade.name, _STYLES[grade]), f": {summary} | {_figures(health, thresholds)}")
    if problems:
        say("")
        print_facts((_GRADES[each.severity].name.lower(), [each.what, f"fix: {each.fix}"]) for each in problems)
    say("")
    print_facts(_facts(health, daemons))
    if health.nodes:
        say("")
        columns = [
            Column(title="NODE", is_cut=True, is_cut_in_front=True, is_whole_below=True),
            Column(title="STATE", is_coloured=True),
            Column(title="LAST BEAT", is_right=True),
            Column(title="RUNNING", is_right=True),
            Column(title="VERSION", width_least=80),
        ]
        print_table(
            columns,
            [
                [
                    node.name,
                    node.state,
                    f"{span(timedelta(seconds=node.beat_age_seconds))} ago",
                    str(node.running),
                    node.version,
                ]
                for node in health.nodes
            ],
        )


def _facts(health: AppHealth, daemons: list[DaemonReport]) -> list[tuple[str, str | list[str]]]:
    oldest = f", oldest due at {stamp(health.oldest_due_at)}" if health.oldest_due_at else ""
    counts = ("running", "waiting", "blocked", "parked", "dispatched")
    lost = f", {health.lost} of them lost" if health.lost else ""
    looked_at = f"{health.looked_at} of {_schedules(health)}, as far as time allowed; `evertick doctor` looks at all"
    return [
        ("App", f"{health.app}, {_schedules(health)}"),
        ("Lag", f"{_lag(health)}{oldest}"),
        ("Runs", ", ".join(f"{counted(getattr(health, name))} {name}" for name in counts)),
        ("Failed", f"{health.failed} in the last hour{lost}"),
        ("Left over", [_left_over_words(health.left_over)] if health.left_over else []),
        ("Looked at", [] if health.looked_at is None else looked_at),
        ("Daemon", [_daemon_words(daemon, health) for daemon in daemons]),
    ]


def _left_over_words(keys: list[str]) -> str:
    those = "1 schedule is" if len(keys) == 1 else f"{len(keys)} schedules are"
    removes = f"`evertick apply --prune` removes {'it' if len(keys) == 1 else 'them'}"
    return f"{those} paused, in no configuration any more: {named(keys)}; {removes}"


def _daemon_words(daemon: DaemonReport, health: AppHealth) -> str:
    source = daemon.config or "the environment alone"
    read = "" if daemon.reloaded_at is None else f", read again {distance(daemon.reloaded_at, health.at)}"
    state = ", but what is new does not hold" if daemon.problems else ""
    return f"process {daemon.pid} of {source}{read}{state}"


# --- doctor ----------------------------------------------------------------------------------------------------------


@click.command()
@as_json_option
@database_option
@app_option
@config_option
def doctor(as_json: bool, database: str | None, app: str | None, config: str | None) -> None:
    """Find what is wrong, and say what to do about it.

    The database, the clock, nodes, runs and schedules. Changes nothing. Exit code 0 if there is nothing but notes, 1
    after a warning or an error.

    \b
    Example:
      evertick doctor
      evertick doctor --json | jq '.[] | select(.severity == "error")'
    """
    ledger = ledger_of(database, app, config)
    check_key(ledger.app, what="app")
    try:
        check_exists(ledger.url, ledger.searched)
        if not as_json:
            ledger.tell()
        found = asyncio.run(_examine(ledger, as_json))
    except StoreRefused as missing:
        found = [about_store(missing)]
    if as_json:
        print_json(found)
    else:
        _print_findings(found)
    if any(finding.severity is not Severity.NOTE for finding in found):
        raise click.exceptions.Exit(1)


async def _examine(ledger: Ledger, as_json: bool) -> list[Finding]:
    with progress("examining", is_quiet=as_json) as report:
        report(0, None)
        care = _care_if_any(ledger.url)
        about_file = [] if care is None else await examine_database(care)
        is_broken = any(finding.check in ("integrity", "store") for finding in about_file)
        return [
            *about_file,
            *await _examine_app(ledger, is_known_broken=is_broken),
            *daemon_findings(daemons_of(ledger)),
        ]


def _care_if_any(url: str) -> Maintenance | None:
    try:
        return care_of(url)
    except Refused:
        return None


async def _examine_app(ledger: Ledger, *, is_known_broken: bool) -> list[Finding]:
    scheduler = ledger.scheduler()
    try:
        return await call(scheduler, findings, killed=_killed(ledger))
    except EvertickError as error:  # the store cannot be opened
        return [] if is_known_broken else [about_store(error)]
    finally:
        await scheduler.close()


def _print_findings(found: list[Finding]) -> None:
    print_facts((finding.severity.value, [finding.what, f"fix: {finding.fix}"]) for finding in found)
    counts = [(each, sum(finding.severity is each for finding in found)) for each in Severity]
    told = [f"{count} {each.value}{'' if count == 1 else 's'}" for each, count in counts if count]
    say(", ".join(told) or "nothing is wrong")
