"""Runs: enqueue, claim, notes, cancel, runs held by a node, and queries for display.

A claim takes the highest priority first, then the longest due. It finds the priorities in use by one index search each,
so that future runs of a high priority cost nothing. Runs that other nodes are claiming are skipped.
"""

from __future__ import annotations

import logging
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

import msgspec

from evertick.errors import StoreUnavailable
from evertick.model import (
    LIVE_STATES,
    Attempt,
    Cause,
    Claimed,
    Gap,
    LogLine,
    NewRun,
    Outcome,
    Reason,
    Run,
    State,
    Verdict,
)
from evertick.store.base import Cancelled, Claim, Note, Owned, RunFilter, TaskTerms
from evertick.store.postgres.connection import Statements, columns_of, is_unique_violation, is_unwritable
from evertick.store.postgres.endings import end, end_equal, finish_in, lock_runs
from evertick.store.postgres.feed import publish_runs
from evertick.store.postgres.fires import Inserted, duplicates_among, hold_keys_for_periods, insert_runs, moments_of
from evertick.store.postgres.limits import KEYS_MOST, Gate, check_again, enter_gate, release_next
from evertick.store.postgres.run_ids import days_to_search, ids_with_prefix, is_run_id
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import (
    CLAIMED,
    Row,
    attempt_of,
    claimed_from,
    claimed_of,
    gap_of,
    is_self_contained,
    json_text,
    lines_of,
    lines_text,
    phases_text,
    read_each,
    run_as_enqueued,
    run_of,
    storable_text,
)
from evertick.store.verdicts import Ending, unreadable_runs

__all__ = [
    "attempts",
    "cancel",
    "claim",
    "enqueue",
    "enqueue_in",
    "gaps",
    "log",
    "note",
    "owned",
    "recorded_moments",
    "rehearse",
    "take_runs",
]

_logger = logging.getLogger("evertick.store")

# How often an insert is repeated whose conflicting run has ended meanwhile.
_ROUNDS_MOST = 5
# Runs that one claim reads without claiming them, at most: expired ones, and those blocked by a limit. Bounds its
# transaction. The next claim follows at once.
_PASSED_MOST = 1_000
_HELD = (State.RUNNING, State.DISPATCHED)


async def enqueue(session: StoreSession, app: str, runs: Sequence[NewRun]) -> list[Run]:
    """One statement in the usual case: new runs without unique keys, whose rows have no values from elsewhere."""
    new: dict[str, Run] = {}
    if len({run.id for run in runs}) == len(runs) and all(
        is_self_contained(run) and run.unique_key is None for run in runs
    ):
        try:
            inserted = await session.ask(lambda db: _insert_fast(db, app, runs))
            # After the wake-up, which does not depend on the answer to the caller.
            new = {run.id: run_as_enqueued(app, inserted.now, run) for run in runs if run.id in inserted.ids}
        except Exception as error:
            if not is_unique_violation(error):
                raise
    if len(new) == len(runs):
        return [new[run.id] for run in runs]
    left = [run for run in runs if run.id not in new]
    answers = iter(await session.write(lambda db: enqueue_in(db, app, left)))
    return [new.get(run.id) or next(answers) for run in runs]


async def _insert_fast(db: Statements, app: str, runs: Sequence[NewRun]) -> Inserted:
    db.is_careful = False
    inserted = await insert_runs(db, app, runs)
    if inserted.ids and not inserted.is_notified:
        db.wake(app, "runs")
    return inserted


async def enqueue_in(db: Statements, app: str, runs: Sequence[NewRun]) -> list[Run]:
    """Enqueue any runs, in an open transaction."""
    answers: dict[int, Run] = {}
    for _ in range(_ROUNDS_MOST):
        missing = [place for place in range(len(runs)) if place not in answers]
        if not missing:
            break
        answers |= await _enqueue_new(db, app, runs, missing)
        answers |= await _enqueue_known(db, app, runs, [place for place in missing if place not in answers])
    if len(answers) < len(runs):
        raise StoreUnavailable("runs with the same unique keys appear and end too fast", fix="try again")
    return [answers[place] for place in range(len(runs))]


