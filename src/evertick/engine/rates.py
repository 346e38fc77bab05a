"""Rates that a node counts by itself (`rate_limits="memory"`): no writes, and no word of them to the store.

N nodes together start N times as many, and a node that is started again has forgotten what it started before. Within a
node the promise is that of the store: no stretch of a period holds more starts than the rate says.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

import msgspec

from evertick.clock import Clock
from evertick.model import Claimed
from evertick.model.limits import Rate
from evertick.store.base import TaskTerms

__all__ = ["OwnRates"]


class _Starts:
    """When the last starts of one key were, by the node's own steady clock."""

    def __init__(self, rate: Rate) -> None:
        self.rate = rate
        self._at: deque[float] = deque(maxlen=rate.most)

    def room(self, now: float) -> int:
        period = self.rate.period / 1e6
        while self._at and self._at[0] <= now - period:
            self._at.popleft()
        return self.rate.most - len(self._at)

    def rest(self, now: float) -> float:
        """How long until the next start is free; 0: it is."""
        return 0.0 if self.room(now) > 0 else self._at[0] + self.rate.period / 1e6 - now

    def add(self, now: float) -> None:
        self._at.append(now)


class OwnRates:
    """The rates of the given tasks; with none of them, it costs nothing and holds nobody up."""

    def __init__(self, clock: Clock, terms: Mapping[str, TaskTerms]) -> None:
        self._clock = clock
        by_key: dict[str, _Starts] = {}
        self._starts: dict[str, _Starts] = {}
        for task, each in terms.items():
            if each.rate is not None:
                # A text that names arguments is refused where the task is made: only a claim could tell its key.
                self._starts[task] = by_key.setdefault(each.rate.key(None), _Starts(each.rate))

    def of(self, terms: Mapping[str, TaskTerms]) -> OwnRates:
        """The rates of other tasks. Of a key whose rate is the same, the starts so far still count."""
        made = OwnRates(self._clock, terms)
        before = {starts.rate.key(None): starts for starts in self._starts.values()}
        for task, starts in made._starts.items():
            known = before.get(starts.rate.key(None))
            if known is not None and known.rate == starts.rate:
                made._starts[task] = known
        return made

    def __contains__(self, task: str) -> bool:
        return task in self._starts

    def without_rate(self, task: str, terms: TaskTerms) -> TaskTerms:
        return msgspec.structs.replace(terms, rate=None) if task in self._starts else terms

    def without_any(self, terms: Mapping[str, TaskTerms]) -> Mapping[str, TaskTerms]:
        if not self._starts:
            return terms
        return {task: each for task, each in terms.items() if task not in self._starts}

    def admit(self, terms: Mapping[str, TaskTerms], room: int) -> tuple[Mapping[str, TaskTerms], int]:
        """The tasks that may be claimed now, and how many runs of them at most: as many as each of them may start.

        Where that is less than there is room for, the next claim follows at once, without those that are used up.
        """
        if not self._starts:
            return terms, room
        now = self._clock.elapsed()
        rooms = {task: starts.room(now) for task, starts in self._starts.items()}
        admitted = {task: each for task, each in terms.items() if rooms.get(task, room) > 0}
        return admitted, min([room, *(rooms[task] for task in rooms if rooms[task] > 0)])

    def started(self, runs: Iterable[Claimed]) -> None:
        if not self._starts:
            return
        # Not before the claim was answered: what is started later than it was counted would be too early for the next.
        now = self._clock.elapsed()
        for run in runs:
            if run.task in self._starts:
                self._starts[run.task].add(now)

    def rests(self) -> list[float]:
        """In how many seconds those that are used up may start again."""
        now = self._clock.elapsed()
        used_up = [starts.rest(now) for starts in self._starts.values()]
        return [max(rest, 0.001) for rest in used_up if rest > 0]
