"""Crontabs, read as Debian's cron reads them."""

from __future__ import annotations

import re
import tomllib
from pathlib import Path
from typing import Any

import pytest

from evertick import InvalidInput
from evertick.driver.shell.spec import is_user
from evertick.imports.crontab import CrontabOptions, local_zone, read_crontab
from evertick.imports.imported import ImportResult, Job
from evertick.imports.job_names import name_for
from evertick.imports.toml import to_toml

PATH = "/usr/bin:/bin"


def read(text: str, **options: Any) -> ImportResult:
    return read_crontab(text, CrontabOptions(**{"tz": "Europe/Berlin", **options}))


def only(text: str, **options: Any) -> Job:
    imported = read(text + "\n", **options)
    assert [note.text for note in imported.notes if note.kind == "lost"] == []
    [job] = imported.jobs
    return job


def notes(text: str, **options: Any) -> list[tuple[str, str, str]]:
    return [(note.where, note.kind, note.text) for note in read(text + "\n", **options).notes]


def test_a_line_becomes_a_job_that_does_what_cron_did() -> None:
    job = only("30 2 * * *  /usr/local/bin/backup.sh --all", home="/home/ada")
    assert job == Job(
        name="backup",
        where="line 1",
        source="30 2 * * *  /usr/local/bin/backup.sh --all",
        rule={"cron": "30 2 * * *", "tz": "Europe/Berlin"},
        options={
            "overlap": "allow",
            "catch_up": "skip",
            "retry": {"constant": "1h", "attempts": 1},
            "on_lost": "fail",
        },
        driver="shell",
        spec={
            "command": "/usr/local/bin/backup.sh --all",
            "cwd": "/home/ada",
            "clean_env": True,
            "env": {"PATH": PATH, "HOME": "/home/ada"},
        },
    )


# --- users


def test_in_the_format_of_the_system_each_line_names_its_user() -> None:
    job = only("17 *\t* * *\troot    cd / && run-parts --report /etc/cron.hourly", has_users=True)
    assert job.spec == {
        "command": "cd / && run-parts --report /etc/cron.hourly",
        "user": "root",
        "clean_env": True,
        "env": {"PATH": PATH},
    }
    assert only("@daily www-data tidy", has_users=True).spec["user"] == "www-data"


def test_the_user_of_a_crontab_may_be_named_and_then_starts_at_home() -> None:
    job = only("@daily tidy", user="ada", home="/root")
    assert (job.spec["user"], "cwd" in job.spec) == ("ada", False)


def test_an_unknown_user_is_reported_with_its_line() -> None:
    text = "@daily root tidy\n@daily nobody-of-this-name tidy\n@daily root:adm tidy\n@daily ada:adm\n"
    imported = read_crontab(text, CrontabOptions(tz="UTC", has_users=True, is_user=is_user))
    assert [job.spec["user"] for job in imported.jobs] == ["root", "nobody-of-this-name", "root"]
    assert [(note.where, note.kind) for note in imported.notes] == [
        ("line 2", "check"),
        ("line 3", "dropped"),
        ("line 4", "lost"),
    ]
    assert "user 'nobody-of-this-name' does not exist on this machine" in imported.notes[0].text
    assert imported.notes[1].text.startswith("'root:adm': a job runs with the groups of its user")


@pytest.mark.parametrize("line", ["0 0 * * *", "0 0 * * * root", "@daily", "@daily root"])
def test_a_line_of_the_system_without_a_command_is_reported(line: str) -> None:
    [(where, kind, text)] = notes(line, has_users=True)
    assert (where, kind) == ("line 1", "lost")
    assert text == f"{line!r}: a user and a command must follow the time; cron rejects it, too"


# --- variables


def test_variables_hold_for_the_lines_below_them() -> None:
    imported = read('0 1 * * * a\nX=1\n0 2 * * * b\nX=2\nY=\'two words \'\n"Z" = " "\n0 3 * * * c\n')
    env = [dict(job.spec["env"]) for job in imported.jobs]
    assert env == [
        {"PATH": PATH},
        {"PATH": PATH, "X": "1"},
        {"PATH": PATH, "X": "2", "Y": "two words ", "Z": " "},
    ]
    assert imported.notes == ()


