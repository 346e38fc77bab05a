"""The one runner of all background loops.

A step does its work and returns how long to rest: seconds, or None for "until something wakes me". The runner knows
nothing else. A step that fails is tried again, later each time; nothing it raises ends the loop. It works again when a
step came back that has done something: one that found that it was not its time yet says so by `Idle`.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable

import msgspec

from evertick.clock import Clock
from evertick.engine.loops import LoopKind
from evertick.errors import EvertickError, StoreReplaced, StoreUnavailable
from evertick.text.log_level import TRACE

__all__ = ["UNTIL_WOKEN", "Idle", "Loop", "LoopHealth"]

log = logging.getLogger("evertick.engine")

_BACKOFF_FIRST, _BACKOFF_MOST = 0.1, 5.0
# The rest of loops that look only when something happens here, or when they said so themselves: an idle node does not
# poll for what it would hear of.
UNTIL_WOKEN = 3600.0
# A step that has not come back after this long hangs.
STALLED_SECONDS = 60.0
# A loop may fail this long (a store that restarts) before the node calls itself unhealthy.
FAILING_SECONDS = 30.0
# What does not come from the store will not pass by itself: something here is broken.
BROKEN_SECONDS = 10.0
# A loop that fails now and then, and not for long, says so once in a while.
_TOLD_SECONDS, _SHORT_SECONDS = 60.0, 5.0


class Idle(float):
    """How long to rest after a step that has not asked the store, and so cannot know whether it is back."""


class LoopHealth(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    is_healthy: bool
    # Seconds since a step last came back without an error; None: never.
    last_success_seconds_ago: float | None
    # What the last step raised, while it keeps failing.
    error: str | None


class Loop:
    """Runs one step over and over until it is told to end."""

    def __init__(
        self, kind: LoopKind, step: Callable[[], Awaitable[float | None]], clock: Clock, *, rest_most: float
    ) -> None:
        self.name = kind.name
        # Called when the files of the store are gone: nothing here will work again.
        self.on_replaced: Callable[[StoreReplaced], None] = lambda error: None
        self._step = step
        self._clock = clock
        self._rest_most = rest_most
        self._is_woken = False
        self._is_ended = False
        # What it rests on.
        self._rest_over: asyncio.Future[None] | None = None
        self._failures = 0
        self._failing_since: float | None = None
        # When it last said that it waits, and how often it has waited since without a word.
        self._told_at: float | None = None
        self._untold = 0
        self._is_told = False
        self._is_broken = False
        self._is_backing_off = False
        self._busy_since: float | None = None
        self._succeeded_at: float | None = None
        self._next_at: float | None = None
        self._error: str | None = None

    async def run(self) -> None:
        while not self._is_ended:
            await self._rest(await self._try())

    def wake(self) -> None:
        """Take the next step now. May be called at any time, any number of times."""
        if not self._is_woken:
            self._is_woken = True
            if self._may_rise:
                self._rise()

    def end(self) -> None:
        self._is_ended = True
        self._rise()

    async def _try(self) -> float | None:
        self._is_woken = False
        self._busy_since, self._next_at = (since := self._clock.elapsed()), None
        try:
            delay = await self._step()
        except StoreReplaced as error:
            # Said once for the node, and not by each loop.
            self.on_replaced(error)
            return self._failed(error, "")
        except StoreUnavailable as error:
            return self._failed(error, "the store cannot be used")
        except Exception as error:
            log.exception("the %s loop failed; it goes on", self.name)
            return self._failed(error, "a step failed")
        finally:
            self._busy_since = None
        if log.isEnabledFor(TRACE):
            seconds = self._clock.elapsed() - since
            log.log(TRACE, "the %s loop took a step of %.1f ms and rests for %s s", self.name, seconds * 1e3, delay)
        self._is_backing_off = False
        if not (isinstance(delay, Idle) and self._failing_since is not None):
            self._succeeded()
        return delay

    async def _rest(self, delay: float | None) -> None:
        """Wait, or be woken."""
        if delay is not None and delay <= 0:
            await asyncio.sleep(0)
            return
        if self._may_rise:
            return
        seconds = self._rest_most if delay is None else min(delay, self._rest_most)
        is_until_woken = delay is None and self._rest_most >= UNTIL_WOKEN
        self._next_at = None if is_until_woken else self._clock.elapsed() + seconds
        loop = asyncio.get_running_loop()
        # A timer and a future: `asyncio.timeout` ends a rest by an exception, which costs more.
        self._rest_over = loop.create_future()
        # uvloop counts in milliseconds and rounds: half a one too early, a step finds nothing due, and takes another.
        rounded = 0.0 if isinstance(loop, asyncio.BaseEventLoop) else 0.0005
        timer = loop.call_later(seconds + rounded, self._rise)
        try:
            await self._rest_over
        finally:
            timer.cancel()

    @property
    def _may_rise(self) -> bool:
        """Before its time. Not after a failure: more to do must not mean more knocking at a broken store."""
        return self._is_ended or (self._is_woken and not self._is_backing_off)

    def _rise(self) -> None:
        if self._rest_over is not None and not self._rest_over.done():
            self._rest_over.set_result(None)

    def _succeeded(self) -> None:
        if self._failing_since is not None:
            seconds = self._clock.elapsed() - self._failing_since
            log.log(self._level, "the %s loop works again after %.1f s", self.name, seconds)
        self._succeeded_at = self._clock.elapsed()
        self._failing_since, self._failures, self._error = None, 0, None

    def _failed(self, error: Exception, what: str) -> float:
        self._is_backing_off = True
        if self._failing_since is None:
            self._failing_since, self._is_told = self._clock.elapsed(), False
        if what and not self._is_told:
            self._tell_that_it_waits(f"{what}: {error}", self._failing_since)
        self._is_broken = not isinstance(error, StoreUnavailable)
        # What we raise on purpose is a sentence; of anything else its type says half.
        self._error = str(error) if isinstance(error, EvertickError) else f"{type(error).__name__}: {error}"
        delay = min(_BACKOFF_FIRST * 2.0**self._failures, _BACKOFF_MOST)
        self._failures = min(self._failures + 1, 16)
        # Many nodes lose a store at one moment; they must not come back at one moment.
        return delay * (0.5 + self._clock.uniform())

    def _tell_that_it_waits(self, why: str, since: float) -> None:
        now, told_at = self._clock.elapsed(), self._told_at
        is_lately_told = told_at is not None and now - told_at < _TOLD_SECONDS
        if is_lately_told and now - since < _SHORT_SECONDS:
            self._untold += since == now
            return
        again = f" (and {self._untold} times since it last said so)" if self._untold else ""
        self._told_at, self._untold, self._is_told = now, 0, True
        log.warning("the %s loop waits: %s%s", self.name, why, again)

    @property
    def _level(self) -> int:
        """The end of a wait is told as loud as its beginning."""
        return logging.WARNING if self._is_told else logging.DEBUG

    def tick(self) -> tuple[int | None, int | None]:
        """Microseconds since the last step that came back well, and until the next one that it takes by itself.

        May be asked from another thread.
        """
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
