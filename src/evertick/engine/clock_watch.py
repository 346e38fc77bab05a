"""Whether the clocks can be believed: that of the store, by which all is due, and that of this machine.

With every beat both are compared with a clock that never jumps. A jump is logged as an error. After one, and once at
the start, the ledger is asked for what a wrong clock has left: a schedule that stands still looks like one that has
nothing to do. Nothing is pruned for an hour after a jump: what a clock that is ahead takes for old would be gone.
"""

from __future__ import annotations

import logging
from datetime import timedelta
from typing import NamedTuple

from evertick.engine.node import LocalNode
from evertick.ledger.clock_repair import astray_in, written_ahead
from evertick.store.base import Beat
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND, from_us, to_us

__all__ = ["ClockWatch"]

log = logging.getLogger("evertick.clock")

# Less is what a time server puts right.
_JUMP_LEAST = 10 * SECOND
_DOUBT_SECONDS = HOUR / 1e6
# A ledger that was left alone for so long may have been opened by a machine whose clock is wrong.
_SILENCE_MOST = timedelta(days=30)
_NAMED_MOST = 5
_REPAIR = "`evertick db repair-clock`"


class _Heard(NamedTuple):
    """When a beat was sent and answered, by a clock that never jumps; and what the others said."""

    sent: float
    answered: float
    store: int
    own: int


class ClockWatch:
    """Watches the clocks of one node and its store."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._last: _Heard | None = None
        # By `clock.elapsed`.
        self._doubts_until = 0.0
        self._has_seen_others = False
        # Whether the ledger is to be asked what a wrong clock has left, and whether all schedules are to be looked at.
        self._wants_look, self._wants_all = True, False

    def begin_anew(self) -> None:
        self._last = None

    def heard(self, beat: Beat, sent: float) -> bool:
        """A beat was answered. True: a clock has jumped since the one before."""
        clock, last = self._node.clock, self._last
        self._last = now = _Heard(sent, clock.elapsed(), beat.now, clock.now_us())
        if last is None:
            return False
        stores = _jump(now.store - last.store, now.sent - last.answered, now.answered - last.sent)
        own = _jump(now.own - last.own, now.answered - last.answered, now.answered - last.answered)
        if not stores and not own:
            return False
        self._tell(last, now, stores, own)
        if stores:
            self._doubts_until = now.answered + _DOUBT_SECONDS
            self._wants_look, self._wants_all = True, stores < 0
        return True

    def _tell(self, last: _Heard, now: _Heard, stores: int, own: int) -> None:
        passed = now.answered - last.answered
        if not stores:
            log.error(
                "the clock of this machine jumped %s (from %s to %s within %.1f s), and that of the store did not: the "
                "store's decides what is due, but ids and logs of this node have the wrong time; keep both right with "
                "NTP",
                _words(own),
                _time(last.own),
                _time(now.own),
                passed,
            )
            return
        whose = "the clock of this machine and of its store" if _are_alike(stores, own) else "the store's clock"
        then = (
            "moments until then count as passed, and nothing is pruned for an hour; if that time is wrong, set the "
            f"clock right, then run {_REPAIR}"
            if stores > 0
            else "what was planned by the later time would stand still until then; `evertick doctor` names it, and "
            f"{_REPAIR} repairs it"
        )
        what = "%s jumped %s (from %s to %s within %.1f s): %s"
        log.error(what, whose, _words(stores), _time(last.store), _time(now.store), passed, then)

    async def look(self) -> None:
        """Tell what a wrong clock has left in the ledger, if there is reason to look."""
        if not self._wants_look:
            return
        store, app, wants_all = self._node.store, self._node.app, self._wants_all
        ahead = await written_ahead(store, app)
        if ahead is not None or wants_all:
            keys = [each.key async for each in astray_in(store, app)]
            if keys:
                more = len(keys) - _NAMED_MOST
                names = ", ".join(keys[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
                count = "1 schedule stands" if len(keys) == 1 else f"{len(keys)} schedules stand"
                log.error("%s still because the clock was wrong (%s): run %s", count, names, _REPAIR)
            elif ahead is not None:
                what = "the ledger has times up to %s, which are still to come: the clock was ahead; run %s"
                log.error(what, _time(to_us(ahead)), _REPAIR)
        self._wants_look = self._wants_all = False

    async def may_prune(self, store_now: int) -> bool:
        """Whether what is old by this time of the store may be deleted for good."""
        elapsed, last = self._node.clock.elapsed(), self._last
        if last is not None and abs(store_now - last.store - (elapsed - last.answered) * 1e6) > MINUTE:
            self._doubts_until = max(self._doubts_until, elapsed + _DOUBT_SECONDS)
        if not self._has_seen_others:
            self._has_seen_others = True
            await self._see_others(store_now)
        is_doubtful = elapsed < self._doubts_until
        if is_doubtful:
            log.info("nothing is pruned yet: the clock may be wrong")
        return not is_doubtful

    async def _see_others(self, store_now: int) -> None:
        """The nodes before this one tell when the ledger was last in use."""
        now = from_us(store_now)
        others = [node for node in await self._node.store.nodes(self._node.app) if node.id != self._node.id]
        last = max((node.beat_at for node in others), default=now)
        if now - last > _SILENCE_MOST:
            self._doubts_until = self._node.clock.elapsed() + _DOUBT_SECONDS
            what = (
                "no node has beaten for %d days by the store's clock: nothing is pruned for an hour, should it be wrong"
            )
            log.warning(what, (now - last).days)


def _jump(passed: int, least: float, most: float) -> int:
    """By how much a clock has gone wrong in a time of which the bounds are known, in seconds; 0: by little."""
    jump = passed - round(most * 1e6) if passed > most * 1e6 else min(passed - round(least * 1e6), 0)
    return jump if abs(jump) >= _JUMP_LEAST else 0


def _time(us: int) -> str:
    return f"{from_us(us):%Y-%m-%d %H:%M:%S} UTC"


def _are_alike(one: int, other: int) -> bool:
    return abs(one - other) < _JUMP_LEAST


def _words(jump: int) -> str:
    size = abs(jump)
    units = ((DAY, "d"), (HOUR, "h"), (MINUTE, "min"), (SECOND, "s"))
    unit, name = next((unit, name) for unit, name in units if size >= 2 * unit)
    length = f"{size / unit:.1f}".removesuffix(".0")
    return f"{'forward' if jump > 0 else 'back'} by {length} {name}"
