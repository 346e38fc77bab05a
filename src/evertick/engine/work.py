"""Claiming runs and carrying them out.

`step` fills free slots. `_live` is the life of one run: execute, judge, hand over to the finisher. A run is started
once per claim, and only after the claim was answered.
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
from evertick.engine.judge import Dispatched, Ending, Raised, Returned, Stop, StoppedBy, Unfit, judge
from evertick.engine.node import GATHER_SECONDS, Attempt, LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.errors import InvalidArguments, InvalidInput, JobFailed
from evertick.job.context import Context, JobRecord
from evertick.job.transaction import Holder
from evertick.model import Claimed, Verdict
from evertick.model.message import dispatch_message
from evertick.store.base import Claim, RunFilter, TaskTerms
from evertick.text.log_level import TRACE, trace

__all__ = ["Worker"]

log = logging.getLogger("evertick.work")

# How long the last in the queue is expected to wait, and how long it may wait.
_AHEAD_SECONDS, _WAIT_MOST_SECONDS = 0.02, 0.2
# How long a told-to-stop attempt may take to end before the ledger goes on without it.
PATIENCE_SECONDS = 5.0
# Claims of one step at most.
_CLAIMS_OF_A_STEP = 8


class _Question(NamedTuple):
    """A claim, and what it was asked for."""

    answer: Awaitable[Claim]
    most: int
    # When it was asked.
    had_lease: bool


class Worker:
    """Fills this node's slots with due runs."""

    def __init__(self, node: LocalNode, finisher: Finisher, progress: ProgressWriter) -> None:
        self._node = node
        self._progress = progress
        self._finisher = finisher
        self._timeouts = Timeouts(lambda attempt: self.stop(attempt, Stop.TIMEOUT))
        # Whether nothing waits ahead of a new run: the last claim found fewer than there was room for, and nothing has
        # been put into the queue since. While it does not hold, slots that come free look for work.
        self.queue_is_short = False
        # Slots that come free while a claim is under way are looked at when it is answered.
        self._is_claiming = False
        self._gathering: asyncio.TimerHandle | None = None
        self._queue = RunQueue(node, self._begin, lambda attempt: self.stop(attempt, Stop.NO_SLOT))
        self.claimed_at: float | None = None
        # Runs that claims have found to be too old, of which the hooks have not heard.
        self._expired: list[str] = []
        self.on_slot_free: Callable[[], None] = lambda: None

    async def step(self) -> float | None:
        """Claim as many due runs as there are free slots, or soon will be, and start them. While a whole batch begins,
        the store looks for the next, if there is room for it."""
        node = self._node
        async with node.claiming:
            # Counted under the lock: while we wait for it, a fused claim may take the slots.
            room = node.hold.room + self._queue.look()
            if room <= 0 or node.is_draining or self._finisher.holds_up_claims():
                self.queue_is_short = False  # not looked at: the next free slot does, or the next written outcome
                return None
            claim = await self._claim_and_start(self._ask(room))
        # The next step tells those that could not be told.
        await node.tell_ended(self._expired)
        self._expired.clear()
        return self._rest_after(claim)

    async def _claim_and_start(self, asked: _Question) -> Claim:
        """One claim after the other while each fills its batch; not for ever, since others wait for the lock. Answers
        the last."""
        claims = 1
        while True:
            claim = await asked.answer
            self._expired += claim.expired
            # Before anything is started: what ends at once must not look for more where there is none.
            self.queue_is_short = len(claim.runs) < asked.most
            self._node.rates.started(claim.runs)
            ahead = self._ask_ahead(len(claim.runs)) if claims < _CLAIMS_OF_A_STEP else None
            if ahead is None:
                self._start(claim.runs, had_lease=asked.had_lease)
                return claim
            # On its way to the store first: a thousand runs take milliseconds to begin.
            await asyncio.sleep(0)
            self._start(claim.runs, had_lease=asked.had_lease)
            asked, claims = ahead, claims + 1

    def _ask(self, room: int, *, is_ahead: bool = False) -> _Question:
        """Only what is asked ahead has a task: who waits for a single run to start waits for every turn of the loop."""
        self._stop_gathering()
        node = self._node
        tasks, most = node.rates.admit(node.terms, min(room, node.batch_size))
        claim = self._claim(tasks, most)
        answer = asyncio.get_running_loop().create_task(claim, name="evertick claim") if is_ahead else claim
        return _Question(answer, most, node.has_lease)

    def _ask_ahead(self, begin: int) -> _Question | None:
        """The next batch, while so many runs are about to begin that are not in their slots yet; unless there is no
        room, nothing more to find, or another that waits for the lock."""
        node = self._node
        room = node.hold.room - begin
        is_in_vain = self.queue_is_short or room < node.batch_size or self._finisher.holds_up_claims()
        is_ours = not (is_in_vain or node.is_draining or node.claiming.is_wanted)
        return self._ask(room, is_ahead=True) if is_ours else None

    async def _claim(self, tasks: Mapping[str, TaskTerms], most: int) -> Claim:
        node, since = self._node, self._node.clock.elapsed()
        self._is_claiming = True
        try:
            claim = await node.store.claim(node.app, node.id, node.served, tasks, most)
        finally:
            self._is_claiming = False
        if log.isEnabledFor(TRACE):
            words = "claimed %d runs of %d at most, under fence %d; %d were too old;"
            trace(log, node.clock.elapsed() - since, words, len(claim.runs), most, claim.fence, len(claim.expired))
        return claim

    def start(self, runs: Sequence[Claimed], *, had_lease: bool) -> None:
        """Begin the life of each run. Their claim must have been answered. `had_lease`: when it was asked for.

        A process that was frozen in between, or whose machine slept, hears of claims that others may have by now. It
        does not start them: the next beat gives them back, or tells us that we are dead.
        """
        assert len(runs) <= self._node.hold.free, "runs are started into free slots"
        self._start(runs, had_lease=had_lease)

    def _start(self, runs: Sequence[Claimed], *, had_lease: bool) -> None:
        node = self._node
        if not runs:
            return
        if had_lease and not node.has_lease:
            log.warning("the lease ran out while a claim was under way: %d runs are not started here", len(runs))
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
        """For runs that take longer than a moment: most are over before there is anything to carry."""
        if len(self._node.hold):
            self._progress.on_held()
        else:
            self._progress.is_idle = True

    def _begin(self, attempts: Sequence[Attempt]) -> None:
        """Their work, each in a slot and a task of its own."""
        loop = asyncio.get_running_loop()
        if "started" in self._node.hooks.wanted:
            # After what the caller has to tell of them.
            loop.call_soon(self._tell_started, [attempt.run for attempt in attempts])
        if log.isEnabledFor(logging.DEBUG):
            for run in (attempt.run for attempt in attempts):
                log.debug("%s: run %s begins", run.schedule_key or run.task, run.id, extra=about(run))
        # All of them first: where a job begins within this call, it may stop another of them before that one has begun.
        for attempt in attempts:
            self._node.hold.give_slot(attempt)
            timeout = attempt.work.timeout
            if timeout is not None:
                self._timeouts.watch(attempt, timeout)
        begin = _task_maker(loop)
        for attempt in attempts:
            if attempt.why is None:
                attempt.task = begin(self._live(attempt), name=f"evertick {attempt.run.task}")
            else:
                self._end(attempt, StoppedBy(attempt.why))

    def _tell_started(self, runs: Sequence[Claimed]) -> None:
        for run in runs:
            self._node.tell("started", run)

    def stop(self, attempt: Attempt, why: Stop) -> None:
        """Tell a running attempt to stop. A lost claim outranks every other reason; else the first one counts."""
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
            attempt.task.add_done_callback(lambda _: self.end_unlived(attempt))
        if is_first:
            patience = PATIENCE_SECONDS + attempt.work.kill_after / 1e6
            asyncio.get_running_loop().call_later(patience, self.abandon, attempt)

    async def has_ended_itself(self, attempt: Attempt) -> bool:
        """Whether a run that the store says we do not hold was ended by its own job, which may still be at work."""
        record, claim = attempt.record, (attempt.node, attempt.run.fence)
        if record.own_end == "written":
            runs = await self._node.store.runs(self._node.app, RunFilter(ids=(attempt.run.id,)))
            # No other word makes a run of this claim succeed.
            if any(run.verdict is Verdict.SUCCEEDED and (run.node, run.fence) == claim for run in runs):
                record.own_end = "committed"
        return record.own_end == "committed"

    @property
    def may_take_fires(self) -> bool:
        """Whether a run may begin as it is recorded: nothing waits ahead of it, and what was done before is written."""
        return self.queue_is_short and not self._finisher.holds_up_claims()

    def queue_has_grown(self) -> None:
        """A run was put into the queue, unclaimed."""
        self.queue_is_short = False
        self.on_slot_free()

    def stop_schedules(self, schedule_ids: Collection[int]) -> None:
        """Newer fires replace what runs of these schedules; the beat would bring the request later."""
        for attempt in self._node.hold if schedule_ids else ():
            if attempt.run.schedule_id in schedule_ids:
                self.stop(attempt, Stop.REPLACED)

    # --- the life of one run

    async def _live(self, attempt: Attempt) -> None:
        if attempt.task is None:  # begun at once: `start` does not know it yet
            attempt.task = asyncio.current_task()
        driver = attempt.work.driver
        try:
            arguments = driver.prepare(attempt.run.args)
        except InvalidArguments as error:
            self._end(attempt, Unfit(str(error)))
            return
        try:
            ending = self._ending_of(attempt, await driver.execute(Context(attempt.record), arguments))
        except asyncio.CancelledError as error:
            ending = self._judge_cancel(attempt, error)
        except BaseException as error:
            if isinstance(error, GeneratorExit) and not _is_at_its_step(attempt):
                raise  # this coroutine is closed, for its event loop has ended
            # Whatever it is, the run must not be left without an outcome. What a job raises on its way out, once it was
            # told to stop, is no failure of its own.
            ending = self._judge_raise(attempt, error) if attempt.why is None else _stopped(attempt, attempt.why)
        self._end(attempt, ending)

    def _ending_of(self, attempt: Attempt, result: object) -> Ending:
        """Of a job that has returned."""
        if attempt.why is not None:
            # A job that saw that it was to stop, and returned, has stopped; one that did not look has done its work.
            if attempt.record.has_seen_stop:
                return _stopped(attempt, attempt.why)
            if attempt.why is Stop.TIMEOUT:
                attempt.record.log(
                    f"it took longer than its timeout of {(attempt.work.timeout or 0) / 1e6:g} s and never looked at "
                    "ctx.cancelled, so it could not be stopped: its work is done, and counts",
                    level="warning",
                )
        if isinstance(result, Dispatch):
            return self._dispatched(attempt, result)
        return Returned(attempt.record.encode_result(result))

    def _judge_raise(self, attempt: Attempt, error: BaseException) -> Ending:
        result = error.result if isinstance(error, JobFailed) else attempt.record.kept_result
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
        # Cancelled from outside (the program ends its loop), or by something the job itself awaited.
        return _stopped(attempt, Stop.SHUTDOWN) if task is not None and task.cancelling() else Raised(error)

    def _end(self, attempt: Attempt, ending: Ending) -> None:
        self._node.hold.work_ended(attempt)
        if attempt.has_slot:
            if attempt.work.timeout is not None:
                self._timeouts.forget(attempt, attempt.work.timeout)
            self._queue.run_ended()
        if attempt.is_abandoned:
            if not _is_cut_off(attempt):
                run = attempt.run
                what = "run %s of %r, which was given up, has ended: its slot is free again, its outcome is dropped"
                log.warning(what, run.id, run.task, extra=about(run))
        else:
            self._give_outcome(attempt, ending)
        if not self.queue_is_short and not self._is_claiming:
            self._look_for_more()

    def _look_for_more(self) -> None:
        """A slot has come free while more is waiting."""
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
            # A run that has ended itself is no loss; the store knows its end, and is only asked to confirm it.
            ending = Returned(None) if attempt.record.own_end == "committed" else StoppedBy(Stop.LOST)
        record, draw = attempt.record, self._node.clock.uniform
        try:
            outcome = judge(attempt.run, attempt.work, ending, draw, record.phases)
        except Exception as error:  # whatever a job raises, its run must not be left without an outcome
            run = attempt.run
            log.exception("the ending of run %s of %r makes no sense", run.id, run.task, extra=about(run))
            work = msgspec.structs.replace(attempt.work, retry_on=())
            outcome = judge(attempt.run, work, Raised(error), draw, record.phases)
        if record.buffer is not None and outcome is not None and outcome.verdict is Verdict.SUCCEEDED:
            outcome = msgspec.structs.replace(outcome, messages=record.messages)
        if outcome is None:
            run = attempt.run
            log.warning(
                "run %s of %r is no longer ours; what came of it is dropped", run.id, run.task, extra=about(run)
            )
            self._node.hold.let_go(attempt)
        else:
            self._finisher.put(attempt, outcome)

    def abandon(self, attempt: Attempt) -> None:
        """Go on without an attempt that was told to stop and did not: its outcome is given now."""
        if attempt.is_over or attempt.is_abandoned or attempt.why is None:
            return
        log.error(
            "run %s of %r did not stop when asked to (%s): given up; its slot stays in use until it returns. A plain "
            "function stops at ctx.check(); with process=True it is killed",
            attempt.run.id,
            attempt.run.task,
            attempt.why,
            extra=about(attempt.run),
        )
        self._node.hold.abandon(attempt)
        self._give_outcome(attempt, StoppedBy(attempt.why))

    def end_unlived(self, attempt: Attempt) -> None:
        """A task that is cancelled before its first step never runs a line of `_live`; its run gets an end, too."""
        if attempt.is_over or attempt.task is None or not attempt.task.done():
            return
        if attempt.is_abandoned:
            self._node.hold.work_ended(attempt)  # the program ends its loop, and with it what did not stop
        else:
            self._end(attempt, StoppedBy(attempt.why or Stop.SHUTDOWN))

    def _rest_after(self, claim: Claim) -> float | None:
        self.claimed_at = self._node.clock.elapsed()
        if not self.queue_is_short:
            return 0.0 if self._queue.is_worth_a_claim else self._node.rest_for(self._node.hold.free)
        rests = [] if claim.next_due_at is None else [max((claim.next_due_at - claim.now) / 1e6, 0.001)]
        return min(rests + self._node.rates.rests(), default=None)


