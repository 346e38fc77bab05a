"""The node's side of a command that runs under a keeper.

The command runs only while the node keeps its end of the keeper's socket open. When the node closes it or dies, the
keeper ends the command and all its descendants. `ended` is done when no process is left.

Everything runs on the event loop, without threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO

import msgspec

from evertick.clock import system_clock
from evertick.driver.shell.output import Output

__all__ = [
    "DEATH_GRACE_SECONDS",
    "MARK",
    "Ending",
    "Order",
    "SupervisedCommand",
    "kill_marked",
    "sees_all_processes",
    "stop_seconds",
]

# An environment variable that every descendant of a command inherits.
MARK = "EVERTICK_KEPT"
_KEEPER = str(Path(__file__).with_name("keeper.py"))
# The time between TERM and KILL when the node has died. It is short because another node takes the run when the lease
# expires, and no process of this attempt may run then.
DEATH_GRACE_SECONDS = 0.5
_CHUNK = 65_536
_REPORT_MAX_BYTES = 4_096
# Lets the event loop run other work while a command floods its output.
_CHUNKS_AT_ONCE = 4
_REAP_AGAIN_SECONDS = 0.002
# Leftovers of a killed keeper are killed until two scans in a row find none: a process that forks may escape a scan.
_SCAN_AGAIN_SECONDS = 0.02
_SCANS_MAX = 250
_EMPTY_SCANS = 2
_PIDS_SHOWN = 10
_EXCEPT_HIDDEN = "except processes that hide their environment (ssh-agent, sudo, processes of other users)"


# The node keeps the claim during these stops, so the command gets its full time. For other reasons the claim is lost or
# soon will be, and the command gets as little time as after the death of its node.
_FULL_GRACE = frozenset({"requested", "replaced", "timeout"})


def stop_seconds(why: str, kill_after_seconds: float) -> float:
    """The time between TERM and KILL for this reason."""
    return kill_after_seconds if why in _FULL_GRACE else DEATH_GRACE_SECONDS


class Ending(msgspec.Struct, frozen=True):
    """The end of a command: its exit code, its signal, or the reason why it could not be started or followed."""

    code: int | None = None
    signal: int | None = None
    failure: str | None = None
    # CPU time of all its processes, and the peak memory of the largest one.
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None

    def __str__(self) -> str:
        if self.failure is not None:
            return self.failure
        if self.signal is None:
            return f"exit code {self.code}"
        hint = " (possibly out of memory: check the kernel log)" if self.signal == signal.SIGKILL else ""
        return f"killed by signal {_signal_name(self.signal)}{hint}"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """The settings of a command's process that differ from those of the node."""

    cwd: str | None = None
    # Replaces the whole environment of the node.
    env: Mapping[str, str] | None = None
    # User, group and supplementary groups: set together.
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    nice: int = 0
    memory: int | None = None

    def entries(self) -> bytes:
        """The form that the keeper reads. No value contains a zero, which the specification checks."""
        values = {"cwd": self.cwd, "memory": self.memory, "nice": self.nice or None}
        if self.uid is not None:
            values |= {"uid": self.uid, "gid": self.gid, "groups": ",".join(map(str, self.groups))}
        texts = [f"{name}={value}" for name, value in values.items() if value is not None]
        texts += [f"env={name}={value}" for name, value in (self.env or {}).items()]
        assert not any("\0" in text for text in texts), "an entry ends with a zero"
        return b"".join(os.fsencode(text) + b"\0" for text in texts)


