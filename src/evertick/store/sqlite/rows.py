"""Between rows and structs: JSON text in and out of columns, and the structs that people read.

Reading never raises for one bad row: what cannot be decoded is left out, or shown as the text it is.
"""

from __future__ import annotations

import sqlite3
from datetime import datetime
from typing import Any

import msgspec

from evertick.limits import shown_key
from evertick.model import Attempt, Cause, Claimed, Definition, Gap, Node, Occurrence, Pause, Phase, Run, State, Verdict
from evertick.store.base import DeclaredBy, StoredSchedule
from evertick.when.moment import from_us

__all__ = [
    "FORMAT",
    "attempt_of",
    "claimed_of",
    "gap_of",
    "json_text",
    "moment",
    "node_of",
    "plain_text",
    "run_of",
    "stored_of",
]

# The newest format of a definition that this code can read.
FORMAT = 1
NO_ARGS = b"{}"
# States in which a claim holds the run, or has ended it.
_HELD = frozenset({State.RUNNING, State.HANDED, State.DONE})

_definitions = msgspec.json.Decoder(Definition)
_pauses = msgspec.json.Decoder(Pause)
_occurrences = msgspec.json.Decoder(tuple[Occurrence, ...])
_declarations = msgspec.json.Decoder(DeclaredBy)
_labels = msgspec.json.Decoder(dict[str, str])
_phases = msgspec.json.Decoder(tuple[Phase, ...])
_names = msgspec.json.Decoder(tuple[str, ...])
_encoder = msgspec.json.Encoder()


def json_text(value: object) -> str:
    return _encoder.encode(value).decode()


def plain_text(text: str | None) -> str | None:
    """Text that SQLite takes: halves of surrogate pairs (undecodable output of a program) become question marks."""
    if text is None or text.isascii():
        return text
    return text.encode(errors="replace").decode()


def moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def stored_of(row: sqlite3.Row) -> StoredSchedule | None:
    """None: this code cannot read it."""
    try:
        definition = _definitions.decode(row["definition"])
        pause = None if row["pause"] is None else _pauses.decode(row["pause"])
        occurrences = () if row["occurrences"] is None else _occurrences.decode(row["occurrences"])
        declared = None if row["declared"] is None else _declarations.decode(row["declared"])
    except msgspec.MsgspecError:
        return None
    return StoredSchedule(
        id=row["id"],
        key=row["key"],
        version=row["version"],
        created_at=row["created_at"],
        definition=definition,
        pause=pause,
        occurrences=occurrences,
        declared=declared,
        fire_at=row["fire_at"],
        at=row["at"],
        fires=row["fires"],
        failures=row["failures"],
        error=row["error"],
        fingerprint=row["fingerprint"],
        live=row["live"],
    )


def claimed_of(row: sqlite3.Row, fence: int, now: int) -> Claimed:
    return Claimed(
        id=row["id"],
        fence=fence,
        task=row["task"],
        args=NO_ARGS if row["args"] is None else row["args"].encode(),
        fire_at=row["fire_at"],
        due_at=row["due_at"],
        claimed_at=now,
        attempts=row["attempts"],
        losses=row["losses"],
        schedule_id=row["schedule_id"],
        schedule_key=row["schedule_key"],
        cause=Cause(row["cause"]),
        queue=row["queue"],
        priority=row["priority"],
        labels=labels_of(row),
        traceparent=row["traceparent"],
    )


def run_of(row: sqlite3.Row, *, is_new: bool = True) -> Run:
    args = row["args"] if row["args"] is not None else row["schedule_args"]
    state = State(row["state"])
    # A run that went back keeps its last claim in the row, but nobody holds it.
    is_held = state in _HELD
    # What it waits for: a run before it, or a limit.
    limit, key = (None, None) if state is not State.BLOCKED or row["limit_key"] is None else shown_key(row["limit_key"])
    return Run(
        id=row["id"],
        app=row["app"],
        schedule_key=row["schedule_key"],
        task=row["task"],
        args={} if args is None else _shown(args),
        fire_at=from_us(row["fire_at"]),
        due_at=from_us(row["due_at"]),
        state=state,
        verdict=None if row["verdict"] is None else Verdict(row["verdict"]),
        reason=row["parked_for"] or limit or row["reason"],
        cause=Cause(row["cause"]),
        attempts=row["attempts"],
        losses=row["losses"],
        queue=row["queue"],
        priority=row["priority"],
        labels=labels_of(row),
        created_at=from_us(row["created_at"]),
        started_at=moment(row["started_at"]),
        finished_at=moment(row["finished_at"]),
        expires_at=None if row["expires"] is None else moment(row["due_at"] + row["expires"]),
        node=row["node"] if is_held else None,
        fence=row["fence"] if is_held else None,
        result=None if row["result"] is None else _shown(row["result"]),
        error=row["error"],
        progress=row["progress"],
        progress_text=row["progress_text"],
        phases=() if row["phases"] is None else _phases.decode(row["phases"]),
        blocked_on=row["blocked_on"] or key,
        caused_by=row["caused_by"],
        is_cancel_requested=bool(row["is_cancel_requested"]),
        is_new=is_new,
    )


def gap_of(row: sqlite3.Row) -> Gap:
    return Gap(
        schedule_key=row["schedule_key"],
        first_at=from_us(row["first_at"]),
        last_at=from_us(row["last_at"]),
        count=row["count"],
        is_exact=bool(row["is_exact"]),
        verdict=Verdict(row["verdict"]),
        reason=row["reason"],
        recorded_at=from_us(row["recorded_at"]),
    )


def attempt_of(row: sqlite3.Row) -> Attempt:
    return Attempt(
        number=row["number"],
        fence=row["fence"],
        node=row["node"],
        started_at=moment(row["started_at"]),
        finished_at=from_us(row["finished_at"]),
        error=row["error"],
        reason=row["reason"],
    )


def node_of(row: sqlite3.Row) -> Node:
    return Node(
        id=row["id"],
        name=row["name"],
        app=row["app"],
        version=row["version"],
        started_at=from_us(row["started_at"]),
        beat_at=from_us(row["beat_at"]),
        lease_until=from_us(row["lease_until"]),
        died_at=moment(row["died_at"]),
        queues=_names.decode(row["queues"]),
        tasks=_names.decode(row["tasks"]),
        declares=_labels.decode(row["declares"]),
        running=row["running"],
    )


def labels_of(row: sqlite3.Row) -> dict[str, str]:
    return {} if row["labels"] is None else _labels.decode(row["labels"])


def _shown(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text