async def _enqueue_new(db: Statements, app: str, runs: Sequence[NewRun], places: Sequence[int]) -> dict[int, Run]:
    """Insert the new ones, each id and each unique key once."""
    duplicates = await duplicates_among(db, app, (runs[place] for place in places))
    first: dict[str, int] = {}
    keys: set[str] = set()
    for place in places:
        run = runs[place]
        if run.id in first or run.id in duplicates or run.unique_key in keys:
            continue
        first[run.id] = place
        keys |= set() if run.unique_key is None else {run.unique_key}
    new = await _insert(db, app, [runs[place] for place in first.values()])
    await hold_keys_for_periods(db, app, [runs[first[id_]] for id_ in new])
    return {first[id_]: run for id_, run in new.items()}


async def _insert(db: Statements, app: str, runs: Sequence[NewRun]) -> dict[str, Run]:
    """The new runs, for display. A run of a schedule is read back."""
    if not runs:
        return {}
    inserted = await insert_runs(db, app, runs)
    if inserted.ids:
        db.wake(app, "runs")
    new = [run for run in runs if run.id in inserted.ids]
    answers = {run.id: run_as_enqueued(app, inserted.now, run) for run in new if is_self_contained(run)}
    others = tuple(run.id for run in new if run.id not in answers)
    if others:
        wanted = RunFilter(ids=others, states=LIVE_STATES, limit=len(others))
        answers |= {run.id: run for run in await read_runs(db, app, wanted)}
    return answers


async def _enqueue_known(db: Statements, app: str, runs: Sequence[NewRun], places: Sequence[int]) -> dict[int, Run]:
    """The existing runs; those that have ended and ended meanwhile are missing."""
    if not places:
        return {}
    asked = [
        (place, runs[place].id, runs[place].unique_key, runs[place].schedule_id, runs[place].fire_at)
        for place in places
    ]
    bounds = moments_of([runs[place] for place in places], db.clock)
    known = {row["place"]: row["id"] for row in await db.rows("enqueue.known", app, *columns_of(asked), *bounds)}
    found: dict[str, Run] = {}
    # Live ones first, because a search of history by id reads all days.
    for states in (LIVE_STATES, (State.DONE,)):
        ids = tuple({id_ for id_ in known.values() if id_ is not None and id_ not in found})
        if ids:
            found |= {
                run.id: run for run in await read_runs(db, app, RunFilter(ids=ids, states=states, limit=len(ids)))
            }
    return {place: msgspec.structs.replace(found[id_], is_new=False) for place, id_ in known.items() if id_ in found}


# --- claims ------------------------------------------------------------------------------------------------------


async def claim(
    session: StoreSession, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
) -> Claim:
    if any(terms.is_limited for terms in tasks.values()):
        return await session.write(lambda db: _claim_under_limits(db, app, node, queues, tasks, limit))
    head = await session.ask(lambda db: _claim_now(db, app, node, queues, tasks, limit))
    if head["has_to_look"]:
        return await session.write(lambda db: _claim_under_limits(db, app, node, queues, tasks, limit))
    runs, unreadable = _read_claimed(head)
    runs.sort(key=lambda run: (-run.priority, run.due_at))
    expired: list[str] = []
    # The claim is committed, so an error here must not hide it. The next claim handles the rest.
    with suppress(StoreUnavailable):
        if unreadable:
            await session.write(lambda db: finish_in(db, app, node, unreadable_runs(unreadable, head["fence"])))
        if head["too_old"]:
            expired = await session.write(lambda db: _expire(db, app, head["too_old"]))
        if head["old_limits"]:
            await session.write(lambda db: _forget_limits(db, app, head["old_limits"]))
    return Claim(now=head["now"], fence=head["fence"] or 0, runs=runs, expired=expired, next_due_at=head["next_due_at"])


