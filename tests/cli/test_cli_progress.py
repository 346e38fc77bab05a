"""Progress of long work without a terminal."""

from __future__ import annotations

import asyncio

import pytest

from evertick.cli.show import progress as module
from evertick.cli.show.progress import progress, repeated


class Elapsed:
    """A clock that the test moves."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def elapsed(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    made = Elapsed()
    monkeypatch.setattr(module, "system_clock", made)
    return made


def test_progress_is_printed_at_intervals_and_not_for_every_step(clock, capsys):
    with progress("pages freed") as report:
        for done in range(0, 30_000, 1_000):
            clock.seconds += 0.5
            report(done, 30_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "pages freed: 9,000 of 30,000",
        "pages freed: 19,000 of 30,000",
        "pages freed: 29,000 of 30,000",
    ]


def test_short_work_prints_no_progress(clock, capsys):
    with progress("paused") as report:
        report(3, None)
    assert capsys.readouterr().err == ""


def test_work_of_unknown_size_shows_only_the_finished_part(clock, capsys):
    with progress("paused") as report:
        clock.seconds = 6
        report(1_234, None)
    assert capsys.readouterr().err == "paused: 1,234\n"


async def test_waiting_is_reported_at_growing_intervals(clock, capsys, monkeypatch):
    slept = list[float]()

    async def sleep(seconds: float) -> None:
        slept.append(seconds)
        clock.seconds += seconds
        await asyncio.Event().wait() if len(slept) > 6 else None

    monkeypatch.setattr(module.asyncio, "sleep", sleep)
    with progress("backfilling") as report:
        async with repeated(report, 3):
            for _ in range(20):
                await _turn()
    assert slept == [5, 10, 20, 40, 60, 60, 60]
    assert capsys.readouterr().err == "backfilling: 0 of 3\n" * 6


async def _turn() -> None:
    """Let other tasks run."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


def test_as_json_no_progress_is_printed(clock, capsys):
    with progress("paused", is_quiet=True) as report:
        clock.seconds = 6
        report(1, None)
    assert capsys.readouterr().err == ""
