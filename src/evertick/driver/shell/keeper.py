"""Runs one command and ends all its processes. A separate program:

    python -I -S keeper.py SOCKET GRACE [--order=FILE] COMMAND...

SOCKET is connected to the node. When the node sends `stop SECONDS`, or dies and so closes the socket, the keeper sends
TERM to the command and all its descendants, and KILL after that time (after GRACE seconds if the node has died). It
ends descendants that outlive the command in the same way.

The keeper writes lines to the socket: `started PID`, then `exited CODE CPU MEMORY`, `killed SIGNAL CPU MEMORY` or
`failed REASON`. It exits when no process is left. CPU is the CPU time of the command and its descendants in seconds,
MEMORY the peak memory of the largest of these processes in bytes. If processes survive KILL, because they have more
rights than the keeper or hang in the kernel, it first writes `stuck PID...` and checks again, less and less often.

FILE is an open file with settings for the command, as entries `name=value` that end with a zero: `cwd`, `uid`, `gid`,
`groups`, `nice`, `memory` (the address space of each process in bytes), and one `env` for each variable. They are not
in the command line, which all users can read, because variables may hold secrets.

A keeper runs beside every job and starts before it, so it imports only a few modules of the standard library. It passes
all its files on to the command and keeps only the socket open, so that the store of the node and the pipes of the job
can be closed. It ignores TERM, INT and HUP, because it must outlive the command if systemd signals the whole group.

On Linux the keeper is a subreaper: it adopts orphans, so every descendant stays below it, also in another session or
process group, and none is left when it has no children. On other systems it reaches only the process group.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from _collections_abc import Callable  # `os` has imported it already; `typing` would double the start time

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Python ignores them, and a command would inherit that: `yes | head` would print an error.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# The next scan finds a descendant that forked during a scan.
_SCAN_AGAIN_SECONDS = 0.02
# After this many scans without an end of a process (half a second), the rest is stuck. Then each pause is twice the
# last one, up to 5 s. The end of a child interrupts the pause.
_STUCK_SCANS = 25
_DOUBLINGS_MAX = 8
_STUCK_SHOWN = 10
# The largest process id of Linux.
_PID_MAX = 4_194_304
_ORDER = "--order="


class Keeper:
    """One command, and the orders of the node about it."""

    def __init__(self, socket: int, grace: float, order: dict[str, list[str]]) -> None:
        self._socket = socket
        self._grace = grace
        self._order = order
        self._prctl = _find_prctl()
        self._adopts_orphans = self._prctl is not None and os.path.isdir("/proc/self")
        self._is_socket_open = True
        self._is_time_up = False
        self._child = 0
        # The number of reaped processes.
        self._reaped = 0
        # The processes that have received TERM.
        self._terminated: set[int] = set()
        # The status of the command from `waitpid`.
        self._status: int | None = None
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        # With a handler, because the command would inherit an ignored signal.
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, lambda *_: None)

    def keep(self, command: list[str]) -> None:
        """Run the command until it ends, or until the node stops it or dies."""
        os.set_inheritable(self._socket, False)
        try:
            self._start(command)
        except OSError as error:
            self._report(f"failed the command could not be started: {error}")
            return
        self._report(f"started {self._child}")
        _close_files(but={self._socket, self._wakes, self._waker})
        grace = self._watch()
        self._end_processes(grace)
        self._report(_ending(self._status))

    def _start(self, command: list[str]) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        reader, writer = os.pipe()
        keeper = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._exec(command, writer, keeper)
        os.close(writer)
        with open(reader, "rb") as pipe:
            error = pipe.read().decode(errors="replace")
        if error:
            os.waitpid(self._child, 0)
            raise OSError(error)

    def _exec(self, command: list[str], errors: int, keeper: int) -> None:
        step = "process group"
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            for name, apply in _STEPS:
                step = name
                apply(self._order)
            if self._prctl is not None:
                # Kills the command if the keeper is killed. A change of the user resets this, so it comes after it.
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # the keeper was killed before that
                os._exit(127)
            step = command[0]
            environment = dict(each.split("=", 1) for each in self._order["env"]) if "env" in self._order else None
            # Last, because the steps before may need more memory than the limit.
            _limit_memory(self._order)
            if environment is None:
                os.execvp(command[0], command)  # noqa: S606 - the node chooses the command
            os.execvpe(command[0], command, environment)  # noqa: S606
        except BaseException as error:
            os.write(errors, f"{step}: {_reason(error, step)}".encode(errors="replace"))
        finally:
            os._exit(127)

    def _watch(self) -> float:
        """Wait until the command has ended or must stop. Returns the grace period for the remaining processes."""
        while self._has_children() and self._status is None:
            grace = self._wait(None)
            if grace is not None:
                return grace
        return self._grace

    def _end_processes(self, grace: float) -> None:
        """Send TERM to all processes, and KILL after the grace period, until none is left."""
        if self._adopts_orphans and not self._has_children():
            return
        self._terminated |= self._signal_all(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, max(grace, 0.001))
        while self._has_children() and not self._is_time_up:
            shorter = self._wait(None)
            if shorter is not None:  # the node has shortened the time, or has died
                left, _ = signal.getitimer(signal.ITIMER_REAL)
                signal.setitimer(signal.ITIMER_REAL, max(min(shorter, left), 0.001))
            self._terminate_orphans()
        self._kill_all()
        if not self._adopts_orphans:
            self._signal_group(signal.SIGKILL)

    def _terminate_orphans(self) -> None:
        """Send TERM to processes that became visible when their parent ended."""
        for pid in _children() if self._adopts_orphans else ():
            if pid not in self._terminated and _group_of(pid) != self._child:
                _send(signal.SIGTERM, pid)
                self._terminated.add(pid)

    def _kill_all(self) -> None:
        """Send KILL until no process is left."""
        reaped, idle_scans = self._reaped, 0
        while self._has_children():
            idle_scans = idle_scans + 1 if self._reaped == reaped else 0
            reaped = self._reaped
            left = self._signal_all(signal.SIGKILL)
            if idle_scans == _STUCK_SCANS:
                self._report(" ".join(["stuck", *map(str, sorted(left)[:_STUCK_SHOWN])]))
            self._wait(_SCAN_AGAIN_SECONDS * 2 ** min(max(idle_scans - _STUCK_SCANS, 0), _DOUBLINGS_MAX))

    def _has_children(self) -> bool:
        """Reap ended processes. Without children there are no descendants, because orphans become children."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return self._adopts_orphans or self._status is None
            self._reaped += 1
            if pid == self._child:
                self._status = status

    def _wait(self, seconds: float | None) -> float | None:
        """Wait for a signal, a message or the end of the time. Returns the grace period if the command must stop."""
        files = [self._wakes, self._socket] if self._is_socket_open else [self._wakes]
        ready, _, _ = select.select(files, [], [], seconds)
        if self._wakes in ready:
            self._is_time_up = self._is_time_up or signal.SIGALRM in os.read(self._wakes, 4096)
        if self._socket not in ready:
            return None
        try:
            data = os.read(self._socket, 4096)
        except OSError:
            data = b""
        self._is_socket_open = bool(data)
        return _stop_seconds(data, self._grace)

    def _signal_all(self, number: signal.Signals) -> set[int]:
        """Signal the group in one call, which no fork can escape, and each process outside of it. Returns all found."""
        self._signal_group(number)
        found = {*_descendants(os.getpid()), *_children()} if self._adopts_orphans else set()
        for pid in found:
            if _group_of(pid) != self._child:
                _send(number, pid)
        return found

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child, number)
        except OSError:
            return

    def _report(self, text: str) -> None:
        try:
            os.write(self._socket, f"{text}\n".encode())
        except OSError:  # the node has died
            return


