"""A ledger with a run in every state, made by a real node."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager

from evertick import Redis, Scheduler

__all__ = ["every_state"]

_PATIENCE_SECONDS = 30


@contextmanager
def every_state(url: str) -> Iterator[dict[str, str]]:
    """The id of a run by its state, while the node runs. At the end what runs and what is blocked by it has ended."""
    scheduler = Scheduler(url, drivers=["function", "redis"], stop_timeout="30s", poll_interval="1s")
    # No server answers there: what is dispatched stays on its way.
    scheduler.connect("redis", "redis://127.0.0.1:1")
    build = scheduler.job("build", Redis("docker"))
    may_end = threading.Event()

    @scheduler.task(concurrency=1)
    def import_orders() -> None:
        may_end.wait(_PATIENCE_SECONDS)

    @scheduler.task
    def send_mail() -> None: ...

    scheduler.sync.add(key="unknown", when="@yearly", task="known-to-no-node")
    # A node that starts looks for such runs at once.
    parked = scheduler.sync.trigger("unknown").id
    with scheduler:
        ids = {
            "parked": parked,
            "done": send_mail.sync.enqueue().id,
            "running": import_orders.sync.enqueue().id,
            "dispatched": build.sync.enqueue().id,
            "waiting": send_mail.options(delay="1h").sync.enqueue().id,
        }
        _wait(scheduler, {run_id: state for state, run_id in ids.items()})
        ids["blocked"] = import_orders.sync.enqueue().id
        _wait(scheduler, {ids["blocked"]: "blocked"})
        try:
            yield ids
        finally:
            may_end.set()
        _wait(scheduler, {ids["running"]: "done", ids["blocked"]: "done"})


def _wait(scheduler: Scheduler, states: dict[str, str]) -> None:
    end = time.monotonic() + _PATIENCE_SECONDS
    while wrong := {run_id for run_id, state in states.items() if scheduler.sync.get_run(run_id).state != state}:
        assert time.monotonic() < end, wrong
        time.sleep(0.02)
