"""Runs one command line, and leaves nothing of it behind. A program of its own:

    python -I -S keeper.py SOCKET GRACE [--order=FILE] COMMAND...

SOCKET is connected to the node. Its end, by any death of the node, or `stop SECONDS` on it, means: TERM to the command
and all its descendants, and KILL after that time (GRACE seconds where the node has died). Descendants that the command
leaves running when it ends by itself end the same way. The keeper writes `started PID`, then `exited CODE CPU MEMORY`,
`killed SIGNAL CPU MEMORY` or `failed WHY` to the socket, and ends when nothing is left. CPU is the processor time of
the command and its descendants, in seconds; MEMORY the most that one of these processes had, in bytes. Before that it
writes `stuck PID...` where KILL does not end a process, which has more rights than the keeper or hangs in the kernel.
It is looked at again, less and less often.

FILE says how to start the command, where not as the keeper was started: an open file of entries `name=value`, each
ended by a zero. `cwd`, `uid`, `gid`, `groups`, `nice`, `memory` (the address space of each process, in bytes), and as
many `env` as the environment has variables. In a file, since an environment may hold secrets, and all users may read
command lines.

It has the standard library only, and little of that: one runs beside every job, and starts before it. It passes every
file it was given on to the command, and keeps none but the socket: neither the store of the node nor the pipes of the
job may stay open because of it. Signals do not end it: a supervisor that stops a whole group must not end a keeper
before its command.

On Linux it adopts orphans (it is a "subreaper"), so that every descendant stays below it, whatever session or group it
has made for itself: none is left exactly when it has no children any more. Elsewhere only the group is reached.
"""

from __future__ import annotations

import os
import resource
import select
import signal
import sys
from _collections_abc import Callable  # loaded by `os` already; `typing` would double the time of the start

_PR_SET_PDEATHSIG, _PR_SET_CHILD_SUBREAPER = 1, 36
_IGNORED = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)
# Ignored by Python from its start on; a command would inherit that, and `yes | head` would complain.
_IGNORED_BY_PYTHON = (signal.SIGPIPE, signal.SIGXFSZ)
# A descendant that forks while it is looked for is found by the next look.
_LOOK_AGAIN_SECONDS = 0.02
# After so many looks at which no process has ended (half a second), the rest is stuck; from then on each pause is twice
# the one before it, up to 5 s. The end of a child is noticed at once all the same.
_VAIN_LOOKS = 25
_DOUBLINGS_MOST = 8
_STUCK_SHOWN = 10
# The most processes that Linux has numbers for.
_PID_MAX = 4_194_304
_ORDER = "--order="


