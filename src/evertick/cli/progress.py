"""How far long work has come, on stderr: a bar on a terminal, a line now and then elsewhere, nothing beside JSON.

Lines come at most every few seconds, so that a log of it stays readable.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import click

from evertick.clock import system_clock

__all__ = ["Report", "progress"]

# How much is done, of how much (None: nobody knows).
Report = Callable[[int, int | None], None]

_LINE_SECONDS = 5.0


@contextmanager
def progress(title: str, *, is_quiet: bool = False) -> Iterator[Report]:
    """Tell how far something has come, for as long as it takes."""
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
