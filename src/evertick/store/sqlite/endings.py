"""The end of runs, and its effects on other rows.

A run moves from the live table to history; one statement moves all runs of a batch with equal outcomes. Then the runs
blocked on them become due, after-end schedules get their next moment, and their limits release blocked runs. Only the
holder of the newest claim may finish a run.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from evertick.model import Outcome, Verdict
from evertick.store.base import FinishAnswer, Finished
from evertick.store.rows import json_text, phases_text, storable_text
from evertick.store.sqlite.connection import PART_MOST, SQL, UNWRITABLE, savepoint
from evertick.store.sqlite.feed import publish_ended, publish_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.outbox import write_messages
from evertick.store.verdicts import RETURN_KINDS, Ending, cancelled_outcome, minimal_outcome

__all__ = [
    "EndedRun",
    "count_from_end",
    "end",
    "end_reported",
    "finish",
    "finish_each",
    "forget",
    "held_runs",
    "return_runs",
]

log = logging.getLogger("evertick.store")


class EndedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run that moves to history, as `run.ending` reads it: its schedule, and the limit that it leaves."""

    id: str
    schedule_id: int | None
    limit_key: str | None


class HeldRun(EndedRun, frozen=True, array_like=True):
    """A run that is still held by its claim, as `finish.held` reads it."""

    attempts: int
    is_cancel_requested: int
    cancel_reason: str | None


_ended = msgspec.json.Decoder(list[EndedRun])
_held = msgspec.json.Decoder(list[HeldRun])


