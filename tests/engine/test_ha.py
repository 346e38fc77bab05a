"""The table of high availability is true: for each line of it three nodes on PostgreSQL show that the effect happens
once, or once per node. A loop, a duty or a mode without a proof here fails."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import datetime
from unittest import mock

import msgspec
import pytest
from dispatch_queue import Dispatching, Queue

from evertick import Context, Event, Message, Scheduler, State, Verdict
from evertick.driver import registry
from evertick.engine.loops import DUTIES, LOOPS
from evertick.explain.availability import REPLICAS, HaLine, HaTable
from evertick.store.base import NodeJoin, Store, TaskTerms
from evertick.store.postgres import wakeup

NODES = 3
PATIENCE = 30.0
# No machine stands still for that long, and five heartbeats in it are frequent enough for the tests.
LEASE_SECONDS = 6.0
# Runs of a schedule.
KEPT = 5


class Fleet:
    """Three nodes with the same code, and what was seen of their work outside of the ledger."""

    def __init__(self, url: str, poll_interval: str = "1s") -> None:
        self.url = url
        self.manager = Scheduler(url, concurrency=0)
        # By what was done, and by whom.
        self.seen: Counter[tuple[str, str]] = Counter()
        self.told: Counter[tuple[str, str | None]] = Counter()
        self.nodes = [self._build(number, poll_interval) for number in range(NODES)]

    def _build(self, number: int, poll_interval: str) -> Scheduler:
        name = f"shop@node-{number}"
        scheduler = Scheduler(
            self.url, node_name=name, poll_interval=poll_interval, lease=LEASE_SECONDS, stop_timeout="5s"
        )

        @scheduler.task
        async def job(number: int = 0) -> None:
            self.seen[f"job {number}", name] += 1

        @scheduler.task
        async def talk(ctx: Context) -> None:
            for line in range(5):
                ctx.log(f"line {line}")

        @scheduler.task
        async def fail() -> None:
            raise OSError("as always")

        @scheduler.duty("index", every="200ms")
        async def index() -> None:
            self.seen["index", name] += 1

        @scheduler.sender("paper")
        async def deliver(message: Message) -> None:
            self.seen[f"message {message.key}", name] += 1

        def hear(event: Event) -> None:
            self.told[event.kind, event.schedule_key if event.kind == "paused" else event.run_id] += 1

        for kind in ("succeeded", "paused"):
            scheduler.on(kind, hear)
        return scheduler

    def times(self, what: str) -> int:
        return sum(count for (each, _), count in self.seen.items() if each == what)

    def by_whom(self, what: str) -> dict[str, int]:
        return {name: count for (each, name), count in self.seen.items() if each == what}

    async def done(self, count: int) -> None:
        """Until so many runs have ended."""
        await until(lambda: self._ended(count))

    async def _ended(self, count: int) -> bool:
        return len(await self.manager.runs(states=[State.DONE], limit=1000)) >= count


async def until(is_so: Callable[[], Awaitable[bool]]) -> None:
    async with asyncio.timeout(PATIENCE):
        while not await is_so():
            await asyncio.sleep(0.05)


@asynccontextmanager
async def started(fleet: Fleet) -> AsyncIterator[Fleet]:
    """All at once, as after a rollout."""
    async with AsyncExitStack() as stack:
        stack.push_async_callback(fleet.manager.close)
        await asyncio.gather(*(stack.enter_async_context(node) for node in fleet.nodes))
        yield fleet


# --- the proofs, by the name of the line


async def fire(url: str) -> None:
    """Each moment has one run, regardless of which node recorded it."""
    async with started(Fleet(url)) as fleet:
        await fleet.manager.add_many(
            {"key": f"k{number}", "when": "once +300ms", "task": "job", "args": {"number": number}}
            for number in range(50)
        )
        await fleet.done(50)
        runs = await fleet.manager.runs(limit=1000)
        assert Counter(run.schedule_key for run in runs) == {f"k{number}": 1 for number in range(50)}
        assert {each.fires for each in await fleet.manager.schedules()} == {1}


async def work(url: str) -> None:
    """Each run is carried out once."""
    fleet = Fleet(url)
    async with started(fleet):
        task = fleet.nodes[0].runtime.tasks["job"]
        await task.enqueue_many({"number": number} for number in range(100))
        await fleet.done(100)
        assert [fleet.times(f"job {number}") for number in range(100)] == [1] * 100


async def finish(url: str) -> None:
    """Each outcome is written once, and told once."""
    fleet = Fleet(url)
    async with started(fleet):
        made = await fleet.nodes[0].runtime.tasks["job"].enqueue_many({"number": number} for number in range(100))
        await fleet.done(100)
        runs = await fleet.manager.runs(limit=1000)
        assert {(run.verdict, run.attempts, run.losses) for run in runs} == {(Verdict.SUCCEEDED, 1, 0)}
    assert {key: count for key, count in fleet.told.items() if key[0] == "succeeded"} == {
        ("succeeded", run.id): 1 for run in made
    }


async def progress(url: str) -> None:
    """Each line of a log is there once."""
    fleet = Fleet(url)
    async with started(fleet):
        made = [await fleet.nodes[0].runtime.tasks["talk"].enqueue() for _ in range(10)]
        await fleet.done(10)

        async def has_lines() -> bool:
            return all([len(await fleet.manager.log(run)) == 5 for run in made])

        await until(has_lines)
        for run in made:
            assert [line.text for line in await fleet.manager.log(run)] == [f"line {number}" for number in range(5)]


async def beat(url: str) -> None:
    """Each node extends its own lease."""
    async with started(Fleet(url)) as fleet:
        first = {node.id: node.beat_at for node in await fleet.manager.nodes()}

        async def have_all_beaten() -> bool:
            return all(node.beat_at > first[node.id] for node in await fleet.manager.nodes())

        await until(have_all_beaten)
        assert len(first) == NODES


async def recovery(url: str) -> None:
    """A dead node's run is judged and re-homed once."""
    fleet = Fleet(url)
    store = await fleet.manager.runtime.store()
    terms = {"job": TaskTerms()}
    await store.join(
        NodeJoin(id="old", name="old", app="default", version="1", lease=1, queues=(), tasks=terms, declares={})
    )
    held = await fleet.nodes[0].runtime.tasks["job"].enqueue(number=7)
    assert [run.id for run in (await store.claim("default", "old", ["default"], terms, 1)).runs] == [held.id]
    async with started(fleet):
        await fleet.done(1)
        run = await fleet.manager.get_run(held.id)
        assert (run.verdict, run.losses) == (Verdict.SUCCEEDED, 1)
        assert fleet.times("job 7") == 1
        [dead] = [node for node in await fleet.manager.nodes() if node.id == "old"]
        assert dead.died_at is not None


