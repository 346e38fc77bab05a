"""Commands about a configuration: config check, config show, apply; and commands that find their ledger by one."""

from __future__ import annotations

import json
import os
import re
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import Result

from evertick import Scheduler
from evertick.scheduler.runtime import Runtime

RIGHT = """\
[database]
url = "sqlite:///jobs.db"
[node]
app = "shop"
[jobs.backup]
cron = "0 3 * * *"
task = "do_backup"
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty folder, and nothing in the environment."""
    monkeypatch.chdir(tmp_path)
    for name in [name for name in os.environ if name.startswith(("EVERTICK", "XDG_"))]:
        monkeypatch.delenv(name)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("STATE_DIRECTORY", str(tmp_path / "state"))
    monkeypatch.setenv("TZ", "UTC")
    return tmp_path


def write(text: str, name: str = "evertick.toml") -> None:
    Path(name).write_text(text)
    Path(name).chmod(0o600)


def test_a_right_file_is_called_right(here, evertick, ask):
    write(RIGHT)
    result = evertick("config", "check")
    assert (result.exit_code, result.stderr) == (0, "")
    assert result.stdout == f"evertick.toml is valid: 1 job, database sqlite:///{here}/jobs.db\n"
    assert ask("config", "check") == {
        "file": "evertick.toml",
        "is_right": True,
        "problems": [],
        "warnings": [],
        "jobs": 1,
    }
    assert not (here / "jobs.db").exists()


def test_a_wrong_file_is_told_line_by_line_with_exit_code_2(here, evertick):
    write("[node]\nlease = 'x'\nleas = 1\n", "wrong.toml")
    result = evertick("config", "check", "--config", "wrong.toml")
    assert (result.exit_code, result.stderr) == (2, "")
    assert result.stdout.splitlines() == [
        "wrong.toml:2: node.lease: 'x' is not a duration; write it like '90s', '1h30m' or '250ms'",
        "wrong.toml:3: node.leas: no such key; it is called 'lease'",
    ]
    result = evertick("config", "check", "--config", "wrong.toml", "--json")
    told = json.loads(result.stdout)
    assert (result.exit_code, told["is_right"], len(told["problems"])) == (2, False, 2)


def test_what_is_hardly_meant_is_told_beside_what_is_wrong(here, evertick):
    write("[jobs.a]\nevery = '1h'\nshell = { command = 'x', cwd = '/no/such' }\n[jobs.b]\nevery = 'x'\nshell = 'x'\n")
    result = evertick("config", "check")
    assert result.exit_code == 2
    assert result.stdout.startswith("evertick.toml:5: jobs.b.every: 'x' is not a duration")
    where = "evertick.toml:3: jobs.a.shell.cwd"
    warning = f"{where}: there is no directory /no/such on this machine; make it, or correct the path"
    assert " ".join(result.stderr.split()) == f"warning: {warning}"
    told = json.loads(evertick("config", "check", "--json").stdout)
    assert (len(told["problems"]), told["warnings"]) == (1, [warning])


def test_a_file_without_a_job_is_right_and_told(here, evertick, ask):
    write("")
    result = evertick("config", "check")
    assert (result.exit_code, result.stdout.startswith("evertick.toml is valid: 0 jobs, database ")) == (0, True)
    warning = "evertick.toml: it has no job, so nothing runs; write [jobs.NAME], or name another --config"
    assert " ".join(result.stderr.split()) == f"warning: {warning}"
    assert ask("config", "check")["warnings"] == [warning]


def test_whoever_has_no_file_is_told_where_it_is_looked_for(here, evertick):
    for command in (["config", "check"], ["apply"]):
        result = evertick(*command)
        assert result.exit_code == 2
        looked = f"evertick.toml, {here}/home/.config/evertick/evertick.toml, /etc/evertick/evertick.toml"
        assert f"there is no configuration at {looked}; name one with --config" in result.stderr


def test_a_password_that_everybody_may_read_is_a_warning(here, evertick):
    write('[database]\nurl = "postgresql://u:hush@h/d"\n[jobs.a]\nevery = "1h"\ntask = "a"\n')
    Path("evertick.toml").chmod(0o644)
    result = evertick("config", "check")
    assert result.exit_code == 0
    assert result.stderr == (
        "warning: evertick.toml:2: database.url: every user may read this password; run `chmod 600 evertick.toml`, or "
        "put it into a file of its own\n"
    )
    assert "hush" not in result.output + evertick("config", "show").output + evertick("config", "show", "--json").output


