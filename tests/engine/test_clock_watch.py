"""A jump of a clock is found between two heartbeats, and nothing is pruned by a time that may be wrong."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

import pytest

from evertick.engine.clock_watch import ClockWatch
from evertick.store.base import Beat, NodeJoin
from evertick.store.sqlite import SqliteStore
from evertick.testing.clock import SettableClock
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND


class Watched:
    """A node beside its store, whose clock is the same one."""

    def __init__(self) -> None:
        self.clock = SettableClock()
        self.store = SqliteStore("sqlite://", clock=self.clock, is_inline=True)
        node: Any = SimpleNamespace(id="n2", app="shop", clock=self.clock, store=self.store)
        self.watch = ClockWatch(node)

    def beat(self, *, after: int = 3 * SECOND) -> bool:
        self.clock.move(after)
        now = self.clock.now_us()
        return self.watch.heard(Beat(now=now, is_alive=True, cancels=[]), self.clock.elapsed())

    def jump(self, us: int) -> None:
        self.clock.jump_to(self.clock.now_us() + us)

    async def may_prune(self) -> bool:
        return await self.watch.may_prune(await self.store.now())


@pytest.fixture
async def watched() -> AsyncIterator[Watched]:
    watched = Watched()
    await watched.store.open(migrate="auto")
    yield watched
    await watched.store.close()


async def test_a_steady_clock_is_no_jump_and_does_not_hold_up_pruning(watched: Watched) -> None:
    assert [watched.beat(after=after) for after in (0, 3 * SECOND, 9 * SECOND, HOUR)] == [False] * 4
    watched.jump(5 * SECOND)
    assert not watched.beat()
    assert await watched.may_prune()


@pytest.mark.parametrize(("us", "words"), [(76 * 365 * DAY, "forward by 27740 d"), (-90 * MINUTE, "back by 90 min")])
async def test_a_jump_is_logged_with_its_size_and_nothing_is_pruned_for_an_hour(
    watched: Watched, caplog: pytest.LogCaptureFixture, us: int, words: str
) -> None:
    watched.beat()
    watched.jump(us)
    assert watched.beat()
    [line] = [record for record in caplog.records if record.name == "evertick.clock"]
    assert line.levelname == "ERROR"
    assert f"clock of this machine and of its store jumped {words} (from 2026-01-01 00:00:03 UTC" in caplog.text
    assert not await watched.may_prune()
    watched.beat(after=HOUR - MINUTE)
    assert not await watched.may_prune()
    watched.beat(after=2 * MINUTE)
    assert await watched.may_prune()


async def test_a_jump_after_the_last_heartbeat_suspends_pruning_before_the_next_one(watched: Watched) -> None:
    watched.beat()
    assert await watched.may_prune()
    watched.jump(76 * 365 * DAY)
    assert not await watched.may_prune()


async def test_a_ledger_in_which_no_node_has_beaten_for_a_month_is_not_pruned_for_an_hour(
    watched: Watched, caplog: pytest.LogCaptureFixture
) -> None:
    join = NodeJoin(id="n1", name="old", app="shop", version="0", lease=15 * SECOND, queues=(), tasks={}, declares={})
    await watched.store.join(join)
    watched.clock.move(40 * DAY)
    watched.beat()
    assert not await watched.may_prune()
    assert "no heartbeat of any node for 40 days by the store's clock" in caplog.text
    watched.beat(after=HOUR + MINUTE)
    assert await watched.may_prune()
