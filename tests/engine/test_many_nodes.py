"""Several engines of one process and of several, on one file: waking each other, and taking over."""

from __future__ import annotations

import asyncio
import errno
import subprocess
import sys
import threading
import time
from collections import Counter
from pathlib import Path

import pytest

from evertick import Context, Scheduler
from evertick.doctor import examine
from evertick.engine import heartbeat
from evertick.model import blockers_of_loop
from evertick.store.sqlite import foreign_commits
from evertick.when import from_us

SEND = """
import sys
from evertick import Scheduler
scheduler = Scheduler(sys.argv[1], concurrency=0)

@scheduler.task
def echo(number: int) -> None: ...

print("ready", flush=True)
for line in sys.stdin:
    echo.sync.enqueue(number=int(line))
    print(int(line), flush=True)
scheduler.sync.close()
"""


class Sender:
    """Another process, which enqueues a number for each line it is given."""

    def __init__(self, url: str) -> None:
        self._url = url

    async def __aenter__(self) -> Sender:
        self._process = await asyncio.create_subprocess_exec(
            sys.executable, "-c", SEND, self._url, stdin=subprocess.PIPE, stdout=subprocess.PIPE
        )
        assert await self._answer() == "ready"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._process.stdin is not None
        self._process.stdin.close()
        assert await self._process.wait() == 0

    async def send(self, number: int) -> None:
        assert self._process.stdin is not None
        self._process.stdin.write(b"%d\n" % number)
        assert await self._answer() == str(number)

    async def _answer(self) -> str:
        assert self._process.stdout is not None
        return (await self._process.stdout.readline()).decode().strip()


NEEDS_INOTIFY = pytest.mark.skipif(sys.platform != "linux", reason="this system has no inotify")


@pytest.mark.parametrize("hearing", [pytest.param("alone", marks=NEEDS_INOTIFY), "never", "impossible"])
async def test_what_another_process_enqueues_starts_whether_or_not_the_kernel_tells_of_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, hearing: str
) -> None:
    """By what is heard alone, with no look for an hour; by looks alone; and where nothing can be heard."""

    async def deaf(descriptor: int, seconds: float) -> bool:
        await asyncio.sleep(seconds)
        return False

    def refuse(path: Path) -> int:
        raise OSError(errno.ENOSPC, "no watch is left")

    if hearing == "alone":
        monkeypatch.setattr(foreign_commits, "_WATCHED_SECONDS", 3600.0)
        monkeypatch.setattr(foreign_commits, "_POLL_SECONDS", 3600.0)
    elif hearing == "never":
        monkeypatch.setattr(foreign_commits, "_can_be_read", deaf)
        monkeypatch.setattr(foreign_commits, "_WATCHED_SECONDS", 0.05)
    else:
        monkeypatch.setattr(foreign_commits, "_inotify", refuse)
    url = f"sqlite:///{tmp_path}/two.db"
    scheduler = Scheduler(url, poll_interval="1h")
    started: asyncio.Queue[int] = asyncio.Queue()

    @scheduler.task
    async def echo(number: int) -> None:
        started.put_nowait(number)

    async with scheduler, Sender(url) as sender:
        # The first may be found by the look with which everything begins.
        for number in range(4):
            await sender.send(number)
            assert await asyncio.wait_for(started.get(), 30) == number
        async with asyncio.timeout(30):
            while any(run.is_live for run in await scheduler.runs()):
                await asyncio.sleep(0.02)
        runs = await scheduler.runs()
    assert Counter((str(run.verdict), run.attempts, run.losses) for run in runs) == {("succeeded", 1, 0): 4}


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
        await one.runtime.tasks["job"].enqueue_many([{"n": n} for n in range(300)])
        await asyncio.wait_for(finished.wait(), 30)
    assert set(done.values()) == {1}
    assert by_engine.total() == 300


async def test_a_job_that_blocks_the_event_loop_is_logged_long_before_the_loop_counts_as_blocked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    # Beats are every 0.2 s.
    monkeypatch.setattr(heartbeat, "WARN_BLOCKED_SECONDS", 1.5)
    scheduler = Scheduler(f"sqlite:///{tmp_path}/held.db", lease="1s")
    ended = asyncio.Event()

    @scheduler.task
    async def holds_up() -> None:
        time.sleep(4)
        ended.set()

    async with scheduler:
        await holds_up.enqueue()
        await asyncio.wait_for(ended.wait(), 30)

    [told] = [
        each for each in caplog.records if each.name == "evertick.beat" and "event loop blocked" in each.getMessage()
    ]
    assert told.levelname == "WARNING"
    assert "write a blocking job as a plain function, which runs in a thread" in told.getMessage()
    assert "task: evertick holds_up" in told.getMessage()
    assert "time.sleep(4)" in told.getMessage()
    assert "event loop responds again after" in caplog.text
    assert "duties will be resigned" not in caplog.text


async def test_a_job_that_blocks_the_event_loop_does_not_cost_the_node_its_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """The heart has its own thread; another node looks on and must not take the run.

    The lease is short enough for the job to outlive it, and long enough for a machine that stands still for a while.
    """
    monkeypatch.setattr(heartbeat, "BLOCKED_SECONDS", 0.5)
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
    assert "event loop blocked for" in caplog.text
    assert "time.sleep(4)" in caplog.text


async def test_the_ledger_names_the_job_that_has_blocked_the_event_loop(
    tmp_path: Path,
) -> None:
    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", lease="3s", node_name="shop@host")

    @scheduler.every("1s", key="neighbour")
    async def neighbour() -> None: ...

    @scheduler.task
    async def block() -> None:
        time.sleep(4)

    async with scheduler:
        run = await block.enqueue()
        store = await scheduler.runtime.store()
        async with asyncio.timeout(20):
            while (await scheduler.get_run(run.id)).is_live:
                await asyncio.sleep(0.02)
            while not any(tick.next_at for tick in blockers_of_loop((await store.nodes(scheduler.app))[0]).values()):
                await asyncio.sleep(0.1)
        findings = {each.check: each for each in await examine(store, scheduler.app, from_us(await store.now()))}
    await scheduler.close()
    assert findings["blocked_loop"].about[0] == "block"
    assert "block has blocked the event loop of node shop@host for" in findings["blocked_loop"].what