def test_what_holds_is_shown_with_its_origin(here, evertick, ask, monkeypatch):
    write(RIGHT)
    monkeypatch.setenv("EVERTICK_NODE_LEASE", "20s")
    lines = [line.split() for line in evertick("config", "show").stdout.splitlines()]
    assert ["node.app", "shop", "evertick.toml:4"] in lines
    assert ["node.lease", "20s", "EVERTICK_NODE_LEASE"] in lines
    assert ["node.tz", "UTC", "default"] in lines
    assert ["node.duties", "true", "default"] in lines
    assert ["backup", "cron", "0", "3", "*", "*", "*", "task", "do_backup", "evertick.toml:5"] in lines
    shown = ask("config", "show")
    assert {"key": "log.file", "value": None, "origin": "default"} in shown["values"]
    assert (shown["file"], shown["files"], shown["jobs"][0]["name"]) == ("evertick.toml", ["evertick.toml"], "backup")


def test_tokens_and_queries_of_urls_are_not_shown(here, evertick):
    write("[nats]\nurl = 'nats://HUSH@n'\n[jobs.a]\nevery = '1h'\nhttp = 'https://h/x?key=HUSH'\n")
    shown = evertick("config", "show", "--json").stdout
    assert ("HUSH" in shown, "nats://***@n" in shown, "https://h/x?…" in shown) == (False, True, True)
    assert "HUSH" not in evertick("config", "show").output + evertick("config", "check").output


def test_commands_are_shown_as_they_are_but_for_who_signs_in_by_their_addresses(here, evertick, ask):
    line = "curl -fsS https://example.org/x | mail -s down ops@example.org"
    signed = "pg_dump postgresql://ada:HUSH@db/shop | gzip > /tmp/a@b.gz"
    write(
        f"[jobs.a]\nevery = '1h'\nshell = '{line}'\n[jobs.b]\nevery = '1h'\nshell = '{signed}'\n"
        "[jobs.c]\nevery = '1h'\nshell = { command = 'x', env = { DB = 'postgresql://ada:a HUSH@db/shop' } }\n"
    )
    assert ask("config", "show", "a")["keys"]["shell"]["value"] == line
    assert line in evertick("config", "show", "a").stdout
    assert ask("config", "show", "b")["keys"]["shell"]["value"] == signed.replace("ada:HUSH", "***")
    assert ask("config", "show", "c")["keys"]["shell"]["value"]["env"]["DB"] == "postgresql://ada:***@db/shop"


def test_the_defaults_and_all_that_holds_for_a_job_are_shown(here, evertick, ask):
    write(
        "[defaults]\ntimeout = '1h'\nretry = { constant = '5m', attempts = 3 }\ngrace = '2h'\n"
        "[jobs.copy]\nevery = '1h'\nshell = { command = 'cp a b', env = { API_TOKEN = 'hush' } }\ntimeout = '5m'\n"
        "[jobs.other]\nevery = '1h'\ntask = 'of_code'\n"
    )
    lines = [re.split("  +", line) for line in evertick("config", "show").stdout.splitlines()]
    assert ["defaults.timeout", "1h", "evertick.toml:2"] in lines
    assert ["defaults.retry", "constant = 5m, attempts = 3", "evertick.toml:3"] in lines
    result = evertick("config", "show", "copy")
    assert result.stdout.splitlines()[0].split() == ["KEY", "VALUE", "ORIGIN"]
    lines = [re.split("  +", line) for line in result.stdout.splitlines()]
    assert ["timeout", "5m", "evertick.toml:8"] in lines
    assert ["retry", "constant = 5m, attempts = 3", "evertick.toml:3"] in lines
    assert ["shell", "command = cp a b, env = API_TOKEN = ***", "evertick.toml:7"] in lines
    keys = ask("config", "show", "other")["keys"]
    assert sorted(keys) == ["catch_up", "every", "grace", "overlap", "queue", "task"]
    assert keys["grace"] == {"value": "2h", "origin": "evertick.toml:4"}
    evertick("apply", "--yes")
    shown = evertick("show", "copy", "--config", "evertick.toml").stdout
    assert "in a configuration; `evertick config show copy` shows the job" in shown
    result = evertick("config", "show", "coppy")
    assert (result.exit_code, result.stderr) == (1, "error: evertick.toml has no job 'coppy'; it is called 'copy'\n")