async def auto_pause(url: str) -> None:
    """A schedule that keeps failing is paused once."""
    fleet = Fleet(url)
    async with started(fleet):
        await fleet.manager.add(key="bad", when="every 100ms", task="fail", overlap="allow", pause_after=3)

        async def is_paused() -> bool:
            return (await fleet.manager.schedule("bad")).is_paused

        await until(is_paused)
    assert fleet.told["paused", "bad"] == 1
    assert (await fleet.manager.schedule("bad")).version == 2
    await fleet.manager.close()


async def sweep(url: str) -> None:
    """A schedule that is no longer declared is paused once, a run of an unknown task is parked once."""
    before = Scheduler(url, node_name="shop@node-0")
    before.every("1h", key="given up", name="job")(lambda: None)
    async with before:
        pass
    fleet = Fleet(url)
    await fleet.manager.task(lambda: None, name="unknown").enqueue()
    async with started(fleet):

        async def is_swept() -> bool:
            [run] = await fleet.manager.runs()
            return run.state is State.PARKED and (await fleet.manager.schedule("given up")).is_paused

        await until(is_swept)
        assert (await fleet.manager.schedule("given up")).version == 2


async def duty(url: str) -> None:
    """Each duty is held by one node."""
    async with started(Fleet(url)) as fleet:

        async def has_acted() -> bool:
            return fleet.times("index") >= 5

        await until(has_acted)
        held = [
            name
            for node in fleet.nodes
            if node.runtime.engine is not None
            for name in node.runtime.engine.health().duties
        ]
        assert sorted(held) == ["evertick.prune", "index"]
        assert len(fleet.by_whom("index")) == 1


async def outbox(url: str) -> None:
    """Each message is delivered once."""
    fleet = Fleet(url)
    async with started(fleet):
        for number in range(30):
            await fleet.manager.send("paper", {"number": number}, key=str(number))

        async def are_delivered() -> bool:
            return sum(fleet.seen.values()) - fleet.times("index") >= 30

        await until(are_delivered)
    assert [fleet.times(f"message {number}") for number in range(30)] == [1] * 30


