"""One simulation, from seed to violations."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from evertick.errors import EvertickError
from simulation.evidence import Evidence
from simulation.journal import Event
from simulation.loop import SimulationStuck
from simulation.oracle import check
from simulation.story import Story, make_story
from simulation.world import World

__all__ = ["SimulationResult", "simulate"]


class SimulationResult(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a seed. Without violations, all promises were kept."""

    seed: int
    story: Story
    trace: str
    events: list[Event]
    violations: list[str]
    seconds: float


def simulate(
    seed: int, *, with_trace: bool = False, prepare: Callable[[sqlite3.Connection], object] | None = None
) -> SimulationResult:
    """Run the story of a seed and check the result."""
    story = make_story(seed)
    world = World(story, prepare)
    asyncio.set_event_loop(None)
    violations: list[str] = []
    with _collect_errors() as logged_errors:
        try:
            world.loop.run_until_complete(world.run())
        except SimulationStuck as error:
            violations.append(str(error))
        seconds = world.loop.time()
        events = world.journal.all
        loop_errors = [str(context.get("exception") or context["message"]) for context in _unexpected(world)]
        evidence = Evidence.of(world)
        world.close()
    violations += [f"unexpected: {each}" for each in [*logged_errors, *loop_errors]]
    violations += check(evidence)
    return SimulationResult(
        seed=seed,
        story=story,
        trace=world.journal.trace() if with_trace else "",
        events=events,
        violations=violations,
        seconds=seconds,
    )


def _unexpected(world: World) -> list[dict[str, object]]:
    return [each for each in world.loop.loop_errors if not isinstance(each.get("exception"), EvertickError)]


class _UnexpectedErrors(logging.Handler):
    """Collects logged errors that are not Evertick's own."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.messages: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EvertickError):
            self.messages.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _collect_errors() -> Iterator[list[str]]:
    """Silence the log, and collect unexpected errors."""
    log, handler = logging.getLogger("evertick"), _UnexpectedErrors()
    before = log.level, log.propagate
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.ERROR)
        log.propagate = False
    try:
        yield handler.messages
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before
