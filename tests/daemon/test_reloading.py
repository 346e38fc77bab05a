"""A daemon and its files: read again by themselves or by a signal, and never half."""

from __future__ import annotations

import json
import signal
import subprocess

import pytest
from daemon_site import CONFIGURATION, LOOK_SECONDS, Site, until

from servers.broker import redis_server

JOB = """
[jobs.{name}]
every = "1h"
shell = "true"
"""


def test_a_new_job_in_the_file_becomes_a_schedule_without_a_restart(site: Site) -> None:
    process = site.started()
    site.config.write_text(CONFIGURATION + JOB.format(name="backup"))
    site.until_logged("the configuration was read again: 1 job; added: backup\n")
    listed = json.loads(site.call("list", "--json").stdout)
    assert [schedule["key"] for schedule in listed] == ["backup"]
    site.config.write_text(CONFIGURATION)
    site.until_logged("read again: 0 jobs; gone: backup (`evertick apply --prune` removes it)\n")
    [listed] = json.loads(site.call("list", "--json").stdout)
    assert listed["is_paused"]
    # Nothing is wrong with that, but it is told who takes it away.
    status, doctor = site.call("status"), site.call("doctor")
    left = "1 schedule is paused, in no configuration any more: backup"
    assert (status.returncode, f"{left}; `evertick apply --prune` removes it" in status.stdout) == (0, True)
    assert json.loads(site.call("status", "--json").stdout)["left_over"] == ["backup"]
    assert left in " ".join(doctor.stdout.split())
    assert "put it back into the file, or remove it with `evertick apply --prune`" in " ".join(doctor.stdout.split())
    # One that is only disabled is not left over.
    site.config.write_text(CONFIGURATION + JOB.format(name="backup"))
    site.until_logged("the configuration was read again: 1 job; added: backup\n", 2)
    site.config.write_text(CONFIGURATION + JOB.format(name="backup") + "enabled = false\n")
    site.until_logged("the configuration was read again: 1 job; changed: backup\n")
    assert json.loads(site.call("status", "--json").stdout)["left_over"] == []
    assert process.poll() is None


@pytest.mark.parametrize("is_asked", [False, True], ids=["by itself", "on a signal"])
def test_what_is_hardly_meant_in_new_files_is_in_the_log(site: Site, is_asked: bool) -> None:
    how = 'reload = "signal"' if is_asked else 'reload = "change"'
    before = CONFIGURATION.replace("[daemon]", f"[daemon]\n{how}")
    site.config.write_text(before)
    process = site.started()
    job = JOB.format(name="backup").replace('"true"', '{ command = "true", cwd = "/no/such" }')
    site.config.write_text(before + job)
    if is_asked:
        process.send_signal(signal.SIGUSR1)
    site.until_logged("jobs.backup.shell.cwd: there is no directory /no/such on this machine; make it, or correct")
    site.until_logged("the configuration was read again: 1 job")
    assert [schedule["key"] for schedule in json.loads(site.call("list", "--json").stdout)] == ["backup"]


def test_a_file_that_is_wrong_changes_nothing_and_the_status_says_so(site: Site) -> None:
    site.config.write_text(CONFIGURATION + JOB.format(name="backup"))
    process = site.started()
    site.config.write_text(CONFIGURATION + JOB.format(name="backup").replace("every", "evry"))
    site.until_logged("the new configuration does not hold: ")
    status = site.call("status", "--json")
    told = json.loads(status.stdout)
    assert (status.returncode, told["status"]) == (1, "warning")
    assert any("evry" in problem for problem in told["daemons"][0]["problems"])
    assert "the new configuration of the daemon does not hold" in told["summary"]
    assert told["daemons"][0]["pid"] == process.pid
    assert [schedule["key"] for schedule in json.loads(site.call("list", "--json").stdout)] == ["backup"]
    site.config.write_text(CONFIGURATION + JOB.format(name="backup") + "\n# mended\n")
    site.until_logged("the configuration was read again: 1 job")
    assert site.call("status").returncode == 0


def test_an_unknown_calendar_is_reported_with_its_line_at_the_start_and_changes_nothing_at_a_reload(site: Site) -> None:
    job = CONFIGURATION + JOB.format(name="backup")
    site.config.write_text(job + 'calendar = "holidays"\n')
    process = site.start()
    assert process.wait(60) != 0
    line = job.count("\n", 0, job.index("[jobs.backup]")) + 1
    nowhere = f"evertick.toml:{line}: schedule 'backup': calendar 'holidays' is not defined; define it first"
    assert nowhere in process.communicate()[1]
    site.config.write_text(job.replace('"true"', '"echo old"'))
    site.started()
    site.config.write_text(job.replace('"true"', '"echo new"') + 'calendar = "holidays"\n')
    last = site.config.read_text().count("\n")
    site.until_logged(f"the new configuration does not hold: evertick.toml:{last}: jobs.backup.calendar: there is no ")
    assert site.call("trigger", "backup").returncode == 0
    told = site.call("logs", "--follow", "backup")
    assert (told.returncode, "old" in told.stdout, "new" in told.stdout) == (0, True, False)


