"""cronsim: moments of cron expressions."""

from __future__ import annotations

import time
from datetime import datetime
from zoneinfo import ZoneInfo

from cronsim import CronSim

from benchmarks.contender import verbs


def next_fires(counts: dict[str, int]) -> dict[str, float]:
    return {expression: _seconds(expression, fires) for expression, fires in counts.items()}


def _seconds(expression: str, fires: int) -> float:
    moments = CronSim(expression, datetime(2026, 3, 7, 12, tzinfo=ZoneInfo("America/New_York")))
    next(moments)  # the first question takes longer
    began = time.perf_counter()
    for _ in range(fires):
        next(moments)
    return time.perf_counter() - began


if __name__ == "__main__":
    verbs.main(next_fires)
