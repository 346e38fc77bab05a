"""One node at work: its loops (`loops.py` says what each does), its heart, its beginning and its end."""

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
from evertick.engine.duty import DutyKeeper
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

# After the stop time, how long told-to-stop coroutines get to end, and how long the last outcomes get to be written.
_LAST_WORDS_SECONDS = 1.0
# Of the jobs that are left to others, in the log.
_NAMED_MOST = 5
_LAST_WRITES_SECONDS = 5.0
# However often others wake us: no more looks than that come of it. The first one is never late.
_WOKEN_LEAST_SECONDS = 0.01


class EngineSettings(msgspec.Struct, frozen=True, kw_only=True):
    """How an engine behaves. Durations in seconds, but for retention in microseconds."""

    poll: float = 1.0
    beat: float = 3.0
    stall_limit: float = 900.0
    retention: int = 90 * 86_400_000_000
    keep_per_schedule: int | None = None
    note: float = 1.0
    sweep: float = 60.0
    # Pruning asks a dozen questions, and history is kept for days.
    prune: float = 600.0
    # Whether this node does what one node of the app does at a time.
    holds_duties: bool = True
    # The heart beats on the engine's own loop where time is virtual.
    heart_in_thread: bool = True


class EngineHealth(msgspec.Struct, frozen=True, kw_only=True):
    """How the node is. It is healthy while every loop comes back and the event loop moves."""

    is_healthy: bool
    node: str
    running: int
    # Runs that did not stop when told to, and still hold their slot.
    abandoned: int
    unwritten_outcomes: int
    # Reports of workers that were refused here: their runs were dispatched again since, or are over.
    refused_reports: int
    # The duties that are done here.
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
        # Called from the heart's thread when the event loop has been blocked for too long to go on.
        self.on_stalled: Callable[[], None] = lambda: None
        # Called once, when files of the store were deleted or replaced: this node cannot work again.
        self.on_replaced: Callable[[StoreReplaced], None] = lambda error: None
        self._is_replaced = False

    def _connect(self, progress: ProgressWriter, auto_pauser: AutoPauser) -> None:
        """Connect the parts: each tells what has happened, and knows nothing of the loops that care."""
        self._worker.on_slot_free = self._work_loop.wake
        self._finisher.on_outcome = self._finish_loop.wake
        self._finisher.on_freed = self._look_again
        self._finisher.on_caught_up = self._worker.queue_has_grown
        self._finisher.on_failed = auto_pauser.failed
        self._finisher.on_sent = self._delivery.look_again
        self._delivery.on_change = self._delivery_loop.wake
        self._delivery.apply = self._reporter.apply
        self._reporter.on_freed = self._look_again
        self._reporter.on_back = self._delivery.is_back
        self._recoverer.heard_channels = self._reporter.heard
        self._reporter.on_failed = auto_pauser.lost_elsewhere
        self._recoverer.on_killed = self._delivery.look_again
        self._recoverer.on_lost = auto_pauser.lost_elsewhere
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
            on_silence=self._on_silence,
            on_blocked=lambda: self._duties.ask_to_stop("the event loop is blocked"),
            on_moving=self._on_moving,
            on_stalled=lambda: self.on_stalled(),
            in_thread=self._settings.heart_in_thread,
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
        """Join the store and begin."""
        sent = self._node.clock.elapsed()
        await self._node.store.join(self._node.joining())
        self._node.trusted_until = sent + self._node.lease / 1e6
        self._recoverer.begin_anew()
        self._clocks.begin_anew()
        self._heartbeat.start()
        self._capture.install()
        loop = asyncio.get_running_loop()
        self._tasks = [loop.create_task(each.run(), name=f"evertick {each.name}") for each in self._loops]
        log.info("node %s (%s) has started", self._node.id, self._node.name)
        _log_left_tasks(self._node.leaves)

    async def stop(self, seconds: float) -> None:
        """Drain: take nothing new, give running work its time, release the rest, leave."""
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
        # It waits for other processes, which no wake-up ends.
        self._tasks[self._loops.index(self._watch_loop)].cancel()
        releasing = await self._release_duties()
        await self._reporter.stop(_LAST_WORDS_SECONDS)
        await self._wait_for_claims()
        await self._wait_for_work(seconds)
        await self._cut_off_work()
        # One bound for all that is left to be written: a store that is away cannot hold up the end for long.
        self._write_until = self._node.clock.elapsed() + _LAST_WRITES_SECONDS
        await self._write_last_outcomes()
        releasing.cancel()
        await self._heartbeat.stop()
        await self._leave()
        await self._node.hooks.drain(_LAST_WORDS_SECONDS)
        self._capture.remove()
        self._node.summary.flush()
        log.info("node %s has stopped", self._node.id)
        if left := self._left_behind():
            log.error("still running after the stop, until the process ends: %s", ", ".join(left))

    async def know(
        self,
        works: Mapping[str, Work],
        declares: Mapping[str, str],
        senders: Mapping[str, Sender],
        sources: Sequence[ReportSource],
        leaves: Mapping[str, str],
    ) -> None:
        """Other tasks and declarations from now on, without a stop; and how those that dispatch reach their queues.
        May be repeated when the store was away."""
        node = self._node
        # No claim is asked for in between: it would be for tasks of before, and what it brings under terms of before.
        async with node.claiming:
            _log_left_tasks({task: driver for task, driver in leaves.items() if node.leaves.get(task) != driver})
            node.know(works, declares, senders, sources, leaves)
            await node.store.join(node.joining())
        self._look_again()
        self._delivery.look_again()
        self._report_loop.wake()

    @property
    def node_id(self) -> str:
        """The incarnation under which it is known now."""
        return self._node.id

    async def declare(self, declares: Mapping[str, str]) -> None:
        """Say that this node declares these, its tasks being as they are."""
        node = self._node
        node.declares = dict(declares)
        await node.store.join(node.joining())

    def drivers_at_work(self) -> list[Driver]:
        """Of all runs that it holds, also of those that it has given up on and that have not come back."""
        return [attempt.work.driver for attempt in (*self._node.hold, *self._node.hold.abandoned)]

    def tasks_at_work(self) -> list[str]:
        """Their names, each once, in order."""
        return sorted({each.run.task for each in self._node.hold if not each.is_over})

    def write_progress(self) -> bool:
        """Have what running jobs have logged and reported written now. False where nothing runs."""
        if len(self._node.hold):
            self._progress_loop.wake()
        return bool(len(self._node.hold))

    def abandon(self) -> None:
        """After its event loop has ended under it."""
        self._capture.remove()

    def wake_fires(self) -> None:
        """A schedule was added or changed here."""
        self._recorder.look_at_all()
        self._fire_loop.wake()

    def wake_runs(self) -> None:
        """A run was enqueued here."""
        self._worker.queue_has_grown()

    def wake_messages(self) -> None:
        """A message was put into the outbox here."""
        self._delivery.look_again()

    def cancel(self, run_ids: list[str]) -> None:
        """Stop these runs at once if they are ours; the beat would bring the request later."""
        for attempt in self._node.hold.with_ids(set(run_ids)) if run_ids else ():
            self._worker.stop(attempt, Stop.REQUESTED)

    def hurry(self) -> None:
        """Do not wait for running work any longer."""
        self._is_hurried.set()

    @property
    def is_moving(self) -> bool:
        """Less than health: a store that is away, or a loop that fails, does not count. Safe from any thread."""
        return self._heartbeat.is_moving

    def health(self) -> EngineHealth:
        now = self._node.clock.elapsed()
        loops = tuple(loop.health() for loop in self._loops)
        lease_left = self._node.trusted_until - now
        is_healthy = all(loop.is_healthy for loop in loops) and self._heartbeat.is_pulse_fresh and lease_left > 0
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
            return  # of an incarnation that is over
        if not beat.is_alive:
            if not self._node.is_closed:  # one that comes back after we have left tells of that
                self._begin_rebirth()
            return
        self.cancel(beat.cancels)
        if self._clocks.heard(beat, sent):
            # The one looks at the ledger, the other learns the store's time anew.
            self._sweep_loop.wake()
            self._duty_loop.wake()
        self._recoverer.heard(beat, sent)
        self._recovery_loop.wake()
        if beat.has_free_duties and self._duties.wants_more:
            self._duty_loop.wake()
        # Messages of dead nodes are due again.
        self._delivery.look_again()

    def _on_silence(self) -> None:
        """No beat went through. What must not run beside its re-run is stopped while the lease still holds."""
        if self._node.is_trusted:
            return
        self._duties.stop_all("the store has been silent for too long")
        for attempt in self._node.hold:
            if attempt.work.on_unreachable == "stop":
                self._worker.stop(attempt, Stop.UNREACHABLE)

    def _on_moving(self) -> None:
        """The event loop was blocked for so long that its duties were told to stop, and perhaps resigned."""
        self._duties.forget_all("the event loop was blocked")
        self._duty_loop.wake()

    def _on_replaced(self, error: StoreReplaced) -> None:
        if not self._is_replaced:
            self._is_replaced = True
            log.critical("this node takes no new work: %s", error)
            self.on_replaced(error)

    def _begin_rebirth(self) -> None:
        if self._rebirth is None or self._rebirth.done():
            self._rebirth = asyncio.get_running_loop().create_task(self._be_reborn(), name="evertick rebirth")

    async def _be_reborn(self) -> None:
        """We were declared dead: everything we hold may run elsewhere by now. Begin anew under another id."""
        node = self._node
        async with node.claiming:
            log.error("node %s was declared dead: its runs are stopped, and it starts again", node.id)
            for attempt in node.hold:
                if attempt.node == node.id:
                    self._worker.stop(attempt, Stop.LOST)
            self._duties.forget_all("this node was declared dead")
            node.reborn()
            try:
                await node.store.join(node.joining())
            except StoreUnavailable as error:
                log.warning("the new incarnation could not join yet: %s", error)
                return
            self._recoverer.begin_anew()
            self._clocks.begin_anew()
        self._work_loop.wake()

    def _on_death(self) -> None:
        self._duty_loop.wake()
        self._delivery.look_again()

    # --- what may have become due

    def _look_again(self) -> None:
        # Runs first: the loop that is woken first sends its statement first, and a caller may wait for a start.
        self._worker.queue_has_grown()
        self._fire_loop.wake()

    async def _watch_store(self) -> float | None:
        news = await self._node.store.changed(self._node.app, self._settings.poll)
        if news is None:
            return 0.0
        if news == "runs":  # most news by far; nothing else needs a look for them
            self._worker.queue_has_grown()
            return _WOKEN_LEAST_SECONDS
        self._recorder.look_at_all()
        self._look_again()
        self._delivery.look_again()
        if self._duties.wants_more:
            self._duty_loop.wake()
        return _WOKEN_LEAST_SECONDS

    # --- the end

    async def _release_duties(self) -> asyncio.Task[None]:
        """First of all: others wait for them. Those whose function does not stop at once are resigned when it has."""
        task = asyncio.get_running_loop().create_task(self._duties.hand_over(), name="evertick hand-over")
        await asyncio.wait({task}, timeout=_LAST_WORDS_SECONDS)
        return task

    async def _wait_for_claims(self) -> None:
        """A claim that is under way will be answered, and its runs started; a later claim sees the drain."""
        try:
            async with asyncio.timeout(_LAST_WORDS_SECONDS), self._node.claiming:
                return
        except TimeoutError:
            log.warning("a claim is still unanswered; what it brings will not be waited for")

    async def _wait_for_work(self, seconds: float) -> None:
        runs = {attempt.task for attempt in self._at_work() if attempt.task is not None}
        tasks: set[asyncio.Task[Any]] = runs | self._delivery.under_way | self._duties.under_way
        if not tasks or seconds <= 0:
            return
        log.info("waiting up to %g s for %s", seconds, self.under_way or "what is under way")
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
            await asyncio.wait(tasks, timeout=_LAST_WORDS_SECONDS)
        for attempt in self._at_work():
            self._worker.abandon(attempt)

    async def _write_last_outcomes(self) -> None:
        """The finish loop writes until nothing is left, or time is up."""
        for loop in (self._progress_loop, self._recovery_loop, self._auto_pause_loop):
            loop.end()
        # A claim that is answered as late as this has runs to be given back.
        while (len(self._finisher) or self._delivery.unsettled or self._is_claiming()) and self._seconds_left() > 0:
            self._finish_loop.wake()
            self._delivery_loop.wake()
            await asyncio.sleep(0.01)
        if len(self._finisher):
            log.error(
                "%d outcomes could not be written before the end: those runs will be run again", len(self._finisher)
            )
        self._finish_loop.end()
        self._delivery_loop.end()
        await asyncio.wait(self._tasks, timeout=self._seconds_left())
        for task in self._tasks:
            task.cancel()

    async def _leave(self) -> None:
        try:
            async with asyncio.timeout(max(self._seconds_left(), _LAST_WORDS_SECONDS)):
                await self._node.store.leave(self._node.id)
        except TimeoutError:
            log.warning("could not sign off: the store did not answer in time; the lease will run out by itself")
        except StoreUnavailable as error:
            log.warning("could not sign off (%s); the lease will run out by itself", error)

    @property
    def under_way(self) -> str:
        """The work that a stop waits for, in words: "2 jobs (report, slow) and 1 duty (index)"; empty for nothing."""
        jobs = [attempt.run.schedule_key or attempt.run.task for attempt in self._at_work() if attempt.has_slot]
        # Duties of Evertick's own end at once.
        duties = [name for name in self._duties.names_under_way if not name.startswith("evertick.")]
        channels = self._delivery.channels_under_way if self._delivery.under_way else []
        named = [("job", "jobs", jobs), ("duty", "duties", duties), ("delivery", "deliveries", channels)]
        return " and ".join(_counted(one, many, names) for one, many, names in named if names)

    def _left_behind(self) -> list[str]:
        """Work that nothing but the end of the process can stop."""
        runs = [f"run {attempt.run.id} of {attempt.run.task!r}" for attempt in self._node.hold.abandoned]
        duties = [f"duty {name!r}" for name in self._duties.names_under_way]
        deliveries = [f"a delivery of {channel!r}" for channel in self._delivery.channels_under_way]
        return runs + duties + deliveries

    def _is_claiming(self) -> bool:
        return self._node.claiming.locked()

    def _seconds_left(self) -> float:
        return max(self._write_until - self._node.clock.elapsed(), 0.0)

    def _at_work(self) -> list[Attempt]:
        return [attempt for attempt in self._node.hold if not attempt.is_over and not attempt.is_abandoned]


def _counted(one: str, many: str, names: list[str]) -> str:
    different = list(dict.fromkeys(names))
    more = ", …" if len(different) > _NAMED_MOST else ""
    return f"{len(names)} {one if len(names) == 1 else many} ({', '.join(different[:_NAMED_MOST])}{more})"


def _ago(then: float | None, now: float) -> float | None:
    return None if then is None else now - then


def _log_left_tasks(leaves: Mapping[str, str]) -> None:
    """One line for each driver: a node may leave thousands to others."""
    by_driver: dict[str, list[str]] = {}
    for task, driver in leaves.items():
        by_driver.setdefault(driver, []).append(task)
    for driver, tasks in by_driver.items():
        more = len(tasks) - _NAMED_MOST
        named = ", ".join(tasks[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
        needs = f"job {named} needs" if len(tasks) == 1 else f"jobs {named} need"
        log.info("%s the driver %s, which is not enabled here: left to other nodes", needs, driver)
