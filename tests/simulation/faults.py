"""The store as a node far away sees it: late, lossy, at times not at all.

A call travels to the store, is carried out there, and its answer travels back. The store's side of it does not belong
to the caller's machine: what was sent is carried out even if the caller dies, freezes or gives up meanwhile. Either way
can fail, and the caller cannot tell which did: "nothing happened" and "it happened and the answer was lost" look alike.
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
from simulation.journal import Deed, Journal

__all__ = ["Climate", "FarStore", "Weather"]


class Climate(msgspec.Struct, frozen=True, kw_only=True):
    """How bad the ways to the store are, on average."""

    # The longest usual delay of one way, and how often it is ten times as long.
    delay_seconds: float = 0.02
    slow_share: float = 0.02
    # How often a call is lost on its way there, and how often only its answer is.
    lost_share: float = 0.0
    unanswered_share: float = 0.0


# How often the hint comes that others have written, whether they have or not.
_HINTED_SHARE = 0.5

CALM = Climate(delay_seconds=0.005, slow_share=0.0)


class Weather:
    """The state of the ways to the store; shared by all."""

    def __init__(self, climate: Climate, seed: str) -> None:
        self.climate = climate
        self._seed = seed
        self._is_out = 0
        self._cut_off: dict[str, int] = {}

    def heal(self) -> None:
        self.climate = CALM
        self._is_out = 0
        self._cut_off.clear()

    def break_for(self, who: str | None) -> None:
        """An outage for one, or (None) for all."""
        if who is None:
            self._is_out += 1
        else:
            self._cut_off[who] = self._cut_off.get(who, 0) + 1

    def mend_for(self, who: str | None) -> None:
        if who is None:
            self._is_out = max(self._is_out - 1, 0)
        else:
            self._cut_off[who] = max(self._cut_off.get(who, 0) - 1, 0)

    def is_broken(self, who: str) -> bool:
        return self._is_out > 0 or self._cut_off.get(who.partition(".")[0], 0) > 0

    def chance(self, who: str, intent: str) -> random.Random:
        """What happens on the way to the calls of one intent of one caller, drawn apart.

        So a new intent, or a caller who asks more often, leaves the luck of all others as it was.
        """
        return random.Random(f"{self._seed} {who} {intent}")

    def delay(self, chance: random.Random) -> float:
        delay = self.climate.delay_seconds * chance.random()
        return delay * 10 if chance.random() < self.climate.slow_share else delay

    def patience(self, chance: random.Random) -> float:
        """How long a caller waits for an answer that does not come: every store bounds it."""
        return chance.random() * 2

    def loses_call(self, who: str, chance: random.Random) -> bool:
        return self.is_broken(who) or chance.random() < self.climate.lost_share

    def loses_answer(self, who: str, chance: random.Random) -> bool:
        return self.is_broken(who) or chance.random() < self.climate.unanswered_share


class _Way(NamedTuple):
    """How the calls of one intent get to the store and back."""

    name: str
    intent: Callable[..., Any]
    chance: random.Random


class FarStore:
    """A store behind the weather. Has every intent of the store it stands for."""

    def __init__(self, store: Any, who: str, weather: Weather, clock: TrueClock, journal: Journal, calls: list[int]):
        self._store = store
        self._who = who
        self._weather = weather
        self._clock = clock
        self._journal = journal
        # The number of calls made by all.
        self._calls = calls
        # What the store's side runs in: no machine's context.
        self._outside = contextvars.Context()
        self._hints = weather.chance(who, "changed")

    def as_store(self) -> Store:
        return cast("Store", self)

    def __getattr__(self, name: str) -> Callable[..., Awaitable[Any]]:
        if name.startswith("_"):
            raise AttributeError(name)
        way = _Way(name, getattr(self._store, name), self._weather.chance(self._who, name))

        async def travel(*args: Any, **kwargs: Any) -> Any:
            return await self._send(way, args, kwargs)

        # Looked up once per intent.
        setattr(self, name, travel)
        return travel

    async def heartbeat_session(self) -> HeartbeatSession:
        line = await self._store.heartbeat_session()
        return cast(
            "HeartbeatSession", FarStore(line, self._who, self._weather, self._clock, self._journal, self._calls)
        )

    async def close(self) -> None:
        """Hanging up is no call."""

    async def changed(self, app: str, timeout: float) -> News | None:
        """A hint that may be late, early or missing."""
        await asyncio.sleep(timeout)
        return "anything" if self._hints.random() < _HINTED_SHARE else None

    async def _send(self, way: _Way, args: Any, kwargs: Any) -> Any:
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[Any] = loop.create_future()
        delay = self._weather.delay(way.chance)
        loop.call_later(delay, self._arrive, way, answer, args, kwargs, context=self._outside)
        return await answer

    def _arrive(self, way: _Way, answer: asyncio.Future[Any], args: Any, kwargs: Any) -> None:
        if self._weather.loses_call(self._who, way.chance):
            patience = self._weather.patience(way.chance)
            self._reply(way, answer, None, StoreUnavailable("the call was lost"), patience)
            return
        self._calls[0] += 1
        call = self._calls[0]
        result, error = _carried_out(way.intent, args, kwargs)
        now = self._clock.now_us()
        self._journal.harvest(now, way.name, call, self._who)
        if way.name in _NOTED:
            self._journal.add(Deed(now, self._who, way.name, str(call), (args, kwargs, result)))
        self._reply(way, answer, result, error, self._weather.delay(way.chance))

    def _reply(
        self, way: _Way, answer: asyncio.Future[Any], result: Any, error: BaseException | None, delay: float
    ) -> None:
        asyncio.get_running_loop().call_later(delay, self._answer, way, answer, result, error, context=self._outside)

    def _answer(self, way: _Way, answer: asyncio.Future[Any], result: Any, error: BaseException | None) -> None:
        if answer.done():
            return
        if self._weather.loses_answer(self._who, way.chance):
            error = StoreUnavailable("the answer was lost")
        if error is None:
            answer.set_result(result)
        else:
            answer.set_exception(error)


# The intents whose arguments and answers the oracle wants to see.
_NOTED = frozenset(
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


def _carried_out(intent: Callable[..., Any], args: Any, kwargs: Any) -> tuple[Any, BaseException | None]:
    """An inline store never waits: its coroutine comes to its end in one go."""
    coroutine = intent(*args, **kwargs)
    try:
        coroutine.send(None)
    except StopIteration as end:
        return end.value, None
    except Exception as error:
        return None, error
    coroutine.close()
    raise AssertionError("an inline store waited for something")
