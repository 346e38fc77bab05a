"""`evertick daemon`: a real process, its signals, its pidfile, its log, its supervisor."""

from __future__ import annotations

import json
import os
import re
import signal
import socket
import subprocess
import threading
from collections.abc import Iterator
from contextlib import suppress
from datetime import datetime, timedelta
from itertools import pairwise
from pathlib import Path

import pytest
from daemon_site import CONFIGURATION, Site, marked, until

from evertick.config.load import load_configuration
from evertick.daemon.run import secrets_known

SECRET = "correct-horse-battery"


def ended(process: subprocess.Popen[str]) -> tuple[int, str]:
    _, errors = process.communicate(timeout=60)
    return process.returncode, errors


# --- signals ---


@pytest.mark.parametrize(("number", "code"), [(signal.SIGTERM, 0), (signal.SIGINT, 0), (signal.SIGHUP, 75)])
def test_a_signal_drains_it_and_ends_it_with_the_code_it_stands_for(
    site: Site, number: signal.Signals, code: int
) -> None:
    process = site.started()
    assert site.pidfile.read_text() == f"{process.pid}\n"
    process.send_signal(number)
    assert ended(process) == (code, "")
    assert f"{number.name}: draining" in site.logged()
    assert re.search(r"INFO    evertick.engine: node \w+ has stopped\n$", site.logged())
    assert sorted(path.name for path in site.pidfile.parent.iterdir()) == ["daemon-ended.json", "evertick.db"]


def test_usr2_reopens_the_log(site: Site) -> None:
    process = site.started()
    site.log.rename(site.folder / "old.log")
    process.send_signal(signal.SIGUSR2)
    site.until_logged("SIGUSR2: the log was opened anew")
    assert "has started" in (site.folder / "old.log").read_text()
    assert "has started" not in site.logged()
    process.terminate()
    assert ended(process) == (0, "")


def test_signals_that_come_while_it_starts_and_ends_do_not_kill_it(site: Site) -> None:
    """They are sent every few milliseconds from the moment on when the pidfile is there until it goes."""
    process = site.start()
    until(site.pidfile.exists, "the pidfile is there")
    has_terminated = False
    while process.poll() is None:
        process.send_signal(signal.SIGUSR2)
        process.send_signal(signal.SIGUSR1)
        # Faster than they can be heard, Python complains on stderr, which nobody reads here: a full pipe stops it.
        threading.Event().wait(0.003)
        if not has_terminated and "has started" in site.logged():
            has_terminated = True
            process.terminate()
    assert ended(process)[0] == 0
    assert "has stopped" in site.logged()


def test_term_before_the_node_is_there_ends_it_and_leaves_no_pidfile(site: Site) -> None:
    away = "postgresql://nobody@127.0.0.1:1/none"
    process = site.start(EVERTICK_DATABASE=away)
    site.until_logged("not started yet")
    assert site.pidfile.exists()
    process.terminate()
    assert ended(process)[0] == 0
    assert not site.pidfile.exists()


# --- one at a time ---


def test_a_second_start_is_refused_with_the_process_of_the_first(site: Site) -> None:
    first = site.started()
    before = site.logged()
    second = site.start()
    code, errors = ended(second)
    assert code == 1
    assert errors.startswith(f"error: process {first.pid} is running with the pidfile {site.pidfile} already; stop it")
    assert len(errors.splitlines()) == 1
    # It has touched nothing: neither the log nor the ledger.
    assert site.logged().removeprefix(before).count("evertick.daemon") == 0
    assert site.pidfile.read_text() == f"{first.pid}\n"
    assert first.poll() is None


def test_after_a_kill_the_next_start_finds_the_pidfile_stale_and_takes_over(site: Site) -> None:
    first = site.started()
    first.kill()
    first.wait()
    assert site.pidfile.read_text() == f"{first.pid}\n"
    second = site.started()
    assert f"was left behind by process {first.pid}, which is gone" in site.logged()
    assert site.pidfile.read_text() == f"{second.pid}\n"
    second.terminate()
    assert ended(second) == (0, "")
    assert not site.pidfile.exists()


# --- starting ---


