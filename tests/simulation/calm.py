"""Who was disturbed when: by death, frost, a cut line, an outage or a stop.

Promises about how soon something happens hold for those who were left alone; this file knows who was.
"""

from __future__ import annotations

from collections.abc import Iterable

from simulation.journal import Deed, Happening

__all__ = ["Calm"]

_FOR_EVER = 1 << 62
_BEGINS = {"killed": "dead", "frozen": "frozen", "broken": "broken", "stopping": "dead"}
_ENDS = {"thawed": "frozen", "mended": "broken"}


class Calm:
    """Stretches of trouble, by machine (`n0.1`), by slot (`n0`) and for all (`store`). Times in microseconds."""

    def __init__(self, happenings: Iterable[Happening]) -> None:
        self._troubles: dict[str, list[tuple[int, int]]] = {}
        self.up_since: dict[str, int] = {}
        open_since: dict[tuple[str, str], list[int]] = {}
        healed = _FOR_EVER
        for deed in happenings:
            if not isinstance(deed, Deed):
                continue
            if deed.what == "up":
                self.up_since[deed.who] = deed.at
            elif deed.who == "story" and deed.what == "healed":
                healed = deed.at
            elif deed.what in _BEGINS:
                open_since.setdefault((deed.who, _BEGINS[deed.what]), []).append(deed.at)
            elif deed.what in _ENDS:
                begun = open_since.get((deed.who, _ENDS[deed.what]))
                if begun:
                    self._troubles.setdefault(deed.who, []).append((begun.pop(0), deed.at))
        for (who, kind), begun in open_since.items():
            end = _FOR_EVER if kind == "dead" else healed
            self._troubles.setdefault(who, []).extend((since, end) for since in begun)

    def left_alone(self, machine: str, since: int, until: int) -> bool:
        """Whether the machine itself was up and undisturbed. An outage of the store is nobody's own trouble."""
        up = self.up_since.get(machine)
        return up is not None and up <= since and not self._any((machine, machine.partition(".")[0]), since, until)

    def store_was_well(self, since: int, until: int) -> bool:
        return not self._any(("store",), since, until)

    def _any(self, names: tuple[str, ...], since: int, until: int) -> bool:
        return any(begun <= until and since <= ended for name in names for begun, ended in self._troubles.get(name, ()))
