"""`evertick import`, which needs no database and schedules nothing."""

from __future__ import annotations

import json
import os
import stat
import subprocess
import tomllib
from datetime import UTC, datetime
from pathlib import Path

import pytest
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from click.testing import CliRunner

from evertick.cli import cli
from evertick.config.load import load_configuration

LINES = "# Saves everything.\n30 2 * * * backup --all\n0 9 * * mon-fri report\n"


@pytest.fixture
def crontab(tmp_path: Path) -> Path:
    path = tmp_path / "crontab"
    path.write_text(LINES)
    return path


def test_a_crontab_becomes_a_file_of_jobs(evertick, crontab):
    result = evertick("import", "crontab", str(crontab), "--tz", "Europe/Berlin")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == ""
    jobs = tomllib.loads(result.stdout)["jobs"]
    assert list(jobs) == ["backup", "report"]
    assert (jobs["backup"]["cron"], jobs["backup"]["tz"]) == ("30 2 * * *", "Europe/Berlin")
    assert jobs["backup"]["description"] == "Saves everything."
    assert jobs["backup"]["shell"]["command"] == "backup --all"
    assert f"# The jobs of {crontab}" in result.stdout


def test_a_crontab_is_read_from_standard_input(monkeypatch):
    monkeypatch.setenv("TZ", "Asia/Tokyo")
    for args in ([], ["-"]):
        result = CliRunner().invoke(cli, ["import", "crontab", *args], input=LINES)
        assert result.exit_code == 0
        assert tomllib.loads(result.stdout)["jobs"]["report"]["tz"] == "Asia/Tokyo"


def test_lines_that_cannot_be_imported_are_reported_on_stderr_in_the_file_and_by_the_exit_code(evertick, tmp_path):
    crontab, output = tmp_path / "crontab", tmp_path / "jobs.toml"
    crontab.write_text("MAILTO=me\n@reboot date\n0 1 * * * tidy\n")
    result = evertick("import", "crontab", str(crontab), "--tz", "UTC", "--output", str(output))
    assert result.exit_code == 1
    assert "note: line 1: not carried over: MAILTO=me: cron mails the output of jobs" in result.stderr
    assert "note: line 2: not carried over: @reboot 'date': Evertick has no boot trigger" in result.stderr
    assert result.stdout == (
        f"1 job written to {output}; with enabled = false: check them, and remove that key when cron no longer runs "
        "the job\n"
    )
    assert "line 2: not carried over: @reboot" in output.read_text()
    assert list(tomllib.loads(output.read_text())["jobs"]) == ["tidy"]
    assert stat.S_IMODE(output.stat().st_mode) == 0o600


