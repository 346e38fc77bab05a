"""The process of a daemon: it leaves the shell, its pidfile names it, and at most one has that.

The lock on the pidfile decides, not the number in it: a lock goes with its process however that ends, and a number may
belong to another process by now. So a file without a lock is stale, with one exception: a file whose process lives, but
took no lock, is that of another program. A reader never finds half a number: the file gets its name when it is complete
and locked.

`detach` is for init systems that wait for the command to return. The command returns when the daemon is ready, or waits
for nothing but its store; until then its output goes to the terminal, and if it fails before, the command ends with 1.
Call it before there is any thread, and before any store is opened: neither survives a fork.
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

# Start times are counted in hundredths of seconds since the machine was started, which is itself known by the second.
_SLACK_SECONDS = 2.0


def is_running(pid: int) -> bool:
    """Whether there is one of this number, of any user."""
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    except PermissionError:
        return True
    return True


def started_at_tick(pid: int) -> int | None:
    """When it was started, in ticks since the boot, which no change of the clock moves; None: unknown."""
    fields = _fields(pid)
    return None if fields is None else int(fields[19])


def was_running(pid: int, at: float) -> bool:
    """Whether this process lives, and did so at that time. False where that is unknown."""
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
    """Of its line in /proc, those behind its name."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return None


# "4194304\n" is the longest that Linux has.
_BYTES_MOST = 32
# Others may start, end or look at the same moment, each for an instant.
_TRIES, _PAUSE_SECONDS = 20, 0.01


class Pidfile:
    """Held from `take` to `remove`, or until the process ends."""

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()
        self._held: int | None = None
        # The process in the file that was replaced, if there was one; and why it was stale.
        self.stale_pid: int | None = None
        self.stale_why = ""

    def take(self) -> None:
        """Write it, or refuse: naming the process that has it."""
        made, name = self._make()
        try:
            for _ in range(_TRIES):
                if self._is_taken(name):
                    self._held = made
                    return
                threading.Event().wait(_PAUSE_SECONDS)
        finally:
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            if self._held is None:
                os.close(made)
        raise Refused(
            f"the pidfile {self.path} is locked by another process than the one in it; name another --pidfile, or "
            "see which has it open with `fuser`"
        )

    def remove(self) -> None:
        """At the end. A file that was removed or replaced meanwhile is left alone."""
        held, self._held = self._held, None
        if held is None:
            return
        with contextlib.suppress(OSError):
            if _is_same(held, self.path):
                os.unlink(self.path)
        os.close(held)

    def _make(self) -> tuple[int, str]:
        """A complete and locked file under a name of its own."""
        name = f"{self.path}.{os.getpid()}"
        try:
            # What an earlier process of the same number left behind in the middle of its start.
            with contextlib.suppress(FileNotFoundError):
                os.unlink(name)
            made = os.open(name, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW, 0o644)
        except OSError as error:
            raise _cannot_write(self.path, error) from error
        try:
            os.write(made, f"{os.getpid()}\n".encode())
            fcntl.flock(made, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError as error:
            os.close(made)
            os.unlink(name)
            raise _cannot_write(self.path, error) from error
        return made, name

    def _is_taken(self, name: str) -> bool:
        """One try to give the file its name. False: another process was faster, look again."""
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
            # Only with its lock may it be replaced, so that of two that find it stale one goes on.
            if not _has_locked(found):
                if (pid := _pid_of(found)) is None or is_running(pid):
                    raise _taken(self.path, pid)
                return False  # another process looks at a stale one, like `running_pid`, or replaces it
            if not _is_same(found, self.path):
                return False
            self.stale_pid = _checked(self.path, found)
            is_used = self.stale_pid is not None and is_running(self.stale_pid)
            self.stale_why = "whose number another has by now" if is_used else "which is gone"
            os.rename(name, self.path)
            return True


def running_pid(path: Path) -> int | None:
    """The process that holds the pidfile now, if one does."""
    with _opened(path) as found:
        return None if found is None or _has_locked(found) else _pid_of(found)


def pid_in(path: Path) -> int | None:
    """The number in the file, if there is one, locked or not."""
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
        raise Refused(f"the pidfile {path} cannot be read ({error.strerror}); remove it or name another") from error
    try:
        if not stat.S_ISREG(mode := os.fstat(found).st_mode):
            raise Refused(f"{path} is no pidfile: it is {kind_of(mode)}, not a regular file; name another file")
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
    """The number of the process that has left it behind, if it is a pidfile, and that of no other program."""
    facts = os.fstat(found)
    pid = _pid_of(found)
    if facts.st_size > _BYTES_MOST or (pid is None and facts.st_size > 0):
        raise Refused(f"{path} is no pidfile: it holds something else than the number of a process; name another file")
    if pid is not None and pid != os.getpid() and was_running(pid, facts.st_mtime):
        raise Refused(
            f"the pidfile {path} has the number of process {pid} ({_command_of(pid)}), which lives and has not locked "
            "it: it is that of another program; give this daemon another --pidfile, or remove the file if that process "
            "is not meant"
        )
    return pid


def _command_of(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/comm").read_text().strip()
    except OSError:
        return "of another user"


def _taken(path: Path, pid: int | None) -> Refused:
    who = "another process" if pid is None else f"process {pid}"
    return Refused(
        f"{who} is running with the pidfile {path} already; stop it first, or give this daemon another --pidfile"
    )


def _cannot_write(path: Path, error: OSError) -> Refused:
    folder = path.parent
    is_there = isinstance(error, PermissionError) or os.path.isdir(folder)
    fix = f"let this user write to {folder}" if is_there else f"make the directory {folder}"
    return Refused(f"the pidfile {path} cannot be written ({error.strerror}); {fix}, or name another --pidfile")


_READY = b"ready"


class Detached:
    """The daemon's end of the pipe to the command that has started it."""

    def __init__(self, line: int) -> None:
        self._line: int | None = line

    def ready(self) -> None:
        """Let the command return, and the terminal go."""
        line, self._line = self._line, None
        if line is None:
            return
        nowhere = os.open(os.devnull, os.O_RDWR)
        for standard in (0, 1, 2):
            os.dup2(nowhere, standard)
        os.close(nowhere)
        with contextlib.suppress(BrokenPipeError):
            os.write(line, _READY)
        os.close(line)


def detach() -> Detached:
    """Answers in the daemon alone: the command that was started ends in here."""
    sys.stdout.flush()
    sys.stderr.flush()
    theirs, ours = os.pipe()
    if child := os.fork():
        os.close(ours)
        _wait(theirs, child)
    os.close(theirs)
    os.setsid()
    # The first one leads a session, and could be given a terminal; the second cannot.
    if os.fork():
        os._exit(0)
    return Detached(ours)


def _wait(line: int, child: int) -> NoReturn:
    """In the command: until the daemon is ready, or has ended before with an error on the terminal."""
    os.waitpid(child, 0)
    os._exit(0 if os.read(line, len(_READY)) == _READY else 1)
