"""The ways in which a waiting run can come to its verdict, for promises that hold of all of them."""

from __future__ import annotations

from typing import Literal, get_args

from evertick.model import Run, State
from evertick.store.base import TaskTerms
from evertick.testing.conformance.bench import SECOND, Bench, an_outcome

__all__ = ["ENDINGS", "Ending", "end_waiting_run", "expires_for"]

Ending = Literal[
    "finished",
    "cancelled while waiting",
    "cancelled while running, then retried",
    "expired at claim",
    "lost for good",
    "cancelled, and its node died",
]
ENDINGS: tuple[Ending, ...] = get_args(Ending)


def expires_for(way: Ending) -> int | None:
    """What the run must be recorded with (and due long before now) to be able to end this way."""
    return SECOND if way == "expired at claim" else None


async def end_waiting_run(bench: Bench, run: str, way: Ending) -> Run:
    """Bring the only waiting run to its verdict."""
    node = await bench.node()
    match way:
        case "finished":
            await bench.end(node, await bench.hold(node, run))
        case "cancelled while waiting":
            assert await bench.cancel(run) == ["ended"]
        case "cancelled while running, then retried":
            held = await bench.hold(node, run)
            assert await bench.cancel(run) == ["asked"]
            assert await bench.finish(node, an_outcome(held, "retry")) == ["done"]
        case "expired at claim":
            assert (await bench.claim(node)).expired == [run]
        case "lost for good":
            await bench.hold(node, run, terms=TaskTerms(at_most_once=True))
            await bench.store.leave(node)
            await bench.rehome(await bench.node())
        case "cancelled, and its node died":
            await bench.hold(node, run)
            assert await bench.cancel(run) == ["asked"]
            await bench.store.leave(node)
            await bench.rehome(await bench.node())
    ended = await bench.run(run)
    assert ended.state is State.DONE
    return ended
