"""A ledger on disk for one measurement, and the check afterwards that it tells what has happened."""

from __future__ import annotations

import sqlite3
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

__all__ = ["BULK", "Ledger", "SqliteLedger", "compare", "compare_waiting"]

# Runs per bulk enqueue, here and in the raw loop.
BULK = 1_000


class Ledger(Protocol):
    """Where one measurement keeps its runs. Goes from process to process."""

    @property
    def url(self) -> str: ...

    async def check(self, executed: Sequence[int]) -> None:
        """Each run was executed once, and the ledger has one succeeded row for each and nothing else."""
        ...

    async def check_waiting(self, count: int) -> None:
        """That many runs wait, and there is nothing else."""
        ...


@dataclass(frozen=True)
class SqliteLedger:
    """In a file."""

    path: Path

    @property
    def url(self) -> str:
        """Every commit reaches the disk: written out, so that a change of the default changes no figure."""
        return f"sqlite:///{self.path.resolve()}?synchronous=full"

    async def check(self, executed: Sequence[int]) -> None:
        live = self._asked("SELECT 'live', count(*) FROM evertick_runs")["live"]
        compare(executed, live, self._asked("SELECT verdict, count(*) FROM evertick_history GROUP BY verdict"))

    async def check_waiting(self, count: int) -> None:
        compare_waiting(count, self._asked("SELECT state, count(*) FROM evertick_runs GROUP BY state"))

    def _asked(self, question: str) -> dict[str, int]:
        db = sqlite3.connect(self.path)
        try:
            return dict(db.execute(question).fetchall())
        finally:
            db.close()


def compare(executed: Sequence[int], live: int, verdicts: Mapping[str, int]) -> None:
    assert all(times == 1 for times in executed), f"{sum(times != 1 for times in executed)} runs not executed once"
    assert live == 0, f"{live} runs are still in the queue"
    assert verdicts == {"succeeded": len(executed)}, f"{len(executed)} runs were executed, the ledger has {verdicts}"


def compare_waiting(count: int, states: Mapping[str, int]) -> None:
    assert states == {"waiting": count}, f"{count} runs were enqueued, the ledger has {states}"
