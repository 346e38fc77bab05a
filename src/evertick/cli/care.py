"""The group db: looking after the database itself. It works where others refuse, on a store that cannot be opened."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from typing import Any, Concatenate, ParamSpec

import click
import msgspec

from evertick.cli.database import check_exists, config_option, database_option, ledger_of
from evertick.cli.output import as_json_option, ask, hint, print_facts, print_json, say
from evertick.cli.progress import progress
from evertick.cli.words import amount, distance, now, stamp
from evertick.clock import system_clock
from evertick.errors import Refused, StoreError
from evertick.store.base import Care, CaredFor, StoreStatus, TableOptions, TableRows
from evertick.store.url import open_store
from evertick.when import from_us

__all__ = ["bring_up_to_date", "care_of", "db"]

P = ParamSpec("P")

# Pages that one bite of a vacuum gives back: a few milliseconds, in which nobody else can write.
_BITE = 1_000
# As they are called without the prefix that they have on SQLite.
_TABLES = (
    "schedules",
    "calendars",
    "runs",
    "history",
    "gaps",
    "attempts",
    "log_chunks",
    "nodes",
    "duties",
    "outbox",
    "feed",
)
_CHECK_TITLE = "checking the database"


@click.group(no_args_is_help=True)
def db() -> None:
    """Look after the database: check, migrate, status, vacuum.

    \b
    Example:
      evertick db status
      evertick db check
    """


def care_of(url: str) -> Care:
    store = open_store(url, clock=system_clock)
    if not isinstance(store, CaredFor):
        raise Refused(f"the store of {url.partition('://')[0]}:// cannot be looked after from here; use its own tools")
    return store.care()


def on_database(
    *, may_create: bool = False
) -> Callable[[Callable[Concatenate[Care, P], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command `--database` and `--config`, and the care for that database."""

    def decorate(command: Callable[Concatenate[Care, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @database_option
        @config_option
        @functools.wraps(command)
        def with_care(*args: P.args, **kwargs: P.kwargs) -> None:
            database, config = kwargs.pop("database"), kwargs.pop("config")
            assert database is None or isinstance(database, str)
            assert config is None or isinstance(config, str)
            ledger = ledger_of(database, None, config)
            chosen = ledger.url
            if not (may_create and kwargs.get("create")):
                check_exists(chosen, ledger.searched)
            asyncio.run(command(care_of(chosen), *args, **kwargs))

        return with_care

    return decorate


@db.command()
@click.option("--quick", is_flag=True, help="Leave out the comparison of tables with their indexes.")
@as_json_option
@on_database()
async def check(care: Care, quick: bool, as_json: bool) -> None:
    """Check the version of the tables, and that they are whole.

    Exit code 1 if anything is wrong. Nodes may go on running meanwhile.

    \b
    Example:
      evertick db check
      evertick db check --quick
    """
    with progress(_CHECK_TITLE, is_quiet=as_json) as report:
        report(0, None)
        checked = await care.check(is_quick=quick)
    try:
        status = await care.status()
    except StoreError:
        # What is wrong may be in the way of that, too; it is said anyway.
        if not checked.problems:
            raise
        status = None
    if as_json:
        version = None if status is None else status.version
        known = None if status is None else status.version_known
        print_json({**msgspec.structs.asdict(checked), "version": version, "version_known": known})
    else:
        facts = [] if status is None else [("Database", status.description), ("Version", _version_words(status))]
        print_facts([*facts, ("Result", list(checked.problems) or "everything is as it should be")])
    if checked.problems:
        raise click.exceptions.Exit(1)


@db.command()
@click.option(
    "--create", is_flag=True, help="Make the file where there is none; a schema of PostgreSQL is made anyway."
)
@as_json_option
@on_database(may_create=True)
async def migrate(care: Care, create: bool, as_json: bool) -> None:
    """Bring the tables up to the version of this program.

    What nodes with `migrate="auto"` do by themselves; for those that have "check", and for deployments. Any number of
    processes may try at once: one does it.

    \b
    Example:
      evertick db migrate
      evertick db migrate --create --database sqlite:////var/lib/shop/jobs.db
      evertick db migrate --database postgresql://owner@db.example.org/shop
    """
    await bring_up_to_date(care, as_json=as_json)


async def bring_up_to_date(care: Care, *, as_json: bool = False) -> None:
    """Apply what is missing, and say what that was."""
    applied = await care.migrate()
    status = await care.status()
    if as_json:
        print_json({"applied": applied, "version": status.version})
        return
    for name in applied:
        say(f"applied {name}")
    say(f"the {status.description} is at version {status.version}" + ("" if applied else "; nothing was missing"))


@db.command()
@as_json_option
@on_database()
async def status(care: Care, as_json: bool) -> None:
    """Tell the version, the size and the rows of the database.

    \b
    Example:
      evertick db status
    """
    found = await care.status()
    if as_json:
        oldest = None if found.oldest_at is None else from_us(found.oldest_at)
        print_json({**msgspec.structs.asdict(found), "oldest_at": oldest})
    else:
        print_facts(_facts(found))


def _facts(status: StoreStatus) -> Iterator[tuple[str, str | list[str]]]:
    yield "Database", status.description
    yield "Kept by", status.engine
    yield "Store", status.store_id or "not one of Evertick yet: `evertick db migrate --database URL` makes its tables"
    yield "Version", _version_words(status)
    yield "Size", amount(status.bytes)
    yield "Log", "" if status.wal_bytes is None else f"{amount(status.wal_bytes)}, journal mode {status.journal_mode}"
    if status.pages is not None and status.free_pages is not None and status.page_bytes is not None:
        share = status.free_pages / status.pages if status.pages else 0
        yield "Free", f"{amount(status.free_pages * status.page_bytes)} in {status.free_pages:,} pages ({share:.0%})"
    yield "Vacuum", status.vacuum or ""
    place = status.file_system or "unknown file system"
    yield "Disk", "" if status.disk_free_bytes is None else f"{amount(status.disk_free_bytes)} free, {place}"
    if status.oldest_at is not None:
        oldest = from_us(status.oldest_at)
        yield "History", f"since {stamp(oldest)} ({distance(oldest, now())})"
    yield "Rows", list(_rows_lines(status.tables))
    yield "Options", [_options_words(table) for table in status.options]


def _rows_lines(tables: Sequence[TableRows]) -> Iterator[str]:
    """Of the tables that hold what people know; the others are counted, and JSON has them all."""
    known = [table for table in tables if _table_name(table) in _TABLES]
    yield from (_rows_words(table) for table in sorted(known, key=lambda table: _TABLES.index(_table_name(table))))
    others = len(tables) - len(known)
    if others:
        yield f"and {others} tables of Evertick's own housekeeping, which --json lists"


def _table_name(table: TableRows) -> str:
    return table.name.removeprefix("evertick_")


def _rows_words(table: TableRows) -> str:
    return f"{_table_name(table)}: {'' if table.is_exact else 'more than '}{table.rows:,}"


def _options_words(table: TableOptions) -> str:
    options = ", ".join(f"{name}={value}" for name, value in table.options.items()) or "none"
    migrated = ", ".join(f"{name}={value}" for name, value in table.migrated.items())
    return f"{table.name}: {options}" + (f" (Evertick sets {migrated})" if migrated else "")


def _version_words(status: StoreStatus) -> str:
    if status.missing:
        lacks = f"lacks {', '.join(status.missing)}, which `evertick db migrate --database URL` applies"
        return f"{status.version}, behind this program ({status.version_known}); {lacks}"
    newer = f", newer than this program ({status.version_known})" if status.version > status.version_known else ""
    return f"{status.version}{newer}"


@db.command()
@click.option("--full", is_flag=True, help="Write the whole file anew; stop the nodes first.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@on_database()
async def vacuum(care: Care, full: bool, yes: bool, as_json: bool) -> None:
    """Give free space back to the disk, in bites.

    Nodes may go on running: each bite takes a few milliseconds. With --full the whole file is written anew, during
    which nobody else can write; it asks first.

    \b
    Example:
      evertick db vacuum
      evertick db vacuum --full --yes
    """
    before = await care.status()
    if before.vacuum is None:
        # A store that does it by itself, or not at all, refuses, and says what to do instead: nobody is asked before.
        await (care.rewrite() if full and yes else care.give_back(_BITE))
    if full:
        if not yes:
            ask(f"write the {before.description} anew ({amount(before.bytes)})? Nodes cannot write meanwhile", "do it")
        with progress("writing the database anew", is_quiet=as_json) as report:
            report(0, None)
            await care.rewrite()
    else:
        await _give_back(care, before, as_json)
    after = await care.status()
    if as_json:
        print_json({"bytes_before": before.bytes, "bytes": after.bytes, "free_pages": after.free_pages})
    else:
        less = amount(max(0, before.bytes - after.bytes))
        say(f"the {after.description} has {amount(after.bytes)}, {less} less than before")
    if not full and after.free_pages:
        hint(f"note: {after.free_pages:,} pages became free meanwhile, or are in use; call it again later")


async def _give_back(care: Care, before: StoreStatus, as_json: bool) -> None:
    total = before.free_pages or 0
    # What nodes free meanwhile is for the next time, so that this one ends.
    bites = total // _BITE + 1
    with progress("pages given back", is_quiet=as_json) as report:
        done = 0
        for _ in range(bites):
            given = await care.give_back(_BITE)
            done += given.pages
            report(done, total)
            if not given.pages or not given.pages_left:
                return
