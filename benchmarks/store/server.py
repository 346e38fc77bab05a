"""A server for one run of the benchmarks: the one that the tests start, but with everything on that costs time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

__all__ = ["server", "version"]

# As a careful operator sets them on a machine of this size; what makes the tests fast is put back.
_SETTINGS = {
    "fsync": "on",
    "synchronous_commit": "on",
    "full_page_writes": "on",
    "wal_level": "replica",
    "autovacuum": "on",
    "autovacuum_naptime": "5s",
    "shared_buffers": "1GB",
    "max_wal_size": "8GB",
    "checkpoint_timeout": "15min",
    "shared_preload_libraries": "pg_stat_statements",
    "pg_stat_statements.track": "top",
    "pg_stat_statements.track_utility": "on",
}


@contextmanager
def server(given: str | None) -> Iterator[str]:
    """The DSN of a server: the given one, which must have pg_stat_statements loaded, or one of our own."""
    if given is not None:
        yield given
        return
    with _tests_beside_us():
        from servers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]
    with postgres_server(**_SETTINGS) as dsn:
        yield dsn


@contextmanager
def _tests_beside_us() -> Iterator[None]:
    folder = str(Path(__file__).parents[2] / "tests")
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def version(dsn: str) -> str:
    return asyncio.run(_version(dsn))


async def _version(dsn: str) -> str:
    connection: Any = await asyncpg.connect(dsn)
    try:
        return str(await connection.fetchval("SHOW server_version"))
    finally:
        await connection.close()
