"""Everything that people and programs can ask of the ledger or change in it: one typed function each, context first."""

from evertick.operations import (
    apply,
    backfills,
    bulk,
    calendars,
    change_preview,
    clock,
    feed,
    next_fires,
    nodes,
    outbox,
    overrides,
    preview,
    runs,
    schedules,
    tasks,
    timeline,
)

__all__ = [
    "apply",
    "backfills",
    "bulk",
    "calendars",
    "change_preview",
    "clock",
    "feed",
    "next_fires",
    "nodes",
    "outbox",
    "overrides",
    "preview",
    "runs",
    "schedules",
    "tasks",
    "timeline",
]
