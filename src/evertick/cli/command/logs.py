"""The command logs: what a run has logged, and with --follow what it logs until it has ended."""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Iterator
from typing import Any

import click
import msgspec

from evertick.cli.candidates import complete_runs
from evertick.cli.database import on_store
from evertick.cli.named import last_run_named
from evertick.cli.show.output import as_json_option, hint, json_text, say, style_of
from evertick.cli.show.words import outcome, stamp, took
from evertick.model import LogLine, Run, State, Verdict
from evertick.scheduler.scheduler import Scheduler

__all__ = ["log_page", "logs", "whole_log"]

_PAGE = 1_000
# Nodes carry the lines of their runs to the store about once a second.
_LOOK_SECONDS = 0.5
_ANOTHER = "--- another attempt"
_STYLES = {"warning": "yellow", "error": "bold red", "critical": "bold red", "debug": "dim"}


@click.command()
@click.argument("run", metavar="RUN|KEY", shell_complete=complete_runs)
@click.option("-f", "--follow", is_flag=True, help="Go on until the run has ended, over all its attempts.")
@as_json_option
@on_store
async def logs(scheduler: Scheduler, run: str, follow: bool, as_json: bool) -> None:
    """Show what a run has logged, and follow it.

    With --follow it goes on until the run has ended, also over its retries, and ends with the verdict: exit code 0 if
    it succeeded, 1 if not. With --json each line is an object of its own.

    RUN is its id, or the beginning of it; KEY means the last run of that schedule.

    \b
    Example:
      evertick logs 01a1e06c-c7bb-7e9b-8894-4297139cf510
      evertick logs report
      evertick logs --follow 01a1e06c-c7bb-7e9b-8894-4297139cf510
    """
    teller = _Teller(as_json=as_json)
    found = await last_run_named(scheduler, run)
    if not follow:
        teller.tell_lines(await whole_log(scheduler, found.id))
        if not teller.count and not as_json:
            hint(f"run {found.id} has logged nothing" + (" yet; follow it with --follow" if found.is_live else ""))
        return
    ended = await _follow(scheduler, found, teller)
    teller.tell_end(ended)
    if ended.verdict is not Verdict.SUCCEEDED:
        raise click.exceptions.Exit(1)


async def whole_log(scheduler: Scheduler, run: str, after: int = 0) -> list[LogLine]:
    """All that a run has logged, from a line on."""
    lines: list[LogLine] = []
    while True:
        page = await scheduler.log(run, after=after + len(lines), limit=_PAGE)
        lines += page
        if len(page) < _PAGE:
            return lines


async def _follow(scheduler: Scheduler, run: Run, teller: _Teller) -> Run:
    while True:
        # The run first: what is done by then has written all its lines before.
        teller.tell_lines(await whole_log(scheduler, run.id, teller.count))
        if not run.is_live:
            return run
        teller.tell_state(run)
        await asyncio.sleep(_LOOK_SECONDS)
        run = await scheduler.get_run(run.id)


class _Teller:
    """Tells lines as they come, and what a reader of them would otherwise wonder about: a pause, another attempt."""

    def __init__(self, *, as_json: bool) -> None:
        self._as_json = as_json
        self.count = 0
        self._fence: int | None = None
        self._told: tuple[State, int] | None = None

    def tell_lines(self, lines: list[LogLine]) -> None:
        for line in lines:
            if not self._as_json and self._fence not in (None, line.fence):
                say((_ANOTHER, "dim"))
            self._fence = line.fence
            self._tell_line(line)
        self.count += len(lines)

    def _tell_line(self, line: LogLine) -> None:
        if self._as_json:
            _print_line({"kind": "line", **msgspec.structs.asdict(line)})
            return
        for text in _texts(line):
            say((text, _STYLES.get(line.level, "")))

    def tell_state(self, run: Run) -> None:
        """Once per change, on stderr: what the run does while it says nothing."""
        now = run.state, run.attempts
        if self._as_json or now == self._told:
            return
        self._told = now
        if run.state is State.WAITING:
            why = "waits for its retry" if run.attempts else "waits"
            hint(f"--- run {run.id} {why}, due {stamp(run.due_at, is_exact=True)}")
        elif run.state is not State.RUNNING:
            hint(f"--- run {run.id} is {run.state.value}" + (f" ({run.reason})" if run.reason else ""))

    def tell_end(self, run: Run) -> None:
        if self._as_json:
            names = ("id", "verdict", "reason", "attempts", "started_at", "finished_at", "error", "result")
            _print_line({"kind": "end", **{name: getattr(run, name) for name in names}})
            return
        reason = f" ({run.reason})" if run.reason else ""
        tries = f", at attempt {run.attempts}" if run.attempts > 1 else ""
        length = f", took {took(run)}" if run.started_at is not None else ""
        say("--- ", (outcome(run), style_of(outcome(run))), f"{reason}{tries}{length}")


def _print_line(data: dict[str, Any]) -> None:
    click.echo(json_text(data))


def log_page(lines: Iterable[LogLine]) -> Iterator[str]:
    """The lines of a run for people, told apart by its attempts."""
    fence: int | None = None
    for line in lines:
        if fence not in (None, line.fence):
            yield _ANOTHER
        fence = line.fence
        yield from _texts(line)


def _texts(line: LogLine) -> list[str]:
    """A line for people: when, how loud, what; what goes over several lines is set in."""
    first, *more = line.text.splitlines() or [""]
    return [f"{stamp(line.at, is_exact=True)}  {line.level:7}  {first}", *(f"  {text}" for text in more)]
