"""The times at which a node or the store was disturbed: by a kill, a freeze, a lost connection, an outage or a stop.

Promises of time hold only for undisturbed nodes.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulation.journal import Action, Event

__all__ = ["Disturbances"]

_FOR_EVER = 1 << 62
_BEGINS = {"killed": "dead", "frozen": "frozen", "broken": "broken", "stopping": "dead"}
_ENDS = {"thawed": "frozen", "mended": "broken"}


class Disturbances:
    """Periods of disturbance, by machine (`n0.1`), by slot (`n0`) and for all (`store`). Times in microseconds."""

    def __init__(self, events: Iterable[Event]) -> None:
        self._periods: dict[str, list[tuple[int, int]]] = {}
        self.up_since: dict[str, int] = {}
        open_since: dict[tuple[str, str], list[int]] = {}
        healed = _FOR_EVER
        for action in events:
            if not isinstance(action, Action):
                continue
            if action.what == "up":
                self.up_since[action.who] = action.at
            elif action.who == "story" and action.what == "healed":
                healed = action.at
            elif action.what in _BEGINS:
                open_since.setdefault((action.who, _BEGINS[action.what]), []).append(action.at)
            elif action.what in _ENDS:
                begun = open_since.get((action.who, _ENDS[action.what]))
                if begun:
                    self._periods.setdefault(action.who, []).append((begun.pop(0), action.at))
        for (who, kind), begun in open_since.items():
            end = _FOR_EVER if kind == "dead" else healed
            self._periods.setdefault(who, []).extend((since, end) for since in begun)

    def was_undisturbed(self, machine: str, since: int, until: int) -> bool:
        """Whether the machine itself was up and undisturbed. An outage of the store does not count."""
        up = self.up_since.get(machine)
        return up is not None and up <= since and not self._any((machine, machine.partition(".")[0]), since, until)

    def was_store_available(self, since: int, until: int) -> bool:
        return not self._any(("store",), since, until)

    def _any(self, names: tuple[str, ...], since: int, until: int) -> bool:
        return any(begun <= until and since <= ended for name in names for begun, ended in self._periods.get(name, ()))