class Keeper:
    """One command, and what the node says about it."""

    def __init__(self, socket: int, grace: float, order: dict[str, list[str]]) -> None:
        self._socket = socket
        self._grace = grace
        self._order = order
        self._prctl = _find_prctl()
        self._adopts_orphans = self._prctl is not None and os.path.isdir("/proc/self")
        self._is_socket_open = True
        self._is_time_up = False
        self._child = 0
        # How many have been waited for.
        self._gone = 0
        # The processes that have had TERM.
        self._terminated: set[int] = set()
        # How the command ended, as `waitpid` tells it.
        self._status: int | None = None
        self._wakes, self._waker = os.pipe()
        os.set_blocking(self._waker, False)
        signal.set_wakeup_fd(self._waker, warn_on_full_buffer=False)
        # Handled, not ignored: an ignored signal would stay ignored in the command.
        for number in (*_IGNORED, signal.SIGCHLD, signal.SIGALRM):
            signal.signal(number, lambda *_: None)

    def keep(self, command: list[str]) -> None:
        """Run the command to its end, or to the node's."""
        os.set_inheritable(self._socket, False)
        try:
            self._start(command)
        except OSError as error:
            self._report(f"failed {error}")
            return
        self._report(f"started {self._child}")
        _let_go_of_files(but={self._socket, self._wakes, self._waker})
        grace = self._watch()
        self._clear(grace)
        self._report(_words(self._status))

    def _start(self, command: list[str]) -> None:
        if self._prctl is not None:
            self._prctl(_PR_SET_CHILD_SUBREAPER, 1)
        trouble, report = os.pipe()
        keeper = os.getpid()
        self._child = os.fork()
        if self._child == 0:
            self._become(command, report, keeper)
        os.close(report)
        with open(trouble, "rb") as pipe:
            text = pipe.read().decode(errors="replace")
        if text:
            os.waitpid(self._child, 0)
            raise OSError(text)

    def _become(self, command: list[str], report: int, keeper: int) -> None:
        step = "its process group"
        try:
            os.setpgid(0, 0)
            signal.set_wakeup_fd(-1)
            signal.pthread_sigmask(signal.SIG_SETMASK, ())
            for number in _IGNORED_BY_PYTHON:
                signal.signal(number, signal.SIG_DFL)
            for name, take in _STEPS:
                step = name
                take(self._order)
            if self._prctl is not None:
                # Should the keeper itself be killed, the command must not run on without one. A change of the user
                # undoes it, so it comes after that.
                self._prctl(_PR_SET_PDEATHSIG, signal.SIGKILL)
            if os.getppid() != keeper:  # it was killed before that
                os._exit(127)
            step = command[0]
            environment = dict(each.split("=", 1) for each in self._order["env"]) if "env" in self._order else None
            # Last of all: what is left to do here must not need more memory than the command may have.
            _limit_memory(self._order)
            if environment is None:
                os.execvp(command[0], command)  # noqa: S606 - what to run is the node's to say
            os.execvpe(command[0], command, environment)  # noqa: S606
        except BaseException as error:
            os.write(report, f"{step}: {_why(error, step)}".encode(errors="replace"))
        finally:
            os._exit(127)

    def _watch(self) -> float:
        """Until the command has ended or is to end. Answers the time that what is left gets."""
        while self._has_children() and self._status is None:
            word = self._wait(None)
            if word is not None:
                return word
        return self._grace

    def _clear(self, grace: float) -> None:
        """TERM to everything, KILL when the time is up, until nothing is left."""
        if self._adopts_orphans and not self._has_children():
            return
        self._terminated |= self._signal_all(signal.SIGTERM)
        signal.setitimer(signal.ITIMER_REAL, max(grace, 0.001))
        while self._has_children() and not self._is_time_up:
            word = self._wait(None)
            if word is not None:  # the node has less patience now, or is gone
                left, _ = signal.getitimer(signal.ITIMER_REAL)
                signal.setitimer(signal.ITIMER_REAL, max(min(word, left), 0.001))
            self._terminate_orphans()
        self._kill_all()
        if not self._adopts_orphans:
            self._signal_group(signal.SIGKILL)

    def _terminate_orphans(self) -> None:
        """TERM to processes without one that were hidden behind a parent that has ended since."""
        for pid in _children() if self._adopts_orphans else ():
            if pid not in self._terminated and _group_of(pid) != self._child:
                _send(signal.SIGTERM, pid)
                self._terminated.add(pid)

    def _kill_all(self) -> None:
        """KILL, until nothing is left."""
        gone, vain_looks = self._gone, 0
        while self._has_children():
            vain_looks = vain_looks + 1 if self._gone == gone else 0
            gone = self._gone
            left = self._signal_all(signal.SIGKILL)
            if vain_looks == _VAIN_LOOKS:
                self._report(" ".join(["stuck", *map(str, sorted(left)[:_STUCK_SHOWN])]))
            self._wait(_LOOK_AGAIN_SECONDS * 2 ** min(max(vain_looks - _VAIN_LOOKS, 0), _DOUBLINGS_MOST))

    def _has_children(self) -> bool:
        """Reaps what has ended. Without children there are no descendants: orphans would be ours."""
        while True:
            try:
                pid, status = os.waitpid(-1, os.WNOHANG)
            except ChildProcessError:
                return False
            if pid == 0:
                return self._adopts_orphans or self._status is None
            self._gone += 1
            if pid == self._child:
                self._status = status

    def _wait(self, seconds: float | None) -> float | None:
        """Until a signal, a word on the socket, or the time is over. Answers the seconds that a word to stop gives."""
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
        return _seconds(data, self._grace)

    def _signal_all(self, number: signal.Signals) -> set[int]:
        """The group in one call, which no fork can dodge; and processes that have left it. Answers those seen."""
        self._signal_group(number)
        seen = {*_descendants(os.getpid()), *_children()} if self._adopts_orphans else set()
        for pid in seen:
            if _group_of(pid) != self._child:
                _send(number, pid)
        return seen

    def _signal_group(self, number: signal.Signals) -> None:
        try:
            os.killpg(self._child, number)
        except OSError:
            return

    def _report(self, text: str) -> None:
        try:
            os.write(self._socket, f"{text}\n".encode())
        except OSError:  # the node is gone
            return


def _find_prctl() -> Callable[[int, int], int] | None:
    """The system call that adopts orphans, where there is one."""
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
    except OSError:  # gone meanwhile, or not ours to signal
        return


