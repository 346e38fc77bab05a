"""The process of a daemon: its pidfile, and how it detaches from the shell.

The lock on the pidfile decides, not the number in it: a lock always ends with its process, and numbers are reused. A
file without a lock is stale, except if its process is running and never took the lock: then it belongs to another
program. The file gets its name only when it is complete and locked, so readers never see half a number.

`detach` is for init systems that wait for the command to return. The command returns when the daemon is ready, or only
waits for its store. Until then its output goes to the terminal, and if it fails, the command exits with 1. Call it
before any thread starts and any store is opened, since neither survives a fork.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import stat
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import NoReturn

from evertick.errors import Refused
from evertick.text.regular_file import kind_of

__all__ = ["Detached", "Pidfile", "detach", "is_running", "pid_in", "running_pid", "started_at_tick"]

# Start times have a resolution of 0.01 s since the boot, and the boot time one of 1 s.
_SLACK_SECONDS = 2.0


def is_running(pid: int) -> bool:
    """Whether a process with this number exists, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def started_at_tick(pid: int) -> int | None:
    """When the process started, in ticks since the boot, independent of clock changes; None: unknown."""
    fields = _fields(pid)
    return None if fields is None else int(fields[19])


def was_running(pid: int, at: float) -> bool:
    """Whether this process is running and was running at that time; False if unknown."""
    fields = _fields(pid)
    if fields is None or fields[0] == "Z":
        return False
    try:
        boot = next(line for line in Path("/proc/stat").read_text().splitlines() if line.startswith("btime "))
    except (OSError, StopIteration):
        return False
    started = int(boot.split()[1]) + int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return started <= at + _SLACK_SECONDS


