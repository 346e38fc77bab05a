"""A server for one run of the benchmarks: the one that the tests start, but with everything on that costs time."""

from __future__ import annotations

import asyncio
import sys
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.refused import Refused
from benchmarks.store.place import NotDurable
from evertick.text.redact import masked

__all__ = ["check_settings", "data_folder", "server", "settings", "version"]

_STATEMENTS = "pg_stat_statements"
_INSTEAD = "name another server, or leave --dsn out, and one is started"
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
    "shared_preload_libraries": _STATEMENTS,
    "pg_stat_statements.track": "top",
    "pg_stat_statements.track_utility": "on",
}
# Without one of them a commit may be gone after a power cut, or a page be half of one.
_NEVER_OFF = ("fsync", "synchronous_commit", "full_page_writes")
# What the page tells of a server: that, what we set, and what else decides how much a commit costs.
_TOLD = dict.fromkeys((*_NEVER_OFF, *_SETTINGS, "wal_sync_method", "wal_compression"))


@contextmanager
def server(given: str | None) -> Iterator[str]:
    """The DSN of a server: the given one, which must have pg_stat_statements loaded, or one of our own.

    Either is asked whether its commits reach the disk, and refused if not.
    """
    if given is not None:
        check_settings(found := _settings_of(given))
        _check_counts(given, found)
        yield given
        return
    with _tests_beside_us():
        from servers.postgres import postgres_server  # type: ignore[import-not-found,unused-ignore]
    with postgres_server(**_SETTINGS) as dsn:
        check_settings(settings(dsn))
        yield dsn


@contextmanager
def _tests_beside_us() -> Iterator[None]:
    folder = str(Path(__file__).parents[2] / "tests")
    sys.path.insert(0, folder)
    try:
        yield
    finally:
        sys.path.remove(folder)


def _settings_of(given: str) -> dict[str, str]:
    """Only a superuser is told all of them."""
    try:
        return settings(given)
    except (OSError, ValueError, asyncpg.PostgresError) as error:
        said = next(iter(str(error).splitlines()), type(error).__name__)
        raise Refused(f"--dsn {masked(given)} cannot be used: {said}; {_INSTEAD}") from None


def _check_counts(given: str, found: Mapping[str, str]) -> None:
    if _STATEMENTS not in found["shared_preload_libraries"]:
        raise Refused(
            f"--dsn {masked(given)} does not count: add {_STATEMENTS} to its shared_preload_libraries, or {_INSTEAD}"
        )


def check_settings(found: Mapping[str, str]) -> None:
    for name in _NEVER_OFF:
        if found[name] == "off":
            raise NotDurable(f"the server has {name} = off: its commits do not survive a power cut; turn it on")


def settings(dsn: str) -> dict[str, str]:
    """As the server has them, whoever set them; without those that it does not know."""
    return asyncio.run(_shown(dsn, _TOLD))


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
