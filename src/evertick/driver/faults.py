"""All that is wrong with a specification, told at once: whoever mends a file hears everything in one round.

    faults = Faults()
    with faults.of("kill_after"):
        check_kill_after(self.kill_after)
    with faults.of("success_codes", "skip_codes"):
        check_codes(self.success_codes, self.skip_codes)
    faults.raise_any()

A check names the fields it goes by: where one of them was refused before, by its type, nothing more is said of it.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from evertick.errors import InvalidInput, InvalidSpec

__all__ = ["Faults"]


class Faults:
    """What checks have refused, in their order."""

    def __init__(self) -> None:
        self._found: dict[str, tuple[str, ...]] = {}

    @contextmanager
    def of(self, *fields: str) -> Iterator[None]:
        """Around one check: what it refuses is kept, and the next one is made."""
        try:
            yield
        except InvalidInput as wrong:
            self._found[str(wrong)] = fields

    def raise_any(self) -> None:
        if self._found:
            raise InvalidSpec(self._found)
