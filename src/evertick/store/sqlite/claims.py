"""Claims: a node becomes the owner of due runs.

Highest priority first, then longest due. The waiting runs of one queue and priority are a lane. Lanes in use are found
by one index search each, so that future runs of a high priority cost nothing. A few statements read and claim any
number of runs, and an unreadable run does not affect the others.
"""

from __future__ import annotations

import sqlite3
from collections import defaultdict
from collections.abc import Collection, Mapping, Sequence
from itertools import groupby
from operator import itemgetter
from typing import Any, NamedTuple

import msgspec

from evertick.model import Cause, Claimed, Reason, Verdict
from evertick.store.base import Claim, TaskTerms
from evertick.store.rows import NO_ARGS, Row, json_text
from evertick.store.sqlite.connection import SQL, draw_fence, in_parts
from evertick.store.sqlite.endings import end, finish
from evertick.store.sqlite.feed import publish_runs
from evertick.store.sqlite.limits import Gate, check_again
from evertick.store.verdicts import Ending, unreadable_runs

__all__ = ["Candidate", "ClaimQuery", "claim", "read_candidates"]

# --- runs that a claim may take ---------------------------------------------------------------------------------------


class Candidate(msgspec.Struct, frozen=True, array_like=True):
    """In the column order of `claim.read`."""

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
    # Whether a claim changes more than the owner: a limit, or a unique key that lasts until the start.
    has_marks: int
    args: str | None


class CandidateRows(NamedTuple):
    """The readable runs, and the others with their errors."""

    candidates: list[Candidate]
    unreadable: list[tuple[Row, str]]

    def without(self, ids: Collection[str]) -> list[Candidate]:
        return [run for run in self.candidates if run.id not in ids] if ids else self.candidates


_all = msgspec.json.Decoder(list[Candidate])
_one = msgspec.json.Decoder(Candidate)
_each = msgspec.json.Decoder(list[msgspec.Raw])


def read_candidates(db: sqlite3.Connection, app: str, ids: Sequence[str]) -> CandidateRows:
    """In the order of the ids."""
    found = CandidateRows([], [])
    for part in in_parts(ids):
        text = db.execute(SQL["claim.read"], (app, json_text(part))).fetchone()[0]
        try:
            found.candidates.extend(_all.decode(text))
        except msgspec.MsgspecError:
            _read_each(text, found)
    return found


def _read_each(text: str, found: CandidateRows) -> None:
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


# --- claims -----------------------------------------------------------------------------------------------------------


# Runs that one claim reads without claiming them, at most: expired ones, and those blocked by a limit. Bounds its
# transaction. The next claim follows at once.
_PASSED_MOST = 1_000


class _Lane(NamedTuple):
    """The waiting runs of one queue and priority."""

    queue: str
    priority: int
    # Of the first run that the node can run.
    due_at: int


_lanes_of = msgspec.json.Decoder(list[tuple[str, int, int | None]])
_due_of = msgspec.json.Decoder(list[tuple[int, str]])


def claim(
    db: sqlite3.Connection,
    now: int,
    app: str,
    node: str,
    queues: Sequence[str],
    tasks: Mapping[str, TaskTerms],
    limit: int,
) -> Claim:
    alive = db.execute(SQL["claim.node"], (node,)).fetchone()
    if alive is None:
        return Claim(now=now, fence=0, runs=[], expired=[], next_due_at=None)
    wanted = (app, json_text(list(queues)), json_text(list(tasks)))
    # Only with free slots: released runs should be claimed here, before a node without room blocks them again.
    has_more_keys = limit > 0 and alive["looked_at"] is not None and check_again(db, app, node, alive["looked_at"])
    gate = Gate.of(db, now, app, tasks)
    if gate is not None:
        gate.open_due()
    query = ClaimQuery(db, now, app, node, tasks)
    expired: list[str] = []
    passed = 0
    while passed < _PASSED_MOST:
        ids = _due(db, now, wanted, limit - len(query.claimed))
        found = read_candidates(db, app, ids)
        too_old = [run.id for run in found.candidates if _is_expired(run, now)]
        # Those behind them come into view, as with runs that a limit blocks.
        end(db, now, app, [Ending(id_, Verdict.MISSED, Reason.EXPIRED) for id_ in too_old])
        expired += too_old
        if gate is None and any(run.limit_key is not None for run in found.candidates):
            # They were blocked by a limit that the code no longer has. Release the runs behind them here, before a
            # node that still has the limit blocks them again.
            gate = Gate(db, now, app, tasks)
        taken = query.take(found.without(set(too_old)), gate)
        query.park_unreadable(found.unreadable)
        passed += len(ids) - taken
        has_released = gate is not None and gate.settle(limit - len(query.claimed))
        if taken == len(ids) and not has_released:
            break
    # More may be waiting than there were slots; the next claim finds out.
    has_more = has_more_keys or len(query.claimed) == limit > 0
    next_due_at = now if has_more else _next_due(db, wanted, gate)
    return Claim(now=now, fence=query.fence, runs=query.claimed, expired=expired, next_due_at=next_due_at)


