"""How much of everything one round on PostgreSQL does."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["FULL", "QUICK", "FleetSize"]


@dataclass(frozen=True, kw_only=True)
class FleetSize:
    """The quantities that only a fleet has; the others are those of SQLite."""

    # Schedules that fire, and how often each does through the bare store.
    fired_schedules: int
    fires_each: int
    # Schedules of a whole node that are due at one moment.
    engine_schedules: int
    limited_runs: int
    keys: int
    small_history: int
    large_history: int
    growth_rounds: int
    growth_batch: int
    # How long fires go on for each way to set up the tables, and through how many schedules.
    vacuum_seconds: float
    vacuum_schedules: int
    # Fires between two looks at the time.
    vacuum_turn: int


FULL = FleetSize(
    fired_schedules=10_000,
    fires_each=10,
    engine_schedules=20_000,
    limited_runs=5_000,
    keys=500,
    small_history=10_000,
    large_history=10_000_000,
    growth_rounds=21,
    growth_batch=1_000,
    vacuum_seconds=120,
    vacuum_schedules=100_000,
    vacuum_turn=10_000,
)

# Proves that everything works; its figures mean nothing.
QUICK = FleetSize(
    fired_schedules=200,
    fires_each=2,
    engine_schedules=20,
    limited_runs=40,
    keys=5,
    small_history=100,
    large_history=2_000,
    growth_rounds=2,
    growth_batch=20,
    vacuum_seconds=0.5,
    vacuum_schedules=200,
    vacuum_turn=100,
)
