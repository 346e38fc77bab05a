"""The group db: looking after the database itself. It works where others refuse, on a store that cannot be opened."""

from __future__ import annotations

import asyncio
import functools
from collections.abc import Callable, Coroutine, Iterator, Sequence
from datetime import datetime, timedelta
from typing import Any, Concatenate, ParamSpec

import click
import msgspec

from evertick.cli.database import Ledger, check_exists, config_option, database_option, ledger_of
from evertick.cli.show.output import as_json_option, ask, hint, print_facts, print_json, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import amount, distance, now, stamp
from evertick.clock import system_clock
from evertick.errors import Refused, StoreError
from evertick.operations.clock import ClockRepair
from evertick.operations.clock import repair_clock as repair
from evertick.operations.health import store_time
from evertick.scheduler.operation import call
from evertick.store.base import Maintainable, Maintenance, StoreStatus, TableOptions, TableRows
from evertick.store.url import open_store
from evertick.text.time_span import span
from evertick.when import from_us

__all__ = ["bring_up_to_date", "care_of", "db"]

P = ParamSpec("P")

# Pages that one bite of a vacuum gives back: a few milliseconds, in which no other session can write.
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
# More, and one of two clocks is wrong.
_CLOCKS_APART = timedelta(minutes=2)


@click.group(no_args_is_help=True)
def db() -> None:
    """Look after the database: check, repair, vacuum and more.

    \b
    Example:
      evertick db status
      evertick db check
      evertick db backup /backup/jobs.db
    """


def care_of(url: str) -> Maintenance:
    store = open_store(url, clock=system_clock)
    if not isinstance(store, Maintainable):
        raise Refused(f"the store of {url.partition('://')[0]}:// cannot be looked after from here; use its own tools")
    return store.maintenance()


