"""The report of a daemon for commands on its machine: a small file in its state directory.

The ledger knows the nodes; only the daemon knows which file it was made from, whether that could be read again, and
what its jobs do. The file is replaced as a whole, and goes with its daemon. Daemons may share a directory: each has a
file of its own. A file without its process shows a crash, and is removed by the next daemon that writes. That of the
daemon that has ended last stays under another name, for the next to see by which file it was made.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import msgspec

from evertick.daemon.process import is_running, started_at_tick
from evertick.text.regular_file import read_regular

__all__ = [
    "DaemonReport",
    "read_dead_reports",
    "read_previous_reports",
    "read_reports",
    "remove_report",
    "write_report",
]

_NAMES = "daemon.*.json"
_LAST = "daemon-ended.json"
_MODE = 0o600
# What ten thousand jobs do, with long names.
_BYTES_MOST = 16 * 1024 * 1024
# More daemons in one directory are not looked at.
_FILES_MOST = 100


class DaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon, as of its last change."""

    pid: int
    # What tells it from another process of this number, where the system says it.
    start_tick: int | None = None
    version: str
    node: str
    # The incarnation under which the ledger knows it, as of its last word.
    node_id: str = ""
    # The file that it was made from; None: environment and flags alone.
    config: str | None
    jobs: int
    started_at: datetime
    # Its ledger, without a password.
    database: str = ""
    app: str = "default"
    # When it reads its files again: as they change, on a signal, or never.
    reload: str = "change"
    # By job, what it does: each of its keys that is not of the schedule, and a digest of its value.
    does: dict[str, dict[str, str]] = {}
    # When the files were last read again, and what was wrong with them then. While that is so, the older state holds.
    reloaded_at: datetime | None = None
    problems: tuple[str, ...] = ()
    # Settings that have changed in the files, and count from the next start on.
    wants_restart: tuple[str, ...] = ()


def write_report(folder: Path, report: DaemonReport) -> None:
    """Raises OSError where it cannot be written."""
    path = _path(folder, report.pid)
    fresh = path.with_suffix(".new")
    written = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
    with os.fdopen(written, "wb") as file:
        file.write(msgspec.json.encode(report))
    os.replace(fresh, path)
    for other, report in _found(folder):
        if not _lives(report):
            other.unlink(missing_ok=True)


def read_reports(folder: Path) -> list[DaemonReport]:
    """Reports of the daemons that run here, the oldest first; none that this user may not read."""
    return sorted((report for _, report in _found(folder) if _lives(report)), key=lambda report: report.started_at)


def read_dead_reports(folder: Path) -> list[DaemonReport]:
    """Reports of daemons that crashed, or whose machine did: a daemon that ends removes its own."""
    return [report for _, report in _found(folder) if not _lives(report)]


def remove_report(folder: Path, pid: int) -> None:
    """At the end of a daemon."""
    with contextlib.suppress(OSError):
        os.replace(_path(folder, pid), folder / _LAST)


def read_previous_reports(folder: Path) -> list[DaemonReport]:
    """All reports of this directory: of running, crashed, and of the last ended daemon."""
    return [report for _, report in (*_found(folder), *_read(folder / _LAST))]


def _path(folder: Path, pid: int) -> Path:
    return folder / _NAMES.replace("*", str(pid))


def _found(folder: Path) -> Iterator[tuple[Path, DaemonReport]]:
    for path in sorted(folder.glob(_NAMES))[:_FILES_MOST]:
        yield from _read(path)


def _read(path: Path) -> Iterator[tuple[Path, DaemonReport]]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        yield path, msgspec.json.decode(read_regular(path, _BYTES_MOST), type=DaemonReport)


def _lives(report: DaemonReport) -> bool:
    """Whether it is still the process that wrote it: its number may be another's by now."""
    return is_running(report.pid) and report.start_tick in (None, started_at_tick(report.pid))
