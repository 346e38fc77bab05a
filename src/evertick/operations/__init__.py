"""Everything that people and programs can ask of the ledger or change in it: one typed function each, context first."""

from evertick.operations import (
    apply,
    backfills,
    bulk,
    calendars,
    change_preview,
    feed,
    nodes,
    outbox,
    overrides,
    preview,
    runs,
    schedules,
    tasks,
)

__all__ = [
    "apply",
    "backfills",
    "bulk",
    "calendars",
    "change_preview",
    "feed",
    "nodes",
    "outbox",
    "overrides",
    "preview",
    "runs",
    "schedules",
    "tasks",
]
