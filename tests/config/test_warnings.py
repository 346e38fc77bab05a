"""Likely mistakes are warnings with their place; they do not prevent the start."""

from __future__ import annotations

import os
import pwd
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from evertick.config import paths as directory
from evertick.config.load import Configuration, load_configuration
from evertick.errors import InvalidConfiguration, Refused
from other_user import closed_to_us

Load = Callable[..., Configuration]
# Without the check of owners, because some users here do not exist on this machine.
TRUST = {"EVERTICK_TRUST_CONFIG": "1"}


def test_events_without_a_feed_setting_get_no_warning(load: Load) -> None:
    text = "[nats]\naddress = 'localhost'\nevents = true\n"
    assert load(text).warnings == load(f"{text}[retention]\nfeed = '7d'\n").warnings == ()
    assert load("[retention]\nfeed = 'off'\n").retention.feed == "off"


NATS_IN_PLAIN_TEXT = "nats at {} is not encrypted: the network can read arguments and results; use tls://"
REDIS_IN_PLAIN_TEXT = "redis at {} is not encrypted: the network can read its password; use rediss://"


def test_a_remote_broker_without_tls_gets_a_warning(folder: Path, load: Load) -> None:
    (folder / "pw").write_text("hunter2\n")
    (folder / "pw").chmod(0o600)
    expected = {
        "[nats]\nurl = 'nats://bus.example'\n": [(2, "nats.url", NATS_IN_PLAIN_TEXT.format("bus.example"))],
        "[nats]\naddress = 'localhost, 10.0.0.7, bus:4223, bus'\n": [
            (2, "nats.address", NATS_IN_PLAIN_TEXT.format(host)) for host in ("10.0.0.7", "bus")
        ],
        "[redis]\nurl = 'redis://:hunter2@queue.example:6380/2'\n": [
            (2, "redis.url", REDIS_IN_PLAIN_TEXT.format("queue.example"))
        ],
        "[redis]\npassword_file = 'pw'\naddress = 'queue.example'\n": [
            (3, "redis.address", REDIS_IN_PLAIN_TEXT.format("queue.example"))
        ],
    }
    for text, lines in expected.items():
        wanted = tuple(f"evertick.toml:{line}: {key}: {message}" for line, key, message in lines)
        assert load(text).warnings == wanted
    # The effective setting is named.
    moved = load("[nats]\nurl = 'tls://bus'\n", {"EVERTICK_NATS_ADDRESS": "far"})
    assert moved.warnings == (f"EVERTICK_NATS_ADDRESS: nats.address: {NATS_IN_PLAIN_TEXT.format('far')}",)


def test_brokers_with_tls_or_on_this_machine_get_no_warning(folder: Path, authority: Path, load: Load) -> None:
    urls = ("tls://bus", "nats://localhost", "nats://127.0.0.1:4223", "nats://[::1]", "nats://bus.localhost.")
    texts = [f"[nats]\nurl = '{url}'\n" for url in urls]
    texts += ["[nats]\naddress = 'bus'\ntls = true\n", "[nats]\nurl = 'nats://bus'\nssl.ca = 'ca.pem'\n"]
    urls = ("rediss://:pw@far", "redis://:pw@localhost", "redis://:pw@127.0.0.1", "redis://far", "redis://ann@far")
    texts += [f"[redis]\nurl = '{url}'\n" for url in (*urls, "unix://:pw@/run/redis.sock")]
    for text in texts:
        assert load(text).warnings == (), text


def test_a_past_moment_gets_a_warning(load: Load) -> None:
    text = "[jobs.a]\necho = 'x'\nonce = 2020-01-31T09:00:00Z\n"
    assert load(text).warnings == (
        "evertick.toml:3: jobs.a.once: 2020-01-31T09:00:00Z is past, so as a new schedule it never fires; give a "
        "moment to come, or take it away",
    )
    assert load(f"{text}enabled = false\n").warnings == ()
    assert load(text.replace("2020", "2120")).warnings == ()
    assert load(text.replace("2020-01-31T09:00:00Z", "'+10m'")).warnings == ()


