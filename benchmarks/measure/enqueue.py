"""How fast runs are enqueued by several processes at once, in bulk and one by one, while nobody works on them.

All begin at one moment. The time is from the first beginning to the last end, so a process that is done early counts
against the rate. Processor time of the node is what the processes used from their beginning to their end, of all runs
of both kinds; importing and connecting is not in it. In that of the server connecting is, but no tables are made in it.
"""

from __future__ import annotations

import time

from benchmarks.figure import CPU, Figure, Measured
from benchmarks.stage import Stage

__all__ = ["FIGURES", "measure"]

FIGURES = (
    Figure("bulk", "enqueued in bulk", "runs/s", has_ratio=True, better="more"),
    Figure("single", "one by one", "runs/s", has_ratio=True, better="more"),
    *CPU,
)
# For all of them to import and connect.
_AHEAD_SECONDS = 3.0


def measure(stage: Stage) -> Measured:
    runs, singles = stage.number // stage.processes, stage.size.singles
    stage.call("fill", 0, 0)  # makes the tables
    before = stage.place.server_seconds()
    at = time.time() + _AHEAD_SECONDS
    bulk = stage.call_all("enqueue", [(number * runs, runs, True, at) for number in range(stage.processes)])
    at = time.time() + _AHEAD_SECONDS
    count = runs * stage.processes
    single = stage.call_all(
        "enqueue", [(count + number * singles, singles, False, at) for number in range(stage.processes)]
    )
    server = stage.place.server_seconds() - before
    node = sum(used for _, _, used in [*bulk, *single])
    total = count + singles * stage.processes
    waiting = stage.ledger.waiting()
    assert sorted(waiting) == list(range(total)), f"{total} runs were enqueued, {len(waiting)} wait, and not each once"
    return {
        "bulk": count / _seconds(bulk),
        "single": singles * stage.processes / _seconds(single),
        "node_us": node / total * 1e6,
        **({"server_us": server / total * 1e6} if server else {}),
    }


def _seconds(spans: list[tuple[float, float, float]]) -> float:
    return max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
