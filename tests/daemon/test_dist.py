"""The files of dist/ hold what they promise, as far as this machine can tell."""

from __future__ import annotations

import json
import os
import pwd
import re
import shutil
import signal
import subprocess
from pathlib import Path

import certifi
import pytest
from daemon_site import Site, until

from evertick.config.load import load_configuration
from evertick.scheduler.process import EXIT_RESTART

DIST = Path(__file__).parents[2] / "dist"


def have(program: str) -> str:
    """Where a program is; without it the test is skipped, and says so."""
    found = shutil.which(program, path=os.environ.get("PATH", "") + ":/usr/sbin:/sbin")
    if found is None:
        pytest.skip(f"there is no {program} on this machine: this file of dist/ is not checked by it")
    return found


# --- systemd ---


def settings_of(unit: str) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for name, value in re.findall(r"^(\w+)=(.*)$", unit, re.MULTILINE):
        found.setdefault(name, []).append(value)
    return found


@pytest.fixture
def unit() -> str:
    return (DIST / "evertick.service").read_text()


def verify(unit: str, folder: Path) -> str:
    """The findings of systemd about the unit, with another program in place of Evertick's."""
    program = folder / "evertick"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    path = folder / "evertick.service"
    path.write_text(unit.replace("/opt/evertick/bin/evertick", str(program)))
    command = [have("systemd-analyze"), "verify", "--man=no", path]
    checked = subprocess.run(command, capture_output=True, text=True)
    # It reads the units that this one names, too, and may complain of those.
    return "\n".join(line for line in checked.stderr.splitlines() if "evertick" in line)


def test_systemd_finds_nothing_wrong_with_the_unit(unit: str, tmp_path: Path) -> None:
    assert verify(unit, tmp_path) == ""


def test_systemd_would_find_a_key_that_is_not_there(unit: str, tmp_path: Path) -> None:
    assert "ProtectSytem" in verify(unit.replace("ProtectSystem", "ProtectSytem"), tmp_path)


def test_systemd_finds_nothing_wrong_with_the_unit_in_place_of_reboot_in_a_crontab(tmp_path: Path) -> None:
    page = (DIST.parent / "docs/how-to/migrate-from-cron.md").read_text()
    [shown] = re.findall(r"^```ini\n(.*?)^```", page, re.MULTILINE | re.DOTALL)
    assert settings_of(shown)["Type"] == ["oneshot"]
    assert verify(shown, tmp_path) == ""


def test_the_unit_is_hardened(unit: str, tmp_path: Path) -> None:
    path = tmp_path / "evertick.service"
    path.write_text(unit)
    command = [have("systemd-analyze"), "security", "--offline=true", "--threshold=25", path]
    checked = subprocess.run(command, capture_output=True, text=True)
    assert checked.returncode == 0, checked.stdout


def test_the_unit_restarts_as_the_exit_codes_ask_for_and_stops_slower_than_the_node(unit: str) -> None:
    found = settings_of(unit)
    assert found["Type"] == ["notify"]
    assert found["Restart"] == ["on-failure"]
    assert found["RestartSec"] == ["5"]
    assert found["RestartForceExitStatus"] == [str(EXIT_RESTART)]
    assert found["RestartPreventExitStatus"] == ["2"]
    assert found["ExecReload"] == ["/bin/kill -USR1 $MAINPID"]
    assert int(found["TimeoutStopSec"][0]) > 2 * 30
    assert {"NoNewPrivileges", "ProtectSystem", "WatchdogSec", "StateDirectory", "User"} <= found.keys()


def test_the_user_is_one_that_systemd_can_make(tmp_path: Path) -> None:
    program = have("systemd-sysusers")
    (tmp_path / "etc").mkdir()
    command = [program, f"--root={tmp_path}", DIST / "evertick.sysusers"]
    made = subprocess.run(command, capture_output=True, text=True)
    assert made.returncode == 0, made.stderr
    assert re.search(
        r"^evertick:x:\d+:\d+:Evertick job scheduler:/var/lib/evertick:", (tmp_path / "etc/passwd").read_text()
    )