def test_a_calendar_that_is_not_in_the_files_gets_a_warning(load: Load) -> None:
    text = (
        "[defaults]\nblackout = 'freeze'\n[calendars.biz]\ninclude = ['mon-fri']\n"
        "[jobs.a]\nevery = '1h'\necho = 'x'\ncalendar = 'bizz'\n"
        "[jobs.b]\nwhen = 'daily at 9:00; calendar=holidays'\necho = 'x'\n"
        "[jobs.c]\nevery = '1h'\necho = 'x'\ncalendar = 'biz'\n"
    )
    then = "then it must be in the ledger"
    assert load(text).warnings == (
        f"evertick.toml:2: defaults.blackout: no [calendars.freeze] is in these files (there are: biz); {then}",
        f"evertick.toml:8: jobs.a.calendar: no [calendars.bizz] is in these files (it is called 'biz'); {then}",
        f"evertick.toml:10: jobs.b.when: no [calendars.holidays] is in these files (there are: biz); {then}",
    )
    [line] = load("[jobs.a]\nevery = '1h'\necho = 'x'\ncalendar = 'b'\n").warnings
    assert "(there are none)" in line


def test_a_missing_secret_gets_a_warning_unless_only_another_node_needs_it(folder: Path, load: Load) -> None:
    text = (
        "[jobs.a]\nevery = '1h'\nshell = { command = 'x', env = { A = { secret = 'KEY' }, B = { secret = 'PIN' } } }\n"
    )
    missing = (
        f"set the environment variable EVERTICK_SECRET_KEY, or write the value to {folder}/secrets/KEY (mode 0600)"
    )
    assert load(text, {"EVERTICK_SECRET_PIN": "1"}).warnings == (
        f"evertick.toml:3: jobs.a.shell: secret 'KEY' is not set; {missing}",
    )
    assert load(text, {"EVERTICK_SECRET_PIN": "1", "EVERTICK_SECRET_KEY": "1"}).warnings == ()
    assert load(f"[node]\ndrivers = ['http']\n{text}").warnings == ()


def test_a_queue_outside_the_queues_of_this_node_gets_a_warning(load: Load) -> None:
    text = "[jobs.a]\nevery = '1h'\necho = 'x'\nqueue = 'gpu'\n"
    assert load(text).warnings == (
        'evertick.toml:4: jobs.a.queue: a node by this file works on "default" alone, so this waits for another node; '
        'write queues = ["default", "gpu"] under [node], or take it away',
    )
    [line] = load("[defaults]\nqueue = 'gpu'\n[jobs.a]\nevery = '1h'\necho = 'x'\n").warnings
    assert line.startswith("evertick.toml:2: defaults.queue: a node by this file works on ")
    # Explicit queues are shared among nodes, and a task of other code is on another node.
    for queues in ("['gpu']", "['default']"):
        assert load(f"[node]\nqueues = {queues}\n{text}").warnings == ()
    assert load(text.replace("echo", "task")).warnings == ()
    assert load(f"{text}enabled = false\n").warnings == ()


def test_cron_steps_that_do_not_divide_their_field_get_a_warning(load: Load) -> None:
    [line] = load("[jobs.a]\ncron = '*/7 * * * *'\necho = 'x'\n").warnings
    assert line == (
        "evertick.toml:2: jobs.a.cron: */7 in the minute field restarts every hour: after minute 56 the next is 4 "
        "minutes later, not 7"
    )
    for cron in ("*/5 * * * *", "30 2 31 * *", "@hourly"):
        assert load(f"[jobs.a]\ncron = '{cron}'\necho = 'x'\n").warnings == ()


def test_a_misspelled_http_method_gets_a_warning(load: Load) -> None:
    job = "[jobs.a]\nevery = '1h'\n[jobs.a.http]\nurl = 'https://h/'\nmethod = '{}'\n"
    [line] = load(job.format("PSOT")).warnings
    assert line == (
        "evertick.toml:5: jobs.a.http.method: 'PSOT' is no method that servers commonly know; write 'POST', if that is "
        "meant"
    )
    for method in ("PUT", "PURGE", "BAN"):
        assert load(job.format(method)).warnings == ()


