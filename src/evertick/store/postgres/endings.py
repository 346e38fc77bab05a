"""The end of runs, and its effects on other rows.

Most ends affect no other row: one statement moves a batch of runs from the live table to history. A run with `frees`
ends under the lock of its schedule: runs blocked on it become due, and an after-end schedule gets its next moment. A
run under a limit releases the next one. Only the holder of the newest claim may finish a run.
"""

from __future__ import annotations

import functools
import logging
from collections.abc import Iterable, Sequence

from evertick.model import Outcome
from evertick.store.base import FinishAnswer, Finished
from evertick.store.postgres.connection import Statements, columns_of, is_unwritable, once_if_equal
from evertick.store.postgres.feed import publish_runs
from evertick.store.postgres.limits import enter_gate, make_room
from evertick.store.postgres.outbox import write_messages
from evertick.store.postgres.run_ids import days_to_search, is_run_id
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import Row, json_text, phases_text, storable_text
from evertick.store.verdicts import RETURN_KINDS, Ending, cancelled_outcome, minimal_outcome

__all__ = [
    "count_from_end",
    "end",
    "end_equal",
    "finish",
    "finish_in",
    "free",
    "lock_before",
    "lock_runs",
    "publish_returned",
    "return_runs",
    "warn_of_dropped",
]

log = logging.getLogger("evertick.store")


async def finish(session: StoreSession, app: str, node: str, outcomes: Sequence[Outcome]) -> Finished:
    # Of several outcomes of one run, the first.
    places = {outcome.id: place for place, outcome in reversed([*enumerate(outcomes)])}
    equal, others = _split([outcomes[place] for place in places.values()])
    done: set[str] = set()
    try:
        if equal:
            done |= await session.ask(lambda db: end_equal(db, app, node, equal))
        if others:
            done |= await session.ask(lambda db: _end_reported(db, app, node, others, with_freeing=False))
        if dispatched := [outcomes[place] for place in places.values() if _only_dispatches(outcomes[place])]:
            done |= await session.ask(lambda db: _dispatch(db, app, node, dispatched))
    except Exception as error:
        # One of them cannot be stored. Its statement wrote nothing, so all of its outcomes are finished one by one.
        if not is_unwritable(error):
            raise
    answers: list[FinishAnswer] = ["done"] * len(outcomes)
    if len(done) == len(outcomes):
        return Finished(answers=answers, freed=False)
    rest = [place for place, outcome in enumerate(outcomes) if outcome.id not in done or places[outcome.id] != place]
    answered, freed = await _finish_rest(session, app, node, [outcomes[place] for place in rest])
    for place, answer in zip(rest, answered, strict=True):
        answers[place] = answer
    return Finished(answers=answers, freed=freed)


def _split(outcomes: Sequence[Outcome]) -> tuple[list[Outcome], list[Outcome]]:
    """Ends without messages: the equal ones, if these are most of them, and the others."""
    simple = [outcome for outcome in outcomes if outcome.kind == "done" and not outcome.messages]
    if not simple:
        return [], []
    first = simple[0]
    equal: list[Outcome] = []
    others: list[Outcome] = []
    for outcome in simple:
        is_equal = (
            outcome.fence == first.fence
            and outcome.verdict is first.verdict
            and outcome.result == first.result
            and outcome.attempts == first.attempts
            and outcome.reason == first.reason
            and outcome.error == first.error
            and outcome.phases == first.phases
        )
        (equal if is_equal else others).append(outcome)
    if len(equal) < len(others):
        equal, others = [], simple
    return equal, [outcome for outcome in others if is_run_id(outcome.id)]


def _only_dispatches(outcome: Outcome) -> bool:
    """Whether it is a dispatch with its message and nothing else."""
    if outcome.kind != "dispatch" or outcome.reason is not None or len(outcome.messages) != 1:
        return False
    [message] = outcome.messages
    is_of_this_run = message.caused_by == outcome.id and message.dispatches == outcome.fence
    return is_of_this_run and message.delay == 0 and message.format == 1 and is_run_id(outcome.id)


async def _dispatch(db: Statements, app: str, node: str, outcomes: Sequence[Outcome]) -> set[str]:
    """Dispatch the runs that are held by the claims of these outcomes; returns their ids."""
    rows = [
        (
            outcome.id,
            outcome.fence,
            json_text(outcome.dispatch),
            message.id,
            message.channel,
            message.key,
            message.body.decode(),
            json_text(message.headers) if message.headers else None,
        )
        # In the lock order of all transactions.
        for outcome in sorted(outcomes, key=lambda outcome: outcome.id)
        for message in outcome.messages
    ]
    ids, fences, terms, messages, channels, *others = columns_of(rows)
    equal = (once_if_equal(fences), terms, messages, once_if_equal(channels))
    dispatched: list[str] = (await db.only_row("finish.dispatch_with_messages", app, node, ids, *equal, *others))["ids"]
    if dispatched:
        db.wake(app)
    return set(dispatched)


