"""The group db: maintenance of the database. It also works on a store that cannot be opened."""

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

# Pages that one step of a vacuum frees. It takes a few milliseconds, in which no other session can write.
_STEP = 1_000
# Without the prefix that they have on SQLite.
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
# If two clocks differ by more, one of them is wrong.
_CLOCKS_APART = timedelta(minutes=2)


@click.group(no_args_is_help=True)
def db() -> None:
    """Maintain the database: check, migrate, back up, vacuum and more.

    \b
    Example:
      evertick db status
      evertick db check
      evertick db backup /backup/jobs.db
    """


def care_of(url: str) -> Maintenance:
    store = open_store(url, clock=system_clock)
    if not isinstance(store, Maintainable):
        problem = f"`evertick db` does not support {url.partition('://')[0]}:// stores"
        raise Refused(problem, fix="use the tools of the store")
    return store.maintenance()


def on_database(
    *, may_create: bool = False
) -> Callable[[Callable[Concatenate[Maintenance, P], Coroutine[Any, Any, None]]], Callable[..., None]]:
    """Give a command `--database` and `--config`, and the maintenance of that database."""

    def decorate(command: Callable[Concatenate[Maintenance, P], Coroutine[Any, Any, None]]) -> Callable[..., None]:
        @database_option
        @config_option
        @functools.wraps(command)
        def with_maintenance(*args: P.args, **kwargs: P.kwargs) -> None:
            database, config = kwargs.pop("database"), kwargs.pop("config")
            assert database is None or isinstance(database, str)
            assert config is None or isinstance(config, str)
            ledger = ledger_of(database, None, config)
            if not (may_create and kwargs.get("create")):
                check_exists(ledger.url, ledger.searched)
            asyncio.run(command(care_of(ledger.url), *args, **kwargs))

        return with_maintenance

    return decorate


@db.command()
@click.option("--quick", is_flag=True, help="Do not compare tables with their indexes.")
@as_json_option
@on_database()
async def check(care: Maintenance, quick: bool, as_json: bool) -> None:
    """Check the version and the integrity of the tables.

    Exit code 1 if there is a problem. Nodes may keep running.

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
        # The same damage may be the cause; the problems are reported anyway.
        if not checked.problems:
            raise
        status = None
    if as_json:
        version = None if status is None else status.version
        known = None if status is None else status.version_known
        print_json({**msgspec.structs.asdict(checked), "version": version, "version_known": known})
    else:
        facts = [] if status is None else [("Database", status.description), ("Version", _version_words(status))]
        print_facts([*facts, ("Result", list(checked.problems) or "no problems found")])
    if checked.problems:
        raise click.exceptions.Exit(1)


@db.command()
@click.option(
    "--create", is_flag=True, help="Create the file if it is missing; a schema of PostgreSQL is always created."
)
@as_json_option
@on_database(may_create=True)
async def migrate(care: Maintenance, create: bool, as_json: bool) -> None:
    """Migrate the tables to the version of this program.

    Nodes with `migrate="auto"` do this when they start; use it for deployments, and for nodes with "check". Several
    processes may call it at once: one of them migrates.

    \b
    Example:
      evertick db migrate
      evertick db migrate --create --database sqlite:////var/lib/shop/jobs.db
      evertick db migrate --database postgresql://owner@db.example.org/shop
    """
    await bring_up_to_date(care, as_json=as_json)


async def bring_up_to_date(care: Maintenance, *, as_json: bool = False) -> None:
    """Apply the missing migrations, and print their names."""
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
    """Show the version, the size and the rows of the database.

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
    yield "Store", status.store_id or "no tables yet: `evertick db migrate --database URL` creates them"
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
    """The rows of the documented tables; the internal ones are only counted, and JSON has all."""
    known = [table for table in tables if _table_name(table) in _TABLES]
    yield from (_rows_words(table) for table in sorted(known, key=lambda table: _TABLES.index(_table_name(table))))
    others = len(tables) - len(known)
    if others:
        yield f"and {others} internal tables, which --json lists"


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
        missing = f"missing: {', '.join(status.missing)}, which `evertick db migrate --database URL` applies"
        return f"{status.version}, older than this program ({status.version_known}); {missing}"
    newer = f", newer than this program ({status.version_known})" if status.version > status.version_known else ""
    return f"{status.version}{newer}"


