"""Work that does not stop when asked delays neither the stop of its node nor the exit of its process."""

from __future__ import annotations

import asyncio
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from evertick import Scheduler

# The stop time, what comes after it, and a slow machine; far less than any of them would go on.
PATIENCE = 20.0

PROGRAM = """
import asyncio, logging, sys, time
from evertick import Message, Scheduler
logging.basicConfig(level="INFO")
scheduler = Scheduler(sys.argv[1], stop_timeout="200ms")
kind = sys.argv[2]

async def stay() -> None:
    print("at work", flush=True)
    while True:
        try:
            await asyncio.sleep(600)
        except asyncio.CancelledError:
            pass

if kind == "job":
    @scheduler.every("100ms")
    async def stubborn() -> None:
        await stay()
if kind == "duty":
    @scheduler.duty("stubborn")
    async def keep() -> None:
        await stay()
if kind == "delivery":
    @scheduler.sender("stubborn")
    async def deliver(message: Message) -> None:
        await stay()
    scheduler.sync.send("stubborn", {}, key="one")
if kind == "thread":
    @scheduler.every("100ms")
    async def stubborn() -> None:
        print("at work", flush=True)
        await asyncio.to_thread(time.sleep, 600)

scheduler.run()
"""


@pytest.mark.parametrize(
    ("kind", "named"),
    [
        ("job", "task 'evertick stubborn'"),
        ("duty", "task 'evertick duty stubborn'"),
        ("delivery", "task 'evertick stubborn'"),
        ("thread", "_0'"),  # asyncio_0, or uvloop_0
    ],
)
async def test_a_process_ends_after_its_stop_time_in_spite_of_running_work(
    tmp_path: Path, kind: str, named: str
) -> None:
    node = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, f"sqlite:///{tmp_path}/jobs.db", kind),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    )
    try:
        assert node.stdout is not None
        assert await asyncio.wait_for(node.stdout.readline(), PATIENCE) == b"at work\n"
        node.send_signal(signal.SIGTERM)
        _, said = await asyncio.wait_for(node.communicate(), PATIENCE)
    finally:
        if node.returncode is None:
            node.kill()
            await node.wait()
    assert node.returncode == 0, said.decode()
    [end] = [line for line in said.decode().splitlines() if "process: exiting; still running" in line]
    assert named in end


async def test_a_stop_names_what_it_could_not_stop(caplog: pytest.LogCaptureFixture) -> None:
    scheduler = Scheduler("sqlite://", stop_timeout="50ms")
    on_duty, at_work, may_end = asyncio.Event(), asyncio.Event(), asyncio.Event()

    @scheduler.duty("watch")
    async def watch() -> None:
        on_duty.set()
        await insist(may_end)

    @scheduler.task
    async def stubborn() -> None:
        at_work.set()
        await insist(may_end)

    async with scheduler:
        run = await stubborn.enqueue()
        await asyncio.wait_for(asyncio.gather(on_duty.wait(), at_work.wait()), PATIENCE)
    # Or the test would not end, either.
    may_end.set()
    left = [task for task in asyncio.all_tasks() if task.get_name().startswith("evertick ")]
    await asyncio.wait_for(asyncio.gather(*left, return_exceptions=True), PATIENCE)
    [said] = [text for text in caplog.messages if "still running after the stop" in text]
    assert f"run {run.id} ({stubborn.name}), duty 'watch'" in said


async def insist(may_end: asyncio.Event) -> None:
    while not may_end.is_set():
        try:
            await may_end.wait()
        except asyncio.CancelledError:
            continue
