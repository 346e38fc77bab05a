"""The node's side of a command line under its keeper.

The command lives as long as the node's end of the keeper's socket is open: closing it, also by dying, ends the command
and all its descendants. `ended` is answered when nothing is left, not before.

All of it happens on the event loop: files that are ready are read, and no thread waits.
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
    "can_find",
    "end_marked",
    "sees_all",
    "stop_seconds",
]

# A variable of the environment that every descendant of a command inherits.
MARK = "EVERTICK_KEPT"
_KEEPER = str(Path(__file__).with_name("keeper.py"))
# The time between TERM and KILL when the node has died. Short: its run is given to another node when the
# lease is over, and nothing of it may be left then.
DEATH_GRACE_SECONDS = 0.5
_CHUNK = 65_536
_REPORT_MAX_BYTES = 4_096
# A command that floods its output must not keep the node from its other work.
_CHUNKS_AT_ONCE = 4
_REAP_AGAIN_SECONDS = 0.002
# Leftovers of a killed keeper are looked for until two looks in a row find none: one that forks may dodge the first.
_LOOK_AGAIN_SECONDS = 0.02
_LOOKS_MOST = 250
_EMPTY_LOOKS = 2
_PIDS_SHOWN = 10
_EXCEPT_HIDDEN = "but for processes that hide their environment (ssh-agent, sudo, processes of other users)"


# Stops that leave the command its time: the run is to end. At every other stop the claim is, or soon will be, no longer
# ours, and the time of a dead node's children must do.
_UNHURRIED = frozenset({"requested", "replaced", "timeout"})


def stop_seconds(why: str, kill_after_seconds: float) -> float:
    """The time between TERM and KILL for this reason."""
    return kill_after_seconds if why in _UNHURRIED else DEATH_GRACE_SECONDS


class Ending(msgspec.Struct, frozen=True):
    """How a command ended: with an exit code, by a signal, or never begun."""

    code: int | None = None
    signal: int | None = None
    failure: str | None = None
    # Processor time of all its processes, and the most memory that one of them had.
    cpu_seconds: float | None = None
    max_rss_bytes: int | None = None

    def __str__(self) -> str:
        if self.failure is not None:
            return self.failure
        if self.signal is None:
            return f"it ended with exit code {self.code}"
        hint = "; the kernel does that when memory runs out" if self.signal == signal.SIGKILL else ""
        return f"it was ended by signal {_signal_name(self.signal)}{hint}"


class Order(msgspec.Struct, frozen=True, kw_only=True):
    """How a command is started, where not as the node itself was."""

    cwd: str | None = None
    # All variables, in place of the node's.
    env: Mapping[str, str] | None = None
    # User, group, and the groups beside it: all three or none.
    uid: int | None = None
    gid: int | None = None
    groups: tuple[int, ...] = ()
    nice: int = 0
    memory: int | None = None

    def entries(self) -> bytes:
        """As the keeper reads it. No value holds a zero: the specification was checked for that."""
        found = {"cwd": self.cwd, "memory": self.memory, "nice": self.nice or None}
        if self.uid is not None:
            found |= {"uid": self.uid, "gid": self.gid, "groups": ",".join(map(str, self.groups))}
        texts = [f"{name}={value}" for name, value in found.items() if value is not None]
        texts += [f"env={name}={value}" for name, value in (self.env or {}).items()]
        assert not any("\0" in text for text in texts), "an entry ends with a zero"
        return b"".join(os.fsencode(text) + b"\0" for text in texts)


class SupervisedCommand:
    """One command. Made on a running event loop; `files` are passed on to the command under their own numbers.

    on_stuck: called with a text when something of the command cannot be ended; `ended` waits for it all the same.
    on_started: called with its process id.
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
        # All descendants of the command carry it.
        self._mark = system_clock.new_token()
        if order is not None and order.env is not None:
            order = msgspec.structs.replace(order, env={**order.env, MARK: self._mark})
        with contextlib.ExitStack() as ours, contextlib.ExitStack() as theirs:
            self._socket, line = (
                stack.enter_context(end) for stack, end in zip((ours, theirs), socket.socketpair(), strict=True)
            )
            out, outs_end = _pipe(ours, theirs)
            err, errs_end = _pipe(ours, theirs)
            orders = None if order is None else _file_of(theirs, order.entries()).fileno()
            self._keeper = subprocess.Popen(  # noqa: S603 - the command is the caller's own
                [
                    *(sys.executable, "-I", "-S", _KEEPER),
                    *(str(line.fileno()), str(DEATH_GRACE_SECONDS)),
                    *(() if orders is None else (f"--order={orders}",)),
                    *command,
                ],
                stdin=subprocess.DEVNULL if stdin is None else _file_of(theirs, stdin),
                stdout=outs_end,
                stderr=errs_end,
                env={**os.environ, MARK: self._mark},
                pass_fds=(line.fileno(), *files, *(() if orders is None else (orders,))),
                start_new_session=True,  # Ctrl-C at a terminal is for the node, which stops its work in its own way
            )
            ours.pop_all()  # it has begun: they are closed at its end
        self._socket.setblocking(False)
        self._output = output
        self._pipes = [_Pipe(out, "stdout", output), _Pipe(err, "stderr", output)]
        self._loop.add_reader(self._socket, self._read_report)

    @property
    def pid(self) -> int | None:
        """Of the command itself, which leads its process group; None until it has begun."""
        return self._group

    def stop(self, seconds: float) -> None:
        """TERM now, KILL after so many seconds. A second call counts if it leaves less time."""
        with contextlib.suppress(OSError):  # it has ended already
            self._socket.send(f"stop {seconds:.3f}\n".encode())

    def catch_up(self) -> None:
        """Read what the command has written so far; a line without an end is one, too."""
        for pipe in self._pipes:
            pipe.catch_up()
        self._output.flush()

    async def stop_and_wait(self, seconds: float) -> None:
        """Stop it, and come back only when nothing of it is left. Cancelled meanwhile, it makes haste."""
        self.stop(seconds)
        while not self.ended.done():
            try:
                await asyncio.wait([self.ended])
            except asyncio.CancelledError:  # a second stop: the claim is lost, or the program ends
                self.stop(DEATH_GRACE_SECONDS)

    async def end(self) -> None:
        """Let it go, whatever it does."""
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
        """The keeper has closed its socket: it has ended, or is about to."""
        if self._keeper.poll() is None:
            # By a timer, not by a task: a program that ends cancels its tasks, and waits for what waits for this.
            self._loop.call_later(_REAP_AGAIN_SECONDS, self._reap)
            return
        self._socket.close()
        ending = _read_ending(self._report)
        if ending is not None:
            self._end(ending)
            return
        # The keeper itself was killed. The command goes with it; its descendants do not.
        if self._group is not None:
            with contextlib.suppress(OSError):
                os.killpg(self._group, signal.SIGKILL)
        self._clear_up(_LOOKS_MOST, _EMPTY_LOOKS)

    def _clear_up(self, looks: int, empty: int) -> None:
        """So many looks more, or until so many have found nothing."""
        left = end_marked(self._mark)
        empty = _EMPTY_LOOKS if left else empty - 1
        if empty and looks:
            self._loop.call_later(_LOOK_AGAIN_SECONDS, self._clear_up, looks - 1, empty)
        else:
            self._end(Ending(failure=_text_without_keeper(left)))

    def _end(self, ending: Ending) -> None:
        for pipe in self._pipes:
            pipe.close()
        self._output.flush()
        if not self.ended.done():
            self.ended.set_result(ending)