async def report(url: str) -> None:
    """Each report is applied once, by the node that reads it; a repeated one changes nothing."""
    queue, told = Queue(), Counter[str | None]()
    with mock.patch.dict(registry._BUILT_IN, {"queueing": "dispatch_queue:Dispatching"}):
        nodes = [Scheduler(url, node_name=f"n{number}", drivers=["queueing"]) for number in range(NODES)]
        for node in nodes:
            node.runtime.connections["queueing"] = queue
            node.job("build", Dispatching())
            node.on("succeeded", lambda event: told.update([event.run_id]))
        async with AsyncExitStack() as stack:
            await asyncio.gather(*(stack.enter_async_context(node) for node in nodes))
            made = await nodes[0].runtime.tasks["build"].enqueue_many({"n": number} for number in range(100))

            async def are_pushed() -> bool:
                return len(queue.pushed) == 100

            await until(are_pushed)
            for job in queue.pushed:
                queue.tell(job, "finish")
            queue.tell(queue.pushed[0], "finish")

            async def are_confirmed() -> bool:
                return len(queue.confirmed) == 101 and len(told) == 100

            await until(are_confirmed)
            runs = await nodes[0].runs(limit=1000)
            assert {(run.verdict, run.attempts, run.losses) for run in runs} == {(Verdict.SUCCEEDED, 1, 0)}
    assert told == {run.id: 1 for run in made}


async def watch(url: str) -> None:
    """Each node notices by itself what another process wrote: none of them polls here."""
    async with started(Fleet(url, poll_interval="1h")) as fleet:
        await fleet.manager.add(key="all", when="every 1h", task="job", mode="every-node")
        await fleet.manager.trigger("all")
        await fleet.done(NODES)
        assert fleet.by_whom("job 0") == {f"shop@node-{number}": 1 for number in range(NODES)}


async def prune(url: str) -> None:
    """Old history is deleted by one node, under a term: what there is too much of goes once."""
    fleet = Fleet(url)
    deleted: Counter[str] = Counter()
    for node in fleet.nodes:
        node.runtime.settings = msgspec.structs.replace(node.settings, keep_per_schedule=KEPT)
        _count_pruned(await node.runtime.store(), node.settings.node_name, deleted)
    earlier = Scheduler(url, duties=False)
    earlier.task(lambda: None, name="job")
    async with earlier:
        await earlier.add(key="often", when="every 1h", task="job", overlap="allow")
        for _ in range(KEPT + 20):
            await earlier.trigger("often")
        await fleet.done(KEPT + 20)
    async with started(fleet):

        async def is_gone() -> bool:
            return len(await fleet.manager.runs("often", limit=100)) == KEPT

        await until(is_gone)
        line = await _line(fleet, "evertick.prune")
        assert (len(line.holders), line.term) == (1, 1)
    # Only the holder has deleted anything.
    assert deleted == {line.holders[0].name: 20}


def _count_pruned(store: Store, name: str, deleted: Counter[str]) -> None:
    whole = store.prune

    async def counted(app: str, *, before: int, keep_per_schedule: int | None, limit: int) -> int:
        count = await whole(app, before=before, keep_per_schedule=keep_per_schedule, limit=limit)
        deleted[name] += count
        return count

    store.prune = counted  # type: ignore[method-assign]


async def a_claimed_schedule(url: str) -> None:
    """Each fire runs on one node."""
    async with started(Fleet(url)) as fleet:
        await fleet.manager.add(key="one", when="once +200ms", task="job")
        await fleet.done(1)
        assert (await _line(fleet, "one")).mode == "claimed"
    assert fleet.times("job 0") == 1


async def a_schedule_for_every_node(url: str) -> None:
    """Each fire runs once on each node."""
    async with started(Fleet(url)) as fleet:
        await fleet.manager.add(key="all", when="once +200ms", task="job", mode="every-node")
        await fleet.done(NODES)
        line = await _line(fleet, "all")
        assert (line.mode, len(line.holders)) == ("every-node", NODES)
    assert fleet.by_whom("job 0") == {f"shop@node-{number}": 1 for number in range(NODES)}


async def a_duty(url: str) -> None:
    """It acts on one node at a time, and goes on on another when that one leaves."""
    async with started(Fleet(url)) as fleet:

        async def is_held() -> bool:
            return bool((await _line(fleet, "index")).holders) and fleet.times("index") > 0

        await until(is_held)
        first = await _line(fleet, "index")
        assert (len(first.holders), first.term) == (1, 1)
        [holder] = [node for node in fleet.nodes if node.settings.node_name == first.holders[0].name]
        await holder.runtime.stop()

        async def is_dispatched() -> bool:
            line = await _line(fleet, "index")
            return line.term == 2 and len(fleet.by_whom("index")) == 2

        await until(is_dispatched)
        await holder.runtime.start()


PROOFS: dict[str, Callable[[str], Awaitable[None]]] = {
    "loop fire": fire,
    "loop work": work,
    "loop finish": finish,
    "loop progress": progress,
    "loop beat": beat,
    "loop recovery": recovery,
    "loop auto_pause": auto_pause,
    "loop sweep": sweep,
    "loop duty": duty,
    "loop outbox": outbox,
    "loop report": report,
    "loop watch": watch,
    "duty evertick.prune": prune,
    "schedule claimed": a_claimed_schedule,
    "schedule every-node": a_schedule_for_every_node,
    "duty duty": a_duty,
}
LINES = [
    *(f"loop {kind.name}" for kind in LOOPS),
    *(f"duty {kind.name}" for kind in DUTIES),
    *(f"{kind} {mode}" for kind, mode in REPLICAS),
]