# --- the example ---


def test_the_example_configuration_is_right(tmp_path: Path) -> None:
    # A copy, which belongs to the user of the tests wherever the checkout comes from.
    path = tmp_path / "evertick.toml"
    path.write_bytes((DIST / "evertick.toml").read_bytes())
    loaded = load_configuration(path, {"EVERTICK_DIRECTORIES_STATE": str(tmp_path)})
    assert {job.name for job in loaded.jobs} == {"backup", "heartbeat"}
    assert loaded.warnings == ()


def test_what_the_example_has_in_comments_is_right_too(tmp_path: Path) -> None:
    text = re.sub(r"^# (\w[\w.]* = )", r"\1", (DIST / "evertick.toml").read_text(), flags=re.MULTILINE)
    (tmp_path / "password").write_text("secret\n")
    text = text.replace("/etc/evertick/database.password", str(tmp_path / "password"))
    text = text.replace("/etc/evertick/ca.pem", certifi.where())
    path = tmp_path / "evertick.toml"
    path.write_text(text)
    loaded = load_configuration(path, {"STATE_DIRECTORY": str(tmp_path)})
    assert loaded.log.format == "json"
    assert loaded.node.drivers == ("shell", "http")
    assert loaded.database_url.startswith("postgresql://evertick:")


def test_a_daemon_of_the_example_runs_its_jobs(site: Site) -> None:
    text = (DIST / "evertick.toml").read_text().replace('every = "5m"', 'every = "1s"')
    text = text.replace("/var/lib/evertick", str(site.folder / "state"))
    site.config.write_text(text.replace("[log]", f'[log]\nfile = "{site.log}"'))
    process = site.started()
    until(lambda: '"succeeded"' in site.call("history", "heartbeat", "--json").stdout, "it ran")
    process.terminate()
    assert process.wait(60) == 0


# --- logrotate ---


def test_logrotate_moves_the_log_and_the_daemon_goes_on_in_a_new_one(site: Site) -> None:
    process = site.started()
    rotate(site)
    site.until_logged("SIGUSR2: log file reopened")
    # The old file is compressed at the next rotation, when no process writes to it any more.
    assert "has started" in (site.folder / "evertick.log.1").read_text()
    assert site.log.stat().st_mode & 0o777 == 0o640
    process.send_signal(signal.SIGTERM)
    assert process.wait(60) == 0