async def _claim_now(
    db: Statements, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
) -> Row:
    timeouts = {name: terms.timeout for name, terms in tasks.items() if terms.timeout is not None}
    once = [name for name, terms in tasks.items() if terms.at_most_once]
    wanted = (list(dict.fromkeys(queues)), list(tasks), max(limit, 0), json_text(timeouts), once)
    return await db.only_row("claim", app, node, *wanted)


def _read_claimed(head: Row) -> tuple[list[Claimed], list[tuple[Row, str]]]:
    """Runs from the columns of a claim, and unreadable ones with their errors."""
    fence, now = head["fence"], head["now"]
    rows = zip(*(head[name] or () for name in CLAIMED), strict=True)
    runs, bad = read_each(rows, lambda row: claimed_from(fence, now, *row))
    return runs, [(dict(zip(CLAIMED, row, strict=True)), error) for row, error in bad]


async def _forget_limits(db: Statements, app: str, keys: Sequence[str]) -> None:
    """Release runs behind those that were blocked by limits that the code no longer has.

    Two for each, so that a long lane is empty after a few claims.
    """
    await enter_gate(db, app)
    counts = {key: 2 * count for key, count in Counter(keys).items()}
    if await release_next(db, app, counts, only_idle=True):
        db.wake(app)


async def _claim_under_limits(
    db: Statements, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
) -> Claim:
    await enter_gate(db, app)
    names = (app, node, list(dict.fromkeys(queues)), list(tasks))
    head = await db.only_row("claim.begin", *names, KEYS_MOST)
    now: int = head["now"]
    db.has_feed = head["has_feed"]
    if not head["is_alive"]:
        return Claim(now=now, fence=0, runs=[], expired=[], next_due_at=None)
    # Only with free slots: released runs should be claimed here, before a node without room blocks them again.
    has_checked = limit > 0 and bool(head["looks"])
    has_more_keys = has_checked and await check_again(db, app, node, head["looks"], head["looked_at"])
    await release_next(db, app, dict.fromkeys(head["opened"], 1), only_idle=True)
    gate = Gate(db, now, app, tasks)
    # The runs that are too old are known, unless others were released.
    too_old = None if has_checked or head["opened"] else head["too_old"]
    fence, claimed = 0, list[Claimed]()
    expired: list[str] = []
    passed = 0
    while passed < _PASSED_MOST:
        # Those behind them come into view, as with runs that a limit blocks.
        too_old = (await db.only_row("claim.too_old", *names))["too_old"] if too_old is None else too_old
        expired_now = await _expire(db, app, too_old) if too_old else []
        too_old = None
        expired += expired_now
        rows = await db.rows("claim.pick", *names, max(limit - len(claimed), 0))
        keys = await gate.pass_through(rows)
        passing = [row for row in rows if row["id"] in keys]
        # With the time at which the rates have counted them.
        fence, taken = await take_runs(db, app, node, passing, tasks, fence=fence, now=now, limit_keys=keys)
        claimed += taken
        await publish_runs(db, app, "run.started", [each.id for each in taken])
        passed += len(rows) - len(passing) + len(expired_now)
        has_released = await gate.settle(limit - len(claimed))
        if len(passing) == len(rows) and not expired_now and not has_released:
            break
    upcoming = await db.only_row("claim.next", *names)
    times = [at for at in (upcoming["due_at"], upcoming["free_at"]) if at is not None]
    times += [now] * has_more_keys
    return Claim(now=now, fence=fence, runs=claimed, expired=expired, next_due_at=min(times, default=None))


async def _expire(db: Statements, app: str, ids: Sequence[str]) -> list[str]:
    await lock_runs(db, app, ids)
    too_old = [row["id"] for row in await db.rows("claim.expire", app, ids)]
    await end(db, app, [Ending(id_, Verdict.MISSED, Reason.EXPIRED) for id_ in too_old])
    return too_old


