"""The runner of all background loops.

A step does its work and returns how long to wait: seconds, or None for "until woken". The runner knows nothing else.
A failed step is retried with back-off, and nothing that it raises ends the loop. The loop has recovered when a step
returns anything but `Idle`.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Awaitable, Callable

import msgspec

from evertick.clock import Clock
from evertick.engine.loops import LoopKind
from evertick.errors import EvertickError, StoreReplaced, StoreUnavailable
from evertick.text.log_level import TRACE, LogSummary, such_as

__all__ = ["UNTIL_WOKEN", "Idle", "Loop", "LoopHealth"]

log = logging.getLogger("evertick.engine")

_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 5.0
# The longest wait of loops that need no poll: something in this process wakes them.
UNTIL_WOKEN = 3600.0
# A step that takes longer is stuck.
STALLED_SECONDS = 60.0
# Failing longer than this makes the node unhealthy; a restart of the store takes less.
FAILING_SECONDS = 30.0
# The same for errors that are not the store's: they are unlikely to pass.
BROKEN_SECONDS = 10.0
# Outages shorter than _SHORT_SECONDS cause at most one warning in _WARN_SECONDS.
_WARN_SECONDS, _SHORT_SECONDS = 60.0, 5.0


class Idle(float):
    """How long to wait after a step that did not use the store, so that it does not prove that the store is back."""


class LoopHealth(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_healthy: bool
    # Seconds since a step last succeeded; None: never.
    last_success_seconds_ago: float | None
    # The error of the last step, while the loop is failing.
    error: str | None


class Loop:
    """Repeats one step until it is ended."""

    def __init__(
        self, kind: LoopKind, step: Callable[[], Awaitable[float | None]], clock: Clock, *, rest_most: float
    ) -> None:
        self.name = kind.name
        # Called when the files of the store are gone: the node cannot recover.
        self.on_replaced: Callable[[StoreReplaced], None] = lambda error: None
        self._step = step
        self._clock = clock
        self._wait_most = rest_most
        self._is_woken = False
        self._is_ended = False
        # Resolved to end the wait between two steps.
        self._wake_up: asyncio.Future[None] | None = None
        self._failures = 0
        self._failing_since: float | None = None
        # The last warning about the store, and the outages since then that had none.
        self._warned_at: float | None = None
        self._suppressed = 0
        # Whether the current failure was logged, so that its end is logged as well.
        self._has_logged = False
        self._summary = LogSummary(clock.elapsed)
        self._is_broken = False
        self._is_backing_off = False
        self._busy_since: float | None = None
        self._succeeded_at: float | None = None
        self._next_at: float | None = None
        self._error: str | None = None

    async def run(self) -> None:
        try:
            while not self._is_ended:
                await self._wait(await self._try())
        finally:
            self._summary.flush()

    def wake(self) -> None:
        """Take the next step now. May be called at any time, any number of times."""
        if not self._is_woken:
            self._is_woken = True
            if self._skips_wait:
                self._end_wait()

    def end(self) -> None:
        self._is_ended = True
        self._end_wait()

    async def _try(self) -> float | None:
        self._is_woken = False
        self._busy_since, self._next_at = (since := self._clock.elapsed()), None
        try:
            delay = await self._step()
        except StoreReplaced as error:
            # The node logs it, once for all loops.
            self.on_replaced(error)
            return self._failed(error)
        except StoreUnavailable as error:
            delay = self._failed(error)
            self._warn_unavailable(error)
            return delay
        except Exception as error:
            delay = self._failed(error)
            self._log_failure(error)
            return delay
        finally:
            self._busy_since = None
        if log.isEnabledFor(TRACE):
            seconds = self._clock.elapsed() - since
            log.log(TRACE, "loop %s: step took %.1f ms; next in %s s", self.name, seconds * 1e3, delay)
        self._is_backing_off = False
        if not (isinstance(delay, Idle) and self._failing_since is not None):
            self._succeeded()
        return delay

    async def _wait(self, delay: float | None) -> None:
        if delay is not None and delay <= 0:
            await asyncio.sleep(0)
            return
        if self._skips_wait:
            return
        seconds = self._wait_most if delay is None else min(delay, self._wait_most)
        is_until_woken = delay is None and self._wait_most >= UNTIL_WOKEN
        self._next_at = None if is_until_woken else self._clock.elapsed() + seconds
        loop = asyncio.get_running_loop()
        # A timer and a future: `asyncio.timeout` raises an exception at the end of each wait, which costs more.
        self._wake_up = loop.create_future()
        # uvloop rounds to milliseconds: half a millisecond too early, a step finds nothing due and must be repeated.
        rounded = 0.0 if isinstance(loop, asyncio.BaseEventLoop) else 0.0005
        timer = loop.call_later(seconds + rounded, self._end_wait)
        try:
            await self._wake_up
        finally:
            timer.cancel()

    @property
    def _skips_wait(self) -> bool:
        """A wake-up must not shorten the back-off."""
        return self._is_ended or (self._is_woken and not self._is_backing_off)

    def _end_wait(self) -> None:
        if self._wake_up is not None and not self._wake_up.done():
            self._wake_up.set_result(None)

    def _succeeded(self) -> None:
        if self._failing_since is not None:
            self._suppressed += not (self._has_logged or self._is_broken)
            level = logging.WARNING if self._has_logged else logging.DEBUG
            log.log(level, "loop %s: recovered after %.1f s", self.name, self._clock.elapsed() - self._failing_since)
        self._succeeded_at = self._clock.elapsed()
        self._failing_since, self._failures, self._error = None, 0, None

    def _failed(self, error: Exception) -> float:
        self._is_backing_off = True
        if self._failing_since is None:
            self._failing_since, self._has_logged = self._clock.elapsed(), False
        self._is_broken = not isinstance(error, StoreUnavailable)
        self._error = _error_line(error)
        delay = min(_BACKOFF_FIRST * 2.0**self._failures, _BACKOFF_MOST)
        self._failures = min(self._failures + 1, 16)
        # Many nodes lose a store at the same moment; their retries must not coincide.
        return delay * (0.5 + self._clock.uniform())

    def _warn_unavailable(self, error: StoreUnavailable) -> None:
        """Once per outage; of short outages that repeat, once in a while."""
        if self._has_logged or self._failing_since is None:
            return
        now = self._clock.elapsed()
        is_repeated = self._warned_at is not None and now - self._warned_at < _WARN_SECONDS
        if is_repeated and now - self._failing_since < _SHORT_SECONDS:
            return
        more = f" ({self._suppressed} more short outages since the last warning)" if self._suppressed else ""
        self._warned_at, self._suppressed, self._has_logged = now, 0, True
        log.warning("loop %s: store unavailable, retrying: %s%s", self.name, error, more)

    def _log_failure(self, error: Exception) -> None:
        """The first error of a type with its traceback, then a count per interval."""
        words = functools.partial(_failures_words, self.name, _error_line(error))
        say = functools.partial(self._log_error, error)
        self._summary.tell(type(error).__name__, "", log, logging.ERROR, say, words, lines=1)

    def _log_error(self, error: Exception) -> None:
        self._has_logged = True
        log.error("loop %s: step failed, retrying", self.name, exc_info=error)

    def tick(self) -> tuple[int | None, int | None]:
        """Microseconds since the last step that succeeded, and until the next one that is not woken. Thread-safe."""
        now, last, ahead = self._clock.elapsed(), self._succeeded_at, self._next_at
        return (
            None if last is None else round((now - last) * 1e6),
            None if ahead is None else max(round((ahead - now) * 1e6), 0),
        )

    def health(self) -> LoopHealth:
        now = self._clock.elapsed()
        is_stalled = self._busy_since is not None and now - self._busy_since > STALLED_SECONDS
        may_fail = BROKEN_SECONDS if self._is_broken else FAILING_SECONDS
        is_failing = self._failing_since is not None and now - self._failing_since > may_fail
        return LoopHealth(
            name=self.name,
            is_healthy=not is_stalled and not is_failing,
            last_success_seconds_ago=None if self._succeeded_at is None else now - self._succeeded_at,
            error=self._error,
        )


def _error_line(error: Exception) -> str:
    return str(error) if isinstance(error, EvertickError) else f"{type(error).__name__}: {error}"


def _failures_words(name: str, error: str, count: int, names: list[str], seconds: float | None) -> str:
    return f"loop {name}: {count} more steps failed{such_as(names, seconds)} ({error})"