class RunQueue:
    """Runs that are claimed, and wait for a slot of this node: first come, first served.

    A claim takes the store a millisecond or two. Where runs are over in less, a node that claims for its free slots
    alone waits for the store most of the time. So where all slots are taken anew within a moment, it claims more than
    they are: as many as end here in such a moment, which is how long the last of them will wait. A run that waits
    longer is given back.

    Never where a claim must be a start: a run that is to be started at most once, or that counts under a limit. When a
    node dies, what it has claimed has lost a claim, begun or not: one more reason to bound the queue by time. A node
    that has just started has ended nothing yet, and claims for its slots alone; so what kills its node at each start
    takes no more with it than before.
    """

    def __init__(
        self, node: LocalNode, begin: Callable[[Sequence[Attempt]], None], give_back: Callable[[Attempt], None]
    ) -> None:
        self._node = node
        self._begin = begin
        self._give_back = give_back
        self._attempts: deque[Attempt] = deque()
        # How many may be claimed ahead, as of the last look; how many runs have ended since.
        self._most = 0
        self._ended = 0
        self._looked_at = node.clock.elapsed()
        self._is_filling = False

    def look(self) -> int:
        """How many may be in line, or on their way into it."""
        now, ended = self._node.clock.elapsed(), self._ended
        seconds, self._looked_at, self._ended = max(now - self._looked_at, 0.001), now, 0
        coming = min(int(ended / seconds * _AHEAD_SECONDS), self._node.batch_size)
        is_worth_it = self._node.may_claim_ahead and self._node.has_lease and coming >= self._node.hold.capacity
        self._most = coming if is_worth_it else 0
        return self._most

    @property
    def is_worth_a_claim(self) -> bool:
        """Whether the slots that are free, and the places in line, are worth a statement."""
        room = self._node.hold.room + self._most
        return self._node.is_batch(room) and 2 * room >= self._most

    def put(self, attempts: Sequence[Attempt]) -> None:
        """Nearly all of them find a free slot."""
        self._attempts.extend(attempts)
        self._fill_slots()
        if left := [attempt for attempt in attempts if not attempt.has_slot and not attempt.is_over]:
            asyncio.get_running_loop().call_later(_WAIT_MOST_SECONDS, self._lose_patience, left)

    def leave(self, attempt: Attempt) -> None:
        self._attempts.remove(attempt)

    def run_ended(self) -> None:
        """Its slot is for the next in line. Not at once: one that begins may end at once, and so on."""
        self._ended += 1
        if self._attempts and not self._is_filling:
            self._is_filling = True
            asyncio.get_running_loop().call_soon(self._go_on)

    def _go_on(self) -> None:
        self._is_filling = False
        if not self._node.has_lease:
            self._forget_all()
        elif self._node.is_draining:
            self._lose_patience(list(self._attempts))
        else:
            self._fill_slots()

    def _fill_slots(self) -> None:
        count = min(self._node.hold.idle, len(self._attempts))
        self._begin([self._attempts.popleft() for _ in range(count)])

    def _forget_all(self) -> None:
        """We were frozen, and others may have them. The next beat gives them back, or tells us that we are dead."""
        log.warning("the lease ran out while %d runs waited for a slot: they are not started here", len(self._attempts))
        for attempt in self._attempts:
            self._node.hold.work_ended(attempt)
            self._node.hold.let_go(attempt)
        self._attempts.clear()

    def _lose_patience(self, attempts: Sequence[Attempt]) -> None:
        for attempt in attempts:
            if not attempt.has_slot and not attempt.is_over:
                self._give_back(attempt)


