"""The events of a simulation, in order: changes of the ledger, starts and ends of jobs, faults and users' actions.

Triggers record the changes of the ledger inside their transactions, so a rollback leaves no event. The checks read the
journal afterwards; its hash is the trace of a seed.
"""

from __future__ import annotations

import sqlite3
from hashlib import blake2b
from typing import Any, NamedTuple

import msgspec

__all__ = ["Action", "DeliveryEvent", "DutyEvent", "Event", "JobEvent", "Journal", "QueueEvent", "RowChange"]

_RUN = (
    "id schedule_id version task cause fire_at due_at queue priority state verdict reason expires unique_key attempts "
    "losses node fence started_at finished_at deadline at_most_once is_cancel_requested blocked_on limit_key progress"
)
_WATCHED: dict[str, tuple[str, tuple[str, ...], str]] = {
    # table: (columns, operations, a condition on an update)
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
    """A row after a call changed it; a deleted one as it was before."""

    at: int
    # The call to the store: its name, its number, and the caller.
    intent: str
    call: int
    who: str
    table: str
    how: str
    row: dict[str, Any]


class JobEvent(NamedTuple):
    """An event that a job recorded, outside of the store."""

    at: int
    # started, returned, raised, skipped, cancelled, ignored (a cancel)
    what: str
    run: str
    fence: int
    who: str
    attempt: int
    task: str
    cause: str = ""


class DeliveryEvent(NamedTuple):
    """An event that a sender recorded about a message, outside of the store."""

    at: int
    # begun, delivered, failed, cut off
    what: str
    message: str
    # The node that claimed it, and its machine.
    node: str
    who: str
    attempts: int


class QueueEvent(NamedTuple):
    """An event of a dispatched run in the queue or at its worker, outside of the ledger."""

    at: int
    # pushed (the queue has its message), started, fell silent, killed, finished, failed, skipped; of the queue itself,
    # without a run: went away, came back
    what: str
    run: str
    fence: int
    task: str
    attempt: int


class DutyEvent(NamedTuple):
    """An act of the holder of a duty, recorded outside of the store."""

    at: int
    duty: str
    term: int
    # The node that holds it, and its machine.
    node: str
    who: str


class Action(NamedTuple):
    """A fault, a user's action, or a call with its answer."""

    at: int
    who: str
    what: str
    about: str
    detail: Any = None


Event = RowChange | JobEvent | DeliveryEvent | QueueEvent | DutyEvent | Action


class Journal:
    """All events of one simulation."""

    def __init__(self) -> None:
        self.all: list[Event] = []
        self._db: sqlite3.Connection | None = None
        self._seen = 0

    def watch(self, db: sqlite3.Connection) -> None:
        """Record every change of this database from now on."""
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
        """Read the changes of the call that has just ended."""
        assert self._db is not None
        if self._db.total_changes == self._seen:
            return
        for _, table, how, data in self._db.execute("SELECT seq, tab, how, data FROM temp.journal ORDER BY seq"):
            row = msgspec.json.decode(data)
            self.all.append(RowChange(at, intent, call, who, table, how.lower(), row))
        self._db.execute("DELETE FROM temp.journal")
        self._seen = self._db.total_changes

    def add(self, event: Event) -> None:
        self.all.append(event)

    def trace(self) -> str:
        """A hash that is the same for the same events, in every process."""
        digest = blake2b(digest_size=16)
        for event in self.all:
            digest.update(repr(event).encode())
        return digest.hexdigest()
