"""What every part of the scheduler's surface stands on: the store, the tasks it knows, the engine to be woken."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

import msgspec

from evertick.clock import Clock
from evertick.definition.duties import Duties
from evertick.definition.options import make_definition
from evertick.definition.settings import Settings, check_key
from evertick.definition.task import Task
from evertick.engine.engine import Engine
from evertick.errors import InvalidArguments, InvalidInput
from evertick.ledger.editor import Editor
from evertick.model import Run
from evertick.model.hooks import Event, EventKind, Hooks
from evertick.store.base import Store
from evertick.text.values import encode_data, has_control, shown
from evertick.when import from_us

__all__ = ["Managing", "check_limit", "check_note", "run_id_of"]

_LIMIT_MAX = 1_000_000
_NOTE_LONGEST = 1_000


class Managing(ABC):
    """The common ground of the parts. The scheduler fills it."""

    # How its calls are named where one was not awaited.
    _written = "scheduler"
    settings: Settings
    _tasks: dict[str, Task[Any, Any]]
    _hooks: Hooks
    _duties: Duties
    _engine: Engine | None

    @property
    def app(self) -> str:
        return self.settings.app

    @property
    @abstractmethod
    def _clock(self) -> Clock: ...

    @abstractmethod
    async def _store(self) -> Store:
        """The store, opened on first use."""

    def _editor(self, store: Store) -> Editor:
        return Editor(store, self.app, self._clock, self.settings.tz, self.settings.schedule_limits)

    def _encode_arguments(self, task: str, args: Mapping[str, Any]) -> bytes:
        given = make_definition("", {"args": args}).args
        self._check_arguments(task, given)
        return msgspec.json.encode(given)

    def _check_arguments(self, task: str, args: Mapping[str, Any]) -> None:
        """Arguments for a task of ours must fit it; those of a task that other nodes know are theirs to judge."""
        if task in self._tasks:
            self._tasks[task]._check_kept(args)
            return
        try:
            encode_data(args)
        except (TypeError, ValueError) as error:
            raise InvalidArguments(f"{task}: arguments must be JSON-like data; {error}") from None

    def _wake_fires(self) -> None:
        if self._engine is not None:
            self._engine.wake_fires()

    def _wake_runs(self) -> None:
        if self._engine is not None:
            self._engine.wake_runs()

    def _tell(self, kind: EventKind, key: str, note: str = "") -> None:
        if kind in self._hooks.wanted:
            at = from_us(self._clock.now_us())
            self._hooks.tell(Event(kind=kind, app=self.app, at=at, schedule_key=key, note=note))


def run_id_of(run: Any) -> str:
    if isinstance(run, Run):
        return run.id
    if not isinstance(run, str):
        raise InvalidInput(f"run: {shown(run)} is neither a run nor the id of one")
    return check_key(run, what="run")


def check_note(note: Any) -> str:
    if not isinstance(note, str):
        raise InvalidInput(f"note: {shown(note)} is not text")
    if has_control(note, in_lines=True):
        raise InvalidInput(f"note: {shown(note)} must not hold control characters or surrogates; write plain text")
    if len(note) > _NOTE_LONGEST:
        raise InvalidInput(f"note: {shown(note)} is too long; write at most {_NOTE_LONGEST:,} characters")
    return note


def check_limit(limit: Any) -> int:
    if isinstance(limit, bool) or not isinstance(limit, int) or not 1 <= limit <= _LIMIT_MAX:
        raise InvalidInput(f"limit: {shown(limit)} must be a whole number from 1 to {_LIMIT_MAX}")
    return limit
