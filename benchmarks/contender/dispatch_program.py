"""Evertick by its public interface, with a job that is dispatched to a list in Redis."""

from __future__ import annotations

# The driver imports it at first use; that import must not be measured.
import redis.asyncio  # noqa: F401

from benchmarks.contender import verbs
from evertick import Once, Redis, Scheduler

_redis: str = verbs.OPTIONS.pop("redis")
_queue: str = verbs.OPTIONS.pop("queue")
scheduler = Scheduler(verbs.URL, drivers=["redis"], **verbs.OPTIONS)
scheduler.connect("redis", _redis)
dispatched = scheduler.job("dispatched", Redis(_queue, mode="forget"))


async def fill(runs: int) -> None:
    for numbers in verbs.bulks(runs):
        await dispatched.enqueue_many({"number": number} for number in numbers)
    await scheduler.close()


async def fill_due(first: int, schedules: int) -> None:
    """Schedules that are due once, before a node starts: their fires are not recorded yet."""
    rule = Once(after="1ms")
    for numbers in verbs.bulks(schedules):
        await scheduler.add_many(
            {"key": f"s{first + number}", "when": rule, "task": dispatched, "args": {"number": number}}
            for number in numbers
        )
    await scheduler.close()


async def work() -> None:
    await scheduler.health()  # opens the ledger
    verbs.ready()
    async with scheduler:
        await verbs.until_stopped()


if __name__ == "__main__":
    verbs.main(fill, fill_due, work)