class SupervisedCommand:
    """One command. It needs a running event loop. The command inherits `files` under the same numbers.

    on_stuck: called with a text if processes survive KILL; `ended` still waits for them.
    on_started: called with the process id.
    """

    def __init__(
        self,
        command: Sequence[str],
        output: Output,
        files: Sequence[int] = (),
        order: Order | None = None,
        stdin: bytes | None = None,
        on_stuck: Callable[[str], None] = lambda _: None,
        on_started: Callable[[int], None] = lambda _: None,
    ) -> None:
        self._loop = asyncio.get_running_loop()
        self.ended: asyncio.Future[Ending] = self._loop.create_future()
        self._report = b""
        self._on_stuck, self._on_started = on_stuck, on_started
        self._is_stuck = False
        self._group: int | None = None
        # The value of MARK for all descendants of the command.
        self._mark = system_clock.new_token()
        if order is not None and order.env is not None:
            order = msgspec.structs.replace(order, env={**order.env, MARK: self._mark})
        # Files that the node keeps open, and those that only the keeper needs.
        with contextlib.ExitStack() as node_files, contextlib.ExitStack() as keeper_files:
            self._socket, keeper_socket = (
                stack.enter_context(end)
                for stack, end in zip((node_files, keeper_files), socket.socketpair(), strict=True)
            )
            out, out_writer = _pipe(node_files, keeper_files)
            err, err_writer = _pipe(node_files, keeper_files)
            order_file = None if order is None else _file_of(keeper_files, order.entries()).fileno()
            self._keeper = subprocess.Popen(  # noqa: S603 - the command is the caller's own
                [
                    *(sys.executable, "-I", "-S", _KEEPER),
                    *(str(keeper_socket.fileno()), str(DEATH_GRACE_SECONDS)),
                    *(() if order_file is None else (f"--order={order_file}",)),
                    *command,
                ],
                stdin=subprocess.DEVNULL if stdin is None else _file_of(keeper_files, stdin),
                stdout=out_writer,
                stderr=err_writer,
                env={**os.environ, MARK: self._mark},
                pass_fds=(keeper_socket.fileno(), *files, *(() if order_file is None else (order_file,))),
                start_new_session=True,  # Ctrl-C at a terminal goes to the node only, which stops its jobs itself
            )
            node_files.pop_all()  # closed when the command ends
        self._socket.setblocking(False)
        self._output = output
        self._pipes = [_Pipe(out, "stdout", output), _Pipe(err, "stderr", output)]
        self._loop.add_reader(self._socket, self._read_report)

    @property
    def pid(self) -> int | None:
        """The process id of the command, which leads its process group; None before its start."""
        return self._group

    def stop(self, seconds: float) -> None:
        """Send TERM now, and KILL after this time. A second call can only shorten the time."""
        with contextlib.suppress(OSError):  # the command has ended
            self._socket.send(f"stop {seconds:.3f}\n".encode())

    def catch_up(self) -> None:
        """Read all output so far; an incomplete line counts as a line."""
        for pipe in self._pipes:
            pipe.catch_up()
        self._output.flush()

    async def stop_and_wait(self, seconds: float) -> None:
        """Stop the command and wait until all its processes have ended. A cancel shortens the time until KILL."""
        self.stop(seconds)
        while not self.ended.done():
            try:
                await asyncio.wait([self.ended])
            except asyncio.CancelledError:  # the claim is lost, or the program ends
                self.stop(DEATH_GRACE_SECONDS)

    async def end(self) -> None:
        """Stop the command with the shortest grace period, and wait for its end."""
        self.stop(DEATH_GRACE_SECONDS)
        await asyncio.wait([self.ended])

    def _read_report(self) -> None:
        try:
            data = self._socket.recv(_REPORT_MAX_BYTES)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        self._report = (self._report + data)[-_REPORT_MAX_BYTES:]
        if self._group is None and self._report.startswith(b"started ") and b"\n" in self._report:
            self._group = int(self._report.split()[1])
            self._on_started(self._group)
        if not self._is_stuck and (stuck := _read_stuck(self._report)) is not None:
            self._is_stuck = True
            self._on_stuck(stuck)
        if not data:
            self._loop.remove_reader(self._socket)
            self._reap()

    def _reap(self) -> None:
        """Wait for the keeper, which has closed its socket, and read its report."""
        if self._keeper.poll() is None:
            # A timer, not a task: when the program ends it cancels all tasks, and runs wait for this.
            self._loop.call_later(_REAP_AGAIN_SECONDS, self._reap)
            return
        self._socket.close()
        ending = _read_ending(self._report)
        if ending is not None:
            self._end(ending)
            return
        # The keeper was killed. The kernel kills the command with it, but not the descendants.
        if self._group is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._group, signal.SIGKILL)
        self._kill_leftovers(_SCANS_MAX, _EMPTY_SCANS)

    def _kill_leftovers(self, scans: int, empty_scans: int) -> None:
        """Scan up to `scans` times, until `empty_scans` in a row find no process."""
        left = kill_marked(self._mark)
        empty_scans = _EMPTY_SCANS if left else empty_scans - 1
        if empty_scans and scans:
            self._loop.call_later(_SCAN_AGAIN_SECONDS, self._kill_leftovers, scans - 1, empty_scans)
        else:
            self._end(Ending(failure=_text_without_keeper(left)))

    def _end(self, ending: Ending) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._output.flush()
        if not self.ended.done():
            self.ended.set_result(ending)