class Timeouts:
    """Which running attempts run out of time next: one timer for all of them. Times are the event loop's.

    Attempts of one timeout run out in the order in which they began. So each timeout has a queue of its own, and only
    the heads are looked at, whenever the timer rings; an attempt that ends in time costs two changes of a dict. A timer
    for each attempt costs ten times as much.
    """

    def __init__(self, on_timeout: Callable[[Attempt], None]) -> None:
        self._on_timeout = on_timeout
        # By timeout in microseconds, in the order of their beginning: when each of them has had its time.
        self._queues: dict[int, dict[Attempt, float]] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, attempt: Attempt, timeout: int) -> None:
        """The attempt begins now."""
        loop = asyncio.get_running_loop()
        over_at = loop.time() + timeout / 1e6
        self._queues.setdefault(timeout, {})[attempt] = over_at
        self._ring_at(loop, over_at)

    def forget(self, attempt: Attempt, timeout: int) -> None:
        """The attempt is over. The timer may ring for nothing once: that is cheaper than setting it anew each time."""
        self._queues[timeout].pop(attempt, None)

    def _ring_at(self, loop: asyncio.AbstractEventLoop, when: float) -> None:
        if self._timer is not None:
            if self._timer.when() <= when:
                return
            self._timer.cancel()
        self._timer = loop.call_at(when, self._ring, when)

    def _ring(self, when: float) -> None:
        self._timer = None
        loop = asyncio.get_running_loop()
        # Loops ring a little early (uvloop up to half a millisecond). Who then waits for the rest spins, and where time
        # is virtual and stands still meanwhile, for ever.
        now = max(when, loop.time())
        for timeout, queue in list(self._queues.items()):
            while queue:
                attempt, over_at = next(iter(queue.items()))
                if over_at > now:
                    self._ring_at(loop, over_at)
                    break
                self.forget(attempt, timeout)
                self._on_timeout(attempt)


def _stopped(attempt: Attempt, why: Stop) -> StoppedBy:
    return StoppedBy(why, attempt.record.encode_result(attempt.record.kept_result))


def _is_cut_off(attempt: Attempt) -> bool:
    """Whether its event loop ends before its thread has: only the waiting for the thread is over."""
    task = attempt.task
    return task is not None and task.cancelling() > 0 and not attempt.work.driver.can_be_cancelled


def _is_at_its_step(attempt: Attempt) -> bool:
    """Whether it is the attempt's own task that takes a step now."""
    try:
        return asyncio.current_task() is attempt.task
    except RuntimeError:
        return False


def _task_maker(loop: asyncio.AbstractEventLoop) -> Callable[..., asyncio.Task[None]]:
    """Makes the task of a run. Where Python can (3.12), the task takes its first step at once: for a
    job that never waits, its turn in the event loop is saved. A program that makes its own kind of tasks is asked.
    """
    if loop.get_task_factory() is not None:
        return loop.create_task
    if sys.version_info >= (3, 12):
        return functools.partial(asyncio.Task, loop=loop, eager_start=True)
    return functools.partial(asyncio.Task, loop=loop)