def test_right_after_a_kill_status_says_that_its_process_is_gone_though_its_lease_holds(site: Site) -> None:
    site.config.write_text(f"{CONFIGURATION}[jobs.tidy]\nevery = '1h'\nshell = 'true'\n")
    process = site.started()
    until(lambda: [*site.folder.glob("state/daemon.*.json")], "it says what it is")
    assert site.call("status").returncode == 0
    process.kill()
    process.wait()
    told = site.call("status")
    assert told.returncode == 2
    assert told.stdout.startswith("CRITICAL: no node is alive: nothing fires and nothing runs (and 1 more)")
    assert f"node box was killed: its process {process.pid} is gone from this machine" in told.stdout
    assert re.search(r"^box +killed ", told.stdout, re.MULTILINE)
    site.started()
    assert site.call("status").returncode == 0, "the next one clears away what the first has left"


def test_it_waits_for_a_store_that_is_away_and_says_so_in_the_end(site: Site) -> None:
    site.config.write_text(site.config.read_text().replace("[node]", '[node]\nstart_timeout = "1s"'))
    process = site.start(EVERTICK_DATABASE=f"postgresql://ann:{SECRET}@127.0.0.1:1/none")
    code, errors = ended(process)
    assert code == 1
    assert errors.startswith("error: ")
    assert "not started yet" in site.logged()
    assert "CRITICAL evertick.daemon: the daemon ends: " in site.logged()
    assert SECRET not in site.logged() + errors
    assert "Traceback" not in site.logged() + errors
    assert not site.pidfile.exists()


def test_a_wrong_configuration_ends_it_with_2_before_anything_is_touched(site: Site) -> None:
    site.config.write_text("[node]\nconcurency = 5\n")
    code, errors = ended(site.start())
    assert code == 2
    assert "concurency" in errors
    assert "concurrency" in errors
    assert [path.name for path in site.folder.iterdir()] == ["evertick.toml"]


def test_without_a_configuration_there_is_nothing_to_run(site: Site) -> None:
    site.config.unlink()
    nowhere = {"HOME": str(site.folder), "XDG_CONFIG_HOME": str(site.folder)}
    refused = site.call("daemon", **nowhere)
    assert refused.returncode == 2
    assert "there is no configuration; write ./evertick.toml, or name one with --config" in refused.stderr


def test_check_tells_whether_the_configuration_is_right_and_touches_nothing(site: Site) -> None:
    right = site.call("daemon", "--check")
    assert (right.returncode, right.stderr) == (0, "")
    assert re.fullmatch(r".*evertick.toml: right, 0 jobs, database sqlite:///.*state/evertick.db\n", right.stdout)
    assert [path.name for path in site.folder.iterdir()] == ["evertick.toml"]
    site.config.write_text("[nodes]\n")
    assert site.call("daemon", "--check").returncode == 2


def test_a_log_file_or_a_pidfile_that_cannot_be_written_ends_it_in_one_line(site: Site) -> None:
    for flag in ("--log-file", "--pidfile"):
        code, errors = ended(site.start(flag, "no/such/folder/file"))
        assert code == 1
        assert re.fullmatch(rf"error: the (log file|pidfile) .* cannot be .*make the directory .* {flag}\n", errors)
        assert not site.pidfile.exists()


def test_flags_are_stronger_than_the_file(site: Site) -> None:
    process = site.start("--log-file", "other.log", "--log-format", "json", "--pidfile", "other.pid", "-vvv")
    until((site.folder / "other.pid").exists, "the other pidfile is there")
    other = site.folder / "other.log"
    until(lambda: other.exists() and "has started" in other.read_text(), "the node starts")
    process.terminate()
    assert ended(process) == (0, "")
    lines = [json.loads(line) for line in other.read_text().splitlines()]
    assert {line["node"] for line in lines if line["logger"] == "evertick.engine"} == {"box"}
    assert "trace" in {line["level"] for line in lines}
    assert not site.log.exists()


# --- in the background ---


def test_detached_it_returns_when_the_node_runs_and_leaves_the_terminal(site: Site) -> None:
    command = site.call("daemon", "--detach")
    assert (command.returncode, command.stdout, command.stderr) == (0, "", "")
    pid = int(site.pidfile.read_text())
    assert "has started" in site.logged()
    facts = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    parent, session, terminal = int(facts[1]), int(facts[3]), int(facts[4])
    assert parent != os.getpid()
    assert session != pid  # it could not be given a terminal
    assert terminal == 0
    assert {os.readlink(f"/proc/{pid}/fd/{number}") for number in range(3)} == {"/dev/null"}
    again = site.call("daemon", "--detach")
    assert again.returncode == 1
    assert f"process {pid} is running" in again.stderr
    os.kill(pid, signal.SIGTERM)
    until(lambda: not site.pidfile.exists(), "the pidfile goes")
    assert "has stopped" in site.logged()


