"""Jobs of a file are the same as jobs in code."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner
from echo_driver import Echo

from evertick import Constant, Exponential, Linear, Shell
from evertick.cli import cli
from evertick.config import layer as table_module
from evertick.config.build import scheduler_from
from evertick.config.load import Configuration
from evertick.config.show import shown_jobs, shown_values
from evertick.driver.spec import AbsentDriver
from evertick.when.duration import duration_us

Load = Callable[..., Configuration]


@pytest.mark.parametrize(
    ("text", "rule"),
    [
        ("cron = '0 3 * * *'", "cron 0 3 * * *"),
        ("cron = '0 3 * * *'\ntz = 'Europe/Berlin'\ndst = 'skip'", "cron 0 3 * * *; tz=Europe/Berlin; dst=skip"),
        ("cron = '@every 90s'", "every 90s"),
        ("every = '90s'", "every 90s"),
        ("every = 90", "every 90s"),
        ("every = '1h'\nafter = 'end'", "every 1h; after=end"),
        ("every = '1h'\njitter = '5m'\nmax_fires = 3", "every 1h; max_fires=3; jitter=5m"),
        ("every = '1h'\nstart = 2026-01-01T00:00:00Z\nend = '2026-02-01T00:00:00Z'",
         "every 1h; start=2026-01-01T00:00:00Z; end=2026-02-01T00:00:00Z"),
        ("every = '1h'\ntz = 'Asia/Kolkata'\nstart = 2026-01-01T05:30:00",
         "every 1h; tz=Asia/Kolkata; start=2026-01-01T00:00:00Z"),
        ("once = 2026-01-01T09:00:00+01:00", "once 2026-01-01T08:00:00Z"),
        ("once = 2026-01-01T09:00:00", "once 2026-01-01T08:00:00Z"),
        ("once = '2026-01-01 09:00'", "once 2026-01-01T08:00:00Z"),
        ("once = '+10m'", "once +10m"),
        ("when = 'weekdays at 18:30'", "cron 30 18 * * 1-5"),
        ("when = 'weekdays at 18:30'\ntz = 'Asia/Kolkata'\njitter = '1m'",
         "cron 30 18 * * 1-5; tz=Asia/Kolkata; jitter=1m"),
        ("when = 'every 15 minutes'\nstart = 2026-01-01T09:00:00", "every 15m; start=2026-01-01T08:00:00Z"),
    ],
)  # fmt: skip
def test_a_rule_has_one_of_four_forms(load: Load, text: str, rule: str) -> None:
    """A time without an offset is in the zone of the job, or else of the node."""
    [job] = load(f"[node]\ntz = 'Europe/Berlin'\n[jobs.a]\necho = 'x'\n{text}").jobs
    assert job.rule.text == rule


def test_a_job_accepts_every_option_of_a_task_and_of_a_schedule(load: Load) -> None:
    scheduler = scheduler_from(
        load("""
[jobs.backup]
description = "Everything, every night"
cron = "0 3 * * *"
echo = { text = "hello", times = 2 }
args = { depth = 3, day = 2026-01-01 }
queue = "slow"
priority = -3
catch_up = "all"
catch_up_limit = 7
pace = "2s"
grace = "1h"
overlap = "queue"
expires = "2h"
labels = { team = "ops" }
unique = "backup"
unique_for = "1d"
pause_after = 3
retry = { exponential = "1s", factor = 3, limit = "1m", attempts = 4, jitter = 0.5 }
timeout = "30m"
on_lost = "fail"
on_unreachable = "continue"
concurrency = 2
concurrency_key = "disk-{depth}"
rate = "5/min"
rate_key = "disk"
""")
    )
    [declaration] = scheduler.runtime.declarations
    definition = declaration.definition
    assert (declaration.key, declaration.place, declaration.source) == ("backup", "evertick.toml:2", "file")
    assert definition.task == "backup"
    assert definition.args == {"depth": 3, "day": "2026-01-01"}
    assert (definition.queue, definition.priority, definition.overlap) == ("slow", -3, "queue")
    assert (definition.catch_up, definition.catch_up_limit, definition.pace) == ("all", 7, duration_us("2s"))
    assert (definition.grace, definition.expires) == (duration_us("1h"), duration_us("2h"))
    assert (definition.labels, definition.pause_after) == ({"team": "ops"}, 3)
    assert (definition.unique, definition.unique_for) == ("backup", duration_us("1d"))
    work = scheduler.runtime.tasks["backup"].work
    assert work.retry == Exponential("1s", 3, "1m", 4, jitter=0.5)
    assert (work.timeout, work.on_lost, work.on_unreachable) == (duration_us("30m"), "fail", "continue")
    assert work.concurrency is not None
    assert (work.concurrency.most, work.concurrency.of.text) == (2, "disk-{depth}")
    assert str(work.rate) == "5/60s" or str(work.rate) == "5/1m"


@pytest.mark.parametrize(
    ("text", "policy"),
    [
        ("{ constant = '30s', attempts = 3 }", Constant("30s", 3)),
        ("{ linear = '1s', increment = '2s', limit = '9s', attempts = 3 }", Linear("1s", "2s", "9s", 3)),
        ("{ exponential = '1s' }", Exponential("1s")),
    ],
)
def test_the_first_delay_selects_the_retry_policy(load: Load, text: str, policy: object) -> None:
    [job] = load(f"[jobs.a]\nevery = '1h'\necho = 'x'\nretry = {text}").jobs
    assert job.task_options["retry"] == policy


def test_defaults_apply_to_jobs_that_accept_and_do_not_override_them(load: Load) -> None:
    loaded = load("""
