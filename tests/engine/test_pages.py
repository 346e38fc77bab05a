"""More is due than one look finds: the tick goes on, page after page, and reads the next while it writes the last."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from collections import Counter
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import asyncpg
import pytest

from evertick import Scheduler
from evertick.clock import system_clock
from evertick.driver.base import Work
from evertick.driver.python.function import FunctionDriver, Threads
from evertick.engine.finish import Finisher
from evertick.engine.fire import Recorder
from evertick.engine.node import LocalNode
from evertick.engine.progress import ProgressWriter
from evertick.engine.work import Worker
from evertick.errors import StoreUnavailable
from evertick.model import Definition
from evertick.model.hooks import Hooks
from evertick.store.base import FIRST_PLACE, Advance, Change, Due, DuePlace, Recorded, RunFilter, Store
from evertick.when.moment import HOUR, SECOND

PATIENCE = 30.0
APP = "pages"
# The first page is one of them, the others are four.
BATCH = 5
PAGE = 4 * BATCH


class Watched:
    """A store that records reads and writes, and can delay them or make them fail."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self.looks: list[Due] = []
        self.written: list[list[int]] = []
        # Numbers of writes that do not begin before so many looks were answered.
        self.writes_after_looks: dict[int, int] = {}
        # Called before the read with that number.
        self.before_look: dict[int, Callable[[], Awaitable[None]]] = {}
        self.failing_look = self.failing_write = 0
        self.refused = 0
        self.trouble: Exception = StoreUnavailable("it is away")
        self._has_looked = asyncio.Condition()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)

    async def due_schedules(self, app: str, limit: int, after: DuePlace = FIRST_PLACE) -> Due:
        if len(self.looks) + 1 == self.failing_look:
            self.failing_look = 0
            raise self.trouble
        if meanwhile := self.before_look.pop(len(self.looks) + 1, None):
            await meanwhile()
        due = await self._store.due_schedules(app, limit, after)
        async with self._has_looked:
            self.looks.append(due)
            self._has_looked.notify_all()
        return due

    async def record_fires(self, app: str, node: str | None, advances: Sequence[Advance]) -> Recorded:
        self.written.append([advance.schedule_id for advance in advances])
        wanted = self.writes_after_looks.get(len(self.written), 0)
        async with self._has_looked:
            await self._has_looked.wait_for(lambda: len(self.looks) >= wanted)
        if len(self.written) == self.failing_write:
            raise self.trouble
        recorded = await self._store.record_fires(app, node, advances)
        self.refused += recorded.taken.count(False)
        return recorded


class Unwritten(Finisher):
    """Nobody writes outcomes here, and nobody waits for that."""

    def forbids_claims(self) -> bool:
        return False


class Station:
    """A node that takes single steps."""

    def __init__(self, store: Store, begun: Counter[str]) -> None:
        self.store = Watched(store)

        async def job(name: str) -> None:
            begun[name] += 1

        self.node = LocalNode(
            name="node",
            app=APP,
            version="1",
            store=self.store,  # type: ignore[arg-type]
            clock=system_clock,
            works={"job": Work(task="job", driver=FunctionDriver(job, "job", Threads()), hash="")},
            queues=["default"],
            concurrency=1_000,
            lease=60_000_000,
            hooks=Hooks(Threads().call),
            declares={},
            batch_size=BATCH,
        )
        self.node.trusted_until = system_clock.elapsed() + 60
        notes = ProgressWriter(self.node, 1.0)
        worker = Worker(self.node, Unwritten(self.node, notes), notes)
        worker.is_queue_empty = True
        self.recorder = Recorder(self.node, worker)

    async def step(self) -> float | None:
        return await asyncio.wait_for(self.recorder.step(), PATIENCE)

    async def until_nothing_is_due(self) -> None:
        while (rest := await self.step()) is not None and rest < 60:
            await asyncio.sleep(rest)


