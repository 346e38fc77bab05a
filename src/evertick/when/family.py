"""Rules that differ in nothing but their start: one is read, the others are made from it.

Whoever makes schedules in code gives each a start of its own, and an interval that counts from its creation has one
anyway. So a store with a million rules has few families, and a rule of a known one takes half the time
that reading its text would, or with what a cron expression is searched by a sixth.
"""

from __future__ import annotations

from evertick.when.base import When
from evertick.when.moment import moment_of
from evertick.when.text import parse_when

__all__ = ["Families"]

_START = "; start="
_KNOWN_MAX = 1_000


class Families:
    """By the text of a rule without its start, the rule that this text is; some may have no moments without one."""

    def __init__(self) -> None:
        self._founders: dict[str, When] = {}

    def rule(self, text: str) -> When:
        """What `parse_when` makes of the text, which names no calendar."""
        before, start, after = text.partition(_START)
        moment, _, rest = after.partition(";")
        family = f"{before};{rest}" if rest else before
        if not start or "start=" in family:
            return parse_when(text)
        founder = self._founders.get(family) or self._read(family)
        return founder.starting_at(moment_of(moment, what="start"))

    def _read(self, family: str) -> When:
        founder = parse_when(family)
        if len(self._founders) >= _KNOWN_MAX:
            self._founders.clear()
        self._founders[family] = founder
        return founder
