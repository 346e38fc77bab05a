"""Looking at the fleet: who holds what, and what more nodes would do."""

from __future__ import annotations

from evertick.definition.settings import check_one_of
from evertick.explain.availability import HA_KINDS, HaKind, HaTable, ha_table
from evertick.operations.context import Managing, check_limit

__all__ = ["ShowsAvailability"]


class ShowsAvailability(Managing):
    """How the work is shared among the nodes."""

    async def ha(self, *, kind: HaKind | None = None, limit: int = 100) -> HaTable:
        """Every background loop, duty and schedule with its mode, who holds it, its last and next tick, and what N
        nodes do with it. `kind` shows only "loop", "duty" or "schedule"; `limit` is for the schedules."""
        if kind is not None:
            check_one_of(kind, HA_KINDS, "kind")
        kinds = HA_KINDS if kind is None else (kind,)
        declared = [work.name for work in self._duties.works]
        return await ha_table(
            await self._store(), self.app, kinds=kinds, limit=check_limit(limit), declared_duties=declared
        )
