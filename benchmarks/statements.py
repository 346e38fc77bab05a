"""How many statements the processes of a contender have given to SQLite, which has no server that counts them.

Each process has a file with its count in one folder, mapped into memory. SQLite itself tells of every statement that it
begins, on whatever connection; those of `executemany` are as many as there are rows, as they would be on a server.
BEGIN and COMMIT do no work of their own and are not counted, as on PostgreSQL (`store/meter.py`).
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
    """From now on, on every connection that this process opens."""
    connect, count = sqlite3.connect, _Count(folder)

    def connect_counted(*args: Any, **kwargs: Any) -> sqlite3.Connection:
        db: sqlite3.Connection = connect(*args, **kwargs)
        db.set_trace_callback(count.one)
        return db

    sqlite3.connect = connect_counted  # type: ignore[assignment]


def total(folder: Path) -> int:
    """Of all processes, so far."""
    return sum(int.from_bytes(path.read_bytes(), "little") for path in folder.glob(f"*{_SUFFIX}"))


class _Count:
    def __init__(self, folder: Path) -> None:
        path = folder / f"{os.getpid()}{_SUFFIX}"
        path.write_bytes(bytes(_BYTES))
        with path.open("r+b") as file:
            self._mapped = memoryview(mmap.mmap(file.fileno(), 0)).cast("q")
        # A store has a connection for each of its threads.
        self._lock = threading.Lock()

    def one(self, statement: str) -> None:
        if not statement.startswith(_NO_WORK):
            with self._lock:
                self._mapped[0] += 1
