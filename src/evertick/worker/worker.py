"""The worker: keeps its slots filled from one queue until it is stopped.

A message is fetched only when there is a slot for it. Then the worker takes the run, which one worker alone can: a
message that arrived twice is recognised there, and dropped. A taken run is reported, carried out with reports of its
progress, and reported with its end. Reports that an outage of the broker delays are sent when it is back. A run whose
taking could not be reported in time is not begun: the ledger may have dispatched it again by then.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import math
from collections import Counter
from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, TypeVar

import msgspec

from evertick.clock import Clock
from evertick.driver.base import Driver, RemoteError
from evertick.driver.queue.contract import (
    VERSION,
    DispatchMessage,
    Kill,
    WorkerReport,
    WorkerReportKind,
    decode_dispatch,
    pair_of,
)
from evertick.errors import BrokerUnavailable, EvertickError, InvalidInput, JobFailed, Retry, Skip
from evertick.job.context import Context, JobRecord, record_of
from evertick.model import Claimed
from evertick.text.error_line import error_for_log
from evertick.text.error_text import error_text
from evertick.text.log_level import LogSummary, such_as
from evertick.text.surrogates import mended_text
from evertick.when.duration import duration_us
from evertick.when.moment import moment_of, moment_text
from evertick.worker.broker_session import BrokerRetry, BrokerSession, QueueMessage
from evertick.worker.executor import Executor

__all__ = ["Worker"]

log = logging.getLogger("evertick.worker")

T = TypeVar("T")

# Short, since a stop does not interrupt it: a message on its way would be lost.
FETCH_SECONDS = 1.0
# After the stop time, for work that was cut off to end.
_CUT_OFF_SECONDS = 5.0
# New log lines and progress are not held back for longer.
_REPORT_SECONDS = 2.0
# How long stopped work that cannot be cancelled may take before its end is reported without it.
_ABANDON_SECONDS = 5.0
_ENDS: tuple[WorkerReportKind, ...] = ("finish", "fail", "skip")


class Worker:
    """Carries out the runs that are dispatched to one queue."""

    def __init__(
        self,
        session: BrokerSession,
        executor: Executor,
        *,
        parallelism: int,
        clock: Clock,
        name: str,
        stop_seconds: float = 30.0,
    ) -> None:
        assert parallelism >= 1, "a worker without a slot does nothing"
        self._session, self._executor, self._clock = session, executor, clock
        self._parallelism, self._name, self._stop_seconds = parallelism, name, stop_seconds
        self._retry = BrokerRetry(session.shown, clock)
        self._unreadable = LogSummary(clock.elapsed)
        self._runs: dict[str, _WorkerRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._freed = asyncio.Event()
        # Messages by their outcome: taken, duplicate, late, killed, unreadable.
        self.counts: Counter[str] = Counter()
        session.on_kill = self._on_kill

    def stop(self) -> None:
        """Take nothing more, and end after the runs under way. A second call does not wait for them."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        try:
            await self._until_done(self._session.open)
            if not self._stopping.is_set():
                log.info("worker %s takes from %s, %d at a time", self._name, self._session.shown, self._parallelism)
            while not self._stopping.is_set():
                await self._fill()
            await self._drain()
        finally:
            await self._session.close()
            await self._executor.close()
        self._unreadable.flush()
        log.info("worker %s has stopped", self._name)

    # --- filling the slots

    async def _fill(self) -> None:
        free = self._parallelism - len(self._tasks)
        if free <= 0:
            self._freed.clear()
            await self._either(self._freed.wait())
            return
        messages = await self._until_done(lambda: self._session.fetch(free, FETCH_SECONDS))
        for each in messages or ():
            if self._stopping.is_set():
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

    async def _begin(self, message: QueueMessage) -> None:
        dispatched = self._read(message)
        if dispatched is None or _is_late(dispatched, self._clock):
            self._count("unreadable" if dispatched is None else "late", dispatched)
            await self._until_done(lambda: self._session.drop(message))
            return
        taken = await self._until_done(lambda: self._session.take(message, dispatched))
        if taken is None:
            return  # stopping: the ledger dispatches it again
        self._count(taken, dispatched)
        if taken == "taken":
            await self._do(dispatched)

    async def _do(self, dispatched: DispatchMessage) -> None:
        pair = pair_of(dispatched.run, dispatched.fence)
        self._runs[pair] = run = _WorkerRun(
            dispatched, self._session, self._executor, self._retry, clock=self._clock, worker=self._name
        )
        try:
            await run.carry_out()
        finally:
            del self._runs[pair]

    def _read(self, message: QueueMessage) -> DispatchMessage | None:
        try:
            dispatched = decode_dispatch(message.data)
            _is_late(dispatched, self._clock)  # whether its times can be read
        except InvalidInput as error:
            why = f"{self._session.shown}: {error}"
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

    def _on_kill(self, kill: Kill) -> None:
        run = self._runs.get(pair_of(kill.run, kill.fence))
        if run is not None:
            log.info("run %s is stopped: %s", kill.run, kill.why)
            run.stop(kill.why)

    # --- the end

    async def _drain(self) -> None:
        if self._tasks:
            log.info("waiting up to %.0f s for %d runs under way", self._stop_seconds, len(self._tasks))
            hurry = asyncio.ensure_future(self._hurry.wait())
            work = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait({hurry, work}, timeout=self._stop_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            work.cancel()
        for run in list(self._runs.values()):
            log.warning("run %s is cut off, and given back", run.dispatched.run)
            run.stop("shutdown")
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_CUT_OFF_SECONDS)
            for task in left:
                task.cancel()

    # --- a broker that is away

    async def _until_done(self, act: Callable[[], Awaitable[T]]) -> T | None:
        """Retried until it works; None when this worker stops."""
        return await self._retry.until_done(act, lambda: not self._stopping.is_set(), self._stopping)

    async def _give_back(self, message: QueueMessage) -> None:
        """Without a retry: the ledger dispatches it again."""
        try:
            await self._session.give_back(message)
        except BrokerUnavailable as error:
            log.warning("a message could not be given back: %s", error)

    async def _either(self, other: Coroutine[Any, Any, Any]) -> None:
        """Until the other is over, or this worker stops."""
        tasks = {asyncio.ensure_future(other), asyncio.ensure_future(self._stopping.wait())}
        _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()


