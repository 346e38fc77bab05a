"""The position at which a scan for due schedules begins."""

from __future__ import annotations

import pytest

from evertick.clock import Clock
from evertick.engine.fire import ScanPosition
from evertick.store.base import FIRST_PLACE, DuePlace
from evertick.when.moment import SECOND

NOW = 1_000 * SECOND


class Watch(Clock):
    seconds = 500.0

    def elapsed(self) -> float:
        return self.seconds


@pytest.fixture
def watch() -> Watch:
    return Watch()


def seen(watch: Watch, took: float = 0.0) -> ScanPosition:
    """After a complete scan from the start that took this long."""
    outlook = ScanPosition(watch)
    assert outlook.begin() == FIRST_PLACE
    watch.seconds += took
    outlook.note_answer()
    outlook.note_complete(NOW)
    return outlook


def test_most_scans_begin_a_second_before_the_end_of_the_previous_one(watch: Watch) -> None:
    outlook = seen(watch)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    outlook.note_complete(NOW + 7)
    assert outlook.begin() == DuePlace(NOW + 7 - SECOND, 0)


def test_an_incomplete_scan_is_repeated(watch: Watch) -> None:
    outlook = ScanPosition(watch)
    for _ in range(3):
        assert outlook.begin() == FIRST_PLACE
        outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    # An incomplete scan continues at its start position; a full scan follows at its own interval.
    outlook.note_answer()
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    watch.seconds += 1
    for _ in range(3):
        assert outlook.begin() == FIRST_PLACE
        outlook.note_answer()


@pytest.mark.parametrize(("took", "distance"), [(0.0, 1.0), (0.01, 1.0), (0.2, 4.0), (60.0, 10.0)])
def test_a_scan_from_the_start_is_as_rare_as_it_is_expensive(watch: Watch, took: float, distance: float) -> None:
    outlook = seen(watch, took)
    watch.seconds += distance - 0.001
    assert outlook.begin() != FIRST_PLACE
    watch.seconds += 0.002
    assert outlook.begin() == FIRST_PLACE


def test_a_change_causes_a_scan_from_the_start(watch: Watch) -> None:
    outlook = seen(watch)
    outlook.require_full_scan()
    assert outlook.begin() == FIRST_PLACE
    outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)


@pytest.mark.parametrize("is_answered", [False, True])
def test_a_change_during_a_scan_counts_for_the_next_one(watch: Watch, is_answered: bool) -> None:
    outlook = ScanPosition(watch)
    outlook.begin()
    if is_answered:
        outlook.note_answer()
    outlook.require_full_scan()
    outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == FIRST_PLACE
