"""A crontab of every kind of line, imported, read as a configuration, with the fires that Debian's cron makes."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from evertick import Context, Shell
from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration
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


def configuration_of(path: Path, honours_cron_tz: bool) -> str:
    options = CrontabOptions(tz="Europe/Berlin", honours_cron_tz=honours_cron_tz)
    imported = read_crontab(CRONTAB.read_text(), options)
    lost = [note.text for note in imported.lost]
    assert len(lost) == 1
    assert lost[0].startswith("@reboot")
    text = to_toml(imported, [])
    path.write_text(f'database.url = "sqlite://"\n{text}')
    return text


class Recorder:
    """In the place of the shell: writes down what would have been run, and when."""

    name = "shell"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, fired: dict[str, list[datetime]]) -> None:
        self._fired = fired

    def prepare(self, args: bytes) -> dict[str, Any]:
        return {}

    async def execute(self, context: Context, arguments: dict[str, Any]) -> None:
        self._fired[context.task].append(context.fire_at)


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
async def test_every_job_fires_when_debians_cron_fires_it(
    start: datetime, honours_cron_tz: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "evertick.toml"
    jobs = tomllib.loads(configuration_of(path, honours_cron_tz))["jobs"]
    fired: dict[str, list[datetime]] = {name: [] for name in jobs}
    monkeypatch.setattr(Shell, "make_driver", lambda *_: Recorder(fired))
    scheduler = scheduler_from(load_configuration(path, environ={}))
    async with virtual_time(scheduler, start=start) as kit:
        await kit.advance(WEEK)
        assert kit.now == start + WEEK
        assert {run.verdict for run in kit.runs()} == {"succeeded"}
    assert len(fired) >= 30
    assert fired == {name: by_debian(job, start) for name, job in jobs.items()}
    assert sum(map(len, fired.values())) > 10_000 + 1_000