def test_what_holds_for_a_job_by_default_is_shown_too(here, evertick, ask):
    write(
        "[redis]\naddress = 'localhost'\n[defaults]\noverlap = 'allow'\n"
        "[jobs.a]\nevery = '1h'\nredis = 'docker'\non_lost = 'fail'\n"
        "[jobs.b]\nevery = '1h'\nredis = { queue = 'docker', ack_timeout = '5m' }\n"
    )
    keys = ask("config", "show", "a")["keys"]
    assert {name: (each["value"], each["origin"]) for name, each in keys.items()} == {
        "overlap": ("allow", "evertick.toml:4"),
        "every": ("1h", "evertick.toml:6"),
        "redis": ("docker", "evertick.toml:7"),
        "on_lost": ("fail", "evertick.toml:8"),
        "queue": ("default", "default"),
        "catch_up": ("latest", "default"),
        "on_unreachable": ("stop", "default"),
        "redis.ack_timeout": ("10m", "default"),
        "redis.progress_timeout": ("1m", "default"),
    }
    assert "redis.ack_timeout" not in ask("config", "show", "b")["keys"]
    assert ["catch_up", "latest", "default"] in [
        line.split() for line in evertick("config", "show", "a").stdout.splitlines()
    ]


def test_a_job_that_begins_disabled_is_named_with_its_place_and_can_be_tried_once(here, evertick, ask):
    write(
        "[jobs.on]\nevery = '1h'\nshell = 'true'\n"
        "[jobs.off]\nevery = '1h'\nshell = 'true'\nenabled = false\npriority = 7\n"
        "[jobs.away]\nevery = '1h'\ntask = 'of_code'\nenabled = false\n"
    )
    Path("jobs.d").mkdir()
    Path("jobs.d/cron.toml").write_text("[jobs.cron]\nevery = '1h'\nshell = 'true'\nenabled = false\n")
    evertick("apply", "--yes")
    result = evertick("list")
    named = "off (evertick.toml:7), away (evertick.toml:12), cron (jobs.d/cron.toml:4)"
    assert f"note: disabled jobs without a schedule: {named}\n" in result.stderr
    result = evertick("why", "off")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "error: job 'off' is disabled at evertick.toml:7 and has no schedule yet; remove `enabled = false` there, or "
        "try it once with `evertick trigger off`",
    )
    result = evertick("trigger", "off")
    assert result.stdout.startswith("triggered off, once: it is disabled: run ")
    [run] = ask("runs")
    assert (run["task"], run["schedule_key"], run["priority"], run["cause"]) == ("off", None, 7, "enqueue")
    result = evertick("why", "off")
    assert result.exit_code == 0
    assert "note: job 'off' is disabled at evertick.toml:7 and has no schedule yet; " in result.stderr
    result = evertick("trigger", "away")
    assert (result.exit_code, result.stderr.splitlines()[-1]) == (
        1,
        "error: job 'away' is disabled at evertick.toml:12, and cannot be tried because it runs a task of other code; "
        "remove `enabled = false` there",
    )
    # One that had a schedule has it still.
    write("[jobs.on]\nevery = '1h'\nshell = 'true'\nenabled = false\n")
    evertick("apply", "--yes")
    assert "without a schedule: cron (" in evertick("list").stderr
    assert evertick("trigger", "on").stdout.startswith("triggered on: run ")


def test_pruning_what_is_paused_takes_no_fires_away_and_is_one_line_each(here, evertick, ask):
    write("[jobs.a]\nevery = '10s'\nshell = 'true'\n[jobs.b]\nevery = '1m'\nshell = 'true'\n")
    evertick("apply", "--yes")
    evertick("pause", "a")
    write("")
    result = evertick("apply", "--prune", "--dry-run", "--days", "1")
    lines = result.stdout.splitlines()
    assert lines[1:3] == ["- a: every 10s; tz=UTC, paused -> removed", "- b: every 1m; tz=UTC -> removed"]
    assert lines[3] == "    1,440 fires before, 0 after; 1,440 are removed"
    plan = ask("apply", "--prune", "--dry-run")
    assert [(each["key"], each["fires_old"]) for each in plan["removes"]] == [("a", 0), ("b", 20_160)]


