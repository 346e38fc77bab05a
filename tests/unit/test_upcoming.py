"""Upcoming fires in order, with overrides and blackouts."""

from __future__ import annotations

from itertools import islice
from typing import Any

from planning import at, bound

from evertick.model import Occurrence
from evertick.plan.upcoming import Expected, Foreseen, upcoming_fires
from evertick.when import Calendar, Every, Once, from_us
from evertick.when.moment import LATEST

HOURLY = bound(Every("1h"))


def seen(*schedules: Expected, count: int = 4, until: int = LATEST) -> list[tuple[int, str, int, str | None]]:
    return [each[:4] for each in islice(upcoming_fires(schedules, at(11, 30), until), count)]


def test_fires_of_several_schedules_are_ordered_by_time_and_key() -> None:
    found = seen(Expected(key="b", rule=HOURLY), Expected(key="a", rule=bound(Every("2h"))))
    assert [(each[1], each[2]) for each in found] == [("a", at(12)), ("b", at(12)), ("b", at(13)), ("a", at(14))]


def test_a_skipped_fire_is_marked_and_a_moved_one_is_at_its_new_time() -> None:
    decided = (
        Occurrence(fire_at=at(12), kind="skip"),
        Occurrence(fire_at=at(13), kind="move", to=at(14, 30)),
        Occurrence(fire_at=at(15), kind="done"),
    )
    assert seen(Expected(key="k", rule=HOURLY, occurrences=decided)) == [
        (at(12), "k", at(12), "skipped"),
        (at(14), "k", at(14), None),
        (at(14, 30), "k", at(13), "moved"),
        (at(16), "k", at(16), None),
    ]


def test_a_moved_one_shot_is_shown_without_a_cursor() -> None:
    once = bound(Once(from_us(at(12))))
    decided = (Occurrence(fire_at=at(12), kind="move", to=at(20)),)
    assert seen(Expected(key="k", rule=once, occurrences=decided)) == [(at(20), "k", at(12), "moved")]


def test_held_fires_are_at_the_end_of_the_blackout_after_earlier_ones() -> None:
    freeze = Calendar.blackout("freeze", from_us(at(11)), from_us(at(13, 30)))
    held = Expected(key="held", rule=HOURLY, blackout=freeze, blackout_fate="latest")
    assert seen(held, Expected(key="k", rule=bound(Every("45m")))) == [
        (at(12), "k", at(12), None),
        (at(12, 45), "k", at(12, 45), None),
        (at(13, 30), "held", at(12), "held"),
        (at(13, 30), "held", at(13), "held"),
    ]
    dropped = Expected(key="k", rule=HOURLY, blackout=freeze)
    assert [each[3] for each in seen(dropped, count=3)] == ["dropped", "dropped", None]


def test_a_folded_blackout_shows_the_newest_fire_if_it_runs_and_the_first_if_it_is_dropped() -> None:
    freeze = Calendar.blackout("freeze", from_us(at(11)), from_us(at(14, 30)))

    def folded(**fields: Any) -> list[Foreseen]:
        one = Expected(key="k", rule=HOURLY, blackout=freeze, **fields)
        return list(islice(upcoming_fires([one], at(11, 30), LATEST, is_folded=True), 3))

    assert folded(blackout_fate="latest") == [
        Foreseen(at(14, 30), "k", at(14), "held", 3),
        Foreseen(at(15), "k", at(15), None),
        Foreseen(at(16), "k", at(16), None),
    ]
    assert folded()[:2] == [Foreseen(at(12), "k", at(12), "dropped", 3), Foreseen(at(15), "k", at(15), None)]
    assert [each.fire_at for each in folded(blackout_fate="all")] == [at(12), at(13), at(14)]
    # One run for the whole blackout counts as one of the remaining fires.
    assert len(folded(blackout_fate="latest", left=2)) == 2


def test_no_more_fires_are_shown_than_max_fires_allows() -> None:
    decided = (Occurrence(fire_at=at(12), kind="move", to=at(12, 10)),)
    assert [each[2] for each in seen(Expected(key="k", rule=HOURLY, left=2, occurrences=decided))] == [at(12), at(13)]


def test_nothing_after_the_end_is_shown() -> None:
    assert seen(Expected(key="k", rule=HOURLY), until=at(12, 59)) == [(at(12), "k", at(12), None)]
