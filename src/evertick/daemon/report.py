"""The report of a daemon for commands on its machine: a small file in its state directory.

It has facts that are not in the ledger: the configuration file, the result of the last reload, and digests of the jobs.
Each daemon in a directory has its own file, replaced as a whole. A file without a running process shows a crash; the
next daemon that writes removes it. The report of the daemon that ended last is kept under another name, so that the
next one sees its configuration file.
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
# Enough for ten thousand jobs with long names.
_BYTES_MOST = 16 * 1024 * 1024
# At most this many reports of a directory are read.
_FILES_MOST = 100


class DaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """The state of a daemon."""

    pid: int
    # Distinguishes it from another process with the same number, if the system supports it.
    start_tick: int | None = None
    version: str
    node: str
    # The incarnation of its node when the report was written.
    node_id: str = ""
    # The configuration file; None: only environment and flags.
    config: str | None
    jobs: int
    started_at: datetime
    # Its ledger, without a password.
    database: str = ""
    app: str = "default"
    # When it reloads its files: on a change, on a signal, or never.
    reload: str = "change"
    # By job, its keys that are not of the schedule, each with a digest of the value.
    does: dict[str, dict[str, str]] = {}
    # The time and the problems of the last reload. With problems, the previous configuration is in force.
    reloaded_at: datetime | None = None
    problems: tuple[str, ...] = ()
    # Changed settings that take effect after a restart.
    wants_restart: tuple[str, ...] = ()


def write_report(folder: Path, report: DaemonReport) -> None:
    """Raises OSError if it cannot be written."""
    path = _path(folder, report.pid)
    fresh = path.with_suffix(".new")
    written = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
    with os.fdopen(written, "wb") as file:
        file.write(msgspec.json.encode(report))
    os.replace(fresh, path)
    for other, report in _found(folder):
        if not _is_alive(report):
            other.unlink(missing_ok=True)


def read_reports(folder: Path) -> list[DaemonReport]:
    """Reports of running daemons that this user may read, the oldest first."""
    return sorted((report for _, report in _found(folder) if _is_alive(report)), key=lambda report: report.started_at)


def read_dead_reports(folder: Path) -> list[DaemonReport]:
    """Reports of daemons that crashed; a daemon that ends normally removes its own."""
    return [report for _, report in _found(folder) if not _is_alive(report)]


def remove_report(folder: Path, pid: int) -> None:
    """Keep the report of a daemon that ends under the name of the last one."""
    with contextlib.suppress(OSError):
        os.replace(_path(folder, pid), folder / _LAST)


def read_previous_reports(folder: Path) -> list[DaemonReport]:
    """All reports of this directory: of running and crashed daemons, and of the one that ended last."""
    return [report for _, report in (*_found(folder), *_read(folder / _LAST))]


def _path(folder: Path, pid: int) -> Path:
    return folder / _NAMES.replace("*", str(pid))


def _found(folder: Path) -> Iterator[tuple[Path, DaemonReport]]:
    for path in sorted(folder.glob(_NAMES))[:_FILES_MOST]:
        yield from _read(path)


def _read(path: Path) -> Iterator[tuple[Path, DaemonReport]]:
    with contextlib.suppress(OSError, msgspec.MsgspecError):
        yield path, msgspec.json.decode(read_regular(path, _BYTES_MOST), type=DaemonReport)


def _is_alive(report: DaemonReport) -> bool:
    """Whether the process that wrote it is running; its number may have been reused."""
    return is_running(report.pid) and report.start_tick in (None, started_at_tick(report.pid))