class Place:
    """A ledger, and nodes on it."""

    def __init__(self, url: str) -> None:
        self._url = url
        self._scheduler = Scheduler(url, app=APP, concurrency=0)
        # How often the run of each schedule has begun.
        self.begun: Counter[str] = Counter()

    async def node(self) -> Station:
        station = Station(await self._scheduler.runtime.store(), self.begun)
        await station.node.store.join(station.node.joining())
        return station

    async def add_due(self, count: int, *, every: dict[int, str] | None = None, seconds_ago: int = 1) -> None:
        """The one after the other, and not again for an hour, but for those that are `every` so often."""
        store = await self._scheduler.runtime.store()
        first = await store.now() - seconds_ago * SECOND
        adds = []
        for number in range(count):
            name, at = f"s{number}", first + number
            when = (every or {}).get(number, "every 1h")
            definition = Definition(task="job", when=when, args={"name": name})
            adds.append(Change(key=name, kind="add", definition=definition, created_at=first - HOUR, fire_at=at, at=at))
        assert all(await store.change_schedules(APP, adds))

    async def add_earliest(self) -> None:
        """One that is due before all others."""
        store = await self._scheduler.runtime.store()
        at = await store.now() - 30 * SECOND
        definition = Definition(task="job", when="every 1h", args={"name": "earliest"})
        add = Change(key="earliest", kind="add", definition=definition, created_at=at - HOUR, fire_at=at, at=at)
        assert all(await store.change_schedules(APP, [add]))

    async def damage(self, key: str) -> None:
        """By hand: what it says of its pause is nothing that can be read."""
        if self._url.startswith("sqlite"):
            with contextlib.closing(sqlite3.connect(self._url.removeprefix("sqlite:///"))) as file, file:
                file.execute("UPDATE evertick_schedules SET pause = '[' WHERE key = ?", (key,))
            return
        dsn, _, schema = self._url.partition("?schema=")
        connection: Any = await asyncpg.connect(dsn)
        try:
            await connection.execute(f"UPDATE {schema}.schedules SET pause = '[' WHERE key = $1", key)
        finally:
            await connection.close()

    async def recorded(self) -> Counter[str | None]:
        store = await self._scheduler.runtime.store()
        return Counter(run.schedule_key for run in await store.runs(APP, RunFilter(limit=1000)))

    async def close(self) -> None:
        await self._scheduler.close()


@asynccontextmanager
async def nothing_left() -> AsyncIterator[None]:
    """All tasks that start inside the block have ended after it."""
    before = asyncio.all_tasks()
    yield
    left = {task.get_name() for task in asyncio.all_tasks() - before}
    assert not [name for name in left if name in {"evertick look", "evertick record"}]


@pytest.fixture(params=["sqlite", "postgres"])
async def place(request: pytest.FixtureRequest, tmp_path: Path) -> AsyncIterator[Place]:
    is_sqlite = request.param == "sqlite"
    place = Place(f"sqlite:///{tmp_path}/pages.db" if is_sqlite else request.getfixturevalue("postgres_url"))
    yield place
    await place.close()


def each_once(count: int) -> Counter[str]:
    return Counter({f"s{number}": 1 for number in range(count)})


async def test_one_tick_goes_over_several_pages_and_records_each_moment_once(place: Place) -> None:
    await place.add_due(5 * PAGE)
    station = await place.node()
    async with nothing_left():
        await station.step()
        assert len(station.store.looks) >= 5
    assert await place.recorded() == each_once(5 * PAGE)
    assert place.begun == each_once(5 * PAGE)


async def test_a_tick_has_a_bounded_number_of_pages(place: Place) -> None:
    await place.add_due(12 * PAGE)
    station = await place.node()
    assert await station.step() == 0.0
    assert len(station.store.looks) == 8
    await station.until_nothing_is_due()
    assert await place.recorded() == place.begun == each_once(12 * PAGE)


async def test_two_nodes_at_the_same_pages_record_each_moment_once(place: Place) -> None:
    await place.add_due(10 * PAGE)
    one, two = await place.node(), await place.node()
    await asyncio.gather(one.until_nothing_is_due(), two.until_nothing_is_due())
    assert await place.recorded() == place.begun == each_once(10 * PAGE)


