"""The command demo: a demonstration with the real engine on a SQLite file; hooks print each event.

It starts a small program twice, with some downtime in between. The demo waits for events of the engine, and never for a
guessed time.
"""

from __future__ import annotations

import asyncio
import logging
import shlex
import shutil
import sys
import tempfile
from datetime import datetime
from pathlib import Path

import click

from evertick.cli.command.runs import print_ledger, print_why
from evertick.cli.show.output import say, style_of
from evertick.cli.show.words import names_for, now
from evertick.errors import EvertickError
from evertick.explain.schedule import Why
from evertick.job.context import Context
from evertick.model.hooks import EVENTS, Event
from evertick.model.retry import Exponential
from evertick.scheduler.scheduler import Scheduler
from evertick.when import Every

__all__ = ["demo"]

_LEAST_SECONDS, _MOST_SECONDS = 12, 3_600
_PERIOD = "2s"
# The downtime lasts for this many moments and a little longer, so that the last of them is late.
_MISSED_MOMENTS = 3
_LATE_SECONDS = 1.2
_DOWN_SECONDS = 6.5
_SECOND_LIFE_SECONDS = 3.5
_WAIT_SECONDS = 30.0
_LEDGER_ROWS = 10
_ERROR = "the mail server is down"


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(_LEAST_SECONDS, _MOST_SECONDS),
    default=22,
    show_default=True,
    help="Approximate duration.",
)
@click.option(
    "--keep", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="Keep the database in this file."
)
def demo(seconds: int, keep: Path | None) -> None:
    """A demonstration of Evertick, in twenty seconds.

    Shows fires, a retry, an overlap, downtime, and the ledger that accounts for all of it.

    \b
    Example:
      evertick demo
      evertick demo --keep demo.db
    """
    if keep is not None and keep.exists():
        raise click.UsageError(f"--keep: {str(keep)!r} exists already; name a new file")
    # The demo prints retries and gaps itself.
    logging.getLogger("evertick").setLevel(logging.ERROR)
    with tempfile.TemporaryDirectory(prefix="evertick-") as folder:
        path = (keep or Path(folder) / "demo.db").absolute()
        asyncio.run(_Demo(f"sqlite:///{path}", seconds - _DOWN_SECONDS - _SECOND_LIFE_SECONDS).play())
    _say_what_next(keep)


class _Demo:
    def __init__(self, url: str, first_life_seconds: float) -> None:
        self._url = url
        self._first_life_seconds = first_life_seconds
        self._seen: set[tuple[str | None, str, str | None]] = set()
        self._changed = asyncio.Event()

    async def play(self) -> None:
        say(("Evertick runs jobs on time, once per promised moment, and can always say why.", "bold"))
        _title("A node starts", "its program has three schedules:")
        say("  report  every 2 seconds")
        say("  slow    every 2 seconds, but a run takes 3")
        say("  mail    once; it fails twice, and is retried after 0.5 s and after 1 s")
        await self._first_life()
        await _downtime()
        await self._print_answers(await self._second_life())

    async def _first_life(self) -> None:
        async with self._program():
            await asyncio.sleep(self._first_life_seconds)
            await self._until("mail", "succeeded")
            await self._until("slow", "skipped", "overlap")
            _title("The node stops", "running jobs may end, and no job is started")

    async def _second_life(self) -> Why:
        _title("The node starts again", "the newest missed moment runs late, in place of all of them")
        self._seen.clear()
        async with self._program() as scheduler:
            await self._until("report", "skipped", "coalesced")
            await self._until("report", "succeeded")
            answer = await scheduler.why("report")
            await asyncio.sleep(_SECOND_LIFE_SECONDS)
        return answer

    async def _print_answers(self, answer: Why) -> None:
        _title("evertick why report", "as it was just after the start")
        print_why(answer)
        _title("evertick history", "every moment has a verdict: it has a run, or it is part of a gap")
        ledger = Scheduler(self._url, concurrency=0)
        for key in ("report", "slow", "mail"):
            rows = await ledger.history(key, limit=_LEDGER_ROWS)
            print_ledger(rows, await names_for(ledger, rows))
            say("")
        await ledger.close()

    def _program(self) -> Scheduler:
        """The program, as a user would write it."""
        scheduler = Scheduler(self._url, node_name="demo", stop_timeout="10s")

        @scheduler.every(_PERIOD)
        async def report() -> dict[str, int]:
            return {"lines": 42}

        @scheduler.every(_PERIOD, overlap="skip")
        async def slow() -> None:
            await asyncio.sleep(3)

        @scheduler.once(after="1s", retry=Exponential("500ms", factor=2, attempts=3))
        async def mail(ctx: Context) -> str:
            if ctx.attempt < 3:
                raise ConnectionError(_ERROR)
            return "sent"

        for kind in EVENTS:
            scheduler.on(kind, self._print_event)
        return scheduler

    async def _print_event(self, event: Event) -> None:
        line = _words(event)
        if line is not None:
            style = style_of("skipped" if event.kind in ("retrying", "scheduled") else event.kind)
            _say_at(event.at, event.schedule_key or "", line, style)
        self._seen.add((event.schedule_key, event.kind, event.reason))
        self._changed.set()

    async def _until(self, key: str, kind: str, reason: str | None = None) -> None:
        """Wait for the event, for a limited time."""
        try:
            async with asyncio.timeout(_WAIT_SECONDS):
                while (key, kind, reason) not in self._seen:
                    self._changed.clear()
                    await self._changed.wait()
        except TimeoutError:
            problem = f"the demo timed out: {key!r} was not {kind} within {_WAIT_SECONDS:.0f} s"
            raise EvertickError(problem, fix="try again when the machine is less busy") from None


