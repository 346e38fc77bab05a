"""Limits on PostgreSQL: which runs pass, which are held back, and which are let through again.

The states and the reasons are those of SQLite: `store/sqlite/limits.py` says why nothing is held back for ever, by
(a), (b) and (c). There one transaction writes at a time. Here claims of nodes that know a limited task, and all that
makes room, hold the gate of their app, an advisory lock of the transaction: so a claim counts what runs under a key,
takes up to the limit and holds the rest back, and no other claim can interleave.

The end of a run takes the gate before it locks the run, and looks for the next in a statement of its own: a claim that
was ahead of it has committed what it held back, and is seen; a claim behind it counts without the run. Joining and
looking hold the gate, so that a node that joins sees what is held back under the limits of another, or those limits. A
claim of a node that dies meanwhile either has the gate, and is seen by the node that is to look (`looks`), or comes to
the gate later and finds that its node is dead. A claim writes its decisions in a few statements per batch.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evertick.model.limits import Concurrency, Rate
from evertick.store.base import TaskTerms
from evertick.store.postgres.connection import OutOfOrder, Statements, columns_of
from evertick.store.rows import Row
from evertick.when.moment import SECOND

__all__ = ["KEYS_MOST", "Gate", "check_again", "enter_gate", "make_room", "release_next", "release_stuck"]

# Keys that one claim lets through at most, whose time has come or that its node looks at again: bounds its transaction.
KEYS_MOST = 100
# When to look again at a rate whose next run was held back by a concurrency: it is unknown when that will be free.
_RECHECK = SECOND
# A node that stops in the gate (frozen, cut off) holds up all claims of its app for so long at most. Within the gate
# statements follow one another at once.
_SILENCE_MOST = "3s"


async def enter_gate(db: Statements, app: str) -> None:
    """Before any lock of a schedule or a run: a transaction in the gate waits for runs."""
    if db.is_in_gate:
        return
    if db.is_ours:
        await db.rows("limits.gate_of_ours", app, _SILENCE_MOST)
    else:
        await db.rows("limits.gate", app)
    db.is_in_gate = True


async def make_room(db: Statements, app: str, keys: Iterable[str | None]) -> bool:
    """Runs with these keys have left running, or were let through and are not claimed after all: the next may come.

    One answer for all: whether anybody was let through.
    """
    left = Counter(key for key in keys if key is not None)
    if not left:
        return False
    if not db.is_in_gate:
        raise OutOfOrder(f"runs of app {app!r} came under the limits {sorted(left)} before they could be locked")
    return await release_next(db, app, left)


async def release_next(db: Statements, app: str, counts: Mapping[str, int], *, only_idle: bool = False) -> bool:
    """Let the best of each lane of the keys through; `only_idle`: of lanes in which no run is let through already."""
    if not counts:
        return False
    return await db.count("limits.let_through", app, list(counts), list(counts.values()), only_idle) > 0


async def check_again(db: Statements, app: str, node: str, asked: Sequence[int], after: str) -> bool:
    """Let the next of the next keys' lanes through, under any node's limits. True: there is more."""
    keys = [row["key"] for row in await db.rows("limits.next_keys", app, after, KEYS_MOST)]
    if keys:
        await db.count("limits.forget_times", app, keys)
        await release_next(db, app, dict.fromkeys(keys, 1), only_idle=True)
    has_more = len(keys) == KEYS_MOST
    await db.count("limits.looked_up_to", node, asked, keys[-1] if has_more else None)
    if not has_more:
        await db.count("limits.forget_terms", app, node)
    return has_more


async def release_stuck(db: Statements, app: str, after: str, most: int) -> str:
    """Look at the next keys that hold something back; where neither (a) nor (c) holds, see to (b). Answers how far."""
    keys = [row["key"] for row in await db.rows("limits.next_keys", app, after, most)]
    if not keys:
        return ""
    await enter_gate(db, app)
    stuck = [row["key"] for row in await db.rows("limits.stuck", app, keys)]
    if stuck:
        await db.count("limits.forget_times", app, stuck)
        await release_next(db, app, dict.fromkeys(stuck, 1), only_idle=True)
    return str(keys[-1]) if len(keys) == most else ""


class _Starts:
    """The starts under one key, oldest first, and those that this claim adds. Tasks that share it may differ in
    rate."""

    def __init__(self, now: int, rows: Sequence[Row]) -> None:
        self._now = now
        # Starts in the future were made before the clock was put back: it counts from now, no longer than others.
        self.is_changed = any(row["at"] > now for row in rows)
        self._counts: dict[int, int] = {}
        self._until: dict[int, int] = {}
        for row in sorted(rows, key=lambda row: row["at"]):
            at = min(row["at"], now)
            self._counts[at] = self._counts.get(at, 0) + row["count"]
            self._until[at] = row["until"] - row["at"] + at

    def room(self, rate: Rate) -> int:
        return rate.most - sum(self._counted(rate).values())

    def add(self, rate: Rate) -> None:
        """One more, gathered with those of the same grain: as if all of them had started now."""
        self.is_changed = True
        since = self._now - self._now % rate.grain if rate.grain else self._now
        gathered = [at for at in self._counts if at >= since]
        count = sum(self._counts.pop(at) for at in gathered) + 1
        until = max([self._now + rate.period, *(self._until.pop(at) for at in gathered)])
        self._counts[self._now], self._until[self._now] = count, until

    def free_at(self, rate: Rate) -> int:
        """When the next start is free, if nothing else starts. Asked of a rate that is used up."""
        counted = self._counted(rate)
        left = sum(counted.values())
        for at, count in counted.items():
            left -= count
            if left < rate.most:
                return at + rate.period
        return self._now + rate.period

    def rows(self, key: str) -> list[tuple[str, int, int, int]]:
        return [(key, at, count, self._until[at]) for at, count in self._counts.items() if self._until[at] > self._now]

    def _counted(self, rate: Rate) -> dict[int, int]:
        return {at: count for at, count in self._counts.items() if at > self._now - rate.period}


class Gate:
    """The limits as one claim meets them. Counts are read once per key and kept up to date by what the claim does."""

    def __init__(self, db: Statements, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._tasks = tasks
        self._running: dict[str, int] = {}
        self._starts: dict[str, _Starts] = {}
        # Keys that runs were taken under since the last settlement, with the widest limit that their tasks have.
        self._taken: dict[str, Concurrency | Rate] = {}
        self._held_back: list[tuple[str, str]] = []
        self._look_at: dict[str, int] = {}
        self._let_idle: set[str] = set()
        # Keys of limits that runs were held back by and that the code no longer has.
        self._outdated: set[str] = set()

    async def pass_through(self, rows: Sequence[Row]) -> dict[str, str | None]:
        """The runs that may start, by id, with the key that they count under; the others are held back."""
        await self._read(rows)
        passed: dict[str, str | None] = {}
        for row in rows:
            terms = self._tasks[row["task"]]
            held_by = self._blocked_by(row, terms) if terms.is_limited else None
            if held_by is not None:
                self._block(row, *held_by)
            else:
                passed[row["id"]] = self._admit(row, terms)
        await self._write()
        return passed

    async def settle(self, slots: int) -> bool:
        """After a batch was taken: what else may come through, or when. True: a run was let through."""
        taken, self._taken = self._taken, {}
        outdated, self._outdated = self._outdated, set()
        rooms = {key: self._room(key, limit) for key, limit in taken.items()}
        # No more than this claim could take; but one in any case, for the next claim.
        most = max(slots, 1)
        open_keys = {key: min(room, most) for key, room in rooms.items() if room > 0}
        has_released = await release_next(
            self._db, self._app, dict.fromkeys(outdated, most) | open_keys, only_idle=True
        )
        full = {key: limit for key, limit in taken.items() if rooms[key] <= 0 and isinstance(limit, Rate)}
        if full:
            holding = {row["key"] for row in await self._db.rows("limits.holding", self._app, list(full))}
            await self._set_times({k: self._starts[k].free_at(rate) for k, rate in full.items() if k in holding})
        return has_released

    def _room(self, key: str, limit: Concurrency | Rate) -> int:
        if isinstance(limit, Rate):
            return self._starts[key].room(limit)
        return limit.most - self._running[key]

    async def _read(self, rows: Sequence[Row]) -> None:
        """Counts of the keys of these runs that were not read yet."""
        limits = [(self._tasks[row["task"]], row["args"]) for row in rows]
        running = {terms.concurrency.key(args) for terms, args in limits if terms.concurrency is not None}
        unread = sorted(running - set(self._running))
        if unread:
            counts = await self._db.rows("limits.running", self._app, unread)
            self._running |= {row["key"]: row["count"] for row in counts}
        rates = {terms.rate.key(args) for terms, args in limits if terms.rate is not None}
        unread = sorted(rates - set(self._starts))
        if unread:
            found: dict[str, list[Row]] = {}
            for row in await self._db.rows("limits.starts", self._app, unread):
                found.setdefault(row["key"], []).append(row)
            self._starts |= {key: _Starts(self._now, found.get(key, ())) for key in unread}

    async def _write(self) -> None:
        if self._held_back:
            await self._db.count("limits.hold_back", *columns_of(self._held_back))
            self._held_back = []
        changed = {key: starts for key, starts in self._starts.items() if starts.is_changed}
        if changed:
            await self._db.count("limits.forget_starts", self._app, list(changed))
            rows = [row for key, starts in changed.items() for row in starts.rows(key)]
            if rows:
                await self._db.count("limits.put_starts", self._app, *columns_of(rows))
            for starts in changed.values():
                starts.is_changed = False
        await self._set_times(self._look_at)
        self._look_at = {}
        idle, self._let_idle = self._let_idle, set()
        await release_next(self._db, self._app, dict.fromkeys(sorted(idle), 1), only_idle=True)

    async def _set_times(self, times: Mapping[str, int]) -> None:
        if times:
            await self._db.count("limits.set_times", self._app, list(times), list(times.values()), self._now)

    def _blocked_by(self, row: Row, terms: TaskTerms) -> tuple[str, bool, int] | None:
        """The key that has no room, whether others of the lane may have another one, when to look again; None: none."""
        if terms.concurrency is not None:
            key = terms.concurrency.key(row["args"])
            if self._running[key] >= terms.concurrency.most:
                return key, terms.concurrency.of.varies, self._now + _RECHECK
        if terms.rate is not None:
            key = terms.rate.key(row["args"])
            starts = self._starts[key]
            if starts.room(terms.rate) <= 0:
                free_at = starts.free_at(terms.rate)
                self._look_again(key, free_at)
                return key, terms.rate.of.varies, free_at
        return None

    def _block(self, row: Row, key: str, varies: bool, look_again_at: int) -> None:
        self._held_back.append((row["id"], key))
        before = row["limit_key"]
        if before is None or before == key:
            return
        if varies:
            self._let_idle.add(before)
        else:
            self._look_again(before, look_again_at)

    def _look_again(self, key: str, at: int) -> None:
        self._look_at[key] = min(at, self._look_at.get(key, at))

    def _admit(self, row: Row, terms: TaskTerms) -> str | None:
        counted_under = None
        if terms.concurrency is not None:
            counted_under = terms.concurrency.key(row["args"])
            self._running[counted_under] += 1
            self._taken[counted_under] = _wider(terms.concurrency, self._taken.get(counted_under))
        if terms.rate is not None:
            key = terms.rate.key(row["args"])
            self._starts[key].add(terms.rate)
            self._taken[key] = terms.rate
        if row["limit_key"] is not None and row["limit_key"] not in self._taken:
            self._outdated.add(row["limit_key"])
        return counted_under


def _wider(limit: Concurrency, other: Concurrency | Rate | None) -> Concurrency | Rate:
    return other if other is not None and other.most > limit.most else limit
