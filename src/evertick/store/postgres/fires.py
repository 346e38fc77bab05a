"""Recording fires: insert runs and gaps and advance the cursors, guarded, many schedules in few statements.

Most plans are ordinary: a moment has come, its run is recorded, the cursor advances. A batch of these is one statement,
guarded by the stamps of the rows that were read. All other plans (those that read or end other runs, or have a gap, a
message, a unique key, ...) use the general way, and so does a batch of which the ledger has a moment already.

There the guard is one UPDATE of the narrow rows in `due`: a row either matches the plan and moves the cursor, or
nothing of that plan is written. If a guard checks live runs, an earlier statement locks the rows: of two simultaneous
triggers, the later one waits, and then sees the run of the earlier one. If a plan replaces parked runs or undoes an
early fire, these runs are locked too, so that no node can start one after the check. The unique index on (schedule,
fire_at) is the second line of defence.

A unique key is held by a live run through the unique index, and for a period through a row of its own. No index can
guard both, so a transaction that takes a key holds a lock from the check to the commit. Releasing a key needs no lock,
because it can only make a check stricter than necessary.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.model import IDLE_STATES, Cause, NewRun, Reason, State, Verdict
from evertick.store.base import Advance, Recorded, count_fires
from evertick.store.postgres.connection import (
    Statements,
    columns_of,
    is_unique_violation,
    is_unwritable,
    omit_default,
    once_if_equal,
    sqlstate_of,
)
from evertick.store.postgres.endings import count_from_end, end
from evertick.store.postgres.feed import publish
from evertick.store.postgres.limits import enter_gate
from evertick.store.postgres.outbox import write_messages
from evertick.store.postgres.run_ids import ALL_MOMENTS, is_run_id, made_at
from evertick.store.postgres.session import StoreSession
from evertick.store.rows import is_self_contained, json_text, storable_text
from evertick.store.verdicts import Ending, gaps_with_duplicates
from evertick.when.moment import DAY, MINUTE

__all__ = [
    "Inserted",
    "apply_advances",
    "duplicates_among",
    "hold_keys_for_periods",
    "insert_runs",
    "lock_in_order",
    "moments_of",
    "record_fires",
]

# --- copies of new runs that were sent before -------------------------------------------------------------------------


# A run that is sent twice is found in history if the caller's clock is wrong by less than this.
_CLOCK_ERROR_MOST = DAY


def moments_of(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """The range of moments in which earlier copies of these runs can be."""
    moments = [run.fire_at for run in runs if run.fire_at is not None]
    bounds = [(min(moments), max(moments))] if moments else []
    if len(moments) < len(runs):
        bounds.append(_moments_of_new([run for run in runs if run.fire_at is None], clock))
    return min(first for first, _ in bounds), max(last for _, last in bounds)


async def written_before(db: Statements, runs: Sequence[NewRun]) -> set[str]:
    """Those of these runs that the ledger has already, live or done."""
    if not runs:
        return set()
    rows = await db.rows("record_fires.written_before", [run.id for run in runs], *moments_of(runs, db.clock))
    return {row["id"] for row in rows}


def _moments_of_new(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """For runs that get their moments from the store."""
    ids = [run.id for run in runs]
    # Ids of version 7 sort by the time of their creation.
    first, last = made_at(min(ids)), made_at(max(ids))
    if first is None or last is None or any(id_[14:15] != "7" for id_ in ids):
        return ALL_MOMENTS
    # They were inserted between the creation of their ids and now. Both are times of the callers' clocks.
    now = clock.now_us()
    delays = [run.delay for run in runs]
    return min(first, now) + min(delays) - _CLOCK_ERROR_MOST, max(last, now) + max(delays) + _CLOCK_ERROR_MOST


# --- unique keys ------------------------------------------------------------------------------------------------------


async def lock_keys(db: Statements, app: str, runs: Iterable[NewRun]) -> None:
    """Before any other lock: of two transactions that want the same keys, one is first."""
    keys = list(dict.fromkeys(run.unique_key for run in runs if run.unique_key is not None))
    if keys:
        await db.rows("unique.lock", app, keys)


async def duplicates_among(db: Statements, app: str, runs: Iterable[NewRun]) -> set[str]:
    """Runs whose key is held by another run. A repeated run is no duplicate of itself. Locks the keys."""
    keyed = [run for run in runs if run.unique_key is not None]
    if not keyed:
        return set()
    await lock_keys(db, app, keyed)
    keys = list(dict.fromkeys(run.unique_key for run in keyed))
    holders = {row["key"]: row["id"] for row in await db.rows("unique.holders", app, keys)}
    held = [run for run in keyed if holders[run.unique_key] not in (None, run.id)]
    return {run.id for run in held} - await written_before(db, held)


async def hold_keys_for_periods(db: Statements, app: str, inserted: Sequence[NewRun]) -> None:
    rows = [
        (run.unique_key, run.id, run.unique_for)
        for run in inserted
        if run.unique_key is not None and run.unique_for is not None
    ]
    if rows:
        await db.count("unique.keep", app, *columns_of(rows))


# --- insert new runs --------------------------------------------------------------------------------------------------


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of inserting runs."""

    now: int
    # The fence of the claimed runs; 0 if none was claimed.
    fence: int
    ids: set[str]
    # Whether one of them waits to be claimed.
    has_waiting: bool
    # The statement itself has sent a wake-up.
    is_notified: bool = False


