"""One simulation from seed to verdict."""

from __future__ import annotations

import asyncio
import logging
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager

import msgspec

from evertick.errors import EvertickError
from simulation.evidence import Evidence
from simulation.journal import Happening
from simulation.loop import StandsStill
from simulation.oracle import check
from simulation.story import Story, tell
from simulation.world import World

__all__ = ["Simulated", "simulate"]


class Simulated(msgspec.Struct, frozen=True, kw_only=True):
    """What became of a seed. No violations: all promises were kept."""

    seed: int
    story: Story
    trace: str
    happenings: list[Happening]
    violations: list[str]
    seconds: float


def simulate(
    seed: int, *, with_trace: bool = False, prepare: Callable[[sqlite3.Connection], object] | None = None
) -> Simulated:
    """Let the story of a seed take place, and check what came of it."""
    story = tell(seed)
    world = World(story, prepare)
    asyncio.set_event_loop(None)
    violations: list[str] = []
    with _eavesdropping() as overheard:
        try:
            world.loop.run_until_complete(world.run())
        except StandsStill as error:
            violations.append(str(error))
        seconds = world.loop.time()
        happenings = world.journal.all
        complaints = [str(complaint.get("exception") or complaint["message"]) for complaint in _real(world)]
        evidence = Evidence.of(world)
        world.close()
    violations += [f"unexpected: {each}" for each in [*overheard, *complaints]]
    violations += check(evidence)
    return Simulated(
        seed=seed,
        story=story,
        trace=world.journal.trace() if with_trace else "",
        happenings=happenings,
        violations=violations,
        seconds=seconds,
    )


def _real(world: World) -> list[dict[str, object]]:
    return [each for each in world.loop.complaints if not isinstance(each.get("exception"), EvertickError)]


class _Overhearing(logging.Handler):
    """Notices errors in the engine that nobody planned."""

    def __init__(self) -> None:
        super().__init__(logging.ERROR)
        self.heard: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        error = record.exc_info[1] if record.exc_info else None
        if error is not None and not isinstance(error, EvertickError):
            self.heard.append(f"{record.getMessage()}: {error!r}")


@contextmanager
def _eavesdropping() -> Iterator[list[str]]:
    """Silence the log, but for what must not be in it."""
    log, handler = logging.getLogger("evertick"), _Overhearing()
    before = log.level, log.propagate
    log.addHandler(handler)
    if log.level == logging.NOTSET:
        log.setLevel(logging.ERROR)
        log.propagate = False
    try:
        yield handler.heard
    finally:
        log.removeHandler(handler)
        log.level, log.propagate = before
