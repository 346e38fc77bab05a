"""Tasks that are dispatched to the queue of a simulation, one for each way to end.

The duration of the work and its timeouts are arguments, because they depend on the pace of the story.
"""

from __future__ import annotations

from typing import Any

import msgspec

from evertick.driver.base import Dispatch, Work
from evertick.job.context import Context
from evertick.model import DispatchMode
from evertick.model.limits import make_concurrency
from evertick.model.retry import Constant

__all__ = ["DISPATCHED_WORKS", "KILLS", "MODES", "QUEUE"]

QUEUE, KILLS = "queue", "kills"
MODES: dict[str, DispatchMode] = {"acked": "ack", "forgotten": "forget"}


class DispatchDriver:
    """Dispatches its run to the queue."""

    name = "handing"
    can_be_cancelled = True
    kill_after = 0

    def prepare(self, args: bytes) -> dict[str, Any]:
        arguments: dict[str, Any] = msgspec.json.decode(args)
        return arguments

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Dispatch:
        names = {"run": context.run_id, "fence": context.fence, "task": context.task, "attempt": context.attempt}
        return Dispatch(
            channel=QUEUE,
            payload={**names, "args": arguments},
            mode=MODES.get(context.task, "finish"),
            ack_timeout=int(arguments["ack"] * 1_000_000),
            progress_timeout=int(arguments["progress"] * 1_000_000),
            kill_channel=KILLS,
        )


def _work(task: str, **terms: Any) -> Work:
    return Work(task=task, driver=DispatchDriver(), hash=task, **terms)


DISPATCHED_WORKS: dict[str, Work] = {
    work.task: work
    for work in (
        _work("built"),
        _work("built_failing", retry=Constant("2s", attempts=3)),
        _work("built_flaky", retry=Constant("1s", attempts=4)),
        _work("built_skipping"),
        _work("built_once", on_lost="fail"),
        _work("built_capped", concurrency=make_concurrency(2, None, "built_capped", {})),
        _work("acked"),
        _work("forgotten"),
    )
}
