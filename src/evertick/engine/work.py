"""Claims runs and executes them.

`Worker.step` fills free slots. `_execute` runs one attempt: execute, judge, pass the outcome to the finisher. A run
starts once per claim, and only after the store has answered the claim.
"""

from __future__ import annotations

import asyncio
import functools
import logging
import sys
from collections import deque
from collections.abc import Awaitable, Callable, Collection, Mapping, Sequence
from typing import NamedTuple

import msgspec

from evertick.driver.base import Dispatch
from evertick.engine.finish import Finisher, about
from evertick.engine.judge import BadArguments, Dispatched, Ending, Raised, Returned, Stop, StoppedBy, judge
from evertick.engine.node import GATHER_SECONDS, Attempt, LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.errors import InvalidArguments, InvalidInput, JobFailed
from evertick.job.context import Context, JobRecord
from evertick.job.transaction import Holder
from evertick.model import Claimed, Verdict
from evertick.model.message import dispatch_message
from evertick.store.base import Claim, RunFilter, TaskTerms
from evertick.text.log_level import TRACE, such_as, trace

__all__ = ["Worker"]

log = logging.getLogger("evertick.work")

# How long a run claimed ahead is expected to wait for a slot, and how long it may wait.
_AHEAD_SECONDS, _WAIT_MOST_SECONDS = 0.02, 0.2
# How long a stopped attempt may take to end before it is abandoned.
PATIENCE_SECONDS = 5.0
# Claims per step, at most.
_CLAIMS_OF_A_STEP = 8


class _PendingClaim(NamedTuple):
    answer: Awaitable[Claim]
    most: int
    # Whether the node had its lease when it asked.
    had_lease: bool