async def _downtime() -> None:
    _title("Downtime", "no node is running, and moments pass")
    for moment in Every(_PERIOD).upcoming(now(), _MISSED_MOMENTS):
        await asyncio.sleep((moment - now()).total_seconds())
        _say_at(moment, "", "a moment of report and of slow", "dim")
    await asyncio.sleep(_LATE_SECONDS)


def _clock_time(moment: datetime | None) -> str:
    return "" if moment is None else f"{moment.astimezone():%H:%M:%S}"


def _say_at(moment: datetime, key: str, line: str, style: str) -> None:
    say((f"{_clock_time(moment)}  ", "dim"), f"{key:8}", (line, style))


def _words(event: Event) -> str | None:
    """The event in a few words; None for an event that the demo does not show."""
    match event.kind, event.reason:
        case "succeeded", _:
            return "succeeded" if event.attempt in (None, 1) else f"succeeded at attempt {event.attempt}"
        case "retrying", _:
            return f"attempt {event.attempt} failed ({_ERROR}), retrying"
        case "skipped", "overlap":
            return "skipped: its previous run has not ended yet (overlap)"
        case "skipped", "coalesced":
            return f"{event.count} missed moments become one gap: a newer one runs instead (coalesced)"
        case "scheduled", "late":
            return f"the missed moment {_clock_time(event.fire_at)} runs now (late)"
        case (("scheduled" | "started" | "duty_taken" | "duty_lost"), _):
            return None
        case kind, reason:
            return kind if reason is None else f"{kind} ({reason})"


def _title(title: str, words: str) -> None:
    say("")
    say((f"--- {title}", "bold cyan"), f": {words}")


def _say_what_next(keep: Path | None) -> None:
    at = shlex.quote(f"sqlite:///{keep or 'demo.db'}")
    lines = [] if keep is not None else [("demo --keep demo.db", "keep the database, and query it:")]
    lines += [(f"{command} --database {at}", "") for command in ("list", "show slow", "why report")]
    lines += [
        (f"history mail --json --database {at}", ""),
        ('explain "30 2 * * mon-fri" --tz Europe/Berlin', "a rule in words, and its next moments"),
        ("run app:scheduler", "your own schedules, in app.py"),
    ]
    program, width = called_as(), max(len(command) for command, words in lines if words)
    say(("--- What to try next", "bold cyan"))
    for command, words in lines:
        say(f"{program} {command:{width}}  {words}" if words else f"{program} {command}")


def called_as() -> str:
    """The command that starts this program again; in an environment that is not activated, its path."""
    if shutil.which("evertick") is not None:
        return "evertick"
    script = sys.argv[0]
    if Path(script).name == "__main__.py":  # python -m evertick
        return f"{shlex.quote(sys.executable)} -m evertick"
    return shlex.quote(script)
