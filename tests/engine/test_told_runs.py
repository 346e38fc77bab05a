"""What the log says of a run says which run it is, in words and for programs."""

from __future__ import annotations

import logging
import threading

import pytest

from evertick import Scheduler


def test_a_failure_is_told_with_its_run_and_at_debug_every_beginning_and_end(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, ended = Scheduler("sqlite://"), threading.Semaphore(0)

    @scheduler.task
    def succeed() -> None: ...

    @scheduler.task
    def fail() -> None:
        raise ValueError("no paper")

    for kind in ("succeeded", "failed"):
        scheduler.on(kind, lambda event: ended.release())
    caplog.set_level(logging.DEBUG, "evertick")
    with scheduler:
        good, bad = succeed.sync.enqueue().id, fail.sync.enqueue().id
        assert ended.acquire(timeout=20)
        assert ended.acquire(timeout=20)
    told = {
        (record.levelname, vars(record)["task"], vars(record)["run"], record.getMessage().splitlines()[0])
        for record in caplog.records
        if hasattr(record, "run")
    }
    assert ("DEBUG", "succeed", good, f"succeed: run {good} begins") in told
    assert ("DEBUG", "succeed", good, f"succeed: run {good} has ended: succeeded") in told
    assert ("DEBUG", "fail", bad, f"fail: run {bad} begins") in told
    assert [task for level, task, run, _ in told if level == "ERROR" and run == bad] == ["fail"]


def test_without_debug_nothing_is_told_of_what_goes_well(caplog: pytest.LogCaptureFixture) -> None:
    scheduler, ended = Scheduler("sqlite://"), threading.Event()

    @scheduler.task
    def succeed() -> None: ...

    scheduler.on("succeeded", lambda event: ended.set())
    caplog.set_level(logging.INFO, "evertick")
    with scheduler:
        run = succeed.sync.enqueue().id
        assert ended.wait(20)
    assert run not in caplog.text