def test_path_shell_and_home_are_carried_over() -> None:
    job = only("PATH=/opt/bin\nSHELL=/bin/bash\nHOME=/srv\n@daily x", home="/root")
    assert job.spec["env"] == {"PATH": "/opt/bin", "SHELL": "/bin/bash", "HOME": "/srv"}
    assert (job.spec["shell"], job.spec["cwd"]) == ("/bin/bash", "/srv")


def test_a_line_with_an_assignment_in_its_command_is_no_variable() -> None:
    assert only("0 0 * * * X=1 tidy").spec["command"] == "X=1 tidy"


def test_mail_is_not_carried_over_and_a_note_names_the_alternatives() -> None:
    [(where, kind, text)] = notes("MAILTO=ops@example.org")
    assert (where, kind) == ("line 1", "dropped")
    assert "`evertick logs RUN`" in text
    assert "`evertick failed --json`" in text
    # Commands can still use it.
    assert only("MAILTO=ops@example.org\n@daily x").spec["env"]["MAILTO"] == "ops@example.org"
    # An empty MAILTO turns mails off.
    assert notes('MAILTO=""') == []


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("MAILFROM=x", "cron mails the output of jobs"),
        ("RANDOM_DELAY=10", 'set jitter, e.g. jitter = "10m"'),
        ("START_HOURS_RANGE=3-22", "it is for anacron"),
        ("LOGNAME=x", "cron also ignores it and sets the name of the user"),
        ("MY-VAR=x", "not a valid variable name for a job"),
        ("EVERTICK_X=x", "not a valid variable name for a job"),
    ],
)
def test_variables_that_are_not_carried_over_are_reported(line: str, words: str) -> None:
    [(_, kind, text)] = notes(line)
    assert kind == "dropped"
    assert text.startswith(f"{line}: ")
    assert words in text


# --- zones


def test_cron_tz_is_the_zone_of_the_lines_below_and_a_note_says_that_debian_ignores_it() -> None:
    text = "0 1 * * * a\nCRON_TZ=America/New_York\n0 2 * * * b\nCRON_TZ=\n0 3 * * * c\n"
    imported = read(text)
    assert [job.rule["tz"] for job in imported.jobs] == ["Europe/Berlin", "America/New_York", "Europe/Berlin"]
    assert [note.kind for note in imported.notes] == ["check", "check"]
    assert "Debian's cron ignores this line; to ignore it, too, import with --ignore-cron-tz" in imported.notes[0].text
    as_debian = read(text, honours_cron_tz=False)
    assert {job.rule["tz"] for job in as_debian.jobs} == {"Europe/Berlin"}
    assert as_debian.notes[0].text.startswith("CRON_TZ=America/New_York is ignored, as Debian's cron does")


def test_an_unknown_zone_is_reported() -> None:
    assert notes("CRON_TZ=Mars/North") == [
        ("line 1", "dropped", "CRON_TZ=Mars/North: unknown time zone; the times below stay in Europe/Berlin")
    ]


def test_tz_is_for_the_command_and_not_for_its_times() -> None:
    imported = read("TZ=Asia/Tokyo\n0 1 * * * a\n")
    assert imported.jobs[0].rule["tz"] == "Europe/Berlin"
    assert imported.jobs[0].spec["env"]["TZ"] == "Asia/Tokyo"
    assert [note.kind for note in imported.notes] == ["check"]


def test_the_zone_of_a_machine_is_read_from_its_settings(tmp_path: Path) -> None:
    assert local_zone(tmp_path, {}) is None
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc/timezone").write_text("Europe/Paris\n")
    assert local_zone(tmp_path, {}) == "Europe/Paris"
    (tmp_path / "etc/localtime").symlink_to("/usr/share/zoneinfo/Europe/Berlin")
    assert local_zone(tmp_path, {}) == "Europe/Berlin"
    assert local_zone(tmp_path, {"TZ": ":Asia/Tokyo"}) == "Asia/Tokyo"
    assert local_zone(tmp_path, {"TZ": "CET-1CEST"}) == "Europe/Berlin"