def _group_of(pid: int) -> int | None:
    try:
        return os.getpgid(pid)
    except OSError:  # gone meanwhile
        return None


def _children() -> list[int]:
    """Our own, whatever `/proc` hides: what hides below one of them becomes ours when that has ended.

    With `hidepid` (`ProtectProc=` of systemd) `/proc` shows neither processes of other users nor those that do not let
    their memory be read, such as ssh-agent.
    """
    try:
        with open(f"/proc/self/task/{os.getpid()}/children", "rb") as file:
            return [int(each) for each in file.read().split()]
    except OSError:  # the kernel was built without it (CONFIG_PROC_CHILDREN)
        return _children_by_asking() if _hides_processes() else []


def _children_by_asking() -> list[int]:
    """Of every number there may be, whether a child of ours has it: 1.3 µs each, 43 ms for the usual 32,768."""
    try:
        with open("/proc/sys/kernel/pid_max", "rb") as file:
            most = int(file.read())
    except OSError:
        most = _PID_MAX
    return [pid for pid in range(1, most + 1) if _is_child(pid)]


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
    """As far as `/proc` shows them."""
    children: dict[int, list[int]] = {}
    for name in os.listdir("/proc"):
        if name.isdigit():
            try:
                with open(f"/proc/{name}/stat", "rb") as file:
                    # After the name of the program, which may hold anything, come its state and its parent.
                    parent = int(file.read().rpartition(b")")[2].split()[1])
            except (OSError, IndexError, ValueError):
                continue
            children.setdefault(parent, []).append(int(name))
    found = list(children.get(top, ()))
    for pid in found:  # grows as it goes
        found += children.get(pid, ())
    return found


def _let_go_of_files(but: set[int]) -> None:
    """Close everything else: the pipes belong to the command now."""
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    first = 3
    for number in sorted(but):
        os.closerange(first, number)
        first = number + 1
    os.closerange(first, os.sysconf("SC_OPEN_MAX"))


def _read_order(file: int) -> dict[str, list[str]]:
    """The entries by their names."""
    found: dict[str, list[str]] = {}
    with open(file, "rb") as order:
        entries = order.read().split(b"\0")[:-1]
    for entry in entries:
        name, _, value = os.fsdecode(entry).partition("=")
        found.setdefault(name, []).append(value)
    return found


def _be_nice(order: dict[str, list[str]]) -> None:
    if "nice" in order:
        os.nice(int(order["nice"][0]))


def _become_user(order: dict[str, list[str]]) -> None:
    """The groups first: without its user the process may not change them any more."""
    if "uid" not in order:
        return
    os.setgroups([int(each) for each in order["groups"][0].split(",") if each])
    os.setgid(int(order["gid"][0]))
    os.setuid(int(order["uid"][0]))


def _go_to(order: dict[str, list[str]]) -> None:
    """As the user that runs it, who may have no access to the folder."""
    if "cwd" in order:
        os.chdir(order["cwd"][0])


def _limit_memory(order: dict[str, list[str]]) -> None:
    if "memory" in order:
        most, (_, hard) = int(order["memory"][0]), resource.getrlimit(resource.RLIMIT_AS)
        if hard != resource.RLIM_INFINITY:  # only root may raise it
            most = min(most, hard)
        resource.setrlimit(resource.RLIMIT_AS, (most, most))


# The steps of an order, in the sequence that works, by the first words of their errors.
_STEPS = (("nice", _be_nice), ("user", _become_user), ("cwd", _go_to))


def _why(error: BaseException, what: str) -> str:
    """The words of an error, with the file that it is about, if that says more than what was to be done."""
    if not isinstance(error, OSError) or not error.strerror:
        return str(error)
    # Of a program that is nowhere it is the last place where it was looked for, in bytes.
    is_telling = isinstance(error.filename, str) and error.filename != what
    return f"{error.filename}: {error.strerror}" if is_telling else error.strerror


def _seconds(data: bytes, default: float) -> float:
    """The shortest time that the words give; the default where there are none."""
    try:
        return min(float(line.split()[1]) for line in data.splitlines())
    except (IndexError, ValueError):
        return default


def _words(status: int | None) -> str:
    if status is None:
        return "failed its end was not seen"
    code = os.waitstatus_to_exitcode(status)
    return f"exited {code} {_used()}" if code >= 0 else f"killed {-code} {_used()}"


def _used() -> str:
    """Processor time and memory of all that has been waited for: the command, what it waited for, and its orphans.

    The memory is at least that of this process when it forked, 8 to 9 MB: the kernel keeps the peak of a process over
    its `exec`, in the same figure, so that of a smaller program is not to be had.
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
