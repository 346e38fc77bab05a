"""For tests of schedules, jobs and stores.

`virtual_time` and `virtual_time_sync` run a scheduler in virtual time; docs/how-to/test-your-schedules.md shows how.
"""

from evertick.testing.clock import SettableClock
from evertick.testing.kit import Kit, SyncKit, virtual_time, virtual_time_sync
from evertick.testing.virtual import TimeStandsStill

__all__ = ["Kit", "SettableClock", "SyncKit", "TimeStandsStill", "virtual_time", "virtual_time_sync"]
