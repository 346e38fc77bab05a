"""Several engines of one process and of several, on one file: waking each other, and taking over."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from evertick import Context, Scheduler
from evertick.engine import beat

ENQUEUE = """
import sys
from evertick import Scheduler
scheduler = Scheduler(sys.argv[1], concurrency=0)

@scheduler.task
def echo(number: int) -> int: ...

print("ready", flush=True)
sys.stdin.readline()
echo.sync.enqueue(number=7)
scheduler.sync.close()
"""


async def test_work_enqueued_by_another_process_starts_soon_without_any_poll(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"
    scheduler = Scheduler(url, poll_interval="1h")
    started: asyncio.Future[int] = asyncio.get_running_loop().create_future()

    @scheduler.task
    async def echo(number: int) -> int:
        started.set_result(number)
        return number

    async with scheduler:
        other = await asyncio.create_subprocess_exec(
            sys.executable, "-c", ENQUEUE, url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert other.stdin is not None
        assert other.stdout is not None
        await other.stdout.readline()
        other.stdin.write(b"now\n")
        assert await asyncio.wait_for(started, 10) == 7
        await other.wait()


async def test_a_schedule_added_by_another_process_fires_without_any_poll(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"
    scheduler = Scheduler(url, poll_interval="1h")
    fired = asyncio.Event()

    @scheduler.task
    async def job() -> None:
        fired.set()

    program = (
        "import sys; from evertick import Once, Scheduler; s = Scheduler(sys.argv[1], concurrency=0);"
        "s.sync.add(key='k', when=Once(after='100ms'), task='job'); s.sync.close()"
    )
    async with scheduler:
        other = await asyncio.create_subprocess_exec(sys.executable, "-c", program, url)
        await asyncio.wait_for(fired.wait(), 15)
        assert await other.wait() == 0


async def test_two_engines_share_the_work_and_do_nothing_twice(tmp_path: Path) -> None:
    url = f"sqlite:///{tmp_path}/two.db"
    done: Counter[int] = Counter()
    by_engine: Counter[int] = Counter()
    both_at_work, finished = asyncio.Event(), asyncio.Event()

    def engine(number: int) -> Scheduler:
        scheduler = Scheduler(url, concurrency=5, node_name=f"node-{number}")

        @scheduler.task
        async def job(n: int) -> None:
            by_engine[number] += 1
            if len(by_engine) == 2:
                both_at_work.set()
            await both_at_work.wait()  # one that takes all there is would wait for ever
            done[n] += 1
            if len(done) == 300:
                finished.set()

        return scheduler

    one, two = engine(1), engine(2)
    async with one, two:
        await one._tasks["job"].enqueue_many([{"n": n} for n in range(300)])
        await asyncio.wait_for(finished.wait(), 30)
    assert set(done.values()) == {1}
    assert by_engine.total() == 300


async def test_a_job_that_blocks_the_event_loop_does_not_cost_the_node_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The heart has its own thread; another node looks on and must not take the run.

    The lease is short enough for the job to outlive it, and long enough for a machine that stands still for a while.
    """
    monkeypatch.setattr(beat, "BLOCKED_SECONDS", 0.5)
    url = f"sqlite:///{tmp_path}/blocked.db"
    starts: list[str] = []
    health_while_blocked: list[bool] = []
    started = threading.Event()
    ended = threading.Event()
    blocking = Scheduler(url, lease="3s", node_name="blocking")

    @blocking.task(name="block")
    async def block(ctx: Context) -> None:
        starts.append(ctx.run_id)
        started.set()
        time.sleep(4)
        health_while_blocked.append(blocking.is_healthy)
        ended.set()

    looking = Scheduler(url, lease="3s", node_name="looking")

    @looking.task(name="block")
    async def taken(ctx: Context) -> None:
        starts.append("taken over: " + ctx.run_id)

    def look_on() -> bool:
        """Starts late, or it might be the first to claim the run."""
        started.wait(20)
        with looking:
            return ended.wait(20)

    async with blocking:
        run = await block.enqueue()
        assert await asyncio.to_thread(look_on)
        async with asyncio.timeout(10):
            while (await blocking.get_run(run.id)).is_live:
                await asyncio.sleep(0.02)
        finished = await blocking.get_run(run.id)
    assert starts == [run.id]
    assert finished.verdict == "succeeded"
    assert finished.losses == 0
    assert health_while_blocked == [False]
    assert "the event loop has not moved" in caplog.text
    assert "time.sleep(4)" in caplog.text
