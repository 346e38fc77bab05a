"""Commands of an imported crontab, carried out as cron would."""

from __future__ import annotations

import asyncio
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest

from evertick import Run, Scheduler, Shell
from evertick.driver.registry import check_spec, spec_from
from evertick.imports.crontab import CrontabOptions, read_crontab
from evertick.imports.toml import to_toml

SECONDS_MAX = 30.0
EVERY_KIND = Path(__file__).parent / "crontab_of_every_kind"


def specs_of(text: str, home: str) -> dict[str, Shell]:
    imported = read_crontab(text, CrontabOptions(tz="UTC", home=home))
    found = {}
    for name, job in tomllib.loads(to_toml(imported, []))["jobs"].items():
        spec = spec_from("shell", job["shell"])
        check_spec(name, spec)
        assert isinstance(spec, Shell)
        found[name] = spec
    return found


async def carried_out(spec: Shell) -> tuple[Run, list[str]]:
    scheduler = Scheduler("sqlite://", drivers=["shell"], stop_timeout="1s")
    job = scheduler.job("job", spec)
    async with scheduler:
        run = await job.enqueue()
        async with asyncio.timeout(SECONDS_MAX):
            while (found := await scheduler.get_run(run.id)).verdict is None:
                await asyncio.sleep(0.01)
        return found, [line.text for line in await scheduler.log(run)]


def test_every_line_becomes_a_shell_job_that_can_be() -> None:
    specs = specs_of(EVERY_KIND.read_text(), "/root")
    assert len(specs) >= 30
    assert {spec.shell for spec in specs.values()} == {"/bin/bash"}


async def test_a_command_sees_the_variables_the_home_and_the_input_that_cron_gives_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OF_THE_NODE", "1")
    text = "MAILTO=me\nGREETING='hello '\n* * * * * cat; pwd; echo \"$GREETING$MAILTO\" ${HOME}; env%one%100\\% two%\n"
    run, lines = await carried_out(specs_of(text, str(tmp_path))["cat"])
    assert run.verdict == "succeeded", run.error
    assert lines[:4] == ["one", "100% two", str(tmp_path), f"hello me {tmp_path}"]
    assert "PATH=/usr/bin:/bin" in lines
    assert not any(line.startswith("OF_THE_NODE") for line in lines)


async def test_an_escaped_percent_sign_reaches_the_command() -> None:
    before = datetime.now(UTC).year
    _, lines = await carried_out(specs_of("@daily date -u +\\%Y\n", "/")["date"])
    assert before <= int(lines[0]) <= datetime.now(UTC).year