[defaults]
tz = "Europe/Berlin"
dst = "skip"
retry = { constant = "1s", attempts = 2 }
timeout = "1h"
overlap = "queue"
labels = { team = "ops" }
[jobs.plain]
cron = "0 3 * * *"
echo = "x"
[jobs.own]
cron = "0 3 * * *"
tz = "UTC"
dst = "wall"
timeout = "2h"
overlap = "allow"
labels = { of = "mine" }
echo = "x"
[jobs.interval]
every = "1h"
echo = "x"
[jobs.sentence]
when = "daily at 9:00 in Asia/Kolkata"
task = "elsewhere"
[jobs.nickname]
cron = "@every 5m"
echo = "x"
""")
    jobs = {job.name: job for job in loaded.jobs}
    assert jobs["plain"].rule.text == "cron 0 3 * * *; tz=Europe/Berlin; dst=skip"
    assert jobs["own"].rule.text == "cron 0 3 * * *; tz=UTC; dst=wall"
    assert jobs["interval"].rule.text == "every 1h; tz=Europe/Berlin"
    assert jobs["sentence"].rule.text == "cron 0 9 * * *; tz=Asia/Kolkata; dst=skip"
    assert jobs["nickname"].rule.text == "every 5m; tz=Europe/Berlin"
    assert jobs["plain"].task_options == {"retry": Constant("1s", 2), "timeout": "1h"}
    assert jobs["own"].task_options["timeout"] == "2h"
    assert jobs["sentence"].task_options == {}
    assert (jobs["plain"].definition.overlap, jobs["own"].definition.overlap) == ("queue", "allow")
    assert (jobs["plain"].definition.labels, jobs["own"].definition.labels) == ({"team": "ops"}, {"of": "mine"})
    # An error about a default names the line of the default.
    assert jobs["plain"].places["timeout"] == "evertick.toml:6"
    assert jobs["own"].places["timeout"] == "evertick.toml:16"


def test_jobs_use_the_calendars_of_the_file(load: Load) -> None:
    loaded = load("""
