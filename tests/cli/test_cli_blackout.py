"""Commands about a schedule in a blackout, and about its calendar."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from typing import Literal

import pytest

from evertick import Calendar, Cron, Every, Scheduler
from evertick.cli.show.words import now

OPENS = (now() + timedelta(hours=8)).replace(minute=0, second=0, microsecond=0)


@pytest.fixture
def held(database):
    """Add a schedule of every 15 minutes with a blackout since yesterday and for the next hours."""

    def add(fate: Literal["drop", "latest", "all"]) -> None:
        scheduler = Scheduler(concurrency=0)
        scheduler.sync.set_calendar(Calendar.blackout("nights", OPENS - timedelta(days=1), OPENS))
        scheduler.sync.add(
            key="sync", when=Cron("*/15 * * * *"), task="make_report", blackout="nights", blackout_fate=fate
        )
        scheduler.sync.close()

    return add


def _row_of_sync(text: str) -> list[str]:
    return next(re.split(r"  +", line) for line in text.splitlines() if line.startswith("sync "))


@pytest.mark.parametrize("fate", ["drop", "latest"])
def test_list_shows_the_end_of_the_blackout_as_the_next_fire(held, evertick, fate):
    held(fate)
    row = _row_of_sync(evertick("list").stdout)
    assert row[3].startswith("in ")
    assert row[4] == f"{OPENS:%Y-%m-%d %H:%M:%S}Z"


def test_list_shows_the_end_of_the_blackout_for_an_after_end_schedule(held, evertick):
    held("latest")
    scheduler = Scheduler(concurrency=0)
    scheduler.sync.add(
        key="after", when=Every("15m", after="end"), task="make_report", blackout="nights", blackout_fate="latest"
    )
    scheduler.sync.close()
    lines = evertick("list").stdout.splitlines()
    assert [re.split(r"  +", line)[4] for line in lines if line.startswith(("after ", "sync "))] == [
        f"{OPENS:%Y-%m-%d %H:%M:%S}Z"
    ] * 2


def test_preview_folds_held_fires_into_one_line_and_fills_the_count_with_fires(held, ask, evertick):
    held("latest")
    first, *rest = ask("preview", "sync", "--count", "10")
    assert len(rest) == 9
    assert (first["prospect"], datetime.fromisoformat(first["at"])) == ("held", OPENS)
    assert datetime.fromisoformat(first["fire_at"]) == OPENS - timedelta(minutes=15)
    assert first["moments"] == (OPENS - now()) // timedelta(minutes=15)
    assert [(each["prospect"], each["moments"]) for each in rest] == [(None, 1)] * 9
    text = evertick("preview", "sync").stdout
    assert f"{first['moments']} moments held by its blackout; the newest runs at {OPENS:%Y-%m-%d %H:%M:%S}Z" in text
    assert len(ask("show", "sync")["upcoming"]) == 5


def test_preview_shows_dropped_fires_in_one_line(held, ask, evertick):
    held("drop")
    first, *rest = ask("preview", "sync", "--count", "3")
    assert (first["prospect"], len(rest)) == ("dropped", 3)
    assert re.search(r"\d+ moments dropped by its blackout$", evertick("preview", "sync").stdout, re.MULTILINE)


def test_a_calendar_without_a_zone_uses_the_zones_of_its_schedules(database, evertick):
    hour = now().astimezone(UTC).hour
    scheduler = Scheduler(concurrency=0)
    # Open in this hour in UTC, which is another hour in India and in New York.
    open_now = Calendar("shift", include=[f"{hour:02}:00-{hour:02}:59"])
    scheduler.sync.set_calendar(open_now)
    assert re.search(r"^Now +open .*in UTC; a rule that uses it", evertick("calendar", "show", "shift").stdout, re.M)
    for key, zone in {"east": "Asia/Kolkata", "west": "America/New_York"}.items():
        scheduler.sync.add(key=key, when=Every("15m", tz=zone), task="make_report", blackout="shift")
    scheduler.sync.close()
    text = evertick("calendar", "show", "shift").stdout
    assert re.search(r"^Now +closed until \S+ \S+ in America/New_York\n +closed until .* in Asia/Kolkata$", text, re.M)
