"""Shell jobs where `/proc` hides processes, as `ProtectProc=invisible` of dist/evertick.service has it.

The nodes run in a mount namespace with such a `/proc`, without the rights of root, so that they see what any user does;
the test itself sees everything.
"""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from uuid import uuid4

import pytest
from process_watch import MARK, marked, seconds_until_gone

from evertick import Run, Scheduler, Shell

PROGRAM = Path(__file__).with_name("hidden_node.py")
UNSHARE = ["unshare", "--mount", "sh", "-c", 'mount -t proc -o hidepid=2 proc /proc && exec "$@"', "sh"]


def no_rights(*but: str) -> list[str]:
    """Still the owner of root's files, but with no capability; and not of group 0, which sees all of `/proc`."""
    kept = ",".join(["-all", *(f"+{each}" for each in but)])
    return ["setpriv", "--regid=65534", "--clear-groups", f"--bounding-set={kept}", f"--inh-caps={kept}"]


def why_not() -> str | None:
    """Why processes cannot be hidden on this machine."""
    if os.geteuid() != 0:
        return "only root can mount a /proc that hides processes"
    if not shutil.which("setpriv") or not shutil.which("unshare"):
        return "setpriv and unshare of util-linux are not there"
    tried = subprocess.run([*UNSHARE, *no_rights(), "test", "!", "-e", "/proc/1"], capture_output=True, check=False)
    return None if tried.returncode == 0 else f"no /proc that hides processes can be had: {tried.stderr.decode()}"


@pytest.fixture(autouse=True, scope="module")
def hiding() -> None:
    if (why := why_not()) is not None:
        pytest.skip(why)


class Site:
    def __init__(self, folder: Path) -> None:
        self.folder, self.token = folder, uuid4().hex
        self.url = f"sqlite:///{folder}/jobs.db"
        self.manager = Scheduler(self.url, concurrency=0, drivers=["shell"])
        self.nodes: list[subprocess.Popen[bytes]] = []

    def start(self, *rights: str) -> subprocess.Popen[bytes]:
        command = [*UNSHARE, *no_rights(*rights), sys.executable, str(PROGRAM), self.url, str(self.folder)]
        with self.log.open("wb") as log:
            node = subprocess.Popen(command, env={**os.environ, MARK: self.token}, stdout=log, stderr=log)
        self.nodes.append(node)
        self.wait(lambda: "has started" in self.log.read_text())
        return node

    @property
    def log(self) -> Path:
        return self.folder / "log"

    def enqueue(self, job: str) -> Run:
        return self.manager.job(job, Shell("true")).sync.enqueue()

    def hidden(self, run: Run) -> int:
        """The process that its command has left, once that has hidden itself."""
        file = self.folder / run.id
        self.wait(lambda: file.exists() and file.read_text())
        return int(file.read_text())

    def wait(self, is_so: Callable[[], object], seconds: float = 30) -> None:
        until = time.monotonic() + seconds
        while not is_so():
            assert time.monotonic() < until, f"{self.log.read_text()}\n{marked(self.token)}"
            time.sleep(0.01)

    def ended(self, run: Run) -> Run:
        self.wait(lambda: self.manager.sync.get_run(run.id).verdict)
        return self.manager.sync.get_run(run.id)


@pytest.fixture
def site(tmp_path: Path) -> Iterator[Site]:
    site = Site(tmp_path)
    yield site
    for node in site.nodes:
        node.kill()
        node.wait()
    site.manager.sync.close()
    try:
        seconds_until_gone(site.token, 10)
    finally:
        for pid in marked(site.token):
            os.kill(pid, signal.SIGKILL)


def test_what_a_command_leaves_hidden_is_ended_and_the_run_with_it(site: Site) -> None:
    site.start()
    run = site.enqueue("leaves")
    assert site.ended(run).verdict == "succeeded"
    assert site.hidden(run) not in marked(site.token)


def test_a_hidden_process_that_ignores_term_is_gone_after_the_timeout_of_its_run(site: Site) -> None:
    site.start()
    run = site.enqueue("outlasts")
    assert site.hidden(run) in marked(site.token)
    ended = site.ended(run)
    assert (ended.verdict, ended.reason) == ("failed", "timeout"), ended.error
    assert site.hidden(run) not in marked(site.token)


def test_a_process_that_was_hidden_behind_another_gets_its_term_too(site: Site) -> None:
    """Or it would last until its KILL, a minute later."""
    site.start()
    run = site.enqueue("behind")
    assert site.hidden(run) in marked(site.token)
    assert site.ended(run).reason == "timeout"
    assert site.hidden(run) not in marked(site.token)


def test_neither_hidden_processes_nor_keepers_outlive_a_killed_node(site: Site) -> None:
    node = site.start()
    assert site.hidden(site.enqueue("outlasts")) in marked(site.token)
    assert site.hidden(site.enqueue("behind")) in marked(site.token)
    node.kill()
    node.wait()
    seconds_until_gone(site.token, 5)


def test_what_cannot_be_ended_is_named_and_looked_at_less_and_less_often(site: Site) -> None:
    site.start("setuid", "setgid")  # but not the right to signal others
    run = site.enqueue("stuck")
    site.wait(lambda: "survived KILL" in site.log.read_text())
    [keeper] = [pid for pid, command in marked(site.token).items() if "keeper.py" in command]
    [process] = re.findall(r"processes survived KILL: (\d+);", site.log.read_text())
    assert site.manager.sync.get_run(run.id).verdict is None
    # It goes to sleep after every look: some times, where it had time for two hundred.
    before = switches(keeper)
    time.sleep(4)  # the time that is looked at, not a wait for something
    assert switches(keeper) - before < 30

    os.kill(int(process), signal.SIGKILL)
    ended = site.ended(run)
    assert ended.verdict == "succeeded", ended.error
    [said] = [line for line in site.manager.sync.log(run) if line.level == "warning"]
    assert said.text == (
        f"these processes survived KILL: {process}; they have more rights than the node, or hang in the kernel"
    )
    assert f"run {run.id} of 'stuck': {said.text}" in site.log.read_text()


def switches(pid: int) -> int:
    """How often it has gone to sleep."""
    status = Path(f"/proc/{pid}/status").read_text()
    return int(re.findall(r"^voluntary_ctxt_switches:\s+(\d+)", status, re.MULTILINE)[0])
