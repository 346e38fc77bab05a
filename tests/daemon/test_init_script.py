"""The SysV script, run for real: as an init system would call it, with its exit codes."""

from __future__ import annotations

import os
import pwd
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest
from daemon_site import PATIENCE_SECONDS, Site, environment, until

import evertick

SCRIPT = Path(__file__).parents[2] / "src/evertick/daemon/dist/evertick.init"

Init = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def init(site: Site) -> Iterator[Init]:
    """Call the script, set up for the folder of the test."""
    program = site.folder / "evertick"
    program.write_text(f'#!/bin/sh\nexec {sys.executable} -m evertick "$@"\n')
    program.chmod(0o755)
    defaults = site.folder / "defaults"
    defaults.write_text(
        f"DAEMON={program}\nCONFIG={site.config}\nPIDFILE={site.pidfile}\nLOGFILE={site.log}\n"
        f"STATE={site.folder}/state\nRUN_AS=\nSTOP_SECONDS=30\n"
    )

    def call(action: str, **more: str) -> subprocess.CompletedProcess[str]:
        for name, value in more.items():
            with defaults.open("a") as file:
                file.write(f"{name}='{value}'\n")
        return subprocess.run(
            ["/bin/sh", SCRIPT, action],
            env=environment(EVERTICK_DEFAULTS=str(defaults)),
            capture_output=True,
            text=True,
            timeout=2 * PATIENCE_SECONDS,
        )

    yield call
    call("stop")


def pid_of(site: Site) -> int:
    return int(site.pidfile.read_text())


def test_start_status_restart_and_stop(site: Site, init: Init) -> None:
    before = init("status")
    assert (before.returncode, before.stdout) == (3, "evertick.init: not running\n")
    started = init("start")
    assert (started.returncode, started.stdout, started.stderr) == (0, "evertick.init: started\n", "")
    first = pid_of(site)
    running = init("status")
    assert (running.returncode, running.stdout) == (0, f"evertick.init: running as process {first}\n")
    again = init("start")
    assert (again.returncode, again.stdout) == (0, f"evertick.init: already running as process {first}\n")
    assert pid_of(site) == first

    restarted = init("restart")
    assert (restarted.returncode, restarted.stdout) == (0, "evertick.init: stopped\nevertick.init: started\n")
    second = pid_of(site)
    assert second != first
    assert site.logged().count("has started") == 2

    stopped = init("stop")
    assert (stopped.returncode, stopped.stdout) == (0, "evertick.init: stopped\n")
    assert not site.pidfile.exists()
    assert site.logged().count("has stopped") == 2
    assert init("stop").returncode == 0
    assert init("status").returncode == 3


def test_a_killed_daemon_is_dead_and_starts_again_over_its_pidfile(site: Site, init: Init) -> None:
    assert init("start").returncode == 0
    killed = pid_of(site)
    os.kill(killed, signal.SIGKILL)
    until(lambda: init("status").returncode != 0, "the killed one is gone")
    dead = init("status")
    assert (dead.returncode, dead.stdout) == (1, f"evertick.init: not running; stale pidfile {site.pidfile}\n")
    assert init("stop").returncode == 0
    assert init("start").returncode == 0
    assert pid_of(site) != killed
    assert f"was left behind by process {killed}" in site.logged()


def test_another_process_with_the_number_in_the_pidfile_is_not_taken_for_the_daemon(site: Site, init: Init) -> None:
    site.pidfile.parent.mkdir()
    site.pidfile.write_text(f"{os.getpid()}\n")
    os.utime(site.pidfile, (1_000_000_000, 1_000_000_000))
    assert init("status").returncode == 1
    assert init("stop").returncode == 0  # and this very test goes on
    assert init("reload").returncode == 7
    assert init("start").returncode == 0
    assert pid_of(site) != os.getpid()


def test_reload_reads_the_configuration_again_and_refuses_one_that_is_wrong(site: Site, init: Init) -> None:
    assert init("reload").returncode == 7
    init("start")
    assert init("reload").returncode == 0
    site.until_logged("SIGUSR1: reloading the configuration")
    site.config.write_text("[nodes]\n")
    wrong = init("reload")
    assert wrong.returncode == 1
    assert "nodes" in wrong.stderr
    assert site.logged().count("SIGUSR1") == 1


def test_try_restart_starts_nothing_that_does_not_run(site: Site, init: Init) -> None:
    assert init("try-restart").returncode == 0
    assert not site.pidfile.exists()


