"""What happened, in order: every change of the ledger, every start and end of a job, every deed of people and nature.

The ledger's changes are taken down by triggers inside the transactions that make them, so that what is rolled back was
never written. Nothing here judges; the oracle reads it afterwards, and its hash is the trace of a seed.
"""

from __future__ import annotations

import sqlite3
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

__all__ = ["Deed", "Dispatching", "DutyAct", "Errand", "Happening", "Job", "Journal", "RowChange"]

_RUN = (
    "id schedule_id version task cause fire_at due_at queue priority state verdict reason expires unique_key attempts "
    "losses node fence started_at finished_at deadline at_most_once is_cancel_requested blocked_on limit_key progress"
)
_WATCHED: dict[str, tuple[str, tuple[str, ...], str]] = {
    # table: (columns, when to look, a condition on an update)
    "runs": (f"{_RUN} dispatch dispatched_at pushed_at taken_at killed_at", ("INSERT", "UPDATE"), ""),
    "history": (f"{_RUN} result", ("INSERT",), ""),
    "due": ("schedule_id version fire_at at after_end fires error", ("INSERT", "UPDATE", "DELETE"), ""),
    "schedules": ("id key definition pause occurrences created_at", ("INSERT", "UPDATE", "DELETE"), ""),
    "gaps": ("schedule_id first_at last_at count is_exact verdict reason", ("INSERT",), ""),
    "log_chunks": ("run fence seq count", ("INSERT", "UPDATE"), ""),
    "limits": ("key free_at", ("INSERT", "UPDATE", "DELETE"), ""),
    "duties": (
        "name node term since",
        ("INSERT", "UPDATE", "DELETE"),
        "WHEN OLD.node IS NOT NEW.node OR OLD.term IS NOT NEW.term",
    ),
    "outbox": (
        "id channel key state attempts due_at node fence claimed_at caused_by dispatches",
        ("INSERT", "UPDATE", "DELETE"),
        "",
    ),
    "nodes": ("id name lease_until died_at", ("INSERT", "UPDATE"), "WHEN OLD.died_at IS NOT NEW.died_at"),
}


class RowChange(NamedTuple):
    """A row as an intent left it; for a deleted one, as it was."""

    at: int
    # Which call to the store did it: its name, its number, and who called.
    intent: str
    call: int
    who: str
    table: str
    how: str
    row: dict[str, Any]


class Job(NamedTuple):
    """A job's own word, spoken outside of the store."""

    at: int
    # started, returned, raised, skipped, cancelled, ignored (a cancel)
    what: str
    run: str
    fence: int
    who: str
    attempt: int
    task: str
    cause: str = ""


class Dispatching(NamedTuple):
    """A sender's own word about a message, spoken outside of the store."""

    at: int
    # begun, delivered, failed, cut off
    what: str
    message: str
    # The incarnation that claimed it, and the machine it is on.
    node: str
    who: str
    attempts: int


class Errand(NamedTuple):
    """What happens to a dispatched run outside of the ledger: in the queue, and by its worker's own word."""

    at: int
    # pushed (the queue has its message), started, fell silent, killed, finished, failed, skipped; of the queue itself,
    # without a run: went away, came back
    what: str
    run: str
    fence: int
    task: str
    attempt: int


class DutyAct(NamedTuple):
    """The word of whoever does a duty, spoken outside of the store."""

    at: int
    duty: str
    term: int
    # The incarnation that holds it, and the machine it is on.
    node: str
    who: str


class Deed(NamedTuple):
    """What people or nature did, or what a call brought."""

    at: int
    who: str
    what: str
    about: str
    detail: Any = None


Happening = RowChange | Job | Dispatching | Errand | DutyAct | Deed


class Journal:
    """All happenings of one simulation."""

    def __init__(self) -> None:
        self.all: list[Happening] = []
        self._db: sqlite3.Connection | None = None
        self._seen = 0

    def watch(self, db: sqlite3.Connection) -> None:
        """Take down every change of this database from now on."""
        self._db = db
        db.execute("CREATE TEMP TABLE journal (seq INTEGER PRIMARY KEY, tab TEXT, how TEXT, data TEXT)")
        for table, (columns, hows, condition) in _WATCHED.items():
            for how in hows:
                side = "OLD" if how == "DELETE" else "NEW"
                pairs = ", ".join(f"'{name}', {side}.{name}" for name in columns.split())
                when = condition if how == "UPDATE" else ""
                db.execute(
                    f"CREATE TEMP TRIGGER watch_{table}_{how} AFTER {how} ON main.evertick_{table} {when} BEGIN "
                    f"INSERT INTO journal (tab, how, data) VALUES ('{table}', '{how}', json_object({pairs})); END"
                )
        self._seen = db.total_changes

    def harvest(self, at: int, intent: str, call: int, who: str) -> None:
        """Take over what the call that has just ended changed."""
        assert self._db is not None
        if self._db.total_changes == self._seen:
            return
        for _, table, how, data in self._db.execute("SELECT seq, tab, how, data FROM temp.journal ORDER BY seq"):
            row = msgspec.json.decode(data)
            self.all.append(RowChange(at, intent, call, who, table, how.lower(), row))
        self._db.execute("DELETE FROM temp.journal")
        self._seen = self._db.total_changes

    def add(self, happening: Happening) -> None:
        self.all.append(happening)

    def trace(self) -> str:
        """The same for the same course of events, in every process."""
        digest = blake2b(digest_size=16)
        for happening in self.all:
            digest.update(repr(happening).encode())
        return digest.hexdigest()
