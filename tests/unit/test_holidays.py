"""Calendars: their users, their removal, and public holidays as dates."""

from __future__ import annotations

import builtins
from collections.abc import AsyncIterator
from datetime import UTC, date, datetime
from typing import Any

import pytest

from evertick import Calendar, Cron, InvalidInput, NotFound, Refused, Scheduler
from evertick.when import to_us
from evertick.when.public_holidays import holiday_calendar, holiday_dates

# --- public holidays


def test_the_holidays_of_a_part_of_a_country_are_its_own() -> None:
    bavaria = holiday_dates("DE", subdivision="BY", years=2026)
    assert date(2026, 1, 6) in bavaria, "Epiphany"
    assert date(2026, 1, 6) not in holiday_dates("DE", years=2026)
    assert bavaria == sorted(set(bavaria))


def test_a_calendar_is_closed_on_holidays() -> None:
    calendar = holiday_calendar("de", "DE", years=[2026], tz="Europe/Berlin")
    noon = Cron("0 12 * * *", tz="Europe/Berlin", calendar=calendar)
    days = [at.date() for at in noon.upcoming(datetime(2026, 12, 23, tzinfo=UTC), 4)]
    assert [day.day for day in days] == [23, 24, 27, 28]


def test_a_calendar_of_working_days_is_closed_at_weekends_too() -> None:
    calendar = holiday_calendar("de", "DE", years=[2026], days="mon-fri")
    noon = Cron("0 12 * * *", calendar=calendar)
    days = [at.date().day for at in noon.upcoming(datetime(2026, 12, 23, tzinfo=UTC), 3)]
    assert days == [23, 24, 28]


def test_a_calendar_may_be_open_on_holidays_alone() -> None:
    calendar = holiday_calendar("free", "DE", years=[2026], on_holidays="open")
    noon = Cron("0 12 * * *", calendar=calendar)
    assert [at.date() for at in noon.upcoming(datetime(2026, 12, 23, tzinfo=UTC), 3)] == [
        date(2026, 12, 25),
        date(2026, 12, 26),
    ]


def test_holiday_dates_can_be_passed_to_a_calendar_of_weekdays() -> None:
    calendar = Calendar.weekdays("de", holidays=holiday_dates("DE", years=range(2026, 2028)))
    assert not calendar.permits(to_us(datetime(2027, 1, 1, 12, tzinfo=UTC)))
    assert calendar.permits(to_us(datetime(2027, 1, 4, 12, tzinfo=UTC)))


def test_a_stored_calendar_is_plain_data() -> None:
    calendar = holiday_calendar("de", "DE", years=2026)
    again = Calendar.from_json(calendar.to_json())
    assert again == calendar
    assert "2026-12-25" in again.exclude


@pytest.mark.parametrize(
    ("wrong", "expected"),
    [
        ({"country": "XX"}, "country: 'XX' is not known"),
        ({"country": 5}, "country: 5 is not a code"),
        ({"subdivision": "QQ"}, "subdivision: 'QQ' is not a part of DE; known are .*BY"),
        ({"years": []}, "must be a year or a list of years"),
        ({"years": "2026"}, "must be a year or a list of years"),
        ({"years": [True]}, "must be a year or a list of years"),
        ({"years": 1900}, "outside of 1970 to 2099"),
        ({"years": range(1970, 2099)}, "more than 50 are too many"),
        ({"on_holidays": "shut"}, "neither 'closed' nor 'open'"),
        ({"on_holidays": "open", "days": "mon-fri"}, "only possible with on_holidays='closed'"),
    ],
)
def test_invalid_arguments_of_holidays_are_refused(wrong: dict[str, Any], expected: str) -> None:
    given = {"country": "DE", "years": 2026, **wrong}
    with pytest.raises(InvalidInput, match=expected):
        holiday_calendar("de", given.pop("country"), **given)


def test_without_the_package_the_error_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    load = builtins.__import__

    def missing(name: str, *args: Any, **kwargs: Any) -> Any:
        if name == "holidays":
            raise ImportError("No module named 'holidays'")
        return load(name, *args, **kwargs)

    monkeypatch.setattr(builtins, "__import__", missing)
    with pytest.raises(InvalidInput, match=r"pip install 'evertick\[holidays\]'"):
        holiday_dates("DE", years=2026)


