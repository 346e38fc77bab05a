"""The sizes of all measurements, full and quick."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "Size"]


@dataclass(frozen=True, kw_only=True)
class Size:
    # Runs that wait in the queue before the workers start; `singles` more are enqueued one by one.
    runs: int
    singles: int
    latency_seconds: float
    # From the start of a worker until it listens.
    settle_seconds: float
    # Numbers of schedules, each once in `period` seconds, watched for `periods`.
    schedules: tuple[int, ...]
    period: int
    periods: int
    # From the last added schedule to the first moment: time for the workers to start.
    ahead_seconds: float
    # After the last moment, for late runs.
    tail_seconds: float
    # From the start of the last run until the ledger has its end.
    end_seconds: float
    herd: tuple[int, ...]
    # Fires a second.
    knee: tuple[int, ...]
    knee_period: int
    knee_periods: int
    preview_periods: int
    cost_schedules: int
    idle_schedules: tuple[int, ...]
    # Until an idle node has done the statements that it does only once.
    idle_settle_seconds: float
    idle_seconds: float
    idle_turns: int
    # Recovery.
    held_runs: int
    lease_seconds: float
    stop_seconds: float
    small_history: int
    large_history: int
    growth_runs: int
    growth_turns: int
    # Fires through the store: schedules, and fires of each.
    fired_schedules: int
    fires_each: int
    # With an open transaction: few schedules that fire all the time, and many that fire as often as real ones.
    open_transaction_schedules: tuple[int, ...]
    open_transaction_seconds: float
    # Fires between two readings of the clock.
    fires_turn: int
    vacuum_seconds: float
    vacuum_schedules: int
    limited_runs: int
    # Dispatched in one turn.
    dispatched_runs: int
    keys: int
    next_fires: int
    # The least time to calculate moments for.
    walk_seconds: float
    imports: int


FULL = Size(
    runs=60_000,
    singles=1_000,
    latency_seconds=10,
    settle_seconds=3,
    schedules=(1_000, 10_000, 100_000),
    period=60,
    periods=1,
    ahead_seconds=10,
    tail_seconds=5,
    end_seconds=0.5,
    herd=(1_000, 10_000, 100_000),
    knee=(4_000, 6_000, 8_000, 12_000, 16_000, 20_000, 24_000, 28_000, 32_000, 40_000, 48_000),
    knee_period=5,
    knee_periods=12,
    preview_periods=4,
    cost_schedules=20_000,
    idle_schedules=(1_000, 100_000),
    idle_settle_seconds=20,
    idle_seconds=60,
    idle_turns=5,
    held_runs=100,
    lease_seconds=15,
    stop_seconds=1,
    small_history=10_000,
    large_history=10_000_000,
    growth_runs=100_000,
    growth_turns=9,
    fired_schedules=10_000,
    fires_each=10,
    open_transaction_schedules=(10_000, 100_000),
    open_transaction_seconds=60,
    fires_turn=10_000,
    vacuum_seconds=120,
    vacuum_schedules=100_000,
    limited_runs=5_000,
    dispatched_runs=10_000,
    keys=500,
    next_fires=2_000,
    walk_seconds=0.3,
    imports=7,
)

# Shows that everything works; its figures mean nothing.
QUICK = Size(
    runs=100,
    singles=5,
    latency_seconds=0.2,
    settle_seconds=0.2,
    schedules=(20,),
    period=1,
    periods=1,
    ahead_seconds=1.5,
    tail_seconds=0.3,
    end_seconds=0.1,
    herd=(20,),
    knee=(20,),
    knee_period=1,
    knee_periods=2,
    preview_periods=1,
    cost_schedules=20,
    idle_schedules=(20,),
    idle_settle_seconds=0.2,
    idle_seconds=0.2,
    idle_turns=1,
    held_runs=3,
    lease_seconds=1,
    stop_seconds=0.1,
    small_history=100,
    large_history=1_000,
    growth_runs=20,
    growth_turns=1,
    fired_schedules=200,
    fires_each=1,
    open_transaction_schedules=(200,),
    open_transaction_seconds=0.3,
    fires_turn=100,
    vacuum_seconds=0.2,
    vacuum_schedules=200,
    limited_runs=20,
    dispatched_runs=20,
    keys=5,
    next_fires=20,
    walk_seconds=0.001,
    imports=1,
)