class ClaimQuery:
    """Claims runs for a node under one fence, which is drawn with the first run."""

    def __init__(self, db: sqlite3.Connection, now: int, app: str, node: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._node = node
        self._tasks = tasks
        self.fence = 0
        self.claimed: list[Claimed] = []

    def take(self, runs: Sequence[Candidate], gate: Gate | None = None) -> int:
        """Claim those that pass the gate; returns their number."""
        keys: Mapping[str, str | None] = {} if gate is None else gate.pass_through(runs)
        passed = runs if gate is None else [run for run in runs if run.id in keys]
        if not passed:
            return 0
        groups: defaultdict[tuple[int | None, bool], list[str]] = defaultdict(list)
        for run in passed:
            terms = self._tasks[run.task]
            groups[terms.timeout, terms.at_most_once].append(run.id)
        for (timeout, at_most_once), ids in groups.items():
            self._own(ids, timeout, at_most_once)
        marked = [run for run in passed if run.has_marks or keys.get(run.id) is not None]
        if marked:
            marks = [(self._app, run.id, keys.get(run.id)) for run in marked]
            self._db.executemany(SQL["claim.mark"], marks)
        self.claimed += [claimed_of(run, self.fence, self._now) for run in passed]
        publish_runs(self._db, self._now, self._app, "run.started", [run.id for run in passed])
        return len(passed)

    def park_unreadable(self, unreadable: Sequence[tuple[Row, str]]) -> None:
        """Park unreadable runs. They are claimed first, because only an owner can set the error of a run."""
        if unreadable:
            self._own([row["id"] for row, _ in unreadable])
            finish(self._db, self._now, self._app, self._node, unreadable_runs(unreadable, self.fence))

    def _own(self, ids: Sequence[str], timeout: int | None = None, at_most_once: bool = False) -> None:
        self.fence = self.fence or draw_fence(self._db)
        deadline = None if timeout is None else self._now + timeout
        start = (self._node, self.fence, self._now, deadline, at_most_once)
        self._db.execute(SQL["claim.take"], (self._app, json_text(ids), *start))


def _lanes(db: sqlite3.Connection, wanted: tuple[str, str, str]) -> list[_Lane]:
    """Lanes with a run that the node can run, due or not; highest priority first."""
    found = _lanes_of.decode(db.execute(SQL["claim.lanes"], wanted).fetchone()[0])
    return [_Lane(queue, priority, due_at) for queue, priority, due_at in found if due_at is not None]


def _due(db: sqlite3.Connection, now: int, wanted: tuple[str, str, str], limit: int) -> list[str]:
    app, _, tasks = wanted
    ids: list[str] = []
    if limit <= 0:
        return ids
    due = [lane for lane in _lanes(db, wanted) if lane.due_at <= now]
    for priority, lanes in groupby(due, key=lambda lane: lane.priority):
        room = limit - len(ids)
        found: list[tuple[int, str]] = []
        for lane in lanes:
            rows = db.execute(SQL["claim.due"], (app, lane.queue, priority, now, tasks, room)).fetchone()[0]
            found += _due_of.decode(rows)
        found.sort(key=itemgetter(0))
        ids += [id_ for _, id_ in found[:room]]
        if len(ids) == limit:
            break
    return ids


def _next_due(db: sqlite3.Connection, wanted: tuple[str, str, str], gate: Gate | None) -> int | None:
    """When the next run is due, or a limit is free."""
    times = [lane.due_at for lane in _lanes(db, wanted)]
    if gate is not None and (free_at := gate.next_free_at()) is not None:
        times.append(free_at)
    return min(times, default=None)


def _is_expired(run: Candidate, now: int) -> bool:
    return run.expires is not None and run.due_at + run.expires < now