async def insert_runs(
    db: Statements,
    app: str,
    runs: Sequence[NewRun],
    *,
    freeing: Sequence[bool] = (),
    node: str | None = None,
    fence: int | None = None,
) -> Inserted:
    """Insert runs, except those that the ledger has already. Each id once. `freeing`: whether each run gets `frees`.

    Runs to claim are claimed by the node, under the given fence or a new one; without a node they wait. A run that
    another session inserts at the same time is an error, unless `db.is_careful`.
    """
    if len(runs) == 1 and not db.is_careful and is_self_contained(runs[0]) and runs[0].unique_key is None:
        return await _insert_one(db, app, runs[0])
    ids = [run.id for run in runs]
    name, columns = _statement(runs, freeing, node, fence)
    if db.is_careful:
        name += ".carefully"
    row = await db.only_row(name, app, *moments_of(runs, db.clock), ids, *columns)
    return Inserted(
        now=row["now"],
        fence=row["fence"] or 0,
        ids=set(ids if row["ids"] is None else row["ids"]),
        has_waiting=row["has_waiting"],
    )


async def _insert_one(db: Statements, app: str, run: NewRun) -> Inserted:
    notifier = db.notifier
    notice = None if notifier is None else notifier.with_commit(app, "runs")
    wake_up = (None, None) if notice is None else (notice.channel, notice.words)
    row = await db.only_row("insert_one", app, *moments_of([run], db.clock), *_one(run), *wake_up)
    if notifier is not None and notice is not None:
        notifier.note_commit(notice)
    return Inserted(
        now=row["now"],
        fence=0,
        ids={run.id} if row["is_new"] else set(),
        has_waiting=row["is_new"],
        is_notified=notice is not None,
    )


def _one(run: NewRun) -> list[Any]:
    """The parameters of `insert_one` from the fourth on."""
    return [
        run.id,
        run.task,
        run.cause,
        run.fire_at,
        run.due_at,
        run.delay,
        run.queue,
        run.priority,
        storable_text(run.reason),
        None if run.args is None else run.args.decode(),
        labels_text(run.labels),
        run.expires,
        run.caused_by,
        run.traceparent,
        run.format,
    ]


def _statement(
    runs: Sequence[NewRun], freeing: Sequence[bool], node: str | None, fence: int | None
) -> tuple[str, list[Any]]:
    """The statement that inserts them, and its parameters from the fifth on."""
    if all(map(is_self_contained, runs)):
        return "insert_enqueued", _enqueued_columns(runs)
    return "insert_runs", [node, fence, *_columns(runs, freeing)]


def _enqueued_columns(runs: Sequence[NewRun]) -> list[Any]:
    return [
        once_if_equal([run.task for run in runs]),
        once_if_equal([run.cause for run in runs]),
        *_times(runs),
        *_place(runs),
        *_texts(runs),
        *_unique_keys(runs),
        *_origin(runs),
        omit_default(1, [run.format for run in runs]),
    ]


def _columns(runs: Sequence[NewRun], freeing: Sequence[bool]) -> list[Any]:
    return [
        omit_default(None, [run.schedule_id for run in runs]),
        omit_default(None, [run.version for run in runs]),
        once_if_equal([run.task for run in runs]),
        once_if_equal([run.cause for run in runs]),
        *_times(runs),
        *_place(runs),
        omit_default(False, [run.state is State.BLOCKED for run in runs]),
        *_texts(runs),
        *_unique_keys(runs),
        *_origin(runs),
        omit_default(False, [run.is_claimed and run.state is not State.BLOCKED for run in runs]),
        omit_default(None, [run.timeout for run in runs]),
        omit_default(False, [run.at_most_once for run in runs]),
        freeing if any(freeing) else [],
        omit_default(1, [run.format for run in runs]),
    ]