def on_database(
    *, may_create: bool = False
) -> Callable[[Callable[Concatenate[Maintenance, P], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command `--database` and `--config`, and the care for that database."""

    def decorate(command: Callable[Concatenate[Maintenance, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
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
async def check(care: Maintenance, quick: bool, as_json: bool) -> None:
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
        # The same damage may prevent it; the problems are reported anyway.
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
async def migrate(care: Maintenance, create: bool, as_json: bool) -> None:
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


async def bring_up_to_date(care: Maintenance, *, as_json: bool = False) -> None:
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
async def status(care: Maintenance, as_json: bool) -> None:
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
async def vacuum(care: Maintenance, full: bool, yes: bool, as_json: bool) -> None:
    """Give free space back to the disk, in bites.

    Nodes may go on running: each bite takes a few milliseconds. With --full the whole file is written anew, during
    which no other session can write; it asks first.

    \b
    Example:
      evertick db vacuum
      evertick db vacuum --full --yes
    """
    before = await care.status()
    if before.vacuum is None:
        # A store that does it by itself, or not at all, refuses, and says what to do instead, before any question.
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


@db.command()
@click.argument("file", type=click.Path())
@as_json_option
@on_database()
async def backup(care: Maintenance, file: str, as_json: bool) -> None:
    """Copy a ledger in SQLite to the new FILE, as of one moment.

    Nodes may go on running and writing. A plain copy of a file in use lacks what is in its -wal, or is torn. On
    PostgreSQL use pg_dump.

    \b
    Example:
      evertick db backup /backup/jobs.db
      evertick db check --database sqlite:////backup/jobs.db
    """
    with progress("copying the database", is_quiet=as_json) as report:
        report(0, None)
        size = await care.backup(file)
    if as_json:
        print_json({"file": file, "bytes": size})
    else:
        say(f"copied to {file}, {amount(size)}")


async def _give_back(care: Maintenance, before: StoreStatus, as_json: bool) -> None:
    total = before.free_pages or 0
    # Pages that nodes free meanwhile are left for the next call, so that this one ends.
    bites = total // _BITE + 1
    with progress("pages given back", is_quiet=as_json) as report:
        done = 0
        for _ in range(bites):
            given = await care.give_back(_BITE)
            done += given.pages
            report(done, total)
            if not given.pages or not given.pages_left:
                return


# Names of the rows of each kind, for one and for many.
_OFF_ROWS = {
    "keys": ("unique key held for too long", "unique keys held for too long"),
    "messages": ("message of the outbox", "messages of the outbox"),
    "runs": ("run that waits, or is at work", "runs that wait, or are at work"),
    "history": ("run that has ended", "runs that have ended"),
    "attempts": ("earlier attempt", "earlier attempts"),
    "gaps": ("gap of moments to come", "gaps of moments to come"),
    "nodes": ("node", "nodes"),
    "duties": ("duty", "duties"),
    "events": ("event of the feed", "events of the feed"),
    "schedules": ("schedule that was made then", "schedules that were made then"),
}
_SCHEDULES_NAMED = 20
_APPS_MOST = 10_000


@db.command("repair-clock")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be repaired.")
@click.option("--yes", is_flag=True, help="Do not ask.")
@as_json_option
@database_option
@config_option
def repair_clock(dry_run: bool, yes: bool, as_json: bool, database: str | None, config: str | None) -> None:
    """Repair what a wrong clock has left, after it was put right.

    After the clock was far ahead for a while, schedules stand still until that time, and so do retries. This restarts
    schedules whose next fire lies behind what their rule gives from now, makes due what waits for a time that will not
    come, and puts times right that are still to come, in all apps of the database. Moments that have passed meanwhile
    are recorded as skipped (reason: clock). Nodes may go on running. It shows what it will do, and asks first.

    \b
    Example:
      evertick db repair-clock --dry-run
      evertick db repair-clock --yes
    """
    ledger = ledger_of(database, None, config)
    check_exists(ledger.url, ledger.searched)
    if not as_json:
        ledger.tell()
    asyncio.run(_repair_clock(ledger, dry_run, yes, as_json))


async def _repair_clock(ledger: Ledger, dry_run: bool, yes: bool, as_json: bool) -> None:
    scheduler = ledger.scheduler()
    try:
        _refuse_wrong_clock(await call(scheduler, store_time), now())
        apps = await scheduler.apps(limit=_APPS_MOST)
        found = [each for app in apps if not (each := await call(scheduler, repair, app, dry_run=True)).is_empty]
        if not as_json:
            for each in found:
                _print_repair(each)
        if found and not dry_run:
            if not yes:
                ask(f"repair {_repair_words(found)}?", "repair them")
            with progress("repaired", is_quiet=as_json) as report:
                found = [
                    await call(scheduler, repair, each.app, on_step=lambda count: report(count, None)) for each in found
                ]
    finally:
        await scheduler.close()
    if as_json:
        print_json(found)
    elif not found:
        say("nothing to repair: no schedule and no row tells of a wrong clock")
    elif dry_run:
        say(f"to be repaired: {_repair_words(found)}")
        hint("note: nothing was changed")
    else:
        say(f"repaired {_repair_words(found)}")


def _refuse_wrong_clock(store_now: datetime, own: datetime) -> None:
    """A clock that is still wrong would repair everything into the wrong time."""
    apart = abs(store_now - own)
    if apart > _CLOCKS_APART:
        raise Refused(
            f"the clock of the store ({stamp(store_now)}) and that of this machine ({stamp(own)}) are {span(apart)} "
            "apart; put both right first"
        )


def _print_repair(found: ClockRepair) -> None:
    wrong = ""
    if found.wrong_from is not None and found.wrong_to is not None:
        wrong = f"{stamp(found.wrong_from)} to {stamp(found.wrong_to)}"
    keys = [f"{each.key}: {each.words()}" for each in found.schedules[:_SCHEDULES_NAMED]]
    more = len(found.schedules) - len(keys)
    print_facts(
        [
            ("App", found.app),
            ("Now", stamp(found.at)),
            ("Written at", wrong),
            ("Schedules", [*keys, f"and {more} more, which --json lists"] if more > 0 else keys),
            ("Rows", [_counted_rows(kind, count) for kind, count in found.rows.items()]),
        ]
    )


def _counted_rows(kind: str, count: int) -> str:
    one, many = _OFF_ROWS[kind]
    return f"{count:,} {one if count == 1 else many}"


def _repair_words(found: Sequence[ClockRepair]) -> str:
    count, rows = sum(len(each.schedules) for each in found), sum(sum(each.rows.values()) for each in found)
    return f"{count} {'schedule' if count == 1 else 'schedules'} and {rows:,} {'row' if rows == 1 else 'rows'}"