[calendars.business]
include = ["mon-fri"]
exclude = ["12-24..12-26", 2026-05-01]
tz = "Europe/Berlin"
[calendars.nights]
exclude = ["22:00-06:00"]
[jobs.a]
cron = "0 9 * * *"
calendar = "business"
blackout = "nights"
blackout_fate = "latest"
echo = "x"
[jobs.b]
when = "daily at 9:00"
calendar = "business"
echo = "x"
[jobs.c]
every = "1h"
calendar = "elsewhere"
echo = "x"
""")
    business, nights = loaded.calendars["business"], loaded.calendars["nights"]
    a, b, c = loaded.jobs
    assert (a.rule.calendar, b.rule.calendar, c.rule.calendar) == (business, business, None)
    assert (a.blackout, a.definition.blackout, a.definition.blackout_fate) == (nights, "nights", "latest")
    assert c.rule.text == "every 1h; calendar=elsewhere"


def test_a_job_of_a_task_of_another_node_is_only_a_schedule(load: Load) -> None:
    scheduler = scheduler_from(load("[jobs.digest]\nevery = '1d'\ntask = 'make_digest'\nargs = { to = 'me' }"))
    [declaration] = scheduler.runtime.declarations
    assert (declaration.key, declaration.definition.task) == ("digest", "make_digest")
    assert scheduler.runtime.tasks == {}


def test_a_disabled_job_is_a_task_without_a_schedule(load: Load) -> None:
    scheduler = scheduler_from(load("[jobs.a]\nevery = '1d'\necho = 'x'\nenabled = false"))
    assert list(scheduler.runtime.declarations) == []
    assert list(scheduler.runtime.tasks) == ["a"]


def test_a_node_leaves_jobs_of_drivers_that_it_lacks_to_other_nodes(load: Load) -> None:
    scheduler = scheduler_from(load("[node]\ndrivers = ['shell']\n[jobs.a]\nevery = '1d'\necho = 'x'"))
    assert isinstance(scheduler.runtime.tasks["a"].work.driver, AbsentDriver)
    assert [each.key for each in scheduler.runtime.declarations] == ["a"]
    assert scheduler.runtime.jobs.works() == {}


def test_a_job_can_have_any_name(load: Load) -> None:
    names = ["ä b", "a.b", "cron", "1"]
    text = "".join(f'[jobs."{name}"]\nevery = "1h"\necho = "x"\n' for name in names)
    assert [job.name for job in load(text).jobs] == names


def test_references_in_a_shell_command_are_left_to_the_shell(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(table_module._VERBATIM, "echo", ("text",))
    loaded = load(
        "[jobs.a]\nevery = '1h'\necho = 'ls ${HOME%/*} ${X:-1}'\n"
        "[jobs.b]\nevery = '1h'\necho = { text = '${HOME%/*}', headers = { h = '${Y}' } }",
        {"Y": "why"},
    )
    a, b = (job.spec for job in loaded.jobs)
    assert a == Echo(text="ls ${HOME%/*} ${X:-1}")
    assert b == Echo(text="${HOME%/*}", headers={"h": "why"})


# --- shown settings


def test_shown_settings_have_their_origin_and_no_secret(load: Load, folder: Path) -> None:
    loaded = load(
        """
[database]
url = "postgresql://u:${PW}@h/d"
[redis]
address = "h"
password = "hush"
[nats]
address = "n"
token = "${TOKEN}"
[node]
lease = "${LEASE:-20s}"
[jobs.a]
every = "1h"
echo = { text = "${TEXT}", headers = { Authorization = "Bearer hush", X-Api-Key = "${KEY}", Accept = "json" } }
args = { url = "https://u:hush@h/", password = "hush", secret = "NAME" }
""",
        {"PW": "hush", "TOKEN": "hush", "TEXT": "hush", "KEY": "hush", "STATE_DIRECTORY": "/s"},
    )
    shown = {each.key: (each.value, each.origin) for each in shown_values(loaded)}
    assert shown["database.url"] == ("postgresql://u:***@h/d", "evertick.toml:3")
    assert shown["redis.password"] == ("***", "evertick.toml:6")
    assert shown["nats.token"] == ("${TOKEN}", "evertick.toml:9")
    assert shown["node.lease"] == ("${LEASE:-20s}", "evertick.toml:11")
    assert shown["node.tz"] == ("UTC", "default")
    assert shown["directories.state"] == ("/s", "default")
    assert shown["directories.config"] == (str(folder), "default")
    assert shown["log.file"] == (None, "default")
    assert shown["node.drivers"][0][-1] == "echo"
    [job] = shown_jobs(loaded)
    assert job["keys"]["echo"] == {
        "value": {
            "text": "${TEXT}",
            "headers": {"Authorization": "***", "X-Api-Key": "${KEY}", "Accept": "json"},
        },
        "origin": "evertick.toml:14",
    }
    assert job["keys"]["args"]["value"] == {"url": "https://u:***@h/", "password": "***", "secret": "NAME"}
    assert (job["when"], job["driver"], job["place"]) == ("every 1h", "echo", "evertick.toml:12")
    assert "hush" not in repr([shown, job])


def test_an_imported_crontab_is_a_valid_configuration(folder: Path, write: Callable[..., Path], load: Load) -> None:
    """References in commands are left to the shell, those in variables are as in the crontab."""
    crontab = write("A=${B}\n# every night\n0 3 * * * echo ${HOME:-none} \\% done%line %two\n@daily x\n", "crontab")
    done = CliRunner().invoke(cli, ["import", "crontab", str(crontab), "--tz", "Europe/Berlin", "--output", "c.toml"])
    assert done.exit_code == 0, done.output
    write((folder / "c.toml").read_text(), "jobs.d/cron.toml")
    night, _ = load("").jobs
    assert (night.rule.text, night.description) == ("cron 0 3 * * *; tz=Europe/Berlin", "every night")
    spec = night.spec
    assert isinstance(spec, Shell)
    assert (spec.command, spec.stdin, spec.env["A"]) == ("echo ${HOME:-none} % done", "line \ntwo\n", "${B}")
