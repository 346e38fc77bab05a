"""The ledger, rebuilt from the journal call by call, so that checks can compare each step."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import groupby
from typing import Any, NamedTuple, TypeGuard, TypeVar

from simulation.journal import Action, Event, RowChange

__all__ = ["Call", "Ledger", "Row"]

Row = dict[str, Any]
K = TypeVar("K", int, str)


class Call(NamedTuple):
    """One call to the store that changed rows, or whose answer was recorded."""

    number: int
    at: int
    intent: str
    who: str
    changes: list[RowChange]
    # The call's arguments and answer, if they were recorded.
    args: tuple[Any, ...]
    answer: Any


class Ledger:
    """The rows after the calls so far."""

    def __init__(self) -> None:
        self.live: dict[str, Row] = {}
        self.done: dict[str, Row] = {}
        self.nodes: dict[str, Row] = {}
        # The machine of each node.
        self.machine_of: dict[str, str] = {}
        self.schedules: dict[int, Row] = {}
        self.due: dict[int, Row] = {}
        # Limit keys with the time at which the next claim checks them.
        self.limits: dict[str, Row] = {}
        self.duties: dict[str, Row] = {}
        self.fence = 0

    def live_of(self, schedule: int | None) -> list[Row]:
        return [row for row in self.live.values() if row["schedule_id"] == schedule]

    def apply(self, change: RowChange) -> None:
        row = change.row
        match change.table:
            case "runs":
                self.live[row["id"]] = row
                self.fence = max(self.fence, row["fence"] or 0)
            case "history":
                self.live.pop(row["id"], None)
                self.done[row["id"]] = row
            case "nodes":
                if change.how == "insert":
                    self.machine_of[row["id"]] = change.who
                self.nodes[row["id"]] = row
            case "schedules":
                self._put(self.schedules, row["id"], change)
            case "due":
                self._put(self.due, row["schedule_id"], change)
            case "duties":
                self._put(self.duties, row["name"], change)
            case "limits":
                self._put(self.limits, row["key"], change)

    @staticmethod
    def _put(table: dict[K, Row], key: K, change: RowChange) -> None:
        if change.how == "delete":
            table.pop(key, None)
        else:
            table[key] = change.row


def calls(events: Iterable[Event]) -> Iterator[Call]:
    """The calls in their order."""
    of_store = [each for each in events if isinstance(each, RowChange) or _is_noted_call(each)]
    for number, group in groupby(of_store, key=_number):
        parts = list(group)
        first, noted = parts[0], parts[-1] if isinstance(parts[-1], Action) else None
        args, _, answer = ((), {}, None) if noted is None else noted.detail
        changes = [each for each in parts if isinstance(each, RowChange)]
        intent = first.intent if isinstance(first, RowChange) else first.what
        yield Call(number, first.at, intent, first.who, changes, args, answer)


def _is_noted_call(event: Event) -> TypeGuard[Action]:
    return isinstance(event, Action) and isinstance(event.detail, tuple)


def _number(event: Any) -> int:
    return int(event.call if isinstance(event, RowChange) else event.about)
