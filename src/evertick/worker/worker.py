"""The worker: fills its slots from one queue until it is stopped.

It fetches a message only if a slot is free, and then takes the run. Only one worker can take a run, so a message that
arrives twice is dropped. The worker reports that it took the run, its progress and its end. During an outage of the
broker it repeats reports until they are sent. A run whose `taken` report could not be sent in time is not started,
because the ledger may have dispatched it again.
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
    dispatch_id,
)
from evertick.errors import BrokerUnavailable, EvertickError, InvalidInput, JobFailed, Retry, Skip
from evertick.job.context import Context, JobRecord, record_of
from evertick.model import Claimed
from evertick.text.error_line import error_for_log
from evertick.text.error_text import error_text
from evertick.text.log_level import LogSummary, such_as
from evertick.text.surrogates import without_surrogates
from evertick.when.duration import duration_us
from evertick.when.moment import moment_of, moment_text
from evertick.worker.broker_session import BrokerRetry, BrokerSession, QueueMessage
from evertick.worker.executor import Executor

__all__ = ["Worker"]

log = logging.getLogger("evertick.worker")

T = TypeVar("T")

# Short, since a stop does not interrupt a fetch: a message in transit would be lost.
FETCH_SECONDS = 1.0
# How long cancelled work gets to end after the stop time.
_CUT_OFF_SECONDS = 5.0
# The interval of reports with new log lines and progress.
_REPORT_SECONDS = 2.0
# How long stopped work that cannot be cancelled gets before its end is reported without it.
_ABANDON_SECONDS = 5.0
_ENDS: tuple[WorkerReportKind, ...] = ("finish", "fail", "skip")


class Worker:
    """Executes the runs that are dispatched to one queue."""

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
        self._summary = LogSummary(clock.elapsed)
        self._runs: dict[str, _WorkerRun] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._stopping = asyncio.Event()
        self._hurry = asyncio.Event()
        self._freed = asyncio.Event()
        # Messages by their outcome: taken, duplicate, late, killed, unreadable.
        self.counts: Counter[str] = Counter()
        session.on_kill = self._on_kill

    def stop(self) -> None:
        """Take no more runs, and end after the current ones. A second call does not wait for them."""
        if self._stopping.is_set():
            self._hurry.set()
        self._stopping.set()

    async def run(self) -> None:
        try:
            await self._until_done(self._session.open)
            if not self._stopping.is_set():
                what = "worker %s: started; queue %s, parallelism %d"
                log.info(what, self._name, self._session.shown, self._parallelism)
            while not self._stopping.is_set():
                await self._fill()
            await self._drain()
        finally:
            await self._session.close()
            await self._executor.close()
        self._summary.flush()
        log.info("worker %s: stopped", self._name)

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
            log.error("worker %s: handling a message failed", self._name, exc_info=task.exception())

    async def _begin(self, message: QueueMessage) -> None:
        dispatched = self._read(message)
        if dispatched is None or _is_late(dispatched, self._clock):
            self._count("unreadable" if dispatched is None else "late", dispatched)
            await self._until_done(lambda: self._session.drop(message))
            return
        taken = await self._until_done(lambda: self._session.take(message, dispatched))
        if taken is None:
            return  # the worker stops; the ledger dispatches the run again
        self._count(taken, dispatched)
        if taken == "taken":
            await self._execute(dispatched)

    async def _execute(self, dispatched: DispatchMessage) -> None:
        pair = dispatch_id(dispatched.run, dispatched.fence)
        self._runs[pair] = run = _WorkerRun(
            dispatched,
            self._session,
            self._executor,
            self._retry,
            clock=self._clock,
            worker=self._name,
            summary=self._summary,
        )
        try:
            await run.execute()
        finally:
            del self._runs[pair]

    def _read(self, message: QueueMessage) -> DispatchMessage | None:
        try:
            dispatched = decode_dispatch(message.data)
            _is_late(dispatched, self._clock)  # raises if its times are unreadable
        except InvalidInput as error:
            shown = self._session.shown
            say = functools.partial(log.warning, "queue %s: unreadable message dropped: %s", shown, error)
            words = functools.partial(_dropped_words, shown)
            self._summary.tell("dropped", "", log, logging.WARNING, say, words, about=str(error), lines=1)
            return None
        return dispatched

    def _count(self, what: str, dispatched: DispatchMessage | None) -> None:
        self.counts[what] += 1
        if dispatched is None or what == "taken":
            return
        why = {
            "duplicate": "already taken by a worker",
            "killed": "cancelled meanwhile",
            "late": f"expired at {dispatched.take_by} and dispatched again (check the clock of this machine)",
        }
        line = "run %s (%s): message with fence %d dropped: %s"
        log.info(line, dispatched.run, _name(dispatched), dispatched.fence, why[what])

    def _on_kill(self, kill: Kill) -> None:
        run = self._runs.get(dispatch_id(kill.run, kill.fence))
        if run is not None:
            log.info("run %s (%s): stopping (%s)", kill.run, _name(run.dispatched), kill.why)
            run.stop(kill.why)

    # --- stop

    async def _drain(self) -> None:
        if self._tasks:
            what = "worker %s: stopping; waiting up to %.0f s for %d runs"
            log.info(what, self._name, self._stop_seconds, len(self._tasks))
            hurry = asyncio.ensure_future(self._hurry.wait())
            work = asyncio.ensure_future(asyncio.wait(self._tasks))
            await asyncio.wait({hurry, work}, timeout=self._stop_seconds, return_when=asyncio.FIRST_COMPLETED)
            hurry.cancel()
            work.cancel()
        for run in list(self._runs.values()):
            what = "run %s (%s): interrupted (shutdown); released, it will run again"
            log.warning(what, run.dispatched.run, _name(run.dispatched))
            run.stop("shutdown")
        if self._tasks:
            _, left = await asyncio.wait(self._tasks, timeout=_CUT_OFF_SECONDS)
            for task in left:
                task.cancel()

    # --- outages of the broker

    async def _until_done(self, act: Callable[[], Awaitable[T]]) -> T | None:
        """Retry until it succeeds; None if this worker stops."""
        return await self._retry.until_done(act, lambda: not self._stopping.is_set(), self._stopping)

    async def _give_back(self, message: QueueMessage) -> None:
        """No retry: the ledger dispatches the run again."""
        try:
            await self._session.give_back(message)
        except BrokerUnavailable as error:
            what = "worker %s: returning a message to the queue failed; its run is dispatched again later: %s"
            log.warning(what, self._name, error)

    async def _either(self, other: Coroutine[Any, Any, Any]) -> None:
        """Wait for `other`, or for the stop of this worker."""
        tasks = {asyncio.ensure_future(other), asyncio.ensure_future(self._stopping.wait())}
        _, left = await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
        for task in left:
            task.cancel()


class _WorkerRun:
    """One dispatched run on this worker, from the `taken` report to the report of its end."""

    def __init__(
        self,
        dispatched: DispatchMessage,
        session: BrokerSession,
        executor: Executor,
        retry: BrokerRetry,
        *,
        clock: Clock,
        worker: str,
        summary: LogSummary,
    ) -> None:
        self.dispatched = dispatched
        self._session, self._executor, self._retry = session, executor, retry
        self._clock, self._worker, self._summary = clock, worker, summary
        self._context = Context(JobRecord(_claimed(dispatched, clock), clock, self._deadline()))
        self._driver: Driver | None = None
        self._work: asyncio.Task[Any] | None = None
        self._stop_reason = ""
        self._taken_at = self._reported_at = clock.elapsed()

    async def execute(self) -> None:
        if not await self._report_taken():
            what = "run %s (%s): not started; it was cancelled, or the broker was unavailable for too long"
            log.warning(what, self.dispatched.run, _name(self.dispatched))
            return
        reporting = asyncio.get_running_loop().create_task(self._report_progress(), name="evertick worker progress")
        try:
            end = await self._work_to_end()
        finally:
            reporting.cancel()
        if self.dispatched.mode == "finish":
            await self._send(end)
        self._log_end(end)
        await self._wait_for_abandoned()

    def _log_end(self, end: WorkerReport) -> None:
        run, name = self.dispatched.run, _name(self.dispatched)
        match end.kind:
            case "fail":
                error = error_for_log(end.error) or end.reason
                say = functools.partial(log.warning, "run %s (%s): failed: %s", run, name, error)
                words = functools.partial(_failures_words, self.dispatched.task)
                group = f"failed {self.dispatched.task}"
                self._summary.tell(group, "", log, logging.WARNING, say, words, about=run)
            case "skip" | "release":
                log.info("run %s (%s): %s (%s)", run, name, end.kind, end.reason)
            case _:
                log.info("run %s (%s): %s", run, name, end.kind)

    def stop(self, why: str) -> None:
        """Stop the work: it was cancelled, timed out, or the worker stops."""
        if self._stop_reason or self._work is None or self._work.done():
            return
        self._stop_reason = record_of(self._context).stopped = why
        if self._driver is not None and self._driver.can_be_cancelled:
            self._work.cancel()

    # --- the work

    async def _work_to_end(self) -> WorkerReport:
        loop = asyncio.get_running_loop()
        self._work = loop.create_task(self._call_driver(), name=f"evertick {self.dispatched.task}")
        timeout = self.dispatched.timeout
        timer = None if timeout is None else loop.call_later(timeout, self.stop, "timeout")
        try:
            return await self._end_of(self._work)
        finally:
            if timer is not None:
                timer.cancel()

    async def _call_driver(self) -> Any:
        self._driver = driver = self._executor.driver_for(self.dispatched)
        return await driver.execute(self._context, driver.prepare(record_of(self._context).run.args))

    async def _end_of(self, work: asyncio.Task[Any]) -> WorkerReport:
        while not work.done():
            patience = _ABANDON_SECONDS if self._stop_reason and not self._can_be_cancelled else _REPORT_SECONDS
            await asyncio.wait({work}, timeout=patience)
            if self._stop_reason and not self._can_be_cancelled and not work.done():
                return self._stopped()  # a thread that does not check for the stop
        if self._stop_reason and (work.cancelled() or record_of(self._context).has_seen_stop or self._can_be_cancelled):
            return self._stopped()
        if work.cancelled():
            return self._report("fail", error="the job cancelled itself")
        error = work.exception()
        if error is not None:
            return self._raised(error)
        return self._report("finish", result=self._encoded(work.result()))

    @property
    def _can_be_cancelled(self) -> bool:
        return self._driver is None or self._driver.can_be_cancelled

    async def _wait_for_abandoned(self) -> None:
        """The slot stays in use until the job returns."""
        if self._work is not None and not self._work.done():
            what = "run %s (%s): did not stop when asked (%s); its slot stays in use until it returns"
            log.error(what, self.dispatched.run, _name(self.dispatched), self._stop_reason)
            await asyncio.wait({self._work})

    def _encoded(self, result: object) -> msgspec.Raw | None:
        data = record_of(self._context).encode_result(result)
        return None if data is None else msgspec.Raw(data)

    def _raised(self, error: BaseException) -> WorkerReport:
        if isinstance(error, Skip):
            return self._report("skip", reason=without_surrogates(str(error.reason)) or "skipped by the job")
        text = error.text if isinstance(error, RemoteError) else error_text(error)
        retry = error.retry if isinstance(error, RemoteError) else error if isinstance(error, Retry) else None
        if retry is None:
            result = self._encoded(error.result) if isinstance(error, JobFailed) else None
            return self._report("fail", error=text, result=result)
        try:
            after = None if retry.after is None else duration_us(retry.after, what="Retry(after=…)") / 1e6
        except EvertickError as invalid:
            text, after = f"{text}\n{invalid}", None
        return self._report("fail", error=text, retry=True, after=after)

    def _stopped(self) -> WorkerReport:
        if self._stop_reason == "timeout":
            error = f"the attempt timed out after {self.dispatched.timeout:g} s"
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
        """Report news soon, and without news before the worker counts as silent. Stops the run if it was cancelled."""
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
        """Retry without end, often enough that the report arrives before this worker counts as silent."""
        every = self.dispatched.progress_every
        return await self._retry.until_done(
            lambda: self._session.report(self.dispatched, report), lambda: True, most_seconds=every or math.inf
        )

    def _report(self, kind: WorkerReportKind, **more: Any) -> WorkerReport:
        buffer = record_of(self._context).buffer
        news = None if buffer is None else buffer.take()
        seq, lines, progress = news if news is not None else (None, (), None)
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
    """Whether it is too late to take the run."""
    return dispatched.take_by is not None and clock.now_us() > moment_of(dispatched.take_by, what="take_by")


def _name(dispatched: DispatchMessage) -> str:
    return dispatched.schedule or dispatched.task


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


def _dropped_words(queue: str, count: int, names: list[str], seconds: float | None) -> str:
    return f"queue {queue}: {count} more unreadable messages dropped{such_as(names, seconds)}"


def _failures_words(task: str, count: int, names: list[str], seconds: float | None) -> str:
    return f"task {task}: {count} more runs failed{such_as(names, seconds)}"
