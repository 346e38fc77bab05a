"""Nodes and brokers killed between database and broker: nothing is lost, and what comes twice is recognised."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import AbstractContextManager, asynccontextmanager, suppress
from pathlib import Path
from typing import Any, Literal, cast

import pytest
from redis import Redis as Client

import preloaded
from evertick import BrokerUnavailable, Context, Message, MessageState, Nats, Once, Redis, Scheduler, State, Verdict
from evertick.clock import system_clock
from evertick.driver.queue import nats_client
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.driver.queue.redis_broker import RedisBroker
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.driver.spec import Spec
from evertick.worker.broker_session import BrokerSession, QueueMessage
from evertick.worker.executor import TasksExecutor
from evertick.worker.nats_session import NatsBrokerSession
from evertick.worker.redis_session import RedisBrokerSession
from evertick.worker.worker import Worker
from servers.broker import Broker, nats_server, redis_server

PROGRAM = Path(__file__).parent / "dispatching_node.py"

Kind = Literal["list", "stream", "nats"]


def server_of(kind: Kind, *, is_durable: bool = True) -> AbstractContextManager[Broker]:
    return nats_server(is_durable=is_durable) if kind == "nats" else redis_server(is_durable=is_durable)


def driver_of(kind: Kind) -> str:
    return "nats" if kind == "nats" else "redis"


def queue_of(kind: Kind, **fields: Any) -> Spec:
    return Nats("docker", **fields) if kind == "nats" else Redis("docker", kind=kind, **fields)


def line_to(server: Broker, kind: Kind) -> BrokerSession:
    if kind == "nats":
        to_nats = NatsConnection(url=server.url)
        return NatsBrokerSession(to_nats, "docker", clock=system_clock, resolve_secret=lambda name: name)
    to_redis = RedisConnection(url=server.url)
    return RedisBrokerSession(to_redis, "docker", clock=system_clock, kind=kind, resolve_secret=lambda name: name)


class Hands:
    """Workers on a queue, and what they did: every (run, fence) that was begun."""

    def __init__(self, server: Broker, kind: Kind) -> None:
        self._server, self._kind = server, kind
        self._running: list[tuple[Worker, asyncio.Task[None]]] = []
        self.begun: list[tuple[str, int]] = []
        self._scheduler = Scheduler("sqlite://")

        @self._scheduler.task(name="work")
        async def work(ctx: Context, number: int = 0) -> int:
            self.begun.append((ctx.run_id, ctx.fence))
            return number

    def start(self, parallelism: int) -> None:
        worker = Worker(
            line_to(self._server, self._kind),
            TasksExecutor(self._scheduler),
            parallelism=parallelism,
            clock=system_clock,
            name=f"w{parallelism}",
        )
        self._running.append((worker, asyncio.create_task(worker.run())))

    @property
    def counts(self) -> Counter[str]:
        return sum((worker.counts for worker, _ in self._running), Counter())

    async def stop(self) -> None:
        for worker, task in self._running:
            worker.stop()
            await task


@asynccontextmanager
async def hands_at(server: Broker, kind: Kind, *parallelism: int) -> AsyncIterator[Hands]:
    hands = Hands(server, kind)
    for slots in parallelism:
        hands.start(slots)
    try:
        yield hands
    finally:
        await hands.stop()


def length_of(server: Broker, key: str) -> int:
    with Client.from_url(server.url) as client:
        return cast("int", client.llen(key))


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """The test's own time limit ends what never holds."""
    while not await holds():
        await asyncio.sleep(0.05)


