"""Detects jumps of the store's clock, which decides what is due, and of this machine's clock.

Each heartbeat compares both with a monotonic clock. A jump is logged as an error. After a jump, and once at the start,
the ledger is searched for schedules that a wrong clock has stopped: they look like schedules that have nothing to do.
Pruning is suspended for an hour after a jump, since a clock that is ahead makes recent history look old.
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

# Smaller jumps are corrections of a time server.
_JUMP_LEAST = 10 * SECOND
# For how long pruning is suspended.
_SUSPEND_SECONDS = HOUR / 1e6
# A ledger that was unused for longer may have been opened by a machine whose clock is wrong.
_UNUSED_MOST = timedelta(days=30)
_NAMED_MOST = 5
_REPAIR = "`evertick db repair-clock`"


class _Times(NamedTuple):
    """When a heartbeat was sent and answered by the monotonic clock, and the wall clocks at that time."""

    sent: float
    answered: float
    store: int
    own: int


class ClockWatch:
    """Compares the clocks of one node and its store."""

    def __init__(self, node: LocalNode) -> None:
        self._node = node
        self._last: _Times | None = None
        # Until then, by `clock.elapsed`, pruning is suspended.
        self._suspended_until = 0.0
        self._has_checked_last_use = False
        # Whether to search the ledger for effects of a wrong clock, and whether to check all schedules.
        self._must_search, self._must_check_all = True, False

    def start_over(self) -> None:
        self._last = None

    def heard(self, beat: Beat, sent: float) -> bool:
        """Note an answered heartbeat. True: a clock jumped since the previous one."""
        clock, last = self._node.clock, self._last
        self._last = now = _Times(sent, clock.elapsed(), beat.now, clock.now_us())
        if last is None:
            return False
        stores = _jump(now.store - last.store, now.sent - last.answered, now.answered - last.sent)
        own = _jump(now.own - last.own, now.answered - last.answered, now.answered - last.answered)
        if not stores and not own:
            return False
        self._log_jump(last, now, stores, own)
        if stores:
            self._suspended_until = now.answered + _SUSPEND_SECONDS
            self._must_search, self._must_check_all = True, stores < 0
        return True

    def _log_jump(self, last: _Times, now: _Times, stores: int, own: int) -> None:
        passed = now.answered - last.answered
        if not stores:
            log.error(
                "clock of this machine jumped %s (from %s to %s within %.1f s), the store's clock did not: schedules "
                "are not affected, but ids and logs of this node have the wrong time; synchronise both clocks with NTP",
                _words(own),
                _time(last.own),
                _time(now.own),
                passed,
            )
            return
        whose = "clock of this machine and of its store" if _are_alike(stores, own) else "clock of the store"
        then = (
            f"moments up to then count as passed; pruning is suspended for an hour; if that time is wrong, correct "
            f"the clock, then run {_REPAIR}"
            if stores > 0
            else "schedules that were planned with the later time would not fire until then; `evertick doctor` names "
            f"them, and {_REPAIR} repairs them"
        )
        what = "%s jumped %s (from %s to %s within %.1f s): %s"
        log.error(what, whose, _words(stores), _time(last.store), _time(now.store), passed, then)

    async def look(self) -> None:
        """Log what a wrong clock has left in the ledger; only at the start and after a jump."""
        if not self._must_search:
            return
        store, app, must_check_all = self._node.store, self._node.app, self._must_check_all
        ahead = await written_ahead(store, app)
        if ahead is not None or must_check_all:
            keys = [each.key async for each in astray_in(store, app)]
            if keys:
                more = len(keys) - _NAMED_MOST
                names = ", ".join(keys[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
                count = "1 schedule does" if len(keys) == 1 else f"{len(keys)} schedules do"
                log.error("%s not fire because the clock was wrong (%s): run %s", count, names, _REPAIR)
            elif ahead is not None:
                what = "ledger has times up to %s, in the future: the clock was ahead; run %s"
                log.error(what, _time(to_us(ahead)), _REPAIR)
        self._must_search = self._must_check_all = False

    async def may_prune(self, store_now: int) -> bool:
        """Whether history that is old by this time of the store may be deleted."""
        elapsed, last = self._node.clock.elapsed(), self._last
        if last is not None and abs(store_now - last.store - (elapsed - last.answered) * 1e6) > MINUTE:
            self._suspended_until = max(self._suspended_until, elapsed + _SUSPEND_SECONDS)
        if not self._has_checked_last_use:
            self._has_checked_last_use = True
            await self._check_last_use(store_now)
        is_suspended = elapsed < self._suspended_until
        if is_suspended:
            log.info("pruning is suspended: the clock may be wrong")
        return not is_suspended

    async def _check_last_use(self, store_now: int) -> None:
        """The last heartbeat of any other node is when the ledger was last in use."""
        now = from_us(store_now)
        others = [node for node in await self._node.store.nodes(self._node.app) if node.id != self._node.id]
        last = max((node.beat_at for node in others), default=now)
        if now - last > _UNUSED_MOST:
            self._suspended_until = self._node.clock.elapsed() + _SUSPEND_SECONDS
            what = (
                "no heartbeat of any node for %d days by the store's clock, which may be wrong: pruning is suspended "
                "for an hour"
            )
            log.warning(what, (now - last).days)


def _jump(passed: int, least: float, most: float) -> int:
    """How far a clock jumped, if between `least` and `most` seconds have passed; 0 if that is little."""
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
