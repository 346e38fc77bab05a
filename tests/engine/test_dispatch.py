"""Runs that an outside queue does: dispatched with their message, pushed in batches, reported on, taken back."""

from __future__ import annotations

import asyncio
import logging
import re
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from dispatch_queue import KILLS, QUEUE, Dispatching, Queue

from evertick import Constant, Event, InvalidSetting, Message, Run, Scheduler, State, StoreUnavailable, Task, Verdict
from evertick.driver import registry
from evertick.driver.base import Received
from evertick.driver.queue.spec import Redis
from evertick.engine import report
from evertick.engine.engine import EngineHealth
from evertick.explain.run import explain_run
from evertick.model import Report
from evertick.model.message import dispatch_key
from evertick.store.base import MessageFilter
from evertick.when import from_us

PATIENCE = 30.0
SECOND = 1_000_000


@pytest.fixture(autouse=True)
def queueing_driver(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(registry._BUILT_IN, "queueing", "dispatch_queue:Dispatching")
    # A worker is declared silent only up to the end of the last read.
    monkeypatch.setattr(report, "WAIT_SECONDS", 0.2)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/dispatched.db"
    return str(request.getfixturevalue("postgres_url"))


class Shop:
    """A scheduler, its one job, and the queue that does it."""

    def __init__(self, url: str, queue: Queue, spec: Dispatching, **options: Any) -> None:
        settings = {key: options.pop(key) for key in ("lease", "poll_interval", "drivers") if key in options}
        settings = {"drivers": ["function", "queueing"], **settings}
        self.scheduler = Scheduler(url, stop_timeout="2s", **settings)
        self.scheduler.runtime.connections["queueing"] = queue
        self.queue = queue
        self.job: Task[..., Any] = self.scheduler.job("build", spec, **options)
        self.heard: list[tuple[str, str | None]] = []
        for kind in ("succeeded", "failed", "retrying", "cancelled", "lost", "skipped"):
            self.scheduler.on(kind, self._hear)

    def _hear(self, event: Event) -> None:
        self.heard.append((event.kind, event.run_id))

    @property
    def health(self) -> EngineHealth:
        assert self.scheduler.runtime.engine is not None
        return self.scheduler.runtime.engine.health()

    async def until(self, is_so: Callable[[], object]) -> None:
        async with asyncio.timeout(PATIENCE):
            while not is_so():
                await asyncio.sleep(0.01)

    async def until_pushed(self, count: int = 1) -> list[dict[str, Any]]:
        await self.until(lambda: len(self.queue.pushed) >= count)
        return self.queue.pushed

    async def given_up(self, count: int) -> list[Message]:
        async with asyncio.timeout(PATIENCE):
            while len(dead := await self.scheduler.messages(channel=QUEUE, states=["dead"])) < count:
                await asyncio.sleep(0.01)
        return dead

    async def ended(self, run: Run) -> Run:
        return await self.reached(run, lambda found: found.verdict is not None)

    async def until_store_is(self, moment: datetime) -> None:
        async with asyncio.timeout(PATIENCE):
            while await self.now() < moment:
                await asyncio.sleep(0.01)

    async def now(self) -> datetime:
        return from_us(await (await self.scheduler.runtime.store()).now())

    async def reached(self, run: Run, is_there: Callable[[Run], bool]) -> Run:
        async with asyncio.timeout(PATIENCE):
            while not is_there(found := await self.scheduler.get_run(run.id)):
                await asyncio.sleep(0.01)
        return found


@asynccontextmanager
async def a_shop(url: str, **options: Any) -> AsyncIterator[Shop]:
    names = {field for field in Dispatching.__struct_fields__ if field in options}
    spec = Dispatching(**{name: options.pop(name) for name in names})
    shop = Shop(url, options.pop("queue", None) or Queue(), spec, **options)
    async with shop.scheduler:
        yield shop


# --- the life of a dispatched run


async def test_a_run_is_dispatched_taken_spoken_of_and_ended_by_its_worker(url: str) -> None:
    async with a_shop(url) as shop:
        run = await shop.job.enqueue(n=7)
        [job] = await shop.until_pushed()
        assert (job["run"], job["args"], job["attempt"]) == (run.id, {"n": 7}, 1)
        dispatched = await shop.reached(
            run, lambda found: found.dispatched is not None and found.dispatched.pushed_at is not None
        )
        assert (dispatched.state, dispatched.node, dispatched.fence) == (State.DISPATCHED, None, job["fence"])
        assert shop.health.running == 0
        shop.queue.tell(job, "taken")
        shop.queue.tell(job, "progress", progress=0.5, progress_text="half", lines=((1, "info", "hello"),))
        at_work = await shop.reached(run, lambda found: found.progress == 0.5)
        assert at_work.started_at is not None
        shop.queue.tell(job, "finish", result=b'{"built":true}')
        ended = await shop.ended(run)
        assert (ended.verdict, ended.result, ended.attempts, ended.fence) == (
            Verdict.SUCCEEDED,
            {"built": True},
            1,
            job["fence"],
        )
        assert [line.text for line in await shop.scheduler.log(run)] == ["hello"]
        await shop.until(lambda: ("succeeded", run.id) in shop.heard)
        await shop.until(lambda: len(shop.queue.confirmed) == 3)


async def test_many_runs_go_by_few_journeys(url: str) -> None:
    async with a_shop(url, mode="forget") as shop:
        await shop.job.enqueue_many({"n": number} for number in range(2_500))
        await shop.until_pushed(2_500)

        async def is_over() -> bool:
            return len(await shop.scheduler.runs(states=[State.DONE], limit=10_000)) == 2_500

        async with asyncio.timeout(PATIENCE):
            while not await is_over():
                await asyncio.sleep(0.05)
    assert sorted(job["args"]["n"] for job in shop.queue.pushed) == list(range(2_500))
    assert max(shop.queue.journeys) <= 1_000
    # A journey takes what has come meanwhile.
    assert len(shop.queue.journeys) < 500
    assert not [heard for heard in shop.heard if heard[0] != "succeeded"]


@pytest.mark.parametrize(("mode", "word"), [("forget", None), ("ack", "taken")])
async def test_the_dispatch_mode_decides_when_a_run_has_succeeded(url: str, mode: str, word: str | None) -> None:
    async with a_shop(url, mode=mode) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        if word is not None:
            shop.queue.tell(job, word)
        assert (await shop.ended(run)).verdict is Verdict.SUCCEEDED


async def test_what_is_no_message_fails_as_any_job_does(url: str) -> None:
    async with a_shop(url) as shop:
        ended = await shop.ended(await shop.job.enqueue(is_odd=True))
    assert ended.verdict is Verdict.FAILED
    assert "JSON" in (ended.error or "")
    assert shop.queue.pushed == []


# --- a queue that is away


async def test_a_queue_that_is_away_delays_and_costs_nothing(url: str, caplog: pytest.LogCaptureFixture) -> None:
    queue = Queue()
    queue.is_away = True
    async with a_shop(url, queue=queue, ack_timeout=1, lease="1s") as shop:
        runs = await shop.job.enqueue_many({"n": number} for number in range(20))
        store = await shop.scheduler.runtime.store()
        first = await shop.reached(runs[0], lambda found: found.state is State.DISPATCHED)

        async def tries() -> int:
            key = dispatch_key(first.id, first.fence or 0)
            [message] = await store.messages("default", MessageFilter(channel=QUEUE, key=key))
            return message.attempts

        async with asyncio.timeout(PATIENCE):
            while await tries() < 3:
                await asyncio.sleep(0.02)
        waiting = await shop.scheduler.runs(limit=100)
        assert {(run.state, run.losses, run.attempts) for run in waiting} == {(State.DISPATCHED, 0, 0)}
        queue.is_away = False
        await shop.until_pushed(20)
        assert {job["run"] for job in queue.pushed[:20]} == {run.id for run in runs}
    told = [message for message in caplog.messages if re.search(r"try \d+ failed for", message)]
    assert told
    # One trouble, not one for each message.
    words = r"try \d+ failed for \d+ messages \(of \w+\) \(ConnectionError: no answer\)"
    assert any(re.search(words, message) for message in told), told


async def test_what_a_queue_refuses_for_good_is_a_failed_attempt_and_stops_no_other(url: str) -> None:
    queue = Queue()
    queue.refuses = {1}
    async with a_shop(url, queue=queue, tries=2, pause=0.01, mode="forget") as shop:
        runs = await shop.job.enqueue_many({"n": number} for number in range(3))
        ended = [await shop.ended(run) for run in runs]
        await shop.until(lambda: ("failed", runs[1].id) in shop.heard)
        dead = await shop.given_up(1)  # after its run was updated
    assert [run.verdict for run in ended] == [Verdict.SUCCEEDED, Verdict.FAILED, Verdict.SUCCEEDED]
    assert (ended[1].reason, ended[1].attempts) == ("undelivered", 1)
    assert "does not take this" in (ended[1].error or "")
    assert [message.caused_by for message in dead] == [runs[1].id]


async def test_a_sender_that_answers_for_too_few_messages_has_delivered_none(url: str) -> None:
    queue = Queue()

    async def push(messages: Any) -> list[None]:
        return []

    queue.push = push  # type: ignore[method-assign,assignment]
    async with a_shop(url, queue=queue, tries=1) as shop:
        ended = await shop.ended(await shop.job.enqueue())
    assert (ended.verdict, ended.reason) == (Verdict.FAILED, "undelivered")
    assert "returned 0 results for 1 messages" in (ended.error or "")


# --- workers that fail


async def test_a_workers_failure_is_tried_again_by_the_policy_of_the_task(url: str) -> None:
    async with a_shop(url, retry=Constant("10ms", attempts=2)) as shop:
        run = await shop.job.enqueue()
        [first] = await shop.until_pushed()
        shop.queue.tell(first, "fail", error="broken")
        _, second = await shop.until_pushed(2)
        assert (second["attempt"], second["run"]) == (2, run.id)
        assert second["fence"] > first["fence"]
        shop.queue.tell(second, "fail", error="broken again")
        ended = await shop.ended(run)
        await shop.until(lambda: ("failed", run.id) in shop.heard)
    assert (ended.verdict, ended.attempts, ended.error) == (Verdict.FAILED, 2, "broken again")
    assert shop.heard.count(("retrying", run.id)) == 1


async def test_a_failure_that_is_not_among_those_to_be_retried_is_final(url: str) -> None:
    async with a_shop(url, retry=Constant("10ms", attempts=5), retry_on=ConnectionError) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "fail")
        assert (await shop.ended(run)).attempts == 1