def test_show_works_without_a_file(here, ask, monkeypatch):
    monkeypatch.setenv("EVERTICK_DATABASE", "postgresql://u:hush@h/d")
    shown = ask("config", "show")
    assert shown["file"] is None
    assert {"key": "database.url", "value": "postgresql://u:***@h/d", "origin": "EVERTICK_DATABASE"} in shown["values"]


def test_apply_shows_the_plan_and_asks(here, evertick, ask):
    write(RIGHT)
    result = evertick("apply", "--dry-run", "--days", "2")
    assert result.exit_code == 0
    lines = result.stdout.splitlines()
    assert lines[0] == f"evertick.toml -> sqlite:///{here}/jobs.db, app shop"
    assert lines[1] == "+ backup: new -> cron 0 3 * * *; tz=UTC"
    assert re.fullmatch(r"    2 fires, the first at \S+ 03:00:00Z", lines[2])
    assert len(lines) == 4
    assert lines[-1] == "schedules: 1 added; fires: 2 added (the next 2 days)"
    assert result.stderr == "note: nothing was changed\n"
    # A look makes no database.
    assert not (here / "jobs.db").exists()
    result = evertick("apply")
    assert result.exit_code == 2
    assert "cannot ask for confirmation without a terminal; write --yes to apply it" in result.stderr
    assert not (here / "jobs.db").exists()
    result = evertick("apply", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "applied")
    assert [each["key"] for each in ask("list", "--config", "evertick.toml")] == ["backup"]
    result = evertick("apply", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "schedules: 1 unchanged (the next 14 days)")


def test_apply_says_who_takes_up_a_changed_command(here, evertick):
    job = '[database]\nurl = "sqlite:///jobs.db"\n[jobs.backup]\ncron = "0 3 * * *"\nshell = "backup"\n'
    write(job)
    result = evertick("apply", "--yes")
    assert (result.exit_code, result.stderr) == (0, "")
    write(job.replace('"backup"', '"backup --all"'))
    result = evertick("apply", "--yes")
    assert result.stdout.splitlines()[-1] == "schedules: 1 unchanged (the next 14 days)"
    assert result.stderr == (
        "note: nothing was changed; the ledger has only the schedules; each node reads what its jobs do from its own "
        "file\n"
    )
    # Beside another change it is told, too: what is unchanged may have another command.
    write(job + job.partition('sqlite:///jobs.db"\n')[2].replace("jobs.backup", "jobs.copy"))
    result = evertick("apply", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "applied")
    assert result.stderr == (
        "note: the ledger has only the schedules; each node reads what its jobs do from its own file, when it starts "
        "or reloads: a changed command, request or queue takes effect then\n"
    )


def test_apply_says_what_changes_where_the_rule_does_not(here, evertick):
    write(RIGHT)
    evertick("apply", "--yes")
    write(RIGHT + 'priority = 5\ngrace = "90s"\n')
    result = evertick("apply", "--yes")
    _, line, words, applied = result.stdout.splitlines()
    assert line == "~ backup: priority: 0 -> 5, grace: none -> 90s"
    assert (words, applied) == ("schedules: 1 changed (the next 14 days)", "applied")
    text = (RIGHT + 'priority = 5\ngrace = "90s"\n').replace("[node]\n", '[node]\nname = "other"\n')
    write(text)
    result = evertick("apply", "--yes")
    assert "~ backup: stays as it is, and is declared by this configuration from now on\n" in result.stdout
    write(text.replace("0 3 * * *", "0 4 * * *").replace("priority = 5", "priority = 6"))
    lines = evertick("apply", "--yes", "--days", "1").stdout.splitlines()
    assert lines[1] == "~ backup: cron 0 3 * * *; tz=UTC -> cron 0 4 * * *; tz=UTC"
    assert "    priority: 5 -> 6" in lines


def test_apply_tells_where_a_calendar_stands_that_is_nowhere(here, evertick):
    write(RIGHT + 'blackout = "freeze"\n')
    result = evertick("apply", "--yes")
    assert result.exit_code == 2
    assert result.stderr.splitlines()[-1] == (
        "error: evertick.toml:8: jobs.backup.blackout: there is no calendar 'freeze', neither in this configuration "
        "nor in the ledger; write [calendars.freeze]"
    )