def test_a_user_that_only_root_can_switch_to_gets_a_warning(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    text = "[jobs.a]\nevery = '1h'\nshell = { command = 'x', user = 'root' }\n"
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert load(text, TRUST).warnings == (
        "evertick.toml:3: jobs.a.shell.user: only a daemon of root may run commands as 'root'; start it as root, or "
        "take this away",
    )
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert load(text, TRUST).warnings == ()


def test_a_file_ignored_for_its_name_gets_a_warning(folder: Path, load: Load) -> None:
    (folder / "jobs.d").mkdir()
    for name in ("y.conf", "cron", "z.toml.off", ".hidden", "x.toml~", "README.md", "x.toml.dpkg-old"):
        (folder / "jobs.d" / name).touch()
    why = "it is not read, since its name does not end with .toml; rename it, or take it away"
    assert load("").warnings == (f"jobs.d/cron: {why}", f"jobs.d/y.conf: {why}")


def test_missing_directories_get_a_warning(folder: Path, load: Load) -> None:
    loaded = load(
        "[log]\nfile = 'var/log/e.log'\n[daemon]\npidfile = 'run/e.pid'\n[directories]\nstate = 'var/lib/e'\n"
    )
    assert loaded.warnings == tuple(
        f"evertick.toml:{line}: {key}: there is no directory {folder}/{name}; run `mkdir -p {folder}/{name}` before "
        "the daemon starts"
        for line, key, name in ((2, "log.file", "var/log"), (4, "daemon.pidfile", "run"))
    )
    # The state directory is created before it is used.
    assert load("[daemon]\npidfile = 'lib/e.pid'\n[directories]\nstate = 'lib'\n").warnings == ()
    assert load("[log]\nfile = 'lib/e.log'\n", {"STATE_DIRECTORY": f"{folder}/lib"}).warnings == ()


def test_unwritable_directories_get_a_warning(folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "theirs").mkdir()
    real = os.access
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("theirs") and real(path, mode))
    text = "[log]\nfile = 'theirs/e.log'\n[daemon]\npidfile = 'theirs/e.pid'\n[directories]\nstate = 'theirs/state'\n"
    message = f"this user may not write to {folder}/theirs, and that of the daemon must"
    assert load(text).warnings == (
        f"evertick.toml:2: log.file: {message}; give it to him, or name another",
        f"evertick.toml:4: daemon.pidfile: {message}; give it to him, or name another",
        f"evertick.toml:6: directories.state: {message}; make {folder}/theirs/state for him, or name another",
    )
    # An existing log file is enough.
    (folder / "theirs/e.log").touch()
    assert not any("log.file" in line for line in load(text).warnings)