# --- named calendars


@pytest.fixture
async def scheduler() -> AsyncIterator[Scheduler]:
    made = Scheduler("sqlite://", concurrency=0)
    await made.set_calendar(Calendar.weekdays("biz"))
    await made.set_calendar(Calendar.weekdays("biz2"))
    yield made
    await made.close()


async def test_a_calendar_is_found_by_its_name(scheduler: Scheduler) -> None:
    assert (await scheduler.calendar("biz")).include == ("mon-fri",)
    with pytest.raises(NotFound, match="there is no calendar 'gone'"):
        await scheduler.calendar("gone")


async def test_users_of_a_calendar_are_found_by_rule_and_by_blackout(scheduler: Scheduler) -> None:
    await scheduler.add(key="by-rule", when="0 9 * * *; calendar=biz", task="job")
    await scheduler.add(key="bounded", when="0 9 * * *; calendar=biz; end=2030-01-01T00:00:00Z", task="job")
    await scheduler.add(key="another", when="0 9 * * *; calendar=biz2", task="job")
    await scheduler.add(key="by-blackout", when="0 9 * * *", task="job", blackout="biz")
    await scheduler.add(key="none", when="0 9 * * *", task="job", args={"when": "; calendar=biz"})
    assert await scheduler.calendar_users("biz") == ["bounded", "by-blackout", "by-rule"]
    with pytest.raises(NotFound):
        await scheduler.calendar_users("gone")


async def test_a_calendar_that_is_used_cannot_be_removed(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when="0 9 * * *; calendar=biz", task="job")
    with pytest.raises(Refused, match="calendar 'biz' is used by 'k'; change or remove these schedules first"):
        await scheduler.remove_calendar("biz")
    await scheduler.update("k", when="0 9 * * *")
    await scheduler.remove_calendar("biz")
    assert [calendar.name for calendar in await scheduler.calendars()] == ["biz2"]
    with pytest.raises(NotFound):
        await scheduler.remove_calendar("biz")


async def test_of_many_users_of_a_calendar_only_some_are_named(scheduler: Scheduler) -> None:
    await scheduler.add_many({"key": f"k{n:02}", "when": "0 9 * * *; calendar=biz", "task": "job"} for n in range(30))
    with pytest.raises(Refused, match=r"'k00', .*'k09' and others; change"):
        await scheduler.remove_calendar("biz")


async def test_a_changed_calendar_does_not_affect_calendars_with_a_longer_name(scheduler: Scheduler) -> None:
    await scheduler.add(key="mine", when="0 9 * * *; calendar=biz", task="job")
    await scheduler.add(key="other", when="0 9 * * *; calendar=biz2", task="job")
    await scheduler.set_calendar(Calendar.weekdays("biz", days="mon"))
    assert (await scheduler.schedule("mine")).version == 2
    assert (await scheduler.schedule("other")).version == 1
    following = (await scheduler.schedule("mine")).next_fire_at
    assert following is not None
    assert following.weekday() == 0


async def test_a_change_of_a_calendar_has_a_preview(scheduler: Scheduler) -> None:
    await scheduler.add(key="k", when="0 9 * * *; calendar=biz", task="job")
    await scheduler.add(key="other", when="0 9 * * *", task="job")
    [plan] = await scheduler.preview_calendar(Calendar.weekdays("biz", days="mon-sat"))
    assert (plan.key, plan.kind, plan.stays, len(plan.adds), len(plan.removes)) == ("k", "calendar", 10, 2, 0)
    assert {fire.at.weekday() for fire in plan.adds} == {5}
    assert (await scheduler.calendar("biz")).include == ("mon-fri",), "nothing was written"


def test_the_sync_form_works_too() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    scheduler.sync.set_calendar(Calendar.weekdays("biz"))
    assert scheduler.sync.calendar("biz").name == "biz"
    assert scheduler.sync.calendar_users("biz") == []
    assert scheduler.sync.preview_calendar(Calendar("biz", include=["sat"])) == []
    scheduler.sync.remove_calendar("biz")
    assert scheduler.sync.calendars() == []
    scheduler.sync.close()