def finish(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    answers: list[FinishAnswer] = []
    has_freed = False
    for part in _parts(outcomes):
        finished = _finish_part(db, now, app, node, part)
        answers += finished.answers
        has_freed |= finished.freed
    return Finished(answers=answers, freed=has_freed)


def _parts(outcomes: Sequence[Outcome]) -> Iterator[dict[str, Outcome]]:
    """Split where a run comes again (an outcome whose answer was lost, and the outcome of the next claim)."""
    part: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.id in part or len(part) == PART_MOST:
            yield part
            part = {}
        part[outcome.id] = outcome
    if part:
        yield part


def _finish_part(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Mapping[str, Outcome]) -> Finished:
    held, has_feed = held_runs(db, app, node, {id_: outcome.fence for id_, outcome in outcomes.items()})
    ends: list[Outcome] = []
    returned: list[Outcome] = []
    for id_, run in held.items():
        outcome = outcomes[id_]
        if outcome.kind == "done":
            ends.append(outcome)
        elif run.is_cancel_requested:
            # The request came meanwhile, and takes precedence.
            ends.append(cancelled_outcome(outcome, msgspec.structs.asdict(run)))
        else:
            returned.append(outcome)
    end_reported(db, now, app, ends)
    has_freed = forget(db, now, app, [held[outcome.id] for outcome in ends], has_feed=has_feed)
    return_runs(db, now, app, returned)
    if left := _limits_left(held, returned):
        has_freed |= make_room(db, app, left)
    if messages := [message for outcome in (*ends, *returned) for message in outcome.messages]:
        write_messages(db, now, app, messages)
    answers: list[FinishAnswer] = [
        "done" if outcome.id in held else _answered_before(db, app, node, outcome) for outcome in outcomes.values()
    ]
    return Finished(answers=answers, freed=has_freed or any(outcome.kind != "dispatch" for outcome in returned))


def finish_each(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    """For a batch with an outcome that cannot be stored: the others are written."""
    finished = [_finish_one(db, now, app, node, outcome) for outcome in outcomes]
    return Finished(answers=[one.answers[0] for one in finished], freed=any(one.freed for one in finished))


def _finish_one(db: sqlite3.Connection, now: int, app: str, node: str, outcome: Outcome) -> Finished:
    """Write the outcome, or else the part of it that can be stored. If both fail, the node releases the run later."""
    writable = outcome
    for _ in range(2):
        try:
            with savepoint(db):
                return finish(db, now, app, node, [writable])
        except UNWRITABLE as error:
            log.error("run %s: app %r: the outcome cannot be stored: %s", outcome.id, app, error)
            writable = minimal_outcome(outcome, error)
    return Finished(answers=["lost"], freed=False)


def end(db: sqlite3.Connection, now: int, app: str, endings: Sequence[Ending]) -> bool:
    """End live runs without a claim: cancelled, expired, lost. True if it made something due."""
    if not endings:
        return False
    db.executemany(SQL["run.leave_line"], [(app, ending.id) for ending in endings])
    groups: defaultdict[tuple[Verdict, str | None], list[str]] = defaultdict(list)
    for ending in endings:
        groups[ending.verdict, storable_text(ending.reason)].append(ending.id)
    ended = _ended.decode(db.execute(SQL["run.ending"], (app, json_text([each.id for each in endings]))).fetchone()[0])
    for (verdict, reason), ids in groups.items():
        written = db.execute(SQL["run.end"], (app, json_text(ids), verdict, reason, now))
        _warn_of_dropped(app, ids, written.rowcount)
    return forget(db, now, app, ended)


def count_from_end(db: sqlite3.Connection, now: int, schedules: Iterable[int]) -> bool:
    """Set the cursor of after-end schedules; others are unchanged. True if any was set."""
    return db.execute(SQL["schedule.count_from_end"], (json_text(list(schedules)), now)).rowcount > 0


def forget(
    db: sqlite3.Connection, now: int, app: str, ended: Sequence[EndedRun], *, has_feed: bool | None = None
) -> bool:
    """Delete runs that are in history from the live table, and unblock what waited for them; True if anything did."""
    if not ended:
        return False
    ids = [run.id for run in ended]
    if has_feed is not False:
        publish_ended(db, now, app, ids)
    db.execute(SQL["run.forget"], (app, json_text(ids)))
    left = [run.limit_key for run in ended if run.limit_key is not None]
    has_freed = bool(left) and make_room(db, app, left)
    schedules = {run.id: run.schedule_id for run in ended if run.schedule_id is not None}
    if schedules:
        has_freed |= db.execute(SQL["run.unblock"], (app, json_text(schedules), now)).rowcount > 0
        has_freed |= count_from_end(db, now, set(schedules.values()))
    return has_freed


def held_runs(
    db: sqlite3.Connection, app: str, node: str, fences: Mapping[str, int]
) -> tuple[dict[str, HeldRun], bool]:
    """The runs that the node still holds under these fences; and whether the app has a feed."""
    rows, has_feed = db.execute(SQL["finish.held"], (app, json_text(fences), node)).fetchone()
    return {run.id: run for run in _held.decode(rows)}, bool(has_feed)


def end_reported(db: sqlite3.Connection, now: int, app: str, ends: Sequence[Outcome]) -> None:
    groups: defaultdict[tuple[Verdict | None, int], dict[str, object]] = defaultdict(dict)
    for outcome in ends:
        groups[outcome.verdict, outcome.attempts][outcome.id] = _details(outcome)
    for (verdict, attempts), details in groups.items():
        assert verdict is not None, "an outcome of kind done has a verdict"
        written = db.execute(SQL["finish.done"], (app, json_text(details), verdict, attempts, now))
        _warn_of_dropped(app, details, written.rowcount)


def _details(outcome: Outcome) -> tuple[str | None, ...] | None:
    """Reason, error, result and phases; None if all are empty, as for most runs."""
    if outcome.reason is None and outcome.error is None and outcome.result is None and not outcome.phases:
        return None
    result = None if outcome.result is None else outcome.result.decode()
    return storable_text(outcome.reason), storable_text(outcome.error), result, phases_text(outcome.phases)


def _warn_of_dropped(app: str, ids: Collection[str], written: int) -> None:
    if written < len(ids):
        log.warning("app %r: some of these runs are dropped, because history has their moments: %s", app, list(ids))


def return_runs(db: sqlite3.Connection, now: int, app: str, returned: Sequence[Outcome]) -> None:
    if not returned:
        return
    dispatched: dict[str, str] = {}
    for outcome in returned:
        reason, error = storable_text(outcome.reason), storable_text(outcome.error)
        match outcome.kind:
            case "retry":
                phases = phases_text(outcome.phases)
                db.execute(SQL["finish.keep_attempt"], (app, outcome.id, outcome.attempts, now, error, reason, phases))
                db.execute(SQL["finish.retry"], (app, outcome.id, now + outcome.delay, outcome.attempts, error, phases))
            case "release":
                phases = phases_text(outcome.phases)
                db.execute(SQL["keep_cut_off"], (app, outcome.id, now, reason, phases, False))
                db.execute(SQL["finish.release"], (app, outcome.id, now + outcome.delay, phases))
            case "park":
                db.execute(SQL["finish.park"], (app, outcome.id, reason, error, outcome.task_hash))
            case "dispatch":
                assert outcome.dispatch is not None, "a dispatch has terms"
                dispatched[outcome.id] = json_text(outcome.dispatch)
    if dispatched:
        db.execute(SQL["finish.dispatch"], (app, json_text(dispatched), now))
    for kind, event in RETURN_KINDS.items():
        those = [outcome for outcome in returned if outcome.kind == kind]
        publish_runs(db, now, app, event, [outcome.id for outcome in those], [outcome.reason for outcome in those])


def _limits_left(held: Mapping[str, HeldRun], returned: Sequence[Outcome]) -> list[str]:
    """The limit keys of returned runs; a dispatched run still counts for its limit."""
    keys = [held[outcome.id].limit_key for outcome in returned if outcome.kind != "dispatch"]
    return [key for key in keys if key is not None]


def _answered_before(db: sqlite3.Connection, app: str, node: str, outcome: Outcome) -> FinishAnswer:
    """For a run that is not held: written before by this claim, or lost."""
    known = db.execute(SQL["finish.is_done_already"], (app, outcome.id, node, outcome.fence)).fetchone()
    return "already" if known[0] else "lost"
