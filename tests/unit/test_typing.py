"""A user's type checker sees exactly the parameters of a task, without the context."""

from __future__ import annotations

from pathlib import Path

from type_checker import assert_wrong_as_marked

PROGRAM = """
from evertick import Context, Run, Scheduler

scheduler = Scheduler("sqlite://")

@scheduler.task
async def bare(ctx: Context, x: int) -> str: return str(x)

@scheduler.task(timeout="1m")
def configured(to: str, times: int = 1) -> None: ...

@scheduler.cron("0 9 * * *", overlap="queue", retry_on=ValueError)
async def nightly(ctx: Context) -> None: ...

async def use() -> None:
    run: Run = await bare.enqueue(x=1)
    await bare.enqueue(1)
    await configured.options(delay="10m").enqueue("me", times=2)
    configured.sync.enqueue(to="me")
    await nightly.enqueue()
    await bare.enqueue(x="one")  # wrong
    await configured.enqueue()  # wrong
    await nightly.enqueue(1)  # wrong

@scheduler.every("1s", overlap="sometimes")  # wrong
async def odd() -> None: ...
"""


def test_a_type_checker_knows_what_a_task_takes(tmp_path: Path) -> None:
    assert_wrong_as_marked(PROGRAM, tmp_path)
