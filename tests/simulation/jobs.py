"""The jobs of a simulation. Each records its start and its end outside of the store.

One for each way to end: quick, slow, failing, failing at first (flaky), skipping, timing out (overtime), ignoring a
cancel (deaf), at-most-once (precious), raising Retry (asking), logging (talking), killing its node (deadly); and one
for each kind of limit. The duration is an argument.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any, Protocol

from evertick.driver.base import Work
from evertick.driver.python.function import FunctionDriver, Threads
from evertick.errors import Retry, Skip
from evertick.job.context import Context
from evertick.model.limits import make_concurrency, make_rate
from evertick.model.retry import Constant, Exponential, Linear
from simulation.loop import Machine, here
from simulation.senders import CHANNEL

__all__ = ["TALK", "TIGHT_WORKS", "WORKS", "JobMachine", "JobRecorder", "token"]

# Lines that the talking job writes.
TALK = 5


class JobRecorder(Protocol):
    """Records the events of jobs."""

    def record(self, what: str, context: Context, cause: str = "") -> None: ...


class JobMachine(Machine):
    """A machine that runs jobs and records their events."""

    recorder: JobRecorder
    # Whether every job sends a message.
    sends_messages: bool = False

    def die(self) -> None:
        """Kill this machine, as a job does that crashes its process."""
        raise NotImplementedError


def _job_machine() -> JobMachine:
    machine = here()
    assert isinstance(machine, JobMachine), "jobs run on a JobMachine"
    return machine


def token(run: str, fence: int) -> str:
    """The result of every job that returns: names its claim."""
    return f"{run}/{fence}"


async def _recorded(context: Context, work: Awaitable[None], key: str = "") -> str:
    """`key`: the limit key of the job."""
    recorder = _job_machine().recorder
    recorder.record("started", context, key)
    if _job_machine().sends_messages:
        # Before anything can fail, because a failed attempt must send nothing.
        claim = token(context.run_id, context.fence)
        context.send(CHANNEL, claim, key=claim)
    try:
        await work
    except asyncio.CancelledError:
        recorder.record("cancelled", context)
        raise
    except Skip:
        recorder.record("skipped", context)
        raise
    except Exception as error:
        recorder.record("raised", context, type(error).__name__)
        raise
    recorder.record("returned", context)
    return token(context.run_id, context.fence)


async def quick(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(0))


async def slow(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(seconds))


async def failing(ctx: Context, seconds: float = 0.0) -> str:
    async def fail() -> None:
        await asyncio.sleep(seconds / 4)
        raise RuntimeError("fails every time")

    return await _recorded(ctx, fail())


async def flaky(ctx: Context, seconds: float = 0.0) -> str:
    async def fail_at_first() -> None:
        await asyncio.sleep(seconds / 4)
        if ctx.attempt < 3:
            raise RuntimeError(f"fails at attempt {ctx.attempt}")

    return await _recorded(ctx, fail_at_first())


async def skipping(ctx: Context, seconds: float = 0.0) -> str:
    async def skip() -> None:
        raise Skip("nothing to do")

    return await _recorded(ctx, skip())


async def overtime(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(seconds * 2))


async def deaf(ctx: Context, seconds: float = 0.0) -> str:
    async def go_on() -> None:
        loop = asyncio.get_running_loop()
        end = loop.time() + seconds
        while loop.time() < end:
            try:
                await asyncio.sleep(end - loop.time())
            except asyncio.CancelledError:
                _job_machine().recorder.record("ignored", ctx)

    return await _recorded(ctx, go_on())


async def precious(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(seconds))


async def asking(ctx: Context, seconds: float = 0.0) -> str:
    async def ask() -> None:
        await asyncio.sleep(seconds / 8)
        if ctx.attempt < 2:
            raise Retry("once more", after=3)

    return await _recorded(ctx, ask())


async def talking(ctx: Context, seconds: float = 0.0) -> str:
    async def talk() -> None:
        for number in range(TALK):
            ctx.log(f"line {number}")
            ctx.progress(number / TALK)
            # Long enough to log after its node has been declared dead.
            await asyncio.sleep(2 * seconds / TALK)

    return await _recorded(ctx, talk())


async def deadly(ctx: Context, seconds: float = 0.0) -> str:
    async def take_all_down() -> None:
        await asyncio.sleep(seconds / 8)
        _job_machine().die()
        await asyncio.sleep(1)

    return await _recorded(ctx, take_all_down())


async def _fail_at_first(ctx: Context, seconds: float) -> None:
    await asyncio.sleep(seconds)
    if ctx.attempt == 1:
        raise RuntimeError("fails at first")


async def capped(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(seconds / 2), "capped")


async def keyed(ctx: Context, seconds: float = 0.0, key: str = "a") -> str:
    return await _recorded(ctx, _fail_at_first(ctx, seconds / 2), f"k-{key}")


async def keyed_too(ctx: Context, seconds: float = 0.0, key: str = "a") -> str:
    return await _recorded(ctx, asyncio.sleep(seconds / 4), f"k-{key}")


async def rated(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, _fail_at_first(ctx, seconds / 8), "rated")


async def rated_by_key(ctx: Context, seconds: float = 0.0, key: str = "a") -> str:
    return await _recorded(ctx, asyncio.sleep(seconds / 8), f"r-{key}")


async def rare_and_alone(ctx: Context, seconds: float = 0.0) -> str:
    return await _recorded(ctx, asyncio.sleep(seconds / 8), "rare_and_alone")


_threads = Threads()


def _work(function: Callable[..., Awaitable[str]], **terms: object) -> Work:
    driver = FunctionDriver(function, function.__name__, _threads)
    return Work(task=function.__name__, driver=driver, hash=driver.signature.hash, **terms)  # type: ignore[arg-type]


def _limits(
    task: str, concurrency: int | None = None, rate: str | None = None, key: str | None = None
) -> dict[str, Any]:
    defaults = {"key": "a"}
    return {
        "concurrency": make_concurrency(concurrency, key if concurrency else None, task, defaults),
        "rate": make_rate(rate, key if rate else None, task, defaults),
    }


WORKS: dict[str, Work] = {
    work.task: work
    for work in (
        _work(quick),
        _work(slow),
        _work(failing, retry=Constant("2s", attempts=3)),
        _work(flaky, retry=Exponential("1s", 2, limit="8s", attempts=4, jitter=0.5)),
        _work(skipping),
        _work(overtime, timeout=4_000_000, retry=Linear("1s", "2s", limit="10s", attempts=2)),
        _work(deaf),
        _work(precious, on_lost="fail", on_unreachable="stop"),
        _work(asking),
        _work(talking),
        _work(deadly),
        _work(capped, **_limits("capped", concurrency=2)),
        _work(keyed, retry=Constant("1s", attempts=3), **_limits("keyed", concurrency=1, key="k-{key}")),
        _work(keyed_too, **_limits("keyed_too", concurrency=2, key="k-{key}")),
        _work(rated, retry=Constant("1s", attempts=3), **_limits("rated", rate="3/10s")),
        _work(rated_by_key, **_limits("rated_by_key", rate="2/6s", key="r-{key}")),
        _work(rare_and_alone, **_limits("rare_and_alone", concurrency=1, rate="2/8s")),
    )
}

# Tighter limits, as before a deployment; their periods are longer than any story.
TIGHT_WORKS: dict[str, Work] = WORKS | {
    work.task: work
    for work in (
        _work(capped, **_limits("capped", concurrency=1)),
        _work(rated, retry=Constant("1s", attempts=3), **_limits("rated", rate="1/1h")),
        _work(rated_by_key, **_limits("rated_by_key", rate="1/1h", key="r-{key}")),
        _work(rare_and_alone, **_limits("rare_and_alone", concurrency=1, rate="1/1h")),
    )
}