async def _finish_rest(
    session: StoreSession, app: str, node: str, outcomes: Sequence[Outcome]
) -> tuple[list[FinishAnswer], bool]:
    try:
        return await session.write(lambda db: finish_in(db, app, node, outcomes))
    except Exception as error:
        if not is_unwritable(error):
            raise
    # One of them cannot be stored: each in its own transaction.
    finished = [await _finish_one(session, app, node, outcome) for outcome in outcomes]
    return [answer for answer, _ in finished], any(freed for _, freed in finished)


async def _finish_one(session: StoreSession, app: str, node: str, outcome: Outcome) -> tuple[FinishAnswer, bool]:
    """Write the outcome, or else the part of it that can be stored. If both fail, the node releases the run later."""
    writable = outcome
    for _ in range(2):
        try:
            answers, freed = await session.write(functools.partial(finish_in, app=app, node=node, outcomes=[writable]))
            return answers[0], freed
        except Exception as error:
            if not is_unwritable(error):
                raise
            log.error("run %s: app %r: the outcome cannot be stored: %s", outcome.id, app, error)
            writable = minimal_outcome(outcome, error)
    return "lost", False


async def end_equal(db: Statements, app: str, node: str, outcomes: Sequence[Outcome]) -> set[str]:
    """End the runs that are held by the claim of these equal outcomes; returns their ids."""
    ids = [outcome.id for outcome in outcomes]
    ended = await db.only_row("finish.alike", app, node, ids, outcomes[0].fence, *_outcome_columns(outcomes[0]))
    return set(ids if ended["count"] == len(ids) else ended["ids"] or ())


def _outcome_columns(outcome: Outcome) -> tuple[object, ...]:
    return (
        outcome.verdict,
        outcome.attempts,
        storable_text(outcome.reason),
        storable_text(outcome.error),
        None if outcome.result is None else outcome.result.decode(),
        phases_text(outcome.phases),
    )


async def _end_reported(
    db: Statements, app: str, node: str, outcomes: Sequence[Outcome], *, with_freeing: bool
) -> set[str]:
    """The same for outcomes that differ."""
    if not outcomes:
        return set()
    # In the lock order of all transactions.
    rows = [
        (outcome.id, outcome.fence, *_outcome_columns(outcome))
        for outcome in sorted(outcomes, key=lambda outcome: outcome.id)
    ]
    ended = await db.only_row("finish.done", app, node, with_freeing, *columns_of(rows))
    ids = ended["ids"] or []
    warn_of_dropped(app, len(ids) - ended["kept"], ids)
    return set(ids)


def warn_of_dropped(app: str, count: int, ids: Iterable[str]) -> None:
    if count:
        log.warning("app %r: some of these runs are dropped, because history has their moments: %s", app, list(ids))


async def finish_in(
    db: Statements, app: str, node: str, outcomes: Sequence[Outcome]
) -> tuple[list[FinishAnswer], bool]:
    """Write any outcomes in an open transaction: also group that return runs, whose end affects others, or whose claim
    no longer holds the run."""
    held = await lock_runs(db, app, [outcome.id for outcome in outcomes])
    taken: dict[str, Outcome] = {}
    answers: list[FinishAnswer | None] = []
    for outcome in outcomes:
        row = held.get(outcome.id)
        is_accepted = row is not None and outcome.id not in taken and _is_held_by(row, node, outcome.fence)
        if row is not None and is_accepted:
            taken[outcome.id] = _unless_cancelled(outcome, row)
        answers.append("done" if is_accepted else None)
    returned = [outcome for outcome in taken.values() if outcome.kind != "done"]
    await return_runs(db, returned)
    await publish_returned(db, app, returned)
    ending = [outcome for outcome in taken.values() if outcome.kind == "done"]
    ended = await _end_reported(db, app, node, ending, with_freeing=True)
    freed = await free(db, app, [held[id_] for id_ in ended]) or any(outcome.kind != "dispatch" for outcome in returned)
    # A dispatched run still counts for its limit.
    left = [id_ for id_, outcome in taken.items() if outcome.kind != "dispatch"]
    freed = await make_room(db, app, [held[id_]["limit_key"] for id_ in left]) or freed
    if freed:
        db.wake(app)
    await write_messages(db, app, [message for outcome in taken.values() for message in outcome.messages])
    answered = await _answered_before(
        db, app, node, [o for o, answer in zip(outcomes, answers, strict=True) if answer is None]
    )
    return [
        answer or ("already" if (outcome.id, outcome.fence) in answered else "lost")
        for outcome, answer in zip(outcomes, answers, strict=True)
    ], freed


def _is_held_by(row: Row, node: str, fence: int) -> bool:
    return bool(row["state"] == "running" and row["node"] == node and row["fence"] == fence)


def _unless_cancelled(outcome: Outcome, held: Row) -> Outcome:
    """A cancel request that came meanwhile takes precedence over a return to waiting."""
    if outcome.kind == "done" or not held["is_cancel_requested"]:
        return outcome
    return cancelled_outcome(outcome, held)


