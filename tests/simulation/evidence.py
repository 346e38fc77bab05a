"""The input of the checks: the story, the journal, the logs in the tables, and the disturbances."""

from __future__ import annotations

from typing import Any

import msgspec

from simulation.disturbances import Disturbances
from simulation.journal import Action, Event, JobEvent
from simulation.replay import Call, calls
from simulation.story import Story
from simulation.world import World

__all__ = ["SECOND", "Evidence"]

SECOND = 1_000_000


class Evidence(msgspec.Struct, frozen=True, kw_only=True):
    story: Story
    events: list[Event]
    calls: list[Call]
    jobs: list[JobEvent]
    actions: list[Action]
    disturbances: Disturbances
    # Lines of log by (run, fence), in order.
    logs: dict[tuple[str, int], list[str]]
    ended_at: int
    is_settled: bool
    have_all_stopped: bool

    @classmethod
    def of(cls, world: World) -> Evidence:
        events = world.journal.all
        return cls(
            story=world.story,
            events=events,
            calls=list(calls(events)),
            jobs=[each for each in events if isinstance(each, JobEvent)],
            actions=[each for each in events if isinstance(each, Action)],
            disturbances=Disturbances(events),
            logs=_logs(world),
            ended_at=world.clock.now_us(),
            is_settled=world.is_settled,
            have_all_stopped=all(machine.is_over for machine in world.machines),
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
    def has_few_faults(self) -> bool:
        """Whether so few calls are lost that promises of time can be checked."""
        fault_rates = self.story.fault_rates
        return fault_rates.lost_share + fault_rates.unanswered_share < 0.05 and fault_rates.delay_seconds <= 0.05


def _logs(world: World) -> dict[tuple[str, int], list[str]]:
    found: dict[tuple[str, int], list[str]] = {}
    query = "SELECT run, fence, lines FROM evertick_log_chunks ORDER BY run, fence, seq"
    for run, fence, lines in world.database.execute(query):
        decoded: list[Any] = msgspec.json.decode(lines)
        found.setdefault((run, fence), []).extend(text for _, _, text in decoded)
    return found