def _times(runs: Sequence[NewRun]) -> list[Any]:
    """Moment, due time, delay."""
    moments = [run.fire_at for run in runs]
    due = [run.due_at for run in runs]
    return [omit_default(None, moments), [] if due == moments else due, omit_default(0, [run.delay for run in runs])]


def _place(runs: Sequence[NewRun]) -> list[Any]:
    """Queue, priority."""
    return [omit_default("default", [run.queue for run in runs]), omit_default(0, [run.priority for run in runs])]


def _texts(runs: Sequence[NewRun]) -> list[Any]:
    """Reason, arguments, labels, expires."""
    reasons = [run.reason for run in runs]
    labels = [run.labels for run in runs]
    return [
        [storable_text(reason) for reason in omit_default(None, reasons)],
        omit_default(None, [None if run.args is None else run.args.decode() for run in runs]),
        [labels_text(each) for each in omit_default({}, labels)],
        omit_default(None, [run.expires for run in runs]),
    ]


def _unique_keys(runs: Sequence[NewRun]) -> list[Any]:
    """Key, and until when. A key for a period has its own row."""
    if not any(run.unique_key for run in runs):
        return [[], []]
    keys = [run.unique_key if run.unique_for is None else None for run in runs]
    return [omit_default(None, keys), [run.unique_until for run in runs]]


def _origin(runs: Sequence[NewRun]) -> list[Any]:
    """Cause, trace."""
    return [omit_default(None, [run.caused_by for run in runs]), omit_default(None, [run.traceparent for run in runs])]


def labels_text(labels: dict[str, str]) -> str | None:
    return json_text({storable_text(name): storable_text(value) for name, value in labels.items()}) if labels else None


# --- ordinary plans ---------------------------------------------------------------------------------------------------


_FIRE, _WAITING = Cause.FIRE, State.WAITING
# not_null_violation: a moment that history has gives a row without an id.
_NO_ID = "23502"


def are_ordinary(advances: Sequence[Advance]) -> bool:
    """Whether all of them are ordinary, and each is of another schedule."""
    if not all(map(_is_ordinary, advances)):
        return False
    return 0 < len(advances) == len({advance.schedule_id for advance in advances})


def _is_ordinary(advance: Advance) -> bool:
    if advance.stamp is None or advance.live or len(advance.runs) != 1:
        return False
    is_plain = (
        advance.error is None
        and not advance.gaps
        and not advance.messages
        and not advance.ends_pause
        and not advance.replaces_live
        and advance.after_end is None
        and advance.occurrences is None
        and advance.undoes_run is None
    )
    return is_plain and _is_ordinary_run(advance, advance.runs[0])


def _is_ordinary_run(advance: Advance, run: NewRun) -> bool:
    return (
        run.cause is _FIRE
        and run.state is _WAITING
        and run.fire_at is not None
        and run.fire_at == advance.fire_at
        and run.schedule_key is not None
        and run.version == advance.version
        and run.unique_key is None
        and run.args is None
        and run.caused_by is None
        and run.traceparent is None
    )


