"""The scheduler object: declarations, refusals, management, and running jobs end to end."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import itertools
import logging
import threading
from collections.abc import AsyncIterator, Callable, Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest

import evertick
from evertick import (
    AlreadyDeclared,
    Cause,
    Constant,
    Context,
    Cron,
    Event,
    Every,
    Gap,
    InvalidArguments,
    InvalidDuration,
    InvalidInput,
    InvalidKey,
    InvalidSetting,
    InvalidWhen,
    NotFound,
    Refused,
    Retry,
    Run,
    Scheduler,
    Skip,
    State,
    Stopped,
    Verdict,
    WouldBlock,
)
from evertick.clock import system_clock
from evertick.engine import work as work_module
from evertick.job.context import LINES_MAX, record_of
from evertick.model import NewRun
from evertick.model.hooks import EVENTS
from evertick.store.base import Advance, NodeJoin, TaskTerms

SAFETY_SECONDS = 20.0


class EventCollector:
    """Collects the events of a scheduler and lets a test wait for them."""

    def __init__(self, scheduler: Scheduler, *kinds: str) -> None:
        self.events: list[Event] = []
        self._changed = asyncio.Condition()
        # Built-in duties run at any time, so their events are collected only on request.
        for kind in kinds or [each for each in EVENTS if not each.startswith("duty_")]:
            scheduler.on(kind, self._collect)  # type: ignore[arg-type]

    async def _collect(self, event: Event) -> None:
        async with self._changed:
            self.events.append(event)
            self._changed.notify_all()

    async def until(self, kind: str, count: int = 1) -> Event:
        """Wait for the `count`-th event of the kind."""
        async with asyncio.timeout(SAFETY_SECONDS), self._changed:
            await self._changed.wait_for(lambda: len(self._of(kind)) >= count)
        return self._of(kind)[count - 1]

    def kinds(self) -> list[str]:
        return [event.kind for event in self.events]

    def _of(self, kind: str) -> list[Event]:
        return [event for event in self.events if event.kind == kind]


def after_call(target: object, name: str, wanted: Callable[[Any], bool] = lambda _: True) -> asyncio.Event:
    """An event that is set when the async method returns a wanted value."""
    real, called = getattr(target, name), asyncio.Event()

    @functools.wraps(real)
    async def wrapped(*args: Any, **kwargs: Any) -> Any:
        answer = await real(*args, **kwargs)
        if wanted(answer):
            called.set()
        return answer

    setattr(target, name, wrapped)
    return called


async def soon(event: asyncio.Event) -> None:
    await asyncio.wait_for(event.wait(), SAFETY_SECONDS)


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    made = Scheduler("sqlite://", app="shop", node_name="web@host", stop_timeout="2s", poll_interval="200ms")
    yield made
    await made.close()


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(work_module, "PATIENCE_SECONDS", 0.05)


def nothing() -> None: ...


# --- declarations


def test_a_decorated_function_stays_callable() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    def double(x: int) -> int:
        """Twice as much."""
        return 2 * x

    @scheduler.task(name="other")
    async def triple(x: int) -> int:
        return 3 * x

    assert double(4) == 8
    assert (double.name, triple.name) == ("double", "other")
    assert (double.__name__, double.__doc__) == ("double", "Twice as much.")
    assert repr(double) == "<Task double(x: int)>"
    assert asyncio.run(triple(3)) == 9


def test_a_task_with_a_context_cannot_be_called_outside_of_a_job_without_one() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.task
    def job(ctx: Context, x: int) -> int:
        return x

    with pytest.raises(NotFound, match="there is no current run"):
        job(1)


def test_the_same_task_name_twice_is_refused_with_both_places() -> None:
    scheduler = Scheduler("sqlite://")
    scheduler.task(name="job")(nothing)
    with pytest.raises(AlreadyDeclared) as refused:
        scheduler.task(name="job")(nothing)
    message = str(refused.value)
    assert message.startswith("task 'job' is defined twice: at ")
    assert message.count(__file__) == 2
    assert message.endswith("; give one of them another name=")


def test_the_same_schedule_key_twice_is_refused_with_both_places() -> None:
    scheduler = Scheduler("sqlite://")
    job = scheduler.task(nothing)
    scheduler.every("1m", key="k")(job)
    with pytest.raises(AlreadyDeclared) as refused:
        scheduler.cron("@daily", key="k")(job)
    assert str(refused.value).startswith("schedule 'k' is declared twice: at ")
    assert str(refused.value).count(__file__) == 2


def test_one_task_can_have_several_schedules() -> None:
    scheduler = Scheduler("sqlite://")

    @scheduler.every("1m", key="often", args={"x": 1})
    @scheduler.cron("@daily", key="daily", args={"x": 2})
    @scheduler.task
    def job(x: int) -> None: ...

    assert set(scheduler.runtime.declarations.hashes()) == {"often", "daily"}


@pytest.mark.parametrize(
    ("declare", "error", "message"),
    [
        (
            lambda s: s.every("1m", colour="red"),
            InvalidSetting,
            "every('1m'): colour: no such option; there are after, ",
        ),
        (lambda s: s.every("often"), InvalidDuration, "interval: 'often' is not a duration; "),
        (lambda s: s.every("1m", overlap="both")(nothing), InvalidSetting, "overlap: 'both' must be one of 'skip', "),
        (lambda s: s.every("1m", catch_up="some")(nothing), InvalidSetting, "catch_up: 'some' must be one of 'latest'"),
        (
            lambda s: s.every("1m", catch_up_limit=0)(nothing),
            InvalidSetting,
            "catch_up_limit: 0 must be a whole number",
        ),
        (lambda s: s.every("1m", pace="1us")(nothing), InvalidInput, "pace: "),
        (
            lambda s: s.every("1m", priority=1001)(nothing),
            InvalidSetting,
            "priority: 1001 must be a whole number from -",
        ),
        (lambda s: s.every("1m", labels=5)(nothing), InvalidSetting, "labels: 5 must be a dict"),
        (lambda s: s.every("1m", args=[1])(nothing), InvalidSetting, "args: [1] must be a dict of arguments by name"),
        (lambda s: s.every("1m", args={"x": 1})(nothing), InvalidArguments, "nothing(): got an unexpected keyword"),
        (lambda s: s.every("1m", key="a;b")(nothing), InvalidKey, "key: 'a;b' must not begin or end with space"),
        (lambda s: s.every("1m", queue="")(nothing), InvalidKey, "queue: '' must have 1 to 200 characters, not 0"),
        (lambda s: s.task(name="")(nothing), InvalidKey, "task: '' must have 1 to 200 characters, not 0"),
        (lambda s: s.task(5), InvalidSetting, "5 is not a function"),
        (lambda s: s.task(timeout=0)(nothing), InvalidSetting, "task 'nothing': timeout: 0 leaves no time at all"),
        (
            lambda s: s.task(retry=3)(nothing),
            InvalidSetting,
            "task 'nothing': retry: 3 is not a retry policy; pass Constant, ",
        ),
        (
            lambda s: s.task(retry_on="x")(nothing),
            InvalidSetting,
            "task 'nothing': retry_on: 'x' is not an exception type; pass the type itself, like ValueError",
        ),
        (
            lambda s: s.task(retry_on="ValueError")(nothing),
            InvalidSetting,
            "task 'nothing': retry_on: 'ValueError' is not an exception type; pass the type itself, like ValueError",
        ),
        (
            lambda s: s.task(give_up_on=(KeyError, "ValueError"))(nothing),
            InvalidSetting,
            "task 'nothing': give_up_on: 'ValueError' is not an exception type",
        ),
        (
            lambda s: s.every("1m", blackout="22:00-06:00")(nothing),
            InvalidWhen,
            "blackout: '22:00-06:00' may contain only letters, digits, '.', '-' and '_'; pass a Calendar(...), or the",
        ),
        (
            lambda s: s.every("1m", blackout_fate="all")(nothing),
            InvalidSetting,
            "blackout_fate: 'all' is the fate of moments in a blackout, and there is none; give it with blackout",
        ),
        (
            lambda s: s.cron("every day at 9:00")(nothing),
            InvalidWhen,
            "cron 'every day at 9:00': this is a sentence, not an expression; pass it to @scheduler.when(...)",
        ),
        (
            lambda s: s.every("15 minutes")(nothing),
            InvalidDuration,
            "interval: '15 minutes' is not a duration; write it as '15m'",
        ),
        (
            lambda s: s.task(on_lost="x")(nothing),
            InvalidSetting,
            "task 'nothing': on_lost: 'x' must be one of 'rerun', ",
        ),
        (lambda s: s.task(nope=1)(nothing), InvalidSetting, "task 'nothing': nope: no such option; there are retry, "),
        (lambda s: s.task(s.task(nothing)), InvalidSetting, "'nothing' is a task already"),
        (
            lambda s: s.on("finished"),
            InvalidSetting,
            "'finished' is not an event; hooks can be set on scheduled, started",
        ),
        (
            lambda s: s.every("1m", timeout="1s")(s.task(nothing)),
            InvalidSetting,
            "timeout: set it where the task 'noth",
        ),
    ],
)
def test_an_invalid_declaration_is_refused_where_it_is_written(
    declare: Callable[[Scheduler], Any], error: type[Exception], message: str
) -> None:
    with pytest.raises(error) as refused:
        declare(Scheduler("sqlite://"))
    assert str(refused.value).startswith(message)


def test_an_at_most_once_run_is_stopped_by_default_while_the_store_is_unreachable() -> None:
    scheduler = Scheduler("sqlite://")
    assert scheduler.task(name="a")(nothing).work.on_unreachable == "continue"
    assert scheduler.task(name="b", on_lost="fail")(nothing).work.on_unreachable == "stop"
    assert (
        scheduler.task(name="c", on_lost="fail", on_unreachable="continue")(nothing).work.on_unreachable == "continue"
    )


def test_a_node_is_named_after_the_module_and_the_host() -> None:
    assert Scheduler("sqlite://").settings.node_name.startswith(f"{__name__}@")


def test_a_scheduler_shows_its_app_and_node() -> None:
    assert repr(Scheduler("sqlite://", app="shop", node_name="web")) == "<Scheduler app='shop' node='web'>"


# --- management without an engine


async def test_a_schedule_added_at_run_time_can_be_read_back(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    added = await scheduler.add(
        key="k", when=Cron("0 9 * * *", tz="Europe/Berlin"), task=job, overlap="queue", labels={"team": "data"}
    )
    assert (added.key, added.app, added.task, added.version) == ("k", "shop", "job", 1)
    assert (added.overlap, added.labels, added.is_paused, added.is_declared) == (
        "queue",
        {"team": "data"},
        False,
        False,
    )
    assert added.next_fire_at is not None
    assert await scheduler.schedule("k") == added
    assert await scheduler.schedules() == [added]
    assert await scheduler.schedules(labels={"team": "other"}) == []


async def test_a_key_that_is_taken_is_refused_and_nothing_is_added(scheduler: Scheduler) -> None:
    await scheduler.add(key="b", when=Every("1m"), task="job")
    with pytest.raises(AlreadyDeclared) as refused:
        await scheduler.add_many([{"key": key, "when": Every("1m"), "task": "job"} for key in ("a", "b")])
    assert str(refused.value) == "schedule 'b' exists already; nothing was added; use update(), or another key"
    assert [each.key for each in await scheduler.schedules()] == ["b"]


async def test_a_rule_can_be_given_as_text(scheduler: Scheduler) -> None:
    added = await scheduler.add(key="k", when="weekdays at 18:30", task="job")
    assert added.when == "cron 30 18 * * 1-5; tz=UTC"
    assert (await scheduler.update("k", when="every 15 minutes")).when.startswith("every 15m")


async def test_a_function_can_be_scheduled_by_a_sentence(scheduler: Scheduler) -> None:
    @scheduler.when("daily at 9:00", priority=3)
    def report() -> None: ...

    async with scheduler:
        declared = await scheduler.schedule("report")
    assert (declared.when, declared.priority) == ("cron 0 9 * * *; tz=UTC", 3)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"key": "k", "when": Every("1m")}, "a schedule has no task=, only key, when"),
        (
            {"key": "k", "when": 60, "task": "job"},
            "when: 60 is not a rule; pass Cron(...), Every(...), Once(...) or text like 'daily at 9:00'",
        ),
        (
            {"key": "k", "when": Every("1m"), "task": "job", "timeout": 3},
            "timeout: set it where the task 'job' is made",
        ),
        (
            {"key": "k", "when": Every("1m"), "task": "job", "nope": 3},
            "add('k'): nope: no such option; there are key, when, task, args, ",
        ),
        (
            {"key": "k", "when": Every("1m"), "task": "job", "args": {"x": object()}},
            "args: arguments must be JSON-like",
        ),
    ],
)
async def test_an_invalid_addition_is_refused(scheduler: Scheduler, given: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        await scheduler.add_many([given])
    assert str(refused.value).startswith(message)
    assert await scheduler.schedules() == []


async def test_the_same_key_twice_in_one_list_is_refused(scheduler: Scheduler) -> None:
    with pytest.raises(AlreadyDeclared, match="schedule 'k' is given twice"):
        await scheduler.add_many([{"key": "k", "when": Every("1m"), "task": "job"}] * 2)


async def test_arguments_of_a_known_task_are_checked_and_those_of_an_unknown_one_are_not(scheduler: Scheduler) -> None:
    @scheduler.task
    def job(x: int) -> None: ...

    with pytest.raises(InvalidArguments, match=r"job\(x: int\): missing a required argument: 'x'"):
        await scheduler.add(key="k", when=Every("1m"), task=job)
    await scheduler.add(key="k", when=Every("1m"), task="elsewhere", args={"y": 1})


async def test_an_update_changes_only_the_given_fields(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Every("1m"), task="job", priority=3, labels={"a": "b"})
    updated = await scheduler.update("k", when=Every("2m"), priority=4)
    assert (updated.when, updated.priority, updated.labels, updated.version) == (
        "every 2m; tz=UTC",
        4,
        {"a": "b"},
        2,
    )


async def test_an_invalid_update_is_refused(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Every("1m"), task="job")
    with pytest.raises(InvalidSetting, match="colour: no such option of a schedule; there are when, args, "):
        await scheduler.update("k", colour="red")  # type: ignore[call-arg]
    with pytest.raises(InvalidInput, match="when: 60 is not a rule; pass Cron"):
        await scheduler.update("k", when=60)  # type: ignore[arg-type]
    with pytest.raises(NotFound, match="there is no schedule 'other' in app 'shop'"):
        await scheduler.update("other", priority=1)
    assert (await scheduler.schedule("k")).version == 1


async def test_a_schedule_can_be_paused_with_a_note_and_resumed(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Every("1m"), task="job")
    until = datetime.now(UTC) + timedelta(hours=1)
    paused = await scheduler.pause("k", note="rain", until=until)
    assert (paused.is_paused, paused.pause_note, paused.paused_until) == (True, "rain", until)
    assert [each.key for each in await scheduler.schedules(is_paused=True)] == ["k"]
    resumed = await scheduler.resume("k")
    assert (resumed.is_paused, resumed.pause_note) == (False, "")
    assert await scheduler.schedules(is_paused=True) == []


async def test_a_removed_schedule_is_gone(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Every("1m"), task="job")
    await scheduler.remove("k")
    for call in (
        scheduler.schedule,
        scheduler.remove,
        scheduler.pause,
        scheduler.resume,
        scheduler.trigger,
        scheduler.why,
    ):
        with pytest.raises(NotFound, match="there is no schedule 'k' in app 'shop'"):
            await call("k")


async def test_a_trigger_before_the_start_waits_for_a_node(scheduler: Scheduler) -> None:
    @scheduler.task
    def job(x: int = 0) -> None: ...

    await scheduler.add(key="k", when=Every("1h"), task=job, args={"x": 1})
    run = await scheduler.trigger("k", args={"x": 2})
    assert (run.state, run.cause, run.schedule_key, run.args) == (State.WAITING, Cause.TRIGGER, "k", {"x": 2})
    assert await scheduler.get_run(run.id) == run
    with pytest.raises(Refused, match="'k' has a live run, and its overlap is 'skip'; wait until"):
        await scheduler.trigger("k")
    with pytest.raises(InvalidArguments, match="got an unexpected keyword argument 'y'"):
        await scheduler.trigger("k", args={"y": 2})


async def test_a_waiting_run_is_cancelled_at_once(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    run = await job.enqueue()
    assert await scheduler.cancel(run)
    cancelled = await scheduler.get_run(run.id)
    assert (cancelled.state, cancelled.verdict, cancelled.reason) == (State.DONE, Verdict.CANCELLED, "requested")
    assert not await scheduler.cancel(run.id)
    with pytest.raises(NotFound, match="there is no run 'nope' in app 'shop'"):
        await scheduler.cancel("nope")


async def test_runs_are_listed_newest_first_and_filtered(scheduler: Scheduler) -> None:
    @scheduler.task
    def job(x: int) -> None: ...

    first = await job.options(labels={"a": "1"}).enqueue(1)
    second = await job.options(labels={"a": "2"}).enqueue(2)
    assert [run.id for run in await scheduler.runs()] == [second.id, first.id]
    assert [run.id for run in await scheduler.runs(labels={"a": "1"})] == [first.id]
    assert await scheduler.runs(states=["done"]) == []
    assert len(await scheduler.runs(states=["waiting"], limit=1)) == 1
    await scheduler.cancel(first)
    assert [run.id for run in await scheduler.runs(verdicts=["cancelled"])] == [first.id]
    with pytest.raises(InvalidInput, match="states: 'sleeping' is unknown; pass some of"):
        await scheduler.runs(states=["sleeping"])


async def test_a_run_of_another_app_is_not_found(tmp_path: Path) -> None:
    one = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", app="one")
    other = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", app="other")
    run = await one.task(name="job")(nothing).enqueue()
    await one.add(key="k", when=Every("1m"), task="job")
    with pytest.raises(NotFound):
        await other.get_run(run.id)
    assert await other.schedules() == []
    await one.close()
    await other.close()


async def test_a_preview_merges_the_schedules_that_are_not_paused(scheduler: Scheduler) -> None:
    await scheduler.add(key="a", when=Cron("0 * * * *"), task="job")
    await scheduler.add(key="b", when=Cron("30 * * * *"), task="other")
    await scheduler.add(key="c", when=Cron("15 * * * *"), task="job")
    await scheduler.pause("c")
    after = datetime(2030, 1, 1, 12, 10, tzinfo=UTC)
    planned = await scheduler.preview(count=3, after=after)
    assert [(each.fire_at, each.key, each.task) for each in planned] == [
        (datetime(2030, 1, 1, 12, 30, tzinfo=UTC), "b", "other"),
        (datetime(2030, 1, 1, 13, 0, tzinfo=UTC), "a", "job"),
        (datetime(2030, 1, 1, 13, 30, tzinfo=UTC), "b", "other"),
    ]
    assert [each.key for each in await scheduler.preview(count=2, after=after, key="a")] == ["a", "a"]


async def test_why_shows_the_next_fire_and_that_no_node_is_alive(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Cron("0 9 * * *", tz="Europe/Berlin"), task="job")
    why = await scheduler.why("k")
    assert "09:00:00 Europe/Berlin, because of its rule: " in why.next
    assert why.last == "it has not fired yet"
    assert why.now == "no node is alive: nothing will fire until one is started"
    await scheduler.pause("k", note="rain")
    assert "it is paused since " in (await scheduler.why("k")).next
    assert ": rain" in str(await scheduler.why("k"))


async def test_a_duplicate_of_a_unique_run_returns_the_existing_run(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    first = await job.options(unique="only").enqueue()
    second = await job.options(unique="only").enqueue()
    assert (first.is_new, second.is_new, second.id) == (True, False, first.id)


async def test_many_runs_are_enqueued_together_or_not_at_all(scheduler: Scheduler) -> None:
    @scheduler.task
    def job(x: int) -> None: ...

    with pytest.raises(InvalidArguments):
        await job.enqueue_many([{"x": 1}, {"x": "two"}])
    assert await scheduler.runs() == []
    runs = await job.enqueue_many([{"x": 1}, {"x": 2}])
    assert [run.args for run in runs] == [{"x": 1}, {"x": 2}]
    assert await job.enqueue_many([]) == []


async def test_a_delay_and_a_moment_exclude_each_other(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    with pytest.raises(InvalidSetting, match="delay and at both say when; give one of them"):
        job.options(delay="1m", at=datetime.now(UTC))
    later = datetime(2090, 1, 1, tzinfo=UTC)
    assert (await job.options(at=later).enqueue()).due_at == later


async def test_health_without_an_engine_is_not_healthy_and_counts_the_queue(scheduler: Scheduler) -> None:
    await scheduler.task(name="job")(nothing).enqueue()
    health = await scheduler.health()
    assert (health.is_healthy, health.engine, health.waiting, health.running) == (False, None, 1, 0)
    assert not scheduler.is_healthy


# --- sync forms


def test_the_sync_forms_work_without_an_event_loop() -> None:
    scheduler = Scheduler("sqlite://", app="shop")
    job = scheduler.task(name="job")(nothing)
    scheduler.sync.add(key="k", when=Every("1h"), task=job)
    assert scheduler.sync.update("k", priority=2).priority == 2
    assert scheduler.sync.pause("k", note="x").is_paused
    assert not scheduler.sync.resume("k").is_paused
    run = scheduler.sync.trigger("k")
    assert scheduler.sync.get_run(run.id).id == run.id
    assert [each.id for each in scheduler.sync.runs("k")] == [run.id]
    assert scheduler.sync.cancel(run)
    assert job.sync.enqueue().state is State.WAITING
    assert len(job.sync.enqueue_many([{}, {}])) == 2
    assert job.options(delay="1h").sync.enqueue().state is State.WAITING
    assert [each.key for each in scheduler.sync.schedules()] == ["k"]
    assert scheduler.sync.schedule("k").key == "k"
    assert len(scheduler.sync.preview(count=2)) == 2
    assert scheduler.sync.why("k").key == "k"
    assert scheduler.sync.gaps() == []
    assert len(scheduler.sync.history()) == 5
    assert scheduler.sync.attempts(run) == scheduler.sync.log(run) == scheduler.sync.nodes() == []
    assert scheduler.sync.calendars() == []
    assert scheduler.sync.health().waiting == 4
    scheduler.sync.remove("k")
    scheduler.sync.close()


def test_the_background_thread_ends_with_the_scheduler_and_restarts_when_needed() -> None:
    before = threading.active_count()
    scheduler = Scheduler("sqlite://")
    scheduler.sync.schedules()
    scheduler.sync.close()
    assert threading.active_count() == before
    scheduler.sync.schedules()
    scheduler.sync.close()
    assert threading.active_count() == before


async def test_a_sync_form_on_the_thread_of_an_event_loop_is_refused(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    with pytest.raises(WouldBlock) as refused:
        scheduler.sync.pause("k")
    assert str(refused.value) == (
        "scheduler.sync.pause() would block the event loop of this thread; use `await` without `.sync` here"
    )
    with pytest.raises(WouldBlock, match=r"job\.sync\.enqueue\(\) would block"):
        job.sync.enqueue()
    with pytest.raises(WouldBlock) as refused, scheduler:
        pass
    assert str(refused.value) == (
        "`with scheduler` would block the event loop of this thread; use `async with scheduler` here"
    )


async def test_a_sync_form_works_in_a_thread_beside_the_engine(scheduler: Scheduler) -> None:
    job = scheduler.task(name="job")(nothing)
    collector = EventCollector(scheduler, "succeeded")
    async with scheduler:
        run = await asyncio.to_thread(job.sync.enqueue)
        assert (await collector.until("succeeded")).run_id == run.id


async def test_a_job_in_a_thread_can_use_the_sync_forms(scheduler: Scheduler) -> None:
    follower = scheduler.task(name="follower")(nothing)
    collector = EventCollector(scheduler, "succeeded")

    @scheduler.task
    def leader() -> str:
        return follower.sync.enqueue().id

    async with scheduler:
        led = await leader.enqueue()
        await collector.until("succeeded", 2)
        assert (await scheduler.get_run((await scheduler.get_run(led.id)).result)).verdict is Verdict.SUCCEEDED


def test_with_scheduler_runs_work_in_the_background() -> None:
    scheduler = Scheduler("sqlite://", stop_timeout="2s")
    done = threading.Event()

    @scheduler.task
    def job(x: int) -> None:
        done.set()

    with scheduler:
        assert scheduler.is_healthy
        job.sync.enqueue(1)
        assert done.wait(SAFETY_SECONDS)
    assert not scheduler.is_healthy


def test_a_sync_form_raises_the_original_error() -> None:
    scheduler = Scheduler("sqlite://", app="shop")
    with pytest.raises(NotFound, match="there is no schedule 'k' in app 'shop'"):
        scheduler.sync.schedule("k")
    scheduler.sync.close()


# --- running jobs


@pytest.fixture(params=["memory", "file"])
async def any_scheduler(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Scheduler]:
    url = "sqlite://" if request.param == "memory" else f"sqlite:///{tmp_path / 'jobs.db'}"
    made = Scheduler(url, app="shop", stop_timeout="2s")
    yield made
    await made.close()


async def test_an_enqueued_task_runs_and_its_result_is_kept(any_scheduler: Scheduler) -> None:
    scheduler = any_scheduler
    collector = EventCollector(scheduler)

    @scheduler.task
    async def add(ctx: Context, a: int, b: int) -> dict[str, int]:
        assert evertick.current() is ctx
        return {"sum": a + b}

    @scheduler.task
    def subtract(a: int, b: int) -> int:
        assert evertick.current().task == "subtract"
        return a - b

    async with scheduler:
        added = await add.enqueue(1, b=2)
        subtracted = await subtract.enqueue(3, 1)
        await collector.until("succeeded", 2)
        one, two = await scheduler.get_run(added.id), await scheduler.get_run(subtracted.id)
    assert (one.verdict, one.result, one.attempts, one.state) == (Verdict.SUCCEEDED, {"sum": 3}, 1, State.DONE)
    assert (two.verdict, two.result) == (Verdict.SUCCEEDED, 2)
    assert one.started_at is not None
    assert one.finished_at is not None
    assert one.started_at <= one.finished_at


async def test_a_declared_schedule_fires_and_its_run_has_its_moment(any_scheduler: Scheduler) -> None:
    scheduler = any_scheduler
    collector = EventCollector(scheduler)
    moments: list[datetime] = []

    @scheduler.every("100ms", key="quick", overlap="allow", args={"x": 5})
    async def job(ctx: Context, x: int) -> int:
        moments.append(ctx.fire_at)
        assert ctx.schedule_key == "quick"
        return x

    async with scheduler:
        event = await collector.until("succeeded", 3)
        runs = await scheduler.runs("quick", verdicts=["succeeded"])
    assert event.schedule_key == "quick"
    assert len(set(moments)) == len(moments) >= 3
    assert all(moment.microsecond % 100_000 == 0 for moment in moments)
    assert {run.result for run in runs} == {5}
    assert {run.cause for run in runs} == {Cause.FIRE}


async def test_a_one_shot_runs_once(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    scheduler.once(after="0s", key="k")(nothing)
    async with scheduler:
        await collector.until("succeeded")
        stored = await scheduler.schedule("k")
    assert (stored.fires, stored.next_fire_at, stored.last_verdict) == (1, None, Verdict.SUCCEEDED)
    assert collector.kinds() == ["scheduled", "started", "succeeded"]


async def test_an_after_end_schedule_runs_repeatedly(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    scheduler.every("10ms", after="end", key="k")(nothing)
    async with scheduler:
        await collector.until("succeeded", 3)
        runs = (await scheduler.runs("k", verdicts=["succeeded"]))[::-1]
    for earlier, later in itertools.pairwise(runs):
        assert earlier.finished_at is not None
        assert later.fire_at >= earlier.finished_at + timedelta(milliseconds=10)


async def test_max_fires_ends_a_schedule(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "succeeded")
    scheduler.every("20ms", key="k", max_fires=2)(nothing)
    async with scheduler:
        await collector.until("succeeded", 2)
        stored = await scheduler.schedule("k")
    assert (stored.fires, stored.next_fire_at) == (2, None)


async def test_work_enqueued_before_the_start_runs_after_it(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "succeeded")
    run = await scheduler.task(name="job")(nothing).enqueue()
    async with scheduler:
        assert (await collector.until("succeeded")).run_id == run.id


async def test_a_scheduler_on_a_file_can_be_started_again(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout="2s")
    job = scheduler.task(name="job")(nothing)
    collector = EventCollector(scheduler, "succeeded")
    for count in (1, 2):
        async with scheduler:
            await job.enqueue()
            await collector.until("succeeded", count)
    assert len(await scheduler.runs(verdicts=["succeeded"])) == 2
    await scheduler.close()


async def test_a_running_scheduler_cannot_be_started_again_or_get_new_tasks(scheduler: Scheduler) -> None:
    async with scheduler:
        with pytest.raises(Refused, match="this scheduler has started already; leave it before"):
            await scheduler.__aenter__()
        with pytest.raises(Refused, match="task 'nothing' is defined after the scheduler has started"):
            scheduler.task(nothing)


async def test_a_scheduler_without_slots_only_manages(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    manager, worker = Scheduler(url, concurrency=0), Scheduler(url, stop_timeout="2s")
    collector = EventCollector(worker, "succeeded")
    worker.task(name="job")(nothing)
    job = manager.task(name="job")(nothing)
    async with manager:
        assert await manager.nodes() == []
        run = await job.enqueue()
        async with worker:
            assert (await collector.until("succeeded")).run_id == run.id


async def test_a_node_claims_only_from_its_queues(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "succeeded")
    job = scheduler.task(name="job")(nothing)
    other = await job.options(queue="other").enqueue()
    async with scheduler:
        own = await job.enqueue()
        assert (await collector.until("succeeded")).run_id == own.id
        assert (await scheduler.get_run(other.id)).state is State.WAITING


async def test_runs_with_higher_priority_start_first(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", concurrency=1, stop_timeout="2s")
    collector, order = EventCollector(scheduler, "succeeded"), list[int]()

    @scheduler.task
    async def job(x: int) -> None:
        order.append(x)

    for priority in (0, 5, -5):
        await job.options(priority=priority).enqueue(priority)
    async with scheduler:
        await collector.until("succeeded", 3)
    assert order == [5, 0, -5]


# --- how jobs end


async def test_a_job_that_raises_fails_with_its_own_traceback(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task
    def job() -> None:
        raise ValueError("no such file")

    async with scheduler:
        run_id = (await job.enqueue()).id
        event = await collector.until("failed")
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.reason) == (Verdict.FAILED, "error")
    assert run.error is not None
    assert run.error.endswith("ValueError: no such file")
    assert __file__ in run.error
    assert "evertick/engine" not in run.error
    assert event.error == run.error
    assert collector.kinds() == ["started", "failed"]


async def test_a_failing_job_is_retried_and_its_attempts_are_kept(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task(retry=Constant("1ms", attempts=3))
    async def job(ctx: Context) -> int:
        if ctx.attempt < 3:
            raise ValueError(f"try {ctx.attempt}")
        return ctx.attempt

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("succeeded")
        run, attempts = await scheduler.get_run(run_id), await scheduler.attempts(run_id)
    assert (run.result, run.attempts, run.losses) == (3, 3, 0)
    assert [attempt.number for attempt in attempts] == [1, 2]
    assert all("ValueError: try" in (attempt.error or "") for attempt in attempts)
    assert collector.kinds() == ["started", "retrying", "started", "retrying", "started", "succeeded"]


async def test_a_job_can_skip(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task(retry=Constant("1ms", attempts=3))
    def job() -> None:
        raise Skip("nothing new")

    async with scheduler:
        run_id = (await job.enqueue()).id
        event = await collector.until("skipped")
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.reason, run.error, run.attempts) == (Verdict.SKIPPED, "nothing new", None, 1)
    assert event.reason == "nothing new"


async def test_a_job_can_ask_for_a_retry_with_its_own_delay(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task
    def job(ctx: Context) -> None:
        if ctx.attempt == 1:
            raise Retry("busy", after=0.001)

    @scheduler.task
    def patient() -> None:
        raise Retry("busy", after="1h")

    async with scheduler:
        await job.enqueue()
        waits = await patient.enqueue()
        await collector.until("succeeded")
        await collector.until("retrying", 2)
        run = await scheduler.get_run(waits.id)
    assert run.state is State.WAITING
    assert run.due_at > datetime.now(UTC) + timedelta(minutes=59)


async def test_a_coroutine_that_times_out_is_stopped(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    stopped = asyncio.Event()

    @scheduler.task(timeout="20ms")
    async def job(ctx: Context) -> None:
        assert ctx.deadline is not None
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("failed")
        run = await scheduler.get_run(run_id)
    assert stopped.is_set()
    assert (run.verdict, run.reason) == (Verdict.FAILED, "timeout")
    assert run.error == "TimeoutError: the attempt timed out after 0.02 s"


async def test_a_thread_that_checks_its_context_stops_at_the_timeout(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    never = threading.Event()

    @scheduler.task(timeout="20ms")
    def job(ctx: Context) -> None:
        while not never.wait(0.001):
            ctx.check()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("failed")
        run = await scheduler.get_run(run_id)
        assert (await scheduler.health()).engine.abandoned == 0  # type: ignore[union-attr]
    assert (run.verdict, run.reason) == (Verdict.FAILED, "timeout")


async def test_a_thread_that_ignores_the_timeout_and_returns_late_has_succeeded(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    may_end = threading.Event()

    @scheduler.task(timeout="20ms")
    def job(ctx: Context) -> str:
        while not record_of(ctx).stopped:  # only the engine knows that the timeout is over
            may_end.wait(0.001)
        return "done"

    async with scheduler:
        run = await job.enqueue()
        await collector.until("succeeded")
        [line] = await scheduler.log(run)
        assert (await scheduler.get_run(run.id)).result == "done"
    assert line.level == "warning"
    assert line.text.startswith("exceeded its timeout of 0.02 s without checking ctx.cancelled")


@pytest.mark.usefixtures("impatient")
async def test_a_thread_that_ignores_its_stop_is_abandoned_and_keeps_its_slot(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    go_on = threading.Event()

    @scheduler.task(timeout="10ms")
    def job() -> str:
        go_on.wait(SAFETY_SECONDS)
        return "too late"

    quick = scheduler.task(name="quick")(nothing)
    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("failed")
        health = (await scheduler.health()).engine
        assert health is not None
        assert (health.abandoned, health.running) == (1, 1)
        await quick.enqueue()
        await collector.until("succeeded")
        came_back = after_call(scheduler.runtime._opened, "claim")
        go_on.set()
        await quick.enqueue()
        await collector.until("succeeded", 2)
        await soon(came_back)
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.reason, run.result) == (Verdict.FAILED, "timeout", None)


async def test_a_running_coroutine_is_cancelled_on_request(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task(retry=Constant("1ms", attempts=5))
    async def job() -> None:
        await asyncio.Event().wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        assert await scheduler.cancel(run_id)
        await collector.until("cancelled")
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.reason) == (Verdict.CANCELLED, "requested")


async def test_a_cancel_from_another_process_arrives_with_the_heartbeat(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    scheduler, other = Scheduler(url, lease="1s", stop_timeout="2s"), Scheduler(url)
    collector = EventCollector(scheduler)

    @scheduler.task
    async def job() -> None:
        await asyncio.Event().wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        assert await other.cancel(run_id)
        await collector.until("cancelled")
        assert (await other.get_run(run_id)).verdict is Verdict.CANCELLED
    await other.close()


async def test_a_job_that_swallows_its_cancel_and_returns_has_succeeded(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)

    @scheduler.task
    async def job() -> str:
        with contextlib.suppress(asyncio.CancelledError):
            await asyncio.Event().wait()
        return "done all the same"

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        await scheduler.cancel(run_id)
        await collector.until("succeeded")
        assert (await scheduler.get_run(run_id)).result == "done all the same"


# --- results


@pytest.mark.parametrize(
    ("result", "words"),
    [(object(), "it is not JSON-like data"), ("x" * 70_000, "it has 70002 bytes, more than 65536")],
)
async def test_a_result_that_cannot_be_stored_does_not_fail_the_run(
    scheduler: Scheduler, result: object, words: str
) -> None:
    collector = EventCollector(scheduler, "succeeded")

    @scheduler.task
    async def job() -> object:
        return result

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("succeeded")
        run, [line] = await scheduler.get_run(run_id), await scheduler.log(run_id)
    assert (run.verdict, run.result) == (Verdict.SUCCEEDED, None)
    assert line.level == "warning"
    assert line.text.startswith("result dropped: ")
    assert words in line.text


# --- logs and progress


async def test_log_lines_of_a_job_are_kept_with_its_run(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "succeeded")
    logger = logging.getLogger("shop.jobs")

    @scheduler.task
    def job(ctx: Context) -> None:
        ctx.log("one")
        logger.warning("two %s", 2)

    async with scheduler:
        run_id = (await job.enqueue()).id
        logger.warning("outside of any run")
        await collector.until("succeeded")
        lines = await scheduler.log(run_id)
        rest = await scheduler.log(run_id, after=1)
    assert [(line.level, line.text) for line in lines] == [("info", "one"), ("warning", "two 2")]
    assert rest == lines[1:]


async def test_prints_of_a_job_in_a_thread_go_to_stdout_and_not_to_its_log(
    scheduler: Scheduler, capfd: pytest.CaptureFixture[str]
) -> None:
    collector = EventCollector(scheduler, "succeeded")

    @scheduler.task
    def job(ctx: Context) -> None:
        print("printed")
        ctx.log("logged")

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("succeeded")
        lines = await scheduler.log(run_id)
    assert [line.text for line in lines] == ["logged"]
    assert capfd.readouterr().out == "printed\n"


async def test_the_log_of_a_job_that_logs_too_much_is_cut_off(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "succeeded")

    @scheduler.task
    def job(ctx: Context) -> None:
        for number in range(LINES_MAX + 500):
            ctx.log(str(number))

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("succeeded")
        lines = await scheduler.log(run_id, limit=10_000)
    assert len(lines) == LINES_MAX + 1
    assert lines[-1].text.startswith("log limit of the attempt reached")


async def test_progress_and_phases_can_be_read(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    begin, go_on = asyncio.Event(), asyncio.Event()

    @scheduler.task
    async def job(ctx: Context) -> None:
        await begin.wait()
        with ctx.phase("load"):
            ctx.progress(0.25, "loading")
        await go_on.wait()
        with contextlib.suppress(ValueError), ctx.phase("store"):
            raise ValueError("full")

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        noted = after_call(scheduler.runtime._opened, "note")
        begin.set()
        await soon(noted)
        running = await scheduler.get_run(run_id)
        go_on.set()
        await collector.until("succeeded")
        run = await scheduler.get_run(run_id)
    assert (running.state, running.progress, running.progress_text) == (State.RUNNING, 0.25, "loading")
    assert [(phase.name, phase.is_failed) for phase in run.phases] == [("load", False), ("store", True)]


# --- hooks


async def test_hooks_can_be_sync_functions_async_functions_or_objects(scheduler: Scheduler) -> None:
    collector = list[str]()
    job = scheduler.task(name="job")(nothing)
    last = asyncio.Event()

    class Listener:
        async def __call__(self, event: Event) -> None:
            collector.append(f"object {event.kind}")

    @scheduler.on("succeeded")
    def plain(event: Event) -> None:
        assert threading.current_thread() is not threading.main_thread()
        collector.append(f"plain {event.kind}")

    scheduler.on("succeeded", Listener())

    @scheduler.on("succeeded")
    async def coroutine(event: Event) -> None:
        collector.append(f"coroutine {event.kind} of {event.task} in {event.app}")
        last.set()

    async with scheduler:
        await job.enqueue()
        await soon(last)
    assert collector == ["plain succeeded", "object succeeded", "coroutine succeeded of job in shop"]


async def test_a_hook_that_raises_affects_no_other_hook(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    job = scheduler.task(name="job")(nothing)

    @scheduler.on("succeeded")
    def broken(event: Event) -> None:
        raise RuntimeError("hook down")

    collector = EventCollector(scheduler, "succeeded")
    async with scheduler:
        await job.enqueue()
        await job.enqueue()
        await collector.until("succeeded", 2)
    failures = [record for record in caplog.records if record.name == "evertick.hooks"]
    assert len(failures) == 2
    assert "failed on succeeded of job" in failures[0].getMessage()


def test_hooks_are_called_after_the_event_loop_has_changed() -> None:
    scheduler, collector, hangs = Scheduler("sqlite://"), list[str](), asyncio.Event()

    @scheduler.on("paused")
    async def hook(event: Event) -> None:
        collector.append(event.note)
        if event.note == "one":
            await hangs.wait()

    async def pause(note: str, *, until_heard: bool) -> None:
        await scheduler.add(key=note, when=Every("1h"), task="job")
        await scheduler.pause(note, note=note)
        if until_heard:
            assert scheduler.runtime.hooks._task is not None
            await asyncio.wait_for(scheduler.runtime.hooks._task, SAFETY_SECONDS)

    loop = asyncio.new_event_loop()
    loop.run_until_complete(pause("one", until_heard=False))
    loop.run_until_complete(asyncio.sleep(0))
    assert scheduler.runtime.hooks._task is not None
    scheduler.runtime.hooks._task.cancel()
    with contextlib.suppress(asyncio.CancelledError):
        loop.run_until_complete(scheduler.runtime.hooks._task)
    loop.run_until_complete(loop.shutdown_default_executor())
    loop.close()
    with asyncio.Runner() as runner:
        runner.run(pause("two", until_heard=True))
        runner.run(scheduler.close())
    assert collector == ["one", "two"]


async def test_hooks_are_called_for_pauses_and_removals(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "paused", "removed")
    await scheduler.add(key="k", when=Every("1h"), task="job")
    await scheduler.pause("k", note="rain")
    await scheduler.remove("k")
    await collector.until("removed")
    assert [(event.kind, event.schedule_key, event.note) for event in collector.events] == [
        ("paused", "k", "rain"),
        ("removed", "k", ""),
    ]


async def test_hooks_are_called_for_skipped_moments(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler, "skipped")
    go_on = asyncio.Event()

    @scheduler.every("20ms", key="k")
    async def job() -> None:
        await go_on.wait()

    async with scheduler:
        count = 1
        # A busy machine may be late for the first moment, which then coalesces earlier ones.
        while (event := await collector.until("skipped", count)).reason == "coalesced":
            count += 1
        go_on.set()
        gaps = [row for row in await scheduler.history("k") if isinstance(row, Gap)]
    assert (event.schedule_key, event.reason, event.run_id) == ("k", "overlap", None)
    reasons = {(gap.verdict, gap.reason) for gap in gaps}
    assert (Verdict.SKIPPED, "overlap") in reasons
    assert reasons <= {(Verdict.SKIPPED, "overlap"), (Verdict.SKIPPED, "coalesced")}


# --- overlap, end to end


async def test_overlap_queue_runs_one_after_the_other(scheduler: Scheduler) -> None:
    collector = EventCollector(scheduler)
    go_on = asyncio.Event()

    @scheduler.task
    async def job() -> None:
        await go_on.wait()

    await scheduler.add(key="k", when=Every("1h"), task=job, overlap="queue")
    async with scheduler:
        first = await scheduler.trigger("k")
        await collector.until("started")
        second = await scheduler.trigger("k")
        assert (second.state, second.blocked_on) == (State.BLOCKED, first.id)
        go_on.set()
        assert (await collector.until("succeeded", 2)).run_id == second.id


async def test_overlap_replace_cancels_the_live_run_and_then_runs(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", lease="1s", stop_timeout="2s")
    collector, calls = EventCollector(scheduler), list[str]()

    @scheduler.task
    async def job(ctx: Context) -> None:
        calls.append(ctx.run_id)
        if len(calls) == 1:
            await asyncio.Event().wait()

    await scheduler.add(key="k", when=Every("1h"), task=job, overlap="replace")
    async with scheduler:
        first = await scheduler.trigger("k")
        await collector.until("started")
        second = await scheduler.trigger("k")
        assert (await collector.until("succeeded")).run_id == second.id
        replaced = await scheduler.get_run(first.id)
    assert (replaced.verdict, replaced.reason) == (Verdict.CANCELLED, "replaced")


# --- unknown tasks and bad arguments


async def test_a_run_of_an_unknown_task_is_parked_and_freed_by_a_node_that_knows_it(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    knows_nothing = Scheduler(url, stop_timeout="2s")
    await knows_nothing.add(key="k", when=Every("1h"), task="job")
    run = await knows_nothing.trigger("k")
    parked = after_call(await knows_nothing.runtime.store(), "park_unknown")
    async with knows_nothing:
        await soon(parked)
        waiting = await knows_nothing.get_run(run.id)
        assert (waiting.state, waiting.reason) == (State.PARKED, "unknown_task")
        assert "no live node knows task 'job'" in (await knows_nothing.why("k")).now
        knows = Scheduler(url, stop_timeout="2s")
        collector = EventCollector(knows, "succeeded")
        knows.task(name="job")(nothing)
        async with knows:
            assert (await collector.until("succeeded")).run_id == run.id


async def test_a_run_with_bad_arguments_is_parked_and_freed_by_code_that_accepts_them(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"

    def scheduler_with(function: Callable[..., Any]) -> Scheduler:
        made = Scheduler(url, stop_timeout="2s")
        made.task(name="job")(function)
        return made

    def takes_text(x: str) -> str:
        return x

    def takes_number(x: int) -> int:
        return x

    def takes_both(x: int | str) -> int | str:
        return x

    before = scheduler_with(takes_text)
    run = await before.runtime.tasks["job"].enqueue("seven")
    await before.close()
    wrong = scheduler_with(takes_number)
    written = after_call(await wrong.runtime.store(), "finish")
    async with wrong:
        await soon(written)
        parked = await wrong.get_run(run.id)
    assert (parked.state, parked.reason, parked.attempts) == (State.PARKED, "bad_arguments", 0)
    assert "Expected `int`, got `str`" in (parked.error or "")
    right = scheduler_with(takes_both)
    collector = EventCollector(right, "succeeded")
    async with right:
        assert (await collector.until("succeeded")).run_id == run.id
        done = await right.get_run(run.id)
    assert (done.result, done.attempts) == ("seven", 1)


async def test_a_schedule_continues_after_a_manual_run_with_bad_arguments(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    scheduler = Scheduler(url, stop_timeout="2s")
    collector = EventCollector(scheduler, "succeeded")

    @scheduler.every("200ms")
    def tick(n: int = 1) -> None: ...

    elsewhere = Scheduler(url)  # like the command line, it has no such task
    async with scheduler:
        await collector.until("succeeded")
        while True:
            try:
                by_hand = await elsewhere.trigger("tick", args={"m": 1})
                break
            except Refused:  # a tick is running
                continue
        await collector.until("succeeded", collector.kinds().count("succeeded") + 2)
        ended = await scheduler.get_run(by_hand.id)
    await elsewhere.close()
    assert (ended.verdict, ended.reason) == (Verdict.CANCELLED, "replaced")


async def test_a_schedule_continues_under_a_new_name_of_its_function(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path / 'jobs.db'}"
    old = Scheduler(url, node_name="shop@host")
    old.every("1h", key="k", name="tick")(nothing)
    async with old:
        left = await old.trigger("k")
        await old.cancel(left)
    store = await old.runtime.store()
    stored = (await store.stored_schedules("default", keys=["k"]))[0]
    waiting = NewRun(
        id=system_clock.new_id(), task="tick", cause=Cause.TRIGGER, schedule_id=stored.id, version=stored.version
    )
    advance = Advance(
        schedule_id=stored.id,
        version=stored.version,
        fire_at=stored.fire_at,
        at=stored.at,
        runs=(waiting,),
        next_fire_at=stored.fire_at,
        next_at=stored.at,
    )
    assert (await store.record_fires("default", None, [advance])).taken == [True]
    assert await store.park_unknown("default", 10) == 1
    await old.close()
    new = Scheduler(url, node_name="shop@host", stop_timeout="2s")
    collector = EventCollector(new, "succeeded")
    new.every("1h", key="k", name="tock")(nothing)
    async with new:
        again = await new.trigger("k")
        assert (await collector.until("succeeded")).run_id == again.id
        ended = await new.get_run(waiting.id)
    assert (ended.verdict, ended.reason) == (Verdict.CANCELLED, "replaced")


# --- lost nodes and stops


async def claim_on_dying_node(scheduler: Scheduler, task: str, *, at_most_once: bool) -> None:
    store = await scheduler.runtime.store()
    terms = {task: TaskTerms(hash="h", at_most_once=at_most_once)}
    await store.join(
        NodeJoin(
            id="dead", name="dead", app="shop", version="0", lease=1, queues=("default",), tasks=terms, declares={}
        )
    )
    claim = await store.claim("shop", "dead", ["default"], terms, 10)
    assert len(claim.runs) == 1


async def test_the_run_of_a_dead_node_is_run_again_and_costs_one_loss() -> None:
    scheduler = Scheduler("sqlite://", app="shop", lease="1s", stop_timeout="2s")
    collector = EventCollector(scheduler, "succeeded")
    run_id = (await scheduler.task(name="job")(nothing).enqueue()).id
    await claim_on_dying_node(scheduler, "job", at_most_once=False)
    async with scheduler:
        await collector.until("succeeded")
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.losses, run.attempts) == (Verdict.SUCCEEDED, 1, 1)


async def test_an_at_most_once_run_is_lost_with_its_node() -> None:
    scheduler = Scheduler("sqlite://", app="shop", lease="1s", stop_timeout="2s")
    calls = list[int]()

    @scheduler.task(on_lost="fail")
    def job() -> None:
        calls.append(1)

    run_id = (await job.enqueue()).id
    await claim_on_dying_node(scheduler, "job", at_most_once=True)
    rehomed = after_call(await scheduler.runtime.store(), "rehome", lambda answer: bool(answer.ended))
    async with scheduler:
        await soon(rehomed)
        run = await scheduler.get_run(run_id)
    assert (run.verdict, run.reason) == (Verdict.LOST, "node_died")
    assert calls == []


async def test_a_stop_waits_for_running_jobs(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout="10s")
    collector = EventCollector(scheduler)
    go_on = asyncio.Event()

    @scheduler.task
    async def job() -> None:
        await go_on.wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        asyncio.get_running_loop().call_later(0.02, go_on.set)
    assert (await scheduler.get_run(run_id)).verdict is Verdict.SUCCEEDED
    await scheduler.close()


@pytest.mark.parametrize("on_lost", ["rerun", "fail"])
async def test_a_stop_releases_runs_that_do_not_end_in_time_unless_they_are_at_most_once(
    tmp_path: Path, on_lost: str
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout=0)
    collector = EventCollector(scheduler)

    @scheduler.task(on_lost=on_lost)  # type: ignore[arg-type]
    async def job() -> None:
        await asyncio.Event().wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
    run = await scheduler.get_run(run_id)
    await scheduler.close()
    if on_lost == "rerun":
        assert (run.state, run.attempts, run.losses, run.verdict) == (State.WAITING, 0, 0, None)
    else:
        assert (run.state, run.verdict, run.reason) == (State.DONE, Verdict.LOST, "shutdown")


async def test_an_attempt_interrupted_by_a_stop_keeps_its_phases(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout=0)
    collector = EventCollector(scheduler)

    @scheduler.task
    async def job(ctx: Context) -> None:
        with ctx.phase("read", {"rows": 3}):
            await asyncio.Event().wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
    [attempt] = await scheduler.attempts(run_id)
    await scheduler.close()
    [phase] = attempt.phases
    assert (attempt.number, attempt.reason) == (1, "shutdown")
    assert (phase.name, phase.is_failed, phase.metadata) == ("read", True, {"rows": 3})


async def test_a_claim_answered_during_a_stop_does_not_start_a_released_run(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout=0)
    collector, calls = EventCollector(scheduler), list[int]()
    asked, answer = asyncio.Event(), asyncio.Event()

    @scheduler.task
    async def job() -> None:
        calls.append(1)
        await asyncio.Event().wait()

    async with scheduler:
        run_id = (await job.enqueue()).id
        await collector.until("started")
        store = await scheduler.runtime.store()
        real = store.claim

        async def slow(*args: Any) -> Any:
            asked.set()
            await answer.wait()
            return await real(*args)

        store.claim = slow  # type: ignore[method-assign]
        scheduler.runtime.engine.wake_runs()
        await soon(asked)
        asyncio.get_running_loop().call_later(0.1, answer.set)
    run = await scheduler.get_run(run_id)
    await scheduler.close()
    assert calls == [1]
    assert run.state is State.WAITING


async def test_a_thread_learns_of_a_stop_through_its_context(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path / 'jobs.db'}", stop_timeout=0)
    collector, problem = EventCollector(scheduler), list[str]()
    never = threading.Event()

    @scheduler.task
    def job(ctx: Context) -> None:
        try:
            while not never.wait(0.001):
                ctx.check()
        except Stopped as stopped:
            problem.append(str(stopped))
            raise

    async with scheduler:
        await job.enqueue()
        await collector.until("started")
    assert len(problem) == 1
    assert problem[0].endswith("was asked to stop: shutdown")
    await scheduler.close()


async def test_a_running_node_is_listed_and_healthy(scheduler: Scheduler) -> None:
    scheduler.every("1h", key="k")(nothing)
    async with scheduler:
        [node] = await scheduler.nodes()
        health = await scheduler.health()
    assert (node.name, node.app, node.tasks, node.queues, node.died_at) == (
        "web@host",
        "shop",
        ("nothing",),
        ("default",),
        None,
    )
    assert set(node.declares) == {"k"}
    assert health.is_healthy
    assert health.engine is not None
    assert health.engine.lease_seconds_left > 0


async def test_history_lists_runs_and_gaps_newest_first(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", overlap="allow")
    runs = [await scheduler.trigger("k"), await scheduler.trigger("k")]
    history = await scheduler.history("k")
    assert [row.id for row in history if isinstance(row, Run)] == [run.id for run in reversed(runs)]


@pytest.fixture(autouse=True)
def no_thread_is_left_behind() -> Iterator[None]:
    before = set(threading.enumerate())
    yield
    for thread in set(threading.enumerate()) - before:
        if thread.name.startswith("evertick") and not thread.name.startswith("evertick-sqlite-memory"):
            thread.join(SAFETY_SECONDS)
            assert not thread.is_alive(), thread.name
