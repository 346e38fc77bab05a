"""A running node: its loops (declared in `loops.py`), its heartbeat, its start and its stop."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import msgspec

from evertick.driver.base import Driver, ReportSource, Sender, Work
from evertick.engine import loops
from evertick.engine.auto_pause import AutoPauser
from evertick.engine.clock_watch import ClockWatch
from evertick.engine.duty import STORE_SILENT, DutyKeeper
from evertick.engine.finish import Finisher
from evertick.engine.fire import Recorder
from evertick.engine.heartbeat import Heartbeat
from evertick.engine.judge import Stop
from evertick.engine.loop import UNTIL_WOKEN, Loop, LoopHealth
from evertick.engine.loops import LoopKind
from evertick.engine.node import Attempt, LocalNode
from evertick.engine.outbox_delivery import OutboxDelivery
from evertick.engine.progress import ProgressWriter, log_capture
from evertick.engine.recovery import Recoverer
from evertick.engine.report import Reporter
from evertick.engine.sweep import Pruner, Sweeper
from evertick.engine.work import Worker
from evertick.errors import StoreReplaced, StoreUnavailable
from evertick.ledger.editor import Editor
from evertick.model.duty import DutyWork
from evertick.store.base import Beat

__all__ = ["Engine", "EngineHealth", "EngineSettings"]

log = logging.getLogger("evertick.engine")

# After the stop time: how long cancelled work gets to end, and how long the last outcomes get to be written.
_CANCEL_SECONDS = 1.0
_LAST_WRITES_SECONDS = 5.0
# Jobs named in one log line.
_NAMED_MOST = 5
# The least distance between two reactions to writes of other processes; the first reaction is not delayed.
_WOKEN_LEAST_SECONDS = 0.01


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Settings of an engine. Durations in seconds, except retention, in microseconds."""

    poll: float = 1.0
    beat: float = 3.0
    stall_limit: float = 900.0
    retention: int = 90 * 86_400_000_000
    keep_per_schedule: int | None = None
    note: float = 1.0
    sweep: float = 60.0
    # Rare: pruning costs a dozen statements, and history is kept for days.
    prune: float = 600.0
    # Whether this node takes duties.
    holds_duties: bool = True
    # False with a virtual clock: the heartbeat then runs on the engine's event loop.
    heartbeat_in_thread: bool = True


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """The health of a node: every loop works, the event loop responds, the lease is valid."""

    is_healthy: bool
    node: str
    running: int
    # Runs that did not stop when asked and still use their slots.
    abandoned: int
    unwritten_outcomes: int
    # Reports of workers that this node rejected: the run was dispatched again or is over.
    refused_reports: int
    # The duties that this node performs.
    duties: tuple[str, ...]
    last_tick_seconds_ago: float | None
    last_claim_seconds_ago: float | None
    lease_seconds_left: float
    loops: tuple[LoopHealth, ...]


