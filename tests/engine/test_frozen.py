"""A node that was frozen for longer than its lease starts nothing that it had asked for before."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from evertick import Context, Scheduler, Verdict
from evertick.clock import Clock
from evertick.scheduler.scheduler import Parts
from evertick.store.base import Claim, TaskTerms
from evertick.store.sqlite import SqliteStore

LEASE_SECONDS = 6.0


class FreezingClock(Clock):
    """Time that has passed without this process."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen_seconds = 0.0

    def elapsed(self) -> float:
        return super().elapsed() + self.frozen_seconds


class FreezingStore(SqliteStore):
    """The first claim that is not empty is answered, but its answer arrives only after two leases."""

    def __init__(self, url: str, clock: FreezingClock) -> None:
        super().__init__(url, clock=clock)
        self._freezing = clock
        self.unheard: list[tuple[str, int]] = []

    async def claim(
        self, app: str, node: str, queues: Sequence[str], tasks: Mapping[str, TaskTerms], limit: int
    ) -> Claim:
        claim = await super().claim(app, node, queues, tasks, limit)
        if claim.runs and not self.unheard:
            self.unheard = [(run.id, run.fence) for run in claim.runs]
            self._freezing.frozen_seconds += 2 * LEASE_SECONDS
        return claim


async def test_a_claim_whose_answer_arrives_after_the_lease_is_released_and_not_started(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    clock, stores, started = FreezingClock(), list[FreezingStore](), list[tuple[str, int]]()
    done = asyncio.Event()

    def open_store(url: str) -> Any:
        stores.append(FreezingStore(url, clock))
        return stores[-1]

    scheduler = Scheduler(f"sqlite:///{tmp_path}/jobs.db", lease=LEASE_SECONDS)
    scheduler.runtime.parts = Parts(clock=clock, open_store=open_store)

    @scheduler.task
    async def job(ctx: Context) -> None:
        started.append((ctx.run_id, ctx.fence))
        done.set()

    async with scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(20):
            await done.wait()
    ended = await scheduler.get_run(run.id)
    await scheduler.close()
    [(_, unheard)] = stores[0].unheard
    [(started_run, fence)] = started
    assert started_run == run.id
    assert fence > unheard
    assert (ended.verdict, ended.attempts, ended.losses) == (Verdict.SUCCEEDED, 1, 0)
    assert "lease expired during a claim" in caplog.text
