"""How runs end, and what an ending sets free.

A run goes straight from the live table into history, all runs of a batch that end alike by one statement; then runs
blocked on them become due, schedules that count from the end of their runs get their next moment, and limits that they
ran under have room. Only the holder of the newest claim may finish a run.
"""

from __future__ import annotations

import logging
import sqlite3
from collections import defaultdict
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence

import msgspec

from evertick.model import Outcome, Verdict
from evertick.store.base import FinishAnswer, Finished
from evertick.store.rows import json_text, phases_text, plain_text
from evertick.store.sqlite.connection import PART_MOST, SQL, UNWRITABLE, savepoint
from evertick.store.sqlite.feed import publish_ended, publish_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.outbox import write_messages
from evertick.store.verdicts import PUT_BACK_KINDS, Ending, bare_outcome, cancelled_outcome

__all__ = [
    "EndedRun",
    "count_from_end",
    "end",
    "end_reported",
    "finish",
    "finish_each",
    "forget",
    "put_back",
    "still_held",
]

log = logging.getLogger("evertick.store")


class EndedRun(msgspec.Struct, frozen=True, array_like=True):
    """A run on its way into history, as `run.ending` reads it: what waits for it, and what it leaves room in."""

    id: str
    schedule_id: int | None
    limit_key: str | None


class HeldRun(EndedRun, frozen=True, array_like=True):
    """A run that its claim still holds, as `finish.held` reads it."""

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
    """Stretches in which no run comes twice (an outcome whose answer was lost, and that of its next claim)."""
    part: dict[str, Outcome] = {}
    for outcome in outcomes:
        if outcome.id in part or len(part) == PART_MOST:
            yield part
            part = {}
        part[outcome.id] = outcome
    if part:
        yield part


def _finish_part(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Mapping[str, Outcome]) -> Finished:
    held, has_feed = still_held(db, app, node, {id_: outcome.fence for id_, outcome in outcomes.items()})
    ends: list[Outcome] = []
    back: list[Outcome] = []
    for id_, run in held.items():
        outcome = outcomes[id_]
        if outcome.kind == "done":
            ends.append(outcome)
        elif run.is_cancel_requested:
            # Asked for meanwhile: it comes first.
            ends.append(cancelled_outcome(outcome, msgspec.structs.asdict(run)))
        else:
            back.append(outcome)
    end_reported(db, now, app, ends)
    has_freed = forget(db, now, app, [held[outcome.id] for outcome in ends], has_feed=has_feed)
    put_back(db, now, app, back)
    if left := _limits_left(held, back):
        has_freed |= make_room(db, app, left)
    if messages := [message for outcome in (*ends, *back) for message in outcome.messages]:
        write_messages(db, now, app, messages)
    answers: list[FinishAnswer] = [
        "done" if outcome.id in held else _answered_before(db, app, node, outcome) for outcome in outcomes.values()
    ]
    return Finished(answers=answers, freed=has_freed or any(outcome.kind != "dispatch" for outcome in back))


