"""Nodes and Redis killed between database and broker: nothing is lost, and what comes twice is recognised."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from evertick import BrokerUnavailable, Context, Message, Once, Redis, Scheduler, State, Verdict
from evertick.clock import system_clock
from evertick.driver.redis_broker import RedisBroker
from evertick.driver.redis_spec import RedisConnection
from evertick.worker.redis_line import RedisLine
from evertick.worker.tasks import TasksCraft
from evertick.worker.worker import Worker
from servers.broker import Broker, redis_server

PROGRAM = Path(__file__).parent / "handing_node.py"
SCHEDULES = 10_000


class Hands:
    """Workers on a queue, and what they did: every (run, fence) that was begun."""

    def __init__(self, server: Broker) -> None:
        self._server = server
        self._running: list[tuple[Worker, asyncio.Task[None]]] = []
        self.begun: list[tuple[str, int]] = []
        self._scheduler = Scheduler("sqlite://")

        @self._scheduler.task(name="work")
        async def work(ctx: Context, number: int = 0) -> int:
            self.begun.append((ctx.run_id, ctx.fence))
            return number

    def start(self, parallelism: int) -> None:
        line = RedisLine(
            RedisConnection(url=self._server.url), "docker", clock=system_clock, resolve_secret=lambda name: name
        )
        worker = Worker(
            line, TasksCraft(self._scheduler), parallelism=parallelism, clock=system_clock, name=f"w{parallelism}"
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
async def hands_at(server: Broker, *parallelism: int) -> AsyncIterator[Hands]:
    hands = Hands(server)
    for slots in parallelism:
        hands.start(slots)
    try:
        yield hands
    finally:
        await hands.stop()


async def until(holds: Callable[[], Awaitable[bool]]) -> None:
    """The test's own time limit ends what never holds."""
    while not await holds():
        await asyncio.sleep(0.05)


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/ledger.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.mark.parametrize("point", ["before", "between"])
async def test_a_node_killed_around_its_sending_costs_nothing_and_the_second_sending_is_recognised(
    url: str, point: str, tmp_path: Path
) -> None:
    with redis_server() as server:
        manager = Scheduler(url, concurrency=0, drivers=["redis"])
        run = await manager.job("work", Redis("docker")).enqueue(number=7)
        with (tmp_path / "nodes.log").open("w") as log:
            command = [sys.executable, str(PROGRAM), url, server.url]
            first = subprocess.Popen([*command, point], stdout=subprocess.PIPE, stderr=log, text=True)
            assert first.stdout is not None
            assert await asyncio.to_thread(first.stdout.readline) == f"{point}\n", (tmp_path / "nodes.log").read_text()
            assert (await manager.get_run(run.id)).state is State.HANDED
            first.kill()
            first.communicate()
            second = subprocess.Popen([*command, "nowhere"], stderr=log)
        try:
            async with hands_at(server, 2) as hands:

                async def is_done() -> bool:
                    return (await manager.get_run(run.id)).state is State.DONE

                await until(is_done)
                if point == "between":

                    async def was_recognised() -> bool:
                        return hands.counts["duplicate"] == 1

                    await until(was_recognised)
        finally:
            second.kill()
            second.communicate()
        done = await manager.get_run(run.id)
        await manager.close()
    assert (done.verdict, done.result, done.losses) == (Verdict.SUCCEEDED, 7, 0)
    assert hands.begun == [(run.id, done.fence)]
    assert hands.counts == {"taken": 1, **({"duplicate": 1} if point == "between" else {})}


class Killing:
    """Kills Redis when it has taken a journey of messages and the node has not heard so; the node sends them again."""

    def __init__(self, server: Broker, monkeypatch: pytest.MonkeyPatch, journeys: set[int]) -> None:
        self._server, self._journeys = server, journeys
        self._count = 0
        self.sizes: list[int] = []
        self._restarts: set[asyncio.Task[None]] = set()
        push = RedisBroker._push

        async def push_and_kill(broker: RedisBroker, messages: Sequence[Message]) -> list[Exception | None]:
            answers = await push(broker, messages)
            self._arrived(len(messages))
            return answers

        monkeypatch.setattr(RedisBroker, "_push", push_and_kill)

    def _arrived(self, messages: int) -> None:
        self.sizes.append(messages)
        self._count += 1
        if self._count in self._journeys:
            self._server.kill()
            self._restarts.add(asyncio.create_task(self._restart()))
            raise BrokerUnavailable("the answer was lost")

    async def _restart(self) -> None:
        await asyncio.sleep(1.0)  # everybody notices
        self._server.start()

    @property
    def is_over(self) -> bool:
        return self._count >= max(self._journeys) and all(task.done() for task in self._restarts)


@pytest.mark.timeout(300)
@pytest.mark.parametrize("is_durable", [True, False], ids=["durable", "forgetful"])
async def test_ten_thousand_due_schedules_reach_their_workers_though_redis_is_killed_in_the_middle(
    postgres_url: str,
    is_durable: bool,
    monkeypatch: pytest.MonkeyPatch,
    record_property: Callable[[str, object], None],
) -> None:
    """A durable Redis has all that it took, also what the node has not heard of; a forgetful one loses the queue, the
    reports that nobody has read, and what was taken."""
    with redis_server(is_durable=is_durable) as server:
        killing = Killing(server, monkeypatch, {3, 7})
        node = Scheduler(
            postgres_url, drivers=["redis"], lease="5s", concurrency=1_000, batch_size=1_000, poll_interval="1s"
        )
        node.connect("redis", server.url)
        job = node.job("work", Redis("docker", ack_timeout="1m", progress_timeout="20s"))
        rule = Once(after="1ms")  # due by the time the node starts
        for first in range(0, SCHEDULES, 1_000):
            await node.add_many(
                {"key": f"s{number}", "when": rule, "task": job, "args": {"number": number}}
                for number in range(first, first + 1_000)
            )
        store = await node._store()

        async def are_all_done() -> bool:
            if not killing.is_over or len({run for run, _ in hands.begun}) < SCHEDULES:
                return False
            pulse = await store.pulse(node.app)
            return not (pulse.waiting or pulse.running or pulse.handed)

        async def has_doubles() -> bool:
            return bool(hands.counts["duplicate"])

        async with hands_at(server, 16, 16) as hands, node:
            await until(are_all_done)
            if is_durable:
                await until(has_doubles)
            runs = await node.runs(limit=SCHEDULES)
    begun = Counter(hands.begun)
    losses = sum(run.losses for run in runs)
    said = f"{len(begun)} hand-overs begun, {losses} losses, {dict(hands.counts)}, journeys of {killing.sizes}"
    print(said)
    record_property("hand_overs", said)
    assert len(runs) == SCHEDULES
    assert {run.verdict for run in runs} == {Verdict.SUCCEEDED}
    assert sorted(run.result for run in runs) == list(range(SCHEDULES))
    assert max(killing.sizes) == 1_000
    if is_durable:
        assert max(begun.values()) == 1, "a hand-over was begun twice"
        assert hands.counts["taken"] == len(begun)
