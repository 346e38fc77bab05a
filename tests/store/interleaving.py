"""Two sessions on a real server, their statements put into every order there is.

A session is a store whose connection stops before every statement and before COMMIT. The explorer lets one of the two
go on by one step at a time. A step that waits for a lock of the other session is left waiting, as the server reports
it, until the other has let go. After each run the last choice that has an alternative is taken differently, and all is
done again from the beginning, in a new app; so it walks through the whole tree of choices.

Orders that no statement can distinguish are run once. Uncommitted changes of a session are visible by its
locks alone; so of two statements that take locks in different tables, or of which one takes none, either may come
first. (Sleep sets, in the words of those who check models.) Everything else, above all every order of statements that
lock in one table, and of every statement and a commit, is really run.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Awaitable, Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import asyncpg
from postgres_stores import PostgresStores

from evertick.store.base import News
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import Connection, connect, statements_for
from evertick.store.postgres.wakeup import Notifier

__all__ = ["Interleaving", "Session", "Sessions", "Step", "explore"]

Intent = Callable[[PostgresStore], Awaitable[Any]]

# Time limit of a step before the server is checked for lock waits.
_SOON_SECONDS = 0.004
# A step that neither ends nor waits for the other session is stuck, and so is the test.
_STUCK_SECONDS = 20
# Steps that an interleaving has at most; more means that a session repeats for ever.
_STEPS_MOST = 200
_WRITTEN = re.compile(r"\b(?:INSERT INTO|(?<!FOR )(?<!DO )UPDATE|DELETE FROM) \S+\.(\w+)")
_NAMED = re.compile(r"\b(?:FROM|JOIN) \S+\.(\w+)")
_LOCKED = re.compile(r"\bFOR (?:UPDATE|SHARE)\b")
_ADVISORY = re.compile(r"pg_advisory_xact_lock\(.*?'([\w.]+)'", re.DOTALL)
_ENDS = ("COMMIT", "ROLLBACK")
_IS_WAITING = "SELECT pg_blocking_pids($1) <> '{}'"


@dataclass(frozen=True)
class Step:
    """A statement by its name, and what the other session could notice of it."""

    name: str
    # Where it may take a lock, or wait for one.
    locks: frozenset[str]
    # Its transaction is over after it.
    is_end: bool

    @staticmethod
    def of(name: str, query: str, *, is_in_transaction: bool) -> Step:
        locks = {*_WRITTEN.findall(query), *_ADVISORY.findall(query)}
        if _LOCKED.search(query):
            locks |= set(_NAMED.findall(query))
        return Step(name, frozenset(locks), query in _ENDS or not is_in_transaction)

    def commutes_with(self, other: Step) -> bool:
        return not self._shows and not other._shows and self.locks.isdisjoint(other.locks)

    @property
    def _shows(self) -> bool:
        """Whether others see more after it than before."""
        return self.is_end and (bool(self.locks) or self.name in _ENDS)


class _Stepped:
    """A connection of asyncpg that asks before every statement."""

    def __init__(self, connection: Any, session: Session) -> None:
        self._connection = connection
        self._session = session

    async def fetch(self, query: str, *values: object) -> Any:
        await self._session.reach(query, self._connection)
        return await self._connection.fetch(query, *values)

    async def fetchrow(self, query: str, *values: object) -> Any:
        await self._session.reach(query, self._connection)
        return await self._connection.fetchrow(query, *values)

    async def execute(self, query: str, *values: object) -> Any:
        # A transaction sees nothing and holds nothing before its first statement.
        if not query.startswith("BEGIN"):
            await self._session.reach(query, self._connection)
        return await self._connection.execute(query, *values)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._connection, name)


class _Mute(Notifier):
    """Wake-ups would be sent at times of their own."""

    async def notify(self, connection: Connection, news: Mapping[str, News]) -> None: ...


class Session:
    """One of the two: a store on one connection, which waits for its turn before every step."""

    def __init__(self, store: PostgresStore, schema: str) -> None:
        self.store = store
        self.next: Step | None = None
        self.waits = False
        self._names = {text: name for name, text in statements_for(schema).items()}
        self._pid = 0
        self._is_free = True
        self._turn = asyncio.Event()
        self._moved = asyncio.Event()
        self._task: asyncio.Task[Any] | None = None

    async def open(self) -> None:
        """Connect, and be stopped from now on."""
        where = self.store._where

        async def connect_stepped() -> Any:
            connection: Any = await connect(where)
            self._pid = connection.get_server_pid()
            return _Stepped(connection, self)

        line, pools = self.store.session(), self.store.session().pools
        assert line is not None
        assert pools is not None
        line.notifier = _Mute("", self.store._clock, None)  # type: ignore[arg-type]
        pools._connect = connect_stepped
        await self.store.now()

    async def reach(self, query: str, connection: Any) -> None:
        """The statement that comes next has been reached; it is sent when it is our turn."""
        if self._is_free:
            return
        name = self._names.get(query, query)
        self.next = Step.of(name, query, is_in_transaction=connection.is_in_transaction())
        self._moved.set()
        await self._turn.wait()
        self._turn.clear()

    async def start(self, intent: Intent) -> None:
        self._is_free, self.waits, self.next = False, False, None
        self._moved.clear()
        self._task = asyncio.create_task(self._perform(intent))
        await self._moved.wait()

    async def _perform(self, intent: Intent) -> Any:
        try:
            return await intent(self.store)
        finally:
            self.next = None
            self._moved.set()

    @property
    def is_done(self) -> bool:
        return self._task is not None and self._task.done()

    @property
    def is_ready(self) -> bool:
        return self.next is not None

    async def answer(self) -> Any:
        assert self._task is not None
        return await self._task

    async def step(self, watch: asyncpg.Connection) -> None:
        """One statement, until it is answered or the server says that it waits for the other session."""
        self.next = None
        self._moved.clear()
        self._turn.set()
        await self.settle(watch)

    async def settle(self, watch: asyncpg.Connection) -> None:
        self.waits = False
        async with asyncio.timeout(_STUCK_SECONDS):
            while not await self._has_moved():
                if await watch.fetchval(_IS_WAITING, self._pid):
                    self.waits = True
                    return

    async def _has_moved(self) -> bool:
        try:
            async with asyncio.timeout(_SOON_SECONDS):
                await self._moved.wait()
        except TimeoutError:
            return False
        return True

    def forget_attempt(self) -> None:
        """It is not stopped any more."""
        self._is_free = True
        self._turn.set()

    async def run_to_end(self) -> None:
        """When both may continue: one may wait for the other. The result does not matter any more."""
        assert self._task is not None
        await asyncio.gather(self._task, return_exceptions=True)
        self._turn.clear()


@dataclass
class Sessions:
    """The two sessions, and the connection that asks the server about them."""

    pair: tuple[Session, Session]
    watch: asyncpg.Connection
    schema: str

    @staticmethod
    async def open(stores: PostgresStores) -> Sessions:
        opened = [await stores.open() for _ in range(2)]
        first, second = (Session(store, stores.schema) for store in opened if isinstance(store, PostgresStore))
        await first.open()
        await second.open()
        return Sessions((first, second), await stores.connect(), stores.schema)

    @contextmanager
    def without_locks_of(self, name: str) -> Iterator[None]:
        """A mistake on purpose: a statement that takes no locks."""
        lines = [session.store.session() for session in self.pair]
        before = [line._sql for line in lines if line is not None]
        for line in lines:
            assert line is not None
            line._sql = {**line._sql, name: _LOCKED.sub("", line._sql[name])}
        try:
            yield
        finally:
            for line, sql in zip(lines, before, strict=True):
                assert line is not None
                line._sql = sql

    async def close(self) -> None:
        await self.watch.close()


@dataclass
class _Choice:
    """A place in the tree: who could go on, and who has been let to."""

    steps: dict[int, Step]
    # Going on with these would only repeat what was seen.
    asleep: set[int]
    chosen: int = -1
    tried: set[int] = field(default_factory=set)

    def choose(self) -> bool:
        """Take another one than before, if there is one."""
        left = [number for number in sorted(self.steps) if number not in self.asleep | self.tried]
        if left:
            self.chosen = left[0]
            self.tried.add(self.chosen)
        return bool(left)

    def asleep_after(self) -> set[int]:
        """Sessions that are examined from here, and would not notice the step that is taken."""
        others = (self.asleep | self.tried) - {self.chosen}
        return {number for number in others if self.steps[number].commutes_with(self.steps[self.chosen])}


@dataclass(frozen=True)
class Interleaving:
    """One order of steps that was run, and its result."""

    order: tuple[str, ...]
    answers: tuple[Any, Any]
    # Whether a session had to wait for a lock.
    had_to_wait: bool


class _Explorer:
    def __init__(self, sessions: Sessions, *, in_whole_transactions: bool) -> None:
        self._sessions = sessions
        self._in_whole_transactions = in_whole_transactions
        self._path: list[_Choice] = []
        # The session in the middle of a transaction, where that must not be interrupted.
        self._inside: int | None = None

    async def run(self, intents: tuple[Intent, Intent]) -> Interleaving | None:
        """Along the path so far, and on from its end. None: what it leads to was seen before."""
        pair = self._sessions.pair
        for session, intent in zip(pair, intents, strict=True):
            await session.start(intent)
        order: list[str] = []
        had_to_wait = False
        self._inside = None
        try:
            while not all(session.is_done for session in pair):
                number = self._decide(len(order))
                if number is None:
                    return None
                step = pair[number].next
                assert step is not None
                order.append(f"{'AB'[number]}:{step.name}")
                self._inside = number if self._in_whole_transactions and not step.is_end else None
                await pair[number].step(self._sessions.watch)
                await self._settle_other(1 - number)
                had_to_wait = had_to_wait or any(session.waits for session in pair)
            return Interleaving(tuple(order), (await pair[0].answer(), await pair[1].answer()), had_to_wait)
        except BaseException as error:
            error.add_note(f"in the interleaving {' '.join(order)}")
            raise
        finally:
            for session in pair:
                session.forget_attempt()
            for session in pair:
                await session.run_to_end()

    async def _settle_other(self, number: int) -> None:
        other = self._sessions.pair[number]
        if other.waits:
            await other.settle(self._sessions.watch)

    def _decide(self, depth: int) -> int | None:
        pair = self._sessions.pair
        assert depth < _STEPS_MOST, "it does not come to an end"
        going = (0, 1) if self._inside is None else (self._inside,)
        steps = {number: step for number in going if (step := pair[number].next) is not None}
        assert steps, "both sessions wait for each other"
        if depth < len(self._path):
            before = self._path[depth]
            assert before.steps == steps, f"{steps} now, and {before.steps} at the same place before"
            return before.chosen
        asleep = self._path[-1].asleep_after() if self._path else set()
        choice = _Choice(steps, asleep & set(steps))
        self._path.append(choice)
        return choice.chosen if choice.choose() else None

    def turn_back(self) -> bool:
        """To the last choice that can be made differently; False: all have been made."""
        while self._path and not self._path[-1].choose():
            self._path.pop()
        return bool(self._path)


async def explore(
    sessions: Sessions,
    stage: Callable[[], Awaitable[tuple[Intent, Intent]]],
    judge: Callable[[Interleaving], Awaitable[None]],
    *,
    in_whole_transactions: bool = False,
) -> list[Interleaving]:
    """Run every interleaving of the two intents that `stage` sets up each time, and have each judged."""
    explorer = _Explorer(sessions, in_whole_transactions=in_whole_transactions)
    seen: list[Interleaving] = []
    while True:
        intents = await stage()
        interleaving = await explorer.run(intents)
        if interleaving is not None:
            await judge(interleaving)
            seen.append(interleaving)
        if not explorer.turn_back():
            return seen
