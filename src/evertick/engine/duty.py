"""Which duties this node holds: asks for them, begins what it got, stops what it lost.

Holding is living: a duty is ours while our node is not written down as dead and has not resigned, and nothing has to be
extended. So what is ours needs no asking; only what is not is asked for, at every beat and whenever somebody resigned
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
from evertick.engine.term import Term
from evertick.errors import StoreUnavailable
from evertick.model.duty import DutyWork
from evertick.model.hooks import Event, EventKind
from evertick.store.base import DutyHold, DutyHolds

__all__ = ["DutyKeeper"]

log = logging.getLogger("evertick.duty")

# However often somebody wakes us.
_ASK_LEAST_SECONDS = 0.5
# How long a duty waits whose term has fallen over: what it has done is not written down, so that it would act at once.
_FALLEN_SECONDS = 60.0
# How often one looks that holds all it has: nobody takes them while it lives.
_LEASES_OF_ALL = 4


class DutyKeeper:
    """Holds duties for this node."""

    def __init__(self, node: LocalNode, works: Iterable[DutyWork], *, beat: float) -> None:
        self._node = node
        self._works = {work.name: work for work in works}
        self._beat = beat
        self._terms: dict[str, Term] = {}
        # By `clock.elapsed`: when those that fell over may begin again.
        self._fallen: dict[str, float] = {}
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
        """Whether it is of interest here that somebody else may have resigned."""
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
        return min([lease, *(at - now for at in self._fallen.values() if at > now)])

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
        if not self._node.is_trusted or self._node.clock.elapsed() < self._fallen.get(hold.name, 0.0):
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
            self._fallen[term.name] = self._node.clock.elapsed() + _FALLEN_SECONDS
            log.error("duty %r fell over; it begins again in %.0f s", term.name, _FALLEN_SECONDS, exc_info=error)
        log.info("duty %r under term %d has ended here: %s", term.name, term.number, term.context._why or "by itself")
        self._tell("duty_lost", term)
        self.on_end()

    def _tell(self, kind: EventKind, term: Term) -> None:
        hooks = self._node.hooks
        if hooks.wants(kind):
            at, reason = self._node.now(), term.context._why or None
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
            term.context._stop(why)

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
