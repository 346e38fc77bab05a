"""One term of a duty on this node: from its taking to its end, act by act.

A periodic duty acts, and what it did and means to do next is written down after the act: who dies in the middle of one
leaves a moment that is past, and the next holder acts at once. A duty without a rhythm is one long act, begun again
with growing pauses if it ends.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from evertick.engine.node import LocalNode
from evertick.errors import Stopped, StoreUnavailable
from evertick.model.duty import DutyContext, DutyWork, Rhythm
from evertick.store.base import DutyHold, DutyTick
from evertick.text.error_line import what_was_raised
from evertick.text.error_text import error_text
from evertick.when.moment import MINUTE

__all__ = ["Term"]

log = logging.getLogger("evertick.duty")

_BACKOFF_FIRST, _BACKOFF_MOST = 1.0, 60.0
# An act that went on this long before it failed was no failed start.
_WELL_SECONDS = 60.0
# The longest sleep by the own clock before looking again how far the store's has come.
_SLEEP_MOST = 60.0
# So much later than its rhythm has it, an act was planned by a clock that was wrong.
_PUT_BACK = MINUTE


class Term:
    """Does the duty until it is told to stop."""

    def __init__(self, node: LocalNode, work: DutyWork, hold: DutyHold, store_now: Callable[[], int]) -> None:
        self._node = node
        self._work = work
        # The incarnation that took it: another one does not hold it.
        self._holder = node.id
        self._next_at, self._error = hold.next_at, hold.error
        self._store_now = store_now
        self._is_in_thread = False
        self._is_cancelled = False
        self.context = DutyContext(
            name=hold.name, term=hold.term, node=node.id, is_trusted=self._is_trusted, ask=self._ask
        )
        name = f"evertick duty {hold.name}"
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._live(), name=name)

    @property
    def name(self) -> str:
        return self._work.name

    @property
    def number(self) -> int:
        return self.context.term

    @property
    def is_stopped(self) -> bool:
        """Told to stop; it may still be at it."""
        return self.context._stopped.is_set()

    def stop(self, why: str) -> None:
        """Tell it to stop. A coroutine is cancelled, a thread is asked: what it runs in ends when it returns."""
        self.context._stop(why)
        if not self._is_in_thread and not self._is_cancelled:
            self._is_cancelled = True
            self.task.cancel()

    def _is_trusted(self) -> bool:
        return self._node.id == self._holder and self._node.is_trusted

    async def _ask(self) -> bool:
        return any(
            (duty.name, duty.node, duty.term) == (self.name, self._holder, self.number)
            for duty in await self._node.store.duties(self._node.app)
        )

    # --- acting

    async def _live(self) -> None:
        if self._work.rhythm is None:
            await self._go_on()
        else:
            await self._act_in_rhythm(self._work.rhythm)

    async def _act_in_rhythm(self, rhythm: Rhythm) -> None:
        at = rhythm.first(self._next_at, self._store_now())
        if at != self._next_at:
            await self._say(has_acted=False, next_at=at)
        while at is not None:
            at = await self._sleep_for(rhythm, at)
            if not await self._act():
                return
            at = rhythm.after(at, self._store_now())
            await self._say(has_acted=True, next_at=at)
            if self.is_stopped:
                return
        # Nothing is left to be done, and the duty is ours: nobody else need ask.
        await asyncio.Event().wait()

    async def _go_on(self) -> None:
        failures = 0
        while True:
            await self._say(has_acted=True, next_at=None)
            began = self._node.clock.elapsed()
            if not await self._act():
                return
            if self._error is None:
                self._error = "it returned; a duty without every= or when= is to go on until it is stopped"
            failures = 0 if self._node.clock.elapsed() - began > _WELL_SECONDS else failures
            pause = min(_BACKOFF_FIRST * 2.0**failures, _BACKOFF_MOST)
            failures = min(failures + 1, 16)
            why = what_was_raised(self._error)
            log.warning("duty %r has ended (%s); it begins again in %.0f s", self.name, why, pause)
            at = self._store_now() + int(pause * 1e6)
            await self._say(has_acted=False, next_at=at)
            if self.is_stopped:
                return
            await self._sleep_until(at)

    async def _act(self) -> bool:
        """Call the function. False: it was told to stop, and has stopped or not begun."""
        if self.context.cancelled:
            return False
        self._is_in_thread = not self._work.can_be_cancelled
        try:
            await self._work.call(self.context)
        except Stopped:
            if self.context._has_seen_stop:
                return False
            self._error = "Stopped"
        except GeneratorExit:
            raise
        except BaseException as error:  # also a `sys.exit()`, which would end the whole event loop
            if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
                raise  # meant for us, not raised by something that the function awaited
            self._failed(error)
        else:
            self._error = None
        finally:
            self._is_in_thread = False
        # Who has seen that it is to stop, and returned, has stopped; who never looked has done its work.
        return not self.context._has_seen_stop

    def _failed(self, error: BaseException) -> None:
        before, self._error = self._error, error_text(error)
        # The same at every tick would bury what else is in the log.
        is_known = self._error == before
        said = f" again: {what_was_raised(self._error)}" if is_known else f":\n{self._error}"
        log.error("duty %r failed under term %d%s", self.name, self.number, said)

    async def _say(self, *, has_acted: bool, next_at: int | None) -> None:
        tick = DutyTick(name=self.name, term=self.number, has_acted=has_acted, next_at=next_at, error=self._error)
        try:
            is_ours = await self._node.store.tick_duty(self._node.app, self._holder, tick)
        except Exception as error:
            # What it said is for people and successors; whether we may go on is for the lease to say. Nothing that is
            # wrong with it may cost the duty its rhythm, which begins anew with a new term.
            is_strange = not isinstance(error, StoreUnavailable)
            log.warning("what duty %r did could not be written down: %s", self.name, error, exc_info=is_strange)
            return
        if not is_ours:
            self.stop("another node holds it")

    async def _sleep_for(self, rhythm: Rhythm, at: int) -> int:
        """Until the next act, which comes sooner if the store's clock was put back. Answers when it was planned for."""
        while (left := at - self._store_now()) > 0:
            anew = rhythm.first(at, self._store_now())
            if anew is not None and at - anew > _PUT_BACK:
                log.warning("duty %r: the clock was put back; its next act is planned anew", self.name)
                at = anew
                await self._say(has_acted=False, next_at=at)
            else:
                await asyncio.sleep(min(left / 1e6, _SLEEP_MOST))
        return at

    async def _sleep_until(self, at: int) -> None:
        while (left := (at - self._store_now()) / 1e6) > 0:  # noqa: ASYNC110 - time is all it waits for
            await asyncio.sleep(min(left, _SLEEP_MOST))
