"""How runs end, and what an ending sets free.

Every ending goes through `archive`: out of the live table into history, runs blocked on it become due, a schedule that
counts from the end of its runs gets its next moment, a limit that it ran under has room. Only the holder of the newest
claim may finish a run.
"""

from __future__ import annotations

import logging
import sqlite3
from collections.abc import Iterable, Sequence

from evertick.model import Outcome
from evertick.store.base import FinishAnswer, Finished
from evertick.store.ending import Ending, bare_instead, cancelled_instead
from evertick.store.rows import phases_text, plain_text
from evertick.store.sqlite.connection import UNWRITABLE, savepoint
from evertick.store.sqlite.feed import tell_runs
from evertick.store.sqlite.limits import make_room
from evertick.store.sqlite.outbox import write_messages
from evertick.store.sqlite.queries import SQL
from evertick.store.telling import PUT_BACK_TOLD

__all__ = ["archive", "count_from_end", "end", "finish", "finish_each"]

log = logging.getLogger("evertick.store")


def finish(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    answers: list[FinishAnswer] = []
    ended: list[str] = []
    limits: list[str | None] = []
    back: list[Outcome] = []
    for outcome in outcomes:
        if outcome.kind == "done":
            is_taken = is_ended = _end_as_told(db, now, app, node, outcome)
        else:
            is_taken, is_ended, limit = _put_back(db, now, app, node, outcome)
            limits.append(limit)
            if is_taken and not is_ended:
                back.append(outcome)
        if is_ended:
            ended.append(outcome.id)
        # A run that was put back and has ended was cancelled instead.
        if is_taken and is_ended == (outcome.kind == "done"):
            write_messages(db, now, app, outcome.messages)
        answers.append("done" if is_taken else _told_before(db, app, node, outcome))
    has_freed = archive(db, now, app, ended)
    has_freed = make_room(db, app, limits) or has_freed
    _tell_back(db, now, app, back)
    return Finished(answers=answers, freed=bool(back) or has_freed)


def finish_each(db: sqlite3.Connection, now: int, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    """For a batch of which one cannot be written: the others do not wait for it."""
    finished = [_finish_one(db, now, app, node, outcome) for outcome in outcomes]
    return Finished(answers=[one.answers[0] for one in finished], freed=any(one.freed for one in finished))


def _finish_one(db: sqlite3.Connection, now: int, app: str, node: str, outcome: Outcome) -> Finished:
    """The outcome, or what can be written of it. If not even that can be, the node gives its run back later."""
    told = outcome
    for _ in range(2):
        try:
            with savepoint(db):
                return finish(db, now, app, node, [told])
        except UNWRITABLE as error:
            log.error("the outcome of run %s of app %s cannot be written: %s", outcome.id, app, error)
            told = bare_instead(outcome, error)
    return Finished(answers=["lost"], freed=False)


def _tell_back(db: sqlite3.Connection, now: int, app: str, back: Sequence[Outcome]) -> None:
    for kind, told in PUT_BACK_TOLD.items():
        those = [outcome for outcome in back if outcome.kind == kind]
        tell_runs(db, now, app, told, [outcome.id for outcome in those], [outcome.reason for outcome in those])


def end(db: sqlite3.Connection, now: int, app: str, endings: Sequence[Ending]) -> bool:
    """End live runs by the store's own hand: cancelled, expired, lost. True if anything was freed by it."""
    db.executemany(SQL["run.leave_line"], [(app, ending.id) for ending in endings])
    db.executemany(
        SQL["run.end"], [(app, ending.id, ending.verdict, plain_text(ending.reason), now) for ending in endings]
    )
    return archive(db, now, app, [ending.id for ending in endings])


def archive(db: sqlite3.Connection, now: int, app: str, ids: Sequence[str]) -> bool:
    """Move runs whose state is done out of the live table, and free what waited for them; True if anything did."""
    if not ids:
        return False
    tell_runs(db, now, app, "run.finished", ids)
    keys = [(app, id_) for id_ in ids]
    if db.executemany(SQL["run.archive"], keys).rowcount < len(keys):
        log.warning("history of app %s had one of these moments already, their runs were dropped: %s", app, list(ids))
    gone = [db.execute(SQL["run.forget"], key).fetchone() for key in keys]
    of_schedules = [
        (id_, row["schedule_id"]) for id_, row in zip(ids, gone, strict=True) if row["schedule_id"] is not None
    ]
    unblocked = db.executemany(SQL["run.unblock"], [(app, schedule, id_, now) for id_, schedule in of_schedules])
    counted = count_from_end(db, now, dict.fromkeys(schedule for _, schedule in of_schedules))
    has_room = make_room(db, app, [row["limit_key"] for row in gone])
    return unblocked.rowcount > 0 or counted or has_room


def count_from_end(db: sqlite3.Connection, now: int, schedules: Iterable[int]) -> bool:
    """Set the cursor of schedules that count from the end of a run; others are left alone. True if any was set."""
    return db.executemany(SQL["schedule.count_from_end"], [(schedule, now) for schedule in schedules]).rowcount > 0


def _end_as_told(db: sqlite3.Connection, now: int, app: str, node: str, outcome: Outcome) -> bool:
    assert outcome.verdict is not None, "an outcome that is done has a verdict"
    written = db.execute(
        SQL["finish.done"],
        (
            app,
            outcome.id,
            node,
            outcome.fence,
            outcome.verdict,
            plain_text(outcome.reason),
            plain_text(outcome.error),
            None if outcome.result is None else outcome.result.decode(),
            outcome.attempts,
            phases_text(outcome.phases),
            now,
        ),
    )
    return written.rowcount == 1


def _put_back(db: sqlite3.Connection, now: int, app: str, node: str, outcome: Outcome) -> tuple[bool, bool, str | None]:
    """Whether it was taken, whether that ended the run (a cancel that was asked for meanwhile comes first), and the
    limit that it no longer runs under."""
    held = db.execute(SQL["finish.held"], (app, outcome.id, node, outcome.fence)).fetchone()
    if held is None:
        return False, False, None
    if held["is_cancel_requested"]:
        return True, _end_as_told(db, now, app, node, cancelled_instead(outcome, held)), None
    reason, error = plain_text(outcome.reason), plain_text(outcome.error)
    match outcome.kind:
        case "retry":
            phases = phases_text(outcome.phases)
            db.execute(SQL["finish.keep_attempt"], (app, outcome.id, outcome.attempts, now, error, reason))
            db.execute(SQL["finish.retry"], (app, outcome.id, now + outcome.delay, outcome.attempts, error, phases))
        case "release":
            db.execute(SQL["finish.release"], (app, outcome.id, now))
        case "park":
            db.execute(SQL["finish.park"], (app, outcome.id, reason, error, outcome.task_hash))
    return True, False, held["limit_key"]


def _told_before(db: sqlite3.Connection, app: str, node: str, outcome: Outcome) -> FinishAnswer:
    """A run that is not held any more: by this very claim's own word, or lost to another."""
    known = db.execute(SQL["finish.is_done_already"], (app, outcome.id, node, outcome.fence)).fetchone()
    return "already" if known[0] else "lost"