async def take_runs(
    db: Statements,
    app: str,
    node: str,
    rows: Sequence[Row],
    tasks: Mapping[str, TaskTerms],
    *,
    fence: int = 0,
    now: int | None = None,
    limit_keys: Mapping[str, str | None] | None = None,
) -> tuple[int, list[Claimed]]:
    """Claim locked runs under one fence, the given one or a new one. Unreadable runs are parked."""
    if not rows:
        return fence, []
    keys = limit_keys or {}
    wanted = [
        (row["id"], terms.timeout, terms.at_most_once, keys.get(row["id"]))
        for row, terms in ((row, tasks[row["task"]]) for row in rows)
    ]
    taken = {row["id"]: row for row in await db.rows("take", node, *columns_of(wanted), fence or None, now)}
    mine = [taken[row["id"]] for row in rows]
    claim_fence = mine[0]["fence"]
    runs, unreadable = read_each(mine, lambda row: claimed_of(row, claim_fence, row["now"]))
    if unreadable:
        await finish_in(db, app, node, unreadable_runs(unreadable, claim_fence))
    return claim_fence, runs


async def rehearse(db: Statements, app: str) -> None:
    """A run from its enqueue to its end, without a node, in a transaction that is rolled back."""
    run = NewRun(id=db.clock.new_id(), task="", cause=Cause.ENQUEUE)
    await _insert_fast(db, app, [run])
    await _claim_now(db, app, "", (), {}, 0)
    await end_equal(db, app, "", [Outcome(id=run.id, fence=0, kind="done", verdict=Verdict.SUCCEEDED)])


# --- runs held by a node ----------------------------------------------------------------------------------------------


async def owned(db: Statements, app: str, node: str) -> list[Owned]:
    return [Owned(id=row["id"], fence=row["fence"]) for row in await db.rows("owned", app, node)]


