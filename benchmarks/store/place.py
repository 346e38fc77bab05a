"""Where one measurement happens: an empty store and a folder, both gone afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from evertick.store.base import Store

__all__ = ["BULK", "HISTORY_DAYS", "LedgerPlace", "NotDurable", "Place", "compare"]

# Runs or schedules per call, whoever is called.
BULK = 1_000
# Over which a long history is spread, up to today.
HISTORY_DAYS = 10


class NotDurable(Exception):
    """Commits do not reach the disk here, so nothing is measured; the text says why."""


class Place(Protocol):
    """For any contender."""

    @property
    def folder(self) -> Path: ...

    @property
    def url(self) -> str:
        """As contenders take it: of Evertick or SQLAlchemy, a DSN, or the address of a broker."""
        ...

    def settle(self) -> None:
        """What the store would do by itself in the minutes after it was filled."""
        ...

    def server_seconds(self) -> float:
        """Processor time that the server has used so far; 0 where there is none."""
        ...

    def check_durable(self) -> None:
        """Raises `NotDurable` if what was committed here could be gone after a power cut."""
        ...

    def close(self) -> None: ...


class LedgerPlace(Place, Protocol):
    """For Evertick, whose ledger can be read back."""

    def check(self, count: int) -> None:
        """The ledger has so many succeeded runs besides its older history, and nothing else."""
        ...

    def waiting(self) -> list[int]:
        """The numbers of runs that wait to be claimed."""
        ...

    def last_written(self, since_us: int) -> float:
        """When the store wrote down the last end of a run that was due since then, in seconds since 1970."""
        ...

    def succeeded(self, first_us: int, end_us: int) -> int:
        """How many runs of moments in that time have succeeded."""
        ...

    def outstanding(self, first_us: int, end_us: int, period_us: int) -> int:
        """How many moments in that time have not ended, and the ledger knows it: still due, live, or in a gap.

        Every schedule has one moment in each period, and the time is whole periods.
        """
        ...

    def add_history(self, count: int) -> None:
        """So many finished runs of the last ten days."""
        ...

    def store(self) -> AbstractAsyncContextManager[Store]: ...

    def held_open(self) -> AbstractAsyncContextManager[None]:
        """Somebody has begun a transaction, has read, and does not end it."""
        ...


def compare(count: int, live: int, verdicts: Mapping[str, int]) -> None:
    """One row per execution, read back: as many as there were, all of them done."""
    assert live == 0, f"{live} runs are still in the queue"
    assert verdicts == {"succeeded": count}, f"{count} runs were executed, the ledger has {dict(verdicts)}"