def test_detached_it_does_not_wait_for_a_store_that_is_away(site: Site) -> None:
    command = site.call("daemon", "--detach", EVERTICK_DATABASE="postgresql://nobody@127.0.0.1:1/none")
    assert (command.returncode, command.stderr) == (0, "")
    site.until_logged("not started yet")
    pid = int(site.pidfile.read_text())
    os.kill(pid, signal.SIGTERM)
    until(lambda: not site.pidfile.exists(), "the pidfile goes")


def test_detached_an_error_at_the_start_is_printed_on_the_terminal(site: Site) -> None:
    command = site.call("daemon", "--detach", EVERTICK_DATABASE="sqlite:////no/such/folder/jobs.db")
    assert command.returncode == 1
    assert command.stderr.startswith("error: the directory /no/such/folder")
    site.config.write_text('[directories]\nstate = "state"\n')
    unlogged = site.call("daemon", "--detach")
    assert unlogged.returncode == 2
    assert "the log needs a file: add --log-file" in unlogged.stderr


# --- the supervisor ---


@pytest.fixture
def supervisor(site: Site) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(site.folder / "notify"))
        listening.settimeout(60)
        yield listening


def heard(supervisor: socket.socket, first: str) -> list[str]:
    """The next message that begins with this; the watchdog's words in between are left out."""
    for _ in range(100):
        lines = supervisor.recv(4096).decode().split("\n")
        if lines[0] != "WATCHDOG=1":
            assert lines[0] == first
            return lines
    raise AssertionError(f"{first} never came")


def test_a_supervisor_hears_that_it_runs_lives_reloads_and_stops(site: Site, supervisor: socket.socket) -> None:
    address = str(supervisor.getsockname())
    process = site.start(NOTIFY_SOCKET=address, WATCHDOG_USEC="600000")
    assert heard(supervisor, "READY=1") == ["READY=1", "STATUS=running 0 jobs"]
    for _ in range(3):
        assert supervisor.recv(4096) == b"WATCHDOG=1"
    process.send_signal(signal.SIGUSR1)
    reloading = heard(supervisor, "RELOADING=1")
    assert reloading[1].startswith("MONOTONIC_USEC=")
    assert heard(supervisor, "READY=1") == ["READY=1", "STATUS=running 0 jobs"]
    process.terminate()
    assert heard(supervisor, "STOPPING=1")[2] == "STATUS=SIGTERM: draining"
    assert ended(process) == (0, "")


def test_a_supervisor_gives_it_more_time_while_its_store_is_away(site: Site, supervisor: socket.socket) -> None:
    site.start(EVERTICK_DATABASE="postgresql://nobody@127.0.0.1:1/none", NOTIFY_SOCKET=str(supervisor.getsockname()))
    more, status = supervisor.recv(4096).decode().split("\n")
    assert int(more.removeprefix("EXTEND_TIMEOUT_USEC=")) > 30_000_000
    assert status.startswith("STATUS=waiting for the store: ")


# --- the log ---


def test_rotation_under_load_loses_no_line_of_a_daemon_that_tells_every_step(site: Site) -> None:
    """At -vvv a node talks all the time; every line of JSON is whole, and none is missing between two files."""
    process = site.start("--log-format", "json", "-vvv", EVERTICK_NODE_POLL_INTERVAL="20ms")
    site.until_logged("has started")
    for turn in range(20):
        until(lambda: site.log.exists() and site.log.stat().st_size > 2_000, "there is something to rotate")
        site.log.rename(site.folder / f"rotated.{turn:02}")
        if turn % 2:
            process.send_signal(signal.SIGUSR2)
    process.terminate()
    assert ended(process) == (0, "")
    files = [*sorted(site.folder.glob("rotated.*")), site.log]
    lines = [json.loads(line) for file in files for line in file.read_text().splitlines()]
    assert lines[-1]["message"].endswith("has stopped")
    moments = [datetime.fromisoformat(line["at"]) for line in lines]
    # A record has its time before it is written, so those of two threads may be written in the other order.
    assert all(later > earlier - timedelta(milliseconds=100) for earlier, later in pairwise(moments))
    assert sum("the log was opened anew" in line["message"] for line in lines) == 10


