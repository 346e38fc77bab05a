"""A crontab of every kind of line, imported, read as a configuration, with the fires that Debian's cron makes."""

from __future__ import annotations

import tomllib
from datetime import UTC, datetime, timedelta
from itertools import takewhile
from pathlib import Path
from typing import Any, NamedTuple
from zoneinfo import ZoneInfo

import pytest
from cronsim import CronSim

from evertick import Context, Shell
from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration
from evertick.imports.crontab import CrontabOptions, read_crontab
from evertick.imports.toml import to_toml
from evertick.testing import virtual_time

OF_A_USER, OF_THE_SYSTEM = "crontab_of_every_kind", "crontab_of_the_system"
ZONE = "Europe/Berlin"
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


class Line(NamedTuple):
    """A line of a crontab, parsed independently of the import under test."""

    cron: str
    tz: str
    user: str | None
    program: str


def lines_of(text: str, *, has_users: bool, honours_cron_tz: bool) -> list[Line]:
    found, tz = [], ZONE
    for line in text.splitlines():
        words = line.split()
        if not words or words[0].startswith("#"):
            continue
        name, is_set, value = line.partition("=")
        if is_set and name.strip().isidentifier():
            tz = value if name == "CRON_TZ" and honours_cron_tz else tz
            continue
        fields = 1 if words[0].startswith("@") else 5
        cron, said = " ".join(words[:fields]), words[fields:]
        if cron != "@reboot":
            found.append(Line(NICKNAMES.get(cron, cron), tz, said.pop(0) if has_users else None, said[0]))
    return found


def configuration_of(path: Path, crontab: str, *, has_users: bool, honours_cron_tz: bool) -> str:
    options = CrontabOptions(tz=ZONE, has_users=has_users, honours_cron_tz=honours_cron_tz)
    imported = read_crontab(crontab, options)
    lost = [note.text for note in imported.lost]
    assert len(lost) == 1
    assert lost[0].startswith("@reboot")
    text = to_toml(imported, [])
    path.write_text(f'database.url = "sqlite://"\n{text}')
    return text


class Recorder:
    """In the place of the shell: records which job would run, and when."""

    name = "shell"
    can_be_cancelled = True
    kill_after = 0

    def __init__(self, fired: dict[str, list[datetime]]) -> None:
        self._fired = fired

    def prepare(self, args: bytes) -> dict[str, Any]:
        return {}

    async def execute(self, context: Context, arguments: dict[str, Any]) -> None:
        self._fired[context.task].append(context.fire_at)


def by_debian(line: Line, start: datetime, time: timedelta) -> list[datetime]:
    walk = CronSim(line.cron, start.astimezone(ZoneInfo(line.tz)))
    # At the end of a walk there may be no further moment for years.
    return [at.astimezone(UTC) for at in takewhile(lambda at: at <= start + time, walk)]


FORWARD = datetime(2026, 3, 25, 12, 30, tzinfo=UTC)  # the clock goes forward in Berlin, a month begins
BACK = datetime(2026, 10, 21, 12, 30, tzinfo=UTC)
YEAR_END = datetime(2027, 12, 27, 12, 30, tzinfo=UTC)
LEAP_DAY = datetime(2028, 2, 25, 12, 30, tzinfo=UTC)
# Ten of the eleven thousand fires of a week. They matter only at clock changes.
EVERY_MINUTE = "*\t*\t*\t*\t*\ttick-with-tabs\n"


@pytest.mark.parametrize(
    ("file", "jobs_in_it", "fires", "start", "honours_cron_tz"),
    [
        (OF_A_USER, 33, 1_500, FORWARD, False),
        (OF_A_USER, 33, 1_500, BACK, True),
        (OF_A_USER, 33, 1_500, YEAR_END, False),
        (OF_A_USER, 33, 1_500, LEAP_DAY, True),
        (OF_THE_SYSTEM, 13, 1_000, FORWARD, True),
        (OF_THE_SYSTEM, 13, 1_000, LEAP_DAY, False),
    ],
)
async def test_every_job_fires_when_debians_cron_fires_its_line(
    file: str,
    jobs_in_it: int,
    fires: int,
    start: datetime,
    honours_cron_tz: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    path, crontab = tmp_path / "evertick.toml", (Path(__file__).parent / file).read_text()
    crontab = crontab.replace(EVERY_MINUTE, "")
    reading: Any = {"has_users": file == OF_THE_SYSTEM, "honours_cron_tz": honours_cron_tz}
    jobs = tomllib.loads(configuration_of(path, crontab, **reading))["jobs"]
    lines = dict(zip(jobs, lines_of(crontab, **reading), strict=True))
    assert len(lines) == jobs_in_it
    for name, line in lines.items():
        shell = jobs[name]["shell"]
        assert (shell.get("user"), shell["command"].split()[0]) == (line.user, line.program)
    fired = await fired_by(path, list(jobs), start, WEEK, monkeypatch)
    assert fired == {name: by_debian(line, start, WEEK) for name, line in lines.items()}
    assert sum(map(len, fired.values())) > fires


@pytest.mark.parametrize("turn", [datetime(2026, 3, 29, tzinfo=UTC), datetime(2026, 10, 25, tzinfo=UTC)])
async def test_a_job_of_every_minute_fires_when_debians_cron_does_where_the_clock_turns(
    turn: datetime, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    crontab = (Path(__file__).parent / OF_A_USER).read_text()
    assert EVERY_MINUTE in crontab
    path, start, time = tmp_path / "evertick.toml", turn - timedelta(hours=2), timedelta(hours=6)
    text = configuration_of(path, f"@reboot begin\n{EVERY_MINUTE}", has_users=False, honours_cron_tz=False)
    [name] = tomllib.loads(text)["jobs"]
    fired = await fired_by(path, [name], start, time, monkeypatch)
    assert fired == {name: by_debian(Line("* * * * *", ZONE, None, ""), start, time)}
    assert len(fired[name]) == 360


async def fired_by(
    path: Path, jobs: list[str], start: datetime, time: timedelta, monkeypatch: pytest.MonkeyPatch
) -> dict[str, list[datetime]]:
    """The moments at which each job of a configuration has run."""
    fired: dict[str, list[datetime]] = {name: [] for name in jobs}
    monkeypatch.setattr(Shell, "make_driver", lambda *_: Recorder(fired))
    async with virtual_time(scheduler_from(load_configuration(path, environ={})), start=start) as kit:
        await kit.advance(time)
        assert kit.now == start + time
        assert {run.verdict for run in kit.runs()} == {"succeeded"}
    return fired