def test_apply_removes_only_with_prune(here, evertick, ask):
    write(RIGHT)
    evertick("apply", "--yes")
    write(RIGHT.replace("jobs.backup", "jobs.copy"))
    result = evertick("apply", "--yes")
    assert "note: no longer in the configuration, and kept without --prune: backup" in result.stderr
    assert [each["key"] for each in ask("list", "--config", "evertick.toml")] == ["backup", "copy"]
    told = ask("apply", "--yes", "--prune", "--days", "1")
    assert (told["is_applied"], [each["key"] for each in told["removes"]]) == (True, ["backup"])
    assert told["words"] == "schedules: 1 removed, 1 unchanged; fires: 1 removed"
    assert [each["key"] for each in ask("list", "--config", "evertick.toml")] == ["copy"]


def test_what_was_changed_by_hand_is_told_and_taken_back_if_asked(here, evertick, ask):
    write(RIGHT)
    evertick("apply", "--yes")
    result = evertick("update", "backup", "--when", "0 4 * * *", "--priority", "3", "--config", "evertick.toml")
    assert "note: the configuration declares it differently (when, priority); this holds until" in result.stderr
    assert "`evertick apply --take-back`" in result.stderr
    assert (
        "differs from the configuration: when, priority"
        in evertick("show", "backup", "--config", "evertick.toml").stdout
    )
    result = evertick("apply", "--yes")
    note = "note: changed by hand, and kept without --take-back: backup (when, priority)"
    assert (note in result.stderr, ask("apply", "--dry-run")["edited"]) == (True, {"backup": ["when", "priority"]})
    result = evertick("apply", "--yes", "--take-back")
    assert "~ backup: cron 0 4 * * *; tz=UTC -> cron 0 3 * * *; tz=UTC" in result.stdout
    shown = ask("show", "backup", "--config", "evertick.toml")
    assert (shown["when"], shown["priority"], shown["overrides"]) == ("cron 0 3 * * *; tz=UTC", 0, [])
    assert ask("apply", "--dry-run", "--take-back")["unchanged"] == ["backup"]


def test_a_moment_that_has_passed_is_over_in_the_list(here, evertick):
    write(RIGHT.replace('cron = "0 3 * * *"', 'once = "2020-01-01T00:00:00Z"'))
    evertick("apply", "--yes")
    _, line = evertick("list", "--config", "evertick.toml").stdout.splitlines()
    assert re.split("  +", line)[3] == "over"


def test_apply_as_json_asks_nothing(here, evertick, ask):
    write(RIGHT)
    told = ask("apply", "--dry-run")
    assert (told["is_applied"], told["adds"][0]["kind"], told["adds"][0]["when_old"]) == (False, "add", None)
    result = evertick("apply", "--json")
    assert (result.exit_code, result.stdout) == (2, "")
    assert "--json cannot ask; write --yes to apply it, or --dry-run to see the plan" in result.stderr


def test_an_answer_at_the_terminal_decides(here, start: Callable[..., subprocess.Popen[str]], terminal):
    write(RIGHT)
    for answer, code in (("n\n", 130), ("y\n", 0)):
        terminal.write(answer)
        process = start("apply", "--days", "1", stdin=terminal.theirs)
        out, err = process.communicate(timeout=60)
        assert (process.returncode, "Apply this? [y/N]" in err) == (code, True), out + err
        assert ("applied" in out) == (code == 0)
        assert (here / "jobs.db").exists() == (code == 0)


@pytest.mark.parametrize("command", [("apply", "--yes"), ("daemon",), ("daemon", "--check"), ("config", "show")])
def test_every_command_says_all_that_is_wrong_with_a_configuration(here, evertick, command: tuple[str, ...]):
    write("[node]\nlease = 'x'\nleas = 1\n", "wrong.toml")
    result = evertick(*command, "--config", "wrong.toml")
    assert result.exit_code == 2
    assert result.stderr.splitlines() == [
        "error: wrong.toml:2: node.lease: 'x' is not a duration; write it like '90s', '1h30m' or '250ms'",
        "error: wrong.toml:3: node.leas: no such key; it is called 'lease'",
    ]


