"""The store that a command works on: `--database`, `--app` and `--config`, and a scheduler that only manages.

A flag overrides the environment, and that a configuration file. `--database` overrides the file, which is not read
then.

Management never makes a database and never migrates one: a mistyped path must not become an empty file that looks like
"no schedules".
"""

from __future__ import annotations

import asyncio
import functools
import os
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, Concatenate

import click
import msgspec

from evertick.cli.named import disabled_jobs, disabled_words, nearer, remember_file
from evertick.cli.show.output import hint
from evertick.cli.show.words import times_in
from evertick.cli.time_zone import clock_of, with_zone
from evertick.config.files import FILE_NAME, searched_files
from evertick.config.load import load_ledger, management_settings
from evertick.daemon.report import DaemonReport, read_dead_reports, read_reports
from evertick.definition.settings import DATABASE_VARIABLE, DEFAULT_DATABASE, check_url
from evertick.errors import NotFound, StoreRefused
from evertick.operations.context import Actor
from evertick.scheduler.scheduler import Scheduler
from evertick.store.sqlite.connection import file_exists, read_only_if_needed, why_read_only
from evertick.store.sqlite.location import location_of
from evertick.text.redact import masked

__all__ = [
    "Ledger",
    "app_option",
    "check_exists",
    "config_option",
    "daemons_of",
    "database_option",
    "is_there",
    "killed_daemons_of",
    "ledger_of",
    "on_store",
]

_APP_VARIABLE = "EVERTICK_NODE_APP"
_APP = "default"

database_option = click.option(
    "--database",
    metavar="URL",
    help=f"Where the ledger is kept; default: ${DATABASE_VARIABLE}, the configuration, {DEFAULT_DATABASE}.",
)
app_option = click.option(
    "--app", metavar="NAME", help=f"The app to look at; default: that of the configuration, else {_APP}."
)
config_option = click.option(
    "--config",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help=f"The configuration; default: ./{FILE_NAME}, then the user's, then the system's.",
)


class Ledger(msgspec.Struct, frozen=True, kw_only=True):
    """Which ledger a command is about. The URL may hold a password."""

    url: str
    app: str
    # How it was found, if it was not named: it may be a forgotten file, and not the one that is in use.
    words: str = ""
    # The node's settings that hold for commands, too, as `Scheduler` takes them: zone, limits of rules, retention.
    settings: dict[str, Any] = {}
    # Where a daemon of that configuration keeps its report.
    state_directory: Path | None = None
    # Where no configuration was found, if the ledger was not named.
    searched: str = ""

    def scheduler(self) -> Scheduler:
        """A scheduler that only manages. It opens nothing yet."""
        scheduler = Scheduler(self.url, app=self.app, concurrency=0, migrate="check", **self.settings)
        scheduler.runtime.configure(actor=Actor.of_command_line())
        return scheduler

    def tell(self) -> None:
        if self.words:
            hint(self.words, is_dim=True)


def ledger_of(database: str | None, app: str | None, config: str | None) -> Ledger:
    """The ledger by the flags, the environment and the configuration, in this order."""
    if database is not None and config is not None:
        raise click.UsageError("--database and --config both name a ledger; write one of them")
    if database is not None:
        app = app or os.environ.get(_APP_VARIABLE) or _APP
        return Ledger(url=check_url(database), app=app, settings=management_settings())
    found = load_ledger(config)
    if found is None:
        is_named = bool(os.environ.get(DATABASE_VARIABLE))
        words = "" if is_named else f"(ledger: {DEFAULT_DATABASE}; name another with --database)"
        searched = "" if is_named else searched_files()
        app = app or os.environ.get(_APP_VARIABLE) or _APP
        return Ledger(url=check_url(None), app=app, words=words, searched=searched, settings=management_settings())
    is_named = config is not None or bool(os.environ.get(DATABASE_VARIABLE))
    words = "" if is_named else f"(ledger: {masked(found.database_url)}, by {found.file})"
    return Ledger(
        url=found.database_url,
        app=app or found.app,
        words=words,
        # The limits of a file are those of its app; what another app on the same database allows is not in it.
        settings=found.settings if app in (None, found.app) else management_settings(),
        state_directory=found.state_directory,
    )