# --- commands


@pytest.mark.parametrize(
    ("written", "command", "stdin"),
    [
        ("plain", "plain", None),
        (r"date +\%F", "date +%F", None),
        ("cat%", "cat", "\n"),
        ("cat%one%two", "cat", "one\ntwo\n"),
        ("cat %one%", "cat", "one\n"),
        (r"cat%100\%%end", "cat", "100%\nend\n"),
        (r"printf 'a\nb' \\% x", r"printf 'a\nb' \\", " x\n"),
        (r"echo \%\%%x", "echo %%", "x\n"),
        ("echo # no comment", "echo # no comment", None),
        ("trailing \\", "trailing \\", None),
    ],
)
def test_a_percent_sign_begins_the_input(written: str, command: str, stdin: str | None) -> None:
    spec = only(f"0 0 * * * {written}").spec
    assert (spec["command"], spec.get("stdin")) == (command, stdin)


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("/usr/local/bin/backup.sh --all", "backup"),
        ("cd /srv/shop && ./report.py", "report"),
        ("cd /srv/shop; X=1 Y='a b' ./run", "run"),
        ("flock -n /run/x.lock timeout 30s sync-orders", "sync-orders"),
        ("/usr/bin/flock -w 10 -E 0 /tmp/l sync-orders", "sync-orders"),
        ("test -x /usr/sbin/anacron || ( cd / && run-parts /etc/cron.daily )", "cron-daily"),
        ("[ -d /srv ] && tidy", "tidy"),
        ("sudo -u www nice -n 10 /opt/tidy.sh", "tidy"),
        ("/usr/bin/python3 /srv/jobs/daily_report.py", "daily-report"),
        ("python3 -m shop.sync", "shop-sync"),
        ('bash -c "tidy all"', "tidy"),
        ("echo 'unclosed", "echo"),
        ("ÄÖ", "job"),
        ("bash", "bash"),
        # Steps before the program, as in packages of distributions.
        ("[ -x /usr/sbin/tidyd ] && if [ ! -d /run/systemd/system ]; then /usr/sbin/tidyd --all; fi", "tidyd"),
        ("if [ -x /opt/tidy ] && [ $(date +%d) -le 7 ]; then /opt/tidy; fi", "tidy"),
        ("if test -x /opt/tidy; then /opt/tidy --force; else true; fi", "tidy"),
        ("if [ -x /a/one ]; then /a/one; elif [ -x /a/two ]; then /a/two; fi", "one"),
        (r"test -x /opt/renew -a \! -d /run/x && perl -e 'sleep int(rand(9))' && renew -q", "renew"),
        ("python3 -c 'import time; time.sleep(9)'; renew", "renew"),
        ("[ -x /opt/renew ] && { sleep `od -An -N1 /dev/urandom`; /opt/renew; }", "renew"),
        ('test -x /opt/tidy && { [ -r "$DEFAULT" ] && . "$DEFAULT" ; nice -n$NICE /opt/tidy -q ; }', "tidy"),
        ("command -v tidy >/dev/null && TIDY_MODE=all tidy", "tidy"),
        ("[ ! -f /lock ] || ( [ -f /d ] && . /d ; /opt/tidy -q $OPTIONS )", "tidy"),
        ("test -x /opt/x && if ! nocache nice ionice -c3 /opt/x >/o 2>&1; then mailx -s X; fi", "x"),
        ("MODE=1 /usr/lib/tidy_all -A", "tidy-all"),
        ("/opt/tidy.daily&", "tidy-daily"),
        ("2>/dev/null >/log /opt/tidy", "tidy"),
        ("php /srv/site/poller.php 2>&1 >/dev/null | if [ -f /usr/bin/ts ]; then ts; else tee; fi >> /log", "poller"),
        ('dir=$({ cat /a/* || true; } | sed -n \'s/x/y/p\' | tail -1); if [ -d "$dir" ]; then tidy "$dir"; fi', "tidy"),
        ('cat /list | while read name; do tidy "$name"; done', "tidy"),
        ("for name in a b c; do tidy $name; done", "tidy"),
        ("case $(date +%u) in 1) tidy ;; 6|7) sleep 1 ;; esac", "tidy"),
        ("echo hello | mail -s hello root", "mail"),
        ("find /srv -mtime +7 -exec tidy {} +", "tidy"),
        ("find /srv -mtime +7 -exec rm {} +", "find"),
        # Programs that run another one.
        ('timeout 5m "${BIN}"/tidy', "tidy"),
        ("timeout $LIMIT tidy", "tidy"),
        ("su - shop -c 'cd /srv && tidy --all'", "tidy"),
        ("runuser -u shop -- tidy", "tidy"),
        ("flock -n /run/tidy -c 'tidy --all'", "tidy"),
        ("bash -o pipefail -lc 'cd /srv && tidy | gzip'", "tidy"),
        ("env -i A=1 tidy", "tidy"),
        ("xargs -n 1 tidy < /list", "tidy"),
        ("php -d memory_limit=1G /srv/tidy.php", "tidy"),
        ("systemctl restart tidy.service", "tidy-service"),
        ("/usr/sbin/service tidy restart", "tidy"),
        ("perl -e 'print 1'", "perl"),
        ("sleep 5", "sleep"),
        ("if true; then false; fi", "true"),
        (":", "job"),
    ],
)
def test_a_job_is_named_by_the_program_that_it_runs(command: str, name: str) -> None:
    assert name_for(command, command, ()) == name


