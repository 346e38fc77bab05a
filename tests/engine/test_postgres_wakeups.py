"""Wake-ups between nodes on PostgreSQL are a matter of time, never of what is in the ledger."""

from __future__ import annotations

import asyncio
from collections import Counter
from statistics import median

import pytest

from evertick import Constant, Retry, Run, Scheduler, State
from evertick.store.postgres import wakeup
from evertick.store.postgres.wakeup import Listener

PATIENCE = 30.0
POLL_SECONDS = 2.0
ROUNDS = 5


class Pair:
    """A node that works, and a program that only enqueues."""

    def __init__(self, url: str, poll_interval: float) -> None:
        self.node = Scheduler(url, poll_interval=poll_interval, node_name="worker")
        self.started: asyncio.Queue[int] = asyncio.Queue()
        self.program = Scheduler(url, concurrency=0, node_name="program")
        self.echo = self.program.task(lambda number: None, name="echo")

        @self.node.task
        async def echo(number: int) -> None:
            self.started.put_nowait(number)

        @self.node.task(retry=Constant("1ms", attempts=2))
        async def stumble() -> None:
            raise Retry

        self.stumble = self.program.task(lambda: None, name="stumble")

    async def latency(self, number: int) -> float:
        """Seconds from a commit of the one to the start at the other."""
        loop = asyncio.get_running_loop()
        await self.echo.enqueue(number=number)
        began = loop.time()
        assert await asyncio.wait_for(self.started.get(), PATIENCE) == number
        return loop.time() - began

    async def settled(self) -> list[Run]:
        """All runs, when each has its verdict."""
        async with asyncio.timeout(PATIENCE):
            while True:
                runs = await self.program.runs(limit=1000)
                if all(run.state is State.DONE for run in runs):
                    return runs
                await asyncio.sleep(0.05)


async def test_what_another_program_enqueues_starts_without_any_poll(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Nor is there the look that a node takes where it hears nothing.
    monkeypatch.setattr(wakeup, "POLL_SECONDS", 3600.0)
    pair = Pair(postgres_url, poll_interval=3600)
    async with pair.node:
        # The first may be found by the look with which everything begins.
        for number in range(3):
            assert await pair.latency(number) < PATIENCE
    await pair.program.close()


@pytest.mark.parametrize("are_heard", [True, False])
async def test_dropping_every_message_changes_the_latency_and_not_the_ledger(
    postgres_url: str, monkeypatch: pytest.MonkeyPatch, are_heard: bool
) -> None:
    if not are_heard:
        monkeypatch.setattr(Listener, "_on_notify", lambda *message: None)
    pair = Pair(postgres_url, poll_interval=POLL_SECONDS)
    async with pair.node:
        latencies = [await pair.latency(number) for number in range(ROUNDS)]
        await pair.stumble.enqueue()
        runs = await pair.settled()
    await pair.program.close()
    print(f"messages are {'heard' if are_heard else 'dropped'}: {[round(each, 3) for each in latencies]}")
    assert (median(latencies) < POLL_SECONDS / 2) is are_heard
    assert Counter((run.task, str(run.verdict), run.attempts, run.losses) for run in runs) == {
        ("echo", "succeeded", 1, 0): ROUNDS,
        ("stumble", "failed", 2, 0): 1,
    }


async def test_where_no_wake_up_can_be_heard_a_node_looks_every_second(postgres_url: str) -> None:
    pair = Pair(f"{postgres_url}&listen=off", poll_interval=3600)
    async with pair.node:
        latencies = [await pair.latency(number) for number in range(3)]
    await pair.program.close()
    assert median(latencies) < 5


async def test_while_the_line_for_wake_ups_is_lost_a_node_looks_every_second(postgres_url: str) -> None:
    # No server listens on that port.
    nowhere = "postgresql://127.0.0.1:1/postgres"
    pair = Pair(f"{postgres_url}&listen={nowhere}", poll_interval=3600)
    async with pair.node:
        latencies = [await pair.latency(number) for number in range(3)]
    await pair.program.close()
    assert median(latencies) < 5
