"""Where a look for what is due begins."""

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
    """After a look from the very first that took so long, and left nothing undone."""
    outlook = ScanPosition(watch)
    assert outlook.begin() == FIRST_PLACE
    watch.seconds += took
    outlook.note_answer()
    outlook.note_complete(NOW)
    return outlook


def test_most_looks_begin_a_second_before_the_end_of_the_last(watch: Watch) -> None:
    outlook = seen(watch)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    outlook.note_complete(NOW + 7)
    assert outlook.begin() == DuePlace(NOW + 7 - SECOND, 0)


def test_what_was_not_seen_to_its_end_is_looked_for_again(watch: Watch) -> None:
    outlook = ScanPosition(watch)
    for _ in range(3):
        assert outlook.begin() == FIRST_PLACE
        outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    # One that was not, later: from where it began, and when its time has come from the very first.
    outlook.note_answer()
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)
    watch.seconds += 1
    for _ in range(3):
        assert outlook.begin() == FIRST_PLACE
        outlook.note_answer()


@pytest.mark.parametrize(("took", "distance"), [(0.0, 1.0), (0.01, 1.0), (0.2, 4.0), (60.0, 10.0)])
def test_a_look_from_the_very_first_is_as_rare_as_it_is_dear(watch: Watch, took: float, distance: float) -> None:
    outlook = seen(watch, took)
    watch.seconds += distance - 0.001
    assert outlook.begin() != FIRST_PLACE
    watch.seconds += 0.002
    assert outlook.begin() == FIRST_PLACE


def test_news_are_looked_for_from_the_very_first(watch: Watch) -> None:
    outlook = seen(watch)
    outlook.require_full_scan()
    assert outlook.begin() == FIRST_PLACE
    outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == DuePlace(NOW - SECOND, 0)


@pytest.mark.parametrize("is_answered", [False, True])
def test_news_while_a_look_is_under_way_are_for_the_next(watch: Watch, is_answered: bool) -> None:
    outlook = ScanPosition(watch)
    outlook.begin()
    if is_answered:
        outlook.note_answer()
    outlook.require_full_scan()
    outlook.note_answer()
    outlook.note_complete(NOW)
    assert outlook.begin() == FIRST_PLACE
