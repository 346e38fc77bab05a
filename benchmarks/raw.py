"""What the same work costs in SQL alone: the same rows through the same tables and indexes, by a loop, no scheduler.

Same durability (WAL, synchronous=FULL), one commit per batch: the batch before is ended and moves to history, the next
is claimed. Nothing recovers, retries, or is fenced. It is a yardstick, not a design, and not the fastest loop there is:
one that wrote each row less often would be faster, and would no longer do the same work.
"""

from __future__ import annotations

import asyncio
import sqlite3
import time
from pathlib import Path

from benchmarks.ledger import BULK, SqliteLedger
from benchmarks.size import Size
from evertick import Scheduler

__all__ = ["measure_enqueue", "measure_execution"]

_CLAIM = """
UPDATE evertick_runs SET state = 'running', node = 'raw', fence = ?2, started_at = ?3
WHERE app = 'default' AND id IN (
    SELECT id FROM evertick_runs INDEXED BY evertick_runs_claim
    WHERE state = 'waiting' AND app = 'default' AND queue = 'default' AND priority = 0 AND due_at <= ?3
        AND task = 'count'
    ORDER BY due_at LIMIT ?1)
RETURNING id
"""
_END = """
UPDATE evertick_runs INDEXED BY evertick_runs_running
SET state = 'done', verdict = 'succeeded', attempts = 1, finished_at = ?1
WHERE state = 'running' AND app = 'default' AND node = 'raw'
"""
_ARCHIVE = "INSERT INTO evertick_history SELECT * FROM evertick_runs WHERE app = 'default' AND state = 'done'"
_FORGET = "DELETE FROM evertick_runs WHERE app = 'default' AND state = 'done'"


def measure_execution(ledger: SqliteLedger, size: Size, batch: int) -> dict[str, float]:
    folder = ledger.path.parent
    rows = _rows(folder, size.runs)
    db = _empty(folder / "raw.db")
    _insert(db, rows, BULK)
    executed: dict[str, int] = {}

    began = time.perf_counter()
    fence, claimed = 1, _claim(db, batch, 1)
    while claimed:
        for id_ in claimed:
            executed[id_] = executed.get(id_, 0) + 1
        fence += 1
        claimed = _finish_and_claim(db, claimed, batch, fence)
    seconds = time.perf_counter() - began

    db.close()
    assert len(executed) == size.runs, f"{len(executed)} of {size.runs} runs were executed"
    asyncio.run(SqliteLedger(folder / "raw.db").check(list(executed.values())))
    return {f"raw_execute_{batch}": size.runs / seconds}


def measure_enqueue(ledger: SqliteLedger, size: Size) -> dict[str, float]:
    folder = ledger.path.parent
    rows = _rows(folder, size.runs + size.single_runs)
    db = _empty(folder / "raw.db")
    in_bulk = size.runs / _insert(db, rows[: size.runs], BULK)
    one_by_one = size.single_runs / _insert(db, rows[size.runs :], 1)
    db.close()
    asyncio.run(SqliteLedger(folder / "raw.db").check_waiting(len(rows)))
    return {"raw_enqueue_bulk": in_bulk, "raw_enqueue_single": one_by_one}


def _claim(db: sqlite3.Connection, batch: int, fence: int) -> list[str]:
    db.execute("BEGIN IMMEDIATE")
    claimed = [row[0] for row in db.execute(_CLAIM, (batch, fence, time.time_ns() // 1000))]
    db.execute("COMMIT")
    return claimed


def _finish_and_claim(db: sqlite3.Connection, done: list[str], batch: int, fence: int) -> list[str]:
    now = time.time_ns() // 1000
    keys = [(id_,) for id_ in done]
    db.execute("BEGIN IMMEDIATE")
    db.execute(_END, (now,))
    # By their ids: no index leads to what is done.
    db.executemany(f"{_ARCHIVE} AND id = ?1", keys)
    db.executemany(f"{_FORGET} AND id = ?1", keys)
    claimed = [row[0] for row in db.execute(_CLAIM, (batch, fence, now))]
    db.execute("COMMIT")
    return claimed


def _insert(db: sqlite3.Connection, rows: list[tuple[object, ...]], batch: int) -> float:
    """Seconds to insert the rows, one commit per batch."""
    statement = f"INSERT INTO evertick_runs VALUES ({', '.join('?' * len(rows[0]))})"
    began = time.perf_counter()
    for first in range(0, len(rows), batch):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(statement, rows[first : first + batch])
        db.execute("COMMIT")
    return time.perf_counter() - began


def _rows(folder: Path, count: int) -> list[tuple[object, ...]]:
    """Rows as Evertick writes them."""
    path = folder / "model.db"
    asyncio.run(_enqueue(path, count))
    db = sqlite3.connect(path)
    rows = db.execute("SELECT * FROM evertick_runs ORDER BY id").fetchall()
    db.close()
    assert len(rows) == count, f"{len(rows)} rows of {count} runs"
    return rows


async def _enqueue(path: Path, count: int) -> None:
    scheduler = Scheduler(SqliteLedger(path).url)

    @scheduler.task(name="count")
    async def task(number: int) -> None: ...

    for first in range(0, count, BULK):
        await task.enqueue_many({"number": number} for number in range(first, min(first + BULK, count)))
    await scheduler.close()


def _empty(path: Path) -> sqlite3.Connection:
    """The tables and indexes that Evertick makes, without a row."""
    asyncio.run(_open(path))
    db = sqlite3.connect(path, isolation_level=None)
    db.execute("PRAGMA synchronous = FULL")
    mode = db.execute("PRAGMA journal_mode").fetchone()[0]
    assert mode == "wal", f"the journal of {path} is {mode}"
    return db


async def _open(path: Path) -> None:
    scheduler = Scheduler(SqliteLedger(path).url)
    await scheduler.health()
    await scheduler.close()