@pytest.fixture
def open_folder(monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A folder that every user may enter, unlike those of tests; it is the working directory."""
    with tempfile.TemporaryDirectory() as name:
        os.chmod(name, 0o755)
        monkeypatch.chdir(name)
        yield Path(name)


def test_a_file_in_an_unreadable_directory_gets_a_warning(open_folder: Path) -> None:
    closed, file = open_folder / "closed", open_folder / "evertick.toml"
    (closed / "deep").mkdir(parents=True)
    file.write_text("[log]\nfile = 'closed/e.log'\n[daemon]\npidfile = 'closed/deep/e.pid'\n")
    with closed_to_us(closed):
        warnings = load_configuration(file, {"HOME": str(open_folder)}).warnings
    assert warnings == (
        f"{file}:2: log.file: this user may not write to {closed}, and that of the daemon must; give it to him, or "
        "name another",
        f"{file}:4: daemon.pidfile: this user may not look into {closed}, where {closed}/deep may be; that of the "
        "daemon must, and write to it; check it as that user, or name another",
    )


@pytest.mark.parametrize("is_named", [True, False])
def test_an_unreadable_directory_of_jobs_is_not_treated_as_empty(open_folder: Path, is_named: bool) -> None:
    closed, file = open_folder / "jobs.d", open_folder / "evertick.toml"
    closed.mkdir()
    file.write_text("[directories]\njobs = 'jobs.d'\n" if is_named else "")
    with closed_to_us(closed), pytest.raises(InvalidConfiguration) as wrong:
        load_configuration(file, {"HOME": str(open_folder)})
    [line] = wrong.value.problems
    before = f"{file}:2: directories.jobs: {closed} " if is_named else f"{closed}: "
    assert line == f"{before}cannot be read: Permission denied; let this user read it"


def test_a_directory_of_jobs_inside_an_unreadable_one_gets_a_warning(open_folder: Path) -> None:
    closed, file = open_folder / "closed", open_folder / "evertick.toml"
    closed.mkdir()
    file.write_text("[directories]\njobs = 'closed/jobs'\n")
    with closed_to_us(closed), pytest.raises(InvalidConfiguration) as wrong:
        load_configuration(file, {"HOME": str(open_folder)})
    assert wrong.value.problems == (
        f"{file}:2: directories.jobs: {closed}/jobs cannot be read: Permission denied; let this user read it",
    )


@pytest.fixture
def foreign_folder(folder: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A readable directory of another user."""
    path = folder / "theirs"
    path.mkdir()
    path.chmod(0o750)
    monkeypatch.setattr(os, "geteuid", lambda: os.getuid() + 1)
    monkeypatch.setattr(directory, "_ROOT", -1)
    return path


@pytest.mark.parametrize("key", ["config", "state"])
def test_a_directory_that_the_daemon_would_refuse_gets_a_warning_and_is_not_changed(
    foreign_folder: Path, load: Load, key: str
) -> None:
    before = "state = 's'\n" if key == "config" else ""
    loaded = load(f"[directories]\n{before}{key} = 'theirs'\n", TRUST)
    belongs = (
        f"the directory {foreign_folder} belongs to another user ({os.getuid()}), and is open to others (mode 0750)"
    )
    line = 3 if key == "config" else 2
    assert loaded.warnings == (
        f"evertick.toml:{line}: directories.{key}: {belongs}, so that a daemon of this user would not start; give it "
        f"to the user of the daemon, and run `chmod 700 {foreign_folder}`",
    )
    with pytest.raises(Refused) as refused:
        loaded.make_directories()
    assert str(refused.value).startswith(belongs)
    assert foreign_folder.stat().st_mode & 0o777 == 0o750


def test_a_directory_with_a_too_open_mode_gets_a_warning_and_is_not_changed(folder: Path, load: Load) -> None:
    (folder / "lib").mkdir()
    (folder / "lib").chmod(0o755)
    text = "[directories]\nstate = 'lib'\n"
    [line] = load(text).warnings
    open_to = f"evertick.toml:2: directories.state: the directory {folder}/lib is open to others (mode 0755)"
    assert line == f"{open_to}; a daemon of this user gives it mode 0700"
    (folder / "lib/thesis.tex").touch()
    loaded = load(text)
    assert loaded.warnings == (f"evertick.toml:2: directories.state: {loaded.make_directories()[0]}",)
    assert (folder / "lib").stat().st_mode & 0o777 == 0o755


def test_a_read_only_directory_can_belong_to_root_and_be_readable_by_a_group(
    foreign_folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(directory, "_ROOT", os.getuid())
    real = os.access
    monkeypatch.setattr(
        os, "access", lambda path, mode: not (mode & os.W_OK and path == foreign_folder) and real(path, mode)
    )
    loaded = load("[directories]\nstate = 's'\nconfig = 'theirs'\n", TRUST)
    assert (loaded.warnings, loaded.make_directories()) == ((), [])
    assert foreign_folder.stat().st_mode & 0o777 == 0o750
    # A file to be written there still gets a warning.
    [line] = load("[daemon]\npidfile = 'theirs/e.pid'\n[directories]\nconfig = 'theirs'\n", TRUST).warnings
    assert line.startswith(f"evertick.toml:2: daemon.pidfile: this user may not write to {foreign_folder}")
    # The state directory must belong to the daemon's user.
    [line] = load("[directories]\nstate = 'theirs'\n", TRUST).warnings
    assert "directories.state: " in line
    assert "would not start; give it to the user of the daemon, and run `chmod 700 " in line


@pytest.mark.parametrize("mode", [0o755, 0o751, 0o770])
def test_a_read_only_directory_must_be_closed_to_others_and_to_writes_of_a_group(
    foreign_folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch, mode: int
) -> None:
    monkeypatch.setattr(directory, "_ROOT", os.getuid())
    foreign_folder.chmod(mode)
    loaded = load("[directories]\nstate = 's'\nconfig = 'theirs'\n", TRUST)
    [line] = loaded.warnings
    assert line.endswith(f"would not start; give it to the group of the daemon, and run `chmod 750 {foreign_folder}`")
    with pytest.raises(Refused, match=f"run `chgrp {os.getegid()} .*` and `chmod 750 .*`, or name another"):
        loaded.make_directories()


def test_a_read_only_directory_must_be_readable(folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    (folder / "c").mkdir(mode=0o700)
    monkeypatch.setattr(os, "access", lambda path, mode: not str(path).endswith("/c"))
    assert load("[directories]\nconfig = 'c'\n").warnings == (
        f"evertick.toml:2: directories.config: this user may not read {folder}/c, and that of the daemon must; give it "
        "to him, or name another",
    )


def test_unknown_users_and_paths_get_a_warning(folder: Path, load: Load) -> None:
    (folder / "file").touch()
    text = (
        f"[jobs.a]\nevery = '1h'\n[jobs.a.shell]\ncommand = 'x'\nuser = 'nobody-of-this-name'\ncwd = '{folder}/no'\n"
        "shell = '/bin/no-shell'\n"
        f"[jobs.b]\nevery = '1h'\nshell = {{ command = ['{folder}/no'], cwd = '{folder}/file', user = 4294967000 }}\n"
        "[jobs.c]\nevery = '1h'\nshell = ['/no/program']\n"
    )
    here, or_correct = "on this machine", "or correct the path"
    assert load(text).warnings == (
        f"evertick.toml:5: jobs.a.shell.user: there is no user 'nobody-of-this-name' {here}; make it, or name another",
        f"evertick.toml:6: jobs.a.shell.cwd: there is no directory {folder}/no {here}; make it, {or_correct}",
        f"evertick.toml:7: jobs.a.shell.shell: there is no program /bin/no-shell {here}; install it, {or_correct}",
        f"evertick.toml:10: jobs.b.shell.user: there is no user 4294967000 {here}; make it, or name another",
        f"evertick.toml:10: jobs.b.shell.cwd: there is no directory {folder}/file {here}; make it, {or_correct}",
        f"evertick.toml:10: jobs.b.shell.command: there is no program {folder}/no {here}; install it, {or_correct}",
        f"evertick.toml:13: jobs.c.shell: there is no program /no/program {here}; install it, {or_correct}",
    )
    # Another node runs it, on another machine.
    assert load(f"[node]\ndrivers = ['function']\n{text}").warnings == ()
    us = pwd.getpwuid(os.geteuid()).pw_name
    assert load(f"[jobs.a]\nevery = '1h'\nshell = {{ command = 'x', user = '{us}', cwd = '/' }}\n").warnings == ()


def test_a_folder_in_the_home_of_the_job_user_is_searched_there(
    folder: Path, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HOME", str(folder))
    (folder / "work").mkdir()
    job = "[jobs.a]\nevery = '1h'\nshell = {{ command = 'x', cwd = '{cwd}'{more} }}\n"
    assert load(job.format(cwd="~/work", more="")).warnings == ()
    [line] = load(job.format(cwd="~/no", more="")).warnings
    assert line.startswith(f"evertick.toml:3: jobs.a.shell.cwd: there is no directory {folder}/no on this machine; ")
    # The home of another user is known when the job runs.
    assert load(job.format(cwd="~/no", more=f", user = '{pwd.getpwuid(os.geteuid()).pw_name}'")).warnings == ()


def test_a_command_list_with_a_whole_line_gets_a_warning(load: Load, folder: Path) -> None:
    job = "[jobs.a]\nevery = '1h'\nshell = {command}\n"
    for line in ("ls -la", "/bin/ls -la"):
        [expected] = load(job.format(command=f"['{line}']")).warnings
        assert expected == (
            "evertick.toml:3: jobs.a.shell: a list is a program and its arguments, so this is a program that is called "
            f"'{line}'; write the line as one text, without brackets, or each word in quotes of its own"
        )
    (folder / "my program").touch()
    for command in ("'ls -la'", "['ls', '-la']", "['ls', 'a b']", "['ls']", f"['{folder}/my program']"):
        assert load(job.format(command=command)).warnings == ()


def test_an_inaccessible_path_is_assumed_to_exist(load: Load, monkeypatch: pytest.MonkeyPatch) -> None:
    real = os.stat

    def closed(path: Any, **more: Any) -> os.stat_result:
        if path == "/home/ada":
            raise PermissionError
        return real(path, **more)

    monkeypatch.setattr(os, "stat", closed)
    assert load("[jobs.a]\nevery = '1h'\nshell = { command = 'x', cwd = '/home/ada' }\n").warnings == ()


@pytest.mark.parametrize(
    ("url", "message"),
    [
        ("http://127.0.0.1:8080/x", "connections to 127.0.0.1 (a loopback address) are not allowed"),
        ("http://localhost/x", "connections to 'localhost' (127.0.0.1, a loopback address) are not allowed"),
        ("http://app.localhost./", "connections to 'app.localhost.' (127.0.0.1, a loopback address) are not allowed"),
        ("http://[::1]/", "connections to ::1 (a loopback address) are not allowed"),
        ("http://10.1.2.3/", "connections to 10.1.2.3 (a private address) are not allowed"),
        ("http://169.254.169.254/", "connections to 169.254.169.254 (a cloud metadata service) are not allowed"),
    ],
)
def test_a_request_that_will_be_refused_gets_a_warning_with_the_fix(load: Load, url: str, message: str) -> None:
    text = f"[jobs.a]\nevery = '1h'\nhttp = '{url}'\n"
    [line] = load(text).warnings
    meant = f"{message}; if it is meant, allow it:"
    assert line.startswith(f"""evertick.toml:3: jobs.a.http: {meant} http = {{ url = "…", allow = ['""")
    is_private = "169.254" not in url
    or_all = ", or allow_private = true under [http]" if is_private else ""
    assert line.endswith(f"'] }}{or_all}")
    assert (load(f"{text}[http]\nallow_private = true\n").warnings == ()) == is_private
    address = message.partition(" (")[2].partition(",")[0] if "'" in message else message.split()[2]
    assert load(f"{text}[http]\nallow = ['{address}']\n").warnings == ()
    own = f"[jobs.a]\nevery = '1h'\n[jobs.a.http]\nurl = '{url}'\n"
    [line] = load(own).warnings
    assert line.startswith(f"evertick.toml:4: jobs.a.http.url: {meant} allow = ['")
    assert line.endswith(f"'] beside url{or_all}")
    assert load(f"{own}allow = ['{address}']\n").warnings == ()


def test_requests_whose_target_needs_dns_get_no_warning(load: Load) -> None:
    for url in ("'https://example.org/'", "'http://93.184.215.14/'", "'http://intranet/'", "{ secret = 'URL' }"):
        text = f"[jobs.a]\nevery = '1h'\nhttp.url = {url}\n"
        assert load(text, {"EVERTICK_SECRET_URL": "http://127.0.0.1/"}).warnings == ()