async def test_the_next_page_is_read_while_the_first_batch_of_this_one_is_written(place: Place) -> None:
    await place.add_due(BATCH + PAGE)
    station = await place.node()
    station.store.writes_after_looks = {1: 2}
    await station.until_nothing_is_due()
    first, second = (look.schedules for look in station.store.looks[:2])
    assert (len(first), len(second)) == (BATCH, PAGE)
    # None of what was being written, or was still to be, is in it.
    assert not {row.id for row in first} & {row.id for row in second}
    assert Counter(id_ for batch in station.store.written for id_ in batch).most_common(1)[0][1] == 1
    assert await place.recorded() == each_once(BATCH + PAGE)


@pytest.mark.parametrize("place_in_page", [0, PAGE - 1])
async def test_the_next_moment_of_an_earlier_page_is_not_forgotten(place: Place, place_in_page: int) -> None:
    await place.add_due(2 * PAGE + 3, every={place_in_page: "every 30s"})
    station = await place.node()
    # The looks at the second and third page see none of it.
    station.store.writes_after_looks = {1: 2, 5: 3}
    rest = await station.step()
    assert len(station.store.looks) == 3
    assert rest is not None
    assert rest <= 30


async def test_what_comes_before_the_next_page_meanwhile_is_for_the_next_tick(place: Place) -> None:
    await place.add_due(PAGE + 3)
    station = await place.node()
    station.store.before_look[2] = place.add_earliest
    await station.step()
    assert len(station.store.looks) == 2
    assert await place.recorded() == each_once(PAGE + 3)
    station.recorder.require_full_scan()
    await station.step()
    assert await place.recorded() == each_once(PAGE + 3) + Counter(["earliest"])


async def test_what_is_due_for_long_and_came_without_a_word_is_found_a_second_later(place: Place) -> None:
    await place.add_due(3)
    station = await place.node()
    await station.step()
    await place.add_earliest()
    await station.step()
    assert await place.recorded() == each_once(3)
    await asyncio.sleep(1.0)
    await station.step()
    assert await place.recorded() == each_once(3) + Counter(["earliest"])


async def test_what_a_tick_has_written_itself_is_not_behind_its_next_look(place: Place) -> None:
    await place.add_due(BATCH + 3, every={0: "every 1s"})
    station = await place.node()
    # The last read does not see the cursors that the first batch wrote, which are due before it.
    station.store.before_look[2] = lambda: asyncio.sleep(2.5)
    station.store.writes_after_looks = {1: 2}
    await station.step()
    [first, *_] = station.store.looks[0].schedules
    written = len(station.store.written)
    await station.step()
    assert station.store.written[written:] == [[first.id]]


async def at_work_for_a_while(place: Place, count: int) -> list[Station]:
    """Nodes that have looked at all before, and hear now that much has come due long ago."""
    stations = [await place.node() for _ in range(count)]
    for station in stations:
        await station.step()
    await place.add_due(12 * PAGE, seconds_ago=10)
    for station in stations:
        station.recorder.require_full_scan()
    return stations


async def test_nodes_that_are_behind_leave_each_other_their_share(place: Place) -> None:
    one, two = stations = await at_work_for_a_while(place, 2)
    for station in stations:
        station.recorder._peers.meet()
    assert await asyncio.gather(one.step(), two.step()) == [0.01, 0.01]
    # The concurrent writes of both nodes: all of them complete, and none was rejected.
    assert (one.store.refused, two.store.refused) == (0, 0)
    assert all(len(station.store.written) > 4 for station in stations)
    await asyncio.gather(one.until_nothing_is_due(), two.until_nothing_is_due())
    assert await place.recorded() == place.begun == each_once(12 * PAGE)


async def test_nothing_is_overlooked_by_nodes_that_meet_each_other(place: Place) -> None:
    one, two = await at_work_for_a_while(place, 2)
    await asyncio.gather(one.until_nothing_is_due(), two.until_nothing_is_due())
    assert await place.recorded() == place.begun == each_once(12 * PAGE)


async def test_nothing_is_overlooked_of_more_than_one_tick_may_take(place: Place) -> None:
    [station] = await at_work_for_a_while(place, 1)
    assert await station.step() == 0.0
    await station.until_nothing_is_due()
    assert await place.recorded() == place.begun == each_once(12 * PAGE)


