"""What can be wrong with the database itself: where it lies, how full its disk is, whether it is whole."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator

from evertick.doctor.finding import Finding, Severity
from evertick.store.base import Maintenance, StoreStatus

__all__ = ["about_database"]

_MEBI = 1_048_576
# Less than this and the next herd of runs may find the disk full.
_DISK_LEAST, _DISK_LOW = 64 * _MEBI, 512 * _MEBI
# SQLite folds its log into the file from 4 MiB on; one this large is kept from it by somebody who reads all the time.
_WAL_LARGE = 256 * _MEBI
_FREE_SHARE, _FREE_PAGES = 0.5, 10_000
_CHECK_SECONDS = 10.0


async def about_database(care: Maintenance) -> AsyncIterator[Finding]:
    status = await care.status()
    for finding in _about_status(status):
        yield finding
    checked = await care.check(is_quick=True, seconds_most=_CHECK_SECONDS)
    for problem in checked.problems:
        # What a problem of the tables says after a semicolon is what to do.
        what, _, fix = problem.partition("; ")
        yield Finding(
            severity=Severity.ERROR,
            check="integrity",
            what=what if status.description in what else f"{status.description}: {what}",
            fix=fix or "stop the nodes, keep a copy of the file, and restore it from a backup",
        )
    if not checked.is_complete:
        yield Finding(
            severity=Severity.NOTE,
            check="integrity",
            what=f"{status.description} is too large to be checked in {_CHECK_SECONDS:.0f} s",
            fix="check all of it with `evertick db check`",
        )


def _about_status(status: StoreStatus) -> Iterator[Finding]:
    where = status.description
    if status.is_on_network:
        yield Finding(
            severity=Severity.ERROR,
            check="network_file_system",
            what=f"{where} is on a network file system ({status.file_system}), where SQLite's locks do not hold",
            fix="move the file to a local disk",
        )
    if status.disk_free_bytes is not None and status.disk_free_bytes < _DISK_LOW:
        is_least = status.disk_free_bytes < _DISK_LEAST
        yield Finding(
            severity=Severity.ERROR if is_least else Severity.WARNING,
            check="disk_space",
            what=f"the disk of {where} has {status.disk_free_bytes / _MEBI:.0f} MiB left",
            fix="free some space; a shorter retention= keeps less history",
        )
    if status.journal_mode not in (None, "wal"):
        yield Finding(
            severity=Severity.WARNING,
            check="journal_mode",
            what=f"{where} has journal mode {status.journal_mode!r}, so readers and writers wait for each other",
            fix="start a node, which turns WAL on; if that does not last, some other program changes it",
        )
    if (status.wal_bytes or 0) > _WAL_LARGE:
        yield Finding(
            severity=Severity.WARNING,
            check="wal_size",
            what=f"the write-ahead log of {where} has {(status.wal_bytes or 0) / _MEBI:.0f} MiB",
            fix="look for a program that holds a read transaction open; the log shrinks when that ends",
        )
    yield from _about_free_pages(status)


def _about_free_pages(status: StoreStatus) -> Iterator[Finding]:
    free, pages = status.free_pages or 0, status.pages or 0
    if free < _FREE_PAGES or free < _FREE_SHARE * pages:
        return
    how = "evertick db vacuum --full" if status.vacuum == "none" else "evertick db vacuum"
    yield Finding(
        severity=Severity.NOTE,
        check="free_pages",
        what=f"{free / pages:.0%} of {status.description} is free space",
        fix=f"it is used again by itself; `{how}` gives it back to the disk",
    )