class _Pipe:
    """The reading end of a command's stdout or stderr."""

    def __init__(self, file: IO[bytes], name: str, output: Output) -> None:
        self._file = file
        os.set_blocking(file.fileno(), False)
        self._name, self._output = name, output
        self._loop = asyncio.get_running_loop()
        self._loop.add_reader(file, self._read)

    def _read(self) -> bool:
        """Read one chunk; False if there was none."""
        try:
            chunk = self._file.read(_CHUNK)
        except OSError:
            chunk = b""
        if chunk:
            self._output.take(self._name, chunk)
        elif chunk == b"":
            self._loop.remove_reader(self._file)
        return bool(chunk)

    def catch_up(self) -> None:
        for _ in range(_CHUNKS_AT_ONCE):
            if self._file.closed or not self._read():
                break

    def close(self) -> None:
        self.catch_up()
        self._loop.remove_reader(self._file)
        self._file.close()


def _pipe(node_files: contextlib.ExitStack, keeper_files: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    writing = keeper_files.enter_context(open(writer, "wb", buffering=0))  # noqa: SIM115 - entered at once
    return node_files.enter_context(open(reader, "rb", buffering=0)), writing


def _file_of(stack: contextlib.ExitStack, data: bytes) -> IO[bytes]:
    """An anonymous file with this content, in memory if the system supports it."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = open(os.memfd_create("evertick"), "w+b", buffering=0)  # noqa: SIM115 - entered below
    else:
        import tempfile  # slow to import

        file = tempfile.TemporaryFile(buffering=0)  # noqa: SIM115
    stack.enter_context(file)
    file.write(data)
    file.seek(0)
    return file


def _read_ending(report: bytes) -> Ending | None:
    kind, _, rest = report.decode(errors="replace").rstrip("\n").rpartition("\n")[2].partition(" ")
    match kind:
        case "exited" | "killed":
            number, cpu, memory = rest.split()
            code, by = (int(number), None) if kind == "exited" else (None, int(number))
            return Ending(code=code, signal=by, cpu_seconds=float(cpu), max_rss_bytes=int(memory))
        case "failed":
            return Ending(failure=rest)
        case _:
            return None


def _read_stuck(report: bytes) -> str | None:
    """The keeper's report of processes that survive KILL, in words; None: there is none."""
    for line in report.splitlines(keepends=True):
        if line.startswith(b"stuck") and line.endswith(b"\n"):
            pids = ", ".join(line.decode(errors="replace").split()[1:])
            which = f"these processes survived KILL: {pids}" if pids else "some processes survived KILL"
            return f"{which}; they have more rights than the node, or hang in the kernel"
    return None


def _text_without_keeper(left: Sequence[int]) -> str:
    if left:
        pids = ", ".join(map(str, left[:_PIDS_SHOWN]))
        return f"the keeper process was killed, and these processes are still running: {pids}"
    if not _shows_environments():
        return (
            "the keeper process was killed, so the command's process group was killed, too; processes that left the "
            "group may still run"
        )
    if not sees_all_processes():
        return f"the keeper process was killed, so the command was killed, too, {_EXCEPT_HIDDEN}"
    return "the keeper process was killed, so the command was killed, too"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


# --- leftovers of a keeper that was killed


def _shows_environments() -> bool:
    """Whether the system shows the environment of processes in /proc."""
    return os.path.exists("/proc/self/environ")


def sees_all_processes() -> bool:
    """Whether this user can read the environment of every process, also of the first one."""
    try:
        with open("/proc/1/environ", "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def kill_marked(mark: str) -> list[int]:
    """Send KILL to all processes with this mark and return their ids. The next scan finds processes forked meanwhile.

    Processes that cleared their environment (`env -i`) are not found. Only root finds those whose environment is not
    readable: processes with more rights, of other users, or with hidden memory, like ssh-agent.
    """
    entry, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if _shows_environments() else ():
        if name.isdigit() and _has(name, entry):
            found.append(int(name))
            try:
                os.kill(int(name), signal.SIGKILL)
            except OSError:  # it has ended, or this user may not signal it and the next scan finds it again
                continue
    return found


def _has(pid: str, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # it has ended, or belongs to another user
        return False
