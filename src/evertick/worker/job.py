"""One taken run in the hands of a worker: say that it is taken, do it, speak of it now and then, say how it ended.

What cannot be said because the broker is away is said when it is back. A run whose taking could not be told in its time
is not begun: the ledger may have dispatched it over anew by then.
"""

from __future__ import annotations

import asyncio
import logging
import math
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.driver.base import Driver, Reported
from evertick.driver.error_text import error_text
from evertick.driver.queue.contract import VERSION, DispatchMessage, WorkerReport, WorkerReportKind
from evertick.errors import EvertickError, JobFailed, Retry, Skip
from evertick.job.context import Context, JobRecord, record_of
from evertick.model import Claimed
from evertick.text.error_line import error_for_log
from evertick.text.surrogates import mended_text
from evertick.when.duration import duration_us
from evertick.when.moment import moment_of, moment_text
from evertick.worker.broker_session import BrokerSession
from evertick.worker.executor import Executor
from evertick.worker.outage import Outage

__all__ = ["Job"]

log = logging.getLogger("evertick.worker")

# New log lines and progress are not held back for longer.
_NEWS_SECONDS = 2.0
# How long work that was told to stop, and can only be asked, may take before its end is told without it.
_PATIENCE_SECONDS = 5.0
_ENDS: tuple[WorkerReportKind, ...] = ("finish", "fail", "skip")


class Job:
    """The life of one dispatch here."""

    def __init__(
        self,
        dispatched: DispatchMessage,
        line: BrokerSession,
        craft: Executor,
        outage: Outage,
        *,
        clock: Clock,
        worker: str,
    ) -> None:
        self.dispatched = dispatched
        self._line, self._craft, self._outage = line, craft, outage
        self._clock, self._worker = clock, worker
        self._context = Context(JobRecord(_claimed(dispatched, clock), clock, self._deadline()))
        self._driver: Driver | None = None
        self._work: asyncio.Task[Any] | None = None
        # Why the work was told to stop.
        self._why = ""
        self._taken_at = self._told_at = clock.elapsed()

    async def live(self) -> None:
        if not await self._tell_taken():
            log.warning(
                "run %s is left alone: it was killed, or its taking could not be told in time", self.dispatched.run
            )
            return
        heart = asyncio.get_running_loop().create_task(self._keep_telling(), name="evertick worker heart")
        try:
            end = await self._do()
        finally:
            heart.cancel()
        await self._tell_for_sure(end)
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
        """End the work: it was killed, or is out of time."""
        if self._why or self._work is None or self._work.done():
            return
        self._why = record_of(self._context).stopped = why
        if self._driver is not None and self._driver.can_be_cancelled:
            self._work.cancel()

    def cut_off(self) -> None:
        """This worker ends: the run is given back, for another."""
        self.stop("shutdown")

    # --- doing

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
        self._driver = driver = self._craft.driver_for(self.dispatched)
        return await driver.execute(self._context, driver.prepare(record_of(self._context).run.args))

    async def _end_of(self, work: asyncio.Task[Any]) -> WorkerReport:
        while not work.done():
            patience = _PATIENCE_SECONDS if self._why and not self._can_be_cancelled else _NEWS_SECONDS
            await asyncio.wait({work}, timeout=patience)
            if self._why and not self._can_be_cancelled and not work.done():
                return self._stopped()  # a thread that does not look: its end is told without it
        if self._why and (work.cancelled() or record_of(self._context).has_seen_stop or self._can_be_cancelled):
            return self._stopped()
        if work.cancelled():
            return self._report("fail", error="the work was cancelled from inside")
        error = work.exception()
        return self._returned(work.result()) if error is None else self._raised(error)

    @property
    def _can_be_cancelled(self) -> bool:
        return self._driver is None or self._driver.can_be_cancelled

    async def _wait_for_abandoned(self) -> None:
        """Its slot stays taken until it returns."""
        if self._work is not None and not self._work.done():
            log.error("run %s did not stop when told to: its slot stays taken until it does", self.dispatched.run)
            await asyncio.wait({self._work})

    def _returned(self, result: object) -> WorkerReport:
        kept = record_of(self._context).encode_result(result)
        return self._report("finish", result=None if kept is None else msgspec.Raw(kept))

    def _raised(self, error: BaseException) -> WorkerReport:
        if isinstance(error, Skip):
            return self._report("skip", reason=mended_text(str(error.reason)) or "skipped by the job")
        text = error.text if isinstance(error, Reported) else error_text(error)
        asked = error.retry if isinstance(error, Reported) else error if isinstance(error, Retry) else None
        if asked is None:
            result = record_of(self._context).encode_result(error.result) if isinstance(error, JobFailed) else None
            return self._report("fail", error=text, result=None if result is None else msgspec.Raw(result))
        try:
            after = None if asked.after is None else duration_us(asked.after, what="Retry(after=…)") / 1e6
        except EvertickError as invalid:
            text, after = f"{text}\n{invalid}", None
        return self._report("fail", error=text, retry=True, after=after)

    def _stopped(self) -> WorkerReport:
        if self._why == "timeout":
            error = f"the attempt took longer than its timeout of {self.dispatched.timeout:g} s"
            return self._report("fail", error=error, reason="timeout")
        if self._why == "shutdown":
            return self._report("release", reason="its worker was stopped")
        return self._report("fail", error=f"it was stopped: {self._why}", reason="killed", retry=False)

    # --- telling

    async def _tell_taken(self) -> bool:
        if self.dispatched.mode == "forget":
            return True
        report = self._report("taken")
        told = await self._outage.outlast(
            lambda: self._line.report(self.dispatched, report), lambda: not is_late(self.dispatched, self._clock)
        )
        return bool(told)

    async def _keep_telling(self) -> None:
        """What is new soon, and that we are at work in any case. Hears by the way that nobody wants it any more."""
        every = self.dispatched.progress_every
        if self.dispatched.mode != "finish" or every is None:
            return
        while True:
            await asyncio.sleep(min(every, _NEWS_SECONDS))
            buffer = record_of(self._context).buffer
            has_news = buffer is not None and buffer.has_news
            if not has_news and self._clock.elapsed() - self._told_at < every - _NEWS_SECONDS:
                continue
            if not await self._tell(self._report("progress")):
                self.stop("requested")
            self._told_at = self._clock.elapsed()

    async def _tell_for_sure(self, end: WorkerReport) -> None:
        """As often as it takes: the work is done, and must not be done again."""
        if self.dispatched.mode != "finish":
            return
        await self._tell(end)

    async def _tell(self, report: WorkerReport) -> bool | None:
        """A broker that is back is to hear of us before anybody may call us silent: so it is tried often enough."""
        every = self.dispatched.progress_every
        return await self._outage.outlast(
            lambda: self._line.report(self.dispatched, report), lambda: True, most_seconds=every or math.inf
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


def is_late(dispatched: DispatchMessage, clock: Clock) -> bool:
    """Whether the time to take it is over."""
    return dispatched.take_by is not None and clock.now_us() > moment_of(dispatched.take_by, what="take_by")


def _claimed(dispatched: DispatchMessage, clock: Clock) -> Claimed:
    """The run as a job's context shows it."""
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
