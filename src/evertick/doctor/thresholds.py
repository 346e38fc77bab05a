"""The thresholds of the doctor and of `status`, in one table."""

from __future__ import annotations

from datetime import timedelta

import msgspec

from evertick.doctor.finding import Severity
from evertick.when.moment import MINUTE

__all__ = ["Thresholds"]


class Thresholds(msgspec.Struct, frozen=True, kw_only=True):
    """The thresholds that flags of `status` set. The lag also grades waiting runs and messages. A count of 0: off."""

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
# A node sends five heartbeats per lease; after this share of a lease two are missing and the third is due.
LATE_BEAT_SHARE = 0.6
# Longer than the first heartbeat of a node, the transfer of a duty, and a failed start of a duty without ticks.
SETTLED = timedelta(minutes=1)
# A node ends pauses at least every 15 seconds.
PAUSE_OVERDUE = timedelta(minutes=1)
# Runs that wait this long for a limit: more are enqueued than it allows, or a run never ends.
HELD_BACK_LONG = timedelta(hours=1)
# Transactions of interactive programs are shorter.
FEED_HELD = MINUTE

# A calendar with fewer dates has single closures, and no list of holidays.
HOLIDAYS_LEAST = 4
CALENDAR_ENDS_SOON = timedelta(days=60)
# Schedules at the same instant.
HERD = 10
# Fewer ended runs do not show how long runs take.
RUNS_LEAST = 3
# Jobs delayed by a blocked event loop end together when it continues.
ENDED_TOGETHER = timedelta(seconds=0.5)

MEBI = 1_048_576
# With less, the next burst of runs may fill the disk.
DISK_LEAST, DISK_LOW = 64 * MEBI, 512 * MEBI
# SQLite checkpoints its log from 4 MiB on; a reader that never ends prevents it.
WAL_LARGE = 256 * MEBI
FREE_SHARE, FREE_PAGES = 0.5, 10_000
CHECK_SECONDS = 10.0
