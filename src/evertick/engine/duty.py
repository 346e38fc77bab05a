"""The duties of this node: takes free ones, starts those it holds, stops those it lost.

A node holds a duty until it resigns or is declared dead; nothing has to be renewed. A node asks only for duties that it
does not hold: when a heartbeat reports a free one, and when a holder resigned or died. The lease makes this safe: the
holder stops while a third of its lease is left, counted from the last answered heartbeat, and its successor starts only
after the death was recorded, which is after the lease. Local time can only make a holder stop sooner.

When a node stops, it stops its duties first and resigns each as soon as its function has ended.
"""

from __future__ import annotations

import asyncio
import functools
import logging
from collections.abc import Callable, Iterable

from evertick.engine.loop import Idle
from evertick.engine.node import LocalNode
from evertick.errors import Stopped, StoreUnavailable
from evertick.model.duty import DutyContext, DutyRecord, DutyWork, Rhythm
from evertick.model.hooks import Event, EventKind
from evertick.store.base import DutyHold, DutyHolds, DutyTick
from evertick.text.error_line import error_summary
from evertick.text.error_text import error_text
from evertick.text.log_level import such_as
from evertick.when.moment import MINUTE

__all__ = ["STORE_SILENT", "DutyKeeper"]

log = logging.getLogger("evertick.duty")

# The reason why duties stop before the lease expires.
STORE_SILENT = "the store does not answer"
# The least distance between two requests for duties.
_ASK_LEAST_SECONDS = 0.5
# How long a duty waits after its term failed; its state was not written, so it would act at once.
_FAILED_SECONDS = 60.0
# A node that holds all its duties asks once in this many leases: no other node takes them while it lives.
_LEASES_OF_ALL = 4
_BACKOFF_FIRST, _BACKOFF_MOST = 1.0, 60.0
# A continuous duty that ran this long before it failed starts again with the shortest pause.
_WELL_SECONDS = 60.0
# The longest sleep before the store's clock is compared again.
_SLEEP_MOST = 60.0
# An act this much later than its rhythm allows was planned with a wrong clock.
_PUT_BACK = MINUTE