def test_a_broker_that_comes_with_a_reload_works_and_its_password_is_in_no_log(site: Site) -> None:
    with redis_server("--requirepass", "opensesame") as server:
        site.started("-v")
        forgotten = '[jobs.build]\nevery = "1h"\nredis = { queue = "q", mode = "forget" }\n'
        finished = '[jobs.other]\nevery = "1h"\nredis = "q"\n'
        site.config.write_text(f'{CONFIGURATION}[redis]\nurl = "{server.url}"\n{forgotten}{finished}')
        site.until_logged("the configuration was read again: 2 jobs; added: ")
        assert site.call("trigger", "build").returncode == 0
        assert site.call("logs", "--follow", "build").returncode == 0  # it has succeeded
        server.kill()
        site.until_logged("reports of workers cannot be read")
        assert "opensesame" not in site.logged()
        assert "not in force before a restart" not in site.logged()
        assert "Traceback" not in site.logged()


@pytest.mark.parametrize(
    ("right", "wrong"),
    [
        ('every = "1h"', "every = 1h"),
        ('shell = "true"', 'shell = "true'),
        ("[node]", "[node]\nleese = 5"),
        ("[log]", "[log"),
    ],
)
def test_a_file_that_cannot_be_read_any_more_is_a_warning_while_its_daemon_runs(
    site: Site, right: str, wrong: str
) -> None:
    whole = CONFIGURATION + JOB.format(name="backup")
    site.config.write_text(whole)
    process = site.started()
    site.config.write_text(whole.replace(right, wrong))
    status = site.call("status")
    assert status.returncode == 1, status
    assert status.stdout.startswith("WARNING: the new configuration of the daemon does not hold: evertick.toml:")
    assert f"process {process.pid} of {site.config}" in status.stdout
    process.terminate()
    assert process.wait(60) == 0
    status = site.call("status")
    assert (status.returncode, status.stdout[:24]) == (3, "UNKNOWN: evertick.toml:" + status.stdout[23])


def test_daemons_that_share_a_state_directory_each_have_a_report(site: Site) -> None:
    first = site.started()
    other = site.folder / "other.toml"
    other.write_text(CONFIGURATION.replace("evertick.pid", "other.pid").replace("evertick.log", "other.log"))
    second = site.start("--config", "other.toml")
    until(lambda: len(list(site.folder.glob("state/daemon.*.json"))) == 2, "the second starts")
    told = site.call("status").stdout
    assert f"process {first.pid} of {site.config}" in told
    assert f"process {second.pid} of {other}" in told
    second.terminate()
    assert second.wait(60) == 0
    told = json.loads(site.call("status", "--json").stdout)
    assert [(each["pid"], each["config"]) for each in told["daemons"]] == [(first.pid, str(site.config))]
    assert "does" not in told["daemons"][0]


@pytest.mark.parametrize("end", [signal.SIGTERM, signal.SIGKILL])
def test_a_daemon_by_another_file_says_whose_jobs_it_pauses_and_how_to_keep_them(
    site: Site, end: signal.Signals
) -> None:
    job = "[jobs.{}]\nevery = '1d'\nshell = 'true'\n"
    site.config.write_text(CONFIGURATION + job.format("first"))
    first = site.started()
    # It says so a moment after its node is there.
    until((site.folder / "state" / f"daemon.{first.pid}.json").exists, "the first daemon has its report")
    first.send_signal(end)
    first.wait(60)
    other = site.folder / "other.toml"
    other.write_text(CONFIGURATION + job.format("second"))
    second = site.started("--config", "other.toml")
    site.until_logged(
        f"{site.config} has jobs that {other} has not (first): both go by the ledger "
        f"sqlite:///{site.folder}/state/evertick.db, the app 'default' and the node name 'box', so these jobs are "
        "paused while no daemon of that file runs; give one of the two files an `app` or a `name` of its own under "
        "[node]"
    )
    second.terminate()
    assert second.wait(60) == 0
    # By itself again, and with an app of its own, it pauses nobody's.
    site.started("--config", "other.toml").terminate()
    other.write_text(other.read_text().replace("[node]", "[node]\napp = 'other'"))
    site.until_logged("has stopped", count=3 if end == signal.SIGTERM else 2)
    site.config.write_text(CONFIGURATION)
    site.started("--config", "other.toml")
    assert site.logged().count(" has jobs that ") == 1


def test_what_needs_a_restart_is_named(site: Site) -> None:
    site.started()
    site.config.write_text(CONFIGURATION.replace("[node]", "[node]\nconcurrency = 3"))
    site.until_logged("changed, but not in force before a restart: node.concurrency")
    assert "node.concurrency" in site.call("status").stdout


def test_where_only_a_signal_reloads_a_change_waits_for_it(site: Site) -> None:
    site.config.write_text(CONFIGURATION.replace("[daemon]", '[daemon]\nreload = "signal"'))
    process = site.started()
    site.config.write_text(site.config.read_text() + JOB.format(name="backup"))
    with pytest.raises(subprocess.TimeoutExpired):
        process.wait(5 * LOOK_SECONDS)  # a daemon that looks at its files would have seen it
    assert "the configuration was read again" not in site.logged()
    process.send_signal(signal.SIGUSR1)
    site.until_logged("SIGUSR1: the configuration is read again")
    site.until_logged("the configuration was read again: 1 job")


