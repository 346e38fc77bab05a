"""Runs that a claim may take, as it reads them: many at once, and one that makes no sense does not hide the others."""

from __future__ import annotations

import sqlite3
from collections.abc import Collection, Sequence
from typing import Any, NamedTuple

import msgspec

from evertick.model import Cause, Claimed
from evertick.store.rows import NO_ARGS, Row, json_text
from evertick.store.sqlite.json_chunks import in_parts
from evertick.store.sqlite.queries import SQL

__all__ = ["Candidate", "Found", "claimed_of", "read_candidates"]


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """In the order of `claim.read`."""

    id: str
    task: str
    fire_at: int
    due_at: int
    attempts: int
    losses: int
    schedule_id: int | None
    schedule_key: str | None
    cause: Cause
    queue: str
    priority: int
    labels: dict[str, str] | None
    traceparent: str | None
    expires: int | None
    limit_key: str | None
    # Whether taking it changes more than its owner: its limit, or a unique key that lasts until the start.
    has_marks: int
    args: str | None


class Found(NamedTuple):
    """What can be read, and the rest with what is wrong with it."""

    candidates: list[Candidate]
    unreadable: list[tuple[Row, str]]

    def without(self, ids: Collection[str]) -> list[Candidate]:
        return [run for run in self.candidates if run.id not in ids] if ids else self.candidates


_all = msgspec.json.Decoder(list[Candidate])
_one = msgspec.json.Decoder(Candidate)
_each = msgspec.json.Decoder(list[msgspec.Raw])


def read_candidates(db: sqlite3.Connection, app: str, ids: Sequence[str]) -> Found:
    """In the order of the ids."""
    found = Found([], [])
    for part in in_parts(ids):
        text = db.execute(SQL["claim.read"], (app, json_text(part))).fetchone()[0]
        try:
            found.candidates.extend(_all.decode(text))
        except msgspec.MsgspecError:
            _read_each(text, found)
    return found


def _read_each(text: str, found: Found) -> None:
    for raw in _each.decode(text):
        try:
            found.candidates.append(_one.decode(raw))
        except msgspec.MsgspecError as error:
            id_, task, *_ = msgspec.json.decode(raw, type=list[Any])
            found.unreadable.append(({"id": id_, "task": task}, str(error)))


def claimed_of(run: Candidate, fence: int, now: int) -> Claimed:
    return Claimed(
        id=run.id,
        fence=fence,
        task=run.task,
        args=NO_ARGS if run.args is None else run.args.encode(),
        fire_at=run.fire_at,
        due_at=run.due_at,
        claimed_at=now,
        attempts=run.attempts,
        losses=run.losses,
        schedule_id=run.schedule_id,
        schedule_key=run.schedule_key,
        cause=run.cause,
        queue=run.queue,
        priority=run.priority,
        labels=run.labels or {},
        traceparent=run.traceparent,
    )
