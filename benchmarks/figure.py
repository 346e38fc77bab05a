"""The figures by name, what they mean, and the table that people read."""

from __future__ import annotations

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

__all__ = ["FIGURES", "PEER_FIGURES", "Figure", "summary", "table", "with_ratios"]


@dataclass(frozen=True)
class Figure:
    """One row of the table."""

    name: str
    text: str
    unit: str


FIGURES = (
    Figure("execute_100", "execute, 100 runs at once", "runs/s"),
    Figure("raw_execute_100", "  raw loop, batches of 100", "runs/s"),
    Figure("ratio_execute_100", "  Evertick / raw loop", "ratio"),
    Figure("execute_1000", "execute, 1,000 runs at once", "runs/s"),
    Figure("raw_execute_1000", "  raw loop, batches of 1,000", "runs/s"),
    Figure("ratio_execute_1000", "  Evertick / raw loop", "ratio"),
    Figure("execute_unreached", "execute with a concurrency that is not reached", "runs/s"),
    Figure("execute_capped", "  half as many at once as there are slots", "runs/s"),
    Figure("execute_rated", "  with a rate that is not reached", "runs/s"),
    Figure("enqueue_bulk", "enqueue, 1,000 per call", "runs/s"),
    Figure("raw_enqueue_bulk", "  raw inserts, 1,000 per commit", "runs/s"),
    Figure("ratio_enqueue_bulk", "  Evertick / raw inserts", "ratio"),
    Figure("enqueue_single", "enqueue, one by one", "runs/s"),
    Figure("raw_enqueue_single", "  raw inserts, one per commit", "runs/s"),
    Figure("ratio_enqueue_single", "  Evertick / raw inserts", "ratio"),
    Figure("latency_p50", "enqueue to start, 50/s, p50", "ms"),
    Figure("latency_p99", "  p99", "ms"),
    Figure("latency_max", "  max", "ms"),
    Figure("latency_remote_p50", "the same from another process, p50", "ms"),
    Figure("latency_remote_p99", "  p99", "ms"),
    Figure("latency_remote_max", "  max", "ms"),
    Figure("lateness_p50", "schedules once a second, late by, p50", "ms"),
    Figure("lateness_p99", "  p99", "ms"),
    Figure("herd_first", "schedules at one instant, first late by", "ms"),
    Figure("herd_last", "  last late by", "ms"),
    Figure("idle_cpu", "idle with many schedules, processor", "% of a core"),
    Figure("memory_before", "  memory before the node starts", "MB"),
    Figure("memory_after", "  memory of the idle node", "MB"),
    Figure("import", "import evertick", "ms"),
)

PEER_FIGURES = (
    Figure("huey_execute", "Huey on SQLite with fsync, execute", "runs/s"),
    Figure("huey_enqueue", "  enqueue one by one", "runs/s"),
    Figure("apscheduler_execute", "APScheduler 3 on SQLite, execute", "runs/s"),
    Figure("apscheduler_enqueue", "  add_job one by one", "runs/s"),
)

# Of two figures of the same round, so that what slows the machine down slows both.
_RATIOS = {
    f"ratio_{name}": (name, f"raw_{name}") for name in ("execute_100", "execute_1000", "enqueue_bulk", "enqueue_single")
}


def with_ratios(figures: Mapping[str, float]) -> dict[str, float]:
    """What was measured in one round, and the ratios of it."""
    pairs = [(name, ours, theirs) for name, (ours, theirs) in _RATIOS.items() if theirs in figures]
    return {**figures, **{name: figures[ours] / figures[theirs] for name, ours, theirs in pairs}}


def summary(samples: Sequence[float]) -> dict[str, float | list[float]]:
    return {
        "median": statistics.median(samples),
        "min": min(samples),
        "max": max(samples),
        "samples": list(samples),
    }


def table(samples: Mapping[str, Sequence[float]], figures: Sequence[Figure]) -> str:
    """Median [min..max] of the rounds, a line per figure that was measured."""
    rows = [_row(figure, samples[figure.name]) for figure in figures if figure.name in samples]
    widths = [max(len(row[column]) for row in rows) for column in range(3)]
    return "\n".join(
        f"{text:<{widths[0]}}  {median:>{widths[1]}}  {spread:<{widths[2]}}  {unit}"
        for text, median, spread, unit in rows
    )


def _row(figure: Figure, samples: Sequence[float]) -> tuple[str, str, str, str]:
    spread = f"[{_number(min(samples))}..{_number(max(samples))}]"
    return figure.text, _number(statistics.median(samples)), spread, figure.unit


def _number(value: float) -> str:
    if abs(value) >= 1_000:
        return f"{value:,.0f}"
    return f"{value:.1f}" if abs(value) >= 10 else f"{value:.2f}" if abs(value) >= 0.1 else f"{value:.4f}"
