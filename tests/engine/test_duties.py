"""Duties in virtual time and on several engines: their rhythm, their errors, their stop, their hand-over."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from evertick import Duty, DutyContext, Event, Scheduler
from evertick.engine import heartbeat
from evertick.testing import virtual_time
from evertick.text.error_line import error_summary

PATIENCE = 20.0


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite://")


async def duty_of(scheduler: Scheduler, name: str) -> Duty:
    [found] = [duty for duty in await scheduler.duties() if duty.name == name]
    return found


async def until(is_so: Callable[[], bool]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not is_so():
            await asyncio.sleep(0.01)


def seconds(scheduler: Scheduler) -> float:
    """Of virtual time, since midnight. The first act comes before there is a kit to ask."""
    return (scheduler.runtime.clock.now_us() // 1_000_000) % 86_400


# --- rhythm


async def test_a_periodic_duty_acts_at_once_and_then_in_its_rhythm(scheduler: Scheduler) -> None:
    acted: list[float] = []

    @scheduler.duty("tidy", every="5m")
    async def tidy() -> None:
        acted.append(seconds(scheduler) / 60)

    async with virtual_time(scheduler) as kit:
        await kit.advance("12m")
        duty = await duty_of(scheduler, "tidy")
    assert acted == [0, 5, 10]
    assert (duty.term, duty.node_name, duty.error) == (1, scheduler.settings.node_name, None)
    assert duty.next_at is not None
    assert duty.ticked_at is not None
    assert (duty.next_at - duty.ticked_at).total_seconds() == 300


async def test_a_plain_function_is_a_duty_as_well(scheduler: Scheduler) -> None:
    threads = []

    @scheduler.duty("tidy", every="1m")
    def tidy(ctx: DutyContext) -> None:
        threads.append((ctx.term, threading.current_thread() is threading.main_thread()))

    async with virtual_time(scheduler) as kit:
        await kit.advance("2m")
    assert threads == [(1, False)] * 3


async def test_a_duty_acts_at_the_moments_of_a_rule(scheduler: Scheduler) -> None:
    acted: list[float] = []

    @scheduler.duty("hourly", when="0 * * * *")
    async def hourly() -> None:
        acted.append(seconds(scheduler) / 60)

    async with virtual_time(scheduler, start="2026-01-01T00:10:00Z") as kit:
        await kit.advance("1m")
        assert str((await duty_of(scheduler, "hourly")).next_at) == "2026-01-01 01:00:00+00:00"
        await kit.advance("2h")
    assert acted == [60, 120]


async def test_after_a_downtime_it_acts_once_for_all_it_missed(scheduler: Scheduler) -> None:
    acted: list[tuple[float, int]] = []

    @scheduler.duty("tidy", every="5m")
    async def tidy(ctx: DutyContext) -> None:
        acted.append((seconds(scheduler) / 60, ctx.term))

    async with virtual_time(scheduler) as kit:
        await kit.advance("1m")
        await kit.downtime("16m")
        await kit.advance("8m")
    assert acted == [(0, 1), (17, 2), (20, 2), (25, 2)]


async def test_an_act_that_takes_longer_than_its_interval_is_not_joined_by_a_second(scheduler: Scheduler) -> None:
    acted: list[float] = []

    @scheduler.duty("slow", every="1m")
    async def slow() -> None:
        acted.append(seconds(scheduler) / 60)
        await asyncio.sleep(150)

    async with virtual_time(scheduler) as kit:
        await kit.advance("7m")
    assert acted == [0, 3, 6]


# --- errors


async def test_an_error_is_noted_and_the_rhythm_goes_on(scheduler: Scheduler, caplog: pytest.LogCaptureFixture) -> None:
    acted: list[float] = []

    @scheduler.duty("fragile", every="1m")
    async def fragile() -> None:
        acted.append(seconds(scheduler) / 60)
        if len(acted) < 3:
            raise ValueError("too soon")

    async with virtual_time(scheduler) as kit:
        await kit.advance("90s")
        assert error_summary((await duty_of(scheduler, "fragile")).error) == "ValueError: too soon"
        await kit.advance("1m")
        assert (await duty_of(scheduler, "fragile")).error is None
    assert acted == [0, 1, 2]
    first, again = [record.getMessage() for record in caplog.records if "'fragile': failed" in record.getMessage()]
    assert first.startswith("duty 'fragile': failed, term 1:\nTraceback ")
    assert "src/evertick" not in first, "the frames of Evertick are left out"
    assert again == "duty 'fragile': failed again, term 1: ValueError: too soon"
    assert "duty 'fragile': recovered, term 1" in caplog.messages


async def test_a_loop_that_ends_begins_again_later_each_time(scheduler: Scheduler) -> None:
    began: list[float] = []

    @scheduler.duty("follow")
    async def follow() -> None:
        began.append(seconds(scheduler))
        if len(began) == 2:
            raise OSError("gone")

    async with virtual_time(scheduler) as kit:
        await kit.advance("2s")
        assert error_summary((await duty_of(scheduler, "follow")).error) == "OSError: gone"
        await kit.advance("13s")
        duty = await duty_of(scheduler, "follow")
    assert began == [0, 1, 3, 7, 15]
    assert str(duty.error).startswith("it returned; a duty without every= or when=")


async def test_a_loop_that_went_well_for_long_begins_again_soon(scheduler: Scheduler) -> None:
    began: list[float] = []

    @scheduler.duty("follow")
    async def follow() -> None:
        began.append(seconds(scheduler))
        await asyncio.sleep(0 if len(began) < 3 else 100)

    async with virtual_time(scheduler) as kit:
        await kit.advance("5m")
    assert began[:5] == [0, 1, 3, 104, 205]


# --- stop


async def test_a_loop_is_cancelled_at_the_stop_and_its_duty_is_free(scheduler: Scheduler) -> None:
    seen: list[str] = []

    @scheduler.duty("follow")
    async def follow(ctx: DutyContext) -> None:
        assert await ctx.is_held()
        try:
            await ctx.sleep("1d")
        finally:
            seen.append(f"{ctx.cancelled} {await ctx.is_held()}")

    async with virtual_time(scheduler) as kit:
        await kit.advance("1m")
        assert (await duty_of(scheduler, "follow")).node is not None
        await kit.downtime("1m")
        assert seen == ["True False"]
        assert (await duty_of(scheduler, "follow")).term == 2


async def test_what_was_cut_off_in_the_middle_is_done_again_by_the_next_holder(scheduler: Scheduler) -> None:
    acted: list[str] = []

    @scheduler.duty("long", every="1h")
    async def long(ctx: DutyContext) -> None:
        acted.append(f"begin {ctx.term}")
        await asyncio.sleep(600)
        acted.append(f"end {ctx.term}")

    async with virtual_time(scheduler) as kit:
        await kit.advance("1m")
        await kit.downtime("1m")
        await kit.advance("20m")
    assert acted == ["begin 1", "begin 2", "end 2"]


async def test_a_plain_function_can_wait_and_is_asked_to_stop(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/duty.db")
    told: list[str] = []
    is_waiting = threading.Event()

    @scheduler.duty("plain")
    def plain(ctx: DutyContext) -> None:
        while ctx.wait(0.01):
            is_waiting.set()
        told.append("stopped")

    async with scheduler:
        await until(is_waiting.is_set)
        assert "plain" in ((await scheduler.health()).engine or pytest.fail("no engine")).duties
    assert told == ["stopped"]


async def test_hooks_hear_of_duties_that_are_taken_and_lost(scheduler: Scheduler) -> None:
    heard: list[tuple[str, str | None, int | None]] = []

    @scheduler.duty("follow")
    async def follow() -> None:
        await asyncio.sleep(10**6)

    async def note(event: Event) -> None:
        if event.duty == "follow":
            heard.append((event.kind, event.duty, event.term))

    scheduler.on("duty_taken", note)
    scheduler.on("duty_lost", note)
    async with virtual_time(scheduler) as kit:
        await kit.advance("1m")
    assert heard == [("duty_taken", "follow", 1), ("duty_lost", "follow", 1)]


async def test_a_node_without_duties_holds_none_and_prunes_nothing() -> None:
    scheduler = Scheduler("sqlite://", duties=False)
    scheduler.duty("tidy", every="1m")(lambda: pytest.fail("it takes no part"))
    async with virtual_time(scheduler) as kit:
        await kit.advance("1h")
        assert await scheduler.duties() == []


async def test_a_process_that_runs_nothing_holds_no_duty(tmp_path: Path) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/duty.db", concurrency=0)
    scheduler.duty("tidy", every="1m")(lambda: pytest.fail("it runs nothing"))
    async with scheduler:
        assert await scheduler.duties() == []


# --- several engines


def a_node(url: str, acted: list[tuple[str, int]], name: str) -> Scheduler:
    scheduler = Scheduler(url, node_name=name)

    @scheduler.duty("tidy", every="100ms")
    async def tidy(ctx: DutyContext) -> None:
        acted.append((name, ctx.term))

    return scheduler


async def three_hand_over(url: str) -> None:
    acted: list[tuple[str, int]] = []
    nodes = {name: a_node(url, acted, name) for name in ("a", "b", "c")}
    for node in nodes.values():
        await node.__aenter__()
    for term in (1, 2, 3):
        await until(lambda term=term: [number for _, number in acted].count(term) > 2)  # type: ignore[misc]
        holder = acted[-1][0]
        duty = await duty_of(next(iter(nodes.values())), "tidy")
        assert (duty.node_name, duty.term) == (holder, term)
        await nodes.pop(holder).__aexit__(None, None, None)
        assert acted[-1] == (holder, term) or acted[-1][1] == term + 1
    # One holder for each term, and terms in order.
    assert len(set(acted)) == 3
    assert [term for _, term in acted] == sorted(term for _, term in acted)
    assert {name for name, _ in acted} == {"a", "b", "c"}


async def test_of_three_nodes_one_acts_until_it_stops_then_another(tmp_path: Path) -> None:
    await three_hand_over(f"sqlite:///{tmp_path}/duty.db")


async def test_of_three_nodes_on_postgresql_one_acts_until_it_stops_then_another(postgres_url: str) -> None:
    await three_hand_over(postgres_url)


async def test_a_duty_whose_function_does_not_stop_is_handed_over_when_it_has(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/duty.db"
    may_end, acting, acted = threading.Event(), threading.Event(), list[str]()
    first, second = Scheduler(url, node_name="first"), Scheduler(url, node_name="second")

    @first.duty("stubborn", every="1h")
    def never_looks() -> None:
        acting.set()
        assert may_end.wait(PATIENCE)
        acted.append("first")

    @second.duty("stubborn", every="1h")
    def acts() -> None:
        acted.append("second")

    @second.duty("other")
    async def other() -> None:
        await asyncio.sleep(PATIENCE)

    await first.__aenter__()
    await until(acting.is_set)
    async with second:
        stopping = asyncio.create_task(first.__aexit__(None, None, None))
        # By the time the second node has taken what the first has resigned, it has looked at the other one, too.
        await until(
            lambda: second.runtime.engine is not None and "evertick.prune" in second.runtime.engine.health().duties
        )
        assert (await duty_of(second, "stubborn")).node_name == "first"
        may_end.set()
        await stopping
        await until(lambda: second.runtime.engine is not None and "stubborn" in second.runtime.engine.health().duties)
        duty = await duty_of(second, "stubborn")
    assert acted == ["first"], "what it never looked up from is done, and the next act is an hour away"
    assert duty.ticked_at is not None
    assert duty.next_at is not None
    assert (duty.next_at - duty.ticked_at).total_seconds() > 3000


async def test_a_holder_that_hears_nothing_of_the_store_stops_before_its_lease_is_over(tmp_path: Path) -> None:
    path = tmp_path / "duty.db"
    # It stops when a third of it is left: that much a busy machine may take for it.
    lease = 9.0
    scheduler = Scheduler(f"sqlite:///{path}?busy_timeout=100ms", lease=lease)
    loop = asyncio.get_running_loop()
    stopped_at: list[float] = []
    began: list[int] = []

    @scheduler.duty("follow")
    async def follow(ctx: DutyContext) -> None:
        began.append(ctx.term)
        try:
            await ctx.sleep("1h")
        finally:
            assert ctx.cancelled
            stopped_at.append(loop.time())

    async with scheduler:
        await until(lambda: began == [1])
        with closing(sqlite3.connect(path, isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            locked_at = loop.time()
            await until(lambda: bool(stopped_at))
            other.execute("ROLLBACK")
        assert stopped_at[0] - locked_at < lease
        # Nobody has declared it dead meanwhile: it goes on, and it is still its term.
        await until(lambda: began == [1, 1])


async def test_a_blocked_event_loop_gives_up_its_duties(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heartbeat, "BLOCKED_SECONDS", 0.5)
    url = f"sqlite:///{tmp_path}/duty.db"
    blocked, other = Scheduler(url, node_name="blocked", lease="6s"), Scheduler(url, node_name="other", lease="6s")
    terms: list[int] = []
    has_taken = threading.Event()

    @blocked.duty("follow")
    async def block(ctx: DutyContext) -> None:
        terms.append(ctx.term)
        if ctx.term == 1:
            assert await asyncio.to_thread(has_started.wait, PATIENCE)
            assert has_taken.wait(PATIENCE)  # the event loop is to stand still
            assert ctx.cancelled
        await ctx.sleep(PATIENCE)

    @other.duty("follow")
    async def take(ctx: DutyContext) -> None:
        terms.append(ctx.term)
        has_taken.set()
        await ctx.sleep(PATIENCE)

    has_started = threading.Event()

    def live_elsewhere() -> None:
        with other:
            has_started.set()
            has_taken.wait(PATIENCE)
            may_end.wait(PATIENCE)

    may_end = threading.Event()
    async with blocked:
        await until(lambda: terms == [1])
        thread = threading.Thread(target=live_elsewhere)
        thread.start()
        await until(has_taken.is_set)
        duty = await duty_of(blocked, "follow")
        assert (duty.node_name, duty.term) == ("other", 2)
        may_end.set()
        await asyncio.to_thread(thread.join)
    assert terms[:2] == [1, 2]
