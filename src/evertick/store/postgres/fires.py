"""Recording fires: runs and gaps into the ledger and the cursor forward, guarded, many schedules in few statements.

Nearly all plans are ordinary, and written by one statement (ordinary.py). What is said here holds for the others.

The guard is one UPDATE of the narrow rows in `due`: each either matches what its plan was made from and moves the
cursor, or nothing of that plan is written. Where a guard looks at live runs, the rows are locked by a statement before
it: of two triggers at once, the later one waits, and then sees the run of the earlier one. Where a plan takes the place
of parked runs or takes one back, these runs are locked, too: nobody can begin with one after the guard has looked. The
unique index on (schedule, fire_at) stands behind it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

import msgspec

from evertick.model import IDLE_STATES, Cause, NewRun, Reason, State, Verdict
from evertick.store.base import Advance, Recorded
from evertick.store.duplicates import fires_counted, gaps_with_duplicates
from evertick.store.ending import Ending
from evertick.store.postgres.connection import is_taken, is_unwritable
from evertick.store.postgres.endings import count_from_end, end
from evertick.store.postgres.fast_path import are_ordinary, is_in_history, record_ordinary
from evertick.store.postgres.feed import tell
from evertick.store.postgres.ids import is_run_id
from evertick.store.postgres.insertion import insert_runs
from evertick.store.postgres.limits import enter_gate
from evertick.store.postgres.lookup import written_before
from evertick.store.postgres.outbox import write_messages
from evertick.store.postgres.session import Statements, StoreSession, columns_of, once_if_alike, unless_all
from evertick.store.postgres.unique import duplicates_among, keep_for_periods, lock_keys
from evertick.store.rows import json_text, plain_text
from evertick.when.moment import MINUTE

__all__ = ["Taking", "lock_in_order", "record_fires", "take"]

# When to look again at a schedule whose rows could not be written.
_UNWRITABLE_PAUSE = MINUTE
# The bit of `live` that says: nothing but parked runs and what is blocked on them.
_STUCK = 4
_BY_HAND = frozenset({Cause.TRIGGER, Cause.RERUN})


class Taking(msgspec.Struct, kw_only=True):
    """What became of a batch."""

    now: int = 0
    # The fence under which runs were claimed, else 0.
    fence: int = 0
    # Schedules whose plans were taken.
    taken: set[int] = msgspec.field(default_factory=set)
    left_out: list[str] = msgspec.field(default_factory=list)
    # Runs whose unique key was taken.
    duplicates: list[str] = msgspec.field(default_factory=list)


async def record_fires(line: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    try:
        return await _record_boldly(line, app, node, advances)
    except Exception as error:
        # One of them cannot be written. A savepoint each would cost every batch; so only the batch that needs it.
        if not is_unwritable(error):
            raise
    return await line.write(lambda db: _record_each(db, app, node, advances))


async def _record_boldly(line: StoreSession, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
    """Guards and locks leave hardly anybody who could be writing the same runs; if one does, with care."""

    async def act(db: Statements) -> Recorded:
        db.is_careful = False
        return await _record_all(db, app, node, advances)

    try:
        if are_ordinary(advances):
            return await line.ask(lambda db: record_ordinary(db, app, node, advances))
        return await line.write(act)
    except Exception as error:
        if not (is_taken(error) or is_in_history(error)):
            raise
    return await line.write(lambda db: _record_all(db, app, node, advances))


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


async def _record(db: Statements, app: str, node: str | None, advances: Sequence[Advance], fence: int | None) -> Taking:
    failed = [advance for advance in advances if advance.error is not None]
    planned = [advance for advance in advances if advance.error is None]
    # A pause is part of what is cached by version, so its end is a new one.
    bumps = [int(advance.ends_pause) for advance in planned]
    taking = await take(db, app, planned, bumps, node=node, fence=fence)
    resumed = [advance.schedule_id for advance in planned if advance.ends_pause and advance.schedule_id in taking.taken]
    if resumed:
        await db.count("change_schedules.pause", resumed, [None] * len(resumed))
        await db.count("change_schedules.count_failures_anew", resumed)
        await _tell_resumed(db, app, resumed)
    await count_from_end(
        db, [a.schedule_id for a in planned if a.after_end is not None and a.schedule_id in taking.taken]
    )
    if failed:
        taking.taken |= await _note_failures(db, app, [(a, a.error or "", a.next_at) for a in failed])
    if not taking.now:
        taking.now = (await db.only_row("now"))["now"]
    return taking


async def _tell_resumed(db: Statements, app: str, schedules: Sequence[int]) -> None:
    if db.has_feed:
        rows = await db.rows("schedule.keys", app, schedules)
        await tell(db, app, "schedule.resumed", [(row["key"],) for row in rows])


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
            said = f"its rows cannot be written: {error}"
            await _note_failures(db, app, [(advance, said, now + _UNWRITABLE_PAUSE)])
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
) -> Taking:
    """Move the cursors whose guards match, then write what their plans owe.

    Each schedule and unique key once in a batch. Versions rise by `bumps`, or by one for changed decisions: they are
    part of what is cached by version.
    """
    taking = Taking()
    doubles = await duplicates_among(db, app, (run for advance in advances for run in advance.runs))
    pairs = []
    for advance, bump in sorted(zip(advances, bumps, strict=True), key=lambda pair: pair[0].schedule_id):
        if doubles and _is_refused(advance, doubles):
            taking.duplicates += [run.id for run in advance.runs]
        else:
            pairs.append((advance, bump or int(advance.occurrences is not None)))
    if any(_looks_at_runs(advance) for advance, _ in pairs):
        await _lock_schedules(db, app, [advance for advance, _ in pairs])
        pairs = await _lock_runs(db, app, pairs)
    if not pairs:
        return taking
    moved = await db.only_row("record_fires.advance", app, *_advance_columns(pairs, doubles))
    taking.now = moved["now"]
    db.has_feed = moved["has_feed"]
    taking.taken = {advance.schedule_id for advance, _ in pairs} if moved["ids"] is None else set(moved["ids"])
    taken = [advance for advance, _ in pairs if advance.schedule_id in taking.taken]
    await _decide(db, taken)
    await _take_back(db, app, taken)
    # Nobody is replaced for a run that is not to be.
    replacing = [a for a in taken if a.replaces_live and not any(run.id in doubles for run in a.runs)]
    await _replace_live(db, app, replacing)
    await _mark_those_that_free(db, taken)
    await _insert_runs(db, app, node, fence, taken, doubles, taking)
    await _insert_gaps(db, app, taken, doubles)
    await write_messages(db, app, [message for advance in taken for message in advance.messages])
    return taking


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
        once_if_alike([advance.version for advance in advances]),
        [advance.fire_at for advance in advances],
        [advance.at for advance in advances],
        unless_all(None, [advance.live for advance in advances]),
        unless_all(0, [bump for _, bump in pairs]),
        [advance.next_fire_at for advance in advances],
        [advance.next_at for advance in advances],
        unless_all(None, [advance.after_end for advance in advances]),
        once_if_alike([fires_counted(a.runs, doubles) - (a.takes_back is not None) for a in advances]),
        unless_all("", [advance.fingerprint for advance in advances]),
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
    taking: Taking,
) -> None:
    owed = [(run, advance.after_end is not None) for advance in advances for run in advance.runs]
    taking.duplicates += [run.id for run, _ in owed if run.id in doubles]
    taking.left_out += [run.id for run, _ in owed if run.id in doubles]
    wanted = [(run, frees) for run, frees in owed if run.id not in doubles]
    inserted: set[str] = set()
    for wave in _waves(wanted):
        runs = [run for run, _ in wave]
        claimant = node if any(run.is_claimed for run in runs) else None
        part = await insert_runs(
            db, app, runs, freeing=[frees for _, frees in wave], node=claimant, fence=taking.fence or fence
        )
        inserted |= part.ids
        taking.fence = taking.fence or part.fence
        if part.has_waiting:
            db.wake(app, "runs")
    await keep_for_periods(db, app, [run for run, _ in wanted if run.id in inserted])
    missing = [run for run, _ in wanted if run.id not in inserted]
    taking.left_out += [run.id for run in missing]
    early = Counter(run.schedule_id for run in missing if run.cause is Cause.FIRE)
    if early:
        await db.count("record_fires.count_back", list(early), list(early.values()))


def _waves(wanted: Sequence[tuple[NewRun, bool]]) -> list[list[tuple[NewRun, bool]]]:
    """What is blocked is inserted after what it may be blocked on; of one schedule, one at a time."""
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
        # Whoever may have one blocked on it is marked from the beginning.
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
