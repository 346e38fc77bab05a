"""Recording fires: runs and gaps into the ledger and the cursor forward, guarded, many schedules in few statements.

Nearly all plans are ordinary: a moment has come, its run is recorded, the cursor goes on. A batch of these is one
statement, guarded by the stamps of the rows that they were made from. A plan that needs more (other runs are looked at
or end, a gap, a message, a unique key, ...) goes the longer way, and so does a batch of which the ledger has a moment
already.

There the guard is one UPDATE of the narrow rows in `due`: each either matches what its plan was made from and moves the
cursor, or nothing of that plan is written. Where a guard looks at live runs, the rows are locked by a statement before
it: of two triggers at once, the later one waits, and then sees the run of the earlier one. Where a plan takes the place
of parked runs or takes one back, these runs are locked, too: no node can begin with one after the guard has looked. The
unique index on (schedule, fire_at) stands behind it.

A unique key is a live run's by the unique index, and a run's for a period by a row of its own. One index cannot guard
both, so a transaction that wants to take a key holds its lock from the look to the commit. Giving one up needs no lock:
it can only make a look come out stricter than it had to.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.model import IDLE_STATES, Cause, NewRun, Reason, State, Verdict
from evertick.store.base import Advance, Recorded, fires_counted
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
from evertick.store.rows import is_all_there, json_text, plain_text
from evertick.store.verdicts import Ending, gaps_with_duplicates
from evertick.when.moment import DAY, MINUTE

__all__ = [
    "Inserted",
    "duplicates_among",
    "insert_runs",
    "keep_for_periods",
    "lock_in_order",
    "moments_of",
    "record_fires",
    "take",
]

# --- earlier copies of new runs ---------------------------------------------------------------------------------------


# How wrong the clock of a caller may be for a run that it sends twice to be found in history.
_CLOCKS_APART = DAY


def moments_of(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """Between which moments earlier copies of these runs must be, if there are any."""
    moments = [run.fire_at for run in runs if run.fire_at is not None]
    bounds = [(min(moments), max(moments))] if moments else []
    if len(moments) < len(runs):
        bounds.append(_moments_of_new([run for run in runs if run.fire_at is None], clock))
    return min(first for first, _ in bounds), max(last for _, last in bounds)


async def written_before(db: Statements, runs: Sequence[NewRun]) -> set[str]:
    """Those of these runs that are in the ledger already, live or done."""
    if not runs:
        return set()
    rows = await db.rows("record_fires.written_before", [run.id for run in runs], *moments_of(runs, db.clock))
    return {row["id"] for row in rows}


def _moments_of_new(runs: Sequence[NewRun], clock: Clock) -> tuple[int, int]:
    """Of runs that get their moments from the store."""
    ids = [run.id for run in runs]
    # Ids of version 7 sort by the time of their making.
    first, last = made_at(min(ids)), made_at(max(ids))
    if first is None or last is None or any(id_[14:15] != "7" for id_ in ids):
        return ALL_MOMENTS
    # They were inserted, by the time of the store, between the making of their ids and now, both by clocks of callers.
    now = clock.now_us()
    delays = [run.delay for run in runs]
    return min(first, now) + min(delays) - _CLOCKS_APART, max(last, now) + max(delays) + _CLOCKS_APART


# --- unique keys ------------------------------------------------------------------------------------------------------


async def lock_keys(db: Statements, app: str, runs: Iterable[NewRun]) -> None:
    """Before any other lock: of two that want the same keys, one is first."""
    keys = list(dict.fromkeys(run.unique_key for run in runs if run.unique_key is not None))
    if keys:
        await db.rows("unique.lock", app, keys)


async def duplicates_among(db: Statements, app: str, runs: Iterable[NewRun]) -> set[str]:
    """Runs whose key another run has. One that is sent again is no duplicate of itself. Locks the keys."""
    keyed = [run for run in runs if run.unique_key is not None]
    if not keyed:
        return set()
    await lock_keys(db, app, keyed)
    keys = list(dict.fromkeys(run.unique_key for run in keyed))
    holders = {row["key"]: row["id"] for row in await db.rows("unique.holders", app, keys)}
    held = [run for run in keyed if holders[run.unique_key] not in (None, run.id)]
    return {run.id for run in held} - await written_before(db, held)


async def keep_for_periods(db: Statements, app: str, inserted: Sequence[NewRun]) -> None:
    rows = [
        (run.unique_key, run.id, run.unique_for)
        for run in inserted
        if run.unique_key is not None and run.unique_for is not None
    ]
    if rows:
        await db.count("unique.keep", app, *columns_of(rows))


# --- new runs into the live table -------------------------------------------------------------------------------------


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """The result of inserting runs."""

    now: int
    # Under which those are running that were to be claimed, else 0.
    fence: int
    ids: set[str]
    # Whether one of them waits to be claimed.
    has_waiting: bool
    # Others were woken by the statement itself.
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
    """Without those that are in the ledger already. Each id once. `freeing`: of each, whether it has the mark `frees`.

    Those to be claimed are so by the node, under the given fence or a new one; without a node they wait. Runs that
    others are inserting at this very moment are an error, unless the session is careful.
    """
    if len(runs) == 1 and not db.is_careful and is_all_there(runs[0]) and runs[0].unique_key is None:
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
    """All that `insert_one` takes from its fourth parameter on."""
    return [
        run.id,
        run.task,
        run.cause,
        run.fire_at,
        run.due_at,
        run.delay,
        run.queue,
        run.priority,
        plain_text(run.reason),
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
    """The statement that inserts them, and its values from the fifth parameter on."""
    if all(map(is_all_there, runs)):
        return "insert_enqueued", _enqueued_columns(runs)
    return "insert_runs", [node, fence, *_columns(runs, freeing)]


def _enqueued_columns(runs: Sequence[NewRun]) -> list[Any]:
    return [
        once_if_equal([run.task for run in runs]),
        once_if_equal([run.cause for run in runs]),
        *_times(runs),
        *_place(runs),
        *_words(runs),
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
        *_words(runs),
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


def _words(runs: Sequence[NewRun]) -> list[Any]:
    """Reason, arguments, labels, and how long it may be too late."""
    reasons = [run.reason for run in runs]
    labels = [run.labels for run in runs]
    return [
        [plain_text(reason) for reason in omit_default(None, reasons)],
        omit_default(None, [None if run.args is None else run.args.decode() for run in runs]),
        [labels_text(each) for each in omit_default({}, labels)],
        omit_default(None, [run.expires for run in runs]),
    ]


def _unique_keys(runs: Sequence[NewRun]) -> list[Any]:
    """Key, and until when. Those for a period have a row of their own."""
    if not any(run.unique_key for run in runs):
        return [[], []]
    keys = [run.unique_key if run.unique_for is None else None for run in runs]
    return [omit_default(None, keys), [run.unique_until for run in runs]]


def _origin(runs: Sequence[NewRun]) -> list[Any]:
    """Cause, trace."""
    return [omit_default(None, [run.caused_by for run in runs]), omit_default(None, [run.traceparent for run in runs])]


def labels_text(labels: dict[str, str]) -> str | None:
    return json_text({plain_text(name): plain_text(value) for name, value in labels.items()}) if labels else None


# --- ordinary plans ---------------------------------------------------------------------------------------------------


_FIRE, _WAITING = Cause.FIRE, State.WAITING
# A row without an id: see the statement.
_NO_ID = "23502"


def are_ordinary(advances: Sequence[Advance]) -> bool:
    """Whether all of them are, each of another schedule."""
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
        and advance.takes_back is None
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
    """Of a batch that is ordinary. Fails if the ledger has one of the moments already, live or in history."""
    # By schedule, as all transactions lock them.
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
    """Whether it was a moment that history has."""
    return sqlstate_of(error) == _NO_ID


def _are_among(moved: set[int], advances: Sequence[Advance]) -> list[bool]:
    return [advance.schedule_id in moved for advance in advances]


def _ordinary_columns(advances: Sequence[Advance], runs: Sequence[NewRun]) -> list[Any]:
    """The values of the statement from its seventh parameter on, in the order in which it names them (`AS p`). Empty:
    as it says there, the moments themselves or what is usual."""
    moments = [run.fire_at for run in runs]
    looks = [advance.at for advance in advances]
    due = [run.due_at for run in runs]
    next_moments = [advance.next_fire_at for advance in advances]
    next_looks = [advance.next_at for advance in advances]
    return [
        [advance.schedule_id for advance in advances],
        [run.schedule_key for run in runs],
        once_if_equal([advance.version for advance in advances]),
        once_if_equal([run.task for run in runs]),
        moments,
        [] if looks == moments else looks,
        [] if due == moments else due,
        next_moments,
        [] if next_looks == next_moments else next_looks,
        once_if_equal([advance.fingerprint for advance in advances]),
        omit_default("default", [run.queue for run in runs]),
        omit_default(0, [run.priority for run in runs]),
        [plain_text(reason) for reason in omit_default(None, [run.reason for run in runs])],
        [labels_text(labels) for labels in omit_default({}, [run.labels for run in runs])],
        omit_default(None, [run.expires for run in runs]),
        omit_default(False, [not run.is_claimed for run in runs]),
        omit_default(None, [run.timeout for run in runs]),
        omit_default(False, [run.at_most_once for run in runs]),
        omit_default(1, [run.format for run in runs]),
    ]


# --- all plans --------------------------------------------------------------------------------------------------------


# When to look again at a schedule whose rows could not be written.
_UNWRITABLE_PAUSE = MINUTE
# The bit of `live` that says: nothing but parked runs and what is blocked on them.
_STUCK = 4
_BY_HAND = frozenset({Cause.TRIGGER, Cause.RERUN})


class TakenAdvances(msgspec.Struct, kw_only=True):
    """The result of a batch."""

    now: int = 0
    # The fence under which runs were claimed, else 0.
    fence: int = 0
    # Schedules whose plans were taken.
    taken: set[int] = msgspec.field(default_factory=set)
    left_out: list[str] = msgspec.field(default_factory=list)
    # Runs whose unique key was taken.
    duplicates: list[str] = msgspec.field(default_factory=list)


async def record_fires(session: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    try:
        return await _record_boldly(session, app, node, advances)
    except Exception as error:
        # One of them cannot be written. A savepoint each would cost every batch; so only the batch that needs it.
        if not is_unwritable(error):
            raise
    return await session.write(lambda db: _record_each(db, app, node, advances))


async def _record_boldly(session: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    """Guards and locks leave hardly anybody who could be writing the same runs; if one does, with care."""

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
        # Each of them locks in order, but not all of them together.
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
    """Places in the batch, each schedule and each unique key once in a round: of two, the first comes first."""
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
) -> TakenAdvances:
    failed = [advance for advance in advances if advance.error is not None]
    planned = [advance for advance in advances if advance.error is None]
    # A pause is part of what is cached by version, so its end is a new one.
    bumps = [int(advance.ends_pause) for advance in planned]
    taken_advances = await take(db, app, planned, bumps, node=node, fence=fence)
    resumed = [
        advance.schedule_id for advance in planned if advance.ends_pause and advance.schedule_id in taken_advances.taken
    ]
    if resumed:
        await db.count("change_schedules.pause", resumed, [None] * len(resumed))
        await db.count("change_schedules.count_failures_anew", resumed)
        await _publish_resumed(db, app, resumed)
    await count_from_end(
        db, [a.schedule_id for a in planned if a.after_end is not None and a.schedule_id in taken_advances.taken]
    )
    if failed:
        taken_advances.taken |= await _note_failures(db, app, [(a, a.error or "", a.next_at) for a in failed])
    if not taken_advances.now:
        taken_advances.now = (await db.only_row("now"))["now"]
    return taken_advances


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
            problem = f"its rows cannot be written: {error}"
            await _note_failures(db, app, [(advance, problem, now + _UNWRITABLE_PAUSE)])
            taken.append(False)
            continue
        taken.append(advance.schedule_id in part.taken)
        left_out += part.left_out
        duplicates += part.duplicates
        fence = fence or part.fence
    now = (await db.only_row("now"))["now"]
    return Recorded(now=now, fence=fence, taken=taken, left_out=left_out, duplicates=duplicates)


async def take(
    db: Statements,
    app: str,
    advances: Sequence[Advance],
    bumps: Sequence[int],
    *,
    node: str | None = None,
    fence: int | None = None,
) -> TakenAdvances:
    """Move the cursors whose guards match, then write what their plans owe.

    Each schedule and unique key once in a batch. Versions rise by `bumps`, or by one for changed decisions: they are
    part of what is cached by version.
    """
    taken_advances = TakenAdvances()
    doubles = await duplicates_among(db, app, (run for advance in advances for run in advance.runs))
    pairs = []
    for advance, bump in sorted(zip(advances, bumps, strict=True), key=lambda pair: pair[0].schedule_id):
        if doubles and _is_refused(advance, doubles):
            taken_advances.duplicates += [run.id for run in advance.runs]
        else:
            pairs.append((advance, bump or int(advance.occurrences is not None)))
    if any(_looks_at_runs(advance) for advance, _ in pairs):
        await _lock_schedules(db, app, [advance for advance, _ in pairs])
        pairs = await _lock_runs(db, app, pairs)
    if not pairs:
        return taken_advances
    moved = await db.only_row("record_fires.advance", app, *_advance_columns(pairs, doubles))
    taken_advances.now = moved["now"]
    db.has_feed = moved["has_feed"]
    taken_advances.taken = {advance.schedule_id for advance, _ in pairs} if moved["ids"] is None else set(moved["ids"])
    taken = [advance for advance, _ in pairs if advance.schedule_id in taken_advances.taken]
    await _decide(db, taken)
    await _take_back(db, app, taken)
    # No run is replaced for one that is not to be.
    replacing = [a for a in taken if a.replaces_live and not any(run.id in doubles for run in a.runs)]
    await _replace_live(db, app, replacing)
    await _mark_those_that_free(db, taken)
    await _insert_runs(db, app, node, fence, taken, doubles, taken_advances)
    await _insert_gaps(db, app, taken, doubles)
    await write_messages(db, app, [message for advance in taken for message in advance.messages])
    return taken_advances


def _is_refused(advance: Advance, doubles: set[str]) -> bool:
    """By hand, with nothing left to write. On several nodes those that are free have their run all the same."""
    return bool(advance.runs) and all(run.id in doubles and run.cause in _BY_HAND for run in advance.runs)


async def _decide(db: Statements, advances: Sequence[Advance]) -> None:
    decided = [
        (advance.schedule_id, json_text(advance.occurrences) if advance.occurrences else None)
        for advance in advances
        if advance.occurrences is not None
    ]
    if decided:
        await db.count("record_fires.decide", *columns_of(decided))


def _looks_at_runs(advance: Advance) -> bool:
    """Whether more than the row of the schedule decides, or is decided by it."""
    is_blocking = any(run.state is State.BLOCKED for run in advance.runs)
    is_about_runs = advance.live is not None or advance.replaces_live or advance.takes_back is not None
    return is_about_runs or advance.after_end is not None or is_blocking


async def lock_in_order(db: Statements, app: str, advances: Sequence[Advance], *, removed: Sequence[int] = ()) -> None:
    """All that these plans need, and schedules that are removed, before a part of them is taken."""
    await lock_keys(db, app, (run for advance in advances for run in advance.runs))
    await _lock_schedules(db, app, advances, removed=removed)


async def _lock_schedules(
    db: Statements, app: str, advances: Sequence[Advance], *, removed: Sequence[int] = ()
) -> None:
    """The schedules of these plans; the gate before them, if a run may end by them that makes room under a limit."""
    ending = [a.schedule_id for a in advances if a.replaces_live or a.takes_back is not None]
    ending += removed
    if ending and (await db.only_row("schedule.has_limited", ending))["has_limited"]:
        await enter_gate(db, app)
    await db.only_row("schedule.lock", [advance.schedule_id for advance in advances])


async def _lock_runs(db: Statements, app: str, pairs: Sequence[tuple[Advance, int]]) -> list[tuple[Advance, int]]:
    """Lock the runs that plans are about to end, as they were planned. Without those whose run cannot be taken back."""
    stuck = [advance.schedule_id for advance, _ in pairs if advance.live is not None and advance.live & _STUCK]
    if stuck:
        await db.rows("schedule.live_runs", stuck)
    wanted = [
        (advance.takes_back, advance.schedule_id)
        for advance, _ in pairs
        if advance.takes_back is not None and is_run_id(advance.takes_back)
    ]
    early = {row["id"] for row in await db.rows("record_fires.lock_early", app, *columns_of(wanted))} if wanted else ()
    return [pair for pair in pairs if pair[0].takes_back is None or pair[0].takes_back in early]


async def _take_back(db: Statements, app: str, advances: Sequence[Advance]) -> None:
    """Runs that have not begun give their moments back to their schedules."""
    early = [(a.takes_back, a.schedule_id) for a in advances if a.takes_back is not None]
    if not early:
        return
    ids, schedules = columns_of(early)
    await db.count("record_fires.give_moments_back", ids)
    await db.count("record_fires.give_keys_back", app, ids, schedules)
    await end(db, app, [Ending(id_, Verdict.CANCELLED, Reason.UNDONE) for id_ in ids])


def _advance_columns(pairs: Sequence[tuple[Advance, int]], doubles: set[str]) -> list[list[Any]]:
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
        once_if_equal([fires_counted(a.runs, doubles) - (a.takes_back is not None) for a in advances]),
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


async def _mark_those_that_free(db: Statements, advances: Sequence[Advance]) -> None:
    """Live runs of schedules that count from the end, or that are to have one blocked on them: see `frees`."""
    concerned = [
        advance.schedule_id
        for advance in advances
        if advance.after_end is not None or any(run.state is State.BLOCKED for run in advance.runs)
    ]
    if concerned:
        await db.count("schedule.mark_frees", concerned)


async def _insert_runs(
    db: Statements,
    app: str,
    node: str | None,
    fence: int | None,
    advances: Sequence[Advance],
    doubles: set[str],
    taken_advances: TakenAdvances,
) -> None:
    owed = [(run, advance.after_end is not None) for advance in advances for run in advance.runs]
    taken_advances.duplicates += [run.id for run, _ in owed if run.id in doubles]
    taken_advances.left_out += [run.id for run, _ in owed if run.id in doubles]
    wanted = [(run, frees) for run, frees in owed if run.id not in doubles]
    inserted: set[str] = set()
    for wave in _waves(wanted):
        runs = [run for run, _ in wave]
        claimant = node if any(run.is_claimed for run in runs) else None
        part = await insert_runs(
            db, app, runs, freeing=[frees for _, frees in wave], node=claimant, fence=taken_advances.fence or fence
        )
        inserted |= part.ids
        taken_advances.fence = taken_advances.fence or part.fence
        if part.has_waiting:
            db.wake(app, "runs")
    await keep_for_periods(db, app, [run for run, _ in wanted if run.id in inserted])
    missing = [run for run, _ in wanted if run.id not in inserted]
    taken_advances.left_out += [run.id for run in missing]
    early = Counter(run.schedule_id for run in missing if run.cause is Cause.FIRE)
    if early:
        await db.count("record_fires.count_back", list(early), list(early.values()))


def _waves(wanted: Sequence[tuple[NewRun, bool]]) -> list[list[tuple[NewRun, bool]]]:
    """Blocked runs are inserted after those they may be blocked on; of one schedule, one at a time."""
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
        # Runs that may have one blocked on them are marked from the beginning.
        waves[number].append((run, frees))
    marked = set(blocked)
    return [[(run, frees or run.schedule_id in marked) for run, frees in wave] for wave in waves if wave]


async def _insert_gaps(db: Statements, app: str, advances: Sequence[Advance], doubles: set[str]) -> None:
    rows = [
        (a.schedule_id, gap.first_at, gap.last_at, gap.count, gap.is_exact, gap.verdict.value, plain_text(gap.reason))
        for a in advances
        if a.gaps or doubles
        for gap in gaps_with_duplicates(a.gaps, a.runs, doubles)
    ]
    if rows:
        await db.count("record_fires.gaps", app, *columns_of(rows))


async def _note_failures(db: Statements, app: str, failed: Sequence[tuple[Advance, str, int | None]]) -> set[int]:
    rows = [
        (advance.schedule_id, advance.version, advance.fire_at, advance.at, next_at, plain_text(error))
        for advance, error, next_at in failed
    ]
    noted = await db.rows("record_fires.fail", app, *columns_of(rows))
    return {row["schedule_id"] for row in noted}
