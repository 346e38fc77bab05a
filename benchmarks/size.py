"""How much of everything one round does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Size"]


@dataclass(frozen=True, kw_only=True)
class Size:
    """The quantities of one round."""

    # Runs that wait in the queue before a node starts.
    runs: int
    # Runs enqueued one by one, each with a commit of its own.
    single_runs: int
    latency_seconds: float
    schedules: int
    schedule_seconds: int
    # From adding the schedules to the first moment of any.
    ahead_seconds: float
    idle_schedules: int
    idle_seconds: float
    imports: int
    # Peers are slower by an order of magnitude or more; with as many runs they would take minutes.
    peer_runs: int


FULL = Size(
    runs=20_000,
    single_runs=1_000,
    latency_seconds=5,
    schedules=1_000,
    schedule_seconds=5,
    ahead_seconds=2,
    idle_schedules=10_000,
    idle_seconds=10,
    imports=7,
    peer_runs=2_000,
)

# Proves that everything works; its figures mean nothing.
QUICK = Size(
    runs=300,
    single_runs=10,
    latency_seconds=0.2,
    schedules=20,
    schedule_seconds=1,
    ahead_seconds=1,
    idle_schedules=50,
    idle_seconds=0.2,
    imports=1,
    peer_runs=20,
)
