"""Counts the statements that a process gives to SQLite, which has no server to count them.

Each process maps a file with its count. SQLite reports each statement that begins on any connection; `executemany`
counts each row, as a server would. BEGIN and COMMIT do no work of their own and are not counted, as on PostgreSQL.
"""

from __future__ import annotations

import mmap
import os
import sqlite3
import threading
from pathlib import Path
from typing import Any

__all__ = ["count_in", "total"]

_SUFFIX = ".statements"
_BYTES = 8
_NO_WORK = ("BEGIN", "COMMIT", "ROLLBACK")


def count_in(folder: Path) -> None:
    """Count on every connection that this process opens from now on."""
    connect, counter = sqlite3.connect, _Counter(folder)

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **kwargs)
        db.set_trace_callback(counter.add)
        return db

    sqlite3.connect = connect_counted  # type: ignore[assignment]


def total(folder: Path) -> int:
    """The count of all processes so far."""
    return sum(int.from_bytes(path.read_bytes(), "little") for path in folder.glob(f"*{_SUFFIX}"))


class _Counter:
    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}{_SUFFIX}"
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._mapped = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        # A store has a connection for each of its threads.
        self._lock = threading.Lock()

    def add(self, statement: str) -> None:
        if not statement.startswith(_NO_WORK):
            with self._lock:
                self._mapped[0] += 1
