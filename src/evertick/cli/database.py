"""The store that a command works on: `--database` and `--app`, and a scheduler that only manages.

Management never makes a database and never migrates one: a mistyped path must not become an empty file that looks like
"no schedules".
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine, Sequence
from pathlib import Path
from typing import Any, Concatenate

import click

from evertick.cli.named import nearer
from evertick.cli.output import tell
from evertick.cli.wall import with_zone
from evertick.errors import NotFound, StoreRefused
from evertick.scheduler import Scheduler
from evertick.settings import DATABASE_VARIABLE, DEFAULT_DATABASE
from evertick.store.base import Store
from evertick.store.sqlite.location import location_of

__all__ = ["app_option", "check_exists", "database_option", "on_store", "store_of", "tell_if_unnamed"]

database_option = click.option(
    "--database",
    metavar="URL",
    help=f"Where the ledger is kept; default: ${DATABASE_VARIABLE}, then {DEFAULT_DATABASE}.",
)
app_option = click.option("--app", metavar="NAME", default="default", show_default=True, help="The app to look at.")


def on_store(command: Callable[Concatenate[Scheduler, ...], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Give a command the two options and, for as long as it runs, a scheduler on that store."""

    @database_option
    @app_option
    @functools.wraps(command)
    def with_store(**kwargs: Any) -> None:
        url, app = kwargs.pop("database"), kwargs.pop("app")
        assert url is None or isinstance(url, str)
        scheduler = Scheduler(url, app=str(app), concurrency=0, migrate="check")
        check_exists(scheduler.settings.url)
        if not kwargs.get("as_json"):
            tell_if_unnamed(url)
        asyncio.run(_closing(scheduler, _work(scheduler, kwargs), _words(kwargs)))

    async def _work(scheduler: Scheduler, given: dict[str, Any]) -> None:
        await command(scheduler, **await with_zone(scheduler, given))

    return with_store


def _words(given: dict[str, Any]) -> list[str]:
    """All that was written as text, for whoever looks for what was meant."""
    values = [each for value in given.values() for each in (value if isinstance(value, tuple) else (value,))]
    return [each for each in values if isinstance(each, str)]


async def store_of(scheduler: Scheduler) -> Store:
    """The store itself, for what only commands ask of it."""
    return await scheduler._store()


async def _closing(scheduler: Scheduler, work: Coroutine[Any, Any, None], words: Sequence[str]) -> None:
    try:
        await work
    except NotFound as missing:
        raise await nearer(await store_of(scheduler), scheduler.app, words, missing) from None
    finally:
        await scheduler.close()


def tell_if_unnamed(url: str | None) -> None:
    """Which ledger is read, where nobody has named one: it may be a forgotten file, and not the one that is in use."""
    if url is None and not os.environ.get(DATABASE_VARIABLE):
        tell(f"(ledger: {DEFAULT_DATABASE}; name another with --database)", is_dim=True)


def check_exists(url: str) -> None:
    """Refuse a database that is not there."""
    if not url.startswith("sqlite://"):
        return
    path = location_of(url).path
    if path is None:
        raise StoreRefused(
            f"{url} is in the memory of one process, so there is nothing to see from here; "
            f"name a file, like {DEFAULT_DATABASE}"
        )
    if not Path(path).exists():
        raise StoreRefused(
            f"there is no database at {Path(path).absolute()}; point to one with --database sqlite:///path/to/file.db "
            f"or postgresql://user@host/name, or by {DATABASE_VARIABLE} (`evertick run` makes it at its first start)"
        )