class Engine:
    """Runs the loops of one node."""

    def __init__(
        self, node: LocalNode, editor: Editor, settings: EngineSettings, duties: Sequence[DutyWork] = ()
    ) -> None:
        self._node = node
        self._settings = settings
        progress = ProgressWriter(node, settings.note)
        self._finisher = Finisher(node, progress)
        self._worker = Worker(node, self._finisher, progress)
        self._recorder = Recorder(node, self._worker)
        self._recoverer = Recoverer(node, self._worker)
        self._clocks = ClockWatch(node)
        self._duties = DutyKeeper(node, self._works_of(duties), beat=settings.beat)
        self._delivery = OutboxDelivery(node, poll=settings.poll, keep_dead=settings.retention)
        self._reporter = Reporter(node, poll=settings.poll)
        auto_pauser = AutoPauser(node, editor)
        self._fire_loop = self._loop(loops.FIRE, self._recorder.step)
        self._work_loop = self._loop(loops.WORK, self._worker.step)
        self._finish_loop = self._loop(loops.FINISH, self._finisher.step, rest_most=UNTIL_WOKEN)
        self._progress_loop = self._loop(loops.PROGRESS, progress.step, rest_most=UNTIL_WOKEN)
        self._recovery_loop = self._loop(loops.RECOVERY, self._recoverer.step, rest_most=UNTIL_WOKEN)
        self._auto_pause_loop = self._loop(loops.AUTO_PAUSE, auto_pauser.step, rest_most=UNTIL_WOKEN)
        self._sweep_loop = self._loop(
            loops.SWEEP, Sweeper(node, editor, self._clocks.look).step, rest_most=settings.sweep
        )
        self._duty_loop = self._loop(loops.DUTY, self._duties.step, rest_most=UNTIL_WOKEN)
        self._delivery_loop = self._loop(loops.OUTBOX, self._delivery.step, rest_most=UNTIL_WOKEN)
        self._report_loop = self._loop(loops.REPORT, self._reporter.step, rest_most=UNTIL_WOKEN)
        self._watch_loop = self._loop(loops.WATCH, self._watch_store)
        self._loops = (
            self._fire_loop,
            self._work_loop,
            self._finish_loop,
            self._progress_loop,
            self._recovery_loop,
            self._auto_pause_loop,
            self._sweep_loop,
            self._duty_loop,
            self._delivery_loop,
            self._report_loop,
            self._watch_loop,
        )
        self._connect(progress, auto_pauser)
        self._heartbeat = self._make_heartbeat()
        self._capture = log_capture
        self._tasks: list[asyncio.Task[None]] = []
        self._rebirth: asyncio.Task[None] | None = None
        self._is_hurried = asyncio.Event()
        self._write_until = 0.0
        # Called from the heartbeat thread when the event loop was blocked longer than the stall limit.
        self.on_stalled: Callable[[], None] = lambda: None
        # Called once, when files of the store were deleted or replaced: this node cannot recover.
        self.on_replaced: Callable[[StoreReplaced], None] = lambda error: None
        self._is_replaced = False

    def _connect(self, progress: ProgressWriter, auto_pauser: AutoPauser) -> None:
        """Connect the callbacks of the parts, which do not know each other's loops."""
        self._worker.on_slot_free = self._work_loop.wake
        self._finisher.on_outcome = self._finish_loop.wake
        self._finisher.on_freed = self._look_again
        self._finisher.on_caught_up = self._worker.runs_enqueued
        self._finisher.on_failed = auto_pauser.failed
        self._finisher.on_sent = self._delivery.look_again
        self._delivery.on_change = self._delivery_loop.wake
        self._delivery.apply = self._reporter.apply
        self._reporter.on_freed = self._look_again
        self._reporter.on_back = self._delivery.is_back
        self._recoverer.readable_channels = self._reporter.heard
        self._reporter.on_failed = auto_pauser.failed_elsewhere
        self._recoverer.on_killed = self._delivery.look_again
        self._recoverer.on_lost = auto_pauser.failed_elsewhere
        self._recoverer.on_death = self._on_death
        self._duties.on_end = self._duty_loop.wake
        auto_pauser.on_failed = self._auto_pause_loop.wake
        progress.on_held = self._progress_loop.wake
        progress.on_lost = lambda attempt: self._worker.stop(attempt, Stop.LOST)

    def _make_heartbeat(self) -> Heartbeat:
        return Heartbeat(
            self._node,
            interval=self._settings.beat,
            stall_limit=self._settings.stall_limit,
            on_beat=self._on_beat,
            on_heartbeat_failed=self._on_silence,
            on_blocked=lambda: self._duties.request_stop("the event loop is blocked"),
            on_moving=self._on_moving,
            on_stalled=lambda: self.on_stalled(),
            in_thread=self._settings.heartbeat_in_thread,
            ticks=lambda: {loop.name: loop.tick() for loop in self._loops} | self._reporter.ticks(),
        )

    def _loop(
        self, kind: LoopKind, step: Callable[[], Awaitable[float | None]], *, rest_most: float | None = None
    ) -> Loop:
        loop = Loop(kind, step, self._node.clock, rest_most=rest_most or self._settings.poll)
        loop.on_replaced = self._on_replaced
        return loop

    def _works_of(self, duties: Sequence[DutyWork]) -> list[DutyWork]:
        settings = self._settings
        if not settings.holds_duties:
            return []
        pruner = Pruner(
            self._node,
            retention=settings.retention,
            keep_per_schedule=settings.keep_per_schedule,
            may_prune=self._clocks.may_prune,
        )
        return [pruner.duty(every=settings.prune), *duties]

    async def start(self) -> None:
        """Join the store and start the loops."""
        sent = self._node.clock.elapsed()
        await self._node.store.join(self._node.joining())
        self._node.trusted_until = sent + self._node.lease / 1e6
        self._recoverer.start_over()
        self._clocks.start_over()
        self._heartbeat.start()
        self._capture.install()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run(), name=f"evertick {each.name}") for each in self._loops]
        log.info("node %s (%s) has started", self._node.id, self._node.name)
        _log_left_tasks(self._node.leaves)

    async def stop(self, seconds: float) -> None:
        """Drain: claim nothing new, wait for running work, release the rest, leave the store."""
        self._node.is_draining = True
        for loop in (
            self._fire_loop,
            self._work_loop,
            self._sweep_loop,
            self._duty_loop,
            self._report_loop,
            self._watch_loop,
        ):
            loop.end()
        # This loop waits in the store for other processes, and a wake-up does not interrupt it.
        self._tasks[self._loops.index(self._watch_loop)].cancel()
        releasing = await self._release_duties()
        await self._reporter.stop(_CANCEL_SECONDS)
        await self._wait_for_claims()
        await self._wait_for_work(seconds)
        await self._cut_off_work()
        # One bound for all last writes, so that an unavailable store delays the stop only briefly.
        self._write_until = self._node.clock.elapsed() + _LAST_WRITES_SECONDS
        await self._write_last_outcomes()
        releasing.cancel()
        await self._heartbeat.stop()
        await self._leave()
        await self._node.hooks.drain(_CANCEL_SECONDS)
        self._capture.remove()
        self._node.summary.flush()
        log.info("node %s has stopped", self._node.id)
        if unstopped := self._unstopped():
            what = "node %s: still running after the stop, until the process ends: %s"
            log.error(what, self._node.name, ", ".join(unstopped))

    async def know(
        self,
        works: Mapping[str, Work],
        declares: Mapping[str, str],
        senders: Mapping[str, Sender],
        sources: Sequence[ReportSource],
        leaves: Mapping[str, str],
    ) -> None:
        """Replace tasks, declarations and connections to queues while the node runs. May be repeated if the store was
        unavailable."""
        node = self._node
        # Under the lock: a claim in between would use the old tasks and terms.
        async with node.claiming:
            _log_left_tasks({task: driver for task, driver in leaves.items() if node.leaves.get(task) != driver})
            node.know(works, declares, senders, sources, leaves)
            await node.store.join(node.joining())
        self._look_again()
        self._delivery.look_again()
        self._report_loop.wake()

    @property
    def node_id(self) -> str:
        """The current incarnation."""
        return self._node.id

    async def declare(self, declares: Mapping[str, str]) -> None:
        """Replace the declarations of this node, not its tasks."""
        node = self._node
        node.declares = dict(declares)
        await node.store.join(node.joining())

    def drivers_at_work(self) -> list[Driver]:
        """The drivers of all held runs, abandoned ones included."""
        return [attempt.work.driver for attempt in (*self._node.hold, *self._node.hold.abandoned)]

    def tasks_at_work(self) -> list[str]:
        """The names of the running tasks, sorted."""
        return sorted({each.run.task for each in self._node.hold if not each.is_over})

    def write_progress(self) -> bool:
        """Write the logs and progress of running jobs soon. False if nothing runs."""
        if len(self._node.hold):
            self._progress_loop.wake()
        return bool(len(self._node.hold))

    def abandon(self) -> None:
        """Clean up after the event loop ended without `stop`."""
        self._capture.remove()

    def wake_fires(self) -> None:
        """A schedule was added or changed here."""
        self._recorder.require_full_scan()
        self._fire_loop.wake()

    def wake_runs(self) -> None:
        """A run was enqueued here."""
        self._worker.runs_enqueued()

    def wake_messages(self) -> None:
        """A message was put into the outbox here."""
        self._delivery.look_again()

    def cancel(self, run_ids: list[str]) -> None:
        """Stop those of these runs that this node holds, without waiting for the heartbeat to return the request."""
        for attempt in self._node.hold.with_ids(set(run_ids)) if run_ids else ():
            self._worker.stop(attempt, Stop.REQUESTED)

    def hurry(self) -> None:
        """End the wait for running work."""
        self._is_hurried.set()

    @property
    def is_moving(self) -> bool:
        """Whether the event loop responds, regardless of the store and the loops. Thread-safe."""
        return self._heartbeat.is_moving

    def health(self) -> EngineHealth:
        now = self._node.clock.elapsed()
        loops = tuple(loop.health() for loop in self._loops)
        lease_left = self._node.trusted_until - now
        is_healthy = all(loop.is_healthy for loop in loops) and self._heartbeat.event_loop_responds and lease_left > 0
        return EngineHealth(
            is_healthy=is_healthy,
            node=self._node.id,
            running=self._node.hold.busy,
            abandoned=len(self._node.hold.abandoned),
            unwritten_outcomes=len(self._finisher),
            refused_reports=self._reporter.refused,
            duties=self._duties.held,
            last_tick_seconds_ago=_ago(self._recorder.ticked_at, now),
            last_claim_seconds_ago=_ago(self._worker.claimed_at, now),
            lease_seconds_left=lease_left,
            loops=loops,
        )

    # --- answers of the heartbeat

    def _on_beat(self, node: str, beat: Beat, sent: float) -> None:
        if node != self._node.id:
            return  # the answer is for an earlier incarnation
        if not beat.is_alive:
            if not self._node.is_closed:  # after `leave` the store no longer counts this node as alive
                self._begin_rebirth()
            return
        self.cancel(beat.cancels)
        if self._clocks.heard(beat, sent):
            # A clock jumped: check the ledger, and read the store's time again.
            self._sweep_loop.wake()
            self._duty_loop.wake()
        self._recoverer.heard(beat, sent)
        self._recovery_loop.wake()
        if beat.has_free_duties and self._duties.lacks_duties:
            self._duty_loop.wake()
        # Messages of dead nodes are due again.
        self._delivery.look_again()

    def _on_silence(self) -> None:
        """A heartbeat failed. Stop work that must not run twice before the lease expires."""
        if self._node.is_trusted:
            return
        self._duties.stop_all(STORE_SILENT)
        for attempt in self._node.hold:
            if attempt.work.on_unreachable == "stop":
                self._worker.stop(attempt, Stop.UNREACHABLE)

    def _on_moving(self) -> None:
        """The event loop responds again after it was blocked for so long that duties were stopped or resigned."""
        self._duties.drop_all("the event loop was blocked")
        self._duty_loop.wake()

    def _on_replaced(self, error: StoreReplaced) -> None:
        if not self._is_replaced:
            self._is_replaced = True
            log.critical("node %s: store lost, no new work is claimed: %s", self._node.name, error)
            self.on_replaced(error)

    def _begin_rebirth(self) -> None:
        if self._rebirth is None or self._rebirth.done():
            self._rebirth = asyncio.get_running_loop().create_task(self._be_reborn(), name="evertick rebirth")

    async def _be_reborn(self) -> None:
        """Restart as a new incarnation: the node was declared dead, and its runs may run elsewhere."""
        node = self._node
        async with node.claiming:
            what = "node %s (%s): was declared dead by another node; stopping its runs, restarting under a new id"
            log.error(what, node.id, node.name)
            for attempt in node.hold:
                if attempt.node == node.id:
                    self._worker.stop(attempt, Stop.LOST)
            self._duties.drop_all("this node was declared dead")
            node.start_incarnation()
            try:
                await node.store.join(node.joining())
            except StoreUnavailable as error:
                log.warning("node %s (%s): joining failed, retrying: %s", node.id, node.name, error)
                return
            self._recoverer.start_over()
            self._clocks.start_over()
        self._work_loop.wake()

    def _on_death(self) -> None:
        self._duty_loop.wake()
        self._delivery.look_again()

    # --- wake-ups

    def _look_again(self) -> None:
        # The loop that is woken first sends its statement first, and a caller may be waiting for a run to start.
        self._worker.runs_enqueued()
        self._fire_loop.wake()

    async def _watch_store(self) -> float | None:
        news = await self._node.store.changed(self._node.app, self._settings.poll)
        if news is None:
            return 0.0
        if news == "runs":  # by far the most frequent; only the work loop has to react
            self._worker.runs_enqueued()
            return _WOKEN_LEAST_SECONDS
        self._recorder.require_full_scan()
        self._look_again()
        self._delivery.look_again()
        if self._duties.lacks_duties:
            self._duty_loop.wake()
        return _WOKEN_LEAST_SECONDS

    # --- stop

    async def _release_duties(self) -> asyncio.Task[None]:
        """First, since other nodes wait for them. A duty that does not stop at once is resigned when it has."""
        task = asyncio.get_running_loop().create_task(self._duties.stop_and_resign(), name="evertick hand-over")
        await asyncio.wait({task}, timeout=_CANCEL_SECONDS)
        return task

    async def _wait_for_claims(self) -> None:
        """Wait for a claim in flight, whose runs are started; a later claim sees the drain."""
        try:
            async with asyncio.timeout(_CANCEL_SECONDS), self._node.claiming:
                return
        except TimeoutError:
            log.warning("node %s: a claim is still in flight; its runs will be released", self._node.name)

    async def _wait_for_work(self, seconds: float) -> None:
        runs = {attempt.task for attempt in self._at_work() if attempt.task is not None}
        tasks: set[asyncio.Task[Any]] = runs | self._delivery.under_way | self._duties.under_way
        if not tasks or seconds <= 0:
            return
        what = "node %s: stopping; waiting up to %g s for %s"
        log.info(what, self._node.name, seconds, self.under_way or "work in progress")
        work = asyncio.ensure_future(asyncio.wait(tasks))
        hurry = asyncio.ensure_future(self._is_hurried.wait())
        await asyncio.wait([work, hurry], timeout=seconds, return_when=asyncio.FIRST_COMPLETED)
        work.cancel()
        hurry.cancel()

    async def _cut_off_work(self) -> None:
        self._node.is_closed = True
        self._delivery.cut_off()
        cut_off = self._at_work()
        for attempt in cut_off:
            self._worker.stop(attempt, Stop.SHUTDOWN)
        tasks = {attempt.task for attempt in cut_off if attempt.task is not None}
        if tasks:
            await asyncio.wait(tasks, timeout=_CANCEL_SECONDS)
        for attempt in self._at_work():
            self._worker.abandon(attempt)

    async def _write_last_outcomes(self) -> None:
        """Let the finish loop write until nothing is left or the time is over."""
        for loop in (self._progress_loop, self._recovery_loop, self._auto_pause_loop):
            loop.end()
        # The runs of a claim that is answered only now must be released, too.
        while (len(self._finisher) or self._delivery.unsettled or self._is_claiming()) and self._seconds_left() > 0:
            self._finish_loop.wake()
            self._delivery_loop.wake()
            await asyncio.sleep(0.01)
        if len(self._finisher):
            what = "node %s: %d outcomes could not be written before the stop; these runs will run again"
            log.error(what, self._node.name, len(self._finisher))
        self._finish_loop.end()
        self._delivery_loop.end()
        await asyncio.wait(self._tasks, timeout=self._seconds_left())
        for task in self._tasks:
            task.cancel()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(max(self._seconds_left(), _CANCEL_SECONDS)):
                await self._node.store.leave(self._node.id)
        except TimeoutError:
            self._log_not_left("the store did not answer in time")
        except StoreUnavailable as error:
            self._log_not_left(str(error))

    def _log_not_left(self, why: str) -> None:
        log.warning("node %s: leaving the store failed (%s); its lease will expire", self._node.name, why)

    @property
    def under_way(self) -> str:
        """The work that a stop waits for: "2 jobs (report, slow) and 1 duty (index)"; empty if there is none."""
        jobs = [attempt.run.schedule_key or attempt.run.task for attempt in self._at_work() if attempt.has_slot]
        # Built-in duties end at once.
        duties = [name for name in self._duties.unfinished_names if not name.startswith("evertick.")]
        channels = self._delivery.busy_channels if self._delivery.under_way else []
        named = [("job", "jobs", jobs), ("duty", "duties", duties), ("delivery", "deliveries", channels)]
        return " and ".join(_counted(one, many, names) for one, many, names in named if names)

    def _unstopped(self) -> list[str]:
        """Work that only the end of the process can stop."""
        runs = [
            f"run {attempt.run.id} ({attempt.run.schedule_key or attempt.run.task})"
            for attempt in self._node.hold.abandoned
        ]
        duties = [f"duty {name!r}" for name in self._duties.unfinished_names]
        deliveries = [f"a delivery of {channel!r}" for channel in self._delivery.busy_channels]
        return runs + duties + deliveries

    def _is_claiming(self) -> bool:
        return self._node.claiming.locked()

    def _seconds_left(self) -> float:
        return max(self._write_until - self._node.clock.elapsed(), 0.0)

    def _at_work(self) -> list[Attempt]:
        return [attempt for attempt in self._node.hold if not attempt.is_over and not attempt.is_abandoned]


def _counted(one: str, many: str, names: list[str]) -> str:
    unique = list(dict.fromkeys(names))
    more = ", …" if len(unique) > _NAMED_MOST else ""
    return f"{len(names)} {one if len(names) == 1 else many} ({', '.join(unique[:_NAMED_MOST])}{more})"


def _ago(then: float | None, now: float) -> float | None:
    return None if then is None else now - then


def _log_left_tasks(leaves: Mapping[str, str]) -> None:
    """One line per driver: a node may leave thousands of tasks to others."""
    by_driver: dict[str, list[str]] = {}
    for task, driver in leaves.items():
        by_driver.setdefault(driver, []).append(task)
    for driver, tasks in by_driver.items():
        more = len(tasks) - _NAMED_MOST
        named = ", ".join(tasks[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
        jobs = "job" if len(tasks) == 1 else "jobs"
        log.info("%s %s: driver %r is not enabled here; left to other nodes", jobs, named, driver)