async def test_nothing_is_overlooked_after_a_write_that_failed(place: Place) -> None:
    [station] = await at_work_for_a_while(place, 1)
    station.store.failing_write = len(station.store.written) + 2
    with pytest.raises(StoreUnavailable):
        await station.step()
    await station.until_nothing_is_due()
    assert await place.recorded() == each_once(12 * PAGE)


async def test_news_that_come_while_a_look_is_under_way_are_looked_for_by_the_next(place: Place) -> None:
    [station] = await at_work_for_a_while(place, 1)

    async def news() -> None:
        await place.add_earliest()
        station.recorder.require_full_scan()

    station.store.before_look[len(station.store.looks) + 2] = news
    await station.until_nothing_is_due()
    assert await place.recorded() == each_once(12 * PAGE) + Counter(["earliest"])


async def test_one_that_cannot_be_read_does_not_hide_the_others(place: Place) -> None:
    await place.add_due(5 * PAGE)
    for key in ("s0", *(f"s{number}" for number in range(BATCH, BATCH + PAGE))):
        await place.damage(key)
    station = await place.node()
    await station.step()
    assert (await place.recorded()).total() == 5 * PAGE - 1 - PAGE


async def test_a_node_takes_the_share_of_one_that_does_nothing(place: Place) -> None:
    await place.add_due(10 * PAGE)
    station, _idle = await place.node(), await place.node()
    station.recorder._peers.meet()
    await station.until_nothing_is_due()
    assert await place.recorded() == place.begun == each_once(10 * PAGE)


async def test_another_loop_gets_the_lock_between_two_pages(place: Place) -> None:
    await place.add_due(6 * PAGE)
    station = await place.node()
    written = station.store.written

    async def claim() -> int:
        while not written:
            await asyncio.sleep(0)
        async with station.node.claiming:
            return len(written)

    claiming = asyncio.create_task(claim())
    await station.step()
    # The first page.
    assert await claiming == 1
    assert not station.node.claiming.is_wanted
    assert await place.recorded() == each_once(6 * PAGE)


async def test_nothing_goes_on_when_a_tick_is_cancelled(place: Place) -> None:
    await place.add_due(3 * PAGE)
    station = await place.node()
    # Never.
    station.store.writes_after_looks = {4: 100}
    async with nothing_left():
        tick = asyncio.create_task(station.recorder.step())
        async with asyncio.timeout(PATIENCE):
            while place.begun.total() < 3 * BATCH:
                await asyncio.sleep(0.001)
        tick.cancel()
        with pytest.raises(asyncio.CancelledError):
            await tick
    assert not station.node.claiming.locked()
    station.store.writes_after_looks = {}
    await station.until_nothing_is_due()
    assert await place.recorded() == place.begun == each_once(3 * PAGE)


@pytest.mark.parametrize(
    "trouble", [StoreUnavailable("it is away"), ValueError("a fault of ours")], ids=["away", "fault"]
)
async def test_what_is_under_way_is_started_though_the_next_page_cannot_be_read(
    place: Place, trouble: Exception
) -> None:
    await place.add_due(2 * PAGE)
    station = await place.node()
    station.store.failing_look, station.store.trouble = 2, trouble
    async with nothing_left():
        assert await station.step() == 0.0
    assert await place.recorded() == place.begun == each_once(BATCH)
    await station.until_nothing_is_due()
    assert await place.recorded() == place.begun == each_once(2 * PAGE)


async def test_a_node_that_drains_ends_its_tick(place: Place) -> None:
    await place.add_due(3 * PAGE)
    station = await place.node()
    # Delayed until the drain has begun.
    station.store.writes_after_looks = {4: 3}
    tick = asyncio.create_task(station.step())
    async with asyncio.timeout(PATIENCE):
        while len(station.store.written) < 4:
            await asyncio.sleep(0)
    station.node.is_draining = True
    await tick
    assert await place.recorded() == place.begun == each_once(BATCH + PAGE)