@db.command()
@click.option("--full", is_flag=True, help="Rewrite the whole file; stop the nodes first.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json_option
@on_database()
async def vacuum(care: Maintenance, full: bool, yes: bool, as_json: bool) -> None:
    """Return free space to the disk.

    Nodes may keep running: each step takes a few milliseconds. With --full the whole file is rewritten, and no other
    session can write meanwhile; it asks for confirmation first.

    \b
    Example:
      evertick db vacuum
      evertick db vacuum --full --yes
    """
    before = await care.status()
    if before.vacuum is None:
        # A store without a vacuum refuses before the confirmation, and names the alternative.
        await (care.rewrite() if full and yes else care.give_back(_STEP))
    if full:
        if not yes:
            ask(
                f"rewrite the {before.description} ({amount(before.bytes)})? Nodes cannot write meanwhile", "rewrite it"
            )
        with progress("rewriting the database", is_quiet=as_json) as report:
            report(0, None)
            await care.rewrite()
    else:
        await _free_pages(care, before, as_json)
    after = await care.status()
    if as_json:
        print_json({"bytes_before": before.bytes, "bytes": after.bytes, "free_pages": after.free_pages})
    else:
        less = amount(max(0, before.bytes - after.bytes))
        say(f"the {after.description} has {amount(after.bytes)}, {less} less than before")
    if not full and after.free_pages:
        hint(f"note: {after.free_pages:,} free pages are left; they became free meanwhile or are in use, so try later")


@db.command()
@click.argument("file", type=click.Path())
@as_json_option
@on_database()
async def backup(care: Maintenance, file: str, as_json: bool) -> None:
    """Back up a SQLite database to the new FILE, as of one moment.

    Nodes may keep running and writing. Do not use cp on a file in use: the copy misses the data in its -wal, or is
    inconsistent. On PostgreSQL use pg_dump.

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


async def _free_pages(care: Maintenance, before: StoreStatus, as_json: bool) -> None:
    total = before.free_pages or 0
    # Pages that nodes free meanwhile are left for the next call, so that this one ends.
    steps = total // _STEP + 1
    with progress("pages freed", is_quiet=as_json) as report:
        done = 0
        for _ in range(steps):
            freed = await care.give_back(_STEP)
            done += freed.pages
            report(done, total)
            if not freed.pages or not freed.pages_left:
                return


# Names of the rows of each kind, singular and plural.
_ROW_NAMES = {
    "keys": ("unique key held for too long", "unique keys held for too long"),
    "messages": ("message of the outbox", "messages of the outbox"),
    "runs": ("live run", "live runs"),
    "history": ("ended run", "ended runs"),
    "attempts": ("earlier attempt", "earlier attempts"),
    "gaps": ("gap of future moments", "gaps of future moments"),
    "nodes": ("node", "nodes"),
    "duties": ("duty", "duties"),
    "events": ("event of the feed", "events of the feed"),
    "schedules": ("schedule created then", "schedules created then"),
}
_SCHEDULES_NAMED = 20
_APPS_MOST = 10_000


@db.command("repair-clock")
@click.option("--dry-run", is_flag=True, help="Change nothing; show what would be repaired.")
@click.option("--yes", is_flag=True, help="Do not ask for confirmation.")
@as_json_option
@database_option
@config_option
def repair_clock(dry_run: bool, yes: bool, as_json: bool, database: str | None, config: str | None) -> None:
    """Repair the ledger after a wrong clock was corrected.

    If the clock was far ahead for a while, schedules and retries wait for that time. This command restarts schedules
    whose next fire is later than their rule gives from now, makes runs due that wait for a wrong time, and corrects
    times in the future, in all apps of the database. Moments that have passed are recorded as skipped (reason: clock).
    Nodes may keep running. It shows the changes, and asks for confirmation.

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
        say("nothing to repair: no schedule and no row has a wrong time")
    elif dry_run:
        say(f"to repair: {_repair_words(found)}")
        hint("note: nothing was changed")
    else:
        say(f"repaired {_repair_words(found)}")


def _refuse_wrong_clock(store_now: datetime, own: datetime) -> None:
    """With a clock that is still wrong, the repair would write wrong times."""
    apart = abs(store_now - own)
    if apart > _CLOCKS_APART:
        raise Refused(
            f"the clocks of the store ({stamp(store_now)}) and of this machine ({stamp(own)}) differ by {span(apart)}",
            fix="correct both first",
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
    singular, plural = _ROW_NAMES[kind]
    return f"{count:,} {singular if count == 1 else plural}"


def _repair_words(found: Sequence[ClockRepair]) -> str:
    count, rows = sum(len(each.schedules) for each in found), sum(sum(each.rows.values()) for each in found)
    return f"{count} {'schedule' if count == 1 else 'schedules'} and {rows:,} {'row' if rows == 1 else 'rows'}"
