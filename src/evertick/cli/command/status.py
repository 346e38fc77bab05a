"""The command status: whether all is well, in one line and an exit code, for monitors and for people."""

from __future__ import annotations

import asyncio
from datetime import timedelta
from typing import Any, NoReturn

import click
import msgspec
from msgspec.structs import replace

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
from evertick.cli.parameters import DurationParameter
from evertick.cli.show.output import Column, as_json_option, clean, print_facts, print_json, print_table, say
from evertick.cli.show.standing import Grade, Limits, Problem, Standing, look, problems_of, worst
from evertick.cli.show.words import counted, distance, span, stamp
from evertick.config.load import guess_ledger
from evertick.daemon.report import DaemonReport
from evertick.doctor.finding import named
from evertick.errors import EvertickError, InvalidConfiguration, StoreUnavailable

__all__ = ["status"]

_STYLES = {Grade.OK: "bold green", Grade.WARNING: "bold yellow", Grade.CRITICAL: "bold red", Grade.UNKNOWN: "bold red"}


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
    default=1,
    show_default=True,
    help="Warn from so many runs on that failed or were lost in the last hour; 0: never.",
)
@click.option(
    "--failed-critical",
    type=click.IntRange(0),
    default=0,
    show_default=True,
    help="Critical from so many runs on that failed or were lost in the last hour; 0: never.",
)
@click.option(
    "--timeout", type=DurationParameter(least="100ms"), default="10s", show_default=True, help="Give up after this."
)
@as_json_option
@database_option
@app_option
@config_option
def status(
    lag_warning: timedelta,
    lag_critical: timedelta,
    failed_warning: int,
    failed_critical: int,
    timeout: timedelta,
    as_json: bool,
    database: str | None,
    app: str | None,
    config: str | None,
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
    limits = Limits(
        lag_warning=lag_warning,
        lag_critical=lag_critical,
        failed_warning=failed_warning,
        failed_critical=failed_critical,
    )
    try:
        ledger, daemons = _asked(database, app, config)
        standing = asyncio.run(_look(ledger, daemons, timeout))
    except (EvertickError, TimeoutError) as error:
        _end_without(error, timeout, as_json)
    problems = problems_of(standing, limits)
    grade = worst(problems)
    if as_json:
        print_json({**_head(grade, _summary(standing, problems), problems), **_data(standing)})
    else:
        _print(standing, problems, limits, grade)
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


async def _look(ledger: Ledger, daemons: list[DaemonReport], timeout: timedelta) -> Standing:
    scheduler = ledger.scheduler()
    check_exists(scheduler.settings.url, ledger.searched)
    try:
        async with asyncio.timeout(timeout.total_seconds()):
            return await look(await scheduler.runtime.store(), scheduler.app, daemons, killed_daemons_of(ledger))
    finally:
        await scheduler.close()


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


def _data(standing: Standing) -> dict[str, Any]:
    """Without what its jobs do, which are digests for `apply`."""
    daemons = [msgspec.structs.asdict(each) for each in standing.daemons]
    told = [{name: value for name, value in each.items() if name != "does"} for each in daemons]
    return {**msgspec.structs.asdict(standing), "daemons": told}


def _head(grade: Grade, summary: str, problems: list[Problem]) -> dict[str, Any]:
    told = [{"grade": each.grade.name.lower(), "what": each.what, "fix": each.fix} for each in problems]
    return {"status": grade.name.lower(), "exit_code": int(grade), "summary": clean(summary), "problems": told}


def _summary(standing: Standing, problems: list[Problem]) -> str:
    if problems:
        more = len(problems) - 1
        return problems[0].what + (f" (and {more} more)" if more else "")
    count = len(standing.living)
    return (
        f"{count} {'node' if count == 1 else 'nodes'} alive, {standing.schedules} "
        f"{'schedule' if standing.schedules == 1 else 'schedules'}, lag {_lag(standing)}, "
        f"{counted(standing.running)} running, {counted(standing.waiting)} waiting"
    )


def _figures(standing: Standing, limits: Limits) -> str:
    """As plugins of monitors write them: name=value[unit];warning;critical."""
    lag = f"{limits.lag_warning.total_seconds():g};{limits.lag_critical.total_seconds():g}"
    failed = ";".join(str(count or "") for count in (limits.failed_warning, limits.failed_critical))
    figures = {
        "nodes": f"{len(standing.living)}",
        "lag": f"{standing.lag_seconds:.3f}s;{lag}",
        "running": f"{standing.running}",
        "waiting": f"{standing.waiting}",
        "blocked": f"{standing.blocked}",
        "parked": f"{standing.parked}",
        "dispatched": f"{standing.dispatched}",
        "failed": f"{standing.failed};{failed}",
        "lost": f"{standing.lost}",
    }
    return " ".join(f"{name}={value}" for name, value in figures.items())


def _lag(standing: Standing) -> str:
    return span(timedelta(seconds=standing.lag_seconds)) if standing.lag_seconds else "0 s"


def _print(standing: Standing, problems: list[Problem], limits: Limits, grade: Grade) -> None:
    # A bar is where figures begin.
    summary = clean(_summary(standing, problems)).replace("|", "/")
    say((grade.name, _STYLES[grade]), f": {summary} | {_figures(standing, limits)}")
    if problems:
        say("")
        print_facts((each.grade.name.lower(), [each.what, f"fix: {each.fix}"]) for each in problems)
    say("")
    print_facts(_facts(standing))
    if standing.nodes:
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
                for node in standing.nodes
            ],
        )


def _facts(standing: Standing) -> list[tuple[str, str | list[str]]]:
    oldest = f", oldest due at {stamp(standing.oldest_due_at)}" if standing.oldest_due_at else ""
    counts = ("running", "waiting", "blocked", "parked", "dispatched")
    return [
        ("App", f"{standing.app}, {standing.schedules} {'schedule' if standing.schedules == 1 else 'schedules'}"),
        ("Lag", f"{_lag(standing)}{oldest}"),
        ("Runs", ", ".join(f"{counted(getattr(standing, name))} {name}" for name in counts)),
        (
            "Failed",
            f"{standing.failed} in the last hour" + (f", {standing.lost} of them lost" if standing.lost else ""),
        ),
        ("Left over", [_left_over_words(standing.left_over)] if standing.left_over else []),
        ("Daemon", [_daemon_words(daemon, standing) for daemon in standing.daemons]),
    ]


def _left_over_words(keys: list[str]) -> str:
    those = "1 schedule is" if len(keys) == 1 else f"{len(keys)} schedules are"
    removes = f"`evertick apply --prune` removes {'it' if len(keys) == 1 else 'them'}"
    return f"{those} paused, in no configuration any more: {named(keys)}; {removes}"


def _daemon_words(daemon: DaemonReport, standing: Standing) -> str:
    source = daemon.config or "the environment alone"
    read = "" if daemon.reloaded_at is None else f", read again {distance(daemon.reloaded_at, standing.at)}"
    state = ", but what is new does not hold" if daemon.problems else ""
    return f"process {daemon.pid} of {source}{read}{state}"