def daemons_of(ledger: Ledger) -> list[DaemonReport]:
    """The daemons on this machine that keep the ledger for this app, by their own reports."""
    return _of_ledger(ledger, read_reports)


def killed_daemons_of(ledger: Ledger) -> list[DaemonReport]:
    """Daemons that kept it, and whose process is gone without a last report."""
    return _of_ledger(ledger, read_dead_reports)


def _of_ledger(ledger: Ledger, read: Callable[[Path], list[DaemonReport]]) -> list[DaemonReport]:
    if ledger.state_directory is None:
        return []
    said = read(ledger.state_directory)
    return [each for each in said if (each.database, each.app) == (masked(ledger.url), ledger.app)]


def on_store(command: Callable[Concatenate[Scheduler, ...], Coroutine[Any, Any, None]]) -> Callable[..., None]:
    """Give a command the three options and, for as long as it runs, a scheduler on that store."""

    @database_option
    @app_option
    @config_option
    @functools.wraps(command)
    def with_store(**kwargs: Any) -> None:
        database, config = kwargs.pop("database"), kwargs.pop("config")
        app = kwargs.pop("app")
        ledger = ledger_of(database, app, config)
        remember_file(config, is_read=database is None and app is None)
        scheduler = ledger.scheduler()
        check_exists(scheduler.settings.url, ledger.searched)
        if not kwargs.get("as_json"):
            ledger.tell()
        asyncio.run(_closing(scheduler, _work(scheduler, kwargs)))

    async def _work(scheduler: Scheduler, given: dict[str, Any]) -> None:
        zone = await clock_of(scheduler, given)
        with times_in(zone):
            await command(scheduler, **with_zone(given, zone))

    return with_store


async def _closing(scheduler: Scheduler, work: Coroutine[Any, Any, None]) -> None:
    try:
        await work
    except NotFound as missing:
        name = missing.value
        if name is not None and (place := disabled_jobs().get(name)) is not None:
            raise NotFound(disabled_words(name, place)) from None
        raise await nearer(scheduler, missing) from None
    finally:
        await scheduler.close()


def check_exists(url: str, searched: str = "") -> None:
    """Refuse a database that is not there. `searched`: where a configuration would have named another."""
    if is_there(url):
        _tell_if_read_only(url)
        return
    path = location_of(url).path
    if path is None:
        raise StoreRefused(
            f"{url} is in the memory of one process, so there is nothing to see from here; "
            f"name a file, like {DEFAULT_DATABASE}"
        )
    if searched:
        raise StoreRefused(
            f"there is no database at {Path(path).absolute()}, and no configuration at {searched}; name the file of "
            "the daemon with --config, or the database with --database sqlite:///path/to/file.db or "
            f"postgresql://user@host/name, or by {DATABASE_VARIABLE} (`evertick daemon`, `apply` and `run` make it)"
        )
    raise StoreRefused(
        f"there is no database at {Path(path).absolute()}; point to one with --database sqlite:///path/to/file.db "
        f"or postgresql://user@host/name, or by {DATABASE_VARIABLE} (`evertick daemon`, `apply` and `run` make it)"
    )


def _tell_if_read_only(url: str) -> None:
    if not url.startswith("sqlite://"):
        return
    where = read_only_if_needed(location_of(url))
    if where.is_read_only:
        hint(f"(read-only: {why_read_only(where)}; nothing in {where.path} can be changed)", is_dim=True)


def is_there(url: str) -> bool:
    """Whether the file of a database exists; what is kept by a server can only be asked for there."""
    if not url.startswith("sqlite://"):
        return True
    path = location_of(url).path
    return path is not None and file_exists(path)