def test_imported_jobs_are_disabled(evertick, crontab, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.d").mkdir()
    # Defaults that cron does not have.
    (tmp_path / "evertick.toml").write_text(
        "[defaults]\nretry = { constant = '1m', attempts = 5 }\noverlap = 'skip'\non_lost = 'rerun'\n"
    )
    imported = ("import", "crontab", str(crontab), "--tz", "UTC", "--output", "jobs.d/cron.toml")
    result = evertick(*imported)
    assert "2 jobs written to jobs.d/cron.toml; each with enabled = false: check them" in result.stdout
    written = (tmp_path / "jobs.d/cron.toml").read_text()
    assert "# job; to remove it from all jobs at once: sed -i '/^enabled = false$/d' cron.toml\n" in written
    assert "evertick.toml is valid: 2 jobs, all of them disabled" in evertick("config", "check").stdout
    assert not any(job.is_enabled for job in load_configuration().jobs)
    subprocess.run(["sed", "-i", "/^enabled = false$/d", "jobs.d/cron.toml"], check=True)
    by_hand = (tmp_path / "jobs.d/cron.toml").read_text()
    for job in load_configuration().jobs:
        assert job.is_enabled
        assert (job.definition.overlap, job.definition.catch_up) == ("allow", "skip")
        assert (job.task_options["retry"].attempts, job.task_options["on_lost"]) == (1, "fail")
    # With --enabled the jobs are the same, but enabled.
    result = evertick(*imported, "--force", "--enabled")
    assert "; check it; a daemon that reads it runs the jobs\n" in result.stdout
    at_once = (tmp_path / "jobs.d/cron.toml").read_text()
    assert tomllib.loads(at_once) == tomllib.loads(by_hand)
    assert "enabled = false" not in at_once


def test_an_existing_file_is_not_overwritten_without_the_option(evertick, crontab, tmp_path):
    output = tmp_path / "jobs.toml"
    output.write_text("mine")
    args = ("import", "crontab", str(crontab), "--tz", "UTC", "--output", str(output))
    result = evertick(*args)
    assert result.exit_code == 1
    assert f"'{output}' already exists; choose another --output, or write --force" in result.stderr
    assert output.read_text() == "mine"
    assert evertick(*args, "--force").exit_code == 0
    assert "backup" in output.read_text()


def test_a_missing_folder_is_an_error(evertick, crontab, tmp_path):
    result = evertick("import", "crontab", str(crontab), "--tz", "UTC", "--output", str(tmp_path / "no/jobs.toml"))
    assert result.exit_code == 1
    assert f"there is no directory '{tmp_path}/no' for --output; create it first" in result.stderr


def test_lines_of_a_system_crontab_have_their_users(evertick, tmp_path):
    path = tmp_path / "shop"
    path.write_text("17 * * * * www-data tidy\n")
    result = evertick("import", "crontab", str(path), "--system", "--tz", "UTC")
    assert tomllib.loads(result.stdout)["jobs"]["tidy"]["shell"]["user"] == "www-data"
    assert "# Jobs with a user need a node that runs as root." in result.stdout


@pytest.mark.parametrize("place", ["crontab", "cron.d/shop"])
def test_a_system_crontab_is_recognised_by_its_path(evertick, tmp_path, monkeypatch, place):
    monkeypatch.setattr("evertick.cli.command.imports._SYSTEM", tmp_path / "crontab")
    monkeypatch.setattr("evertick.cli.command.imports._SYSTEM_FOLDER", tmp_path / "cron.d")
    monkeypatch.chdir(tmp_path)
    path = tmp_path / place
    path.parent.mkdir(exist_ok=True)
    path.write_text("17 * * * * daemon tidy --all\n")
    # From any directory, and in any spelling.
    result = evertick("import", "crontab", f"./{place}", "--tz", "UTC")
    assert result.exit_code == 0, result.stderr
    assert result.stderr == f"note: ./{place} is a system crontab, in which each line names its user\n"
    job = tomllib.loads(result.stdout)["jobs"]["tidy"]
    assert (job["shell"]["user"], job["shell"]["command"]) == ("daemon", "tidy --all")
    result = evertick("import", "crontab", str(path), "--user", "ada")
    assert result.exit_code == 2
    assert f"in {path} each line names its user; leave out --user" in result.stderr


def test_a_column_of_users_is_recognised_in_other_files(evertick, tmp_path):
    path = tmp_path / "shop"
    # Some users have names of programs; the word after them is no command.
    lines = ("daemon tidy --all", "cat /etc/hosts", "tidy --all", "root tidy", "backup --all")
    path.write_text("".join(f"1 * * * * {line}\n" for line in lines))
    notes = evertick("import", "crontab", str(path), "--tz", "UTC").stderr.splitlines()
    assert [note.partition(": the program")[0] for note in notes] == [
        "note: line 1: 'daemon tidy --all'",
        "note: line 4: 'root tidy'",
    ]
    assert notes[0].endswith(
        "the program daemon has the name of a user; import a system crontab, in which each line names its user, with "
        "--system"
    )


def test_a_second_import_keeps_the_job_names_of_the_first(evertick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "jobs.d").mkdir()
    (tmp_path / "evertick.toml").write_text('[jobs.report]\nevery = "1h"\nshell = "true"\n')
    for name in ("one", "two"):
        (tmp_path / name).write_text(f"1 2 * * * backup --{name}\n0 9 * * * report\n")
    result = evertick("import", "crontab", "one", "--tz", "UTC", "--output", "jobs.d/one.toml")
    assert result.stderr == (
        f"note: line 2: {tmp_path}/evertick.toml already has a job 'report'; this one is called 'report-2'\n"
    )
    first = (tmp_path / "jobs.d/one.toml").read_text()
    result = evertick("import", "crontab", "two", "--tz", "UTC", "--output", "jobs.d/two.toml")
    assert result.stderr.splitlines() == [
        "note: line 1: jobs.d/one.toml already has a job 'backup'; this one is called 'backup-2'",
        f"note: line 2: {tmp_path}/evertick.toml already has a job 'report'; this one is called 'report-3'",
    ]
    second = (tmp_path / "jobs.d/two.toml").read_text()
    assert (tmp_path / "jobs.d/one.toml").read_text() == first
    assert "# Notes of the import:\n#   line 1: jobs.d/one.toml already has a job 'backup'" in second
    result = evertick("config", "check")
    assert (result.exit_code, "evertick.toml is valid: 5 jobs" in result.stdout) == (0, True), result.stdout
    # What is imported anew keeps the names that it has.
    for name, text in (("one", first), ("two", second)):
        evertick("import", "crontab", name, "--tz", "UTC", "--output", f"jobs.d/{name}.toml", "--force")
        assert (tmp_path / f"jobs.d/{name}.toml").read_text() == text


def test_an_import_as_json_has_jobs_and_notes(evertick, tmp_path):
    path = tmp_path / "crontab"
    path.write_text("@reboot date\n0 1 * * * tidy\n")
    result = evertick("import", "crontab", str(path), "--tz", "UTC", "--user", "ada", "--json")
    found = json.loads(result.stdout)
    assert [job["name"] for job in found["jobs"]] == ["tidy"]
    assert found["jobs"][0]["spec"]["user"] == "ada"
    assert [(note["where"], note["kind"]) for note in found["notes"]] == [("line 1", "lost")]
    assert result.exit_code == 1


@pytest.mark.parametrize(
    ("args", "words"),
    [
        (["no-such-file"], "there is no file 'no-such-file'"),
        (["/"], "'/' cannot be read: "),
        (
            ["-", "--system", "--user", "ada"],
            "with --system each line names its user; leave out --user",
        ),
        (["-", "--tz", "Mars/North"], "Mars/North"),
    ],
)
def test_usage_errors_are_reported(evertick, args, words):
    result = evertick("import", "crontab", *args)
    assert result.exit_code in (1, 2)
    assert words in result.stderr


def test_a_line_that_is_no_text_is_reported_with_its_number(evertick, tmp_path):
    path = tmp_path / "crontab"
    path.write_bytes(b"# fine\n0 1 * * * f\xfcr\n")
    result = evertick("import", "crontab", str(path))
    assert "line 2 is not UTF-8 text; convert it, e.g. with iconv" in result.stderr


def tidy():
    """The function of the job in the store."""


@pytest.fixture
def job_store(tmp_path):
    """One job that can be imported, and one that cannot."""
    url = f"sqlite:///{tmp_path}/jobs.sqlite"
    store, scheduler = SQLAlchemyJobStore(url), BackgroundScheduler(timezone="UTC")
    store.start(scheduler, "default")
    for id_, options in {"nightly": {}, "weekly": {"week": 5}}.items():
        job = scheduler.add_job(tidy, "cron", hour=3, id=id_, misfire_grace_time=None, coalesce=True, **options)
        job.max_instances, job.next_run_time = 1, datetime(2026, 1, 1, tzinfo=UTC)
        store.add_job(job)
    store.engine.dispose()
    return url


def test_a_store_of_apscheduler_becomes_a_module(evertick, job_store, tmp_path):
    output = tmp_path / "schedules.py"
    result = evertick("import", "apscheduler", job_store, "--output", str(output))
    assert result.exit_code == 1
    assert "note: job 'weekly': not carried over: the cron trigger has weeks of the year, which" in result.stderr
    assert result.stdout == f"1 job written to {output}; check it before you use it\n"
    assert "scheduler.cron('0 3 * * *', key='nightly', tz='UTC')(tidy)" in output.read_text()
    found = json.loads(evertick("import", "apscheduler", job_store, "--json").stdout)
    assert [job["rule"] for job in found["jobs"]] == [{"cron": "0 3 * * *", "tz": "UTC"}]


def test_an_imported_apscheduler_job_does_not_take_an_existing_name(evertick, job_store, tmp_path):
    first, second = tmp_path / "first.py", tmp_path / "second.py"
    evertick("import", "apscheduler", job_store, "--output", str(first))
    (tmp_path / "broken.py").write_text("from evertick import (")
    result = evertick("import", "apscheduler", job_store, "--output", str(second))
    note = f"note: job 'nightly': {first} already has a job 'nightly'; this one is called 'nightly-2'"
    assert note in result.stderr.splitlines()
    assert "key='nightly'," in first.read_text()
    assert "key='nightly-2'," in second.read_text()
    (tmp_path / "crontab").write_text("1 2 * * * nightly\n")
    result = evertick("import", "crontab", str(tmp_path / "crontab"), "--output", str(tmp_path / "jobs.toml"))
    assert f"{first} already has a job 'nightly'; this one is called 'nightly-3'" in result.stderr


def test_an_unreachable_store_is_reported_without_its_password(evertick):
    result = evertick("import", "apscheduler", "postgresql+psycopg://me:geheim@127.0.0.1:1/none")
    assert result.exit_code == 1
    assert "table 'apscheduler_jobs' of " in result.stderr
    assert "geheim" not in result.stderr


def test_a_file_given_as_a_url_is_refused_with_its_url(evertick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "aps.sqlite").touch()
    result = evertick("import", "apscheduler", "aps.sqlite")
    assert result.exit_code == 2
    assert "write it as sqlite:///aps.sqlite" in result.stderr


def test_an_empty_crontab_is_reported(evertick, tmp_path):
    (tmp_path / "crontab").touch()
    result = evertick("import", "crontab", str(tmp_path / "crontab"))
    assert (result.exit_code, "no job was found" in result.stderr) == (0, True)


def test_invisible_characters_of_a_line_are_escaped(evertick, tmp_path):
    """U+202E shows the rest of a line backwards, which can hide `rm -rf /`."""
    nasty = "say \u202e'gnihtyreve\u202c' \x9b2J\x7f \u2066x\u2069 \ufeff\U000e0041 grün 👩\u200d🔧"
    (tmp_path / "crontab").write_text(f"# \u202etesrever\nNAME=\u202evalue\n0 1 * * * {nasty}\n@reboot {nasty}\n")
    for args in ([], ["--json"]):
        result = evertick("import", "crontab", str(tmp_path / "crontab"), "--tz", "UTC", *args)
        shown = result.stdout + result.stderr
        assert [letter for letter in shown if letter in "\u202e\u202c\x9b\x7f\u2066\u2069\ufeff\U000e0041"] == []
        assert "grün" in shown
        assert "\\u202e'gnihtyreve\\u202c'" in shown
    [job] = tomllib.loads(evertick("import", "crontab", str(tmp_path / "crontab"), "--tz", "UTC").stdout)[
        "jobs"
    ].values()
    assert job["shell"]["command"] == nasty
    assert job["shell"]["env"]["NAME"] == "\u202evalue"
    [message] = json.loads(result.stdout)["jobs"]
    assert message["spec"]["command"] == nasty


def test_a_file_name_cannot_end_a_comment_in_the_output(evertick, tmp_path):
    path = tmp_path / "a\n[jobs.evil]\nx = 1 #"
    path.write_text(LINES)
    result = evertick("import", "crontab", str(path), "--tz", "UTC")
    assert list(tomllib.loads(result.stdout)["jobs"]) == ["backup", "report"]


def test_a_pipe_without_a_writer_is_refused_at_once(evertick, tmp_path):
    os.mkfifo(tmp_path / "pipe")
    result = evertick("import", "crontab", str(tmp_path / "pipe"))
    assert result.exit_code == 1
    problem = f"'{tmp_path}/pipe' cannot be read: it is a named pipe, not a regular file"
    assert result.stderr == f"error: {problem}; name a readable file, or write - for stdin\n"
    # Names beside the output are searched only in regular files.
    (tmp_path / "crontab").write_text(LINES)
    os.mkfifo(tmp_path / "jobs.toml")
    assert evertick("import", "crontab", str(tmp_path / "crontab"), "--output", str(tmp_path / "o.toml")).exit_code == 0


def test_a_file_descriptor_of_the_shell_is_read_like_standard_input(start, tmp_path):
    (tmp_path / "crontab").write_text(LINES)
    reading, writing = os.pipe()
    os.write(writing, LINES.encode())
    os.close(writing)
    process = start("import", "crontab", f"/dev/fd/{reading}", "--tz", "UTC", pass_fds=[reading])
    os.close(reading)
    assert list(tomllib.loads(process.communicate()[0])["jobs"]) == ["backup", "report"]


def test_a_job_without_a_program_name_is_named_after_its_cron_d_file(evertick, tmp_path):
    (tmp_path / "cron.d").mkdir()
    path = tmp_path / "cron.d/shop_tools"
    lines = "0 1 * * * root [ -x /usr/lib/shop/cron ] && /usr/lib/shop/cron\n0 2 * * * root find /srv -delete\n"
    path.write_text(lines)
    for source, names in ((path, ["shop-tools-cron", "shop-tools-find"]), (tmp_path / "crontab", ["cron", "find"])):
        source.write_text(lines)
        result = evertick("import", "crontab", "--system", str(source), "--tz", "UTC")
        assert list(tomllib.loads(result.stdout)["jobs"]) == names