class Worker:
    """Fills the slots of this node with due runs."""

    def __init__(self, node: LocalNode, finisher: Finisher, progress: ProgressWriter) -> None:
        self._node = node
        self._progress = progress
        self._finisher = finisher
        self._timeouts = Timeouts(lambda attempt: self.stop(attempt, Stop.TIMEOUT))
        # No run waits ahead of a new one: the last claim found fewer than it asked for, and nothing was enqueued since.
        # While it is False, each slot that becomes free looks for work.
        self.is_queue_empty = False
        # Slots that become free during a claim are checked when it is answered.
        self._is_claiming = False
        self._gathering: asyncio.TimerHandle | None = None
        self._queue = RunQueue(node, self._begin, lambda attempt: self.stop(attempt, Stop.NO_SLOT))
        self.claimed_at: float | None = None
        # Runs that expired at a claim, and whose hooks were not called yet.
        self._expired: list[str] = []
        self.on_slot_free: Callable[[], None] = lambda: None

    async def step(self) -> float | None:
        """Claim due runs for the slots that are free or soon will be, and start them. Claims overlap with starts."""
        node = self._node
        async with node.claiming:
            # Counted under the lock: until we have it, a fused claim may take slots.
            room = node.hold.room + self._queue.look()
            if room <= 0 or node.is_draining or self._finisher.forbids_claims():
                self.is_queue_empty = False  # unknown: the next free slot or written outcome wakes this loop
                return None
            claim = await self._claim_and_start(self._request(room))
        # If this fails, the next step repeats it.
        await node.emit_ended(self._expired)
        self._expired.clear()
        return self._rest_after(claim)

    async def _claim_and_start(self, pending: _PendingClaim) -> Claim:
        """Claim batch after batch while each comes back full, up to a limit, since other loops wait for the lock.

        Returns the last claim.
        """
        claims = 1
        while True:
            claim = await pending.answer
            self._expired += claim.expired
            # Set before the start: a run that ends at once must not look for more work if there is none.
            self.is_queue_empty = len(claim.runs) < pending.most
            self._node.rates.started(claim.runs)
            ahead = self._request_ahead(len(claim.runs)) if claims < _CLAIMS_OF_A_STEP else None
            if ahead is None:
                self._start(claim.runs, had_lease=pending.had_lease)
                return claim
            # Let the request leave first: starting a thousand runs takes milliseconds.
            await asyncio.sleep(0)
            self._start(claim.runs, had_lease=pending.had_lease)
            pending, claims = ahead, claims + 1

    def _request(self, room: int, *, is_ahead: bool = False) -> _PendingClaim:
        """Only a claim ahead gets a task: for a single run, each extra turn of the event loop is latency."""
        self._stop_gathering()
        node = self._node
        tasks, most = node.rates.admit(node.terms, min(room, node.batch_size))
        claim = self._claim(tasks, most)
        answer = asyncio.get_running_loop().create_task(claim, name="evertick claim") if is_ahead else claim
        return _PendingClaim(answer, most, node.has_lease)

    def _request_ahead(self, starting: int) -> _PendingClaim | None:
        """The next claim, if there is room beside the runs that are starting and no other loop waits for the lock."""
        node = self._node
        room = node.hold.room - starting
        is_useless = self.is_queue_empty or room < node.batch_size or self._finisher.forbids_claims()
        may_claim = not (is_useless or node.is_draining or node.claiming.is_wanted)
        return self._request(room, is_ahead=True) if may_claim else None

    async def _claim(self, tasks: Mapping[str, TaskTerms], most: int) -> Claim:
        node, since = self._node, self._node.clock.elapsed()
        self._is_claiming = True
        try:
            claim = await node.store.claim(node.app, node.id, node.served, tasks, most)
        finally:
            self._is_claiming = False
        if log.isEnabledFor(TRACE):
            words = "claimed %d runs (limit %d), fence %d, %d expired,"
            trace(log, node.clock.elapsed() - since, words, len(claim.runs), most, claim.fence, len(claim.expired))
        return claim

    def start(self, runs: Sequence[Claimed], *, had_lease: bool) -> None:
        """Start claimed runs. `had_lease`: whether the node had its lease when it sent the claim.

        If the process or the machine was suspended since, another node may have the runs, so they are not started: the
        next heartbeat releases them, or returns that this node was declared dead.
        """
        assert len(runs) <= self._node.hold.free, "runs are started into free slots"
        self._start(runs, had_lease=had_lease)

    def _start(self, runs: Sequence[Claimed], *, had_lease: bool) -> None:
        node = self._node
        if not runs:
            return
        if had_lease and not node.has_lease:
            log.warning("node %s: lease expired during a claim; %d claimed runs not started", node.name, len(runs))
            return
        if self._progress.is_idle:
            self._progress.is_idle = False
            asyncio.get_running_loop().call_later(self._progress.every_seconds, self._carry_progress)
        holder = Holder(node.store, node.app, node.id, node.lease)
        attempts: list[Attempt] = []
        for run in runs:
            work = node.works[run.task]
            deadline = None if work.timeout is None else run.claimed_at + work.timeout
            attempt = Attempt(run, work, JobRecord(run, node.clock, deadline, holder), node.id)
            node.hold.take(attempt)
            attempts.append(attempt)
        if node.is_closed:
            for attempt in attempts:
                self._end(attempt, StoppedBy(Stop.NO_SLOT))
        else:
            self._queue.put(attempts)

    def _carry_progress(self) -> None:
        """Delayed, since most runs end before they have progress to write."""
        if len(self._node.hold):
            self._progress.on_held()
        else:
            self._progress.is_idle = True

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        """Execute each attempt in its own slot and task."""
        loop = asyncio.get_running_loop()
        if "started" in self._node.hooks.wanted:
            # Later: the caller may have "scheduled" to emit first.
            loop.call_soon(self._tell_started, [attempt.run for attempt in attempts])
        if log.isEnabledFor(logging.DEBUG):
            for run in (attempt.run for attempt in attempts):
                log.debug("run %s (%s): started", run.id, run.schedule_key or run.task, extra=about(run))
        # All slots first: a job that starts within this call may stop another attempt that has not started.
        for attempt in attempts:
            self._node.hold.give_slot(attempt)
            timeout = attempt.work.timeout
            if timeout is not None:
                self._timeouts.watch(attempt, timeout)
        begin = _task_maker(loop)
        for attempt in attempts:
            if attempt.why is None:
                attempt.task = begin(self._execute(attempt), name=f"evertick {attempt.run.task}")
            else:
                self._end(attempt, StoppedBy(attempt.why))

    def _tell_started(self, runs: Sequence[Claimed]) -> None:
        for run in runs:
            self._node.tell("started", run)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Stop an attempt. The first reason counts, but a lost claim overrides it."""
        if attempt.is_over or (attempt.why is not None and why is not Stop.LOST):
            return
        is_first = attempt.why is None
        attempt.why = why
        attempt.record.stopped = why.value
        if not attempt.has_slot:
            self._queue.leave(attempt)
            self._end(attempt, StoppedBy(why))
            return
        if attempt.work.driver.can_be_cancelled and attempt.task is not None:
            attempt.task.cancel()
            attempt.task.add_done_callback(lambda _: self.end_unstarted(attempt))
        if is_first:
            patience = PATIENCE_SECONDS + attempt.work.kill_after / 1e6
            asyncio.get_running_loop().call_later(patience, self.abandon, attempt)

    async def was_finished_by_job(self, attempt: Attempt) -> bool:
        """Whether the job finished its own run in a transaction; the job may still be running."""
        record, claim = attempt.record, (attempt.node, attempt.run.fence)
        if record.job_finish == "written":
            runs = await self._node.store.runs(self._node.app, RunFilter(ids=(attempt.run.id,)))
            # Only the job can have made a run of this claim succeed.
            if any(run.verdict is Verdict.SUCCEEDED and (run.node, run.fence) == claim for run in runs):
                record.job_finish = "committed"
        return record.job_finish == "committed"

    @property
    def may_fuse_claims(self) -> bool:
        """Whether fused claims are allowed: no run waits ahead, and the finisher keeps up."""
        return self.is_queue_empty and not self._finisher.forbids_claims()

    def runs_enqueued(self) -> None:
        """Unclaimed runs were enqueued."""
        self.is_queue_empty = False
        self.on_slot_free()

    def stop_schedules(self, schedule_ids: Collection[int]) -> None:
        """Stop runs that newer fires replace, without waiting for the heartbeat to return the request."""
        for attempt in self._node.hold if schedule_ids else ():
            if attempt.run.schedule_id in schedule_ids:
                self.stop(attempt, Stop.REPLACED)

    # --- one run

    async def _execute(self, attempt: Attempt) -> None:
        if attempt.task is None:  # an eager task runs before `create_task` returns
            attempt.task = asyncio.current_task()
        driver = attempt.work.driver
        try:
            arguments = driver.prepare(attempt.run.args)
        except InvalidArguments as error:
            self._end(attempt, BadArguments(str(error)))
            return
        try:
            ending = self._ending_of(attempt, await driver.execute(Context(attempt.record), arguments))
        except asyncio.CancelledError as error:
            ending = self._judge_cancel(attempt, error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _is_current(attempt):
                raise  # the event loop has ended and closes this coroutine
            # Every run needs an outcome, also after SystemExit. An error raised after a stop is not a failure.
            ending = self._judge_raise(attempt, error) if attempt.why is None else _stopped(attempt, attempt.why)
        self._end(attempt, ending)

    def _ending_of(self, attempt: Attempt, result: object) -> Ending:
        """The ending of a job that has returned."""
        if attempt.why is not None:
            # A job that checked for the stop and returned has stopped; one that never checked has completed.
            if attempt.record.has_seen_stop:
                return _stopped(attempt, attempt.why)
            if attempt.why is Stop.TIMEOUT:
                attempt.record.log(
                    f"exceeded its timeout of {(attempt.work.timeout or 0) / 1e6:g} s without checking ctx.cancelled, "
                    "so it could not be stopped; its result counts",
                    level="warning",
                )
        if isinstance(result, Dispatch):
            return self._dispatched(attempt, result)
        return Returned(attempt.record.encode_result(result))

    def _judge_raise(self, attempt: Attempt, error: BaseException) -> Ending:
        result = error.result if isinstance(error, JobFailed) else attempt.record.fallback_result
        return Raised(error, attempt.record.encode_result(result))

    def _dispatched(self, attempt: Attempt, dispatch: Dispatch) -> Ending:
        run, id_ = attempt.run, self._node.clock.new_id()
        try:
            message = dispatch_message(id_, dispatch.channel, dispatch.payload, dispatch.headers, run.id, run.fence)
        except InvalidInput as error:
            return Raised(error)
        return Dispatched(dispatch, message)

    def _judge_cancel(self, attempt: Attempt, error: asyncio.CancelledError) -> Ending:
        if attempt.why is not None:
            return _stopped(attempt, attempt.why)
        task = asyncio.current_task()
        # Cancelled from outside (the program ends its loop), or by code that the job awaited.
        return _stopped(attempt, Stop.SHUTDOWN) if task is not None and task.cancelling() else Raised(error)

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        self._node.hold.work_ended(attempt)
        if attempt.has_slot:
            if attempt.work.timeout is not None:
                self._timeouts.forget(attempt, attempt.work.timeout)
            self._queue.run_ended()
        if attempt.is_abandoned:
            if not _is_cut_off(attempt):
                what = "run %s (%s): ended after it was abandoned; its slot is free, its outcome is dropped"
                self._log("returned", logging.WARNING, what, attempt.run)
        else:
            self._give_outcome(attempt, ending)
        if not self.is_queue_empty and not self._is_claiming:
            self._look_for_more()

    def _look_for_more(self) -> None:
        """A slot is free while runs wait."""
        if self._queue.is_worth_a_claim:
            self.on_slot_free()
        elif self._gathering is None:
            self._gathering = asyncio.get_running_loop().call_later(GATHER_SECONDS, self._gathered)

    def _gathered(self) -> None:
        self._gathering = None
        self.on_slot_free()

    def _stop_gathering(self) -> None:
        if self._gathering is not None:
            self._gathering.cancel()
            self._gathering = None

    def _give_outcome(self, attempt: Attempt, ending: Ending) -> None:
        if attempt.why is not None and attempt.why is Stop.LOST:
            # A run that its job finished is not lost; the store only has to confirm it.
            ending = Returned(None) if attempt.record.job_finish == "committed" else StoppedBy(Stop.LOST)
        record, draw = attempt.record, self._node.clock.uniform
        try:
            outcome = judge(attempt.run, attempt.work, ending, draw, record.phases)
        except Exception as error:  # for example an error whose str() fails: the run still needs an outcome
            run, what = attempt.run, "run %s (%s): judging its outcome failed; recorded as failed"
            log.exception(what, run.id, run.schedule_key or run.task, extra=about(run))
            work = msgspec.structs.replace(attempt.work, retry_on=())
            outcome = judge(attempt.run, work, Raised(error), draw, record.phases)
        if record.buffer is not None and outcome is not None and outcome.verdict is Verdict.SUCCEEDED:
            outcome = msgspec.structs.replace(outcome, messages=record.messages)
        if outcome is None:
            what = "run %s (%s): claim lost; its outcome is dropped"
            self._log("lost", logging.WARNING, what, attempt.run)
            self._node.hold.forget_attempt(attempt)
        else:
            self._finisher.put(attempt, outcome)

    def abandon(self, attempt: Attempt) -> None:
        """Record the outcome of an attempt that did not stop, without waiting for it."""
        if attempt.is_over or attempt.is_abandoned or attempt.why is None:
            return
        what = (
            "run %s (%s): did not stop when asked (%s); abandoned, its slot stays in use until it returns (a plain "
            "function stops at ctx.check(); with process=True it is killed)"
        )
        self._log("abandoned", logging.ERROR, what, attempt.run, attempt.why)
        self._node.hold.abandon(attempt)
        self._give_outcome(attempt, StoppedBy(attempt.why))

    def _log(self, kind: str, level: int, what: str, run: Claimed, *values: object) -> None:
        """Many runs may be stopped at once, so the lines of each kind are limited."""
        say = functools.partial(log.log, level, what, run.id, run.schedule_key or run.task, *values, extra=about(run))
        words = functools.partial(_stopped_words, kind)
        self._node.summary.tell(f"stopped {kind}", kind, log, level, say, words, about=run.id)

    def end_unstarted(self, attempt: Attempt) -> None:
        """End an attempt whose task was cancelled before its first step, so that `_execute` never ran."""
        if attempt.is_over or attempt.task is None or not attempt.task.done():
            return
        if attempt.is_abandoned:
            self._node.hold.work_ended(attempt)  # the event loop ends, and the job with it
        else:
            self._end(attempt, StoppedBy(attempt.why or Stop.SHUTDOWN))

    def _rest_after(self, claim: Claim) -> float | None:
        self.claimed_at = self._node.clock.elapsed()
        if not self.is_queue_empty:
            return 0.0 if self._queue.is_worth_a_claim else self._node.rest_for(self._node.hold.free)
        rests = [] if claim.next_due_at is None else [max((claim.next_due_at - claim.now) / 1e6, 0.001)]
        return min(rests + self._node.rates.rests(), default=None)


class RunQueue:
    """Claimed runs that wait for a slot of this node, in order of arrival.

    A claim takes a millisecond or two. If runs end faster than that, a node that claims only for free slots spends most
    of its time waiting for the store. So a node whose slots all turn over within _AHEAD_SECONDS claims ahead: as many
    runs as end in that time. A run that waits longer than _WAIT_MOST_SECONDS is released.

    A node does not claim ahead where a claim counts as a start (at most once, limits), or right after its own start, so
    that a job which kills its node takes few other runs with it: the death of a node costs each claimed run a loss.
    """

    def __init__(
        self, node: LocalNode, begin: Callable[[Sequence[Attempt]], None], release: Callable[[Attempt], None]
    ) -> None:
        self._node = node
        self._begin = begin
        self._release = release
        self._attempts: deque[Attempt] = deque()
        # How many may be claimed ahead, as of `look`; how many runs ended since.
        self._most = 0
        self._ended = 0
        self._checked_at = node.clock.elapsed()
        self._is_filling = False

    def look(self) -> int:
        """How many runs may be claimed ahead now."""
        now, ended = self._node.clock.elapsed(), self._ended
        seconds, self._checked_at, self._ended = max(now - self._checked_at, 0.001), now, 0
        ending = min(int(ended / seconds * _AHEAD_SECONDS), self._node.batch_size)
        is_worth_it = self._node.may_claim_ahead and self._node.has_lease and ending >= self._node.hold.capacity
        self._most = ending if is_worth_it else 0
        return self._most

    @property
    def is_worth_a_claim(self) -> bool:
        """Whether the free slots and places in this queue are worth a statement."""
        room = self._node.hold.room + self._most
        return self._node.is_batch(room) and 2 * room >= self._most

    def put(self, attempts: Sequence[Attempt]) -> None:
        self._attempts.extend(attempts)
        self._fill_slots()
        if waiting := [attempt for attempt in attempts if not attempt.has_slot and not attempt.is_over]:
            asyncio.get_running_loop().call_later(_WAIT_MOST_SECONDS, self._release_waiting, waiting)

    def leave(self, attempt: Attempt) -> None:
        self._attempts.remove(attempt)

    def run_ended(self) -> None:
        """Start the next run soon. Not in this call: that run may end at once, and the recursion would not end."""
        self._ended += 1
        if self._attempts and not self._is_filling:
            self._is_filling = True
            asyncio.get_running_loop().call_soon(self._start_next)

    def _start_next(self) -> None:
        self._is_filling = False
        if not self._node.has_lease:
            self._drop_all()
        elif self._node.is_draining:
            self._release_waiting(list(self._attempts))
        else:
            self._fill_slots()

    def _fill_slots(self) -> None:
        count = min(self._node.hold.idle, len(self._attempts))
        self._begin([self._attempts.popleft() for _ in range(count)])

    def _drop_all(self) -> None:
        """After a suspend, when other nodes may have these runs; the next heartbeat releases them if not."""
        log.warning(
            "node %s: lease expired; %d runs that waited for a slot not started", self._node.name, len(self._attempts)
        )
        for attempt in self._attempts:
            self._node.hold.work_ended(attempt)
            self._node.hold.forget_attempt(attempt)
        self._attempts.clear()

    def _release_waiting(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not attempt.has_slot and not attempt.is_over:
                self._release(attempt)


class Timeouts:
    """The timeouts of all running attempts, with one timer. Times are the event loop's.

    Attempts with the same timeout expire in the order in which they started, so each timeout has its own queue and only
    the heads are checked. An attempt that ends in time costs two changes of a dict; a timer for each attempt would cost
    ten times as much.
    """

    def __init__(self, on_timeout: Callable[[Attempt], None]) -> None:
        self._on_timeout = on_timeout
        # When each attempt expires, by timeout in microseconds, in order of start.
        self._queues: dict[int, dict[Attempt, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: Attempt, timeout: int) -> None:
        """The attempt starts now."""
        loop = asyncio.get_running_loop()
        expires_at = loop.time() + timeout / 1e6
        self._queues.setdefault(timeout, {})[attempt] = expires_at
        self._set_timer(loop, expires_at)

    def forget(self, attempt: Attempt, timeout: int) -> None:
        """The attempt is over. The timer stays: one useless call is cheaper than setting it again each time."""
        self._queues[timeout].pop(attempt, None)

    def _set_timer(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._expire, when)

    def _expire(self, when: float) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        # Loops call a little early (uvloop up to half a millisecond). Waiting for the rest would spin, for ever if the
        # time is virtual.
        now = max(when, loop.time())
        for timeout, queue in list(self._queues.items()):
            while queue:
                attempt, expires_at = next(iter(queue.items()))
                if expires_at > now:
                    self._set_timer(loop, expires_at)
                    break
                self.forget(attempt, timeout)
                self._on_timeout(attempt)


def _stopped(attempt: Attempt, why: Stop) -> StoppedBy:
    return StoppedBy(why, attempt.record.encode_result(attempt.record.fallback_result))


def _is_cut_off(attempt: Attempt) -> bool:
    """Whether the event loop ended first: the thread of the job is still running."""
    task = attempt.task
    return task is not None and task.cancelling() > 0 and not attempt.work.driver.can_be_cancelled


def _stopped_words(kind: str, count: int, names: list[str], seconds: float | None) -> str:
    match kind:
        case "abandoned":
            what = "did not stop when asked and were abandoned"
        case "returned":
            what = "ended after they were abandoned"
        case _:
            what = "lost their claims; their outcomes are dropped"
    return f"{count} more runs{such_as(names, seconds)} {what}"


def _is_current(attempt: Attempt) -> bool:
    """Whether the attempt's own task is the current one."""
    try:
        return asyncio.current_task() is attempt.task
    except RuntimeError:
        return False


def _task_maker(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
    """The constructor for tasks of runs: the program's task factory, or eager tasks (Python 3.12), which save a job
    that never waits one turn of the event loop."""
    if loop.get_task_factory() is not None:
        return loop.create_task
    if sys.version_info >= (3, 12):
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return functools.partial(asyncio.Task, loop=loop)
