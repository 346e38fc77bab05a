"""The worker on the page of the contract works for a real ledger, over a real Redis."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import pytest
from pages import ROOT, files

from evertick import Redis, Run, Scheduler, State, Verdict
from evertick.driver.queue.contract import MESSAGE_MAX_BYTES, REPORT_MAX_BYTES, DispatchMessage, WorkerReport
from evertick.driver.queue.nats_client import NatsNames
from evertick.driver.queue.redis_broker import KILL_CHANNEL, kill_key, taken_key
from servers.broker import Broker, redis_server

PAGE = ROOT / "docs/reference/worker-contract.md"
PROGRAM = "import json, sys; job = json.load(sys.stdin); print(job['args']['word'], job['attempt'])"


@pytest.fixture
def server() -> Iterator[Broker]:
    with redis_server(is_durable=False) as made:
        yield made


@pytest.fixture
async def node(server: Broker, tmp_path: Path) -> AsyncIterator[Scheduler]:
    made = Scheduler(f"sqlite:///{tmp_path}/ledger.db", drivers=["redis"], lease="2s", poll_interval="200ms")
    made.connect("redis", server.url)
    made.job("say", Redis("docker", progress_timeout="1s"))
    async with made:
        yield made


def start_worker(server: Broker, folder: Path, *command: str) -> subprocess.Popen[bytes]:
    [block] = [each for each in files(PAGE) if each.file == "worker.py"]
    block.save(folder)
    arguments = ["worker.py", "127.0.0.1", str(server.port), "docker", *command]
    return subprocess.Popen([sys.executable, *arguments], cwd=folder)


async def ended(node: Scheduler, run: Run) -> Run:
    while (found := await node.get_run(run.id)).state is not State.DONE:
        await asyncio.sleep(0.01)
    return found


async def test_the_worker_of_the_page_does_a_run(node: Scheduler, server: Broker, tmp_path: Path) -> None:
    worker = start_worker(server, tmp_path, sys.executable, "-c", PROGRAM)
    try:
        run = await ended(node, await node.runtime.tasks["say"].enqueue(word="hello"))
    finally:
        worker.kill()
        worker.wait()
    assert (run.verdict, run.result) == (Verdict.SUCCEEDED, "hello 1")


async def test_the_worker_of_the_page_fails_and_speaks_and_hears_a_cancel(
    node: Scheduler, server: Broker, tmp_path: Path
) -> None:
    script = "if grep -q wrong; then exit 3; fi; exec sleep 1000"
    worker = start_worker(server, tmp_path, "sh", "-c", script)
    try:
        failed = await ended(node, await node.runtime.tasks["say"].enqueue(word="wrong"))
        run = await node.runtime.tasks["say"].enqueue(word="long")
        while (found := await node.get_run(run.id)).dispatched is None or found.dispatched.taken_at is None:
            await asyncio.sleep(0.01)
        await asyncio.sleep(1.5)  # longer than it may be silent
        assert (await node.get_run(run.id)).losses == 0
        await node.cancel(run.id)
        cancelled = await ended(node, run)
    finally:
        worker.kill()
        worker.wait()
    assert (failed.verdict, failed.error) == (Verdict.FAILED, "exit code 3")
    assert cancelled.verdict is Verdict.CANCELLED


def test_every_field_and_every_name_on_the_wire_is_on_the_page() -> None:
    text = PAGE.read_text(encoding="utf-8")
    names = NatsNames("evertick")
    expected = [
        *(f"`{name}`" for name in (*DispatchMessage.__struct_fields__, *WorkerReport.__struct_fields__)),
        taken_key("<run>", 0).replace("0", "<fence>"),
        kill_key("<run>", 0).replace("0", "<fence>"),
        KILL_CHANNEL,
        *(names.jobs_stream, names.reports_stream, names.marks_stream, names.events_stream, names.all_kills),
        f"{MESSAGE_MAX_BYTES // 1024} KiB",
        f"{REPORT_MAX_BYTES // 1024} KiB",
    ]
    assert [each for each in expected if each not in text] == []
