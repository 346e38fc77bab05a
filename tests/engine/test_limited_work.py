"""Limits and unique keys as a user meets them: in a scheduler, in virtual time."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evertick import Constant, Refused, Scheduler, State, Verdict
from evertick.testing import virtual_time

START = "2026-03-02T00:00:00+00:00"
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)


def a_scheduler(**settings: object) -> Scheduler:
    return Scheduler("sqlite://", node_name="here", **settings)  # type: ignore[arg-type]


async def started(scheduler: Scheduler) -> list[float]:
    runs = await scheduler.runs(limit=1_000)
    return sorted((run.started_at - BEGIN).total_seconds() for run in runs if run.started_at is not None)


async def test_no_more_runs_of_a_task_are_at_work_than_its_concurrency_allows() -> None:
    scheduler = a_scheduler()
    at_work, most = 0, 0

    @scheduler.task(concurrency=3)
    async def job() -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(60)
        at_work -= 1

    async with virtual_time(scheduler, start=START) as kit:
        await job.enqueue_many({} for _ in range(10))
        await kit.advance("10m")
        # Nobody has waited for a poll: the end of one run is the start of the next.
        assert await started(scheduler) == [0, 0, 0, 60, 60, 60, 120, 120, 120, 180]
    assert most == 3


async def test_schedules_obey_the_limit_of_their_task() -> None:
    scheduler = a_scheduler()
    at_work, most = 0, 0

    async def job(customer: str) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(10)
        at_work -= 1

    task = scheduler.task(name="job", concurrency=1, concurrency_key="c-{customer}")(job)
    async with virtual_time(scheduler, start=START) as kit:
        for number in range(4):
            args = {"customer": "ann" if number < 3 else "bob"}
            await scheduler.add(key=f"s{number}", when="cron 0 1 * * *", task=task, args=args)
        await kit.advance("2h")
        runs = [run for number in range(4) for run in kit.runs(f"s{number}")]
    assert [run.verdict for run in runs] == [Verdict.SUCCEEDED] * 4
    assert most == 2
    seconds = [(run.started_at - run.fire_at).total_seconds() for run in runs if run.started_at]
    assert sorted(seconds[:3]) == [0, 10, 20]
    assert seconds[3] == 0


@pytest.mark.parametrize("where", ["store", "memory"])
async def test_no_more_runs_start_in_a_period_than_the_rate_allows(where: str) -> None:
    scheduler = a_scheduler(rate_limits=where)

    @scheduler.task(rate="2/10s")
    async def mail() -> None: ...

    @scheduler.task
    async def other() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await mail.enqueue_many({} for _ in range(7))
        await kit.advance("3s")
        run = await other.enqueue()
        await kit.advance("57s")
        assert await started(scheduler) == [0, 0, 3, 10, 10, 20, 20, 30]
        assert (await scheduler.get_run(run.id)).verdict is Verdict.SUCCEEDED


@pytest.mark.parametrize("where", ["store", "memory"])
async def test_a_retry_counts_as_a_start(where: str) -> None:
    scheduler = a_scheduler(rate_limits=where)
    starts: list[float] = []

    @scheduler.task(rate="1/10s", retry=Constant("1s", attempts=3))
    async def mail() -> None:
        starts.append(asyncio.get_running_loop().time())
        raise RuntimeError("no")

    async with virtual_time(scheduler, start=START) as kit:
        await mail.enqueue()
        await kit.advance("1m")
    assert [round(at - starts[0]) for at in starts] == [0, 10, 20]


async def test_a_rate_in_memory_writes_nothing_about_it() -> None:
    scheduler = a_scheduler(rate_limits="memory")

    @scheduler.every("1s", rate="1/10s", overlap="allow")
    async def mail() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await kit.advance("35s")
        assert await started(scheduler) == [1, 11, 21, 31]
        waiting = await scheduler.runs(states=["blocked"])
        assert waiting == []


async def test_a_unique_key_until_the_start_keeps_one_waiting_beside_the_one_that_runs() -> None:
    scheduler = a_scheduler(concurrency=1)

    @scheduler.task
    async def sync() -> None:
        await asyncio.sleep(60)

    async with virtual_time(scheduler, start=START) as kit:
        again = sync.options(unique="sync", unique_until="start")
        first = await again.enqueue()
        await kit.advance("1s")
        second, third = await again.enqueue(), await again.enqueue()
        assert (first.is_new, second.is_new, third.is_new) == (True, True, False)
        assert third.id == second.id
        await kit.advance("5m")
        assert len(await scheduler.runs()) == 2


async def test_a_unique_key_for_a_period_is_free_after_it_and_not_before() -> None:
    scheduler = a_scheduler()

    @scheduler.task
    async def welcome() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        once_an_hour = welcome.options(unique="ann", unique_for="1h")
        first = await once_an_hour.enqueue()
        await kit.advance("59m")
        same = await once_an_hour.enqueue()
        assert (same.id, same.is_new, same.verdict) == (first.id, False, Verdict.SUCCEEDED)
        await kit.advance("1m")
        assert (await once_an_hour.enqueue()).is_new


async def test_two_schedules_with_one_key_skip_each_other_and_say_so() -> None:
    scheduler = a_scheduler()
    heard: list[str | None] = []
    scheduler.on("skipped", lambda event: heard.append(event.reason))

    async def sync() -> None:
        await asyncio.sleep(90)

    task = scheduler.task(name="sync")(sync)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="a", when="cron 0 1 * * *", task=task, unique="sync")
        await scheduler.add(key="b", when="cron 1 1 * * *", task=task, unique="sync")
        await kit.advance("2h")
        [gap] = await scheduler.gaps("b")
        assert (gap.verdict, gap.reason) == (Verdict.SKIPPED, "duplicate")
        assert "another run has its unique key" in (await scheduler.why("b")).last
        assert [run.verdict for run in await scheduler.runs()] == [Verdict.SUCCEEDED]
        assert (await scheduler.schedule("a")).unique == "sync"
    assert heard == ["duplicate"]


async def test_a_trigger_whose_key_is_taken_is_refused_with_the_key() -> None:
    scheduler = a_scheduler()

    @scheduler.task
    async def sync() -> None:
        await asyncio.sleep(90)

    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.add(key="a", when="cron 0 1 * * *", task=sync, unique="sync", overlap="allow")
        await sync.options(unique="sync").enqueue()
        with pytest.raises(Refused, match="another run has the unique key 'sync' of 'a'; wait until"):
            await scheduler.trigger("a")
        await kit.advance("2m")
        run = await scheduler.trigger("a")
        await kit.advance("2m")
        again = await scheduler.rerun(run)
        with pytest.raises(Refused, match="another run has the unique key 'sync'"):
            await scheduler.rerun(run)
        assert again.is_new


async def test_a_schedule_can_be_given_a_key_and_freed_of_it() -> None:
    scheduler = a_scheduler()

    @scheduler.every("1h", unique="k", unique_for="10m")
    async def job() -> None: ...

    async with virtual_time(scheduler, start=START):
        assert (await scheduler.schedule("job")).unique == "k"
        assert (await scheduler.update("job", unique_until="start")).unique == "k"
        [stored] = await (await scheduler.runtime.store()).stored_schedules(scheduler.app, keys=["job"])
        assert (stored.definition.unique_until, stored.definition.unique_for) == ("start", None)
        assert (await scheduler.update("job", unique=None)).unique is None
        [stored] = await (await scheduler.runtime.store()).stored_schedules(scheduler.app, keys=["job"])
        assert stored.definition.unique_until == "end"


async def test_why_says_which_limit_a_run_waits_for() -> None:
    scheduler = a_scheduler()

    @scheduler.task(concurrency=1, concurrency_key="the press")
    async def press() -> None:
        await asyncio.sleep(3600)

    @scheduler.task(rate="1/h")
    async def mail() -> None: ...

    async with virtual_time(scheduler, start=START) as kit:
        await press.enqueue()
        await mail.enqueue()
        await scheduler.add(key="p", when="cron 0 1 * * *", task=press, overlap="allow")
        await scheduler.add(key="m", when="cron 30 0 * * *", task=mail)
        await kit.advance("45m")
        [held] = await scheduler.runs("m")
        assert (held.state, held.reason, held.blocked_on) == (State.BLOCKED, "rate", "mail")
        why = await scheduler.why("m")
        assert why.now == f"run {held.id} is blocked: the rate limit of 'mail' is reached"
        await scheduler.trigger("p")
        await kit.advance("1s")
        [held] = await scheduler.runs("p")
        why = await scheduler.why("p")
        assert why.now == (f"run {held.id} is blocked: the concurrency limit of 'the press' is reached")
        assert await scheduler.cancel(held)


async def test_two_nodes_share_a_limit_and_what_one_of_them_ends_the_other_takes_up(tmp_path: Path) -> None:
    """In real time, on a file: nothing but the watch on the file tells the other node."""
    at_work, most, ended = 0, 0, asyncio.Semaphore(0)

    def a_node() -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/limits.db", concurrency=1)

        @scheduler.task(concurrency=1)
        async def job() -> None:
            nonlocal at_work, most
            at_work += 1
            most = max(most, at_work)
            await asyncio.sleep(0.01)
            at_work -= 1
            ended.release()

        return scheduler

    one, other = a_node(), a_node()
    async with one, other, asyncio.timeout(30):
        await one.runtime.tasks["job"].enqueue_many({} for _ in range(20))
        for _ in range(20):
            await ended.acquire()
    assert most == 1


@pytest.mark.parametrize("new", [{"concurrency": 5}, {}], ids=["raised", "removed"])
async def test_a_new_node_with_more_room_does_not_wait_for_what_runs_on_the_old_one(
    tmp_path: Path, new: dict[str, int]
) -> None:
    """In real time, on a file: the old node and its long job go on all the while."""
    begun, over = asyncio.Semaphore(0), asyncio.Event()

    def a_node(**limits: int) -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/limits.db", concurrency=10)

        @scheduler.task(**limits)  # type: ignore[call-overload]
        async def job() -> None:
            begun.release()
            await over.wait()

        return scheduler

    old = a_node(concurrency=1)
    async with old, asyncio.timeout(30):
        await old.runtime.tasks["job"].enqueue_many({} for _ in range(5))
        await begun.acquire()
        while len(await old.runs(states=["blocked"])) < 4:
            await asyncio.sleep(0)
        async with a_node(**new) as young:
            for _ in range(4):
                await begun.acquire()
            assert len(await young.runs(states=["running"])) == 5
            over.set()


@pytest.mark.parametrize(
    ("rate", "where"), [("100/min", "store"), (None, "store"), ("1/h", "memory")], ids=["raised", "removed", "memory"]
)
async def test_after_a_restart_with_another_rate_no_run_waits_for_the_old_period(
    tmp_path: Path, rate: str | None, where: str
) -> None:
    started = asyncio.Semaphore(0)

    def a_node(rate: str | None, where: str) -> Scheduler:
        scheduler = Scheduler(f"sqlite:///{tmp_path}/limits.db", rate_limits=where)  # type: ignore[arg-type]

        @scheduler.task(rate=rate)
        async def mail() -> None:
            started.release()

        return scheduler

    async with a_node("1/h", "store") as old, asyncio.timeout(30):
        await old.runtime.tasks["mail"].enqueue_many({} for _ in range(3))
        await started.acquire()
        while len(await old.runs(states=["blocked"])) < 2:
            await asyncio.sleep(0)
    more = 1 if where == "memory" else 2  # in memory the new node starts counting from 0: one in its own hour
    async with a_node(rate, where) as young, asyncio.timeout(30):
        for _ in range(more):
            await started.acquire()
    assert len(await young.runs(verdicts=["succeeded"])) == 1 + more
    await young.close()
