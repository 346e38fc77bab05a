"""What a daemon says of itself to whoever asks on its machine: a small file in its state directory.

The ledger knows the nodes; only the daemon knows which file it was made from, and whether that could be read again. The
file is replaced as a whole, and goes with its daemon. One whose process is gone says nothing about anybody.
"""

from __future__ import annotations

import contextlib
import os
from datetime import datetime
from pathlib import Path

import msgspec

__all__ = ["DaemonReport", "forget_report", "read_report", "write_report"]

_NAME = "daemon.json"
_MODE = 0o600
_BYTES_MOST = 256 * 1024


class DaemonReport(msgspec.Struct, frozen=True, kw_only=True):
    """A daemon, as of its last change."""

    pid: int
    version: str
    node: str
    # The file that it was made from; None: environment and flags alone.
    config: str | None
    jobs: int
    started_at: datetime
    # When the files were last read again, and what was wrong with them then. While that is so, the older state holds.
    reloaded_at: datetime | None = None
    problems: tuple[str, ...] = ()
    # Settings that have changed in the files, and count from the next start on.
    wants_restart: tuple[str, ...] = ()


def write_report(folder: Path, report: DaemonReport) -> None:
    """Raises OSError where it cannot be written."""
    path, fresh = folder / _NAME, folder / f"{_NAME}.{os.getpid()}"
    written = os.open(fresh, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, _MODE)
    try:
        os.write(written, msgspec.json.encode(report))
    finally:
        os.close(written)
    os.replace(fresh, path)


def read_report(folder: Path) -> DaemonReport | None:
    """What the daemon of this directory says; None: there is none, or it cannot be read by this user."""
    try:
        with (folder / _NAME).open("rb") as file:
            report = msgspec.json.decode(file.read(_BYTES_MOST), type=DaemonReport)
    except (OSError, msgspec.MsgspecError):
        return None
    return report if _lives(report.pid) else None


def forget_report(folder: Path) -> None:
    """At the end of its daemon; that of another one stays."""
    report = read_report(folder)
    if report is not None and report.pid == os.getpid():
        with contextlib.suppress(OSError):
            (folder / _NAME).unlink()


def _lives(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except OSError:
        return True
    return True