def _fields(pid: int) -> list[str] | None:
    """The fields of /proc/PID/stat after the name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


# The longest number on Linux is "4194304\n".
_BYTES_MOST = 32
# Other processes may take, remove or read the file at the same moment.
_TRIES, _PAUSE_SECONDS = 20, 0.01


class Pidfile:
    """Held from `take` to `remove`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._held: int | None = None
        # The process in a stale file that was replaced, and why it was stale.
        self.stale_pid: int | None = None
        self.stale_why = ""

    def take(self) -> None:
        """Write the pidfile. Raises Refused, with the process that holds it."""
        opened, name = self._create()
        try:
            for _ in range(_TRIES):
                if self._try_to_take(name):
                    self._held = opened
                    return
                threading.Event().wait(_PAUSE_SECONDS)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            if self._held is None:
                os.close(opened)
        raise _refused(
            self.path,
            "is locked by another process than the one in it",
            "name another --pidfile, or find the process with `fuser`",
        )

    def remove(self) -> None:
        """Remove the file, unless it was removed or replaced meanwhile."""
        held, self._held = self._held, None
        if held is None:
            return
        with contextlib.suppress(OSError):
            if _is_same(held, self.path):
                os.unlink(self.path)
        os.close(held)

    def _create(self) -> tuple[int, str]:
        """A complete and locked file under a temporary name."""
        name = f"{self.path}.{os.getpid()}"
        try:
            # Left by an earlier process with the same number that was killed during its start.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            opened = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        try:
            os.write(opened, f"{os.getpid()}\n".encode())
            fcntl.flock(opened, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(opened)
            os.unlink(name)
            raise _cannot_write(self.path, error) from error
        return opened, name

    def _try_to_take(self, name: str) -> bool:
        """Give the file its name. False: another process was faster; try again."""
        try:
            os.link(name, self.path)
        except FileExistsError:
            return self._has_replaced_stale(name)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        return True

    def _has_replaced_stale(self, name: str) -> bool:
        with _opened(self.path) as found:
            if found is None:
                return False
            # Replaced only under its lock: of two processes that find it stale, one continues.
            if not _has_locked(found):
                if (pid := _pid_of(found)) is None or is_running(pid):
                    raise _taken(self.path, pid)
                return False  # another process reads the stale file, like `running_pid`, or replaces it
            if not _is_same(found, self.path):
                return False
            self.stale_pid = _checked(self.path, found)
            is_reused = self.stale_pid is not None and is_running(self.stale_pid)
            self.stale_why = "whose number is used by another process" if is_reused else "which is not running"
            os.rename(name, self.path)
            return True


def running_pid(path: Path) -> int | None:
    """The process that holds the pidfile now."""
    with _opened(path) as found:
        return None if found is None or _has_locked(found) else _pid_of(found)


def pid_in(path: Path) -> int | None:
    """The number in the file, locked or not."""
    with _opened(path) as found:
        return None if found is None else _pid_of(found)


@contextlib.contextmanager
def _opened(path: Path) -> Iterator[int | None]:
    try:
        found = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        yield None
        return
    except OSError as error:
        fix = "remove it, or name another --pidfile"
        raise _refused(path, f"cannot be read ({error.strerror})", fix) from error
    try:
        if not stat.S_ISREG(mode := os.fstat(found).st_mode):
            raise _refused(path, f"is {kind_of(mode)}, not a regular file", "name another --pidfile")
        yield found
    finally:
        os.close(found)


def _has_locked(found: int) -> bool:
    try:
        fcntl.flock(found, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _is_same(found: int, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(found), os.lstat(path))
    except FileNotFoundError:
        return False


def _pid_of(found: int) -> int | None:
    text = os.pread(found, _BYTES_MOST, 0).strip()
    return int(text) if text.isdigit() and int(text) > 0 else None


def _checked(path: Path, found: int) -> int | None:
    """The number in a stale pidfile. Raises Refused if it is no pidfile, or belongs to another program."""
    status = os.fstat(found)
    pid = _pid_of(found)
    if status.st_size > _BYTES_MOST or (pid is None and status.st_size > 0):
        raise _refused(path, "is no pidfile: its content is not the number of a process", "name another --pidfile")
    if pid is not None and pid != os.getpid() and was_running(pid, status.st_mtime):
        raise _refused(
            path,
            f"belongs to another program: process {pid} ({_command_of(pid)}) is running and has not locked it",
            "name another --pidfile, or remove the file if it does not belong to that process",
        )
    return pid


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "of another user"


def _refused(path: Path, problem: str, fix: str) -> Refused:
    return Refused(f"pidfile {path}: {problem}", setting="--pidfile", value=str(path), fix=fix)


def _taken(path: Path, pid: int | None) -> Refused:
    holder = "another process" if pid is None else f"process {pid}"
    return _refused(path, f"already held by {holder}", "stop it first, or name another --pidfile")


def _cannot_write(path: Path, error: OSError) -> Refused:
    folder = path.parent
    exists = isinstance(error, PermissionError) or os.path.isdir(folder)
    fix = f"let this user write to {folder}" if exists else f"create the directory {folder}"
    return _refused(path, f"cannot be written ({error.strerror})", f"{fix}, or name another --pidfile")


_READY = b"ready"


class Detached:
    """The daemon's end of the pipe to the command that started it."""

    def __init__(self, pipe: int) -> None:
        self._pipe: int | None = pipe

    def ready(self) -> None:
        """Close the terminal, and let the command return."""
        pipe, self._pipe = self._pipe, None
        if pipe is None:
            return
        null = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(null, standard)
        os.close(null)
        with contextlib.suppress(BrokenPipeError):
            os.write(pipe, _READY)
        os.close(pipe)


def detach() -> Detached:
    """Returns only in the daemon; the command exits in here."""
    sys.stdout.flush()
    sys.stderr.flush()
    read_end, write_end = os.pipe()
    if child := os.fork():
        os.close(write_end)
        _wait(read_end, child)
    os.close(read_end)
    os.setsid()
    # A session leader could acquire a terminal; its child cannot.
    if os.fork():
        os._exit(0)
    return Detached(write_end)


def _wait(pipe: int, child: int) -> NoReturn:
    """In the command: wait until the daemon is ready or has failed."""
    os.waitpid(child, 0)
    os._exit(0 if os.read(pipe, len(_READY)) == _READY else 1)