def test_where_reloading_is_off_a_signal_is_ignored_and_logged(site: Site) -> None:
    site.config.write_text(CONFIGURATION.replace("[daemon]", '[daemon]\nreload = "off"'))
    process = site.started()
    process.send_signal(signal.SIGUSR1)
    site.until_logged("SIGUSR1: ignored, since daemon.reload is off")
    process.terminate()
    assert process.wait(60) == 0


def test_what_jobs_do_is_held_against_the_running_daemon(site: Site) -> None:
    before = CONFIGURATION.replace("[daemon]", '[daemon]\nreload = "signal"') + JOB.format(name="backup")
    site.config.write_text(before)
    process = site.started()
    assert "does something else" not in site.call("apply", "--dry-run").stdout
    # It can tell that nothing has changed, so nothing is said of commands.
    assert site.call("apply", "--yes").stderr == "note: nothing was changed\n"
    site.config.write_text(
        before.replace('"true"', '"false"') + "[defaults]\ntimeout = '5m'\n" + JOB.format(name="pkg")
    )
    look = site.call("apply", "--dry-run")
    assert "~ backup does something else: shell, timeout" in look.stdout
    assert look.stdout.splitlines()[-1].endswith("; 1 job does something else")
    assert f"process {process.pid}, has not read the file yet: `kill -USR1 {process.pid}`" in " ".join(
        look.stderr.split()
    )
    told = json.loads(site.call("apply", "--dry-run", "--json").stdout)
    assert told["doing"] == {"backup": ["shell", "timeout"]}
    # A file that is not in place yet is held against the same daemon.
    (site.folder / "new.toml").write_text(before.replace('"true"', '"no"'))
    look = site.call("apply", "--dry-run", "--config", "new.toml")
    assert "~ backup does something else: shell" in look.stdout
    assert f"goes by {site.config}" in " ".join(look.stderr.split())
    process.send_signal(signal.SIGUSR1)
    site.until_logged("the configuration was read again")
    until(lambda: "does something else" not in site.call("apply", "--dry-run").stdout, "the daemon does the same")


def test_what_the_live_daemon_of_another_file_declares_is_not_pruned(site: Site) -> None:
    site.config.write_text(CONFIGURATION + JOB.format(name="theirs"))
    process = site.started()
    # Another folder with the same ledger, and nodes of the same name.
    mine = site.folder / "mine"
    mine.mkdir()
    here = CONFIGURATION.replace('"state', f'"{site.folder}/state')
    (mine / "evertick.toml").write_text(here + JOB.format(name="mine"))
    flags = ("--config", str(mine / "evertick.toml"), "--yes")
    refused = site.call("apply", *flags, "--prune")
    said = " ".join(refused.stderr.split())
    assert (refused.returncode, f"theirs (the daemon of {site.config}, process {process.pid})" in said) == (1, True)
    assert "give one of the two files an `app` or a `name` of its own under [node]" in said
    assert "mine" not in site.call("list").stdout
    # Without --prune it is not among what has gone from the file.
    applied = site.call("apply", *flags)
    assert (applied.returncode, "not in the configuration any more" in applied.stderr) == (0, False)
    assert f"theirs (the daemon of {site.config}" in " ".join(applied.stderr.split())
    told = json.loads(site.call("apply", *flags, "--json").stdout)
    assert (told["left"], list(told["elsewhere"])) == ([], ["theirs"])
    # A daemon that goes by this very file, and has not read it again, holds nothing up.
    site.config.write_text(CONFIGURATION.replace("[daemon]", '[daemon]\nreload = "signal"') + JOB.format(name="theirs"))
    process.terminate()
    assert process.wait(60) == 0
    assert site.call("apply", "--yes", "--prune").returncode == 0
    assert [each["key"] for each in json.loads(site.call("list", "--json").stdout)] == ["theirs"]
    site.started()
    site.config.write_text(site.config.read_text().replace("theirs", "other"))
    assert site.call("apply", "--yes", "--prune").returncode == 0
    assert [each["key"] for each in json.loads(site.call("list", "--json").stdout)] == ["other"]


def test_a_node_whose_file_is_not_known_here_keeps_its_schedules_while_it_lives(site: Site) -> None:
    database = f"[database]\nurl = 'sqlite:///{site.folder}/jobs.db'\n"
    site.config.write_text(database + CONFIGURATION + JOB.format(name="theirs"))
    process = site.started()
    (site.folder / "new.toml").write_text(database + CONFIGURATION.replace('"state', '"elsewhere'))
    refused = site.call("apply", "--yes", "--prune", "--config", "new.toml")
    assert refused.returncode == 1
    assert "theirs (node box, whose file is not known here)" in " ".join(refused.stderr.split())
    process.terminate()
    assert process.wait(60) == 0
    assert site.call("apply", "--yes", "--prune", "--config", "new.toml").returncode == 0
    assert json.loads(site.call("list", "--json").stdout) == []
