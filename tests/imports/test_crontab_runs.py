"""A crontab of every kind of line, imported, running in virtual time with the fires that Debian's cron makes."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from evertick import Context, Scheduler
from evertick.imports.crontab import CrontabOptions, read_crontab
from evertick.imports.toml import to_toml
from evertick.testing import virtual_time

CRONTAB = Path(__file__).parent / "crontab_of_every_kind"
WEEK = timedelta(days=7)
NICKNAMES = {
    "@hourly": "0 * * * *",
    "@daily": "0 0 * * *",
    "@midnight": "0 0 * * *",
    "@weekly": "0 0 * * 0",
    "@monthly": "0 0 1 * *",
    "@yearly": "0 0 1 1 *",
    "@annually": "0 0 1 1 *",
}


def jobs_of(honours_cron_tz: bool) -> dict[str, dict[str, Any]]:
    options = CrontabOptions(tz="Europe/Berlin", honours_cron_tz=honours_cron_tz)
    imported = read_crontab(CRONTAB.read_text(), options)
    lost = [note.text for note in imported.lost]
    assert len(lost) == 1
    assert lost[0].startswith("@reboot")
    found: dict[str, dict[str, Any]] = tomllib.loads(to_toml(imported, []))["jobs"]
    assert len(found) == len(imported.jobs) >= 30
    return found


def by_debian(job: dict[str, Any], start: datetime) -> list[datetime]:
    expression = NICKNAMES.get(job["cron"], job["cron"])
    walk = CronSim(expression, start.astimezone(ZoneInfo(job["tz"])))
    # At the end of a walk there may be no further moment for years.
    return [at.astimezone(UTC) for at in takewhile(lambda at: at <= start + WEEK, walk)]


@pytest.mark.parametrize(
    ("start", "honours_cron_tz"),
    [
        (datetime(2026, 3, 25, 12, 30, tzinfo=UTC), False),  # the clock goes forward in Berlin, a month begins
        (datetime(2026, 10, 21, 12, 30, tzinfo=UTC), True),  # it goes back
        (datetime(2027, 12, 27, 12, 30, tzinfo=UTC), False),  # a year ends
        (datetime(2028, 2, 25, 12, 30, tzinfo=UTC), True),  # a leap day
    ],
)
async def test_every_job_fires_when_debians_cron_fires_it(start: datetime, honours_cron_tz: bool) -> None:
    jobs = jobs_of(honours_cron_tz)
    fired: dict[str, list[datetime]] = {name: [] for name in jobs}
    scheduler = Scheduler("sqlite://")

    async def run(ctx: Context) -> None:
        fired[ctx.task].append(ctx.fire_at)

    for name, job in jobs.items():
        policies = {"overlap": job["overlap"], "catch_up": job["catch_up"]}
        scheduler.cron(job["cron"], tz=job["tz"], name=name, **policies)(run)  # type: ignore[arg-type]
    async with virtual_time(scheduler, start=start) as kit:
        await kit.advance(WEEK)
        assert kit.now == start + WEEK
        assert {run.verdict for run in kit.runs()} == {"succeeded"}
    assert fired == {name: by_debian(job, start) for name, job in jobs.items()}
    assert sum(map(len, fired.values())) > 10_000 + 1_000
