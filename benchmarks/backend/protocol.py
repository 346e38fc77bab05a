"""The protocol of a backend: an empty store and a folder for one trial, both removed afterwards."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import Protocol

from evertick.store.base import Store

__all__ = ["HISTORY_DAYS", "Backend", "LedgerBackend", "check_history"]

# A long history is spread over these days, up to today.
HISTORY_DAYS = 10


class Backend(Protocol):
    """For any contender."""

    @property
    def folder(self) -> Path: ...

    @property
    def url(self) -> str:
        """The address in the form that contenders take."""
        ...

    def settle(self) -> None:
        """Do the maintenance that the store would do in the minutes after it was filled."""
        ...

    def server_seconds(self) -> float:
        """Processor time of the server so far; 0 without a server."""
        ...

    def check_durable(self) -> None:
        """Raise `NotDurable` if a power cut could undo commits."""
        ...

    def close(self) -> None: ...


class LedgerBackend(Backend, Protocol):
    """For Evertick, whose ledger can be read back."""

    def check(self, count: int) -> None:
        """Check that the ledger has that many succeeded runs besides older history, and nothing else."""
        ...

    def waiting(self) -> list[int]:
        """The numbers of the runs that wait for a claim."""
        ...

    def last_written(self, since_us: int) -> float:
        """When the store wrote the last end of a run that was due since then, in seconds since 1970."""
        ...

    def succeeded(self, first_us: int, end_us: int) -> int:
        """How many moments in that time have a succeeded run."""
        ...

    def outstanding(self, first_us: int, end_us: int, period_us: int) -> int:
        """How many moments in that time are still due, live, or in a gap, by the ledger.

        Each schedule has one moment in a period, and the time is a multiple of periods.
        """
        ...

    def add_history(self, count: int) -> None:
        """Write that many finished runs of the last ten days."""
        ...

    def store(self) -> AbstractAsyncContextManager[Store]: ...

    def open_transaction(self) -> AbstractAsyncContextManager[None]:
        """Hold a transaction open that has read."""
        ...


def check_history(count: int, live: int, verdicts: Mapping[str, int]) -> None:
    """One succeeded row for each execution, and no live run."""
    assert live == 0, f"{live} runs are still in the queue"
    assert verdicts == {"succeeded": count}, f"{count} runs were executed, the ledger has {dict(verdicts)}"