def finish_each(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    """For a batch of which one cannot be written: the others do not wait for it."""
    finished = [_finish_one(db, now, app, node, outcome) for outcome in outcomes]
    return Finished(answers=[one.answers[0] for one in finished], freed=any(one.freed for one in finished))


def _finish_one(db: sqlite3.Connection, now: int, app: str, node: str, outcome: Outcome) -> Finished:
    """The outcome, or what can be written of it. If not even that can be, the node gives its run back later."""
    writable = outcome
    for _ in range(2):
        try:
            with savepoint(db):
                return finish(db, now, app, node, [writable])
        except UNWRITABLE as error:
            log.error("the outcome of run %s of app %s cannot be written: %s", outcome.id, app, error)
            writable = bare_outcome(outcome, error)
    return Finished(answers=["lost"], freed=False)


def end(db: sqlite3.Connection, now: int, app: str, endings: Sequence[Ending]) -> bool:
    """End live runs by the store's own hand: cancelled, expired, lost. True if anything was freed by it."""
    if not endings:
        return False
    db.executemany(SQL["run.leave_line"], [(app, ending.id) for ending in endings])
    alike: defaultdict[tuple[Verdict, str | None], list[str]] = defaultdict(list)
    for ending in endings:
        alike[ending.verdict, plain_text(ending.reason)].append(ending.id)
    ended = _ended.decode(db.execute(SQL["run.ending"], (app, json_text([each.id for each in endings]))).fetchone()[0])
    for (verdict, reason), ids in alike.items():
        written = db.execute(SQL["run.end"], (app, json_text(ids), verdict, reason, now))
        _warn_of_dropped(app, ids, written.rowcount)
    return forget(db, now, app, ended)


def count_from_end(db: sqlite3.Connection, now: int, schedules: Iterable[int]) -> bool:
    """Set the cursor of schedules that count from the end of a run; others are left alone. True if any was set."""
    return db.execute(SQL["schedule.count_from_end"], (json_text(list(schedules)), now)).rowcount > 0


def forget(
    db: sqlite3.Connection, now: int, app: str, ended: Sequence[EndedRun], *, has_feed: bool | None = None
) -> bool:
    """Take runs that are in history out of the live table, and free what waited for them; True if anything did."""
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


def still_held(
    db: sqlite3.Connection, app: str, node: str, fences: Mapping[str, int]
) -> tuple[dict[str, HeldRun], bool]:
    """Which of these runs the node still holds under that fence, until the transaction ends; whether the app has a
    feed."""
    rows, has_feed = db.execute(SQL["finish.held"], (app, json_text(fences), node)).fetchone()
    return {run.id: run for run in _held.decode(rows)}, bool(has_feed)


def end_reported(db: sqlite3.Connection, now: int, app: str, ends: Sequence[Outcome]) -> None:
    alike: defaultdict[tuple[Verdict | None, int], dict[str, object]] = defaultdict(dict)
    for outcome in ends:
        alike[outcome.verdict, outcome.attempts][outcome.id] = _details(outcome)
    for (verdict, attempts), details in alike.items():
        assert verdict is not None, "an outcome that is done has a verdict"
        written = db.execute(SQL["finish.done"], (app, json_text(details), verdict, attempts, now))
        _warn_of_dropped(app, details, written.rowcount)


def _details(outcome: Outcome) -> tuple[str | None, ...] | None:
    """Reason, error, result and phases; None for the many that have nothing of it."""
    if outcome.reason is None and outcome.error is None and outcome.result is None and not outcome.phases:
        return None
    result = None if outcome.result is None else outcome.result.decode()
    return plain_text(outcome.reason), plain_text(outcome.error), result, phases_text(outcome.phases)


def _warn_of_dropped(app: str, ids: Collection[str], written: int) -> None:
    if written < len(ids):
        log.warning("history of app %s had one of these moments already, their runs were dropped: %s", app, list(ids))


def put_back(db: sqlite3.Connection, now: int, app: str, back: Sequence[Outcome]) -> None:
    if not back:
        return
    dispatched: dict[str, str] = {}
    for outcome in back:
        reason, error = plain_text(outcome.reason), plain_text(outcome.error)
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
                assert outcome.dispatch is not None, "what is dispatched goes by something agreed"
                dispatched[outcome.id] = json_text(outcome.dispatch)
    if dispatched:
        db.execute(SQL["finish.dispatch"], (app, json_text(dispatched), now))
    for kind, event in PUT_BACK_KINDS.items():
        those = [outcome for outcome in back if outcome.kind == kind]
        publish_runs(db, now, app, event, [outcome.id for outcome in those], [outcome.reason for outcome in those])


def _limits_left(held: Mapping[str, HeldRun], back: Sequence[Outcome]) -> list[str]:
    """Limits that runs which were put back do not run under any more; one that is dispatched still does."""
    keys = [held[outcome.id].limit_key for outcome in back if outcome.kind != "dispatch"]
    return [key for key in keys if key is not None]


def _answered_before(db: sqlite3.Connection, app: str, node: str, outcome: Outcome) -> FinishAnswer:
    """A run that is not held any more: by this very claim's own word, or lost to another."""
    known = db.execute(SQL["finish.is_done_already"], (app, outcome.id, node, outcome.fence)).fetchone()
    return "already" if known[0] else "lost"