def _find_prctl() -> Callable[[int, int], int] | None:
    """The system call that makes the keeper a subreaper; None: this system has none."""
    if sys.platform != "linux":
        return None
    try:
        import ctypes

        prctl: Callable[[int, int], int] = ctypes.CDLL(None).prctl
    except (ImportError, OSError, AttributeError):
        return None
    return prctl


def _send(number: signal.Signals, pid: int) -> None:
    try:
        os.kill(pid, number)
    except OSError:  # it has ended, or may not be signalled
        return


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # it has ended
        return None


def _children() -> list[int]:
    """The keeper's children, also those that `/proc` hides. Hidden descendants become children when their parent ends.

    With `hidepid` (`ProtectProc=` of systemd) `/proc` hides processes of other users and those with unreadable memory,
    such as ssh-agent.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(each) for each in file.read().split()]
    except OSError:  # the kernel was built without CONFIG_PROC_CHILDREN
        return _children_by_waitid() if _hides_processes() else []


def _children_by_waitid() -> list[int]:
    """Tries every process id: 1.3 µs each, 43 ms for the usual 32,768."""
    try:
        with open("/proc/sys/kernel/pid_max", "rb") as file:
            last = int(file.read())
    except OSError:
        last = _PID_MAX
    return [pid for pid in range(1, last + 1) if _is_child(pid)]


def _is_child(pid: int) -> bool:
    try:
        os.waitid(os.P_PID, pid, os.WEXITED | os.WNOHANG | os.WNOWAIT)
    except ChildProcessError:
        return False
    return True


def _hides_processes() -> bool:
    try:
        with open("/proc/self/mountinfo", "rb") as file:
            return any(b" /proc " in line and b"hidepid=" in line for line in file)
    except OSError:
        return False


def _descendants(top: int) -> list[int]:
    """The descendants that `/proc` shows."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # The state and the parent follow the program name, which may contain any character.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(top, ()))
    for pid in found:  # the list grows during the loop
        found += children.get(pid, ())
    return found


