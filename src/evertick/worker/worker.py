"""The worker itself: keeps its slots filled from one queue, until it is told to stop.

A message is fetched only when there is a slot for it. The first act is to take it, which one worker alone can: what was
doubled on its way is recognised there, and dropped.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

from evertick.clock import Clock
from evertick.driver.queue.contract import DispatchMessage, Kill, decode_dispatch, pair_of
from evertick.errors import BrokerUnavailable, InvalidInput
from evertick.text.log_level import LogSummary, such_as
from evertick.worker.broker_session import BrokerSession, Fetched
from evertick.worker.executor import Executor
from evertick.worker.job import Job, is_late
from evertick.worker.outage import Outage

__all__ = ["Worker"]

log = logging.getLogger("evertick.worker")

T = TypeVar("T")

# Not cut short by a stop, for a message that is on its way would be lost: so it is short by itself.
FETCH_SECONDS = 1.0
# After the stop time, how long work that was cut off gets to end.
_LAST_WORDS_SECONDS = 5.0


class Worker:
    """Takes and does what is dispatched to one queue."""

    def __init__(
        self,
        line: BrokerSession,
        craft: Executor,
        *,
        parallelism: int,
        clock: Clock,
        name: str,
        stop_seconds: float = 30.0,
    ) -> None:
        assert parallelism >= 1, "a worker without a slot does nothing"
        self._line, self._craft, self._clock = line, craft, clock
        self._parallelism, self._name, self._stop_seconds = parallelism, name, stop_seconds
        self._outage = Outage(line.shown, clock)
        self._unreadable = LogSummary(clock.elapsed)
        self._jobs: dict[str, Job] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._wanted = asyncio.Event()
        self._hurry = asyncio.Event()
        self._freed = asyncio.Event()
        # What became of the messages: taken, duplicate, late, killed, unreadable.
        self.counts: Counter[str] = Counter()
        line.on_kill = self._heard_kill

    def stop(self) -> None:
        """Take nothing more, and end when what is under way has ended. A second word does not wait for that."""
        if self._wanted.is_set():
            self._hurry.set()
        self._wanted.set()

    async def run(self) -> None:
        try:
            await self._trying(self._line.open)
            if not self._wanted.is_set():
                log.info("worker %s takes from %s, %d at a time", self._name, self._line.shown, self._parallelism)
            while not self._wanted.is_set():
                await self._fill()
            await self._drain()
        finally:
            await self._line.close()
            await self._craft.close()
        self._unreadable.flush()
        log.info("worker %s has stopped", self._name)

    # --- filling the slots

    async def _fill(self) -> None:
        free = self._parallelism - len(self._tasks)
        if free <= 0:
            self._freed.clear()
            await self._either(self._freed.wait())
            return
        fetched = await self._trying(lambda: self._line.fetch(free, FETCH_SECONDS))
        for each in fetched or ():
            if self._wanted.is_set():
                await self._give_back(each)
                continue
            task = asyncio.get_running_loop().create_task(self._begin(each), name="evertick worker")
            self._tasks.add(task)
            task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        self._freed.set()
        if not task.cancelled() and task.exception() is not None:
            log.error("a message could not be worked on", exc_info=task.exception())

    async def _begin(self, fetched: Fetched) -> None:
        dispatched = self._read(fetched)
        if dispatched is None or is_late(dispatched, self._clock):
            self._count("unreadable" if dispatched is None else "late", dispatched)
            await self._trying(lambda: self._line.drop(fetched))
            return
        taken = await self._trying(lambda: self._line.take(fetched, dispatched))
        if taken is None:
            return  # we are to stop; the ledger dispatches it again
        self._count(taken, dispatched)
        if taken == "taken":
            await self._do(dispatched)

    async def _do(self, dispatched: DispatchMessage) -> None:
        pair = pair_of(dispatched.run, dispatched.fence)
        self._jobs[pair] = job = Job(
            dispatched, self._line, self._craft, self._outage, clock=self._clock, worker=self._name
        )
        try:
            await job.live()
        finally:
            del self._jobs[pair]

    def _read(self, fetched: Fetched) -> DispatchMessage | None:
        try:
            dispatched = decode_dispatch(fetched.data)
            is_late(dispatched, self._clock)  # its times can be read
        except InvalidInput as error:
            why = f"{self._line.shown}: {error}"
            say = functools.partial(log.warning, "a message of the queue cannot be read, and is dropped: %s", why)
            self._unreadable.tell("dropped", "", log, logging.WARNING, say, _dropped_words, about=why, lines=1)
            return None
        return dispatched

    def _count(self, what: str, dispatched: DispatchMessage | None) -> None:
        self.counts[what] += 1
        if dispatched is None or what == "taken":
            return
        why = {
            "duplicate": "it was taken before",
            "killed": "it is not wanted any more",
            "late": f"it was to be taken by {dispatched.take_by}, and is dispatched again (is the clock here right?)",
        }
        log.info("run %s (fence %d) is dropped: %s", dispatched.run, dispatched.fence, why[what])

    def _heard_kill(self, kill: Kill) -> None:
        job = self._jobs.get(pair_of(kill.run, kill.fence))
        if job is not None:
            log.info("run %s is stopped: %s", kill.run, kill.why)
            job.stop(kill.why)

    # --- the end

    async def _drain(self) -> None:
        if self._tasks:
            log.info("waiting up to %.0f s for %d runs under way", self._stop_seconds, len(self._tasks))
            hurry = asyncio.ensure_future(self._hurry.wait())
            work = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait({hurry, work}, timeout=self._stop_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            work.cancel()
        for job in list(self._jobs.values()):
            log.warning("run %s is cut off, and given back", job.dispatched.run)
            job.cut_off()
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_LAST_WORDS_SECONDS)
            for task in left:
                task.cancel()

    # --- a broker that is away

    async def _trying(self, act: Callable[[], Awaitable[T]]) -> T | None:
        """Until it works, or this worker is to stop: None then."""
        return await self._outage.outlast(act, lambda: not self._wanted.is_set(), self._wanted)

    async def _give_back(self, fetched: Fetched) -> None:
        """Once: there is no time for another try, and the ledger dispatches it again."""
        try:
            await self._line.give_back(fetched)
        except BrokerUnavailable as error:
            log.warning("a message could not be given back: %s", error)

    async def _either(self, other: Coroutine[Any, Any, Any]) -> None:
        """Until the other is over, or this worker is to stop."""
        tasks = {asyncio.ensure_future(other), asyncio.ensure_future(self._wanted.wait())}
        _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()


def _dropped_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more messages of the queue could not be read, and were dropped{such_as(names, seconds)}"
