"""`evertick demo`: what a newcomer watches. The real engine on a real SQLite file, told by hooks as it happens.

Two lives of the same small program with some downtime between them. Nothing is staged but the jobs themselves, so what
is waited for is what the engine does, never a guess how long it takes.
"""

from __future__ import annotations

import asyncio
import tempfile
from collections import Counter
from pathlib import Path

import click

from evertick.cli.ledger import print_ledger, print_why
from evertick.cli.output import say, style_of
from evertick.clock import system_clock
from evertick.context import Context
from evertick.errors import EvertickError
from evertick.events import EVENTS, Event
from evertick.policy import Exponential
from evertick.scheduler import Scheduler

__all__ = ["demo"]

_LEAST_SECONDS, _MOST_SECONDS = 12, 3_600
# Long enough that every schedule below misses at least two moments.
_DOWN_SECONDS = 5.0
_SECOND_LIFE_SECONDS = 4.0
_PATIENCE_SECONDS = 30.0
_LEDGER_ROWS = 18
_ERROR = "the mail server does not answer"
_SEVERAL_TIMES = {"paused", "removed", "scheduled", "started"}


@click.command()
@click.option(
    "--seconds",
    type=click.IntRange(_LEAST_SECONDS, _MOST_SECONDS),
    default=22,
    show_default=True,
    help="About how long it takes.",
)
@click.option(
    "--keep", type=click.Path(path_type=Path, dir_okay=False), metavar="PATH", help="Keep the database in this file."
)
def demo(seconds: int, keep: Path | None) -> None:
    """Watch Evertick work: fires, a retry, an overlap, downtime, and the ledger that accounts for all of it.

    \b
    Example:
      evertick demo
      evertick demo --keep demo.db
    """
    if keep is not None and keep.exists():
        raise click.UsageError(f"--keep: {str(keep)!r} exists already; name a new file")
    with tempfile.TemporaryDirectory(prefix="evertick-") as folder:
        path = (keep or Path(folder) / "demo.db").absolute()
        asyncio.run(_Demo(f"sqlite:///{path.as_posix()}", seconds).play())
    _say_what_next(keep)


class _Demo:
    def __init__(self, url: str, seconds: int) -> None:
        self._url = url
        self._first_life_seconds = seconds - _DOWN_SECONDS - _SECOND_LIFE_SECONDS
        self._seen: Counter[tuple[str | None, str, str | None]] = Counter()
        self._news = asyncio.Event()

    async def play(self) -> None:
        say(("Evertick runs jobs on time, once per promised moment, and can always say why.", "bold"))
        self._title("A node starts", "pulse: every second. report: every 2 s. slow: every 2 s, but takes 3 s.")
        say("mail runs once; it fails twice, and is tried again after 0.5 s and 1 s.")
        async with self._program():
            await asyncio.sleep(self._first_life_seconds)
            await self._until(("mail", "succeeded", None))
            await self._until(("slow", "skipped", "overlap"))
            self._title("The node is stopped", "Running work is given its time, nothing new is begun.")
        self._title("Downtime", f"Nobody is there for {_DOWN_SECONDS:g} s. Moments pass.")
        await asyncio.sleep(_DOWN_SECONDS)
        self._title(
            "The node starts again", "The newest missed moment runs late, for all of them; the others are one gap."
        )
        async with self._program() as scheduler:
            await self._until(("report", "skipped", "coalesced"))
            await self._until(("report", "late", None))
            answer = await scheduler.why("report")
            await asyncio.sleep(_SECOND_LIFE_SECONDS)
            self._title("evertick why report", "(asked just after the start)")
            print_why(answer)
            self._title("evertick history report", "Every moment has its verdict: a run, or a place in a gap.")
            print_ledger(await scheduler.history("report", limit=_LEDGER_ROWS), is_one_schedule=True)
            self._title("evertick history slow; evertick history mail", "")
            print_ledger([*await scheduler.history("slow", limit=6), *await scheduler.history("mail")])

    def _program(self) -> Scheduler:
        """The program that is run: what a user would write."""
        scheduler = Scheduler(self._url, node_name="demo", stop_timeout="10s")

        @scheduler.every("1s")
        async def pulse() -> None:
            pass

        @scheduler.every("2s")
        async def report() -> dict[str, int]:
            return {"lines": 42}

        @scheduler.every("2s", overlap="skip")
        async def slow() -> None:
            await asyncio.sleep(3)

        @scheduler.once(after="1s", retry=Exponential("500ms", factor=2, attempts=3))
        async def mail(ctx: Context) -> None:
            if ctx.attempt < 3:
                raise ConnectionError(_ERROR)

        for kind in EVENTS:
            scheduler.on(kind, self._hear)
        return scheduler

    async def _hear(self, event: Event) -> None:
        line = _words(event)
        if line is not None:
            style = style_of(event.kind) or ("yellow" if event.kind == "retrying" else "")
            say((f"{event.at.astimezone():%H:%M:%S}  ", "dim"), f"{event.schedule_key or '':8}", (line, style))
        self._seen[event.schedule_key, event.kind, event.reason] += 1
        self._news.set()

    async def _until(self, wanted: tuple[str, str, str | None]) -> None:
        """Wait for the engine to have done it. It always does; if not, the demo must end all the same."""
        try:
            async with asyncio.timeout(_PATIENCE_SECONDS):
                while not self._seen[wanted]:
                    self._news.clear()
                    await self._news.wait()
        except TimeoutError:
            raise EvertickError(f"the demo waited in vain for {wanted}; the machine may be very busy") from None

    @staticmethod
    def _title(title: str, words: str) -> None:
        say("")
        say((f"--- {title} ", "bold cyan"), words)


def _words(event: Event) -> str | None:
    """What has happened, in a few words; None for what would only be noise here."""
    match event.kind:
        case "succeeded":
            return "ran" if not event.attempt or event.attempt == 1 else f"ran, at attempt {event.attempt}"
        case "retrying":
            return f"attempt {event.attempt} failed ({_ERROR}): it is tried again"
        case "skipped" if event.reason == "overlap":
            return "skipped: its last run has not ended yet (overlap)"
        case "skipped" if event.reason == "coalesced":
            return f"{event.count} missed moments are one gap: a newer one runs for them (coalesced)"
        case "scheduled" if event.reason == "late":
            return f"late: the moment {event.fire_at:%H:%M:%S} runs now"
        case "scheduled" | "started":
            return None
        case _:
            return f"{event.kind} {event.reason or ''}".rstrip()


def _say_what_next(keep: Path | None) -> None:
    say("")
    say(("--- What to try next", "bold cyan"))
    if keep is None:
        say("evertick demo --keep demo.db            keep the database, then look around in it:")
        keep = Path("demo.db")
    for command in ("list", "history --json", "why report", "preview"):
        say(f"evertick {command:16} --database sqlite:///{keep}")
    say('evertick explain "30 2 * * mon-fri" --tz Europe/Berlin')
    say("evertick run app:scheduler              your own schedules, in app.py")
