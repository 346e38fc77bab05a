"""The reference worker on real brokers, without a ledger: what it takes, drops, reports and stops."""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime

import msgspec
import pytest
from bench import Bench, bench_on
from wire import all_reports, reports_until

from evertick import Context, Retry, Skip
from evertick.clock import system_clock
from evertick.driver.queue import redis_broker
from evertick.driver.queue.contract import Kill, WorkerReport
from evertick.worker.broker_session import QueueMessage
from servers.broker import Broker, redis_server

RUN = "0190a1b2-0000-7000-8000-000000000001"


async def until(holds: Callable[[], bool]) -> None:
    """The time limit of the test ends an endless wait."""
    while not holds():
        await asyncio.sleep(0.005)


async def test_a_run_is_taken_done_and_reported(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work(ctx: Context, number: int) -> dict[str, object]:
        return {"twice": number * 2, "attempt": ctx.attempt, "fire_at": ctx.fire_at.isoformat()}

    worker = bench.worker()
    await bench.dispatch(run=bench.run, fence=5, args={"number": 21})
    taken, finish = await bench.ends()
    assert (taken.kind, taken.run, taken.fence, taken.worker) == ("taken", bench.run, 5, "w1")
    assert finish.kind == "finish"
    assert finish.result == {"twice": 42, "attempt": 1, "fire_at": "2026-01-31T09:00:00+00:00"}
    assert worker.counts == {"taken": 1}


async def test_the_last_report_has_the_duration_of_the_work(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work(fails: bool) -> None:
        await asyncio.sleep(0.05)
        if fails:
            raise RuntimeError("no")

    bench.worker()
    began = system_clock.elapsed()
    await bench.push_all([{"args": {"fails": fails}} for fails in (True, False)])
    reports = await bench.ends(2)
    took = {each.kind: each.took for each in reports}
    assert took["taken"] is None
    assert 0.05 <= min(took["finish"] or 0, took["fail"] or 0) < system_clock.elapsed() - began


async def test_a_duplicate_message_is_done_once_even_by_two_workers(bench: Bench) -> None:
    done: list[int] = []

    @bench.scheduler.task(name="work")
    async def work(number: int) -> None:
        done.append(number)

    workers = [bench.worker(), bench.worker()]
    many = [{"run": f"{bench.own}-{number}", "fence": 3, "args": {"number": number}} for number in range(50)]
    await bench.push_all(many)
    await bench.push_doubles(many)
    await bench.ends(50)
    await until(lambda: sum(sum(worker.counts.values()) for worker in workers) == 100)
    assert sorted(done) == list(range(50))
    assert sum(worker.counts["duplicate"] for worker in workers) == 50
    assert await all_reports(bench.broker) == []


async def test_the_same_run_under_another_fence_is_another_dispatch(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work() -> None: ...

    bench.worker()
    await bench.push_all([{"run": bench.run, "fence": 1}, {"run": bench.run, "fence": 2}])
    ends = [each for each in await bench.ends(2) if each.kind == "finish"]
    assert sorted(each.fence for each in ends) == [1, 2]


async def test_a_message_after_take_by_is_ignored(bench: Bench) -> None:
    worker = bench.worker()
    await bench.dispatch(take_within=-1.0)
    await until(lambda: worker.counts["late"] == 1)
    assert await all_reports(bench.broker) == []


@pytest.mark.parametrize("data", [b"", b"{}", b"\xff", b'{"v":2}', b"[" * 270_000], ids=lambda data: repr(data[:10]))
async def test_an_unreadable_message_is_dropped_and_the_next_is_done(bench: Bench, data: bytes) -> None:
    @bench.scheduler.task(name="work")
    async def work() -> None: ...

    worker = bench.worker(parallelism=1)
    await bench.put([data])
    await bench.dispatch()
    assert (await bench.ends())[-1].kind == "finish"
    assert worker.counts == {"unreadable": 1, "taken": 1}


async def test_texts_with_unpaired_surrogates_are_reported(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work(ctx: Context) -> str:
        ctx.log("no such file: \udcff")
        ctx.progress(0.5, "\ud83d")
        if ctx.fence == 1:
            return "cut: \ud83d"
        raise ValueError("no such file: \udcff")

    bench.worker()
    await bench.push_all([{"run": bench.run, "fence": fence} for fence in (1, 2)])
    ends = {each.kind: each for each in await bench.ends(2) if each.kind in ("finish", "fail")}
    assert ends["finish"].result == "cut: \ufffd"
    assert (ends["fail"].error or "").endswith("no such file: ?")
    assert ends["fail"].text == "\ufffd"


async def test_the_end_of_a_job_is_reported(bench: Bench) -> None:
    @bench.scheduler.task(name="fails")
    async def fails() -> None:
        raise ValueError("no such order")

    @bench.scheduler.task(name="skips")
    def skips() -> None:
        raise Skip("nothing to do")

    @bench.scheduler.task(name="asks")
    async def asks() -> None:
        raise Retry("busy", after="90s")

    bench.worker()
    await bench.push_all(
        [{"run": f"{bench.own}-{task}", "task": task} for task in ("fails", "skips", "asks", "unknown")]
    )
    ends = {each.run.partition("-")[2]: each for each in await bench.ends(4) if each.kind != "taken"}
    assert ends["fails"].kind == "fail"
    assert "ValueError: no such order" in str(ends["fails"].error)
    assert ends["fails"].retry is None
    assert (ends["skips"].kind, ends["skips"].reason) == ("skip", "nothing to do")
    assert (ends["asks"].kind, ends["asks"].retry, ends["asks"].after) == ("fail", True, 90.0)
    assert "no task 'unknown'" in str(ends["unknown"].error)


async def test_a_worker_speaks_of_its_work_at_least_as_often_as_it_is_asked_to(bench: Bench) -> None:
    go_on = asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        await go_on.wait()

    bench.worker()
    await bench.dispatch(progress_every=0.05)

    def has_three_words(found: list[WorkerReport]) -> bool:
        return sum(each.kind == "progress" for each in found) >= 3

    assert (await reports_until(bench.broker, has_three_words))[0].kind == "taken"
    go_on.set()
    assert (await bench.ends())[-1].kind == "finish"


async def test_progress_and_log_lines_travel_with_the_reports(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work(ctx: Context) -> None:
        ctx.log("first")
        ctx.progress(0.5, "half")
        ctx.log("second", level="warning")

    bench.worker()
    await bench.dispatch()
    *_, finish = await bench.ends()
    assert (finish.fraction, finish.text, finish.seq) == (0.5, "half", 0)
    assert [(level, text) for _, level, text in finish.log] == [("info", "first"), ("warning", "second")]
    assert all(datetime.fromisoformat(at).tzinfo == UTC for at, _, _ in finish.log)


async def test_a_kill_stops_the_work_at_once(bench: Bench) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    bench.worker()
    await bench.dispatch(run=bench.run, fence=4)
    await begun.wait()
    await bench.broker.kill([Kill(run=bench.run, fence=3)])  # of another dispatch
    await bench.broker.kill([Kill(run=bench.run, fence=4)])
    end = (await bench.ends())[-1]
    assert stopped.is_set()
    assert (end.kind, end.reason, end.retry) == ("fail", "killed", False)


async def test_a_lost_kill_is_noticed_with_the_next_report(bench: Bench) -> None:
    begun = asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    worker = bench.worker()
    worker._session.on_kill = lambda _: None
    await bench.dispatch(run=bench.run, fence=4, progress_every=0.05)
    await begun.wait()
    await bench.broker.kill([Kill(run=bench.run, fence=4)])
    assert (await bench.ends())[-1].reason == "killed"


async def test_a_run_that_is_killed_before_it_is_taken_does_not_start(bench: Bench) -> None:
    await bench.broker.kill([Kill(run=bench.run, fence=4)])
    worker = bench.worker()
    await bench.dispatch(run=bench.run, fence=4)
    await until(lambda: worker.counts["killed"] == 1)
    assert await all_reports(bench.broker) == []


async def test_a_thread_is_asked_to_stop(bench: Bench) -> None:
    begun = threading.Event()

    @bench.scheduler.task(name="work")
    def work(ctx: Context) -> None:
        begun.set()
        while not ctx.cancelled:
            threading.Event().wait(0.01)

    bench.worker()
    await bench.dispatch(run=bench.run, fence=4)
    await until(begun.is_set)
    await bench.broker.kill([Kill(run=bench.run, fence=4)])
    assert (await bench.ends())[-1].reason == "killed"


async def test_work_that_exceeds_its_timeout_is_stopped_and_fails(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work() -> None:
        await asyncio.Event().wait()

    bench.worker()
    await bench.dispatch(timeout=0.05)
    end = (await bench.ends())[-1]
    assert (end.kind, end.reason, end.retry) == ("fail", "timeout", None)
    assert "timed out after 0.05 s" in str(end.error)


async def test_no_more_runs_at_once_than_it_has_slots_for(bench: Bench) -> None:
    at_once, most, full = 0, 0, asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        nonlocal at_once, most
        at_once += 1
        most = max(most, at_once)
        if at_once == 3:
            full.set()
        await full.wait()
        at_once -= 1

    bench.worker(parallelism=3)
    await bench.push_all([{} for _ in range(20)])
    await bench.ends(20)
    assert most == 3


async def test_a_drain_waits_for_running_work_and_takes_no_more(bench: Bench) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> str:
        begun.set()
        await go_on.wait()
        return "done"

    worker = bench.worker(parallelism=1)
    await bench.dispatch()
    await begun.wait()
    draining = asyncio.create_task(bench.stop())
    await until(worker._stopping.is_set)
    await bench.dispatch(run=bench.run)
    go_on.set()
    await draining
    assert [each.kind for each in await all_reports(bench.broker)] == ["taken", "finish"]
    bench.worker()
    assert (await bench.ends())[-1].run == bench.run


async def test_work_that_exceeds_the_stop_time_is_interrupted_and_released(bench: Bench) -> None:
    begun = asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        begun.set()
        await asyncio.Event().wait()

    bench.worker(stop_seconds=0.01)
    await bench.dispatch()
    await begun.wait()
    await bench.stop()
    assert [each.kind for each in await all_reports(bench.broker)] == ["taken", "release"]


async def test_a_released_message_goes_to_another_worker(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work() -> None: ...

    session = bench.session()
    await bench.dispatch(run=bench.run)
    fetched: list[QueueMessage] = []
    while not fetched:
        fetched = await session.fetch(1, 1.0)
    await session.give_back(fetched[0])
    await session.close()
    bench.worker()
    assert (await bench.ends())[-1].run == bench.run


async def test_an_entry_read_by_a_dead_worker_goes_to_another(
    redis: Broker, own: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(redis_broker, "UNACKNOWLEDGED_MS", 0)
    async with bench_on(redis, own, "stream") as bench:

        @bench.scheduler.task(name="work")
        async def work() -> None: ...

        dead = bench.session()
        await dead.fetch(1, 0.01)
        await bench.dispatch(run=bench.run)
        assert len(await dead.fetch(1, 1.0)) == 1
        await dead.close()
        bench.worker()
        assert (await bench.ends())[-1].run == bench.run


@pytest.mark.parametrize("mode", ["forget", "ack"])
async def test_a_worker_reports_only_what_its_mode_requires(bench: Bench, mode: str) -> None:
    done = asyncio.Event()

    @bench.scheduler.task(name="work")
    async def work() -> None:
        done.set()

    bench.worker()
    await bench.dispatch(mode=mode)
    await done.wait()
    await bench.stop()
    assert [each.kind for each in await all_reports(bench.broker)] == (["taken"] if mode == "ack" else [])


async def test_the_end_of_a_run_is_reported_when_the_broker_is_back(own: str) -> None:
    begun, go_on = asyncio.Event(), asyncio.Event()
    with redis_server() as server:
        async with bench_on(server, own, "list") as bench:

            @bench.scheduler.task(name="work")
            async def work() -> str:
                begun.set()
                await go_on.wait()
                return "kept"

            bench.worker(parallelism=1)
            await bench.dispatch()
            await begun.wait()
            server.kill()
            go_on.set()
            await asyncio.sleep(0.3)  # several tries fail
            server.start()
            found: list[WorkerReport] = []
            while not found or found[-1].kind != "finish":
                with suppress(Exception):
                    found += await all_reports(bench.broker)
            assert found[-1].result == "kept"


async def test_a_result_that_is_too_large_is_dropped_with_a_log_line(bench: Bench) -> None:
    @bench.scheduler.task(name="work")
    async def work() -> str:
        return "x" * 100_000

    bench.worker()
    await bench.dispatch()
    end = (await bench.ends())[-1]
    assert end.kind == "finish"
    assert end.result is None


def test_reports_of_newer_workers_are_read_and_other_versions_refused() -> None:
    from evertick.driver.queue.contract import decode_report
    from evertick.errors import InvalidInput

    newer = msgspec.json.encode({"v": 1, "run": RUN, "fence": 1, "kind": "taken", "colour": "blue"})
    assert decode_report(newer).kind == "taken"
    for odd in (-1, 1e9):  # a wrong clock of the worker does not invalidate the report
        end = {"v": 1, "run": RUN, "fence": 1, "kind": "finish", "took": odd}
        assert decode_report(msgspec.json.encode(end)).took is None
    for wrong in (
        {"v": 2, "run": RUN, "fence": 1, "kind": "taken"},
        {"v": 1, "run": RUN, "fence": 1, "kind": "eaten"},
        {"v": 1, "run": RUN, "fence": -1, "kind": "taken"},
        {"v": 1, "run": "", "fence": 1, "kind": "taken"},
        {"v": 1, "run": RUN, "fence": 1, "kind": "progress", "fraction": 1.5},
        {"v": 1, "run": RUN, "fence": 1, "kind": "fail", "after": -1},
    ):
        with pytest.raises(InvalidInput, match=r"^report: "):
            decode_report(msgspec.json.encode(wrong))
    with pytest.raises(InvalidInput, match="more than"):
        decode_report(b" " * 300_000)
