"""The nodes of an app: who is there, who does what, and how this one is."""

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
    """The node and the queue behind it."""

    is_healthy: bool
    engine: EngineHealth | None
    waiting: int
    running: int
    parked: int
    # Dispatched to an external queue.
    dispatched: int
    # How long the oldest due run has been waiting for a slot, or the oldest due schedule for being recorded; 0 when
    # nothing is due.
    oldest_due_seconds: float
    # Errors of its configuration, which was read again and rejected: what it had before holds.
    configuration_problems: tuple[str, ...] = ()


def is_healthy(engine: EngineLink | None, settings: Settings, *, is_started: bool) -> bool:
    """Whether the engine here runs and all its loops come back. A node without slots has none."""
    if settings.concurrency == 0:
        return is_started
    return engine is not None and engine.health().is_healthy


def _check_kind(kind: object) -> None:
    check_one_of(kind, HA_KINDS, "kind")


async def nodes(context: Context) -> list[Node]:
    """The nodes of this app, living and lately dead."""
    return await context.store.nodes(context.app)


async def duties(context: Context) -> list[Duty]:
    """The duties of this app: who holds each, under which term, when it acted and will again."""
    return await context.store.duties(context.app)


@checked(kind=_check_kind, limit=check_limit)
async def ha(context: Context, *, kind: HaKind | None = None, limit: int = 100) -> HaTable:
    """Every background loop, duty and schedule with its mode, who holds it, its last and next tick, and what N
    nodes do with it. `kind` shows only "loop", "duty" or "schedule"; `limit` is for the schedules."""
    kinds = HA_KINDS if kind is None else (kind,)
    declared = [work.name for work in context.duties.works]
    return await ha_table(context.store, context.app, kinds=kinds, limit=limit, declared_duties=declared)


async def health(context: Context) -> Health:
    """The engine here and the queue behind it."""
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