def test_apply_makes_the_state_directory_where_the_file_names_a_ledger_in_it(here, evertick):
    ledger = f"[directories]\nstate = 'var/state'\n[database]\nurl = 'sqlite:///{here}/var/state/jobs.db'\n"
    write(ledger + "[jobs.backup]\ncron = '0 3 * * *'\ntask = 'do_backup'\n")
    result = evertick("apply", "--yes")
    assert (result.exit_code, result.stdout.splitlines()[-1]) == (0, "applied"), result.stderr
    assert (here / "var/state").stat().st_mode & 0o777 == 0o700
    assert (here / "var/state/jobs.db").exists()


def test_apply_makes_the_state_directory_for_this_user_alone(here, evertick):
    write(RIGHT.replace('[database]\nurl = "sqlite:///jobs.db"\n', ""))
    assert evertick("apply", "--yes").exit_code == 0
    assert (here / "state").stat().st_mode & 0o777 == 0o700
    assert (here / "state/evertick.db").exists()


# --- which ledger


@pytest.fixture
def ledgers(here: Path) -> Path:
    """Three ledgers, each with a schedule that is called as its file is; and a configuration that names one."""
    for name, app in (("flag", "default"), ("env", "shop"), ("file", "shop")):
        scheduler = Scheduler(f"sqlite:///{name}.db", app=app, concurrency=0)
        scheduler.sync.add(key=f"of-{name}", when="every 1d", task="t")
        scheduler.sync.close()
    write('[database]\nurl = "sqlite:///file.db"\n[node]\napp = "shop"\n[jobs.a]\nthis-is = "wrong"\n')
    return here


def listed(result: Result) -> list[str]:
    assert result.exit_code == 0, result.stderr
    return [line.split()[0] for line in result.stdout.splitlines()[1:]]


def test_a_flag_is_stronger_than_the_environment_and_that_than_the_file(ledgers, evertick, monkeypatch):
    result = evertick("list")
    assert listed(result) == ["of-file"]
    assert result.stderr == f"(ledger: sqlite:///{ledgers}/file.db, from evertick.toml)\n"
    assert evertick("list", "--config", "evertick.toml").stderr == ""
    monkeypatch.setenv("EVERTICK_DATABASE", "sqlite:///env.db")
    result = evertick("list")
    assert (listed(result), result.stderr) == (["of-env"], "")
    # Whoever names a database has said it all: the app of the file is not that of this one.
    assert listed(evertick("list", "--database", "sqlite:///flag.db")) == ["of-flag"]
    assert listed(evertick("list", "--app", "default", "--database", "sqlite:///flag.db")) == ["of-flag"]


def test_all_commands_find_the_ledger_by_the_file(ledgers, evertick):
    assert "file.db" in evertick("db", "status").stdout
    assert evertick("doctor").stderr.startswith(f"(ledger: sqlite:///{ledgers}/file.db, from evertick.toml)")
    assert listed(evertick("list", "--config", "evertick.toml", "--app", "shop")) == ["of-file"]


def test_a_file_that_was_named_must_be_right(ledgers, evertick):
    result = evertick("list", "--config", "no.toml")
    assert (result.exit_code, "no.toml: cannot be read" in result.stderr) == (2, True)
    write("[database]\nurl = 'x'\n", "bad.toml")
    result = evertick("list", "--config", "bad.toml")
    assert result.exit_code == 2
    assert result.stderr.startswith("error: bad.toml:2: database.url: 'x' is no database URL; ")
    result = evertick("list", "--config", "bad.toml", "--database", "sqlite:///flag.db")
    assert "--database and --config both name a ledger; write only one of them" in result.stderr


# --- the settings of the node that hold for commands, too

STRICT = """\
[database]
url = "sqlite:///strict.db"
[node]
app = "shop"
tz = "Europe/Berlin"
min_interval = "10s"
allow_schedules = ["0 9 * * *", "every 15m", "every 1s", "every 1s; tz=UTC"]
[retention]
history = "2000d"
"""


@pytest.fixture
def strict(here) -> Path:
    """A ledger with a schedule, and a configuration that allows few rules."""
    scheduler = Scheduler("sqlite:///strict.db", app="shop", concurrency=0)
    scheduler.sync.add(key="old", when="0 9 * * *", task="work")
    scheduler.sync.close()
    write(STRICT)
    return here


