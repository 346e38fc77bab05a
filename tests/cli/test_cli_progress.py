"""How far long work has come, where nobody looks at a terminal."""

from __future__ import annotations

import pytest

from evertick.cli import progress as module
from evertick.cli.progress import progress


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
    with progress("pages given back") as report:
        for done in range(0, 30_000, 1_000):
            clock.seconds += 0.5
            report(done, 30_000)
    lines = capsys.readouterr().err.splitlines()
    assert lines == [
        "pages given back: 9,000 of 30,000",
        "pages given back: 19,000 of 30,000",
        "pages given back: 29,000 of 30,000",
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


def test_beside_json_nothing_is_told(clock, capsys):
    with progress("paused", is_quiet=True) as report:
        clock.seconds = 6
        report(1, None)
    assert capsys.readouterr().err == ""
