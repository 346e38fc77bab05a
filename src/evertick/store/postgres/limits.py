"""Limits on PostgreSQL: which runs pass a limit, which are blocked by it, and when they are released.

States and reasons are those of SQLite: `store/sqlite/limits.py` explains, by (a), (b) and (c), why no run is blocked
for ever. SQLite has one writer at a time. Here claims of nodes that know a limited task, and all transactions that
release a limit, hold the gate of their app, an advisory lock of the transaction. So a claim counts the running runs of
a key, takes up to the limit and blocks the others, and no other claim can interleave.

The end of a run takes the gate before it locks the run, and searches for the next run in a statement of its own: a
claim that had the gate before has committed its blocked runs, which are seen; a claim after it counts without the run.
Joins and repeated checks hold the gate, so that a joining node sees runs that are blocked under the limits of another
node, or those limits. A claim of a node that dies meanwhile either has the gate, and is seen by the node that will
check (`looks`), or gets the gate later and finds its node dead. A claim writes its decisions in a few statements per
batch.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from evertick.model.limits import Concurrency, Rate
from evertick.store.base import TaskTerms
from evertick.store.postgres.connection import OutOfOrder, Statements, columns_of
from evertick.store.rows import Row
from evertick.when.moment import SECOND

__all__ = ["KEYS_MOST", "Gate", "check_again", "enter_gate", "make_room", "release_next", "release_stuck"]

# Keys that one claim releases or checks again, at most: bounds its transaction.
KEYS_MOST = 100
# When to check a rate again whose next run a concurrency limit blocks: it is unknown when that will be free.
_RECHECK = SECOND
# A node that stops while it holds the gate (frozen, network lost) blocks all claims of its app for this long at most. A
# healthy node sends its statements at once.
_SILENCE_MOST = "3s"


async def enter_gate(db: Statements, app: str) -> None:
    """Before any lock of a schedule or a run, because a transaction that holds the gate waits for runs."""
    if db.is_in_gate:
        return
    if db.is_ours:
        await db.rows("limits.gate_of_ours", app, _SILENCE_MOST)
    else:
        await db.rows("limits.gate", app)
    db.is_in_gate = True


async def make_room(db: Statements, app: str, keys: Iterable[str | None]) -> bool:
    """Runs with these keys have stopped running, or were released but not claimed: release the next ones.

    Returns whether any run was released.
    """
    left = Counter(key for key in keys if key is not None)
    if not left:
        return False
    if not db.is_in_gate:
        raise OutOfOrder(f"runs of app {app!r} got the limits {sorted(left)} before they were locked")
    return await release_next(db, app, left)


async def release_next(db: Statements, app: str, counts: Mapping[str, int], *, only_idle: bool = False) -> bool:
    """Release the best runs of each lane of the keys. `only_idle`: only of lanes without a released run."""
    if not counts:
        return False
    return await db.count("limits.let_through", app, list(counts), list(counts.values()), only_idle) > 0


async def check_again(db: Statements, app: str, node: str, asked: Sequence[int], after: str) -> bool:
    """Release the next run of each lane of the next keys, blocked by any node. True: there are more keys."""
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
    """Check the next keys with blocked runs: where neither (a) nor (c) holds, release a run (b). Returns the last key
    checked; "" at the end."""
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
    """The starts of one key, oldest first, and those that this claim adds. Tasks of one key may have different
    rates."""

    def __init__(self, now: int, rows: Sequence[Row]) -> None:
        self._now = now
        # Starts in the future were made before the clock was put back; they count from now, for one period.
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
        """Add a start, merged with those of the same grain as if all had started now."""
        self.is_changed = True
        since = self._now - self._now % rate.grain if rate.grain else self._now
        merged = [at for at in self._counts if at >= since]
        count = sum(self._counts.pop(at) for at in merged) + 1
        until = max([self._now + rate.period, *(self._until.pop(at) for at in merged)])
        self._counts[self._now], self._until[self._now] = count, until

    def free_at(self, rate: Rate) -> int:
        """When the next start is possible, if nothing else starts. For a rate that is used up."""
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
    """The limits for one claim. Counts are read once per key, and updated as the claim takes runs."""

    def __init__(self, db: Statements, now: int, app: str, tasks: Mapping[str, TaskTerms]) -> None:
        self._db = db
        self._now = now
        self._app = app
        self._tasks = tasks
        self._running: dict[str, int] = {}
        self._starts: dict[str, _Starts] = {}
        # Keys of runs taken since the last `settle`, each with the highest limit of their tasks.
        self._taken: dict[str, Concurrency | Rate] = {}
        self._blocked: list[tuple[str, str]] = []
        self._check_times: dict[str, int] = {}
        self._idle_keys: set[str] = set()
        # Keys that blocked a run, of limits that the code no longer has.
        self._outdated: set[str] = set()

    async def pass_through(self, rows: Sequence[Row]) -> dict[str, str | None]:
        """Runs that may start, by id, with the key under which they count. Blocks the others."""
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
        """After a batch was taken: release further runs, or set the time for it. True: a run was released."""
        taken, self._taken = self._taken, {}
        outdated, self._outdated = self._outdated, set()
        rooms = {key: self._room(key, limit) for key, limit in taken.items()}
        # At most as many as this claim could take, but at least one, for the next claim.
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
        """Read the counts of these runs' keys that are not known yet."""
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
        if self._blocked:
            await self._db.count("limits.hold_back", *columns_of(self._blocked))
            self._blocked = []
        changed = {key: starts for key, starts in self._starts.items() if starts.is_changed}
        if changed:
            await self._db.count("limits.forget_starts", self._app, list(changed))
            rows = [row for key, starts in changed.items() for row in starts.rows(key)]
            if rows:
                await self._db.count("limits.put_starts", self._app, *columns_of(rows))
            for starts in changed.values():
                starts.is_changed = False
        await self._set_times(self._check_times)
        self._check_times = {}
        idle, self._idle_keys = self._idle_keys, set()
        await release_next(self._db, self._app, dict.fromkeys(sorted(idle), 1), only_idle=True)

    async def _set_times(self, times: Mapping[str, int]) -> None:
        if times:
            await self._db.count("limits.set_times", self._app, list(times), list(times.values()), self._now)

    def _blocked_by(self, row: Row, terms: TaskTerms) -> tuple[str, bool, int] | None:
        """The key that has no room, whether keys vary in a lane, and when to check again. None: the run may start."""
        if terms.concurrency is not None:
            key = terms.concurrency.key(row["args"])
            if self._running[key] >= terms.concurrency.most:
                return key, terms.concurrency.of.varies, self._now + _RECHECK
        if terms.rate is not None:
            key = terms.rate.key(row["args"])
            starts = self._starts[key]
            if starts.room(terms.rate) <= 0:
                free_at = starts.free_at(terms.rate)
                self._check_at(key, free_at)
                return key, terms.rate.of.varies, free_at
        return None

    def _block(self, row: Row, key: str, varies: bool, recheck_at: int) -> None:
        self._blocked.append((row["id"], key))
        before = row["limit_key"]
        if before is None or before == key:
            return
        if varies:
            self._idle_keys.add(before)
        else:
            self._check_at(before, recheck_at)

    def _check_at(self, key: str, at: int) -> None:
        self._check_times[key] = min(at, self._check_times.get(key, at))

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
