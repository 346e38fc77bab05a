"""An idle node takes few steps: loops with wake-ups do not poll."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence

import msgspec
import pytest

from evertick.engine.loop import Loop
from evertick.store.base import DutyHolds
from evertick.store.sqlite import SqliteStore
from simulation.faults import FaultRates
from simulation.story import Pace, make_story
from simulation.world import World

SECONDS, BEAT, LEASE = 600, 3, 15
QUIET = msgspec.structs.replace(
    make_story(0),
    pace=Pace(length=SECONDS, beat=BEAT, lease=LEASE, poll=1, step=1),
    fault_rates=FaultRates(),
    nodes=(2,),
    unknown_tasks=((),),
    tight=(),
    planned=(),
    acts=(),
    has_duties=False,
    sends_messages=False,
)


def _run_idle_node() -> float:
    """Run one idle node for ten minutes; returns how long it was up."""
    world = World(QUIET)
    asyncio.set_event_loop(None)
    world.loop.run_until_complete(world.run())
    assert world.is_settled
    seconds = world.loop.time()
    world.close()
    return seconds


def test_loops_with_wake_ups_take_no_idle_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    steps, take_step = Counter[str](), Loop._try

    async def counted(self: Loop) -> float | None:
        steps[self.name] += 1
        return await take_step(self)

    monkeypatch.setattr(Loop, "_try", counted)
    seconds = _run_idle_node()
    # One step at the start and one at the end.
    assert max(steps[name] for name in ("finish", "progress", "auto_pause", "outbox")) <= 2, steps
    assert steps["recovery"] <= seconds / BEAT + 3, steps
    # `fire` polls for schedules that others added.
    assert steps["fire"] >= seconds * 0.9, steps


def test_a_node_that_holds_all_its_duties_asks_for_them_once_in_four_leases(monkeypatch: pytest.MonkeyPatch) -> None:
    asked, hold_duties = Counter[str](), SqliteStore.hold_duties

    async def counted(self: SqliteStore, app: str, node: str, names: Sequence[str]) -> DutyHolds:
        asked.update(names)
        return await hold_duties(self, app, node, names)

    monkeypatch.setattr(SqliteStore, "hold_duties", counted)
    seconds = _run_idle_node()
    assert set(asked) == {"evertick.prune"}
    wanted = seconds / (4 * LEASE)
    assert wanted - 2 <= asked["evertick.prune"] <= wanted + 2
