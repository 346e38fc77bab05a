"""The progress of long work, on stderr: a bar on a terminal, else a line every few seconds, nothing with JSON.

Work that waits for nodes uses `repeated`, which repeats the last line while nothing happens.
"""

from __future__ import annotations

import asyncio
import sys
from collections.abc import AsyncIterator, Callable, Iterator
from contextlib import asynccontextmanager, contextmanager

import click

from evertick.cli.show.output import hint
from evertick.clock import system_clock

__all__ = ["Report", "note_if_interrupted", "progress", "repeated"]

# Takes the number that is done and the total (None: unknown).
Report = Callable[[int, int | None], None]

_LINE_SECONDS = 5.0
# The longest interval at which an unchanged line is repeated.
_REPEAT_MOST_SECONDS = 60.0


@contextmanager
def note_if_interrupted(words: Callable[[], str]) -> Iterator[None]:
    """Print the progress after Ctrl-C. asyncio turns it into a cancellation first, and ends the program then."""
    try:
        yield
    except asyncio.CancelledError:
        hint(words())
        raise


@asynccontextmanager
async def repeated(report: Report, total: int) -> AsyncIterator[Report]:
    """A report that repeats its last values until it gets new ones."""
    last: tuple[int, int | None] = (0, total)

    def update(done: int, total: int | None) -> None:
        nonlocal last
        last = done, total
        report(done, total)

    async def repeat() -> None:
        previous, seconds = last, _LINE_SECONDS
        while True:
            await asyncio.sleep(seconds)
            report(*last)
            seconds = min(2 * seconds, _REPEAT_MOST_SECONDS) if last == previous else _LINE_SECONDS
            previous = last

    task = asyncio.ensure_future(repeat())
    try:
        yield update
    finally:
        task.cancel()
        await asyncio.wait([task])


@contextmanager
def progress(title: str, *, is_quiet: bool = False) -> Iterator[Report]:
    """Show the progress of the block."""
    if sys.stderr.isatty():
        with _bar(title) as report:
            yield report
    elif is_quiet:
        yield lambda done, total: None
    else:
        yield _lines(title)


def _lines(title: str) -> Report:
    last = system_clock.elapsed()

    def report(done: int, total: int | None) -> None:
        nonlocal last
        if system_clock.elapsed() - last >= _LINE_SECONDS:
            last = system_clock.elapsed()
            click.echo(f"{title}: {_words(done, total)}", err=True)

    return report


@contextmanager
def _bar(title: str) -> Iterator[Report]:
    from rich.console import Console
    from rich.progress import BarColumn, Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

    columns = (SpinnerColumn(), TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[words]}"))
    with Progress(*columns, TimeElapsedColumn(), console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None, words="")
        yield lambda done, total: bar.update(task, completed=done, total=total, words=_words(done, total))


def _words(done: int, total: int | None) -> str:
    if total is None:
        return f"{done:,}" if done else ""
    return f"{done:,} of {total:,}"
