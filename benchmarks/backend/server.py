"""A PostgreSQL server for one run of the benchmarks: the server of the tests with durable settings."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.errors import NotDurable, UsageError
from evertick.text.redact import masked

__all__ = ["check_settings", "data_folder", "server", "settings", "version"]

_STATEMENTS = "pg_stat_statements"
_INSTEAD = "name another server, or leave --dsn out to start one"
# Settings of a careful operator on a machine of this size; they undo the shortcuts of the tests.
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
    "shared_preload_libraries": _STATEMENTS,
    "pg_stat_statements.track": "top",
    "pg_stat_statements.track_utility": "on",
}
# With one of them off, a power cut can undo a commit or tear a page.
_NEVER_OFF = ("fsync", "synchronous_commit", "full_page_writes")
# Settings that the results list: the above, and others that decide the cost of a commit.
_LISTED = dict.fromkeys((*_NEVER_OFF, *_SETTINGS, "wal_sync_method", "wal_compression"))


@contextmanager
def server(given: str | None) -> Iterator[str]:
    """The DSN of the given server, which must have pg_stat_statements loaded, or of a new one. Its commits must reach
    the disk.
    """
    if given is not None:
        check_settings(found := _settings_of(given))
        _check_counts(given, found)
        yield given
        return
    with _tests_importable():
        from servers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]
    with postgres_server(**_SETTINGS) as dsn:
        check_settings(settings(dsn))
        yield dsn


@contextmanager
def _tests_importable() -> Iterator[None]:
    folder = str(Path(__file__).parents[2] / "tests")
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _settings_of(given: str) -> dict[str, str]:
    """Only a superuser may read all of them."""
    try:
        return settings(given)
    except (OSError, ValueError, asyncpg.PostgresError) as error:
        reason = next(iter(str(error).splitlines()), type(error).__name__)
        raise UsageError(f"--dsn {masked(given)} cannot be used: {reason}; {_INSTEAD}") from None


def _check_counts(given: str, found: Mapping[str, str]) -> None:
    if _STATEMENTS not in found["shared_preload_libraries"]:
        raise UsageError(
            f"--dsn {masked(given)} counts no statements: add {_STATEMENTS} to its shared_preload_libraries, "
            f"or {_INSTEAD}"
        )


def check_settings(found: Mapping[str, str]) -> None:
    for name in _NEVER_OFF:
        if found[name] == "off":
            raise NotDurable(f"the server has {name} = off: commits do not survive a power cut; turn it on")


def settings(dsn: str) -> dict[str, str]:
    """The listed settings, without those that the server does not know."""
    return asyncio.run(_shown(dsn, _LISTED))


def version(dsn: str) -> str:
    return asyncio.run(_shown(dsn, ["server_version"]))["server_version"]


def data_folder(dsn: str) -> Path:
    return Path(asyncio.run(_shown(dsn, ["data_directory"]))["data_directory"])


async def _shown(dsn: str, names: Iterable[str]) -> dict[str, str]:
    connection: Any = await asyncpg.connect(dsn)
    try:
        found = {name: await connection.fetchval("SELECT current_setting($1, true)", name) for name in names}
        return {name: value for name, value in found.items() if value is not None}
    finally:
        await connection.close()
