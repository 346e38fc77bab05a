"""The heartbeat: one small write that extends the lease of the node.

It has its own thread and connection, so that a job which blocks the event loop does not cost the node its lease. The
heartbeat thread also checks that the event loop responds. If it does not, the thread logs the stack after 5 s, resigns
duties after a minute, and writes the death of the node after `stall_limit`, so that other nodes take over.

With a virtual clock the same coroutine runs on the engine's event loop.
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

# How often the event loop confirms that it responds.
RESPONSE_SECONDS = 1.0
# Logged as a warning; a busy machine causes shorter delays.
WARN_BLOCKED_SECONDS = 5.0
# Long enough to delay other jobs: the heartbeat reports the job to the store, without a log line.
REPORT_BLOCKED_SECONDS = 2.0
# Logged as an error; duties are resigned.
BLOCKED_SECONDS = 60.0
# For how long heartbeats name a job that blocked the event loop, and how many such jobs.
_BLOCKERS_SECONDS, _BLOCKERS_MOST = 3600.0, 5
# A failed heartbeat is repeated after this share of the interval, since a lease has only a few intervals.
_RETRY_SHARE = 3


class Heartbeat:
    """Extends the lease until it is stopped, and passes each answer to the engine."""

    def __init__(
        self,
        node: LocalNode,
        *,
        interval: float,
        stall_limit: float,
        on_beat: Callable[[str, Beat, float], None],
        on_heartbeat_failed: Callable[[], None],
        on_blocked: Callable[[], None],
        on_moving: Callable[[], None],
        on_stalled: Callable[[], None],
        in_thread: bool,
        ticks: Callable[[], Ticks],
    ) -> None:
        self._node = node
        self._interval = interval
        self._stall_limit = stall_limit
        self._on_beat, self._on_silence, self._on_stalled = on_beat, on_heartbeat_failed, on_stalled
        # `on_blocked` is called in the heartbeat thread, `on_moving` on the event loop when it responds again.
        self._on_blocked, self._on_moving = on_blocked, on_moving
        self._in_thread = in_thread
        self._ticks = ticks
        self._ending: asyncio.Event | None = None
        self._beating_loop: asyncio.AbstractEventLoop | None = None
        self._task: asyncio.Task[None] | None = None
        self._thread: threading.Thread | None = None
        self._pulse_at = node.clock.elapsed()
        self._pulse_timer: asyncio.TimerHandle | None = None
        self._has_warned = self._is_blocked = self._has_resigned = False
        # By job, from when to when it blocked the event loop, by `clock.elapsed`; no end: it still does.
        self._blockers: dict[str, tuple[float, float | None]] = {}
        # Since when heartbeats fail, by `clock.elapsed`, and with which type of error.
        self._failing_since: float | None = None
        self._failing_with: type[Exception] | None = None

    def start(self) -> None:
        self._main_loop = asyncio.get_running_loop()
        self._main_thread = threading.get_ident()
        if self._in_thread:
            self._confirm_response()
            ready = threading.Event()
            self._thread = threading.Thread(
                target=self._run_in_thread, args=(ready,), name="evertick beat", daemon=True
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
    def event_loop_responds(self) -> bool:
        """Whether the event loop has responded recently; always true if the heartbeat runs on that loop."""
        return not self._in_thread or self._node.clock.elapsed() - self._pulse_at < BLOCKED_SECONDS

    @property
    def is_moving(self) -> bool:
        """Whether the event loop responds and the heartbeat thread is alive, regardless of the store."""
        return self.event_loop_responds and (self._thread is None or self._thread.is_alive())

    def _run_in_thread(self, ready: threading.Event) -> None:
        async def main() -> None:
            self._ending, self._beating_loop = asyncio.Event(), asyncio.get_running_loop()
            ready.set()
            await self._beat_on(self._ending)

        asyncio.run(main())

    async def _beat_on(self, ending: asyncio.Event) -> None:
        session: HeartbeatSession | None = None
        while not ending.is_set():
            rest = self._interval
            try:
                session = session or await self._node.store.heartbeat_session()
                await self._beat(session)
                if self._in_thread:
                    await self._check_event_loop(session)
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
        # Counting the lease from before the request can only stop work too early, never too late.
        node, sent = self._node.id, self._node.clock.elapsed()
        ticks = {**self._ticks(), **self._blocking_ticks(), BEAT.name: (0, round(self._interval * 1e6))}
        beat = await session.beat(node, self._node.lease, ticks)
        self._succeeded()
        if log.isEnabledFor(TRACE):
            trace(log, self._node.clock.elapsed() - sent, "heartbeat answered (%d runs to cancel)", len(beat.cancels))
        if beat.is_alive and node == self._node.id:
            # Not on the event loop: while it is blocked, a duty in a thread must see that the lease is valid.
            self._node.trusted_until = sent + self._node.lease / 1e6
        self._post(self._on_beat, node, beat, sent)

    def _failed(self, error: Exception) -> None:
        """Log it once per outage and type of error."""
        if self._failing_since is None:
            self._failing_since = self._node.clock.elapsed()
        if self._failing_with is not type(error):
            exc_info = None if isinstance(error, EvertickError) else error
            log.warning("node %s: heartbeat failed, retrying: %s", self._node.name, error, exc_info=exc_info)
        self._failing_with = type(error)

    def _succeeded(self) -> None:
        if self._failing_since is not None:
            seconds = self._node.clock.elapsed() - self._failing_since
            log.warning("node %s: heartbeat recovered after %.1f s", self._node.name, seconds)
        self._failing_since = self._failing_with = None

    def _post(self, callback: Callable[..., None], *args: object) -> None:
        if not self._in_thread:
            callback(*args)
            return
        with contextlib.suppress(RuntimeError):  # the engine's loop has ended
            self._main_loop.call_soon_threadsafe(callback, *args)

    # --- does the event loop respond?

    def _confirm_response(self) -> None:
        """Runs on the event loop."""
        blocked_since, self._pulse_at = self._pulse_at, (now := self._node.clock.elapsed())
        for name, (since, until) in list(self._blockers.items()):
            if until is None:
                self._blockers[name] = (since, now)
        if self._has_warned:
            log.warning("node %s: event loop responds again after %.1f s", self._node.name, now - blocked_since)
        self._has_warned = self._is_blocked = self._has_resigned = False
        self._pulse_timer = self._main_loop.call_later(RESPONSE_SECONDS, self._confirm_response)

    async def _check_event_loop(self, session: HeartbeatSession) -> None:
        silent = self._node.clock.elapsed() - self._pulse_at
        if silent > REPORT_BLOCKED_SECONDS:
            self._note_blocker()
        if silent > WARN_BLOCKED_SECONDS and not self._has_warned:
            self._has_warned = True
            log.warning(
                "node %s: event loop blocked for %.0f s; write a blocking job as a plain function, which runs in a "
                "thread. Stack:\n%s",
                self._node.name,
                silent,
                self._stack(),
            )
        if silent > BLOCKED_SECONDS and not self._is_blocked:
            self._is_blocked = True
            what = "node %s: event loop blocked for %.0f s; claims stop, duties will be resigned. Stack:\n%s"
            log.error(what, self._node.name, silent, self._stack())
            # Duties in threads have one heartbeat to stop before they are resigned.
            self._on_blocked()
            self._post(self._on_moving)
        elif self._is_blocked and not self._has_resigned:
            await session.resign(self._node.id)
            self._has_resigned = True
            # The event loop may have recovered meanwhile and restarted its duties.
            self._post(self._on_moving)
        if silent > self._stall_limit:
            what = "node %s: event loop blocked for %.0f s, beyond stall_limit; declaring this node dead"
            log.critical(what, self._node.name, silent)
            await session.die(self._node.id)
            self._on_stalled()

    def _note_blocker(self) -> None:
        """Remember the job that blocks the event loop, for the doctor."""
        self._blockers.pop(name := self._blocking_job(), None)
        while len(self._blockers) >= _BLOCKERS_MOST:
            del self._blockers[next(iter(self._blockers))]
        self._blockers[name] = (self._pulse_at, None)

    def _blocking_job(self) -> str:
        """The job that blocks the event loop, or the task if it is no job."""
        task = asyncio.current_task(self._main_loop)
        with contextlib.suppress(RuntimeError):  # the event loop may recover and change the hold meanwhile
            for attempt in self._node.hold:
                if task is not None and attempt.task is task:
                    return attempt.run.schedule_key or attempt.run.task
        return "code that is no job" if task is None else f"the asyncio task {task.get_name()!r}, which is no job"

    def _blocking_ticks(self) -> Ticks:
        now, ticks = self._node.clock.elapsed(), dict[str, tuple[int | None, int | None]]()
        for name, (since, until) in list(self._blockers.items()):
            if until is None or now - until < _BLOCKERS_SECONDS:
                ticks[blocking_tick(name)] = (
                    round((now - since) * 1e6),
                    None if until is None else round((until - now) * 1e6),
                )
        return ticks

    def _stack(self) -> str:
        frame = sys._current_frames().get(self._main_thread)
        task = asyncio.current_task(self._main_loop)
        name = "no task" if task is None else task.get_name()
        return f"task: {name}\n" + ("" if frame is None else "".join(traceback.format_stack(frame)))