class DutyKeeper:
    """Takes and performs duties for this node."""

    def __init__(self, node: LocalNode, works: Iterable[DutyWork], *, beat: float) -> None:
        self._node = node
        self._works = {work.name: work for work in works}
        self._beat = beat
        self._terms: dict[str, Term] = {}
        # When failed duties may start again, by `clock.elapsed`.
        self._failed_until: dict[str, float] = {}
        # The terms of this node by the last answer of the store, started or not.
        self._own_terms: dict[str, int] = {}
        # Counts `drop_all`: an answer to an earlier request is ignored.
        self._generation = 0
        # Held during a request, so that a resignation does not overtake it.
        self._asking = asyncio.Lock()
        self._asked_at = -_ASK_LEAST_SECONDS
        # The store's time minus `clock.elapsed`.
        self._ahead_us = 0
        self._trust_timer: asyncio.TimerHandle | None = None
        # A function ended and may have to start again.
        self.on_end: Callable[[], None] = lambda: None

    @property
    def held(self) -> tuple[str, ...]:
        """The duties that this node performs now."""
        return tuple(sorted(name for name, term in self._terms.items() if not term.is_stopped))

    @property
    def under_way(self) -> set[asyncio.Task[None]]:
        return {term.task for term in self._terms.values()}

    @property
    def unfinished_names(self) -> list[str]:
        """All unfinished duties, including those that were asked to stop."""
        return sorted(self._terms)

    @property
    def lacks_duties(self) -> bool:
        """Whether there are duties that this node does not hold."""
        return len(self._own_terms) < len(self._works)

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
            asker, generation = node.id, self._generation
            holds = await node.store.hold_duties(node.app, asker, list(self._works))
            if (asker, generation) == (node.id, self._generation):
                self._apply(holds)
        return self._delay()

    def _delay(self) -> float:
        """Heartbeats report free duties; this covers the rest: failed duties, and a report that was missed."""
        lease, now = self._node.lease / 1e6, self._node.clock.elapsed()
        if len(self.held) == len(self._works):
            return _LEASES_OF_ALL * lease
        return min([lease, *(at - now for at in self._failed_until.values() if at > now)])

    def _apply(self, holds: DutyHolds) -> None:
        self._ahead_us = holds.now - self._own_us()
        self._own_terms = {hold.name: hold.term for hold in holds.duties if hold.node == self._node.id}
        if not self._node.is_draining:
            for hold in holds.duties:
                self._apply_one(hold)
        self._watch_trust()

    def _apply_one(self, hold: DutyHold) -> None:
        term = self._terms.get(hold.name)
        if hold.name not in self._own_terms:
            if term is not None:
                term.stop("another node holds it")
        elif term is None:
            self._begin(hold)
        elif term.number != hold.term:
            # Resigned and taken again. The new term starts when the old act has ended, never beside it.
            term.stop("it is held under a new term")

    def _begin(self, hold: DutyHold) -> None:
        if not self._node.is_trusted or self._node.clock.elapsed() < self._failed_until.get(hold.name, 0.0):
            return
        term = Term(self._node, self._works[hold.name], hold, self._store_now)
        self._terms[hold.name] = term
        term.task.add_done_callback(lambda task: self._ended(term, task))
        log.info("duty %r: taken by this node, term %d", term.name, term.number)
        self._tell("duty_taken", term)

    def _ended(self, term: Term, task: asyncio.Task[None]) -> None:
        if self._terms.get(term.name) is term:
            del self._terms[term.name]
        if not task.cancelled() and (error := task.exception()) is not None:
            self._failed_until[term.name] = self._node.clock.elapsed() + _FAILED_SECONDS
            log.error("duty %r: failed; restarting in %.0f s", term.name, _FAILED_SECONDS, exc_info=error)
        log.info("duty %r: stopped, term %d (%s)", term.name, term.number, term.record.why or "it ended")
        self._tell("duty_lost", term)
        self.on_end()

    def _tell(self, kind: EventKind, term: Term) -> None:
        hooks = self._node.hooks
        if kind in hooks.wanted:
            at, reason = self._node.now(), term.record.why or None
            hooks.tell(Event(kind=kind, app=self._node.app, at=at, duty=term.name, term=term.number, reason=reason))

    # --- stopping

    def stop_all(self, why: str) -> None:
        """Stop all duties; this node may soon not hold them."""
        for term in list(self._terms.values()):
            term.stop(why)

    def drop_all(self, why: str) -> None:
        """This node holds no duty any more."""
        self._own_terms = {}
        self._generation += 1
        self.stop_all(why)

    def request_stop(self, why: str) -> None:
        """Thread-safe: asks duties in threads to stop while the event loop is blocked."""
        for term in list(self._terms.values()):
            term.record.stop(why)

    def _watch_trust(self) -> None:
        """Stop all duties when a third of the lease is left, by a timer of its own."""
        if self._trust_timer is not None:
            self._trust_timer.cancel()
            self._trust_timer = None
        if not self._terms:
            return
        left = self._node.trusted_seconds_left
        if left <= 0:
            self.stop_all(STORE_SILENT)
            return
        # Each answered heartbeat extends the lease, so this checks again then.
        self._trust_timer = asyncio.get_running_loop().call_later(left, self._watch_trust)

    async def stop_and_resign(self) -> None:
        """Stop all duties, and resign each when its function has ended."""
        self.stop_all("this node stops")
        async with self._asking:
            left = dict(self._own_terms)
        await asyncio.sleep(0)
        while left:
            ended = {name: term for name, term in left.items() if name not in self._terms}
            if ended:
                await self._resign(ended)
                left = {name: term for name, term in left.items() if name not in ended}
            else:
                await asyncio.wait([self._terms[name].task for name in left], return_when=asyncio.FIRST_COMPLETED)
        self._watch_trust()

    async def _resign(self, terms: dict[str, int]) -> None:
        try:
            await self._node.store.resign_duties(self._node.app, self._node.id, terms)
        except StoreUnavailable as error:
            what = "duties %s: resigning failed (%s); they are free when this node has left"
            log.warning(what, ", ".join(sorted(terms)), error)

    # --- time

    def _own_us(self) -> int:
        return round(self._node.clock.elapsed() * 1e6)

    def _store_now(self) -> int:
        return self._own_us() + self._ahead_us


