"""How far long work has come, where nobody looks at a terminal."""

from __future__ import annotations

import asyncio

import pytest

from evertick.cli.show import progress as module
from evertick.cli.show.progress import progress, repeated


class Elapsed:
    """A clock that stands still until it is told."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def elapsed(self) -> float:
        return self.seconds


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Elapsed:
    made = Elapsed()
    monkeypatch.setattr(module, "system_clock", made)
    return made


def test_a_line_comes_now_and_then_and_not_for_every_step(clock, capsys):
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


def test_what_is_over_soon_says_nothing(clock, capsys):
    with progress("paused") as report:
        report(3, None)
    assert capsys.readouterr().err == ""


def test_where_nobody_knows_how_much_there_is_only_what_is_done_is_told(clock, capsys):
    with progress("paused") as report:
        clock.seconds = 6
        report(1_234, None)
    assert capsys.readouterr().err == "paused: 1,234\n"


async def test_what_waits_for_others_is_told_again_and_ever_more_rarely(clock, capsys, monkeypatch):
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
    """Let other tasks go on."""
    turned = asyncio.get_running_loop().create_future()
    asyncio.get_running_loop().call_soon(turned.set_result, None)
    await turned


def test_beside_json_nothing_is_told(clock, capsys):
    with progress("paused", is_quiet=True) as report:
        clock.seconds = 6
        report(1, None)
    assert capsys.readouterr().err == ""