@pytest.mark.parametrize(
    ("command", "name"),
    [
        ("[ -x /usr/sbin/shopd ] && /usr/sbin/shopd", "shopd"),
        ("[ -x /usr/lib/shop/cron ] && /usr/lib/shop/cron", "shop-tools-cron"),
        ("flock -n /run/shop/daily /srv/shop/manage.py daily", "shop-tools-manage"),
        ("find /var/lib/shop -mtime +7 -exec rm {} \\;", "shop-tools-find"),
        ("echo date | cat", "shop-tools"),
        ("[ -d /srv ]", "shop-tools"),
        ('eval "$COMMAND"', "shop-tools"),
        ("/opt/shop-tools", "shop-tools"),
    ],
)
def test_the_file_in_cron_d_names_a_job_whose_program_has_a_vague_name(command: str, name: str) -> None:
    assert name_for(command, command, (), "shop_tools") == name
    [job] = read(f"5 4 * * * root {command}\n", has_users=True, file_name="shop_tools").jobs
    assert job.name == name


@pytest.mark.parametrize(
    "command", ["sudo " * 2_000 + "x", "$(" * 5_000, "`" * 4_001, "sh -c '" * 500, "find -exec " * 900]
)
def test_a_generated_command_is_named_in_bounded_time(command: str) -> None:
    assert re.fullmatch(r"[a-z-]+", name_for(command, command, ()))


def test_names_are_unique_and_the_same_in_every_import() -> None:
    lines = ["0 1 * * * tidy", "0 2 * * * tidy --deep", "0 2 * * * tidy --deep", "0 3 * * * other"]
    first = [job.name for job in read("\n".join(lines) + "\n").jobs]
    assert first[0] == "tidy"
    assert len(set(first)) == 4
    # Another job between them changes no name.
    again = read("\n".join([lines[0], lines[3], "0 4 * * * tidy --most", lines[1]]) + "\n").jobs
    assert [again[0].name, again[1].name, again[3].name] == [first[0], first[3], first[1]]


# --- comments


def test_comments_right_above_a_line_describe_it() -> None:
    text = (
        "# A crontab\n\n# Saves everything.\n#   Takes an hour.\n0 1 * * * a\n0 2 * * * b\n"
        "# m h  dom mon dow   command\n0 3 * * * c\n# gone\nX=1\n0 4 * * * d\n"
    )
    assert [job.description for job in read(text).jobs] == ["Saves everything. Takes an hour.", "", "", ""]


