"""The heartbeat: one small write that keeps all of a node's runs its own.

It has its own thread and its own connection, so that no job can starve it: a job that blocks the event loop for a
minute costs the node nothing but that minute. It watches the pulse of the event loop in turn: it soon tells who holds
the loop up, with the stack; later it gives up the duties; and after a long while it ends the node by its own hand, so
that others may go on.

Where time is virtual the same coroutine runs on the engine's loop instead of a thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import sys
import threading
import traceback
from collections.abc import Callable

from evertick.engine.loops import BEAT
from evertick.engine.node import LocalNode
from evertick.errors import EvertickError
from evertick.model import blocking_tick
from evertick.store.base import Beat, HeartbeatSession, Ticks
from evertick.text.log_level import TRACE, trace

__all__ = ["Heartbeat"]

log = logging.getLogger("evertick.beat")

PULSE_SECONDS = 1.0
# Longer than a busy machine takes from one pulse to the next.
HELD_UP_SECONDS = 5.0
# A block of this length makes neighbours late: the ledger names the job, the log stays silent.
NOTED_SECONDS = 2.0
BLOCKED_SECONDS = 60.0
# How long heartbeats name a job that blocked the event loop, and how many of them.
_BLOCKERS_SECONDS, _BLOCKERS_MOST = 3600.0, 5
# A beat that failed is tried again this soon: there are only so many beats in a lease.
_RETRY_SHARE = 3


class Heartbeat:
    """Beats until it is stopped, and tells the engine what each beat brought."""

    def __init__(
        self,
        node: LocalNode,
        *,
        interval: float,
        stall_limit: float,
        on_beat: Callable[[str, Beat, float], None],
        on_silence: Callable[[], None],
        on_blocked: Callable[[], None],
        on_moving: Callable[[], None],
        on_stalled: Callable[[], None],
        in_thread: bool,
        ticks: Callable[[], Ticks],
    ) -> None:
        self._node = node
        self._interval = interval
        self._stall_limit = stall_limit
        self._on_beat, self._on_silence, self._on_stalled = on_beat, on_silence, on_stalled
        # Called in its own thread when the event loop is blocked; and by that loop, when it moves again.
        self._on_blocked, self._on_moving = on_blocked, on_moving
        self._in_thread = in_thread
        self._ticks = ticks
        self._ending: asyncio.Event | None = None
        self._beating_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._pulse_at = node.clock.elapsed()
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._is_told = self._is_reported = self._has_resigned = False
        # Since and until when, by `clock.elapsed`, the event loop was blocked, by what blocked it; None: it is yet.
        self._blockers: dict[str, tuple[float, float | None]] = {}
        # Since when, by `clock.elapsed`, and because of what no beat goes through.
        self._silent_since: float | None = None
        self._silent_by: type[Exception] | None = None

    def start(self) -> None:
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        if self._in_thread:
            self._feel_pulse()
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._live_in_thread, args=(ready,), name="evertick beat", daemon=True
            )
            self._thread.start()
            ready.wait()
        else:
            self._ending = asyncio.Event()
            self._task = asyncio.get_running_loop().create_task(self._beat_on(self._ending), name="evertick beat")

    async def stop(self) -> None:
        if self._pulse_timer is not None:
            self._pulse_timer.cancel()
        if self._beating_loop is not None and self._ending is not None:
            with contextlib.suppress(RuntimeError):
                self._beating_loop.call_soon_threadsafe(self._ending.set)
        elif self._ending is not None:
            self._ending.set()
        if self._thread is not None:
            await asyncio.to_thread(self._thread.join, self._interval)
        if self._task is not None:
            await self._task

    @property
    def is_pulse_fresh(self) -> bool:
        """Whether the event loop has moved lately. A heart on that very loop could not tell."""
        return not self._in_thread or self._node.clock.elapsed() - self._pulse_at < BLOCKED_SECONDS

    @property
    def is_moving(self) -> bool:
        """Whether the event loop moves and the heart is there, whatever the store says."""
        return self.is_pulse_fresh and (self._thread is None or self._thread.is_alive())

    def _live_in_thread(self, ready: threading.Event) -> None:
        async def live() -> None:
            self._ending, self._beating_loop = asyncio.Event(), asyncio.get_running_loop()
            ready.set()
            await self._beat_on(self._ending)

        asyncio.run(live())

    async def _beat_on(self, ending: asyncio.Event) -> None:
        session: HeartbeatSession | None = None
        while not ending.is_set():
            rest = self._interval
            try:
                session = session or await self._node.store.heartbeat_session()
                await self._beat(session)
                if self._in_thread:
                    await self._watch_pulse(session)
            except Exception as error:
                self._failed(error)
                self._post(self._on_silence)
                rest /= _RETRY_SHARE
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(rest):
                    await ending.wait()
        if session is not None:
            with contextlib.suppress(EvertickError):
                await session.close()

    async def _beat(self, session: HeartbeatSession) -> None:
        # The lease is counted from before the beat was sent: it can only make us stop too soon, never too late.
        node, sent = self._node.id, self._node.clock.elapsed()
        # Its own tick is this very beat.
        ticks = {**self._ticks(), **self._blocking_ticks(), BEAT.name: (0, round(self._interval * 1e6))}
        beat = await session.beat(node, self._node.lease, ticks)
        self._succeeded()
        if log.isEnabledFor(TRACE):
            trace(
                log, self._node.clock.elapsed() - sent, "the beat was answered (%d runs to cancel)", len(beat.cancels)
            )
        if beat.is_alive and node == self._node.id:
            # Here, not on the event loop: while that is blocked, a duty in a thread must not think the lease is over.
            self._node.trusted_until = sent + self._node.lease / 1e6
        self._post(self._on_beat, node, beat, sent)

    def _failed(self, error: Exception) -> None:
        """Say it once in an outage, and again when it has another cause."""
        if self._silent_since is None:
            self._silent_since = self._node.clock.elapsed()
        if self._silent_by is not type(error):
            is_ours = isinstance(error, EvertickError)
            log.warning("no beat goes through for now: %s", error, exc_info=None if is_ours else error)
        self._silent_by = type(error)

    def _succeeded(self) -> None:
        if self._silent_since is not None:
            log.warning("beats go through again after %.1f s", self._node.clock.elapsed() - self._silent_since)
        self._silent_since = self._silent_by = None

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        if not self._in_thread:
            callback(*args)
            return
        with contextlib.suppress(RuntimeError):  # the engine's loop has ended
            self._main_loop.call_soon_threadsafe(callback, *args)

    # --- the pulse of the event loop

    def _feel_pulse(self) -> None:
        self._pulse_at = now = self._node.clock.elapsed()
        for name, (since, until) in list(self._blockers.items()):
            if until is None:
                self._blockers[name] = (since, now)
        self._is_told = self._is_reported = self._has_resigned = False
        self._pulse_timer = self._main_loop.call_later(PULSE_SECONDS, self._feel_pulse)

    async def _watch_pulse(self, session: HeartbeatSession) -> None:
        silent = self._node.clock.elapsed() - self._pulse_at
        if silent > NOTED_SECONDS:
            self._note_blocker()
        if silent > HELD_UP_SECONDS and not self._is_told:
            self._is_told = True
            log.warning(
                "the event loop has not moved for %.0f s, and nothing else on it either; a job that blocks is to be a "
                "plain function, which runs in a thread. It is held up here:\n%s",
                silent,
                self._stack(),
            )
        if silent > BLOCKED_SECONDS and not self._is_reported:
            self._is_reported = True
            log.error("the event loop has not moved for %.0f s; it is blocked here:\n%s", silent, self._stack())
            # Duties stand still with it, or are what blocks it: others may do them. Those in threads get a beat to end.
            self._on_blocked()
            self._post(self._on_moving)
        elif self._is_reported and not self._has_resigned:
            await session.resign(self._node.id)
            self._has_resigned = True
            # The event loop may have moved meanwhile, and have begun again what was still its own then.
            self._post(self._on_moving)
        if silent > self._stall_limit:
            log.critical("the event loop has not moved for %.0f s: this node ends itself", silent)
            await session.die(self._node.id)
            self._on_stalled()

    def _note_blocker(self) -> None:
        """For the doctor: the ledger does not tell which of several jobs of a node holds up the others."""
        self._blockers.pop(name := self._blocking_job(), None)
        while len(self._blockers) >= _BLOCKERS_MOST:
            del self._blockers[next(iter(self._blockers))]
        self._blockers[name] = (self._pulse_at, None)

    def _blocking_job(self) -> str:
        """The job whose step does not end; or what else of the program it is."""
        task = asyncio.current_task(self._main_loop)
        with contextlib.suppress(RuntimeError):  # the loop may go on while we look
            for attempt in self._node.hold:
                if task is not None and attempt.task is task:
                    return attempt.run.schedule_key or attempt.run.task
        return "something that is no job" if task is None else f"the asyncio task {task.get_name()!r}, which is no job"

    def _blocking_ticks(self) -> Ticks:
        now, told = self._node.clock.elapsed(), dict[str, tuple[int | None, int | None]]()
        for name, (since, until) in list(self._blockers.items()):
            if until is None or now - until < _BLOCKERS_SECONDS:
                told[blocking_tick(name)] = (
                    round((now - since) * 1e6),
                    None if until is None else round((until - now) * 1e6),
                )
        return told

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._main_thread)
        task = asyncio.current_task(self._main_loop)
        name = "no task" if task is None else task.get_name()
        return f"task: {name}\n" + ("" if frame is None else "".join(traceback.format_stack(frame)))
