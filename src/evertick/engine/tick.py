"""What a tick has in its hands: pages of schedules that are read together, in batches that are written together.

More may be due than one look finds. Then the next page is read while this one is being written, from where it ends.
What comes before that place meanwhile, by a new cursor or by somebody else's hand, is for the next tick.
"""

from __future__ import annotations

import asyncio

import msgspec

from evertick.ledger.parsed_rules import KnownDefinition
from evertick.model import NewGap, Node
from evertick.store.base import Advance, Due, DueSchedule, Recorded

__all__ = ["Batch", "Page", "Tick"]


class Page(msgspec.Struct, frozen=True, kw_only=True):
    """What one look has found, with all that its plans are made from."""

    due: Due
    known: dict[int, KnownDefinition]
    # Who is there for what runs on every node.
    nodes: list[Node]

    @property
    def is_full(self) -> bool:
        """There may be more."""
        return self.due.goes_on is not None


class Batch:
    """Plans that are written together, and the answer to them."""

    __slots__ = ("advances", "answer", "claims", "had_lease", "known", "rows")

    def __init__(
        self,
        rows: list[DueSchedule],
        known: dict[int, KnownDefinition],
        advances: list[Advance],
        answer: asyncio.Task[Recorded],
        *,
        claims: int,
        had_lease: bool,
    ) -> None:
        self.rows = rows
        self.known = known
        self.advances = advances
        self.answer = answer
        # How many runs are written as claimed.
        self.claims = claims
        # When it was sent.
        self.had_lease = had_lease

    def taken(self) -> list[Advance]:
        answers = self.answer.result().taken
        if all(answers):
            return self.advances
        return [advance for advance, is_taken in zip(self.advances, answers, strict=True) if is_taken]

    @property
    def next_at(self) -> int | None:
        """When the first of its schedules wants to be looked at again."""
        return min((advance.next_at for advance in self.advances if advance.next_at is not None), default=None)


class Tick:
    """What is under way, and what came of it."""

    def __init__(self, page: Page) -> None:
        self.page = page
        self.pages = 1
        self.under_way: Batch | None = None
        # The next page, if it is being read; None comes of a look that failed.
        self.ahead: asyncio.Task[Page | None] | None = None
        # Slots that are spoken for: of runs that are planned or written as claimed, and have not begun.
        self.reserved = 0
        # Somebody else was at the same schedules.
        self.is_refused = False
        # Some of what it has seen, to other nodes.
        self.has_left = False
        # By schedule key, what it has written that the log is to tell: once for all, or a node that is behind would say
        # little else.
        self.gaps: list[tuple[str, NewGap]] = []
        # When the first wants to be looked at again of all that were planned: the last look need not have seen it.
        self._next_at: int | None = None

    @property
    def next_at(self) -> int | None:
        return _earlier(self.page.due.next_at, self._next_at)

    @property
    def seen_until(self) -> int:
        """By the store's time: nothing is left that wants to be looked at before. The last look need not have seen what
        this tick has written."""
        now = self.page.due.now
        return now if self._next_at is None else min(now, self._next_at)

    def writes(self, batch: Batch) -> None:
        self.under_way = batch
        self._next_at = _earlier(self._next_at, batch.next_at)

    async def is_next_page_first(self) -> bool:
        """Whether the next page is here before the answer to what is under way."""
        if self.ahead is None or self.under_way is None:
            return False
        await asyncio.wait({self.ahead, self.under_way.answer}, return_when=asyncio.FIRST_COMPLETED)
        return self.ahead.done()

    async def turn(self) -> bool:
        """To the next page, if there is one."""
        page = None if self.ahead is None else await self.ahead
        self.ahead = None
        if page is not None:
            self.page = page
            self.pages += 1
        return page is not None

    async def end(self) -> None:
        """Nothing that it began goes on after it."""
        if tasks := self._tasks():
            await asyncio.gather(*tasks, return_exceptions=True)

    async def break_off(self) -> None:
        for task in self._tasks():
            task.cancel()
        await self.end()

    def _tasks(self) -> list[asyncio.Task[Page | None] | asyncio.Task[Recorded]]:
        writing = None if self.under_way is None else self.under_way.answer
        return [task for task in (self.ahead, writing) if task is not None]


def _earlier(one: int | None, other: int | None) -> int | None:
    return min((at for at in (one, other) if at is not None), default=None)
