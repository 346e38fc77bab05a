"""Schedules that run on every node, with three engines on one store: once per node, and nothing moves to another."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path

import pytest

from evertick import Cause, Constant, Context, Refused, Run, Scheduler, State, Verdict
from evertick.model.every_node import node_of_queue

PATIENCE = 30.0
NODES = 3


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/fleet.db"
    return str(request.getfixturevalue("postgres_url"))


class Fleet:
    """Three nodes with the same code, and what their jobs have seen."""

    def __init__(self, url: str) -> None:
        self.url = url
        self.seen: Counter[tuple[str, str]] = Counter()
        self.nodes: list[Scheduler] = []
        self.manager = Scheduler(url, concurrency=0)
        self.is_held = asyncio.Event()
        self._changed = asyncio.Condition()

    def build(self, number: int) -> Scheduler:
        name = f"node-{number}"
        scheduler = Scheduler(self.url, node_name=name, poll_interval="1s", stop_timeout="100ms")

        @scheduler.task
        async def reload(ctx: Context) -> str:
            await self._note("reload", name)
            return name

        @scheduler.task
        async def hold(ctx: Context) -> None:
            await self._note("hold", name)
            await self.is_held.wait()

        @scheduler.task(retry=Constant("1ms", attempts=2))
        async def stumble(ctx: Context) -> str:
            await self._note("stumble", name)
            if ctx.attempt == 1:
                raise OSError("not yet")
            return name

        return scheduler

    async def _note(self, task: str, name: str) -> None:
        async with self._changed:
            self.seen[task, name] += 1
            self._changed.notify_all()

    def by_node(self, task: str) -> dict[str, int]:
        return {name: count for (each, name), count in self.seen.items() if each == task}

    async def until(self, is_so: Callable[[], bool]) -> None:
        async with asyncio.timeout(PATIENCE), self._changed:
            await self._changed.wait_for(is_so)

    async def runs_when(self, key: str, is_so: Callable[[list[Run]], bool]) -> list[Run]:
        async with asyncio.timeout(PATIENCE):
            while not is_so(found := await self.manager.runs(key)):
                await asyncio.sleep(0.05)
        return found


@asynccontextmanager
async def a_fleet(url: str) -> AsyncIterator[Fleet]:
    fleet = Fleet(url)
    async with AsyncExitStack() as stack:
        for number in range(NODES):
            fleet.nodes.append(fleet.build(number))
            await stack.enter_async_context(fleet.nodes[-1])
        stack.push_async_callback(fleet.manager.close)
        stack.callback(fleet.is_held.set)
        yield fleet


def all_done(runs: list[Run]) -> bool:
    return len(runs) == NODES and all(run.state is State.DONE for run in runs)


async def test_a_fire_runs_once_on_each_of_three_nodes(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="reload", when="once +100ms", task="reload", mode="every-node")
        runs = await fleet.runs_when("reload", all_done)
        assert fleet.by_node("reload") == {f"node-{number}": 1 for number in range(NODES)}
        assert {(run.cause, run.verdict) for run in runs} == {(Cause.EVERY_NODE, Verdict.SUCCEEDED)}
        assert {run.node for run in runs} == {node_of_queue(run.queue) for run in runs}
        assert sorted(run.result for run in runs) == [f"node-{number}" for number in range(NODES)]
        assert len({run.fire_at for run in runs}) == 1
        assert (await fleet.manager.schedule("reload")).fires == 1


async def test_a_trigger_runs_once_on_each_node(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="reload", when="every 1h", task="reload", mode="every-node")
        answered = await fleet.manager.trigger("reload")
        runs = await fleet.runs_when("reload", all_done)
        assert answered.id in {run.id for run in runs}
        assert {(run.cause, run.fire_at) for run in runs} == {(Cause.TRIGGER, answered.fire_at)}
        assert fleet.by_node("reload") == {f"node-{number}": 1 for number in range(NODES)}


async def test_a_trigger_while_all_are_at_it_is_refused(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="hold", when="every 1h", task="hold", mode="every-node")
        await fleet.manager.trigger("hold")
        await fleet.until(lambda: len(fleet.by_node("hold")) == NODES)
        with pytest.raises(Refused, match="'hold' has a live run there, and its overlap is 'skip'; wait until"):
            await fleet.manager.trigger("hold")


async def test_a_retry_stays_on_its_node(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="stumble", when="every 1h", task="stumble", mode="every-node")
        await fleet.manager.trigger("stumble")
        runs = await fleet.runs_when("stumble", all_done)
        assert {(run.verdict, run.attempts) for run in runs} == {(Verdict.SUCCEEDED, 2)}
        assert fleet.by_node("stumble") == {f"node-{number}": 2 for number in range(NODES)}


async def test_a_rerun_runs_on_the_same_node_and_is_refused_when_that_is_gone(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="reload", when="every 1h", task="reload", mode="every-node")
        await fleet.manager.trigger("reload")
        runs = await fleet.runs_when("reload", all_done)
        old = next(run for run in runs if run.result == "node-1")
        again = await fleet.manager.rerun(old)
        await fleet.until(lambda: fleet.by_node("reload") == {"node-0": 1, "node-1": 2, "node-2": 1})
        assert (again.queue, again.cause) == (old.queue, Cause.RERUN)
        await fleet.nodes[1].runtime.stop()
        why = f"the run was bound to node {old.node}, which is gone"
        with pytest.raises(Refused, match=why) as refused:
            await fleet.manager.rerun(old)
        assert (refused.value.problem, refused.value.setting, refused.value.value) == (why, "run", old.id)
        await fleet.manager.rerun_many(schedule_key="reload", verdicts=[Verdict.SUCCEEDED])
        assert f"app {fleet.manager.app!r}: 1 of 3 runs not rerun: {why}" in caplog.messages
        await fleet.nodes[1].runtime.start()


async def test_what_a_node_leaves_behind_is_lost_and_runs_nowhere_else(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="hold", when="every 1h", task="hold", mode="every-node")
        await fleet.manager.trigger("hold")
        await fleet.until(lambda: len(fleet.by_node("hold")) == NODES)
        await fleet.nodes[0].runtime.stop()
        runs = await fleet.runs_when("hold", lambda found: any(run.state is State.DONE for run in found))
        [lost] = [run for run in runs if run.state is State.DONE]
        assert (lost.verdict, lost.reason) == (Verdict.LOST, "shutdown")
        fleet.is_held.set()
        runs = await fleet.runs_when("hold", all_done)
        assert Counter(run.verdict for run in runs) == {Verdict.LOST: 1, Verdict.SUCCEEDED: 2}
        assert fleet.by_node("hold") == {f"node-{number}": 1 for number in range(NODES)}
        await fleet.nodes[0].runtime.start()


async def test_a_node_that_is_still_at_it_skips_and_says_so(url: str) -> None:
    async with a_fleet(url) as fleet:
        await fleet.manager.add(key="hold", when="every 300ms", task="hold", mode="every-node")
        await fleet.until(lambda: len(fleet.by_node("hold")) == NODES)
        async with asyncio.timeout(PATIENCE):
            while len(gaps := await fleet.manager.gaps("hold")) < NODES:
                await asyncio.sleep(0.05)
        assert {gap.reason for gap in gaps} == {f"overlap on node-{number}" for number in range(NODES)}
        why = str(await fleet.manager.why("hold"))
        assert "an earlier run was still live there" in why
        assert "it runs on every live node that knows its task, now node-0, node-1, node-2" in why
        await fleet.manager.pause("hold")
        assert fleet.by_node("hold") == {f"node-{number}": 1 for number in range(NODES)}
