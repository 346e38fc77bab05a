"""Since when, and until when, a node has heard every word of the workers behind one source of reports.

Who cannot hear judges nobody. While a queue is away its workers are as well as they were, and what they say waits; when
it is back it brings what waited, and they need their time to be heard again. So hearing begins when all that waited has
been read and written, and ends with the first read, or write, that fails. A line that was made anew in silence, between
two reads, had no more time for it than may pass between two reads that count as one hearing.
"""

from __future__ import annotations

__all__ = ["WAIT_SECONDS", "ReportWatch"]

# How long a read waits for the first report.
WAIT_SECONDS = 5.0
# How much longer it may take, and how long what it brought may take to be written: a node that was stopped for a while,
# or whose line hangs, has not heard what was said meanwhile.
_SLACK_SECONDS = 5.0


class ReportWatch:
    """One source. Times by `clock.elapsed`."""

    __slots__ = ("_read_at", "_since", "_until")

    def __init__(self) -> None:
        # When the last read was over.
        self._read_at: float | None = None
        self._since: float | None = None
        self._until = 0.0

    @property
    def hears(self) -> bool:
        return self._since is not None

    def has_read(self, began: float, ended: float) -> None:
        """A read has succeeded; what it brought is not written yet."""
        before, self._read_at = self._read_at, ended
        is_late = ended - began > WAIT_SECONDS + _SLACK_SECONDS
        if is_late or (before is not None and began - before > _SLACK_SECONDS):
            self._since = None

    def has_written(self, *, has_more: bool) -> None:
        """What the last read brought is in the ledger. If there was more than it could bring, that may be anything."""
        if self._read_at is None or has_more:
            return
        self._since = self._read_at if self._since is None else self._since
        self._until = self._read_at

    def is_interrupted(self) -> None:
        self._read_at = self._since = None

    def stretch(self, now: float) -> tuple[float, float] | None:
        """Since and until when everything was heard, if it still is."""
        if self._since is None or now - self._until > WAIT_SECONDS + _SLACK_SECONDS:
            return None
        return self._since, self._until
