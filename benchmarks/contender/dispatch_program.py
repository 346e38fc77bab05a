"""Evertick with a job that goes to a list in Redis; by its public interface alone."""

from __future__ import annotations

# Of the driver, which imports it when it is first needed: nobody is to wait for that.
import redis.asyncio  # noqa: F401

from benchmarks.contender import verbs
from evertick import Once, Redis, Scheduler

_redis: str = verbs.OPTIONS.pop("redis")
_queue: str = verbs.OPTIONS.pop("queue")
scheduler = Scheduler(verbs.URL, drivers=["redis"], **verbs.OPTIONS)
scheduler.connect("redis", _redis)
hand = scheduler.job("hand", Redis(_queue, mode="forget"))


async def fill(runs: int) -> None:
    for numbers in verbs.bulks(runs):
        await hand.enqueue_many({"number": number} for number in numbers)
    await scheduler.close()


async def fill_due(first: int, schedules: int) -> None:
    """Schedules that are due once, and are by the time that a node starts: nothing has recorded their fires."""
    rule = Once(after="1ms")
    for numbers in verbs.bulks(schedules):
        await scheduler.add_many(
            {"key": f"s{first + number}", "when": rule, "task": hand, "args": {"number": number}} for number in numbers
        )
    await scheduler.close()


async def work() -> None:
    await scheduler.health()  # opens the ledger, as whoever enqueues has done
    verbs.ready()
    async with scheduler:
        await verbs.until_stopped()


if __name__ == "__main__":
    verbs.main(fill, fill_due, work)