class Term:
    """One term of a duty on this node.

    A periodic duty writes its result and the time of its next act after each act: if the node dies during an act, that
    time is past, and the next holder acts at once. A continuous duty is one long act, restarted with back-off.
    """

    def __init__(self, node: LocalNode, work: DutyWork, hold: DutyHold, store_now: Callable[[], int]) -> None:
        self._node = node
        self._work = work
        # The incarnation that took the duty; a later one does not hold it.
        self._holder = node.id
        self._next_at, self._error = hold.next_at, hold.error
        self._store_now = store_now
        self._is_in_thread = False
        self._is_cancelled = False
        self.record = DutyRecord(self._is_trusted, self._ask)
        self.context = DutyContext(name=hold.name, term=hold.term, node=node.id, record=self.record)
        name = f"evertick duty {hold.name}"
        self.task: asyncio.Task[None] = asyncio.get_running_loop().create_task(self._perform(), name=name)

    @property
    def name(self) -> str:
        return self._work.name

    @property
    def number(self) -> int:
        return self.context.term

    @property
    def is_stopped(self) -> bool:
        """Whether it was asked to stop; it may still be running."""
        return self.record.is_stopped

    def stop(self, why: str) -> None:
        """Ask it to stop. A coroutine is cancelled; a thread has to check."""
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

    async def _perform(self) -> None:
        if self._work.rhythm is None:
            await self._perform_continuously()
        else:
            await self._perform_periodically(self._work.rhythm)

    async def _perform_periodically(self, rhythm: Rhythm) -> None:
        at = rhythm.first(self._next_at, self._store_now())
        if at != self._next_at:
            await self._write_tick(has_acted=False, next_at=at)
        while at is not None:
            at = await self._sleep_for(rhythm, at)
            had_failed = self._error is not None
            if not await self._act():
                return
            if had_failed and self._error is None:
                log.warning("duty %r: recovered, term %d", self.name, self.number)
            at = rhythm.after(at, self._store_now())
            await self._write_tick(has_acted=True, next_at=at)
            if self.is_stopped:
                return
        # No further act, but the duty stays taken, so that no other node asks for it.
        await asyncio.Event().wait()

    async def _perform_continuously(self) -> None:
        failures = 0
        while True:
            await self._write_tick(has_acted=True, next_at=None)
            began = self._node.clock.elapsed()
            if not await self._act():
                return
            if self._error is None:
                self._error = "it returned; a duty without every= or when= must run until it is stopped"
            failures = 0 if self._node.clock.elapsed() - began > _WELL_SECONDS else failures
            pause = min(_BACKOFF_FIRST * 2.0**failures, _BACKOFF_MOST)
            failures = min(failures + 1, 16)
            why = error_summary(self._error)
            log.warning("duty %r: ended (%s); restarting in %.0f s", self.name, why, pause)
            at = self._store_now() + int(pause * 1e6)
            await self._write_tick(has_acted=False, next_at=at)
            if self.is_stopped:
                return
            await self._sleep_until(at)

    async def _act(self) -> bool:
        """Call the function. False: it was asked to stop, and has stopped or did not start."""
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
        except BaseException as error:  # also SystemExit, which would end the event loop
            if isinstance(error, asyncio.CancelledError) and self.task.cancelling():
                raise  # `stop` cancelled this task; otherwise code that the function awaited was cancelled
            self._failed(error)
        else:
            self._error = None
        finally:
            self._is_in_thread = False
        # A function that checked for the stop and returned has stopped; one that never checked has completed.
        return not self.record.has_seen_stop

    def _failed(self, error: BaseException) -> None:
        """Log a new error with its traceback; the same error again in one line, then as a count."""
        before, self._error = self._error, error_text(error)
        if self._error != before:
            log.error("duty %r: failed, term %d:\n%s", self.name, self.number, self._error)
            return
        what, line = "duty %r: failed again, term %d: %s", error_summary(self._error)
        say = functools.partial(log.error, what, self.name, self.number, line)
        words = functools.partial(_failures_words, self.name, line)
        self._node.summary.tell(f"duty {self.name}", "", log, logging.ERROR, say, words, lines=1)

    async def _write_tick(self, *, has_acted: bool, next_at: int | None) -> None:
        tick = DutyTick(name=self.name, term=self.number, has_acted=has_acted, next_at=next_at, error=self._error)
        try:
            is_held = await self._node.store.tick_duty(self._node.app, self._holder, tick)
        except Exception as error:
            # The tick informs people and successors; only the lease decides whether the duty may continue.
            self._log_unwritten(error)
            return
        if not is_held:
            self.stop("another node holds it")

    def _log_unwritten(self, error: Exception) -> None:
        exc_info = None if isinstance(error, StoreUnavailable) else error
        what = "duty %r: recording its last act failed: %s"
        say = functools.partial(log.warning, what, self.name, error, exc_info=exc_info)
        words = functools.partial(_unwritten_words, self.name)
        self._node.summary.tell(f"duty {self.name} tick", "", log, logging.WARNING, say, words, lines=1)

    async def _sleep_for(self, rhythm: Rhythm, at: int) -> int:
        """Sleep until the next act, which is earlier if the store's clock was set back. Returns its planned time."""
        while (left := at - self._store_now()) > 0:
            earlier = rhythm.first(at, self._store_now())
            if earlier is not None and at - earlier > _PUT_BACK:
                log.warning("duty %r: the clock was set back; next act replanned", self.name)
                at = earlier
                await self._write_tick(has_acted=False, next_at=at)
            else:
                await asyncio.sleep(min(left / 1e6, _SLEEP_MOST))
        return at

    async def _sleep_until(self, at: int) -> None:
        while (left := (at - self._store_now()) / 1e6) > 0:  # noqa: ASYNC110 - only time ends this wait
            await asyncio.sleep(min(left, _SLEEP_MOST))


def _failures_words(name: str, error: str, count: int, names: list[str], seconds: float | None) -> str:
    return f"duty {name!r}: failed {count} more times{such_as(names, seconds)} ({error})"


def _unwritten_words(name: str, count: int, names: list[str], seconds: float | None) -> str:
    return f"duty {name!r}: recording its last act failed {count} more times{such_as(names, seconds)}"
