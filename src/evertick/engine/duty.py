"""Which duties this node holds: asks for them, begins what it got, stops what it lost.

Holding is living: a duty is ours while our node is not written down as dead and has not resigned, and nothing has to be
extended. So what is ours needs no asking; only what is not is asked for, at every beat and whenever a holder resigned
or died. What makes it safe is the lease: a holder stops while its own lease still holds for a third, counted from the
last beat that was answered; local time can only make it stop sooner. Its successor begins after the death was written
down, which is after the lease.

At the end of a node its duties are stopped first, and each is resigned as soon as its function has ended.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterable

from evertick.engine.loop import Idle
from evertick.engine.node import LocalNode
from evertick.errors import Stopped, StoreUnavailable
from evertick.model.duty import DutyContext, DutyRecord, DutyWork, Rhythm
from evertick.model.hooks import Event, EventKind
from evertick.store.base import DutyHold, DutyHolds, DutyTick
from evertick.text.error_line import what_was_raised
from evertick.text.error_text import error_text
from evertick.when.moment import MINUTE

__all__ = ["DutyKeeper"]

log = logging.getLogger("evertick.duty")

# Between two questions, however often it is woken.
_ASK_LEAST_SECONDS = 0.5
# How long a duty waits whose term has failed: what it has done is not written down, so that it would act at once.
_FAILED_SECONDS = 60.0
# How often a node asks that holds all its duties: no other takes them while it lives.
_LEASES_OF_ALL = 4
_BACKOFF_FIRST, _BACKOFF_MOST = 1.0, 60.0
# An act that went on this long before it failed was no failed start.
_WELL_SECONDS = 60.0
# The longest sleep by the own clock before looking again how far the store's has come.
_SLEEP_MOST = 60.0
# So much later than its rhythm has it, an act was planned by a clock that was wrong.
_PUT_BACK = MINUTE


class DutyKeeper:
    """Holds duties for this node."""

    def __init__(self, node: LocalNode, works: Iterable[DutyWork], *, beat: float) -> None:
        self._node = node
        self._works = {work.name: work for work in works}
        self._beat = beat
        self._terms: dict[str, Term] = {}
        # By `clock.elapsed`: when those that failed may begin again.
        self._failed_until: dict[str, float] = {}
        # What the store last said is ours, by term; begun or not.
        self._ours: dict[str, int] = {}
        # How often all were given up: an answer that was asked for before speaks of what is over.
        self._given_up = 0
        # Held while the store is asked: what is under way would come after the resignation.
        self._asking = asyncio.Lock()
        self._asked_at = -_ASK_LEAST_SECONDS
        # The store's time less our own.
        self._ahead_us = 0
        self._watch: asyncio.TimerHandle | None = None
        # A function has ended, and may have to begin again.
        self.on_end: Callable[[], None] = lambda: None

    @property
    def held(self) -> tuple[str, ...]:
        """The duties that are being done here."""
        return tuple(sorted(name for name, term in self._terms.items() if not term.is_stopped))

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return {term.task for term in self._terms.values()}

    @property
    def names_under_way(self) -> list[str]:
        """Also of those that were told to stop, and have not yet."""
        return sorted(self._terms)

    @property
    def wants_more(self) -> bool:
        """Whether a resignation elsewhere is of interest here."""
        return len(self._ours) < len(self._works)

    async def step(self) -> float | None:
        node = self._node
        if not self._works or node.is_draining:
            return None
        if not node.is_trusted:
            return Idle(self._beat)
        wait = self._asked_at + _ASK_LEAST_SECONDS - node.clock.elapsed()
        if wait > 0:
            return Idle(wait)
        async with self._asking:
            self._asked_at = node.clock.elapsed()
            asker, given_up = node.id, self._given_up
            holds = await node.store.hold_duties(node.app, asker, list(self._works))
            if (asker, given_up) == (node.id, self._given_up):
                self._heard(holds)
        return self._rest()

    def _rest(self) -> float:
        """The answer to a beat says when a duty is free. What it cannot know is looked after now and then."""
        lease, now = self._node.lease / 1e6, self._node.clock.elapsed()
        if len(self.held) == len(self._works):
            return _LEASES_OF_ALL * lease
        return min([lease, *(at - now for at in self._failed_until.values() if at > now)])

    def _heard(self, holds: DutyHolds) -> None:
        self._ahead_us = holds.now - self._own_us()
        self._ours = {hold.name: hold.term for hold in holds.duties if hold.node == self._node.id}
        if not self._node.is_draining:
            for hold in holds.duties:
                self._settle(hold)
        self._watch_trust()

    def _settle(self, hold: DutyHold) -> None:
        term = self._terms.get(hold.name)
        if hold.name not in self._ours:
            if term is not None:
                term.stop("another node holds it")
        elif term is None:
            self._begin(hold)
        elif term.number != hold.term:
            # Given up and taken again. It begins when the old act has ended: never two of them on one node.
            term.stop("it is held under a new term")

    def _begin(self, hold: DutyHold) -> None:
        if not self._node.is_trusted or self._node.clock.elapsed() < self._failed_until.get(hold.name, 0.0):
            return
        term = Term(self._node, self._works[hold.name], hold, self._store_now)
        self._terms[hold.name] = term
        term.task.add_done_callback(lambda task: self._ended(term, task))
        log.info("duty %r is held by this node under term %d", term.name, term.number)
        self._tell("duty_taken", term)

    def _ended(self, term: Term, task: asyncio.Task[None]) -> None:
        if self._terms.get(term.name) is term:
            del self._terms[term.name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed_until[term.name] = self._node.clock.elapsed() + _FAILED_SECONDS
            log.error("duty %r failed; restarting in %.0f s", term.name, _FAILED_SECONDS, exc_info=error)
        log.info("duty %r under term %d has ended here: %s", term.name, term.number, term.record.why or "by itself")
        self._tell("duty_lost", term)
        self.on_end()

    def _tell(self, kind: EventKind, term: Term) -> None:
        hooks = self._node.hooks
        if kind in hooks.wanted:
            at, reason = self._node.now(), term.record.why or None
            hooks.tell(Event(kind=kind, app=self._node.app, at=at, duty=term.name, term=term.number, reason=reason))

    # --- stopping

    def stop_all(self, why: str) -> None:
        """None of them is ours any more, or may soon not be."""
        for term in list(self._terms.values()):
            term.stop(why)

    def forget_all(self, why: str) -> None:
        """This node holds nothing any more."""
        self._ours = {}
        self._given_up += 1
        self.stop_all(why)

    def ask_to_stop(self, why: str) -> None:
        """From another thread, while the event loop is blocked: those that look will see it."""
        for term in list(self._terms.values()):
            term.record.stop(why)

    def _watch_trust(self) -> None:
        """Stop everything when the lease may run out unheard, whatever the loops are waiting for."""
        if self._watch is not None:
            self._watch.cancel()
            self._watch = None
        if not self._terms:
            return
        left = self._node.trusted_seconds_left
        if left <= 0:
            self.stop_all("the store has been silent for too long")
            return
        # Looked at again by then: every answered beat moves the end.
        self._watch = asyncio.get_running_loop().call_later(left, self._watch_trust)

    async def hand_over(self) -> None:
        """Stop all, and resign each as it ends. Comes back when nothing is left to resign."""
        self.stop_all("this node stops")
        async with self._asking:
            left = dict(self._ours)
        await asyncio.sleep(0)
        while left:
            over = {name: term for name, term in left.items() if name not in self._terms}
            if over:
                await self._resign(over)
                left = {name: term for name, term in left.items() if name not in over}
            else:
                await asyncio.wait([self._terms[name].task for name in left], return_when=asyncio.FIRST_COMPLETED)
        self._watch_trust()

    async def _resign(self, terms: dict[str, int]) -> None:
        try:
            await self._node.store.resign_duties(self._node.app, self._node.id, terms)
        except StoreUnavailable as error:
            log.warning("could not resign %s (%s); the end of this node frees them", ", ".join(sorted(terms)), error)

    # --- time

    def _own_us(self) -> int:
        return round(self._node.clock.elapsed() * 1e6)

    def _store_now(self) -> int:
        return self._own_us() + self._ahead_us


class Term:
    """One term of a duty on this node: from its taking to its end, act by act, until it is told to stop.

    A periodic duty acts, and what it did and means to do next is written down after the act: a node that dies in the
    middle of one leaves a moment that is past, and the next holder acts at once. A duty without a rhythm is one long
    act, begun again with growing pauses if it ends.
    """

    def __init__(self, node: LocalNode, work: DutyWork, hold: DutyHold, store_now: Callable[[], int]) -> None:
        self._node = node
        self._work = work
        # The incarnation that took it: another one does not hold it.
        self._holder = node.id
        self._next_at, self._error = hold.next_at, hold.error
        self._store_now = store_now
        self._is_in_thread = False
        self._is_cancelled = False
        self.record = DutyRecord(self._is_trusted, self._ask)
        self.context = DutyContext(name=hold.name, term=hold.term, node=node.id, record=self.record)
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
        return self.record.is_stopped

    def stop(self, why: str) -> None:
        """Tell it to stop. A coroutine is cancelled, a thread is asked: what it runs in ends when it returns."""
        self.record.stop(why)
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
        # Nothing is left to be done, and the duty is ours: no other node need ask.
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
            if self.record.has_seen_stop:
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
        # A function that has seen the stop, and returned, has stopped; one that never looked has done its work.
        return not self.record.has_seen_stop

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