@pytest.mark.parametrize("line", LINES)
async def test_with_three_nodes_the_effect_happens_once_or_once_per_node(
    postgres_url: str, line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert line in PROOFS, f"{line!r} is declared, and no test with three nodes shows that it is so"
    # A node that hears nothing looks by itself: here only its poll interval makes it look.
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 3600.0)
    await PROOFS[line](postgres_url)


def test_there_is_no_proof_of_what_is_not_there() -> None:
    assert set(PROOFS) == set(LINES)


# --- the table itself


async def _line(fleet: Fleet, name: str) -> HaLine:
    [found] = [line for line in (await fleet.manager.ha()).lines if line.name == name]
    return found


async def _full_table(fleet: Fleet) -> HaTable:
    """When all nodes have told of their loops."""

    async def has_heard_all() -> bool:
        table = await fleet.manager.ha()
        by_name = {line.name: line for line in table.lines}
        return len(by_name["beat"].holders) == NODES and all(by_name[name].last_at for name in ("fire", "work"))

    await until(has_heard_all)
    return await fleet.manager.ha()


async def test_the_table_names_every_loop_duty_and_schedule_and_who_holds_it(postgres_url: str) -> None:
    async with started(Fleet(postgres_url)) as fleet:
        await fleet.manager.add(key="all", when="every 1h", task="job", mode="every-node")
        await fleet.manager.add(key="one", when="every 1h", task="job")
        await fleet.manager.add(key="paused", when="every 1h", task="nobody's")
        await fleet.manager.pause("paused")

        async def is_index_held() -> bool:
            return bool((await _line(fleet, "index")).holders)

        await until(is_index_held)
        table = await _full_table(fleet)
        names = {node.name for node in table.nodes}
        assert names == {f"shop@node-{number}" for number in range(NODES)}
        assert [(line.kind, line.name, line.mode) for line in table.lines] == [
            *(("loop", kind.name, kind.mode) for kind in LOOPS),
            ("duty", "evertick.prune", "duty"),
            ("duty", "index", "duty"),
            ("schedule", "all", "every-node"),
            ("schedule", "one", "claimed"),
            ("schedule", "paused", "claimed"),
        ]
        by_name = {line.name: line for line in table.lines}
        assert len(by_name["fire"].holders) == len(by_name["one"].holders) == len(by_name["all"].holders) == NODES
        assert len(by_name["index"].holders) == 1
        assert (by_name["paused"].holders, by_name["paused"].next_at, by_name["paused"].is_paused) == ((), None, True)
        assert all(line.replicas.endswith(".") for line in table.lines)


async def test_heartbeats_carry_ticks_in_the_time_of_the_store(postgres_url: str) -> None:
    async with started(Fleet(postgres_url)) as fleet:
        table = await _full_table(fleet)
        for name in ("fire", "work", "beat"):
            [line] = [line for line in table.lines if line.name == name]
            assert isinstance(line.last_at, datetime)
            assert abs((table.at - line.last_at).total_seconds()) < PATIENCE
        [beat_line] = [line for line in table.lines if line.name == "beat"]
        assert beat_line.next_at is not None
        assert beat_line.last_at is not None
        assert 0 < (beat_line.next_at - beat_line.last_at).total_seconds() <= LEASE_SECONDS


async def test_lines_can_be_asked_for_by_kind_and_schedules_are_bounded(postgres_url: str) -> None:
    manager = Scheduler(postgres_url, concurrency=0)
    await manager.add_many({"key": f"k{number:03}", "when": "every 1h", "task": "job"} for number in range(150))
    table = await manager.ha(kind="schedule", limit=20)
    assert [line.name for line in table.lines] == [f"k{number:03}" for number in range(20)]
    assert table.schedules == 150
    assert {line.kind for line in (await manager.ha(kind="loop")).lines} == {"loop"}
    # Nobody has joined: there are loops, and nobody who runs them.
    assert {line.holders for line in (await manager.ha()).lines} == {()}
    await manager.close()


async def test_a_declared_duty_that_was_never_held_is_in_the_table(postgres_url: str) -> None:
    scheduler = Scheduler(postgres_url, duties=False)

    @scheduler.duty("nobody's")
    async def watch() -> None: ...

    async with scheduler:
        table = await scheduler.ha(kind="duty")
    assert [(line.name, line.holders, line.term) for line in table.lines] == [
        ("evertick.prune", (), None),
        ("nobody's", (), None),
    ]