@pytest.fixture
def url(store: str, request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if store == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("point", ["before", "between"])
@pytest.mark.parametrize(
    ("store", "kind", "killed"),
    [
        ("sqlite", "list", "node"),
        ("postgres", "list", "both"),
        ("sqlite", "stream", "both"),
        ("postgres", "nats", "both"),
    ],
)
async def test_a_node_killed_around_its_sending_costs_nothing_and_the_second_sending_is_recognised(
    url: str, kind: Kind, point: str, killed: str, tmp_path: Path
) -> None:
    """Also where its broker is killed with it. NATS recognises it itself, and a worker never sees it."""
    with server_of(kind) as server:
        manager = Scheduler(url, concurrency=0, drivers=[driver_of(kind)])
        run = await manager.job("work", queue_of(kind)).enqueue(number=7)
        with (tmp_path / "nodes.log").open("w") as log:
            command = [sys.executable, str(PROGRAM), url, server.url, kind]
            first = preloaded.popen([*command, point], stdout=subprocess.PIPE, stderr=log, text=True)
            assert first.stdout is not None
            assert await asyncio.to_thread(first.stdout.readline) == f"{point}\n", (tmp_path / "nodes.log").read_text()
            assert (await manager.get_run(run.id)).state is State.DISPATCHED
            first.kill()
            first.communicate()
            if killed == "both":
                server.kill()
            second = preloaded.popen([*command, "nowhere"], stderr=log)
        try:
            async with hands_at(server, kind, 2) as hands:
                if killed == "both":
                    server.start()

                async def is_done() -> bool:
                    return (await manager.get_run(run.id)).state is State.DONE

                async def was_sent_again() -> bool:
                    return not [each for each in await manager.messages() if each.state is not MessageState.SENT]

                async def was_recognised() -> bool:
                    return hands.counts["duplicate"] == 1

                await until(is_done)
                await until(was_sent_again)
                is_seen = point == "between" and kind != "nats"
                if is_seen:
                    await until(was_recognised)
        finally:
            second.kill()
            second.communicate()
        done = await manager.get_run(run.id)
        await manager.close()
    assert (done.verdict, done.result, done.losses) == (Verdict.SUCCEEDED, 7, 0)
    assert hands.begun == [(run.id, done.fence)]
    assert hands.counts == {"taken": 1, **({"duplicate": 1} if is_seen else {})}


class Killing:
    """Kills the broker when it has taken a journey of messages and the node has not heard so: it sends them again."""

    def __init__(self, server: Broker, monkeypatch: pytest.MonkeyPatch, journeys: set[int]) -> None:
        self._server, self._journeys = server, journeys
        self._count = 0
        self.sizes: list[int] = []
        # Messages that the broker has taken and the node sends again.
        self.twice = 0
        self._restarts: set[asyncio.Task[None]] = set()
        # No other journey and no pop is under way at a kill: whether the broker has done it would be chance.
        self._journey, self._pops = asyncio.Lock(), asyncio.Lock()
        journey, nats_journey, pop = RedisBroker._push, NatsBroker._push_once, RedisBrokerSession._pop

        async def push_and_kill(broker: RedisBroker, messages: Sequence[Message]) -> list[Exception | None]:
            async with self._journey:
                return await self._arrived(await journey(broker, messages))

        async def push_all_and_kill(broker: NatsBroker, messages: Sequence[Message]) -> list[Exception | None]:
            async with self._journey:
                return await self._arrived(await nats_journey(broker, messages))

        async def pop_whole(session: RedisBrokerSession, most: int, seconds: float) -> list[QueueMessage]:
            async with self._pops:
                return await pop(session, most, seconds)

        monkeypatch.setattr(RedisBroker, "_push", push_and_kill)
        monkeypatch.setattr(NatsBroker, "_push_once", push_all_and_kill)
        monkeypatch.setattr(RedisBrokerSession, "_pop", pop_whole)

    async def _arrived(self, answers: list[Exception | None]) -> list[Exception | None]:
        self.sizes.append(len(answers))
        self._count += 1
        if self._count not in self._journeys:
            return answers
        # What a list gives to a worker that does not hear of it is gone, and would not be recognised.
        async with self._pops:
            self._server.kill()
        self.twice += len(answers)
        self._restarts.add(asyncio.create_task(self._restart()))
        raise BrokerUnavailable("the answer was lost")

    async def _restart(self) -> None:
        await asyncio.sleep(1.0)  # everybody notices
        self._server.start()

    @property
    def is_over(self) -> bool:
        return self._count >= max(self._journeys) and all(task.done() for task in self._restarts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("kind", "is_durable", "schedules"),
    [
        pytest.param("list", True, 10_000, marks=pytest.mark.long("broker")),
        ("list", False, 2_000),
        # `test_at_any_kill_of_redis…` shows it of fewer.
        pytest.param("stream", True, 2_000, marks=pytest.mark.long("broker")),
        ("nats", True, 2_000),
    ],
    ids=["list", "forgetful", "stream", "nats"],
)
async def test_thousands_of_due_schedules_reach_their_workers_though_the_broker_is_killed_in_the_middle(
    postgres_url: str,
    kind: Kind,
    is_durable: bool,
    schedules: int,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """A durable broker has all that it took, also what the node has not heard of; a forgetful one loses the queue, the
    reports that nobody has read, and what was taken."""
    # A message that a worker fetched before the kill comes again after this time.
    monkeypatch.setattr(nats_client, "ACK_SECONDS", 5.0)
    with server_of(kind, is_durable=is_durable) as server:
        # In journeys of a thousand, to NATS of 250.
        killing = Killing(server, monkeypatch, {3, 7} if schedules == 10_000 or kind == "nats" else {1, 2})
        node = Scheduler(
            postgres_url,
            drivers=[driver_of(kind)],
            lease="5s",
            concurrency=1_000,
            batch_size=1_000,
            poll_interval="1s",
        )
        node.connect(driver_of(kind), server.url)
        job = node.job("work", queue_of(kind, ack_timeout="1m", progress_timeout="20s"))
        rule = Once(after="1ms")  # due by the time the node starts
        for first in range(0, schedules, 1_000):
            await node.add_many(
                {"key": f"s{number}", "when": rule, "task": job, "args": {"number": number}}
                for number in range(first, first + 1_000)
            )
        store = await node.runtime.store()

        async def are_all_done() -> bool:
            if not killing.is_over or len({run for run, _ in hands.begun}) < schedules:
                return False
            pulse = await store.pulse(node.app)
            return not (pulse.waiting or pulse.running or pulse.dispatched)

        async def is_empty() -> bool:
            return await asyncio.to_thread(length_of, server, "builds_docker") == 0

        async def has_doubles() -> bool:
            return hands.counts["duplicate"] >= (killing.twice if kind == "list" else 1)

        async with hands_at(server, kind, 16, 16) as hands, node:
            await until(are_all_done)
            if kind == "list":
                await until(is_empty)
            if is_durable and kind != "nats":  # which recognises most of them itself
                with suppress(TimeoutError):  # what is missing is told below
                    async with asyncio.timeout(30):
                        await until(has_doubles)
            runs = await node.runs(limit=schedules)
        left = length_of(server, "builds_docker") if kind == "list" else 0
    begun = Counter(hands.begun)
    losses = sum(run.losses for run in runs)
    said = (
        f"{len(begun)} dispatches begun, {losses} losses, {dict(hands.counts)}, journeys of {killing.sizes}, "
        f"{killing.twice} sent twice"
    )
    print(said)
    record_property("dispatches", said)
    assert len(runs) == schedules
    assert {run.verdict for run in runs} == {Verdict.SUCCEEDED}
    assert sorted(run.result for run in runs) == list(range(schedules))
    if kind == "list":
        assert max(killing.sizes) == 1_000
    assert left == 0, "the queue was not emptied"
    if is_durable:
        assert max(begun.values()) == 1, "a dispatch was begun twice"
        assert hands.counts["taken"] == len(begun)
    if is_durable and kind == "list":
        assert hands.counts["duplicate"] == killing.twice, "not every message that came twice was recognised"
    elif is_durable and kind == "stream":
        assert hands.counts["duplicate"]


@pytest.mark.timeout(180)
@pytest.mark.parametrize("kind", ["list", "stream"])
async def test_at_any_kill_of_redis_no_run_is_lost_and_no_dispatch_begins_twice(
    tmp_path: Path, kind: Kind, record_property: Callable[[str, object], None]
) -> None:
    """In the middle of a journey, between a pop and its answer, between a taking and the word of it: nothing is held
    up for the kill, so how often which of them is hit is chance, and only what must hold in every case is asked."""
    schedules, kills = 600, 4
    with server_of(kind) as server:
        node = Scheduler(
            f"sqlite:///{tmp_path}/ledger.db", drivers=["redis"], lease="2s", batch_size=50, poll_interval="200ms"
        )
        node.connect("redis", server.url)
        job = node.job("work", queue_of(kind, ack_timeout="2s", progress_timeout="5s"))
        await node.add_many(
            {"key": f"s{number}", "when": Once(after="1ms"), "task": job, "args": {"number": number}}
            for number in range(schedules)
        )
        store = await node.runtime.store()

        async def kill_now_and_then() -> None:
            for each in range(kills):
                while len(hands.begun) < schedules * each // kills:
                    await asyncio.sleep(0.001)
                await asyncio.sleep(0.05 * system_clock.uniform())
                server.kill()
                killed_at.append(len(hands.begun))
                await asyncio.sleep(0.3)  # everybody notices
                server.start()

        async def are_all_done() -> bool:
            pulse = await store.pulse(node.app)
            is_over = not (pulse.waiting or pulse.running or pulse.dispatched)
            return is_over and len({run for run, _ in hands.begun}) == schedules

        killed_at: list[int] = []
        async with hands_at(server, kind, 4, 4) as hands, node:
            await kill_now_and_then()
            await until(are_all_done)
            runs = await node.runs(limit=schedules + 1)
    begun = Counter(hands.begun)
    record_property("dispatches", f"{len(begun)} begun, killed after {killed_at}, {dict(hands.counts)}")
    assert len(killed_at) == kills
    assert [run.verdict for run in runs] == [Verdict.SUCCEEDED] * schedules
    assert sorted(run.result for run in runs) == list(range(schedules))
    assert max(begun.values()) == 1, "a dispatch was begun twice"
