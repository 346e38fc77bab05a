"""The nodes of an app, their duties and loops, and the health of this node."""

from __future__ import annotations

import msgspec

from evertick.definition.settings import Settings, check_one_of
from evertick.doctor.health import due_since
from evertick.engine.engine import EngineHealth
from evertick.explain.availability import HA_KINDS, HaKind, HaTable, ha_table
from evertick.model import Duty, Node
from evertick.operations.context import Context, EngineLink, check_limit, checked
from evertick.store.base import ScheduleFilter
from evertick.when import from_us

__all__ = ["Health", "duties", "ha", "health", "is_healthy", "nodes"]

_NEXT_DUE = ScheduleFilter(is_paused=False, is_by_due=True, with_counts=False, limit=1)


class Health(msgspec.Struct, frozen=True, kw_only=True):
    """The health of this node and of the run queue."""

    is_healthy: bool
    engine: EngineHealth | None
    waiting: int
    running: int
    parked: int
    # Dispatched to an external queue.
    dispatched: int
    # How long the oldest due run waits for a slot, or the oldest due schedule to be recorded; 0 if nothing is due.
    oldest_due_seconds: float
    # Errors of a reloaded configuration that was rejected.
    configuration_problems: tuple[str, ...] = ()


def is_healthy(engine: EngineLink | None, settings: Settings, *, is_started: bool) -> bool:
    """Whether the engine runs and all its loops respond. A node without slots has no engine."""
    if settings.concurrency == 0:
        return is_started
    return engine is not None and engine.health().is_healthy


def _check_kind(kind: object) -> None:
    check_one_of(kind, HA_KINDS, "kind")


async def nodes(context: Context) -> list[Node]:
    """The nodes of this app: live ones, and those that ended in the last day."""
    return await context.store.nodes(context.app)


async def duties(context: Context) -> list[Duty]:
    """The duties of this app: the holder of each, its term, its last and its next tick."""
    return await context.store.duties(context.app)


@checked(kind=_check_kind, limit=check_limit)
async def ha(context: Context, *, kind: HaKind | None = None, limit: int = 100) -> HaTable:
    """Every background loop, duty and schedule: its mode, holders, last and next tick, and how it runs on N nodes.

    `kind` shows only "loop", "duty" or "schedule"; `limit` is for the schedules.
    """
    kinds = HA_KINDS if kind is None else (kind,)
    declared = [work.name for work in context.duties.works]
    return await ha_table(context.store, context.app, kinds=kinds, limit=limit, declared_duties=declared)


async def health(context: Context) -> Health:
    """The health of the engine of this process, and of the run queue."""
    pulse = await context.store.pulse(context.app)
    due = await context.store.schedules(context.app, _NEXT_DUE)
    since = due_since(pulse, due)
    return Health(
        is_healthy=is_healthy(context.engine, context.settings, is_started=context.is_started),
        engine=None if context.engine is None else context.engine.health(),
        waiting=pulse.waiting,
        running=pulse.running,
        parked=pulse.parked,
        dispatched=pulse.dispatched,
        oldest_due_seconds=0.0 if since is None else (from_us(pulse.now) - since).total_seconds(),
        configuration_problems=context.configuration_problems,
    )
