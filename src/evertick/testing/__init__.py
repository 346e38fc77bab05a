"""The kit for tests of schedules, jobs and stores.

`virtual_time` and `virtual_time_sync` run a scheduler in virtual time; docs/how-to/test-your-schedules.md shows how.
Names are imported on first use, because every run of pytest loads the plugin in this package.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from evertick.testing.clock import SettableClock
    from evertick.testing.kit import Kit, SyncKit, virtual_time, virtual_time_sync
    from evertick.testing.virtual import TimeStandsStill

__all__ = ["Kit", "SettableClock", "SyncKit", "TimeStandsStill", "virtual_time", "virtual_time_sync"]

_MODULES = {
    "Kit": "kit",
    "SettableClock": "clock",
    "SyncKit": "kit",
    "TimeStandsStill": "virtual",
    "virtual_time": "kit",
    "virtual_time_sync": "kit",
}


def __getattr__(name: str) -> object:
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULES[name]}"), name)