async def record_ordinary(db: Statements, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    """A batch of ordinary plans. Fails if the ledger has one of the moments, live or in history."""
    # In the lock order of all transactions.
    in_order = sorted(advances, key=lambda advance: advance.schedule_id)
    runs = [advance.runs[0] for advance in in_order]
    bounds, ids = moments_of(runs, db.clock), [run.id for run in runs]
    stamps = [advance.stamp for advance in in_order]
    row = await db.only_row(
        "record_fires.ordinary", app, node, stamps, *bounds, ids, *_ordinary_columns(in_order, runs)
    )
    if row["has_waiting"]:
        db.wake(app, "runs")
    moved = row["taken"]
    taken = [True] * len(advances) if moved is None else _are_among(set(moved), advances)
    return Recorded(now=row["now"], fence=row["fence"] or 0, taken=taken)


def is_in_history(error: Exception) -> bool:
    """Whether the error is a moment that history has already."""
    return sqlstate_of(error) == _NO_ID


def _are_among(moved: set[int], advances: Sequence[Advance]) -> list[bool]:
    return [advance.schedule_id in moved for advance in advances]


def _ordinary_columns(advances: Sequence[Advance], runs: Sequence[NewRun]) -> list[Any]:
    """The parameters of the statement from the seventh on, in its order (`AS p`). An empty array stands for the
    moments, or for the default, as the statement says."""
    moments = [run.fire_at for run in runs]
    ats = [advance.at for advance in advances]
    due = [run.due_at for run in runs]
    next_moments = [advance.next_fire_at for advance in advances]
    next_ats = [advance.next_at for advance in advances]
    return [
        [advance.schedule_id for advance in advances],
        [run.schedule_key for run in runs],
        once_if_equal([advance.version for advance in advances]),
        once_if_equal([run.task for run in runs]),
        moments,
        [] if ats == moments else ats,
        [] if due == moments else due,
        next_moments,
        [] if next_ats == next_moments else next_ats,
        once_if_equal([advance.fingerprint for advance in advances]),
        omit_default("default", [run.queue for run in runs]),
        omit_default(0, [run.priority for run in runs]),
        [storable_text(reason) for reason in omit_default(None, [run.reason for run in runs])],
        [labels_text(labels) for labels in omit_default({}, [run.labels for run in runs])],
        omit_default(None, [run.expires for run in runs]),
        omit_default(False, [not run.is_claimed for run in runs]),
        omit_default(None, [run.timeout for run in runs]),
        omit_default(False, [run.at_most_once for run in runs]),
        omit_default(1, [run.format for run in runs]),
    ]


# --- all plans --------------------------------------------------------------------------------------------------------


# When to plan a schedule again whose rows could not be written.
_UNWRITABLE_PAUSE = MINUTE
# The bit of `live` that says: all are parked or blocked on another run.
_STUCK = 4
_BY_HAND = frozenset({Cause.TRIGGER, Cause.RERUN})


class AppliedAdvances(msgspec.Struct, kw_only=True):
    """The result of a batch."""

    now: int = 0
    # The fence of claimed runs; 0 if none was claimed.
    fence: int = 0
    # Schedules whose plans were applied.
    taken: set[int] = msgspec.field(default_factory=set)
    left_out: list[str] = msgspec.field(default_factory=list)
    # Runs whose unique key was taken.
    duplicates: list[str] = msgspec.field(default_factory=list)


async def record_fires(session: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    try:
        return await _record_fast(session, app, node, advances)
    except Exception as error:
        # One of them cannot be stored. Savepoints for each would slow every batch, so they are used only now.
        if not is_unwritable(error):
            raise
    return await session.write(lambda db: _record_each(db, app, node, advances))


async def _record_fast(session: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    """Guards and locks make concurrent inserts of the same runs rare, so try without care first."""

    async def act(db: Statements) -> Recorded:
        db.is_careful = False
        return await _record_all(db, app, node, advances)

    try:
        if are_ordinary(advances):
            return await session.ask(lambda db: record_ordinary(db, app, node, advances))
        return await session.write(act)
    except Exception as error:
        if not (is_unique_violation(error) or is_in_history(error)):
            raise
    return await session.write(lambda db: _record_all(db, app, node, advances))


async def _record_all(db: Statements, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    taken = [False] * len(advances)
    answer = Recorded(now=0, fence=0, taken=taken)
    rounds = _rounds(advances)
    if len(rounds) > 1:
        # Each round locks in order, but several rounds do not.
        await lock_in_order(db, app, advances)
    for places in rounds:
        part = await _record(db, app, node, [advances[place] for place in places], answer.fence or None)
        for place in places:
            taken[place] = advances[place].schedule_id in part.taken
        answer = Recorded(
            now=part.now,
            fence=answer.fence or part.fence,
            taken=taken,
            left_out=answer.left_out + part.left_out,
            duplicates=answer.duplicates + part.duplicates,
        )
    return answer if advances else msgspec.structs.replace(answer, now=(await db.only_row("now"))["now"])


def _rounds(advances: Sequence[Advance]) -> list[list[int]]:
    """Places in the batch, each schedule and each unique key once per round; the first in the batch comes first."""
    is_keyed = any(run.unique_key is not None for advance in advances for run in advance.runs)
    if not is_keyed and len({advance.schedule_id for advance in advances}) == len(advances):
        return [list(range(len(advances)))] if advances else []
    rounds: list[list[int]] = []
    next_round: dict[int | str, int] = {}
    for place, advance in enumerate(advances):
        names: list[int | str] = [advance.schedule_id]
        names += [run.unique_key for run in advance.runs if run.unique_key is not None]
        number = max(next_round.get(name, 0) for name in names)
        next_round |= dict.fromkeys(names, number + 1)
        while number >= len(rounds):
            rounds.append([])
        rounds[number].append(place)
    return rounds


async def _record(
    db: Statements, app: str, node: str | None, advances: Sequence[Advance], fence: int | None
) -> AppliedAdvances:
    failed = [advance for advance in advances if advance.error is not None]
    planned = [advance for advance in advances if advance.error is None]
    # Schedules are cached by version, with their pause, so its end raises the version.
    bumps = [int(advance.ends_pause) for advance in planned]
    applied = await apply_advances(db, app, planned, bumps, node=node, fence=fence)
    resumed = [
        advance.schedule_id for advance in planned if advance.ends_pause and advance.schedule_id in applied.taken
    ]
    if resumed:
        await db.count("change_schedules.pause", resumed, [None] * len(resumed))
        await db.count("change_schedules.count_failures_anew", resumed)
        await _publish_resumed(db, app, resumed)
    await count_from_end(
        db, [a.schedule_id for a in planned if a.after_end is not None and a.schedule_id in applied.taken]
    )
    if failed:
        applied.taken |= await _note_failures(db, app, [(a, a.error or "", a.next_at) for a in failed])
    if not applied.now:
        applied.now = (await db.only_row("now"))["now"]
    return applied


async def _publish_resumed(db: Statements, app: str, schedules: Sequence[int]) -> None:
    if db.has_feed:
        rows = await db.rows("schedule.keys", app, schedules)
        await publish(db, app, "schedule.resumed", [(row["key"],) for row in rows])


async def _record_each(db: Statements, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    taken: list[bool] = []
    left_out: list[str] = []
    duplicates: list[str] = []
    fence = 0
    for advance in advances:
        try:
            async with db.savepoint():
                part = await _record(db, app, node, [advance], fence or None)
        except Exception as error:
            if not is_unwritable(error):
                raise
            now = (await db.only_row("now"))["now"]
            problem = f"its rows cannot be stored: {error}"
            await _note_failures(db, app, [(advance, problem, now + _UNWRITABLE_PAUSE)])
            taken.append(False)
            continue
        taken.append(advance.schedule_id in part.taken)
        left_out += part.left_out
        duplicates += part.duplicates
        fence = fence or part.fence
    now = (await db.only_row("now"))["now"]
    return Recorded(now=now, fence=fence, taken=taken, left_out=left_out, duplicates=duplicates)


async def apply_advances(
    db: Statements,
    app: str,
    advances: Sequence[Advance],
    bumps: Sequence[int],
    *,
    node: str | None = None,
    fence: int | None = None,
) -> AppliedAdvances:
    """Move the cursors whose guards match, then write the runs and gaps of their plans.

    Each schedule and unique key once per batch. Raises versions by `bumps`, or by one for changed overrides, because
    schedules are cached by version.
    """
    applied = AppliedAdvances()
    duplicates = await duplicates_among(db, app, (run for advance in advances for run in advance.runs))
    pairs = []
    for advance, bump in sorted(zip(advances, bumps, strict=True), key=lambda pair: pair[0].schedule_id):
        if duplicates and _is_refused(advance, duplicates):
            applied.duplicates += [run.id for run in advance.runs]
        else:
            pairs.append((advance, bump or int(advance.occurrences is not None)))
    if any(_depends_on_runs(advance) for advance, _ in pairs):
        await _lock_schedules(db, app, [advance for advance, _ in pairs])
        pairs = await _lock_runs(db, app, pairs)
    if not pairs:
        return applied
    moved = await db.only_row("record_fires.advance", app, *_advance_columns(pairs, duplicates))
    applied.now = moved["now"]
    db.has_feed = moved["has_feed"]
    applied.taken = {advance.schedule_id for advance, _ in pairs} if moved["ids"] is None else set(moved["ids"])
    taken = [advance for advance, _ in pairs if advance.schedule_id in applied.taken]
    await _write_overrides(db, taken)
    await _undo_early(db, app, taken)
    # A run that is not inserted replaces none.
    replacing = [a for a in taken if a.replaces_live and not any(run.id in duplicates for run in a.runs)]
    await _replace_live(db, app, replacing)
    await _mark_freeing(db, taken)
    await _insert_runs(db, app, node, fence, taken, duplicates, applied)
    await _insert_gaps(db, app, taken, duplicates)
    await write_messages(db, app, [message for advance in taken for message in advance.messages])
    return applied


def _is_refused(advance: Advance, duplicates: set[str]) -> bool:
    """Only manual runs whose keys are taken. A fire for every node still runs on the nodes whose key is free."""
    return bool(advance.runs) and all(run.id in duplicates and run.cause in _BY_HAND for run in advance.runs)


async def _write_overrides(db: Statements, advances: Sequence[Advance]) -> None:
    overrides = [
        (advance.schedule_id, json_text(advance.occurrences) if advance.occurrences else None)
        for advance in advances
        if advance.occurrences is not None
    ]
    if overrides:
        await db.count("record_fires.decide", *columns_of(overrides))


def _depends_on_runs(advance: Advance) -> bool:
    """Whether the plan depends on other runs, or changes them."""
    is_blocking = any(run.state is State.BLOCKED for run in advance.runs)
    is_about_runs = advance.live is not None or advance.replaces_live or advance.undoes_run is not None
    return is_about_runs or advance.after_end is not None or is_blocking


async def lock_in_order(db: Statements, app: str, advances: Sequence[Advance], *, removed: Sequence[int] = ()) -> None:
    """All locks for these plans, and for schedules to remove, before the first part is applied."""
    await lock_keys(db, app, (run for advance in advances for run in advance.runs))
    await _lock_schedules(db, app, advances, removed=removed)


async def _lock_schedules(
    db: Statements, app: str, advances: Sequence[Advance], *, removed: Sequence[int] = ()
) -> None:
    """Lock the schedules. The gate first, if a run may end whose end releases a limit."""
    ending = [a.schedule_id for a in advances if a.replaces_live or a.undoes_run is not None]
    ending += removed
    if ending and (await db.only_row("schedule.has_limited", ending))["has_limited"]:
        await enter_gate(db, app)
    await db.only_row("schedule.lock", [advance.schedule_id for advance in advances])


async def _lock_runs(db: Statements, app: str, pairs: Sequence[tuple[Advance, int]]) -> list[tuple[Advance, int]]:
    """Lock the runs that plans will end. Leaves out plans whose early fire cannot be undone."""
    stuck = [advance.schedule_id for advance, _ in pairs if advance.live is not None and advance.live & _STUCK]
    if stuck:
        await db.rows("schedule.live_runs", stuck)
    wanted = [
        (advance.undoes_run, advance.schedule_id)
        for advance, _ in pairs
        if advance.undoes_run is not None and is_run_id(advance.undoes_run)
    ]
    early = {row["id"] for row in await db.rows("record_fires.lock_early", app, *columns_of(wanted))} if wanted else ()
    return [pair for pair in pairs if pair[0].undoes_run is None or pair[0].undoes_run in early]


async def _undo_early(db: Statements, app: str, advances: Sequence[Advance]) -> None:
    """Detach runs that have not started from their moments, and cancel them."""
    early = [(a.undoes_run, a.schedule_id) for a in advances if a.undoes_run is not None]
    if not early:
        return
    ids, schedules = columns_of(early)
    await db.count("record_fires.give_moments_back", ids)
    await db.count("record_fires.give_keys_back", app, ids, schedules)
    await end(db, app, [Ending(id_, Verdict.CANCELLED, Reason.UNDONE) for id_ in ids])


def _advance_columns(pairs: Sequence[tuple[Advance, int]], duplicates: set[str]) -> list[list[Any]]:
    advances = [advance for advance, _ in pairs]
    return [
        [advance.schedule_id for advance in advances],
        once_if_equal([advance.version for advance in advances]),
        [advance.fire_at for advance in advances],
        [advance.at for advance in advances],
        omit_default(None, [advance.live for advance in advances]),
        omit_default(0, [bump for _, bump in pairs]),
        [advance.next_fire_at for advance in advances],
        [advance.next_at for advance in advances],
        omit_default(None, [advance.after_end for advance in advances]),
        once_if_equal([count_fires(a.runs, duplicates) - (a.undoes_run is not None) for a in advances]),
        omit_default("", [advance.fingerprint for advance in advances]),
    ]


async def _replace_live(db: Statements, app: str, advances: Sequence[Advance]) -> None:
    if not advances:
        return
    written = await written_before(db, [run for advance in advances for run in advance.runs])
    replacing = [a.schedule_id for a in advances if not any(run.id in written for run in a.runs)]
    live = await db.rows("schedule.live_runs", replacing)
    held = [row["id"] for row in live if row["state"] not in IDLE_STATES]
    if held:
        await db.count("record_fires.ask_to_cancel", held, Reason.REPLACED)
        db.wake(app)
    idle = [row["id"] for row in live if row["state"] in IDLE_STATES]
    await end(db, app, [Ending(id_, Verdict.CANCELLED, Reason.REPLACED) for id_ in idle])


async def _mark_freeing(db: Statements, advances: Sequence[Advance]) -> None:
    """Set `frees` for live runs of after-end schedules, and of schedules that get a blocked run."""
    schedules_to_mark = [
        advance.schedule_id
        for advance in advances
        if advance.after_end is not None or any(run.state is State.BLOCKED for run in advance.runs)
    ]
    if schedules_to_mark:
        await db.count("schedule.mark_frees", schedules_to_mark)


async def _insert_runs(
    db: Statements,
    app: str,
    node: str | None,
    fence: int | None,
    advances: Sequence[Advance],
    duplicates: set[str],
    applied: AppliedAdvances,
) -> None:
    planned = [(run, advance.after_end is not None) for advance in advances for run in advance.runs]
    applied.duplicates += [run.id for run, _ in planned if run.id in duplicates]
    applied.left_out += [run.id for run, _ in planned if run.id in duplicates]
    wanted = [(run, frees) for run, frees in planned if run.id not in duplicates]
    inserted: set[str] = set()
    for wave in _insert_batches(wanted):
        runs = [run for run, _ in wave]
        claimant = node if any(run.is_claimed for run in runs) else None
        part = await insert_runs(
            db, app, runs, freeing=[frees for _, frees in wave], node=claimant, fence=applied.fence or fence
        )
        inserted |= part.ids
        applied.fence = applied.fence or part.fence
        if part.has_waiting:
            db.wake(app, "runs")
    await hold_keys_for_periods(db, app, [run for run, _ in wanted if run.id in inserted])
    missing = [run for run, _ in wanted if run.id not in inserted]
    applied.left_out += [run.id for run in missing]
    early = Counter(run.schedule_id for run in missing if run.cause is Cause.FIRE)
    if early:
        await db.count("record_fires.count_back", list(early), list(early.values()))


def _insert_batches(wanted: Sequence[tuple[NewRun, bool]]) -> list[list[tuple[NewRun, bool]]]:
    """Blocked runs are inserted after the runs that they are blocked on; one per schedule at a time."""
    if not any(run.state is State.BLOCKED for run, _ in wanted):
        return [list(wanted)] if wanted else []
    waves: list[list[tuple[NewRun, bool]]] = [[]]
    blocked: Counter[int | None] = Counter()
    for run, frees in wanted:
        number = 0
        if run.state is State.BLOCKED:
            blocked[run.schedule_id] += 1
            number = blocked[run.schedule_id]
        while len(waves) <= number:
            waves.append([])
        # Runs that may get a run blocked on them have the mark from the start.
        waves[number].append((run, frees))
    marked = set(blocked)
    return [[(run, frees or run.schedule_id in marked) for run, frees in wave] for wave in waves if wave]


async def _insert_gaps(db: Statements, app: str, advances: Sequence[Advance], duplicates: set[str]) -> None:
    rows = [
        (
            a.schedule_id,
            gap.first_at,
            gap.last_at,
            gap.count,
            gap.is_exact,
            gap.verdict.value,
            storable_text(gap.reason),
        )
        for a in advances
        if a.gaps or duplicates
        for gap in gaps_with_duplicates(a.gaps, a.runs, duplicates)
    ]
    if rows:
        await db.count("record_fires.gaps", app, *columns_of(rows))


async def _note_failures(db: Statements, app: str, failed: Sequence[tuple[Advance, str, int | None]]) -> set[int]:
    rows = [
        (advance.schedule_id, advance.version, advance.fire_at, advance.at, next_at, storable_text(error))
        for advance, error, next_at in failed
    ]
    noted = await db.rows("record_fires.fail", app, *columns_of(rows))
    return {row["schedule_id"] for row in noted}
