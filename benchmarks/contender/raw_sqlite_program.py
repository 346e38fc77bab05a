"""The raw loop on SQLite: the same rows in the same tables and indexes, without a scheduler.

It has the same durability (WAL, synchronous=FULL), with one commit and three statements per batch: write the batch
before to history, delete it from the queue, claim the next; a task per run. A row is written as often as Evertick
writes it. It has no recovery, no retries and no limits: a yardstick, not a design.
"""

from __future__ import annotations

import asyncio
import functools
import json
import os
import sqlite3
import time
import uuid
from pathlib import Path

import msgspec

from benchmarks.contender import verbs
from evertick import Scheduler
from evertick.scheduler.interpreter_tuning import calm_collector

_CLAIM = """
UPDATE evertick_runs SET state = 'running', node = ?4, fence = ?2, started_at = ?3
WHERE app = 'default' AND id IN (
    SELECT id FROM evertick_runs INDEXED BY evertick_runs_claim
    WHERE state = 'waiting' AND app = 'default' AND queue = 'default' AND priority = 0 AND due_at <= ?3
        AND task = 'count'
    ORDER BY due_at LIMIT ?1)
RETURNING args
"""
# The batch of a node that has executed it.
_HELD = "evertick_runs INDEXED BY evertick_runs_running WHERE state = 'running' AND app = 'default' AND node = ?1"
_ARCHIVE = f"INSERT INTO evertick_history ({{columns}}) SELECT {{values}} FROM {_HELD}"
_FORGET = f"DELETE FROM {_HELD}"
# Columns that change when a run ends.
_ENDED = {"state": "'done'", "verdict": "'succeeded'", "attempts": "1", "finished_at": "?2"}
_BATCH = 1_000
# The format in which Evertick reads and writes arguments.
_args = msgspec.json.Decoder(dict[str, int | float])
_SHORT = (",", ":")
# The interval at which an idle loop polls.
_POLL_SECONDS = 0.01

Row = tuple[object, ...]


def fill(runs: int, singles: int) -> dict[str, float]:
    rows = asyncio.run(_rows(0, runs + singles))
    db = asyncio.run(_empty())
    bulk, single = _insert(db, rows[:runs], verbs.BULK), _insert(db, rows[runs:], 1)
    db.close()
    return {"bulk_seconds": bulk, "single_seconds": single}


def enqueue(first: int, runs: int, is_bulk: bool, at: float) -> tuple[float, float, float]:
    rows = asyncio.run(_rows(first, runs))
    db = asyncio.run(_empty())
    began, before = verbs.wait_until(at), time.process_time()
    _insert(db, rows, verbs.BULK if is_bulk else 1)
    ended, used = time.time(), time.process_time() - before
    db.close()
    return began, ended, used


async def work(schedules: int) -> None:
    db = await _empty()
    calm_collector()
    verbs.ready()
    stopped = asyncio.create_task(verbs.until_stopped())
    node, fence = str(uuid.uuid4()), 0
    done = 0
    while not stopped.done():
        fence += 1
        claimed = _finish_and_claim(db, done, node, fence)
        tasks = [asyncio.create_task(_count(args)) for args in claimed]
        for task in tasks:
            await task
        if not (claimed or done):
            await asyncio.sleep(_POLL_SECONDS)
        done = len(claimed)


async def send(runs: int, per_second: float) -> None:
    rows = await _rows(0, runs)
    db = await _empty()
    args = [column[0] for column in db.execute("SELECT * FROM evertick_runs").description].index("args")

    async def send_one(number: int, sent_at: float) -> None:
        row = list(rows[number])
        row[args] = json.dumps({"number": number, "sent_at": sent_at}, separators=_SHORT)
        _insert(db, [tuple(row)], 1)

    await verbs.pace(runs, per_second, send_one)


async def _count(args: str) -> None:
    wanted = _args.decode(args)
    verbs.tally.count(wanted["number"], wanted.get("sent_at", 0.0))


def _finish_and_claim(db: sqlite3.Connection, done: int, node: str, fence: int) -> list[str]:
    """Returns the arguments of the next batch."""
    now = time.time_ns() // 1000
    db.execute("BEGIN IMMEDIATE")
    if done:
        db.execute(_archive(db), (node, now))
        gone = db.execute(_FORGET, (node,)).rowcount
        assert gone == done, f"{done} runs were executed, {gone} were claimed"
    claimed = db.execute(_CLAIM, (_BATCH, fence, now, node)).fetchall()
    db.execute("COMMIT")
    return [args for (args,) in claimed]


def _insert(db: sqlite3.Connection, rows: list[Row], batch: int) -> float:
    """Insert the rows with one commit per batch, and return the seconds."""
    statement = f"INSERT INTO evertick_runs VALUES ({', '.join('?' * len(rows[0]))})" if rows else ""
    began = time.perf_counter()
    for first in range(0, len(rows), batch):
        db.execute("BEGIN IMMEDIATE")
        db.executemany(statement, rows[first : first + batch])
        db.execute("COMMIT")
    return time.perf_counter() - began


@functools.cache
def _archive(db: sqlite3.Connection) -> str:
    """History has only some of the columns of a live run."""
    columns = [column[0] for column in db.execute("SELECT * FROM evertick_history LIMIT 0").description]
    values = [_ENDED.get(column, column) for column in columns]
    return _ARCHIVE.format(columns=", ".join(columns), values=", ".join(values))


async def _rows(first: int, count: int) -> list[Row]:
    """Rows that Evertick has written, numbered from `first`."""
    path = verbs.FOLDER / f"model{os.getpid()}.db"
    scheduler = Scheduler(f"sqlite:///{path}")

    @scheduler.task(name="count")
    async def task(number: int) -> None: ...

    await scheduler.health()  # creates the tables, also without rows
    for numbers in verbs.bulks(count):
        await task.enqueue_many({"number": first + number} for number in numbers)
    await scheduler.close()
    db = sqlite3.connect(path)
    rows: list[Row] = db.execute("SELECT * FROM evertick_runs ORDER BY id").fetchall()
    db.close()
    assert len(rows) == count, f"{len(rows)} rows of {count} runs"
    return rows


async def _empty() -> sqlite3.Connection:
    """A database with the tables and indexes of Evertick."""
    scheduler = Scheduler(verbs.URL)
    await scheduler.health()
    await scheduler.close()
    path = Path(verbs.URL.removeprefix("sqlite:///").partition("?")[0])
    db = sqlite3.connect(path, isolation_level=None, timeout=30)
    db.execute("PRAGMA synchronous = FULL")
    db.execute("PRAGMA temp_store = MEMORY")
    mode, level = (db.execute(f"PRAGMA {name}").fetchone()[0] for name in ("journal_mode", "synchronous"))
    assert (mode, level) == ("wal", 2), f"the journal of {path} is {mode}, synchronous is {level}"
    return db


if __name__ == "__main__":
    verbs.main(fill, enqueue, work, send)
