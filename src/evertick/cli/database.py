"""The store that a command works on: `--database` and `--app`, and a scheduler that only manages.

Management never makes a database and never migrates one: a mistyped path must not become an empty file that looks like
"no schedules".
"""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate, ParamSpec
from urllib.parse import urlsplit

import click

from evertick.errors import StoreRefused
from evertick.scheduler import Scheduler
from evertick.settings import DATABASE_VARIABLE, DEFAULT_DATABASE
from evertick.store.base import Store
from evertick.store.sqlite.location import location_of

__all__ = ["app_option", "check_exists", "database_option", "on_store", "shown_url", "store_of"]

P = ParamSpec("P")

database_option = click.option(
    "--database",
    metavar="URL",
    help=f"Where the ledger is kept; default: ${DATABASE_VARIABLE}, then {DEFAULT_DATABASE}.",
)
app_option = click.option("--app", metavar="NAME", default="default", show_default=True, help="The app to look at.")


def on_store(command: Callable[Concatenate[Scheduler, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Give a command the two options and, for as long as it runs, a scheduler on that store."""

    @database_option
    @app_option
    @functools.wraps(command)
    def with_store(*args: P.args, **kwargs: P.kwargs) -> None:
        url, app = kwargs.pop("database"), kwargs.pop("app")
        assert url is None or isinstance(url, str)
        scheduler = Scheduler(url, app=str(app), concurrency=0, migrate="check")
        check_exists(scheduler.settings.url)
        asyncio.run(_closing(scheduler, command(scheduler, *args, **kwargs)))

    return with_store


async def store_of(scheduler: Scheduler) -> Store:
    """The store itself, for what only commands ask of it."""
    return await scheduler._store()


async def _closing(scheduler: Scheduler, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    finally:
        await scheduler.close()


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
            f"or {DATABASE_VARIABLE} (`evertick run` makes it at its first start)"
        )


def shown_url(url: str) -> str:
    """The URL as it may be logged: without its password, and without its parameters, which may hold one."""
    address = url.partition("?")[0]
    password = urlsplit(address).password
    return address if not password else address.replace(f":{password}@", ":***@", 1)