async def note(session: StoreSession, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    try:
        return await session.write(lambda db: _note_all(db, app, node, notes))
    except Exception as error:
        if not is_unwritable(error):
            raise
    # One of them cannot be stored; the others are written.
    return [id_ for one in notes for id_ in await _note_one(session, app, node, one)]


async def _note_one(session: StoreSession, app: str, node: str, one: Note) -> list[str]:
    try:
        return await session.write(lambda db: _note_all(db, app, node, [one]))
    except Exception as error:
        if not is_unwritable(error):
            raise
        _logger.error("run %s: app %r: a note cannot be stored, and is dropped: %s", one.id, app, error)
        return []


async def _note_all(db: Statements, app: str, node: str, notes: Sequence[Note]) -> list[str]:
    known = [one for one in notes if is_run_id(one.id)]
    # By run, the moments of those whose claim holds or has ended them.
    held: dict[str, int] = {}
    if known:
        claims = columns_of(list(dict.fromkeys((one.id, one.fence) for one in known)))
        held = {row["id"]: row["fire_at"] for row in await db.rows("note.hold", app, node, *claims)}
    await _note_progress(db, [one for one in known if one.id in held])
    ended = [(one.id, one.fence) for one in known if one.id not in held]
    if ended:
        held |= await _own_ends(db, app, node, ended)
    await _note_lines(db, app, [one for one in known if one.id in held], held)
    return [one.id for one in notes if one.id not in held]


async def _own_ends(db: Statements, app: str, node: str, claims: Sequence[tuple[str, int]]) -> dict[str, int]:
    moments: dict[str, int] = {}
    for first, last in days_to_search([id_ for id_, _ in claims]):
        left = [(id_, fence) for id_, fence in claims if id_ not in moments]
        if left:
            rows = await db.rows("note.own_ends", app, node, *columns_of(left), first, last)
            moments |= {row["id"]: row["fire_at"] for row in rows}
    return moments


async def _note_progress(db: Statements, notes: Sequence[Note]) -> None:
    progress: dict[str, tuple[float | str | None, ...]] = {}
    for one in notes:
        news = (one.progress, storable_text(one.progress_text), phases_text(one.phases))
        before = progress.get(one.id, (None, None, None))
        progress[one.id] = tuple(old if new is None else new for old, new in zip(before, news, strict=True))
    rows = [(id_, *latest) for id_, latest in progress.items() if any(each is not None for each in latest)]
    if rows:
        await db.count("note.progress", *columns_of(rows))


async def _note_lines(db: Statements, app: str, notes: Sequence[Note], moments: Mapping[str, int]) -> None:
    # The longest of several with the same first line, because a statement can write a row only once.
    chunks: dict[tuple[str, int, int], Note] = {}
    for one in notes:
        place = (one.id, one.fence, one.seq)
        if one.lines and (place not in chunks or len(chunks[place].lines) < len(one.lines)):
            chunks[place] = one
    rows = [(*place, moments[one.id], len(one.lines), lines_text(one.lines)) for place, one in chunks.items()]
    if rows:
        await db.count("note.lines", app, *columns_of(rows))


# --- cancel ------------------------------------------------------------------------------------------------------


async def cancel(db: Statements, app: str, ids: Sequence[str], reason: str) -> list[Cancelled]:
    live = await lock_runs(db, app, ids)
    held = {id_ for id_, row in live.items() if row["state"] in _HELD}
    idle = [id_ for id_ in live if id_ not in held]
    if held:
        await db.count("cancel.ask", list(held), storable_text(reason))
        db.wake(app)
    await end(db, app, [Ending(id_, Verdict.CANCELLED, reason or Reason.REQUESTED) for id_ in idle])
    others = [id_ for id_ in ids if id_ not in live and is_run_id(id_)]
    done = await _done(db, app, others)
    answers: list[Cancelled] = []
    ended = set(idle)
    for id_ in ids:
        if id_ in ended:
            ended.remove(id_)
            answers.append(Cancelled(id=id_, answer="ended"))
        elif id_ in held:
            answers.append(Cancelled(id=id_, answer="asked"))
        else:
            answers.append(Cancelled(id=id_, answer="done" if id_ in live or id_ in done else "unknown"))
    return answers


async def _done(db: Statements, app: str, ids: Sequence[str]) -> set[str]:
    done: set[str] = set()
    for first, last in days_to_search(ids):
        left = [id_ for id_ in ids if id_ not in done]
        if left:
            done |= {row["id"] for row in await db.rows("cancel.done", app, left, first, last)}
    return done


# --- queries for display ----------------------------------------------------------------------------------------------


_FIRST, _LAST = -(2**63), 2**63 - 1

# Filter clauses for `runs.live` and `runs.done`. Values are always parameters.
_CLAUSES = {
    "ids": "r.id = ANY({}::uuid[])",
    "first_id": "r.id >= {}::uuid",
    "last_id": "r.id <= {}::uuid",
    "schedule_id": "r.schedule_id = {}",
    "task": "r.task = {}",
    "states": "r.state = ANY({}::text[])",
    "verdicts": "r.verdict = ANY({}::text[])",
    # Twice: for the choice of partitions, and for the index of times.
    "since": "r.fire_at >= {0} AND r.fire_at + 0 >= {0}",
    "until": "r.fire_at <= {0} AND r.fire_at + 0 <= {0}",
    "labels": "r.labels @> {}::jsonb",
    # All reruns, read once per query: there are few.
    "was_rerun": "{} = (r.id::text IN ({{reruns}}))",
}
# Live runs have no verdict; history has no states.
_LEFT_OUT = {"runs.live": ("verdicts",), "runs.done": ("states",)}


async def read_runs(db: Statements, app: str, wanted: RunFilter) -> list[Run]:
    rows = [
        row
        for values in await _filters(db, app, wanted)
        for table in _tables(wanted)
        for row in await _read(db, table, app, values, wanted)
    ]
    rows.sort(key=lambda row: (row["fire_at"], row["id"]), reverse=not wanted.is_oldest_first)
    return read_each(rows[: wanted.limit], run_of)[0]


async def _filters(db: Statements, app: str, wanted: RunFilter) -> list[dict[str, Any]]:
    """The values of the clauses that apply; one set per schedule, so that each is read in index order."""
    labels = {storable_text(name): storable_text(value) for name, value in wanted.labels.items()}
    given = {
        "ids": None if wanted.ids is None else [id_ for id_ in wanted.ids if is_run_id(id_)],
        "task": storable_text(wanted.task),
        "states": None if wanted.states is None else [state.value for state in wanted.states],
        "verdicts": None if wanted.verdicts is None else [verdict.value for verdict in wanted.verdicts],
        "since": wanted.since,
        "until": wanted.until,
        "labels": json_text(labels) if labels else None,
        "was_rerun": wanted.was_rerun,
    }
    values = {name: value for name, value in given.items() if value is not None}
    if wanted.id_prefix:
        bounds = ids_with_prefix(wanted.id_prefix)
        if bounds is None:
            return []
        values["first_id"], values["last_id"] = bounds
    if wanted.schedule_key is None:
        return [values]
    rows = await db.rows("runs.schedules_of_key", app, storable_text(wanted.schedule_key))
    return [{**values, "schedule_id": row["schedule_id"]} for row in rows]


def _tables(wanted: RunFilter) -> list[str]:
    return ["runs.live"] * wanted.fits_live + ["runs.done"] * wanted.fits_done


async def _read(db: Statements, table: str, app: str, values: dict[str, Any], wanted: RunFilter) -> list[Row]:
    parameters: list[Any] = [app]
    clauses = ""
    for name, value in values.items():
        if name not in _LEFT_OUT[table]:
            parameters.append(value)
            clauses += f" AND {_CLAUSES[name].format(f'${len(parameters)}')}"
    parameters.append(wanted.limit)
    # A query by id or schedule must not use the index of times.
    is_found_otherwise = not values.keys().isdisjoint(("ids", "first_id", "schedule_id"))
    moment = "r.fire_at" if is_found_otherwise else "r.fire_at + 0"
    direction = "" if wanted.is_oldest_first else " DESC"
    order = f"ORDER BY {moment}{direction}, r.id{direction} LIMIT ${len(parameters)}"
    text = f"{db.text(table)}{clauses} {order}".replace("{reruns}", db.text("runs.reruns"))
    return await db.select(text, *parameters)


async def recorded_moments(
    db: Statements, app: str, schedule_id: int, *, first: int, last: int, limit: int
) -> list[int]:
    return [row["fire_at"] for row in await db.rows("recorded_moments", schedule_id, first, last, limit, app)]


async def gaps(db: Statements, app: str, wanted: RunFilter) -> list[Gap]:
    of_runs = (wanted.ids, wanted.id_prefix, wanted.task, wanted.states, wanted.labels or None, wanted.was_rerun)
    if any(filter_ is not None for filter_ in of_runs):
        return []
    values: tuple[object, ...] = (
        app,
        _FIRST if wanted.since is None else wanted.since,
        _LAST if wanted.until is None else wanted.until,
        None if wanted.verdicts is None else [verdict.value for verdict in wanted.verdicts],
        wanted.limit,
    )
    if wanted.schedule_key is None:
        rows = await db.rows("gaps", *values)
    else:
        rows = await db.rows("gaps.of_key", *values, storable_text(wanted.schedule_key))
    return [gap_of(row) for row in rows]


async def attempts(db: Statements, app: str, run: str) -> list[Attempt]:
    return [attempt_of(row) for row in await db.rows("attempts", app, run)] if is_run_id(run) else []


async def log(db: Statements, app: str, run: str, *, after: int = 0, limit: int = 1000) -> list[LogLine]:
    return lines_of(await db.rows("log", app, run), after, limit) if is_run_id(run) else []