def test_what_is_missing_or_wrong_has_the_exit_code_of_the_standard(site: Site, init: Init) -> None:
    missing = init("start", DAEMON="/no/such/evertick")
    assert (missing.returncode, missing.stdout) == (5, "")
    assert "/no/such/evertick is not installed" in missing.stderr
    site.config.rename(site.folder / "elsewhere")
    unconfigured = init("start", DAEMON=str(site.folder / "evertick"))
    assert unconfigured.returncode == 6
    assert "evertick.toml does not exist" in unconfigured.stderr
    usage = init("dance")
    assert (usage.returncode, usage.stderr) == (
        2,
        "Usage: evertick.init start|stop|restart|try-restart|reload|force-reload|status\n",
    )
    assert init("").returncode == 2


def test_a_start_that_fails_says_why(site: Site, init: Init) -> None:
    site.config.write_text("[nodes]\n")
    failed = init("start")
    assert failed.returncode == 1
    assert "nodes" in failed.stderr
    assert failed.stderr.endswith("evertick.init: failed to start\n")


def test_a_job_that_takes_longer_than_a_stop_may_is_not_waited_for(site: Site, init: Init) -> None:
    site.config.write_text(
        site.config.read_text().replace('stop_timeout = "20s"', 'stop_timeout = "10m"')
        + '\n[jobs.long]\nevery = "1s"\nshell = "echo begun > begun; exec sleep 600"\n'
    )
    init("start", STOP_SECONDS="2")
    until((site.folder / "state/begun").exists, "the job has begun")
    stopped = init("stop")
    assert stopped.returncode == 0
    assert "still stopping after 2 s; stopping the running jobs" in stopped.stderr
    assert "second signal: stopping now, without waiting for running work" in site.logged()
    assert not site.pidfile.exists()


@pytest.mark.skipif(os.getuid() != 0, reason="only root can run the daemon as another user")
def test_root_runs_it_as_another_user_who_gets_the_directories(site: Site, init: Init) -> None:
    nobody = pwd.getpwnam("nobody")
    with tempfile.TemporaryDirectory() as name:  # those of tests are for their user alone
        folder = Path(name)
        folder.chmod(0o755)
        shutil.copy(site.config, folder / "evertick.toml")
        pidfile, log = folder / "run/evertick.pid", folder / "log/evertick.log"
        started = init(
            "start",
            CONFIG=str(folder / "evertick.toml"),
            DAEMON=str(_program_for_all(folder)),
            PIDFILE=str(pidfile),
            LOGFILE=str(log),
            STATE=str(folder / "state"),
            RUN_AS="nobody",
        )
        assert (started.returncode, started.stderr) == (0, "")
        pid = int(pidfile.read_text())
        assert Path(f"/proc/{pid}").stat().st_uid == nobody.pw_uid
        for path, mode in ((pidfile.parent, 0o755), (log.parent, 0o750), (folder / "state", 0o700), (log, 0o640)):
            assert (path.stat().st_uid, path.stat().st_mode & 0o777) == (nobody.pw_uid, mode)
        assert init("stop").returncode == 0


def _program_for_all(folder: Path) -> Path:
    """Evertick by an interpreter that others may run: that of the tests may be in a home directory."""
    path = os.pathsep.join([str(Path(evertick.__file__).parents[1]), *sys.path])
    for python in (sys.executable, shutil.which(f"python3.{sys.version_info[1]}", path="/usr/bin:/usr/local/bin")):
        program = folder / "evertick"
        program.write_text(f'#!/bin/sh\nPYTHONPATH={path} exec {python} -m evertick "$@"\n')
        program.chmod(0o755)
        if subprocess.run(["runuser", "-u", "nobody", "--", program, "--version"], capture_output=True).returncode == 0:
            return program
    pytest.skip("no other user can run Python of this version here")


def test_its_header_is_what_init_systems_read() -> None:
    header = re.search(r"### BEGIN INIT INFO\n(.*?)### END INIT INFO", SCRIPT.read_text(), re.DOTALL)
    assert header is not None
    fields = dict(re.findall(r"^# ([\w-]+): +(.+)$", header[1], re.MULTILINE))
    wanted = {"Provides", "Required-Start", "Required-Stop", "Default-Start", "Default-Stop", "Short-Description"}
    assert fields.keys() >= wanted
    assert fields["Provides"] == "evertick"
    assert os.access(SCRIPT, os.X_OK)


@pytest.mark.parametrize("shell", ["dash", "bash", "busybox"])
def test_any_shell_can_read_it(shell: str) -> None:
    found = shutil.which(shell)
    if found is None:
        pytest.skip(f"there is no {shell} on this machine")
    command = [found, "sh", "-n", SCRIPT] if shell == "busybox" else [found, "-n", SCRIPT]
    assert subprocess.run(command, capture_output=True, text=True).stderr == ""
