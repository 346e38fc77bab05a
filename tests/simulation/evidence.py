"""What the oracle is given: the story, the journal, the last state of the tables, and who was left alone when."""

from __future__ import annotations

from typing import Any

import msgspec

from simulation.calm import Calm
from simulation.journal import Deed, Happening, Job
from simulation.replay import Call, calls
from simulation.story import Story
from simulation.world import World

__all__ = ["SECOND", "Evidence"]

SECOND = 1_000_000


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    story: Story
    happenings: list[Happening]
    calls: list[Call]
    jobs: list[Job]
    deeds: list[Deed]
    calm: Calm
    # Lines of log by (run, fence), in order.
    logs: dict[tuple[str, int], list[str]]
    ended_at: int
    is_settled: bool
    are_all_gone: bool

    @classmethod
    def of(cls, world: World) -> Evidence:
        happenings = world.journal.all
        return cls(
            story=world.story,
            happenings=happenings,
            calls=list(calls(happenings)),
            jobs=[each for each in happenings if isinstance(each, Job)],
            deeds=[each for each in happenings if isinstance(each, Deed)],
            calm=Calm(happenings),
            logs=_logs(world),
            ended_at=world.clock.now_us(),
            is_settled=world.is_settled,
            are_all_gone=all(machine.is_over for machine in world.machines),
        )

    @property
    def lease(self) -> int:
        return int(self.story.pace.lease * SECOND)

    @property
    def beat(self) -> int:
        return int(self.story.pace.beat * SECOND)

    @property
    def poll(self) -> int:
        return int(self.story.pace.poll * SECOND)

    @property
    def is_gentle(self) -> bool:
        """Whether calls are lost so seldom that promises of time can be held against the clock."""
        climate = self.story.climate
        return climate.lost_share + climate.unanswered_share < 0.05 and climate.delay_seconds <= 0.05


def _logs(world: World) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    query = "SELECT run, fence, lines FROM evertick_log_chunks ORDER BY run, fence, seq"
    for run, fence, lines in world.database.execute(query):
        decoded: list[Any] = msgspec.json.decode(lines)
        found.setdefault((run, fence), []).extend(text for _, _, text in decoded)
    return found