async def test_a_node_that_does_not_know_the_task_applies_its_reports(url: str) -> None:
    queue = Queue()
    async with a_shop(url, queue=queue, retry=Constant("10ms", attempts=2)) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        await shop.reached(run, lambda found: found.dispatched is not None and found.dispatched.pushed_at is not None)
    other = Scheduler(url, drivers=["function", "queueing"], stop_timeout="1s")
    other.runtime.connections["queueing"] = queue
    other.job("another", Dispatching())
    async with other:
        queue.tell(job, "fail", error="broken")
        async with asyncio.timeout(PATIENCE):
            while (found := await other.get_run(run.id)).state is State.DISPATCHED:
                await asyncio.sleep(0.01)
    assert (found.attempts, found.verdict, found.error) == (1, None, "broken")


# --- runs that no worker takes


async def test_a_run_that_no_worker_takes_is_pushed_again_under_a_new_fence(url: str) -> None:
    async with a_shop(url, ack_timeout=SECOND // 5, lease="1s") as shop:
        run = await shop.job.enqueue()
        first, second = await shop.until_pushed(2)
        assert (first["run"], second["run"]) == (run.id, run.id)
        assert second["fence"] > first["fence"]
        assert await shop.until(lambda: shop.queue.kills) is None
        kill = shop.queue.kills[0]
        assert (kill["run"], kill["fence"], kill["why"]) == (run.id, first["fence"], "not_taken")
        shop.queue.tell(first, "finish", result=b'"late"')
        await shop.until(lambda: shop.health.refused_reports == 1)
        async with asyncio.timeout(PATIENCE):
            while (ended := await shop.scheduler.get_run(run.id)).verdict is None:
                # Each copy as it arrives: reports on an earlier one are rejected.
                shop.queue.tell(shop.queue.pushed[-1], "finish", result=b'"in time"')
                await asyncio.sleep(0.01)
    assert (ended.verdict, ended.result, ended.attempts, ended.losses) == (Verdict.SUCCEEDED, "in time", 1, 0)


async def test_what_must_not_run_twice_is_lost_with_its_worker(url: str) -> None:
    async with a_shop(url, progress_timeout=SECOND // 10, lease="1s", on_lost="fail") as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        ended = await shop.ended(run)
        await shop.until(lambda: ("lost", run.id) in shop.heard)
    assert (ended.verdict, ended.reason, len(shop.queue.pushed)) == (Verdict.LOST, "no_progress", 1)


# --- who may call a worker silent


@pytest.mark.parametrize("on_lost", ["rerun", "fail"])
async def test_an_outage_of_the_queue_makes_no_worker_a_silent_one(url: str, on_lost: Any) -> None:
    async with a_shop(url, progress_timeout=SECOND, lease="1s", on_lost=on_lost) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        taken = await shop.reached(
            run, lambda found: found.dispatched is not None and found.dispatched.taken_at is not None
        )
        assert taken.dispatched is not None
        assert taken.dispatched.until is not None
        shop.queue.is_away = True
        # All that is said meanwhile waits for the nodes: the end of the work, too.
        shop.queue.tell(job, "progress", progress=0.5)
        shop.queue.tell(job, "finish", result=b"7")
        await shop.until_store_is(taken.dispatched.until + timedelta(seconds=2))
        still = await shop.scheduler.get_run(run.id)
        assert (still.state, still.losses, still.dispatched) == (State.DISPATCHED, 0, taken.dispatched)
        assert (
            "no live node reads the reports of 'queue'"
            in (await explain_run(await shop.scheduler.runtime.store(), still)).now
        )
        shop.queue.is_away = False
        ended = await shop.ended(run)
    assert (ended.verdict, ended.result, ended.losses, len(shop.queue.pushed)) == (Verdict.SUCCEEDED, 7, 0, 1)


async def test_a_worker_that_is_silent_after_an_outage_is_found_out_after_all(url: str) -> None:
    async with a_shop(url, progress_timeout=SECOND // 2, lease="1s", on_lost="fail") as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        taken = await shop.reached(
            run, lambda found: found.dispatched is not None and found.dispatched.taken_at is not None
        )
        assert taken.dispatched is not None
        assert taken.dispatched.until is not None
        shop.queue.is_away = True
        shop.queue.say()
        await shop.until_store_is(taken.dispatched.until + timedelta(seconds=1))
        back = await shop.now()
        shop.queue.is_away = False
        ended = await shop.ended(run)
    assert (ended.verdict, ended.reason) == (Verdict.LOST, "no_progress")
    assert ended.finished_at is not None
    assert ended.finished_at - back >= timedelta(milliseconds=500)


async def test_a_store_that_took_no_reports_makes_no_worker_a_silent_one(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_shop(url, progress_timeout=SECOND, lease="1s", on_lost="fail") as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        taken = await shop.reached(
            run, lambda found: found.dispatched is not None and found.dispatched.taken_at is not None
        )
        assert taken.dispatched is not None
        assert taken.dispatched.until is not None
        store = await shop.scheduler.runtime.store()
        whole, is_away = store.apply_reports, True

        async def away(app: str, reports: Any) -> Any:
            if is_away:
                raise StoreUnavailable("away")
            return await whole(app, reports)

        monkeypatch.setattr(store, "apply_reports", away)
        shop.queue.tell(job, "finish", result=b"7")
        await shop.until_store_is(taken.dispatched.until + timedelta(seconds=1))
        assert (await shop.scheduler.get_run(run.id)).state is State.DISPATCHED
        is_away = False
        ended = await shop.ended(run)
    assert (ended.verdict, ended.losses) == (Verdict.SUCCEEDED, 0)


async def test_a_node_that_reads_no_reports_does_not_check_dispatched_runs(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_shop(url, progress_timeout=SECOND // 10, lease="1s") as shop:
        shop.queue.is_away_for_readers = True
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        store, asked = await shop.scheduler.runtime.store(), []
        whole = store.check_dispatched

        async def counted(app: str, limit: int, heard: Any) -> Any:
            asked.append(heard)
            return await whole(app, limit, heard)

        monkeypatch.setattr(store, "check_dispatched", counted)
        said = Report(id=job["run"], fence=job["fence"], kind="taken")
        assert [each.answer for each in await store.apply_reports(shop.scheduler.app, [said])] == ["done"]
        taken = await shop.scheduler.get_run(run.id)
        assert taken.dispatched is not None
        assert taken.dispatched.until is not None
        await shop.until_store_is(taken.dispatched.until + timedelta(seconds=2))
        assert asked == []
        # Any node may end a run that is to be cancelled.
        await shop.scheduler.cancel(run)
        await shop.until(lambda: shop.queue.kills)
        assert asked[0] == {}
        assert (await shop.ended(run)).verdict is Verdict.CANCELLED


# --- cancel


async def test_a_cancel_reaches_the_worker_and_ends_the_run(url: str) -> None:
    async with a_shop(url, lease="1s") as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        await shop.reached(run, lambda found: found.started_at is not None)
        await shop.scheduler.cancel(run)
        await shop.until(lambda: shop.queue.kills)
        assert shop.queue.kills == [{"v": 1, "run": run.id, "fence": job["fence"], "why": "requested"}]
        shop.queue.tell(job, "fail", error="killed")
        ended = await shop.ended(run)
    assert (ended.verdict, ended.reason) == (Verdict.CANCELLED, "requested")


async def test_a_run_that_its_queue_never_saw_is_cancelled_at_once(url: str) -> None:
    queue = Queue()
    queue.is_away = True
    async with a_shop(url, queue=queue, lease="1s", pause=3600) as shop:
        run = await shop.job.enqueue()
        await shop.reached(run, lambda found: found.state is State.DISPATCHED)
        store = await shop.scheduler.runtime.store()

        async def has_failed() -> bool:
            [message] = await store.messages("default", MessageFilter(channel=QUEUE))
            return message.attempts > 0

        async with asyncio.timeout(PATIENCE):
            while not await has_failed():
                await asyncio.sleep(0.01)
        await shop.scheduler.cancel(run)
        ended = await shop.ended(run)
        assert await shop.scheduler.messages(channel=QUEUE) == []
    assert (ended.verdict, queue.kills) == (Verdict.CANCELLED, [])


# --- reports that come oddly


async def test_a_report_is_confirmed_when_the_ledger_has_it_and_a_repeated_one_changes_nothing(url: str) -> None:
    queue = Queue()
    queue.forgets_confirmed = 2
    async with a_shop(url, queue=queue) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "finish", result=b"1")
        ended = await shop.ended(run)
        await shop.until(lambda: queue.confirmed)
        assert shop.health.refused_reports == 0
    assert (ended.verdict, ended.attempts, shop.heard) == (Verdict.SUCCEEDED, 1, [("succeeded", run.id)])


async def test_reports_wait_for_a_store_that_is_away(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    async with a_shop(url) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        await shop.reached(run, lambda found: found.dispatched is not None and found.dispatched.pushed_at is not None)
        store, tries = await shop.scheduler.runtime.store(), []
        whole = store.apply_reports

        async def fails_twice(app: str, reports: Any) -> Any:
            tries.append(len(reports))
            if len(tries) <= 2:
                raise StoreUnavailable("away")
            return await whole(app, reports)

        monkeypatch.setattr(store, "apply_reports", fails_twice)
        shop.queue.tell(job, "finish")
        assert (await shop.ended(run)).verdict is Verdict.SUCCEEDED
        await shop.until(lambda: len(shop.queue.confirmed) == 1)
    assert tries == [1, 1, 1]


async def test_a_source_that_is_away_is_asked_again(url: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "evertick.report")
    async with a_shop(url) as shop:
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.is_away = True
        shop.queue.say()  # wakes the readers
        await shop.until(lambda: any("failed, retrying" in message for message in caplog.messages))
        shop.queue.is_away = False
        shop.queue.tell(job, "finish")
        assert (await shop.ended(run)).verdict is Verdict.SUCCEEDED
    [again] = [
        each for each in caplog.records if each.message == "reports of workers: reading recovered (a queue in memory)"
    ]
    assert again.levelno == logging.INFO


async def test_what_waits_for_a_queue_that_was_away_goes_when_it_is_back(url: str) -> None:
    """Dispatches, and words to workers; without waiting for the hour of their next try."""
    async with a_shop(url, pause=3600.0) as shop:
        taken = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "taken")
        await shop.reached(taken, lambda found: found.dispatched is not None and found.dispatched.taken_at is not None)
        shop.queue.is_away = True
        shop.queue.say()  # wakes the readers
        await shop.job.enqueue()
        await shop.scheduler.cancel(taken.id)
        async with asyncio.timeout(PATIENCE):
            while len([each for each in await shop.scheduler.messages(states=["waiting"]) if each.attempts]) < 2:
                await asyncio.sleep(0.01)
        shop.queue.is_away = False
        assert len(await shop.until_pushed(2)) == 2
        await shop.until(lambda: shop.queue.kills)
        assert len(shop.queue.kills) == 1


async def test_a_delivery_that_set_out_before_its_queue_was_back_is_tried_again_at_once(url: str) -> None:
    queue = Queue()
    queue.breaks_at = breaks_at = asyncio.Event()
    queue.is_away_for_readers = True
    async with a_shop(url, queue=queue, pause=3600.0) as shop:
        await shop.job.enqueue()
        await shop.until(lambda: queue.breaks_at is None)
        queue.is_away_for_readers = False
        assert shop.scheduler.runtime.engine is not None
        await shop.until(shop.scheduler.runtime.engine._reporter.heard)
        breaks_at.set()
        await shop.until_pushed()


async def test_a_source_without_an_address_does_not_delay_the_others(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    shop = Shop(url, Queue(), Dispatching(), drivers=["function", "queueing", "redis"])
    # Nobody says where it is: each of its runs fails, and it cannot even say its name.
    lost = shop.scheduler.job("first", Redis("docker"))
    async with shop.scheduler:
        nowhere = await shop.ended(await lost.enqueue())
        assert "the address of the server is not set" in (nowhere.error or "")
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        shop.queue.tell(job, "finish")
        assert (await shop.ended(run)).verdict is Verdict.SUCCEEDED
        said = "reports of workers: reading failed, retrying: BrokerChannel: "
        await shop.until(lambda: any(said in each for each in caplog.messages))
        assert {loop.name: loop.error for loop in shop.health.loops}["report"] is None


async def test_reports_that_the_ledger_refuses_hold_up_those_of_no_other_source(
    url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with a_shop(url) as shop:
        engine, other = shop.scheduler.runtime.engine, Queue()
        assert engine is not None
        # It is asked before the other.
        engine._node.sources = (other, *engine._node.sources)
        engine._reporter._readers.clear()
        run = await shop.job.enqueue()
        [job] = await shop.until_pushed()
        apply = engine._reporter.apply

        async def choosy(reports: Sequence[Report]) -> Any:
            if any(report.id == "odd" for report in reports):
                raise ValueError("no such report")
            return await apply(reports)

        monkeypatch.setattr(engine._reporter, "apply", choosy)
        other.say(Report(id="odd", fence=1, kind="finish"))
        shop.queue.tell(job, "finish")
        assert (await shop.ended(run)).verdict is Verdict.SUCCEEDED


# --- tasks that come while a node runs


async def test_a_running_node_that_gets_its_first_job_of_a_queue_dispatches_it_and_reads_its_reports(url: str) -> None:
    scheduler, queue = Scheduler(url, drivers=["function", "queueing"], stop_timeout="2s"), Queue()
    scheduler.runtime.connections["queueing"] = queue
    async with scheduler:
        jobs = await scheduler.runtime.exchange.prepare(
            set(), [lambda: scheduler.job("build", Dispatching())], tz="UTC"
        )
        assert await scheduler.runtime.exchange.take(jobs) is None
        run = await scheduler.runtime.tasks["build"].enqueue()
        async with asyncio.timeout(PATIENCE):
            while not queue.pushed:
                await asyncio.sleep(0.01)
            queue.tell(queue.pushed[0], "finish")
            while (await scheduler.get_run(run.id)).verdict is not Verdict.SUCCEEDED:
                await asyncio.sleep(0.01)
        [node] = [node for node in await scheduler.nodes() if node.died_at is None]
    assert node.channels == (KILLS, QUEUE)


# --- what is refused


async def test_a_channel_of_a_queue_has_no_other_sender() -> None:
    shop = Shop("sqlite://", Queue(), Dispatching())

    @shop.scheduler.sender(KILLS)
    async def kill(message: Message) -> None: ...

    with pytest.raises(InvalidSetting, match="'kills' is that of a queue"):
        await shop.scheduler.runtime.start()


async def test_a_reader_that_misses_its_cancellation_reads_no_more_when_the_node_has_stopped(url: str) -> None:
    """As a task inside a library may: no read may start while the connections are being closed."""

    class HardOfHearing(Queue):
        missed = reading = 0

        async def receive(self, most: int, seconds: float) -> Received:
            self.reading += 1
            try:
                # Nothing else ends the first: it must not be over when the node stops.
                await asyncio.Event().wait()
            except asyncio.CancelledError:
                if self.missed:
                    raise
                self.missed += 1
            finally:
                self.reading -= 1
            return Received(reports=())

    queue = HardOfHearing()
    async with a_shop(url, queue=queue):
        while not queue.reading:
            await asyncio.sleep(0.01)
    assert (queue.missed, queue.reading) == (1, 0)
