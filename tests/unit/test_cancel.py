"""Tasks are ended even if a cancellation is lost."""

from __future__ import annotations

import asyncio

from evertick.aio.cancel import cancel_reliably


async def test_a_task_that_misses_a_cancellation_is_cancelled_again() -> None:
    missed = 0

    async def ignores_first_cancel() -> None:
        nonlocal missed
        while True:
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                missed += 1
                if missed > 2:
                    raise

    async def over() -> None: ...

    tasks = [asyncio.create_task(ignores_first_cancel()), asyncio.create_task(over())]
    await asyncio.sleep(0)
    await cancel_reliably(tasks, seconds=30)
    assert tasks[0].cancelled()
    assert not tasks[1].cancelled()
    assert missed == 3


async def test_a_task_that_never_ends_is_abandoned_after_the_timeout() -> None:
    may_end = asyncio.Event()

    async def stubborn() -> None:
        while not may_end.is_set():
            try:
                await may_end.wait()
            except asyncio.CancelledError:
                continue

    task = asyncio.create_task(stubborn())
    await asyncio.sleep(0)
    await cancel_reliably([task], seconds=0.6)
    assert not task.done()
    may_end.set()
    await task
