"""Maintenance of a PostgreSQL schema: status, and whether its tables are complete and consistent.

Each call has its own connection. Free space is left to the server: autovacuum makes it usable again, and days of
history are dropped whole.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator
from typing import TypeVar

import asyncpg

from evertick.clock import Clock
from evertick.errors import Refused, StoreRefused, StoreUnavailable
from evertick.store.base import Checked, Freed, StoreStatus, TableOptions, TableRows
from evertick.store.postgres.connection import (
    Connection,
    Statements,
    connect,
    disconnect,
    in_schema,
    quoted,
    refused,
    statements_for,
    translated,
)
from evertick.store.postgres.location import Location
from evertick.store.postgres.schema import (
    MIGRATE_SECONDS,
    OBJECTS,
    SCHEMA_VERSION,
    check_server,
    migrate,
    migrations,
    missing,
)

__all__ = ["SchemaMaintenance"]

T = TypeVar("T")

_COUNT_MOST = 100_000
_PROBLEMS_MOST = 20
_LEDGER = {
    "maintenance.both": "{} runs are both live and done",
    "maintenance.no_cursor": "{} schedules have no cursor, so they never fire",
    "maintenance.no_schedule": "{} cursors have no schedule",
}
_TABLE = re.compile(r"CREATE TABLE evertick\.(\w+)")
_DAY = re.compile(r"history_\d{8}")
_COMMENT = re.compile("--.*")
_OPTIONS = re.compile(r"CREATE TABLE evertick\.(\w+)[^;]*?\n *\)? ?WITH \(([^)]*)\);")


class SchemaMaintenance:
    """Maintenance of one schema."""

    def __init__(self, where: Location, clock: Clock) -> None:
        self._where = where
        self._clock = clock

    async def status(self) -> StoreStatus:
        return await self._on_schema(self._status, self._where.timeout)

    async def check(self, *, is_quick: bool = False, seconds_most: float | None = None) -> Checked:
        """`is_quick`: do not compare tables with each other."""
        problems: list[str] = []
        seconds = self._where.timeout if seconds_most is None else seconds_most
        try:
            await self._on_schema(lambda connection: self._check(connection, problems, is_quick=is_quick), seconds)
        except StoreUnavailable as error:
            if not isinstance(error.__cause__, TimeoutError | asyncpg.QueryCanceledError):
                raise
            return Checked(problems=tuple(problems), is_complete=False)
        return Checked(problems=tuple(problems[:_PROBLEMS_MOST]))

    async def migrate(self) -> list[str]:
        return await self._on_schema(
            lambda connection: migrate(connection, self._where, self._clock, "auto"), MIGRATE_SECONDS
        )

    async def give_back(self, pages_most: int) -> Freed:
        raise Refused(
            f"the {self._where.description} reuses free space by itself", fix="make sure that autovacuum is on"
        )

    async def rewrite(self) -> None:
        raise Refused(
            f"Evertick does not rewrite the {self._where.place}",
            fix=f"run VACUUM FULL as an administrator on the tables of schema {self._where.schema}, while no node runs",
        )

    async def backup(self, path: str) -> int:
        raise Refused(
            f"Evertick does not copy the {self._where.place}",
            fix=f"use the tools of PostgreSQL, like `pg_dump --schema={self._where.schema}`",
        )

    async def _on_schema(self, act: Callable[[Connection], Awaitable[T]], seconds: float) -> T:
        try:
            with translated(self._where):
                async with asyncio.timeout(seconds):
                    connection = await connect(self._where, has_own_plans=False)
                    try:
                        check_server(connection, self._where)
                        return await act(connection)
                    finally:
                        await disconnect(connection)
        except StoreUnavailable as error:
            raise refused(error) from error.__cause__

    def _session(self, connection: Connection) -> Statements:
        return Statements(connection, statements_for(self._where.schema), self._clock)

    async def _status(self, connection: Connection) -> StoreStatus:
        lacking = await missing(connection, self._where)
        # A version has two numbers; asyncpg puts a zero between them.
        major, _, minor = connection.get_server_version()[:3]
        status = StoreStatus(
            description=self._where.description,
            engine=f"PostgreSQL {major}.{minor}",
            store_id=None,
            version=0,
            version_known=SCHEMA_VERSION,
            missing=tuple(lacking),
            bytes=0,
        )
        if len(lacking) == len(migrations()):
            return status
        db = self._session(connection)
        existing = {row["name"] for row in await db.rows("maintenance.objects", self._where.schema)}
        about = await db.only_row("maintenance.about", self._where.schema)
        return StoreStatus(
            description=status.description,
            engine=status.engine,
            store_id=about["store_id"],
            version=about["version"],
            version_known=SCHEMA_VERSION,
            missing=status.missing,
            bytes=about["bytes"],
            tables=tuple([await self._rows_of(db, name) for name in _tables() if name in existing]),
            options=tuple(_compared(await self._present_options(db))),
            oldest_at=(await db.only_row("maintenance.oldest"))["oldest_at"] if "history" in existing else None,
        )

    async def _rows_of(self, db: Statements, table: str) -> TableRows:
        name = f"{quoted(self._where.schema)}.{quoted(table)}"
        text = f"SELECT count(*) AS rows FROM (SELECT FROM {name} LIMIT $1) t"  # noqa: S608 - a name of the migrations
        [row] = await db.select(text, _COUNT_MOST + 1)
        return TableRows(name=table, rows=min(row["rows"], _COUNT_MOST), is_exact=row["rows"] <= _COUNT_MOST)

    async def _check(self, connection: Connection, problems: list[str], *, is_quick: bool) -> None:
        db = self._session(connection)
        try:
            lacking = await missing(connection, self._where)
        except StoreRefused as error:
            problems.append(str(error))
            return
        if lacking:
            fix = "apply them with `evertick db migrate --database URL`"
            problems.append(f"migrations are missing: {', '.join(lacking)}; {fix}")
            return
        absent = await self._absent_objects(db)
        problems += absent
        for row in await db.rows("maintenance.invalid_indexes", self._where.schema):
            problems.append(f"the index {row['name']} is invalid; rebuild it with REINDEX INDEX")
        problems += await self._lost_options(db)
        if is_quick or absent:
            return
        for name, words in _LEDGER.items():
            count = (await db.only_row(name, _COUNT_MOST))["count"]
            if count:
                problems.append(words.format(count))

    async def _absent_objects(self, db: Statements) -> list[str]:
        """Objects of the migrations that no longer exist."""
        about = await db.only_row("maintenance.about", self._where.schema)
        if about["version"] > SCHEMA_VERSION:
            # Newer code may have changed them.
            return []
        existing = {(row["kind"], row["name"]) for row in await db.rows("maintenance.objects", self._where.schema)}
        absent = [(kind, name) for kind, name in _objects() if (kind, name) not in existing]
        # A missing table explains its missing columns, and these explain missing indexes.
        kinds = {kind for kind, _ in absent}
        cause = next((kind for kind in ("table", "column") if kind in kinds), None)
        return [f"the {kind} {name} is missing; {self._remedy(name)}" for kind, name in absent if cause in (None, kind)]

    def _remedy(self, name: str) -> str:
        """Objects without data are created again, with the statement of the migration."""
        statement = re.compile(rf"CREATE (UNIQUE INDEX|INDEX|FUNCTION) (evertick\.)?{re.escape(name)}\b[^;]*")
        found = [match for migration in migrations() if (match := statement.search(_COMMENT.sub("", migration.text)))]
        if not found:
            return "restore it from a backup"
        return f"create it again: {in_schema(' '.join(found[-1].group().split()), self._where.schema)}"

    async def _lost_options(self, db: Statements) -> list[str]:
        """Options of the migrations that a table no longer has. Without them live tables grow all day."""
        present = await self._present_options(db)
        problems = []
        for table, wanted in _options().items():
            lost = {name: value for name, value in wanted.items() if table in present and name not in present[table]}
            if lost:
                options = ", ".join(f"{name} = {value}" for name, value in lost.items())
                fix = f"ALTER TABLE {self._where.schema}.{table} SET ({options})"
                problems.append(f"the table {table} has lost options that keep it small; set them again by {fix}")
        return problems

    async def _present_options(self, db: Statements) -> dict[str, dict[str, str]]:
        rows = await db.rows("maintenance.options", self._where.schema)
        return {row["name"]: dict(option.split("=", 1) for option in row["options"]) for row in rows}


def _compared(present: dict[str, dict[str, str]]) -> Iterator[TableOptions]:
    """Tables with options of the migrations; of the days of history only those that differ from the default
    partition."""
    wanted = _options()
    days = {name: wanted["history_default"] for name in sorted(present) if _DAY.fullmatch(name)}
    for table, options in (wanted | days).items():
        if table in present:
            differing = {name: value for name, value in options.items() if present[table].get(name) != value}
            if differing or table not in days:
                yield TableOptions(name=table, options=present[table], migrated=differing)


def _options() -> dict[str, dict[str, str]]:
    """The storage options that the migrations set, by table."""
    texts = [_COMMENT.sub("", migration.text) for migration in migrations()]
    found = [match for text in texts for match in _OPTIONS.findall(text)]
    pairs = {table: [option.split("=") for option in text.split(",")] for table, text in found}
    return {table: {name.strip(): value.strip() for name, value in options} for table, options in pairs.items()}


def _tables() -> list[str]:
    return sorted({name for migration in migrations() for name in _TABLE.findall(migration.text)})


def _objects() -> list[tuple[str, str]]:
    """(kind, name) of all objects after the last migration."""
    lines = OBJECTS.read_text().splitlines()
    return [(kind, name) for kind, _, name in (line.rpartition(" ") for line in lines)]