class _Pipe:
    """A pipe of the command, read as it fills."""

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


def _pipe(ours: contextlib.ExitStack, theirs: contextlib.ExitStack) -> tuple[IO[bytes], IO[bytes]]:
    reader, writer = os.pipe()
    writing = theirs.enter_context(open(writer, "wb", buffering=0))  # noqa: SIM115 - entered at once
    return ours.enter_context(open(reader, "rb", buffering=0)), writing


def _file_of(stack: contextlib.ExitStack, data: bytes) -> IO[bytes]:
    """A file without a name, to be read from its beginning. In memory where there is such a thing."""
    if hasattr(os, "memfd_create"):
        file: IO[bytes] = open(os.memfd_create("evertick"), "w+b", buffering=0)  # noqa: SIM115 - entered below
    else:
        import tempfile  # needed here alone, and slow to load

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
            return Ending(failure=f"it could not be started: {rest}")
        case _:
            return None


def _read_stuck(report: bytes) -> str | None:
    """For people, the report of a keeper that cannot end everything; None: there is none."""
    for line in report.splitlines(keepends=True):
        if line.startswith(b"stuck") and line.endswith(b"\n"):
            pids = ", ".join(line.decode(errors="replace").split()[1:])
            which = f" (see the processes {pids})" if pids else ""
            return f"something of it cannot be ended{which}: it has more rights than the node, or hangs in the kernel"
    return None


def _text_without_keeper(left: Sequence[int]) -> str:
    if left:
        pids = ", ".join(map(str, left[:_PIDS_SHOWN]))
        return f"its keeper was killed, and not all of it could be ended: see the processes {pids}"
    if not can_find():
        return "its keeper was killed, so its process group was ended, too; what has left that may still run"
    if not sees_all():
        return f"its keeper was killed, so it was ended, too, {_EXCEPT_HIDDEN}"
    return "its keeper was killed, so it was ended, too"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return str(number)


# --- leftovers of a keeper that was killed


def can_find() -> bool:
    """Whether this system shows the environment of processes."""
    return os.path.exists("/proc/self/environ")


def sees_all() -> bool:
    """Whether we may look into every process, the first one included."""
    try:
        with open("/proc/1/environ", "rb") as file:
            file.read(1)
    except OSError:
        return False
    return True


def end_marked(mark: str) -> list[int]:
    """KILL to all processes that carry it; answers their ids. One that forks meanwhile is found by the next look.

    Not found is a process with another environment on purpose (`env -i`), and one whose environment we may not read: it
    has more rights than we have, belongs to another user, or hides its memory, like ssh-agent. Root finds those.
    """
    entry, found = f"{MARK}={mark}".encode(), []
    for name in os.listdir("/proc") if can_find() else ():
        if name.isdigit() and _has(name, entry):
            found.append(int(name))
            try:
                os.kill(int(name), signal.SIGKILL)
            except OSError:  # gone meanwhile, or not ours to signal: then the next look finds it again
                continue
    return found


def _has(pid: str, entry: bytes) -> bool:
    try:
        with open(f"/proc/{pid}/environ", "rb") as file:
            return entry in file.read().split(b"\0")
    except OSError:  # gone meanwhile, or another user's
        return False
