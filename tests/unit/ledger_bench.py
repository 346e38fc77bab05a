"""A store in memory with a settable clock, an editor, and ticks without an engine."""

from __future__ import annotations

from typing import Any

from evertick.engine.fire import advance_of
from evertick.ledger.editor import Addition
from evertick.ledger.override_editor import OverrideEditor
from evertick.ledger.parsed_rules import Rules
from evertick.ledger.planning import plan_inputs_of, run_of
from evertick.model import Definition, Gap, Outcome, Run, State, Verdict
from evertick.plan.plan import plan
from evertick.store.base import DeclaredBy, NodeJoin, RunFilter, StoredSchedule, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.when import When
from evertick.when.moment import SECOND

APP = "shop"
NODE = "n1"


class Bench:
    def __init__(self) -> None:
        self.clock = SettableClock()
        self.start = self.clock.now_us()
        self.store = SqliteStore("sqlite://", clock=self.clock, is_inline=True)
        self.editor = OverrideEditor(self.store, APP, self.clock, "UTC")

    async def open(self) -> None:
        await self.store.open(migrate="auto")
        await self.join()

    async def join(self, task: str = "job") -> None:
        await self.store.join(
            NodeJoin(
                id=NODE,
                name="bench",
                app=APP,
                version="0",
                lease=10**15,
                queues=("default",),
                tasks={task: TaskTerms(hash="h")},
                declares={},
            )
        )

    def later(self, seconds: float) -> None:
        self.clock.move(int(seconds * SECOND))

    def seconds(self, us: int | None) -> float | None:
        """A moment in seconds since the bench began."""
        return None if us is None else (us - self.start) / SECOND

    async def add(self, rule: When, key: str = "k", declared: DeclaredBy | None = None, **fields: Any) -> bool:
        definition = Definition(task="job", when="", **fields)
        [taken] = await self.editor.add([Addition(key=key, rule=rule, definition=definition, declared=declared)])
        return taken

    async def stored(self, key: str = "k") -> StoredSchedule:
        [found] = await self.store.stored_schedules(APP, keys=[key])
        return found

    async def tick(self) -> None:
        """Record the due fires."""
        due = await self.store.due_schedules(APP, 100)
        known = await Rules(self.store, APP).of(due.schedules)
        for row in due.schedules:
            means = known[row.id]
            assert means.rule is not None
            inputs = plan_inputs_of(row, means.definition, means.rule, blackout=means.blackout)
            made = plan(inputs, due.now, self.clock.uniform)
            runs = tuple(run_of(self.clock.new_id(), row, means.definition, fire) for fire in made.fires)
            recorded = await self.store.record_fires(APP, None, [advance_of(row, means, made, runs)])
            assert recorded.taken == [True]

    async def run_all(self) -> int:
        """Claim all due runs and finish them as succeeded."""
        claim = await self.store.claim(APP, NODE, ["default"], {"job": TaskTerms(hash="h")}, 100)
        outcomes = [
            Outcome(id=run.id, fence=run.fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1)
            for run in claim.runs
        ]
        await self.store.finish(APP, NODE, outcomes)
        return len(outcomes)

    async def claim_all(self) -> int:
        claim = await self.store.claim(APP, NODE, ["default"], {"job": TaskTerms(hash="h")}, 100)
        return len(claim.runs)

    async def runs(self, key: str = "k") -> list[Run]:
        """Oldest first."""
        return (await self.store.runs(APP, RunFilter(schedule_key=key)))[::-1]

    async def fired(self, key: str = "k") -> list[float]:
        """The moments that became runs, in seconds since the bench began."""
        return [run.fire_at.timestamp() - self.start / SECOND for run in await self.runs(key)]

    async def gaps(self, key: str = "k") -> list[tuple[float, float, int, str, str]]:
        """(first, last, count, verdict, reason), oldest first."""
        return [self._row(gap) for gap in (await self.store.gaps(APP, RunFilter(schedule_key=key)))[::-1]]

    def _row(self, gap: Gap) -> tuple[float, float, int, str, str]:
        begin = self.start / SECOND
        first, last = gap.first_at.timestamp() - begin, gap.last_at.timestamp() - begin
        return first, last, gap.count, gap.verdict.value, gap.reason

    async def states(self, key: str = "k") -> list[tuple[State, Verdict | None, str | None]]:
        return [(run.state, run.verdict, run.reason) for run in await self.runs(key)]
