"""Runs blocked by a limit, on the command line."""

from __future__ import annotations

import threading
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from evertick import Scheduler


def test_show_and_history_name_the_limit_that_blocks_a_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evertick: Callable[..., Result]
) -> None:
    url = f"sqlite:///{tmp_path}/limits.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url)
    begun, may_end = threading.Event(), threading.Event()

    @scheduler.task(concurrency=1, concurrency_key="press")
    def press() -> None:
        begun.set()
        may_end.wait(20)

    with scheduler:
        press.sync.enqueue()
        assert begun.wait(20)
        held = press.sync.enqueue()
        while scheduler.sync.runs(states=["waiting"]):  # until a claim has blocked it
            pass
        shown, listed = evertick("show", held.id).stdout, evertick("history").stdout
        may_end.set()
    assert "blocked (concurrency)" in shown
    assert "the concurrency limit of 'press' is reached" in shown
    assert "concurrency" in listed
