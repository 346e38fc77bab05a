"""croniter: moments of cron expressions."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from functools import partial
from zoneinfo import ZoneInfo

from croniter import croniter

from benchmarks.contender import verbs


def next_fires(counts: dict[str, int], seconds: float) -> dict[str, list[float]]:
    return {text: verbs.walked(fires, seconds, partial(_walk, text)) for text, fires in counts.items()}


def _walk(expression: str) -> Callable[[int], datetime]:
    start = datetime(2026, 3, 7, 12, tzinfo=ZoneInfo("America/New_York"))
    moments = croniter(expression, start)

    def walk(fires: int) -> datetime:
        at = start
        for _ in range(fires):
            at = moments.get_next(datetime)
        return at

    return walk


if __name__ == "__main__":
    verbs.main(next_fires)
