"""Daemons as processes of their own, in a folder of their own."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import preloaded
from evertick.daemon.process import pid_in

CONFIGURATION = """
[node]
name = "box"
poll_interval = "1s"
stop_timeout = "20s"

[directories]
state = "state"

[daemon]
pidfile = "state/evertick.pid"

[log]
file = "evertick.log"
"""
# A daemon looks at its files once a second; here more often, because tests wait for it.
LOOK_SECONDS = 0.1
LOOKING = f"""
from evertick.daemon import daemon
daemon._LOOK_SECONDS = {LOOK_SECONDS}
from evertick.cli import main
main()
"""
# However slow the machine is, this long something may take.
PATIENCE_SECONDS = 60


def environment(**more: str) -> dict[str, str]:
    known = {name: value for name, value in os.environ.items() if not name.startswith("EVERTICK")}
    return {**known, "TZ": "UTC", "PYTHONUNBUFFERED": "1", **more}


def until(is_so: Callable[[], object], what: str) -> None:
    """Look again and again; what another process does has no event to wait on."""
    end, pause = threading.Event(), 0.02
    for _ in range(round(PATIENCE_SECONDS / pause)):
        if is_so():
            return
        end.wait(pause)
    raise AssertionError(f"it never came to that: {what}")


def marked(mark: str, value: str) -> dict[int, str]:
    """Processes with this variable in their environment, regardless of group, session and parent, by number."""
    found = {}
    for process in Path("/proc").iterdir():
        if not process.name.isdigit():
            continue
        try:
            if f"{mark}={value}".encode() in (process / "environ").read_bytes().split(b"\0"):
                found[int(process.name)] = (process / "cmdline").read_text(errors="replace").replace("\0", " ")
        except OSError:  # it has ended, or is another user's
            continue
    return found


class Site:
    """A folder with a configuration, and the daemons that are started in it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "evertick.toml"
        self.config.write_text(CONFIGURATION)
        self.log = folder / "evertick.log"
        self.pidfile = folder / "state/evertick.pid"
        self._started: list[subprocess.Popen[str]] = []

    def start(self, *flags: str, command: str = "daemon", **more: str) -> subprocess.Popen[str]:
        process = preloaded.popen(
            [sys.executable, "-c", LOOKING, command, *flags],
            cwd=self.folder,
            env=environment(**more),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        self._started.append(process)
        return process

    def started(self, *flags: str, **more: str) -> subprocess.Popen[str]:
        """A daemon whose node is there."""
        count = self.logged().count("has started")
        process = self.start(*flags, **more)
        until(lambda: self.logged().count("has started") > count or process.poll() is not None, "the node starts")
        if process.poll() is not None:
            raise AssertionError(f"it has ended: {process.communicate()}, log: {self.logged()}")
        return process

    def call(self, *args: str, **more: str) -> subprocess.CompletedProcess[str]:
        """A command of evertick, to its end."""
        command = [sys.executable, "-m", "evertick", *args]
        return preloaded.run(command, cwd=self.folder, env=environment(**more), timeout=PATIENCE_SECONDS)

    def logged(self) -> str:
        return self.log.read_text() if self.log.exists() else ""

    def until_logged(self, words: str, count: int = 1) -> None:
        until(lambda: self.logged().count(words) >= count, f"{words!r} is logged {count} times:\n{self.logged()}")

    def end(self) -> None:
        """End all remaining processes, detached ones included."""
        left = pid_in(self.pidfile)
        if left is not None and left != os.getpid() and _is_evertick(left):
            os.kill(left, signal.SIGKILL)
        for process in self._started:
            process.kill()
            process.communicate()


def _is_evertick(pid: int) -> bool:
    try:
        return bool(re.search(rb"evertick|preloaded", Path(f"/proc/{pid}/cmdline").read_bytes()))
    except OSError:
        return False
