"""Runs a second from a full queue, and the speed of enqueueing.

`measure`: one process fills the queue, in bulk and then one by one, and the workers execute it. The time is from the
first execution to the last; if there is a ledger, until the store wrote the last end, because workers may be ahead of
it. Starting is not included. Processor time is from the moment all workers are released until half a second after the
last execution began. Evertick opens its store within that time, the raw loops have connected before.

`measure_enqueue`: several processes enqueue at the same time while no worker runs. The time is from the first start to
the last end. Processor time of the node excludes importing and connecting; that of the server includes connecting.
"""

from __future__ import annotations

import time

from benchmarks.measurement import CPU, Measured, Metric
from benchmarks.trial import Trial
from benchmarks.usage import CpuTime

__all__ = ["ENQUEUE_METRICS", "METRICS", "execute", "measure", "measure_enqueue"]

METRICS = (
    Metric("runs", "queue", "runs"),
    Metric("execute", "executed", "runs/s", has_ratio=True, better="more"),
    *CPU,
    Metric("bulk", "enqueued in bulk", "runs/s", has_ratio=True, better="more"),
    Metric("single", "enqueued one by one", "runs/s", has_ratio=True, better="more"),
)
ENQUEUE_METRICS = (*METRICS[-2:], *CPU)
# A run that takes longer is not worth measuring.
_SECONDS_PER_RUN = 0.1
# No run is due longer than that before it is executed.
_DUE_SECONDS = 3_600
# For all enqueueing processes to import and connect.
_AHEAD_SECONDS = 3.0


def measure(trial: Trial) -> Measured:
    runs = max(round(trial.number * trial.contender.share), 10)
    singles = max(round(trial.size.singles * min(trial.contender.share * 10, 1)), 1)
    took = trial.call("fill", runs, singles)
    trial.backend.settle()
    measured = {"runs": runs + singles, **execute(trial, runs + singles)}
    # One process fills the queue, so its speed belongs to the case of one worker.
    if trial.processes > 1:
        return measured
    if "bulk_seconds" in took:
        measured["bulk"] = runs / took["bulk_seconds"]
    return {**measured, "single": singles / took["single_seconds"]}


def execute(trial: Trial, count: int, existing: int = 0) -> dict[str, float]:
    """Let the workers execute the queue, and check it. The ledger has `existing` runs from before."""
    trial.clear_executions()
    with trial.workers("work", 0) as workers:
        workers.wait_until_ready()
        before = CpuTime.of_workers(workers, trial.backend)
        workers.go()
        trial.wait_for(count, workers, 60 + count * _SECONDS_PER_RUN)
        time.sleep(trial.size.end_seconds)
        used = CpuTime.of_workers(workers, trial.backend).since(before)
    trial.check(count, existing)
    return {"execute": count / _seconds(trial), **used.each(count)}


def _seconds(trial: Trial) -> float:
    executions = trial.executions()
    if not trial.contender.has_ledger:
        return executions.seconds
    first = min(executions.begans)
    written = trial.ledger.last_written(round((first - _DUE_SECONDS) * 1e6))
    return max(max(executions.begans), written) - first


def measure_enqueue(trial: Trial) -> Measured:
    runs, singles = trial.number // trial.processes, trial.size.singles
    trial.call("fill", 0, 0)  # creates the tables
    before = trial.backend.server_seconds()
    at = time.time() + _AHEAD_SECONDS
    bulk = trial.call_all("enqueue", [(number * runs, runs, True, at) for number in range(trial.processes)])
    at = time.time() + _AHEAD_SECONDS
    count = runs * trial.processes
    single = trial.call_all(
        "enqueue", [(count + number * singles, singles, False, at) for number in range(trial.processes)]
    )
    server = trial.backend.server_seconds() - before
    node = sum(used for _, _, used in [*bulk, *single])
    total = count + singles * trial.processes
    waiting = trial.ledger.waiting()
    assert sorted(waiting) == list(range(total)), f"{total} runs were enqueued, {len(waiting)} wait, not each once"
    return {
        "bulk": count / _span(bulk),
        "single": singles * trial.processes / _span(single),
        "node_us": node / total * 1e6,
        **({"server_us": server / total * 1e6} if server else {}),
    }


def _span(spans: list[tuple[float, float, float]]) -> float:
    return max(end for _, end, _ in spans) - min(begin for begin, _, _ in spans)
