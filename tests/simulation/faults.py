"""The network between nodes and the store: slow, lossy, at times unavailable.

A call travels to the store, is executed there, and its answer travels back. The execution does not belong to the
caller's machine: a sent call is executed even if the caller dies or freezes meanwhile. Call and answer can both be
lost, and the caller cannot tell which was.
"""

from __future__ import annotations

import asyncio
import contextvars
import random
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple, cast

import msgspec

from evertick.errors import StoreUnavailable
from evertick.store.base import HeartbeatSession, News, Store
from simulation.clock import TrueClock
from simulation.journal import Action, Journal

__all__ = ["FaultRates", "Network", "RemoteStore"]


class FaultRates(msgspec.Struct, frozen=True, kw_only=True):
    """Delays of the network, and how often it loses calls and answers."""

    # The longest usual delay in one direction, and how often it is ten times as long.
    delay_seconds: float = 0.02
    slow_share: float = 0.02
    # How often a call is lost, and how often only its answer is.
    lost_share: float = 0.0
    unanswered_share: float = 0.0


# How often `changed` reports a change, whether there was one or not.
_HINTED_SHARE = 0.5

NO_FAULTS = FaultRates(delay_seconds=0.005, slow_share=0.0)


class Network:
    """The network between all nodes and the store."""

    def __init__(self, fault_rates: FaultRates, seed: str) -> None:
        self.fault_rates = fault_rates
        self._seed = seed
        self._is_out = 0
        self._cut_off: dict[str, int] = {}

    def heal(self) -> None:
        self.fault_rates = NO_FAULTS
        self._is_out = 0
        self._cut_off.clear()

    def break_for(self, who: str | None) -> None:
        """An outage for one node, or (None) for all."""
        if who is None:
            self._is_out += 1
        else:
            self._cut_off[who] = self._cut_off.get(who, 0) + 1

    def repair_for(self, who: str | None) -> None:
        if who is None:
            self._is_out = max(self._is_out - 1, 0)
        else:
            self._cut_off[who] = max(self._cut_off.get(who, 0) - 1, 0)

    def is_broken(self, who: str) -> bool:
        return self._is_out > 0 or self._cut_off.get(who.partition(".")[0], 0) > 0

    def chance(self, who: str, intent: str) -> random.Random:
        """Random numbers for the calls of one kind by one caller.

        So a new kind of call, or more calls of one caller, do not change the faults of the others.
        """
        return random.Random(f"{self._seed} {who} {intent}")

    def delay(self, chance: random.Random) -> float:
        delay = self.fault_rates.delay_seconds * chance.random()
        return delay * 10 if chance.random() < self.fault_rates.slow_share else delay

    def patience(self, chance: random.Random) -> float:
        """How long a caller waits for a lost call: every store has such a timeout."""
        return chance.random() * 2

    def loses_call(self, who: str, chance: random.Random) -> bool:
        return self.is_broken(who) or chance.random() < self.fault_rates.lost_share

    def loses_answer(self, who: str, chance: random.Random) -> bool:
        return self.is_broken(who) or chance.random() < self.fault_rates.unanswered_share


class _Route(NamedTuple):
    """One kind of call of one caller, with its random numbers."""

    name: str
    intent: Callable[..., Any]
    chance: random.Random


class RemoteStore:
    """A store behind the network, with every method of the real one."""

    def __init__(self, store: Any, who: str, network: Network, clock: TrueClock, journal: Journal, calls: list[int]):
        self._store = store
        self._who = who
        self._network = network
        self._clock = clock
        self._journal = journal
        # The number of calls of all callers.
        self._calls = calls
        # The store's side runs in the context of no machine.
        self._outside = contextvars.Context()
        self._hints = network.chance(who, "changed")

    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        route = _Route(name, getattr(self._store, name), self._network.chance(self._who, name))

        async def travel(*args: Any, **kwargs: Any) -> Any:
            return await self._send(route, args, kwargs)

        # Created once per method.
        setattr(self, name, travel)
        return travel

    async def heartbeat_session(self) -> HeartbeatSession:
        line = await self._store.heartbeat_session()
        return cast(
            "HeartbeatSession", RemoteStore(line, self._who, self._network, self._clock, self._journal, self._calls)
        )

    async def close(self) -> None:
        """Closing is no call."""

    async def changed(self, app: str, timeout: float) -> News | None:
        """A notification that may be late, early or missing."""
        await asyncio.sleep(timeout)
        return "anything" if self._hints.random() < _HINTED_SHARE else None

    async def _send(self, route: _Route, args: Any, kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        delay = self._network.delay(route.chance)
        loop.call_later(delay, self._arrive, route, answer, args, kwargs, context=self._outside)
        return await answer

    def _arrive(self, route: _Route, answer: asyncio.Future[Any], args: Any, kwargs: Any) -> None:
        if self._network.loses_call(self._who, route.chance):
            patience = self._network.patience(route.chance)
            self._reply(route, answer, None, StoreUnavailable("the call was lost"), patience)
            return
        self._calls[0] += 1
        call = self._calls[0]
        result, error = _execute(route.intent, args, kwargs)
        now = self._clock.now_us()
        self._journal.harvest(now, route.name, call, self._who)
        if route.name in _RECORDED_CALLS:
            self._journal.add(Action(now, self._who, route.name, str(call), (args, kwargs, result)))
        self._reply(route, answer, result, error, self._network.delay(route.chance))

    def _reply(
        self, route: _Route, answer: asyncio.Future[Any], result: Any, error: BaseException | None, delay: float
    ) -> None:
        asyncio.get_running_loop().call_later(delay, self._answer, route, answer, result, error, context=self._outside)

    def _answer(self, route: _Route, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if self._network.loses_answer(self._who, route.chance):
            error = StoreUnavailable("the answer was lost")
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


# The calls whose arguments and answers the checks need.
_RECORDED_CALLS = frozenset(
    {
        "change_schedules",
        "record_fires",
        "finish",
        "apply_reports",
        "check_dispatched",
        "note",
        "enqueue",
        "cancel",
        "now",
    }
)


def _execute(intent: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, BaseException | None]:
    """An inline store never waits: its coroutine ends in one step."""
    coroutine = intent(*args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value, None
    except Exception as error:
        return None, error
    coroutine.close()
    raise AssertionError("an inline store waited for something")