def _close_files(but: set[int]) -> None:
    """Close all other files: the pipes belong to the command."""
    devnull = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(devnull, number)
    first = 3
    for number in sorted(but):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _read_order(file: int) -> dict[str, list[str]]:
    """The entries by name."""
    values: dict[str, list[str]] = {}
    with open(file, "rb") as order:
        entries = order.read().split(b"\0")[:-1]
    for entry in entries:
        name, _, value = os.fsdecode(entry).partition("=")
        values.setdefault(name, []).append(value)
    return values


def _set_nice(order: dict[str, list[str]]) -> None:
    if "nice" in order:
        os.nice(int(order["nice"][0]))


def _set_user(order: dict[str, list[str]]) -> None:
    """Groups first, because only root can change them."""
    if "uid" not in order:
        return
    os.setgroups([int(each) for each in order["groups"][0].split(",") if each])
    os.setgid(int(order["gid"][0]))
    os.setuid(int(order["uid"][0]))


def _set_cwd(order: dict[str, list[str]]) -> None:
    """Called as the user of the command, who may have no access to the directory."""
    if "cwd" in order:
        os.chdir(order["cwd"][0])


def _limit_memory(order: dict[str, list[str]]) -> None:
    if "memory" in order:
        limit, (_, hard) = int(order["memory"][0]), resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:  # only root may raise it
            limit = min(limit, hard)
        resource.setrlimit(resource.RLIMIT_AS, (limit, limit))


# The steps of an order, in the necessary sequence, by the prefix of their errors.
_STEPS = (("nice", _set_nice), ("user", _set_user), ("cwd", _set_cwd))


def _reason(error: BaseException, step: str) -> str:
    """The text of an error, with its file if the step does not name it."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    # For a program that is not found, it is the last directory of PATH, in bytes.
    has_other_file = isinstance(error.filename, str) and error.filename != step
    return f"{error.filename}: {error.strerror}" if has_other_file else error.strerror


def _stop_seconds(data: bytes, default: float) -> float:
    """The shortest time in the messages; the default if there is none."""
    try:
        return min(float(line.split()[1]) for line in data.splitlines())
    except (IndexError, ValueError):
        return default


def _ending(status: int | None) -> str:
    if status is None:
        return "failed the exit status of the command is unknown"
    code = os.waitstatus_to_exitcode(status)
    return f"exited {code} {_usage()}" if code >= 0 else f"killed {-code} {_usage()}"


def _usage() -> str:
    """CPU time and peak memory of all reaped processes: the command, the processes it waited for, and its orphans.

    The memory is at least 8 to 9 MB, that of the keeper when it forked: the kernel keeps the peak of a process across
    `exec`, so the figure of a smaller program is not available.
    """
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    unit = 1 if sys.platform == "darwin" else 1024
    return f"{used.ru_utime + used.ru_stime:.6f} {used.ru_maxrss * unit}"


def main(socket: str, grace: str, *command: str) -> None:
    order: dict[str, list[str]] = {}
    if command[0].startswith(_ORDER):
        order, command = _read_order(int(command[0].removeprefix(_ORDER))), command[1:]
    Keeper(int(socket), float(grace), order).keep(list(command))


if __name__ == "__main__":
    main(*sys.argv[1:])