@pytest.mark.parametrize("rule", ["every 1s", "every 20m"])
@pytest.mark.parametrize(
    "command",
    [["add", "new", "--task", "work"], ["update", "old"], ["update", "old", "--dry-run"]],
    ids=["add", "update", "dry-run"],
)
def test_the_limits_of_the_file_hold_for_rules_of_the_command_line(strict, evertick, ask, command, rule):
    result = evertick(*command, "--when", rule)
    assert (result.exit_code, result.stdout) == (1, "")
    words = {"every 1s": "fires 1s apart", "every 20m": "is not among allow_schedules"}[rule]
    assert words in result.stderr
    assert [each["when"] for each in json.loads(evertick("list", "--json").stdout)] == ["cron 0 9 * * *; tz=UTC"]


def test_a_rule_without_a_zone_goes_by_the_zone_of_the_file(strict, evertick):
    result = evertick("add", "new", "--task", "work", "--when", "0 9 * * *")
    assert result.exit_code == 0, result.stderr
    assert "At 09:00 every day, in Europe/Berlin" in result.stdout
    assert evertick("add", "other", "--task", "work", "--when", "0 9 * * *", "--tz", "UTC").exit_code == 1


def test_backfill_goes_by_the_retention_of_the_file(strict, evertick):
    ask = ("backfill", "old", "--from", "1000d", "--dry-run")
    result = evertick(*ask)
    assert (result.exit_code, result.stderr) == (0, f"(ledger: sqlite:///{strict}/strict.db, from evertick.toml)\n")
    result = evertick(*ask, "--database", "sqlite:///strict.db", "--app", "shop")
    assert (result.exit_code, "older than the retention of history (90d)" in result.stderr) == (2, True)


def test_the_environment_sets_limits_with_and_without_a_file(strict, evertick, monkeypatch):
    monkeypatch.setenv("EVERTICK_NODE_MIN_INTERVAL", "1h")
    monkeypatch.setenv("EVERTICK_NODE_LEASE", "no duration, and of no interest here")
    add = ("add", "new", "--task", "work", "--when", "every 15m", "--database", "sqlite:///strict.db", "--app", "shop")
    assert "min_interval is 1h" in evertick(*add).stderr
    monkeypatch.setenv("EVERTICK_DATABASE", "sqlite:///strict.db")
    Path("evertick.toml").unlink()
    assert "min_interval is 1h" in evertick("add", "new", "--task", "work", "--when", "every 15m").stderr


def test_the_limits_of_a_file_are_those_of_its_app(strict, evertick):
    add = ("add", "new", "--task", "work", "--when", "every 1s")
    assert evertick(*add, "--app", "shop").exit_code == 1
    assert evertick(*add, "--app", "another").exit_code == 0


@pytest.mark.parametrize(
    ("key", "value", "words"),
    [
        ("tz", '"Mars/Olympus"', "'Mars/Olympus' is not a time zone"),
        ("min_interval", '"1us"', "'1us' must be between"),
        ("allow_schedules", '["at noon or so"]', "'at noon or so'"),
    ],
)
def test_a_limit_that_is_wrong_is_reported_with_its_place(strict, evertick, key, value, words):
    lines = STRICT.splitlines()
    [place] = [number for number, line in enumerate(lines) if line.startswith(key)]
    write("\n".join([*lines[:place], f"{key} = {value}", *lines[place + 1 :]]))
    result = evertick("list")
    assert result.exit_code == 2
    assert result.stderr.startswith(f"error: evertick.toml:{place + 1}: node.{key}: ")
    assert words in result.stderr


def test_what_is_applied_is_asked_for_by_the_user_of_the_command_line(here, evertick, monkeypatch):
    write("[jobs.a]\nevery = '1h'\nshell = 'true'\nenabled = false\n[jobs.b]\nevery = '1h'\nshell = 'true'\n")
    actors = []

    async def context(runtime):
        actors.append(runtime.actor)
        return await made(runtime)

    made = Runtime.context
    monkeypatch.setattr(Runtime, "context", context)
    assert evertick("apply", "--yes").exit_code == 0
    assert evertick("trigger", "a").exit_code == 0
    assert {(each.kind, each.origin) for each in actors} == {("user", "cli")}
