"""Checks of the file system: whether it is a network file system, and which processes have the files of a ledger open.

If the -wal or -shm of an open ledger is deleted, its process continues with files that no other process can reach, and
the next process creates new ones: two ledgers under one name, and every moment runs twice. So a process with open files
checks that they still exist (`SameFiles` in `session.py`), and a new process refuses to start while another one holds
deleted files, which it sees by the locks on the file. The last process to close the file lets SQLite fold the deleted
log into it.
"""

from __future__ import annotations

import logging
import os
import sqlite3
import threading
from contextlib import closing
from pathlib import Path

from evertick.clock import system_clock
from evertick.errors import StoreRefused, StoreUnavailable
from evertick.store.sqlite.location import Location

__all__ = ["NETWORK_FILE_SYSTEMS", "LockWatch", "file_system_of", "refuse_deleted_log", "refuse_second_name"]

NETWORK_FILE_SYSTEMS = frozenset(
    {"9p", "afs", "beegfs", "ceph", "cifs", "davfs", "fuse.glusterfs", "fuse.sshfs", "gfs2", "glusterfs", "lustre"}
    | {"ncpfs", "nfs", "nfs4", "smb3", "smbfs", "vboxsf"}
)
MOUNTS = Path("/proc/self/mountinfo")
# The kernel's escapes for characters that separate the columns.
_ESCAPES = {"\\040": " ", "\\011": "\t", "\\012": "\n", "\\134": "\\"}


def file_system_of(path: Path, mounts: Path | None = None) -> str | None:
    """The type of the file system, like "ext4"; None if the system does not say."""
    try:
        lines = (mounts or MOUNTS).read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError:
        return None
    there, found, depth = path.resolve(), None, -1
    for line in lines:
        before, _, after = line.partition(" - ")
        columns = before.split()
        if len(columns) < 5 or not after:
            continue
        point = Path(_unescaped(columns[4]))
        # Of two mounts of equal depth the later one hides the earlier.
        if (point == there or point in there.parents) and len(point.parts) >= depth:
            found, depth = after.split()[0], len(point.parts)
    return found


def _unescaped(text: str) -> str:
    for escape, letter in _ESCAPES.items():
        text = text.replace(escape, letter)
    return text


# --- the files of a ledger --------------------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")

# The pause between two checks of the locks, and how often in a row a state must be seen: a process that opens the file
# takes its locks one after the other.
_PAUSE_SECONDS, _SEEN_LEAST = 0.02, 5
_LOCKS = Path("/proc/locks")
# The byte of SQLite's shared lock in the file, and of the lock in the -shm that every process with a mapping holds.
_SHARED_FIRST, _SHM_ALIVE = 0x40000000 + 2, 128


def file_size(path: str) -> int:
    try:
        return os.stat(path).st_size
    except OSError:
        return 0


def refuse_second_name(where: Location) -> None:
    """Refuse hard links: SQLite names the log after the file, so each name would have its own log and ledger."""
    if where.path is None:
        return
    try:
        found = os.stat(where.path)
    except OSError:
        return
    if found.st_nlink > 1:
        raise StoreRefused(
            f"the {where.description} has {found.st_nlink} names (hard links), and each would have its own -wal, and "
            "so its own ledger",
            fix=f"find the others with `find / -xdev -inum {found.st_ino}`, and remove all but one (a symbolic link is "
            "fine)",
        )


def refuse_deleted_log(where: Location) -> None:
    """Refuse while another process has the file open with a -wal or -shm that was deleted or replaced."""
    if where.path is None or not file_size(where.path):
        return
    real = os.path.realpath(where.path)
    pause, seen = threading.Event(), 0
    until = system_clock.elapsed() + where.busy_timeout_ms / 1000
    while True:
        if os.path.exists(real + "-wal") and os.path.exists(real + "-shm"):
            holders = _holders(real) - _holders(real + "-shm", at=_SHM_ALIVE)
            if not holders:
                return
        elif _is_free(where):
            return
        else:
            holders = _holders(real)
        seen += 1
        if seen >= _SEEN_LEAST and system_clock.elapsed() >= until:
            raise StoreUnavailable(
                f"the {where.description} is in use by {_names_of(holders)} with a -wal or -shm file that was deleted "
                "or replaced",
                fix="stop that first (it saves its part when it ends), then start again",
            )
        # Spread out, so that several processes do not check in step.
        pause.wait(_PAUSE_SECONDS + os.getpid() % 16 / 1000)


def _is_free(where: Location) -> bool:
    """Whether no connection of any process has the file open. Checked before SQLite would create a new log.

    In exclusive mode SQLite locks the whole file before it opens the log. This also folds the log of a killed process
    into the file.
    """
    uri = where.uri("rw")
    try:
        with closing(sqlite3.connect(uri, uri=True, timeout=0, isolation_level=None)) as db:
            db.execute("PRAGMA locking_mode = EXCLUSIVE").fetchall()
            db.execute("SELECT count(*) FROM sqlite_master").fetchall()
    except sqlite3.OperationalError as error:
        # Any other error is left to the next connection, which reports it better.
        return not error.sqlite_errorname.startswith(("SQLITE_BUSY", "SQLITE_LOCKED"))
    except sqlite3.DatabaseError:
        return True
    return True


def _names_of(holders: set[int]) -> str:
    if not holders:
        return "another process"
    others = sorted(holders - {os.getpid()})
    words = [f"process {pid}" for pid in others] + ["this process itself"] * (os.getpid() in holders)
    return " and ".join(words)


# --- locks


def _holders(path: str, at: int = _SHARED_FIRST) -> set[int]:
    """The processes that hold SQLite's read lock on a file; empty if the system does not say.

    Read from the system: opening and closing the file here would cancel the locks of SQLite.
    """
    try:
        found = os.stat(path)
        lines = _LOCKS.read_text().splitlines()
    except OSError:
        return set()
    place = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}:{found.st_ino}"
    holders = set()
    for line in lines:
        # "1: POSIX  ADVISORY  READ 15641 fe:00:2170946 128 128"; a waiting lock has an additional arrow.
        columns = line.split()
        if len(columns) == 8 and columns[1] == "POSIX" and columns[3] == "READ" and columns[5] == place:
            end = int(columns[7]) if columns[7] != "EOF" else at
            if int(columns[6]) <= at <= end:
                holders.add(int(columns[4]))
    return holders


class LockWatch:
    """Logs an error when this process has lost its own lock, because code in it has opened and closed the file.

    POSIX cancels all locks of a process on a file when it closes any descriptor of that file. The next process that
    closes the file then takes itself for the last one, and deletes the log of this process.
    """

    def __init__(self, where: Location) -> None:
        self._where = where
        # Impossible where the system does not list locks, or lists other process ids.
        self._is_supported = self._holds()
        self._is_logged = False

    def check(self) -> None:
        if not self._is_supported or self._is_logged or self._holds():
            return
        # The list is read in several parts, and may lack a line.
        if any(self._holds() for _ in range(_SEEN_LEAST)):
            return
        self._is_logged = True
        log.error(
            "%s: this process has lost its lock on the file, because code in it has opened and closed the file (a "
            "copy?), which cancels SQLite's locks; restart the process, and copy the file in another process or with "
            "`evertick db backup`",
            self._where.description,
        )

    def _holds(self) -> bool:
        return self._where.path is not None and os.getpid() in _holders(os.path.realpath(self._where.path))
