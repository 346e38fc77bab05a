"""From the ledger over a broker to a worker and back: real stores, real brokers, real workers."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from bench import Bench, Kind, bench_on

from evertick import (
    Constant,
    Context,
    Every,
    InvalidSetting,
    MessageState,
    Nats,
    NatsConnection,
    Redis,
    Run,
    Scheduler,
    Skip,
    State,
    Verdict,
)
from evertick.driver.queue.contract import WorkerReport, decode_dispatch
from evertick.driver.queue.driver import QueueDriver
from evertick.driver.queue.nats_client import NatsNames
from evertick.driver.queue.redis_broker import reports_key
from evertick.driver.spec import Spec
from evertick.explain.run import explain_run
from evertick.model import DispatchedTo
from evertick.store.base import MessageFilter
from evertick.testing import virtual_time
from evertick.when import from_us
from servers.broker import Broker, nats_server, redis_server


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    return (
        f"sqlite:///{tmp_path}/ledger.db" if request.param == "sqlite" else str(request.getfixturevalue("postgres_url"))
    )


def node_on(bench: Bench, url: str, **settings: Any) -> Scheduler:
    """A scheduler whose jobs go to the queue of the bench."""
    kind = "nats" if bench.kind == "nats" else "redis"
    node = Scheduler(url, app=bench.own, drivers=["function", kind], poll_interval="200ms", **settings)
    node.connect(kind, bench.server.url)
    return node


def queue_of(bench: Bench, **fields: Any) -> Spec:
    if bench.kind == "nats":
        return Nats(bench.own, **fields)
    return Redis(bench.own, kind=bench.kind, **fields)


async def ended(node: Scheduler, run: Run) -> Run:
    return await until(node, run, lambda found: found.state is State.DONE)


async def until(node: Scheduler, run: Run, holds: Callable[[Run], bool]) -> Run:
    """The time limit of the test ends an endless wait."""
    while not holds(found := await node.get_run(run.id)):
        await asyncio.sleep(0.01)
    return found


async def test_a_run_goes_to_a_worker_and_comes_back_with_its_result(bench: Bench, url: str) -> None:
    @bench.scheduler.task(name="build")
    async def build(ctx: Context, repository: str) -> dict[str, object]:
        ctx.log(f"building {repository}")
        ctx.progress(0.5, "half")
        return {"built": repository, "attempt": ctx.attempt}

    node = node_on(bench, url)
    job = node.job("build", queue_of(bench))
    async with node:
        bench.worker()
        run = await ended(node, await job.enqueue(repository="evertick"))
        lines = await node.log(run.id)
    assert (run.verdict, run.result, run.attempts) == (Verdict.SUCCEEDED, {"built": "evertick", "attempt": 1}, 1)
    assert [line.text for line in lines] == ["building evertick"]
    broker = "nats" if bench.kind == "nats" else "redis"
    assert run.dispatched_to == DispatchedTo(to=broker, queue=bench.own, worker="w1")


@pytest.mark.parametrize(
    "half", [rb"\ud83d", "\ud83d".encode("utf-8", "surrogatepass"), b"\xff"], ids=["escaped", "as bytes", "no text"]
)
async def test_a_report_with_half_a_letter_ends_its_run(
    bench: Bench, url: str, half: bytes, caplog: pytest.LogCaptureFixture
) -> None:
    node = node_on(bench, url)
    job = node.job("build", queue_of(bench))
    async with node:
        runs = [await job.enqueue(number=number) for number in range(2)]
        session, fetched = bench.session(), []
        while len(fetched) < 2:
            fetched += await session.fetch(2, 1.0)
        for each in fetched:
            dispatched = decode_dispatch(each.data)
            assert dispatched.reply is not None
            said = f'{{"v":1,"run":"{dispatched.run}","fence":{dispatched.fence},"worker":"w HALF","text":"HALF"'
            log = ',"log":[["2026-01-31T09:00:00Z","in HALF","cut: HALF \\u0000 end"]],"seq":0'
            if dispatched.run == runs[0].id:
                end = ',"kind":"finish","result":{"HALF":"cut: HALF","pair":"\\ud83d\\ude00","zero":"a\\u0000b"}}'
            else:
                end = ',"kind":"fail","error":"no HALF \\u0000 end","reason":"HALF","retry":false}'
            await bench.report(dispatched.reply, [(said + log + end).encode().replace(b"HALF", half)])
        await session.close()
        done, failed = [await ended(node, run) for run in runs]
        lines = await node.log(done.id)
    assert done.verdict is Verdict.SUCCEEDED
    assert done.result == {"\ufffd": "cut: \ufffd", "pair": "\U0001f600", "zero": "a\x00b"}
    assert done.dispatched_to is not None
    assert done.dispatched_to.worker == "w \ufffd"
    assert [line.text.partition(" ")[0] for line in lines] == ["cut:"]
    assert (failed.verdict, failed.reason) == (Verdict.FAILED, "\ufffd")
    assert (failed.error or "").endswith(" end")
    assert "cannot be read" not in caplog.text


async def test_many_reports_that_cannot_be_read_are_two_lines_of_the_log(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("evertick.text.log_level.INTERVAL_SECONDS", 0.5)

    @bench.scheduler.task(name="build")
    async def build() -> None: ...

    node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db")
    job = node.job("build", queue_of(bench))
    async with node:
        run = await job.enqueue()
        session = bench.session()
        while not (fetched := await session.fetch(1, 1.0)):
            pass
        await session.close()
        dispatched = decode_dispatch(fetched[0].data)
        assert dispatched.reply is not None
        await bench.report(dispatched.reply, [b"no report"] * 200)
        async with asyncio.timeout(20):
            while not [text for text in caplog.messages if "more unreadable worker reports dropped" in text]:
                await asyncio.sleep(0.05)
        end = f'{{"v":1,"run":"{dispatched.run}","fence":{dispatched.fence},"kind":"finish"}}'
        await bench.report(dispatched.reply, [end.encode()])
        assert (await ended(node, run)).verdict is Verdict.SUCCEEDED
    first, *others = [text for text in caplog.messages if "unreadable worker report dropped" in text]
    assert ": unreadable worker report dropped: report: " in first
    assert others == []
    more = [text for text in caplog.messages if "more unreadable worker reports dropped" in text]
    assert sum(int(text.split(" ")[0]) for text in more) == 199
    assert len(more) <= 5


async def test_the_duration_of_a_run_is_that_of_its_workers_report(bench: Bench, url: str) -> None:
    """Although the node reads both reports at one later moment."""

    @bench.scheduler.task(name="build")
    async def build() -> None:
        await asyncio.sleep(0.2)

    before, after = node_on(bench, url), node_on(bench, url)
    job = before.job("build", queue_of(bench))
    after.job("build", queue_of(bench))
    async with before:
        run = await job.enqueue()
        await until(before, run, lambda found: found.dispatched is not None and found.dispatched.pushed_at is not None)
    # The node is stopped while the work is done.
    worker = bench.worker()
    while not worker.counts["taken"]:
        await asyncio.sleep(0.01)
    await bench.stop()
    async with after:
        run = await ended(after, run)
    assert run.started_at is not None
    assert run.finished_at is not None
    took = (run.finished_at - run.started_at).total_seconds()
    assert 0.2 <= took < (run.finished_at - run.created_at).total_seconds()


async def test_a_failure_is_tried_again_by_the_policy_of_the_node_under_another_fence(bench: Bench, url: str) -> None:
    fences: list[int] = []

    @bench.scheduler.task(name="build")
    async def build(ctx: Context) -> str:
        fences.append(ctx.fence)
        if ctx.attempt == 1:
            raise RuntimeError("no space left")
        return "second"

    node = node_on(bench, url)
    job = node.job("build", queue_of(bench), retry=Constant("10ms", attempts=2))
    async with node:
        bench.worker()
        run = await ended(node, await job.enqueue())
    assert (run.verdict, run.result, run.attempts) == (Verdict.SUCCEEDED, "second", 2)
    assert fences[0] < fences[1]


async def test_failed_and_skipped_by_a_worker_are_verdicts(bench: Bench, url: str) -> None:
    @bench.scheduler.task(name="fails")
    async def fails() -> None:
        raise RuntimeError("no space left")

    @bench.scheduler.task(name="skips")
    async def skips() -> None:
        raise Skip("holiday")

    node = node_on(bench, url)
    failing, skipping = node.job("fails", queue_of(bench)), node.job("skips", queue_of(bench))
    async with node:
        bench.worker()
        failed = await ended(node, await failing.enqueue())
        skipped = await ended(node, await skipping.enqueue())
    assert failed.verdict is Verdict.FAILED
    assert "RuntimeError: no space left" in str(failed.error)
    assert (skipped.verdict, skipped.reason) == (Verdict.SKIPPED, "holiday")


async def test_a_cancel_reaches_the_worker(bench: Bench, url: str) -> None:
    begun, stopped = asyncio.Event(), asyncio.Event()

    @bench.scheduler.task(name="build")
    async def build() -> None:
        begun.set()
        try:
            await asyncio.Event().wait()
        finally:
            stopped.set()

    node = node_on(bench, url, lease="2s")
    job = node.job("build", queue_of(bench))
    async with node:
        bench.worker()
        run = await job.enqueue()
        await begun.wait()
        await until(node, run, lambda found: found.dispatched is not None and found.dispatched.taken_at is not None)
        await node.cancel(run.id)
        await stopped.wait()
        assert (await ended(node, run)).verdict is Verdict.CANCELLED


async def test_the_log_names_the_job_that_failed_elsewhere(
    bench: Bench, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    @bench.scheduler.task(name="build")
    async def build(ctx: Context) -> None:
        raise RuntimeError("no space left")

    node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db")
    job = node.job("build", queue_of(bench), retry=Constant("10ms", attempts=2))
    async with node:
        await node.add(key="nightly", when=Every("1h"), task=job)
        bench.worker()
        run = await ended(node, await node.trigger("nightly"))
    told = [each for each in caplog.records if each.name == "evertick.report" and "failed on a worker" in each.msg]
    assert [each.levelname for each in told] == ["WARNING", "ERROR"]
    for record in told:
        assert record.getMessage().startswith(f"run {run.id} (nightly): failed on a worker")
        about = {name: getattr(record, name) for name in ("run", "task", "schedule")}
        assert about == {"run": run.id, "task": "build", "schedule": "nightly"}


@pytest.mark.parametrize("how", ["cancel", "remove"])
async def test_a_cancel_ends_a_run_that_no_worker_has_and_a_later_worker_ignores_it(
    bench: Bench, url: str, how: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "evertick.tend")
    begun: list[str] = []

    @bench.scheduler.task(name="build")
    async def build(ctx: Context) -> None:
        begun.append(ctx.run_id)

    node = node_on(bench, url, lease="2s")
    job = node.job("build", queue_of(bench))
    async with node:
        await node.add(key="builds", when=Every("1h"), task=job)
        run = await until(node, await node.trigger("builds"), _is_pushed)
        await _until_heard(node)
        await (node.cancel(run.id) if how == "cancel" else node.remove("builds"))
        given_up = await ended(node, run)
        # The cancel came first; the message is still in the queue.
        kills = MessageFilter(channel="nats.kill" if bench.kind == "nats" else "redis.kill", limit=1)
        while (await (await node.runtime.store()).messages(bench.own, kills))[0].state is not MessageState.SENT:
            await asyncio.sleep(0.01)
        worker = bench.worker()
        last = await ended(node, await job.enqueue())
        while not worker.counts["killed"]:
            await asyncio.sleep(0.01)
    assert (given_up.verdict, given_up.losses) == (Verdict.CANCELLED, 0)
    assert given_up.reason == ("requested" if how == "cancel" else "removed")
    assert begun == [last.id]
    told = [(each.levelname, each.getMessage()) for each in caplog.records if each.name == "evertick.tend"]
    assert told == [("INFO", f"run {run.id} (builds): dispatched run cancelled ({given_up.reason})")]


@pytest.mark.parametrize("mode", ["forget", "ack"])
async def test_modes_end_when_they_say(bench: Bench, url: str, mode: Any) -> None:
    begun = asyncio.Event()

    @bench.scheduler.task(name="build")
    async def build() -> None:
        begun.set()

    node = node_on(bench, url)
    job = node.job("build", queue_of(bench, mode=mode))
    async with node:
        run = await job.enqueue()
        if mode == "ack":
            await until(
                node, run, lambda found: found.dispatched is not None and found.dispatched.pushed_at is not None
            )
            bench.worker()
        assert (await ended(node, run)).verdict is Verdict.SUCCEEDED
        if mode == "forget":
            bench.worker()
        await begun.wait()


async def test_a_run_that_its_worker_dropped_goes_to_another(own: str, redis: Broker, tmp_path: Path) -> None:
    async with bench_on(redis, own, "list") as bench:

        @bench.scheduler.task(name="build")
        async def build(ctx: Context) -> int:
            return ctx.fence

        node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db", lease="1s")
        job = node.job("build", queue_of(bench, ack_timeout="1s"))
        async with node:
            run = await job.enqueue()
            dead = bench.session()
            while not (fetched := await dead.fetch(1, 1.0)):
                pass
            await dead.close()
            dispatched = decode_dispatch(fetched[0].data)
            bench.worker()
            done = await ended(node, run)
    assert done.verdict is Verdict.SUCCEEDED
    assert done.result != dispatched.fence


async def test_a_queue_that_is_longer_than_its_runs_may_wait_costs_messages_and_no_loss(
    own: str, redis: Broker, tmp_path: Path
) -> None:
    async with bench_on(redis, own, "list") as bench:
        begun: list[int] = []

        @bench.scheduler.task(name="build")
        async def build(number: int) -> int:
            begun.append(number)
            await asyncio.sleep(0.3)  # the work; a second's worth of it fits into the time to wait
            return number

        node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db", lease="1s")
        job = node.job("build", queue_of(bench, ack_timeout="1s"))
        async with node:
            runs = [await job.enqueue(number=number) for number in range(8)]
            worker = bench.worker(parallelism=1)
            done = [await ended(node, run) for run in runs]
            counts = worker.counts
    assert [(run.verdict, run.result, run.losses) for run in done] == [(Verdict.SUCCEEDED, n, 0) for n in range(8)]
    assert sorted(begun) == list(range(8)), "a run was begun twice"
    assert counts["late"] + counts["killed"] > 0, counts


async def test_a_worker_that_falls_silent_loses_its_run_and_its_late_word_is_refused(
    own: str, redis: Broker, tmp_path: Path
) -> None:
    async with bench_on(redis, own, "list") as bench:
        fences: list[int] = []

        @bench.scheduler.task(name="build")
        async def build(ctx: Context) -> str:
            fences.append(ctx.fence)
            return "by the living"

        node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db", lease="1s")
        job = node.job("build", queue_of(bench, progress_timeout="1s"))
        async with node:
            run = await job.enqueue()
            silent = bench.session()
            while not (fetched := await silent.fetch(1, 1.0)):
                pass
            dispatched = decode_dispatch(fetched[0].data)
            assert await silent.take(fetched[0], dispatched) == "taken"
            taken = WorkerReport(v=1, run=dispatched.run, fence=dispatched.fence, kind="taken")
            assert await silent.report(dispatched, taken)
            bench.worker()
            done = await ended(node, run)
            # It was slow, not dead: its report is rejected.
            late = WorkerReport(v=1, run=dispatched.run, fence=dispatched.fence, kind="finish", result="by the silent")
            assert not await silent.report(dispatched, late)
            await asyncio.wait_for(_refused(node), 10)
            assert (await node.get_run(run.id)).result == "by the living"
            await silent.close()
    assert (done.verdict, done.result) == (Verdict.SUCCEEDED, "by the living")
    assert dispatched.fence < fences[0]


async def _refused(node: Scheduler) -> None:
    while node.runtime.engine is None or not node.runtime.engine.health().refused_reports:
        await asyncio.sleep(0.01)


@pytest.mark.parametrize("kind", ["list", "stream", "nats"])
async def test_a_broker_that_is_away_delays_and_costs_nothing(
    own: str, kind: Kind, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with nats_server() if kind == "nats" else redis_server() as server:
        async with bench_on(server, own, kind) as bench:

            @bench.scheduler.task(name="build")
            async def build(ctx: Context) -> int:
                return ctx.attempt

            node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db", lease="1s")
            job = node.job("build", queue_of(bench, ack_timeout="1s"))
            server.kill()
            with caplog.at_level(logging.WARNING):
                async with node:
                    run = await job.enqueue()

                    async def was_tried_twice() -> None:
                        while not [each for each in await node.messages() if each.attempts >= 2]:
                            await asyncio.sleep(0.01)

                    await was_tried_twice()
                    waiting = await node.get_run(run.id)
                    server.start()
                    bench.worker()
                    done = await ended(node, run)
    assert waiting.state is State.DISPATCHED
    assert (done.verdict, done.result, done.losses) == (Verdict.SUCCEEDED, 1, 0)


@pytest.mark.parametrize("kind", ["list", "nats"])
async def test_an_outage_of_the_broker_is_no_loss_of_its_workers(own: str, kind: Any, url: str) -> None:
    """One worker works all the time, and one ends while no report can be sent."""
    with nats_server() if kind == "nats" else redis_server() as server:
        async with bench_on(server, own, kind) as bench:
            done_by: list[str] = []
            may_end = {"short": asyncio.Event(), "long": asyncio.Event()}

            @bench.scheduler.task(name="build")
            async def build(ctx: Context, what: str) -> str:
                await may_end[what].wait()
                done_by.append(what)
                return what

            node = node_on(bench, url, lease="1s")
            job = node.job("build", queue_of(bench, progress_timeout="1s"), on_lost="fail")
            async with node:
                bench.worker()
                runs = [await job.enqueue(what=what) for what in may_end]
                taken = [await until(node, run, _is_taken) for run in runs]
                server.kill()
                may_end["short"].set()
                # Both are overdue by more than the progress timeout.
                last = max(
                    run.dispatched.until
                    for run in taken
                    if run.dispatched is not None and run.dispatched.until is not None
                )
                while from_us(await (await node.runtime.store()).now()) < last + timedelta(seconds=2):
                    await asyncio.sleep(0.01)
                assert [(await node.get_run(run.id)).state for run in runs] == [State.DISPATCHED] * 2
                server.start()
                first = await ended(node, runs[0])
                await until(node, runs[1], lambda run: run.dispatched is not None and run.dispatched.until > last)
                may_end["long"].set()
                second = await ended(node, runs[1])
                assert node.runtime.engine is not None
                assert node.runtime.engine.health().refused_reports == 0
    assert [(run.verdict, run.result, run.losses) for run in (first, second)] == [
        (Verdict.SUCCEEDED, "short", 0),
        (Verdict.SUCCEEDED, "long", 0),
    ]
    assert done_by == ["short", "long"]


def _is_taken(run: Run) -> bool:
    return run.dispatched is not None and run.dispatched.taken_at is not None


@pytest.mark.parametrize("kind", ["stream", "nats"])
async def test_two_fleets_with_an_app_of_one_name_share_a_broker_and_no_reports(
    own: str, kind: Any, request: pytest.FixtureRequest, tmp_path: Path
) -> None:
    async with bench_on(request.getfixturevalue("nats" if kind == "nats" else "redis"), own, kind) as bench:

        @bench.scheduler.task(name="build")
        async def build(ctx: Context, n: int) -> int:
            return n

        nodes = [node_on(bench, f"sqlite:///{tmp_path}/{name}.db") for name in ("one", "other")]
        jobs = [node.job("build", queue_of(bench)) for node in nodes]
        async with nodes[0], nodes[1]:
            bench.worker()
            runs = [(node, await job.enqueue(n=n)) for n in range(10) for node, job in zip(nodes, jobs, strict=True)]
            results = [(await ended(node, run)).result for node, run in runs]
            refused = [
                node.runtime.engine.health().refused_reports for node in nodes if node.runtime.engine is not None
            ]
    assert results == [n for n in range(10) for _ in nodes]
    assert refused == [0, 0]


async def test_an_untaken_run_names_its_queue_and_the_command_that_serves_it(bench: Bench, url: str) -> None:
    node = node_on(bench, url)
    job = node.job("build", queue_of(bench))
    async with node:
        run = await until(node, await job.enqueue(), _is_pushed)
        words = (await explain_run(await node.runtime.store(), run)).now
    broker, flag = ("nats", "") if bench.kind == "nats" else ("redis", " --stream" if bench.kind == "stream" else "")
    served_by = f"evertick worker --broker {broker} --driver {bench.own}{flag} -- COMMAND"
    assert run.dispatched is not None
    assert (run.dispatched.to, run.dispatched.queue, run.dispatched.served_by) == (broker, bench.own, served_by)
    assert f"was dispatched to the queue {bench.own!r} of {broker!r} at " in words
    assert f"not taken by a worker yet (start one with `{served_by}`)" in words


@pytest.mark.parametrize(
    ("spec", "where", "served_by"),
    [
        (
            Redis("q", prefix="jobs:"),
            "redis://h",
            "evertick worker --broker redis --driver q --prefix jobs: -- COMMAND",
        ),
        (Redis("q", kind="stream"), "redis://h", "evertick worker --broker redis --driver q --stream -- COMMAND"),
        (Nats("q"), NatsConnection(prefix="shop"), "evertick worker --broker nats --driver q --prefix shop -- COMMAND"),
    ],
)
async def test_the_command_has_all_flags_that_a_worker_needs(spec: Spec, where: object, served_by: str) -> None:
    node = Scheduler("sqlite://", drivers=[spec.driver])
    node.connect(spec.driver, where)
    driver = node.job("build", spec).work.driver
    assert isinstance(driver, QueueDriver)
    assert driver._queue.served_by() == served_by


async def test_two_jobs_share_one_broker(own: str, redis: Broker, tmp_path: Path) -> None:
    async with bench_on(redis, own, "list") as bench:

        @bench.scheduler.task(name="one")
        async def one() -> int:
            return 1

        @bench.scheduler.task(name="two")
        async def two() -> int:
            return 2

        node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db")
        first, second = node.job("one", queue_of(bench)), node.job("two", queue_of(bench))
        async with node:
            assert node.runtime.engine is not None
            bench.worker()
            runs = [await first.enqueue(), await second.enqueue()]
            assert [(await ended(node, run)).result for run in runs] == [1, 2]
            assert len(node.runtime._shared) == 1


@pytest.mark.parametrize(
    ("spec", "message"),
    [
        (Redis(""), "redis: queue: '' is not a valid queue name"),
        (Redis("a.b"), "redis: queue: 'a.b' is not a valid queue name"),
        (Redis("q", mode="later"), "mode"),  # type: ignore[arg-type]
        (Redis("q", kind="set"), "kind"),  # type: ignore[arg-type]
        (Redis("q", ack_timeout="13h"), "ack_timeout: '13h' must be from 1s to 12h"),
        (Redis("q", progress_timeout="10ms"), "progress_timeout: '10ms' must be from 1s to 12h"),
        (Redis("q", ack_timeout="soon"), "ack_timeout: 'soon' is not a duration"),
        (Redis("q", prefix="with space"), "prefix: 'with space' is not a valid prefix"),
        (Nats("q q"), "nats: queue: 'q q' is not a valid queue name"),
    ],
)
def test_an_invalid_specification_is_refused_at_the_declaration(spec: Spec, message: str) -> None:
    node = Scheduler("sqlite://", drivers=["redis", "nats"])
    with pytest.raises(ValueError, match=message) as refused:
        node.job("build", spec)
    assert "build" in str(refused.value)


@pytest.mark.parametrize(
    ("driver", "where", "message"),
    [
        ("redis", "localhost:6379", "redis: url: 'localhost:6379' is not a Redis URL; write it like"),
        ("redis", "redis://host:port", "redis: url: "),
        ("redis", 7, "redis: this int is neither a URL nor a RedisConnection"),
        ("nats", "http://host", "nats: url: 'http://host' is not a NATS URL; write it like"),
        ("nats", None, "nats: the address of the server is not set"),
    ],
)
def test_a_wrong_address_is_refused_where_it_is_written(driver: str, where: object, message: str) -> None:
    with pytest.raises(InvalidSetting, match=message):
        Scheduler("sqlite://").connect(driver, where)


def test_the_replies_of_a_fleet_are_its_own() -> None:
    assert reports_key("evertick", "shop") != reports_key("evertick", "mail")
    assert NatsNames("evertick").reports("a.b") == "evertick.reports.a=2Eb"


async def test_in_virtual_time_nothing_is_dispatched_and_no_broker_is_needed() -> None:
    node = Scheduler("sqlite://", drivers=["redis"])
    node.connect("redis", "redis://127.0.0.1:1/0")
    node.cron("0 9 * * *")(node.job("build", Redis("docker")))
    async with virtual_time(node, start="2026-01-05T00:00:00Z") as kit:
        await kit.advance("3d")
        runs = await node.runs()
    assert [run.verdict for run in runs] == [Verdict.SUCCEEDED] * 3


@pytest.mark.parametrize("kind", ["list", "stream", "nats"])
async def test_waiting_messages_are_sent_as_soon_as_the_broker_is_back(own: str, kind: Kind, tmp_path: Path) -> None:
    """Also before their next scheduled attempt."""
    with nats_server() if kind == "nats" else redis_server() as server:
        async with bench_on(server, own, kind) as bench:
            node = node_on(bench, f"sqlite:///{tmp_path}/ledger.db")
            job = node.job("build", queue_of(bench))
            async with node:
                server.kill()
                run = await job.enqueue()

                async def waits_for_long() -> datetime:
                    while True:
                        for each in await node.messages():
                            if each.attempts >= 3 and each.state is MessageState.WAITING:
                                return each.due_at
                        await asyncio.sleep(0.01)

                due = await waits_for_long()
                server.start()
                pushed = await until(node, run, _is_pushed)
    assert pushed.dispatched is not None
    assert pushed.dispatched.pushed_at is not None
    assert pushed.dispatched.pushed_at < due


def _is_pushed(run: Run) -> bool:
    return run.dispatched is not None and run.dispatched.pushed_at is not None


async def _until_heard(node: Scheduler) -> None:
    """Wait until the node reads reports: before that, a cancel must assume that a worker has the run."""
    assert node.runtime.engine is not None
    while not node.runtime.engine._reporter.heard():
        await asyncio.sleep(0.01)