class _WorkerRun:
    """One dispatch, from its taking to the report of its end."""

    def __init__(
        self,
        dispatched: DispatchMessage,
        session: BrokerSession,
        executor: Executor,
        retry: BrokerRetry,
        *,
        clock: Clock,
        worker: str,
    ) -> None:
        self.dispatched = dispatched
        self._session, self._executor, self._retry = session, executor, retry
        self._clock, self._worker = clock, worker
        self._context = Context(JobRecord(_claimed(dispatched, clock), clock, self._deadline()))
        self._driver: Driver | None = None
        self._work: asyncio.Task[Any] | None = None
        self._stop_reason = ""
        self._taken_at = self._reported_at = clock.elapsed()

    async def carry_out(self) -> None:
        if not await self._report_taken():
            log.warning(
                "run %s is left alone: it was killed, or its taking could not be reported in time", self.dispatched.run
            )
            return
        reporting = asyncio.get_running_loop().create_task(self._report_progress(), name="evertick worker progress")
        try:
            end = await self._do()
        finally:
            reporting.cancel()
        if self.dispatched.mode == "finish":
            await self._send(end)
        self._log_end(end)
        await self._wait_for_abandoned()

    def _log_end(self, end: WorkerReport) -> None:
        run, task = self.dispatched.run, self.dispatched.task
        match end.kind:
            case "fail":
                log.warning("run %s of %r failed: %s", run, task, error_for_log(end.error) or end.reason)
            case "skip" | "release":
                log.info("run %s of %r: %s (%s)", run, task, end.kind, end.reason)
            case _:
                log.info("run %s of %r: %s", run, task, end.kind)

    def stop(self, why: str) -> None:
        """End the work: it was killed, is out of time, or the worker ends."""
        if self._stop_reason or self._work is None or self._work.done():
            return
        self._stop_reason = record_of(self._context).stopped = why
        if self._driver is not None and self._driver.can_be_cancelled:
            self._work.cancel()

    # --- the work

    async def _do(self) -> WorkerReport:
        loop = asyncio.get_running_loop()
        self._work = loop.create_task(self._execute(), name=f"evertick {self.dispatched.task}")
        timeout = self.dispatched.timeout
        timer = None if timeout is None else loop.call_later(timeout, self.stop, "timeout")
        try:
            return await self._end_of(self._work)
        finally:
            if timer is not None:
                timer.cancel()

    async def _execute(self) -> Any:
        self._driver = driver = self._executor.driver_for(self.dispatched)
        return await driver.execute(self._context, driver.prepare(record_of(self._context).run.args))

    async def _end_of(self, work: asyncio.Task[Any]) -> WorkerReport:
        while not work.done():
            patience = _ABANDON_SECONDS if self._stop_reason and not self._can_be_cancelled else _REPORT_SECONDS
            await asyncio.wait({work}, timeout=patience)
            if self._stop_reason and not self._can_be_cancelled and not work.done():
                return self._stopped()  # a thread that does not look: its end is reported without it
        if self._stop_reason and (work.cancelled() or record_of(self._context).has_seen_stop or self._can_be_cancelled):
            return self._stopped()
        if work.cancelled():
            return self._report("fail", error="the work was cancelled from inside")
        error = work.exception()
        if error is not None:
            return self._raised(error)
        return self._report("finish", result=self._encoded(work.result()))

    @property
    def _can_be_cancelled(self) -> bool:
        return self._driver is None or self._driver.can_be_cancelled

    async def _wait_for_abandoned(self) -> None:
        """Its slot stays taken until it returns."""
        if self._work is not None and not self._work.done():
            log.error("run %s did not stop when told to: its slot stays taken until it does", self.dispatched.run)
            await asyncio.wait({self._work})

    def _encoded(self, result: object) -> msgspec.Raw | None:
        data = record_of(self._context).encode_result(result)
        return None if data is None else msgspec.Raw(data)

    def _raised(self, error: BaseException) -> WorkerReport:
        if isinstance(error, Skip):
            return self._report("skip", reason=mended_text(str(error.reason)) or "skipped by the job")
        text = error.text if isinstance(error, RemoteError) else error_text(error)
        asked = error.retry if isinstance(error, RemoteError) else error if isinstance(error, Retry) else None
        if asked is None:
            result = self._encoded(error.result) if isinstance(error, JobFailed) else None
            return self._report("fail", error=text, result=result)
        try:
            after = None if asked.after is None else duration_us(asked.after, what="Retry(after=…)") / 1e6
        except EvertickError as invalid:
            text, after = f"{text}\n{invalid}", None
        return self._report("fail", error=text, retry=True, after=after)

    def _stopped(self) -> WorkerReport:
        if self._stop_reason == "timeout":
            error = f"the attempt took longer than its timeout of {self.dispatched.timeout:g} s"
            return self._report("fail", error=error, reason="timeout")
        if self._stop_reason == "shutdown":
            return self._report("release", reason="its worker was stopped")
        return self._report("fail", error=f"it was stopped: {self._stop_reason}", reason="killed", retry=False)

    # --- reports

    async def _report_taken(self) -> bool:
        if self.dispatched.mode == "forget":
            return True
        report = self._report("taken")
        is_wanted = await self._retry.until_done(
            lambda: self._session.report(self.dispatched, report), lambda: not _is_late(self.dispatched, self._clock)
        )
        return bool(is_wanted)

    async def _report_progress(self) -> None:
        """News soon, and a sign of life in any case. The answer says whether the run is still wanted."""
        every = self.dispatched.progress_every
        if self.dispatched.mode != "finish" or every is None:
            return
        while True:
            await asyncio.sleep(min(every, _REPORT_SECONDS))
            buffer = record_of(self._context).buffer
            has_news = buffer is not None and buffer.has_news
            if not has_news and self._clock.elapsed() - self._reported_at < every - _REPORT_SECONDS:
                continue
            if not await self._send(self._report("progress")):
                self.stop("requested")
            self._reported_at = self._clock.elapsed()

    async def _send(self, report: WorkerReport) -> bool | None:
        """Retried without end, and often enough that a broker that is back has it before we count as silent."""
        every = self.dispatched.progress_every
        return await self._retry.until_done(
            lambda: self._session.report(self.dispatched, report), lambda: True, most_seconds=every or math.inf
        )

    def _report(self, kind: WorkerReportKind, **more: Any) -> WorkerReport:
        buffer = record_of(self._context).buffer
        said = None if buffer is None else buffer.take()
        seq, lines, progress = said if said is not None else (None, (), None)
        fraction, text = progress if progress is not None else (None, None)
        return WorkerReport(
            v=VERSION,
            run=self.dispatched.run,
            fence=self.dispatched.fence,
            kind=kind,
            worker=self._worker,
            fraction=fraction,
            text=text,
            seq=seq,
            log=[(moment_text(at), level, line) for at, level, line in lines],
            took=round(self._clock.elapsed() - self._taken_at, 6) if kind in _ENDS else None,
            **more,
        )

    def _deadline(self) -> int | None:
        timeout = self.dispatched.timeout
        return None if timeout is None else self._clock.now_us() + round(timeout * 1e6)


def _is_late(dispatched: DispatchMessage, clock: Clock) -> bool:
    """Whether the time to take it is over."""
    return dispatched.take_by is not None and clock.now_us() > moment_of(dispatched.take_by, what="take_by")


def _claimed(dispatched: DispatchMessage, clock: Clock) -> Claimed:
    """The run, for the context of the job."""
    return Claimed(
        id=dispatched.run,
        fence=dispatched.fence,
        task=dispatched.task,
        args=msgspec.json.encode(dispatched.args),
        fire_at=moment_of(dispatched.fire_at, what="fire_at"),
        due_at=moment_of(dispatched.fire_at, what="fire_at"),
        claimed_at=clock.now_us(),
        attempts=dispatched.attempt - 1,
        schedule_key=dispatched.schedule,
    )


def _dropped_words(count: int, names: list[str], seconds: float | None) -> str:
    return f"{count} more messages of the queue could not be read, and were dropped{such_as(names, seconds)}"