async def return_runs(db: Statements, outcomes: Sequence[Outcome]) -> None:
    retried = [
        (
            outcome.id,
            outcome.delay,
            outcome.attempts,
            storable_text(outcome.error),
            phases_text(outcome.phases),
            storable_text(outcome.reason),
        )
        for outcome in outcomes
        if outcome.kind == "retry"
    ]
    if retried:
        ids, delays, attempts, errors, phases, reasons = columns_of(retried)
        await db.count("finish.keep_attempts", ids, attempts, errors, reasons, phases)
        await db.count("finish.retry", ids, delays, attempts, errors, phases)
    released = [
        (outcome.id, outcome.delay, storable_text(outcome.reason), phases_text(outcome.phases))
        for outcome in outcomes
        if outcome.kind == "release"
    ]
    if released:
        ids, delays, reasons, phases = columns_of(released)
        await db.count("keep_cut_off", ids, reasons, phases, False)
        await db.count("finish.release", ids, delays, phases)
    dispatched = [(outcome.id, json_text(outcome.dispatch)) for outcome in outcomes if outcome.kind == "dispatch"]
    if dispatched:
        await db.count("finish.dispatch", *columns_of(dispatched))
    parked = [
        (outcome.id, storable_text(outcome.reason), storable_text(outcome.error), outcome.task_hash)
        for outcome in outcomes
        if outcome.kind == "park"
    ]
    if parked:
        await db.count("finish.park", *columns_of(parked))


async def publish_returned(db: Statements, app: str, returned: Sequence[Outcome]) -> None:
    for kind, event in RETURN_KINDS.items():
        group = [outcome for outcome in returned if outcome.kind == kind]
        await publish_runs(db, app, event, [outcome.id for outcome in group], [outcome.reason for outcome in group])


async def _answered_before(db: Statements, app: str, node: str, outcomes: Sequence[Outcome]) -> set[tuple[str, int]]:
    """The claims whose outcome was written before. The others are lost."""
    claims = [(outcome.id, outcome.fence) for outcome in outcomes if is_run_id(outcome.id)]
    answered: set[tuple[str, int]] = set()
    for first, last in days_to_search([id_ for id_, _ in claims]):
        left = [claim for claim in claims if claim not in answered]
        if left:
            rows = await db.rows("finish.answered_before", app, node, *columns_of(left), first, last)
            answered |= {(row["id"], row["fence"]) for row in rows}
    return answered


async def lock_before(db: Statements, app: str, ids: Sequence[str]) -> None:
    """Take the locks that come before these runs: the limits gate, and the schedules of runs with `frees`."""
    before = await db.only_row("run.to_lock", ids)
    if before["has_limited"]:
        await enter_gate(db, app)
    if before["schedules"]:
        await db.only_row("schedule.lock", before["schedules"])


async def lock_runs(db: Statements, app: str, ids: Sequence[str]) -> dict[str, Row]:
    """Lock live runs."""
    wanted = [id_ for id_ in ids if is_run_id(id_)]
    if not wanted:
        return {}
    await lock_before(db, app, wanted)
    rows = await db.rows("run.lock", app, wanted)
    db.has_feed = rows[0]["has_feed"] if rows else db.has_feed
    return {row["id"]: row for row in rows}


async def end(db: Statements, app: str, endings: Sequence[Ending]) -> bool:
    """End locked runs without a claim: cancelled, expired, lost. True if it made something due."""
    if not endings:
        return False
    await db.count("run.leave_line", app, [ending.id for ending in endings])
    columns = columns_of([(ending.id, ending.verdict.value, storable_text(ending.reason)) for ending in endings])
    ended = await db.rows("run.end", app, *columns)
    warn_of_dropped(app, sum(not row["is_kept"] for row in ended), [row["id"] for row in ended])
    freed = await free(db, app, ended)
    freed = await make_room(db, app, [row["limit_key"] for row in ended]) or freed
    if freed:
        db.wake(app)
    return freed


async def free(db: Statements, app: str, ended: Sequence[Row]) -> bool:
    """Unblock what waited for the end of these runs; True if anything did."""
    freeing = [row for row in ended if row["frees"] and row["schedule_id"] is not None]
    if not freeing:
        return False
    schedules = sorted({row["schedule_id"] for row in freeing})
    # Mostly held already, but a run may have got `frees` after the locks were chosen. After this lock no run can become
    # blocked on one of them.
    await db.only_row("schedule.lock", schedules)
    unblocked = await db.count("run.unblock", app, schedules, [row["id"] for row in freeing])
    counted = await db.count("schedule.count_from_end", schedules)
    return unblocked > 0 or counted > 0


async def count_from_end(db: Statements, schedules: Sequence[int]) -> bool:
    """Set the cursor of locked after-end schedules; others are unchanged. True if any was set."""
    return bool(schedules) and await db.count("schedule.count_from_end", schedules) > 0