@pytest.mark.parametrize("machine", ["with flock", "without flock"])
def test_logrotate_does_not_signal_a_process_with_the_number_of_a_killed_daemon(
    site: Site, machine: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    process = site.started()
    process.kill()
    process.wait()
    assert site.pidfile.read_text() == f"{process.pid}\n"
    have("logrotate")
    if machine == "without flock":
        monkeypatch.setenv("PATH", str(folder_without(site.folder, "flock")))
    # Its number cannot be had again at will, so the file is given that of another.
    stranger = subprocess.Popen(["sleep", "1000"])
    try:
        site.pidfile.write_text(f"{stranger.pid}\n")
        rotate(site)
        assert (site.folder / "evertick.log.1").exists()
        assert stranger.poll() is None, "it was sent a signal that ends it"
        stranger.send_signal(signal.SIGUSR2)
        assert stranger.wait(10) == -signal.SIGUSR2
    finally:
        stranger.kill()
        stranger.wait()


def folder_without(folder: Path, program: str) -> Path:
    """All programs but one."""
    found = folder / "programs"
    found.mkdir()
    for each in os.get_exec_path():
        for file in Path(each).iterdir() if Path(each).is_dir() else ():
            if file.name != program and not (found / file.name).exists():
                (found / file.name).symlink_to(file)
    return found


def rotate(site: Site) -> None:
    """For real, with the paths and the user of the test."""
    program = have("logrotate")
    user = pwd.getpwuid(os.getuid()).pw_name
    group = "root" if os.getuid() == 0 else user
    rules = (DIST / "evertick.logrotate").read_text()
    rules = rules.replace("/var/log/evertick/*.log", str(site.folder / "*.log"))
    rules = rules.replace("/run/evertick/evertick.pid", str(site.pidfile))
    rules = re.sub(r"(su|create 0640) evertick evertick", rf"\1 {user} {group}", rules)
    path = site.folder / "rules"
    path.write_text(rules)
    path.chmod(0o644)
    state = site.folder / "logrotate.state"
    dry = subprocess.run([program, "-d", "-s", state, path], capture_output=True, text=True)
    assert dry.returncode == 0
    assert "error" not in dry.stderr
    forced = subprocess.run([program, "-f", "-s", state, path], capture_output=True, text=True)
    assert (forced.returncode, forced.stderr) == (0, "")


# --- the container ---


def instructions() -> list[tuple[str, str]]:
    text = re.sub(r"\\\n\s*", "", (DIST / "Containerfile").read_text())
    lines = [line for line in text.splitlines() if line.strip() and not line.startswith("#")]
    return [(name, rest) for name, _, rest in (line.partition(" ") for line in lines)]


def test_the_container_file_is_well_formed_and_does_not_run_as_root() -> None:
    known = {"ARG", "FROM", "WORKDIR", "RUN", "COPY", "ENV", "VOLUME", "USER", "STOPSIGNAL", "HEALTHCHECK"}
    known |= {"ENTRYPOINT", "CMD"}
    found = instructions()
    assert {name for name, _ in found} == known
    last = dict(found)
    assert last["USER"] == "10001:10001"
    assert last["STOPSIGNAL"] == "SIGTERM"
    # As lists: a shell in between would keep the signals to itself.
    assert json.loads(last["ENTRYPOINT"]) == ["evertick"]
    assert json.loads(last["CMD"])[0] == "daemon"
    assert json.loads(last["HEALTHCHECK"].partition("CMD ")[2])[0] == "/bin/sh"


def test_everything_that_the_container_file_copies_is_there() -> None:
    root = DIST.parent
    for name, rest in instructions():
        if name == "COPY" and not rest.startswith("--from="):
            for source in rest.split()[:-1]:
                assert (root / source).exists(), source


def test_the_container_file_installs_extras_that_there_are() -> None:
    [(_, install)] = [each for each in instructions() if "pip install" in each[1]]
    extras = re.search(r'"\.\[([\w,]+)\]"', install)
    assert extras is not None
    project = (DIST.parent / "pyproject.toml").read_text()
    assert [name for name in extras[1].split(",") if not re.search(rf"^{name} = \[", project, re.MULTILINE)] == []


def test_a_build_by_podman_or_buildah_keeps_the_health_check() -> None:
    """Their own format of an image has none: the instruction is ignored, with a warning at most."""
    texts = [DIST / "Containerfile", DIST / "README.md", *(DIST.parent / "docs").rglob("*.md")]
    builds = [
        line for path in texts for line in path.read_text().splitlines() if re.search(r"(podman|buildah) build", line)
    ]
    assert len(builds) >= 2
    assert [line for line in builds if "--format docker" not in line] == []


def test_the_container_can_be_built() -> None:
    """Only where something can build it: a client without its server, or without a base image, cannot."""
    builder = next((found for name in ("podman", "buildah", "docker") if (found := shutil.which(name))), None)
    if builder is None or subprocess.run([builder, "info"], capture_output=True).returncode != 0:
        pytest.skip("nothing on this machine can build a container: the Containerfile is only read")
    if subprocess.run([builder, "pull", "python:3.13-slim"], capture_output=True).returncode != 0:
        pytest.skip("the base image cannot be had here: the Containerfile is only read")
    with_health_check = [] if builder.endswith("docker") else ["--format", "docker"]
    command = [builder, "build", *with_health_check, "-f", DIST / "Containerfile", "-t", "evertick-test", DIST.parent]
    built = subprocess.run(command, capture_output=True, text=True, timeout=280)
    assert built.returncode == 0, built.stderr[-2000:]
