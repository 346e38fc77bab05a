"""From when on something is a finding: all that the doctor and `status` compare with, in one table."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from evertick.doctor.finding import Severity
from evertick.when.moment import MINUTE

__all__ = ["Thresholds"]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """Those that the flags of `status` change. Whatever waits is graded by the lag; a count of 0: never."""

    lag_warning: timedelta = timedelta(minutes=1)
    lag_critical: timedelta = timedelta(minutes=10)
    failed_warning: int = 1
    failed_critical: int = 0

    def of_lag(self, waited: timedelta) -> Severity | None:
        if waited < self.lag_warning:
            return None
        return Severity.ERROR if waited >= self.lag_critical else Severity.WARNING

    def of_failed(self, count: int) -> Severity | None:
        if 0 < self.failed_critical <= count:
            return Severity.ERROR
        return Severity.WARNING if 0 < self.failed_warning <= count else None


CLOCK_APART = timedelta(seconds=2)
# A node beats five times in a lease: by this share of it two beats are missing and the third is due.
LATE_BEAT_SHARE = 0.6
# By then over: the first beat of a node, the transfer of a duty, a failed start of one that has no ticks.
SETTLED = timedelta(minutes=1)
# A node ends pauses when it looks, at least every 15 seconds.
PAUSE_OVERDUE = timedelta(minutes=1)
# Limits make runs wait; this long, more comes than they let through, or a run never ends.
HELD_BACK_LONG = timedelta(hours=1)
# Transactions of programs that answer people are over by then.
FEED_HELD = MINUTE

# A few dates are single closures, which may pass; so many are a list of holidays.
HOLIDAYS_LEAST = 4
CALENDAR_ENDS_SOON = timedelta(days=60)
# So many schedules at one instant are a herd.
HERD = 10
# Fewer ended runs do not tell how long runs take.
RUNS_LEAST = 3
# What a blocked event loop has held up is written down together when it goes on.
ENDED_TOGETHER = timedelta(seconds=0.5)

MEBI = 1_048_576
# With less than this the next herd of runs may find the disk full.
DISK_LEAST, DISK_LOW = 64 * MEBI, 512 * MEBI
# SQLite folds its log into the file from 4 MiB on; a reader that never ends keeps one this large from it.
WAL_LARGE = 256 * MEBI
FREE_SHARE, FREE_PAGES = 0.5, 10_000
CHECK_SECONDS = 10.0
