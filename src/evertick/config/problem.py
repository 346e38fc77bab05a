"""What is wrong with a configuration, gathered: whoever mends a file wants to hear all of it at once."""

from __future__ import annotations

import msgspec

from evertick.config.saying import in_file
from evertick.errors import InvalidConfiguration

__all__ = ["PROBLEMS_MAX", "Problems"]

# Beyond this the file is of another kind, and more lines help nobody.
PROBLEMS_MAX = 100
_LINE_LONGEST = 1_000
# Behind every path.
_LAST = "\uffff"


class _Problem(msgspec.Struct, frozen=True):
    place: str
    line: str

    def order(self) -> tuple[str, int]:
        """By file and line; what stands in no file comes after all that does."""
        file, _, number = self.place.rpartition(":")
        return (file, int(number)) if number.isdigit() else (_LAST if not file else self.place, 0)


class Problems:
    """A bounded list of lines, each "place: key: what is wrong; what to write"."""

    def __init__(self) -> None:
        self._found: dict[_Problem, None] = {}
        self._left_out = 0

    def add(self, place: str, key: str, text: str) -> None:
        line = ": ".join(part for part in (place, key, in_file(text)) if part)[:_LINE_LONGEST]
        problem = _Problem(place, line)
        if problem in self._found:
            return
        if len(self._found) < PROBLEMS_MAX:
            self._found[problem] = None
        else:
            self._left_out += 1

    def __len__(self) -> int:
        return len(self._found) + self._left_out

    def lines(self) -> tuple[str, ...]:
        more = (f"and {self._left_out} more",) if self._left_out else ()
        return (*(each.line for each in sorted(self._found, key=_Problem.order)), *more)

    def raise_any(self, warnings: tuple[str, ...] = ()) -> None:
        """With what else was found, if anything is wrong."""
        if self._found:
            raise InvalidConfiguration(self.lines(), warnings)
