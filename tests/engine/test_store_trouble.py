"""The store is away for a while: locked by another process, or its disk full. Nothing is lost, nothing doubled."""

from __future__ import annotations

import asyncio
import itertools
import logging
import resource
import sqlite3
import subprocess
import sys
from collections import Counter
from datetime import datetime, timedelta
from pathlib import Path

import pytest

import preloaded
from evertick import Context, Run, Scheduler, StoreUnavailable


async def until(scheduler: Scheduler, key: str, moment: datetime) -> list[Run]:
    """Wait until the ledger has passed the moment; answers the finished runs of the schedule, oldest first."""
    async with asyncio.timeout(30):
        while True:
            schedule = await scheduler.schedule(key)
            runs = [run for run in await scheduler.runs(key, limit=1000) if not run.is_live]
            if schedule.next_fire_at and schedule.next_fire_at > moment and runs and runs[0].fire_at >= moment:
                return runs[::-1]
            await asyncio.sleep(0.05)


async def test_a_locked_store_is_waited_for_and_caught_up_with(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "locked.db"
    scheduler = Scheduler(f"sqlite:///{path}?busy_timeout=200ms", lease="3s")
    starts: Counter[str] = Counter()
    first_start = asyncio.Event()

    @scheduler.every("200ms", catch_up="all", catch_up_limit=1000, pace="5ms", overlap="allow")
    async def tick(ctx: Context) -> None:
        starts[ctx.run_id] += 1
        first_start.set()

    async with scheduler:
        await asyncio.wait_for(first_start.wait(), 10)
        other = sqlite3.connect(path, isolation_level=None)
        other.execute("BEGIN IMMEDIATE")
        with caplog.at_level(logging.WARNING, logger="evertick"):
            async with asyncio.timeout(20):
                while "store unavailable, retrying" not in caplog.text:
                    await asyncio.sleep(0.05)
        locked_at = datetime.now().astimezone()
        other.execute("ROLLBACK")
        other.close()
        runs = await until(scheduler, "tick", locked_at + timedelta(seconds=1))
        assert await scheduler.gaps("tick") == []
    moments = [run.fire_at for run in runs]
    assert {later - earlier for earlier, later in itertools.pairwise(moments)} == {timedelta(seconds=0.2)}
    assert set(starts.values()) == {1}
    assert {run.verdict for run in runs} == {"succeeded"}
    assert "is locked by another connection" in caplog.text


@pytest.mark.parametrize("how", ["removed", "replaced"])
async def test_a_file_that_goes_away_under_a_node_stops_its_work(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, how: str
) -> None:
    path = tmp_path / "gone.db"
    scheduler = Scheduler(f"sqlite:///{path}", lease="1s", poll_interval="100ms", stop_timeout="1s")
    starts = 0
    started = asyncio.Event()

    @scheduler.every("100ms")
    async def tick() -> None:
        nonlocal starts
        starts += 1
        started.set()

    async with scheduler:
        await asyncio.wait_for(started.wait(), 10)
        for file in tmp_path.glob("gone.db*"):
            file.rename(tmp_path / f"old-{file.name}")
        if how == "replaced":
            path.touch()
        async with asyncio.timeout(20):
            while scheduler.is_healthy:
                await asyncio.sleep(0.02)
        seen = starts
        with pytest.raises(StoreUnavailable, match=f"was {how}.* put the file back and restart"):
            await scheduler.runs()
        # Put back, it is the very file that was opened, and all goes on.
        for file in tmp_path.glob("old-gone.db*"):
            file.rename(tmp_path / file.name.removeprefix("old-"))
        async with asyncio.timeout(20):
            while starts < seen + 3:
                await asyncio.sleep(0.02)
    assert f"was {how}" in caplog.text


PROGRAM = """
import asyncio, sys
from evertick import Context, Scheduler
import logging
logging.basicConfig(level="INFO")
scheduler = Scheduler(sys.argv[1], lease="3s")

@scheduler.every("200ms", catch_up="all", catch_up_limit=1000, pace="5ms", overlap="allow")
async def tick(ctx: Context) -> None:
    print("start", ctx.run_id, flush=True)

scheduler.run()
"""


async def test_a_full_disk_stops_nothing_for_good(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/full.db"
    log = tmp_path / "log"
    with log.open("wb") as stderr:
        node = preloaded.popen([sys.executable, "-c", PROGRAM, url], stdout=subprocess.PIPE, stderr=stderr)
    assert node.stdout is not None
    try:
        node.stdout.readline()
        # No file of that process may grow beyond this: to SQLite that is a full disk.
        before = resource.prlimit(node.pid, resource.RLIMIT_FSIZE, (4096, resource.RLIM_INFINITY))
        async with asyncio.timeout(20):
            while "store unavailable, retrying" not in log.read_text():
                await asyncio.sleep(0.05)
        resource.prlimit(node.pid, resource.RLIMIT_FSIZE, before)
        healed_at = datetime.now().astimezone()
        manager = Scheduler(url, concurrency=0)
        runs = await until(manager, "tick", healed_at + timedelta(seconds=1))
        gaps = await manager.gaps("tick")
        await manager.close()
    finally:
        node.terminate()
        rest = node.stdout.read().decode().split()
        code = node.wait(timeout=30)
        node.stdout.close()
    assert code == 0, log.read_text()
    assert gaps == []
    moments = [run.fire_at for run in runs]
    assert {later - earlier for earlier, later in itertools.pairwise(moments)} == {timedelta(seconds=0.2)}
    assert {run.verdict for run in runs} == {"succeeded"}
    starts = Counter(word for word in rest if word != "start")
    assert set(starts.values()) == {1}
