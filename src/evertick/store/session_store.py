"""The part that the built-in stores share: the open session, and intents that are made of other intents."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Generic, TypeVar

from evertick.errors import Forked, StoreUnavailable
from evertick.store.base import ClockTraces, DutyHolds, GapCut
from evertick.store.rows import MistimedRows, traces_of

__all__ = ["SessionStore"]

S = TypeVar("S")


class SessionStore(ABC, Generic[S]):
    """A store whose intents go through a session, which belongs to the process that opened it."""

    def __init__(self, description: str) -> None:
        # Safe to log. Computed once, since every intent needs it.
        self.description = description
        self._session: S | None = None
        self._opener: int | None = None

    def session(self) -> S:
        """The session of the open store."""
        self._refuse_fork()
        if self._session is None:
            raise StoreUnavailable(f"the {self.description} is not open", fix="open it before using it")
        return self._session

    def _refuse_fork(self) -> None:
        if self._opener is not None and self._opener != os.getpid():
            raise Forked.opened(self.description, self._opener)

    async def hold_duties(self, app: str, node: str, names: Sequence[str]) -> DutyHolds:
        # Usually there is nothing to take, and a read is enough.
        found = await self._named_duties(app, names)
        return found if found.are_all_held(names) else await self._take_duties(app, node, names)

    async def clock_traces(self, app: str, *, limit: int) -> ClockTraces:
        return traces_of(*await self._find_mistimed(app, limit))

    async def mend_times(self, app: str, gaps: Sequence[GapCut], *, traces: ClockTraces, limit: int) -> dict[str, int]:
        # The search reads all of history, so it runs without the lock for writing.
        found, _ = await self._find_mistimed(app, limit, traces.first_at)
        return await self._mend_mistimed(app, found, gaps, limit)

    @abstractmethod
    async def _named_duties(self, app: str, names: Sequence[str], /) -> DutyHolds: ...
    @abstractmethod
    async def _take_duties(self, app: str, node: str, names: Sequence[str], /) -> DutyHolds: ...
    @abstractmethod
    async def _find_mistimed(self, app: str, limit: int, first: int | None = None, /) -> tuple[MistimedRows, int]: ...
    @abstractmethod
    async def _mend_mistimed(
        self, app: str, found: MistimedRows, gaps: Sequence[GapCut], limit: int, /
    ) -> dict[str, int]: ...
