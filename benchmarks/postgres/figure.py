"""The figures of PostgreSQL by name: those it shares with SQLite, and those that only a fleet has."""

from __future__ import annotations

from benchmarks.figure import FIGURES as SHARED
from benchmarks.figure import Figure
from benchmarks.postgres.engine import IDLE_NODES
from benchmarks.postgres.growth import STEPS

__all__ = ["FIGURES", "GROUPS"]

_FIRES = (
    Figure("fires_store", "fires through the store, 1,000 per batch", "fires/s"),
    Figure("raw_fires_store", "  raw loop, the same rows", "fires/s"),
    Figure("ratio_fires_store", "  Evertick / raw loop", "ratio"),
    Figure("fires_store_statements", "  statements, counted by the server", "per fire"),
    Figure("fires_store_commits", "  commits that wrote something", "per fire"),
    Figure("fires_store_wal", "  bytes of the server's log", "per fire"),
    Figure("raw_fires_store_wal", "  the same of the raw loop", "per fire"),
    Figure("fires_engine", "fires of a whole node, all due at one moment", "fires/s"),
    Figure("fires_engine_statements", "  statements, counted by the server", "per fire"),
    Figure("fires_engine_wal", "  bytes of the server's log", "per fire"),
    Figure("fires_engine_cpu", "  processor of the node", "% of a core"),
)
_LIMITS = tuple(
    figure
    for name, text in (
        ("limit_none", "three nodes, no limit"),
        ("limit_one_key", "three nodes, concurrency of 10, one key"),
        ("limit_many_keys", "three nodes, concurrency of 10, many keys"),
        ("limit_rate", "three nodes, a rate that is not reached"),
    )
    for figure in (Figure(name, text, "runs/s"), Figure(f"{name}_statements", "  statements", "per run"))
)
_GROWTH = tuple(
    figure
    for step in STEPS
    for figure in (
        Figure(f"growth_{step}", f"{step}, 1,000 at once, long history / short", "ratio"),
        Figure(f"growth_{step}_small", "  short history", "ms"),
        Figure(f"growth_{step}_large", "  long history", "ms"),
    )
)
_VACUUM = tuple(
    Figure(f"{name}_{figure}", f"{text if figure == 'fires' else '  ' + said}", unit)
    for name, text in (("options", "fires for minutes, tables as migrated"), ("defaults", "  as the server has them"))
    for figure, said, unit in (
        ("fires", "", "fires/s"),
        ("due_dead", "dead rows among the cursors at the end", "rows"),
        ("due_hot", "cursors moved without touching an index", "%"),
        ("due_megabytes", "cursors with their indexes", "MB"),
        ("runs_dead", "dead rows among the live runs at the end", "rows"),
        ("runs_megabytes", "live runs with their indexes", "MB"),
        ("vacuums", "times that autovacuum came", "times"),
    )
)

# What of the figures of SQLite is measured here, too; a node's memory and the import are the same for every store.
_QUEUE = tuple(figure for figure in SHARED if not figure.name.startswith(("idle", "memory", "import")))

_IDLE = tuple(
    figure
    for nodes in IDLE_NODES
    for figure in (
        Figure(f"idle_{nodes}_statements", f"idle with many schedules, nodes: {nodes}", "statements/s"),
        Figure(f"idle_{nodes}_cpu", "  processor, all nodes", "% of a core"),
        Figure(f"idle_{nodes}_server_cpu", "  processor, server", "% of a core"),
    )
)

# By group, as they can be asked for.
GROUPS = ("fires", "queue", "waits", "idle", "limits", "growth", "vacuum")
FIGURES = (*_FIRES, *_QUEUE, *_IDLE, *_LIMITS, *_GROWTH, *_VACUUM)
