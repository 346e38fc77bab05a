"""A ledger on disk for one measurement, and the check afterwards that it tells what has happened."""

from __future__ import annotations

import sqlite3
from collections.abc import Sequence
from pathlib import Path

__all__ = ["BULK", "check", "check_waiting", "url_of"]

# Runs per bulk enqueue, here and in the raw loop.
BULK = 1_000


def url_of(path: Path) -> str:
    """Every commit reaches the disk: written out, so that a change of the default changes no figure."""
    return f"sqlite:///{path.resolve()}?synchronous=full"


def check(path: Path, executed: Sequence[int]) -> None:
    """Each run was executed once, and the ledger has one succeeded row for each and nothing else."""
    assert all(times == 1 for times in executed), f"{sum(times != 1 for times in executed)} runs not executed once"
    db = sqlite3.connect(path)
    try:
        live = db.execute("SELECT count(*) FROM evertick_runs").fetchone()[0]
        verdicts = dict(db.execute("SELECT verdict, count(*) FROM evertick_history GROUP BY verdict"))
    finally:
        db.close()
    assert live == 0, f"{live} runs are still in the queue"
    assert verdicts == {"succeeded": len(executed)}, f"{len(executed)} runs were executed, the ledger has {verdicts}"


def check_waiting(path: Path, count: int) -> None:
    """That many runs wait, and there is nothing else."""
    db = sqlite3.connect(path)
    try:
        states = dict(db.execute("SELECT state, count(*) FROM evertick_runs GROUP BY state"))
    finally:
        db.close()
    assert states == {"waiting": count}, f"{count} runs were enqueued, the ledger has {states}"