def test_the_passwords_of_a_configuration_are_known_as_secrets(tmp_path: Path) -> None:
    (tmp_path / "nats").write_text("from-a-file\n")
    (tmp_path / "nats").chmod(0o600)
    path = tmp_path / "evertick.toml"
    path.write_text(
        """
        [database]
        url = "postgresql://ann:p%40ss-of-url@db/x?listen=postgresql%3A%2F%2Fann%3Apass-of-listen%40db%2Fx"
        [redis]
        address = "r"
        password = "plain-in-file"
        [nats]
        address = "n"
        user = "ann"
        password_file = "nats"
        """
    )
    environ = {"EVERTICK_SECRET_TOKEN": "of-a-job", "HOME": "/", "STATE_DIRECTORY": str(tmp_path)}
    known = secrets_known(load_configuration(path, environ), environ)
    wanted = {"p@ss-of-url", "p%40ss-of-url", "pass-of-listen", "plain-in-file", "from-a-file", "of-a-job"}
    assert wanted <= set(known)
    token = {"HOME": "/", "STATE_DIRECTORY": str(tmp_path), "EVERTICK_NATS": "nats://tok%2Fen@n,nats://other@m"}
    assert {"tok%2Fen", "tok/en", "other"} <= set(secrets_known(load_configuration(path, token), token))


# --- jobs ---

SLOW = """
[jobs.slow]
every = "1s"
overlap = "skip"
shell = "echo $$ >> begun; sleep 3; echo done >> ended"
"""


def test_a_running_job_gets_its_time_at_a_stop(site: Site) -> None:
    site.config.write_text(site.config.read_text() + SLOW.replace('shell = "', f'shell = "cd {site.folder}; '))
    process = site.started()
    until((site.folder / "begun").exists, "the job has begun")
    process.terminate()
    assert ended(process) == (0, "")
    begun = (site.folder / "begun").read_text().splitlines()
    assert (site.folder / "ended").read_text().splitlines() == ["done"] * len(begun)
    assert "waiting up to 20 s for 1 job" in site.logged()


def test_a_second_signal_cuts_a_running_job_off_and_it_runs_again_after_the_next_start(site: Site) -> None:
    site.config.write_text(site.config.read_text() + SLOW.replace('shell = "', f'shell = "cd {site.folder}; '))
    process = site.started()
    until((site.folder / "begun").exists, "the job has begun")
    process.terminate()
    site.until_logged("SIGTERM: draining")
    process.terminate()
    assert ended(process) == (0, "")
    assert not (site.folder / "ended").exists()
    told = r"WARNING evertick.finish: slow: run \S+ did not end in time \(shutdown\) and was released"
    assert re.search(told, site.logged())
    again = site.started()
    until((site.folder / "ended").exists, "it runs to its end")
    again.terminate()
    assert ended(again) == (0, "")


# Nobody finds its processes by their group or session, none of them ends when it is asked to, and each tells when it
# is so far.
STUBBORN = """
[jobs.stubborn]
every = "1s"
overlap = "skip"
shell = '''
setsid sh -c 'trap "" TERM HUP INT; echo $$ >> FOLDER/begun; sleep 1000; sleep 1000' &
sh -c 'trap "" TERM HUP INT; echo $$ >> FOLDER/begun; sleep 1000; sleep 1000' &
trap "" TERM HUP INT
echo $$ >> FOLDER/begun
wait; sleep 1000
'''
"""


def test_a_killed_daemon_leaves_nothing_running_however_stubborn_its_jobs(site: Site) -> None:
    begun, token = site.folder / "begun", str(site.folder)
    site.config.write_text(site.config.read_text() + STUBBORN.replace("FOLDER", str(site.folder)))
    process = site.started(MARK_OF_TEST=token)
    try:
        until(lambda: begun.exists() and begun.read_text().count("\n") == 3, "all of the job has begun")
        job = [int(pid) for pid in begun.read_text().split()]
        assert len({os.getsid(pid) for pid in job}) == 2
        assert set(job) <= marked("MARK_OF_TEST", token).keys()
        process.kill()
        process.wait()
        until(lambda: not marked("MARK_OF_TEST", token), "everything that the daemon has started is gone")
    finally:
        for pid in marked("MARK_OF_TEST", token):
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
    assert site.pidfile.exists()