def test_a_line_that_is_commented_out_is_reported_and_not_a_description() -> None:
    imported = read("#0 1 * * * old\n# @daily older\n0 2 * * * new\n")
    assert [job.description for job in imported.jobs] == [""]
    assert [(note.where, note.text) for note in imported.notes] == [
        ("line 1", "commented out, not imported: '#0 1 * * * old'"),
        ("line 2", "commented out, not imported: '# @daily older'"),
    ]


# --- what cannot be carried over


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("what is this", "'what is this': neither a time with a command nor NAME=value; cron rejects it, too"),
        ("0 0 * * *", "'0 0 * * *': a command must follow the time; cron rejects it, too"),
        ("61 * * * * x", "'61' in the minute field: allowed are 0-59"),
        ("0 0 * * fri-mon x", "cron rejects 'fri-mon', because its end is before its start; write two ranges"),
        ("0 22-2 * * * x", "cron rejects '22-2', because its end is before its start"),
        ("H 0 * * * x", "cron does not support 'H'"),
        ("0 0 L * * x", "cron does not support 'L'"),
        ("0 0 ? * * x", "cron does not support '?'"),
        ("0 0 * * 5#2 x", "cron does not support '5#2'"),
        ("0 0 30 2 * x", "never comes"),
        ("@every 5m x", "unknown nickname '@every'"),
        ("@sometimes x", "unknown nickname '@sometimes'"),
        (
            "@reboot x",
            "@reboot 'x': Evertick has no boot trigger, and the start of a daemon is not a boot; use a systemd unit",
        ),
        ("@reboot x", 'use a systemd unit of Type=oneshot, as shown under "At every boot" in how-to "Come from cron"'),
    ],
)
def test_a_line_that_cannot_be_a_job_is_reported(line: str, words: str) -> None:
    imported = read(f"0 1 * * * before\n{line}\n0 2 * * * after\n")
    assert [job.name for job in imported.jobs] == ["before", "after"]
    [note] = imported.lost
    assert note.where == "line 2"
    assert words in note.text


def test_differences_between_crons_are_reported() -> None:
    assert "in Evertick n/m begins at n" in notes("5/10 * * * * x")[0][2]
    assert "some crons read two backslashes as one" in notes(r"0 0 * * * echo \\ x")[0][2]
    assert "with --system" in notes("0 0 * * * root tidy")[0][2]
    assert "with --system" in notes("0 0 * * *\troot\t/usr/sbin/tidy")[0][2]
    [note] = read("0 0 * * * x").notes
    assert "has no line break" in note.text


def test_a_crontab_without_bounds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 1048576; import it in parts"):
        read("#" * (1024 * 1024 + 1))
    with pytest.raises(InvalidInput, match="more than 10000; import it in parts"):
        read("\n" * 10_001)


# --- the file


def test_a_written_file_reads_back_unchanged() -> None:
    nasty = 'echo "${HOME}" \'\\x\' \t\x7f ü # [jobs] """'
    text = f'X=${{HOME}}/bin\n# Say "hi" ${{Y}}\n0 0 * * * {nasty}%a\\%b%\n'
    imported = read(text)
    written = to_toml(imported, ["head", ""])
    [(name, table)] = tomllib.loads(written)["jobs"].items()
    assert name == "echo"
    assert table["shell"]["command"] == nasty
    assert table["shell"]["stdin"] == "a%b\n"
    # The configuration would expand ${NAME}, except in the fields that it leaves to the shell.
    assert table["shell"]["env"]["X"] == "$${HOME}/bin"
    assert table["description"] == 'Say "hi" $${Y}'
    assert written.startswith("# head\n#\n")


def test_notes_stand_at_the_head_of_the_file() -> None:
    written = to_toml(read("@reboot x\nMAILTO=me\n"), ["head"])
    assert "#   line 1: not carried over: @reboot 'x': Evertick has no boot trigger" in written
    assert "#   line 2: not carried over: MAILTO=me: " in written
    assert tomllib.loads(written) == {}
