"""Python functions in child processes: a call that hangs can be killed, and a crash affects only its run.

A run gets a new child, or a warm one from a pool, which has imported the module already. Each child runs under a keeper
process. `execute` returns only when the child has ended or is idle, so that attempts of a run never overlap.
"""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path
from typing import Any, TypeVar

import msgspec

from evertick.clock import system_clock
from evertick.driver.base import RemoteError
from evertick.driver.python.child_import import location_of
from evertick.driver.python.child_protocol import (
    BadFrame,
    Call,
    ChildCall,
    Frames,
    FromChild,
    FunctionMissing,
    JobRaised,
    JobReturned,
    OutgoingMessage,
    Progress,
    Ready,
    StopJob,
    pack,
    unpack,
)
from evertick.driver.python.function import FunctionDriver
from evertick.driver.shell.output import LogLines
from evertick.driver.shell.supervised import DEATH_GRACE_SECONDS, Ending, SupervisedCommand, stop_seconds
from evertick.errors import InvalidSetting, ProcessDied, Retry, Skip
from evertick.job.arguments import Signature
from evertick.job.context import MESSAGES_MAX, Context, record_of
from evertick.model import NewMessage, Phase
from evertick.text.log_level import LogSummary, such_as
from evertick.text.values import check_whole, shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import MINUTE

__all__ = ["Children", "Process", "ProcessDriver", "check_process"]

log = logging.getLogger("evertick.process")

_BOOT = str(Path(__file__).with_name("boot.py"))
_CHUNK = 65_536
# The pause before an idle child that died is replaced, so that a child that always dies does not use a whole CPU.
_REPLACE_AFTER_SECONDS = 1.0
_WARM_MAX = 256
_RECYCLE_MAX = 1_000_000
_KILL_AFTER_MAX = 5 * MINUTE

C = TypeVar("C", "ChildProcess", SupervisedCommand)


class Process:
    """Settings of a task's child processes: `@scheduler.task(process=Process(warm=2))`.

    warm: the number of children that wait with the module imported; 0 = a new child for each run.
    recycle: the number of runs after which a warm child is replaced.
    kill_after: the time between TERM and KILL when a run is stopped.
    """

    __slots__ = ("kill_after", "recycle", "warm")

    def __init__(self, *, warm: int = 0, recycle: int = 100, kill_after: Duration = "2s") -> None:
        self.warm = check_whole(warm, "warm", 0, _WARM_MAX)
        self.recycle = check_whole(recycle, "recycle", 1, _RECYCLE_MAX)
        self.kill_after = duration_us(kill_after, what="kill_after")
        if self.kill_after > _KILL_AFTER_MAX:
            raise InvalidSetting(
                f"kill_after: {shown(kill_after)} is more than {duration_text(_KILL_AFTER_MAX)}",
                setting="kill_after",
                value=shown(kill_after),
                fix=f"write at most {duration_text(_KILL_AFTER_MAX)}",
            )

    def __repr__(self) -> str:
        return f"Process(warm={self.warm}, recycle={self.recycle}, kill_after={duration_text(self.kill_after)!r})"


class ProcessDriver:
    """Calls one function in a child."""

    name = "process"
    can_be_cancelled = True

    def __init__(
        self,
        function: Callable[..., Any],
        inside: FunctionDriver,
        settings: Process,
        children: Children,
        url: Callable[[], str],
    ) -> None:
        self._inside = inside
        self._settings = settings
        self.kill_after = settings.kill_after
        self._location = location_of(function, self.signature.task)
        self._children = children
        self._url = url
        self._pool: Pool | None = None
        if settings.warm:
            task = self.signature.task
            self._pool = Pool(task, lambda: self._start(settings.recycle), settings.warm, children.summary)
            children.add(self._pool)

    @property
    def signature(self) -> Signature:
        return self._inside.signature

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._inside.prepare(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        """Call the function in a child, which decodes the arguments of the run itself."""
        if record_of(context).clock is not system_clock:
            # A child has no virtual time, so a test with a virtual clock calls the function in this process.
            return await self._inside.execute(context, arguments)
        if self._pool is not None:
            return await self._pool.call(context)
        return await self._start(1).call(context)

    def _start(self, calls_max: int) -> ChildProcess:
        child_call = ChildCall(
            task=self.signature.task,
            location=self._location,
            url=self._url(),
            calls_max=calls_max,
            log_level=logging.getLogger().level,
        )
        return self._children.watch(ChildProcess(child_call, self._settings.kill_after / 1e6, self._children.summary))


def check_process(value: Any, task: str) -> Process | None:
    """Check the option `process`: True, False or settings."""
    if isinstance(value, Process):
        return value
    if not isinstance(value, bool):
        raise InvalidSetting(
            f"task {task!r}: process: {shown(value)} is not a valid value",
            setting="process",
            value=shown(value),
            fix="pass True or Process(...)",
        )
    return Process() if value else None


class Pool:
    """The warm children of one task."""

    def __init__(self, task: str, start: Callable[[], ChildProcess], warm: int, summary: LogSummary) -> None:
        self._task = task
        self._start = start
        self._warm = warm
        self._summary = summary
        self._is_start_failing = False
        self._is_open = False
        self._busy = 0
        self._idle: list[ChildProcess] = []
        self._ending: set[asyncio.Task[None]] = set()
        self._refill: asyncio.TimerHandle | None = None

    def open(self) -> None:
        self._is_open = True
        self._fill()

    async def call(self, context: Context) -> Any:
        child = self._take()
        self._busy += 1
        try:
            return await child.call(context)
        finally:
            self._busy -= 1
            self._put_back(child)

    def close(self) -> None:
        """Forget the children; `Children.close` ends them."""
        self._is_open = False
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        self._idle.clear()

    def _take(self) -> ChildProcess:
        usable = [child for child in self._idle if child.is_usable]
        # A child that is starting will be ready before a new one.
        child = next((each for each in usable if each.is_ready), usable[0] if usable else None)
        if child is None:
            return self._begin()
        self._idle.remove(child)
        return child

    def _put_back(self, child: ChildProcess) -> None:
        # Also if more than `warm` children are busy: the next run is likely to need one.
        if self._is_open and child.is_usable and len(self._idle) < self._warm:
            self._idle.append(child)
        elif not child.ended.done():
            self._end_later(child)
        self._fill()

    def _fill(self) -> None:
        self._refill = None
        try:
            while self._is_open and len(self._idle) + self._busy < self._warm:
                self._idle.append(self._begin())
        except OSError as error:  # out of processes, files or memory: the run that has just ended must not fail
            self._log_start_failure(error)
            self._fill_later()
            return
        if self._is_start_failing:
            self._is_start_failing = False
            log.info("task %r: warm child processes start again", self._task)

    def _log_start_failure(self, error: OSError) -> None:
        self._is_start_failing = True

        def say() -> None:
            log.warning("task %r: a warm child process cannot be started: %s; retrying", self._task, error)

        group = f"start {self._task}"
        self._summary.tell(group, "", log, logging.WARNING, say, _start_failures, about=self._task, lines=1)

    def _begin(self) -> ChildProcess:
        child = self._start()
        child.ended.add_done_callback(lambda _: self._died(child))
        return child

    def _died(self, child: ChildProcess) -> None:
        if child not in self._idle:
            return
        self._idle.remove(child)
        # A child that never got ready would fail again; the next call starts another and reports the error.
        if child.is_ready:
            self._fill_later()

    def _fill_later(self) -> None:
        if self._is_open and self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(_REPLACE_AFTER_SECONDS, self._fill)

    def _end_later(self, child: ChildProcess) -> None:
        task = asyncio.get_running_loop().create_task(child.end(), name="evertick child's end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class Children:
    """All children of a scheduler, and the pools of its tasks. All end before its engine has stopped."""

    def __init__(self) -> None:
        self.summary = LogSummary(system_clock.elapsed)
        self._pools: list[Pool] = []
        self._alive: set[ChildProcess | SupervisedCommand] = set()

    def add(self, pool: Pool) -> None:
        self._pools.append(pool)

    def watch(self, child: C) -> C:
        """End a child, or the command of a shell job, when the scheduler closes."""
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._alive.discard(child))
        return child

    def open(self) -> None:
        for pool in self._pools:
            pool.open()

    async def close(self) -> None:
        """End all children, also those of abandoned runs."""
        for pool in self._pools:
            pool.close()
        await asyncio.gather(*(child.end() for child in self._alive))
        self.summary.flush()


Answer = JobReturned | JobRaised | FunctionMissing | Ending


class ChildProcess:
    """The node's side of one child. It belongs to the event loop on which it is made."""

    def __init__(self, child_call: ChildCall, kill_after_seconds: float, summary: LogSummary) -> None:
        self._child_call = child_call
        self._kill_after = kill_after_seconds
        self._summary = summary
        self._loop = asyncio.get_running_loop()
        self._frames = Frames()
        self._decoder = msgspec.json.Decoder(FromChild)
        self._to_send = bytearray()
        self._context: Context | None = None
        self._answer: asyncio.Future[Answer] | None = None
        self._fault: str | None = None
        self.is_ready = False
        self.is_stopped = False
        self.calls = 0
        self._channel, child_channel = socket.socketpair()
        self._channel.setblocking(False)
        try:
            self._command = SupervisedCommand(
                _child_command(child_channel.fileno()),
                LogLines(self._log_line),
                files=(child_channel.fileno(),),
                on_stuck=self._warn,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            child_channel.close()
        self._command.ended.add_done_callback(self._on_end)
        self._loop.add_reader(self._channel, self._read)
        self._send(_boot_frame(child_call))

    @property
    def ended(self) -> asyncio.Future[Ending]:
        """Done when the child and all its descendants have ended."""
        return self._command.ended

    @property
    def is_usable(self) -> bool:
        """Whether the child can take another call."""
        has_calls_left = self.calls < self._child_call.calls_max
        return has_calls_left and not self.is_stopped and self._fault is None and not self.ended.done()

    async def call(self, context: Context) -> Any:
        """Run the job. If cancelled, it returns only when the child and all its descendants have ended."""
        assert self._answer is None, "one call at a time"
        self.calls += 1
        self._context, self._answer = context, self._loop.create_future()
        self._send(pack(Call(record_of(context).run, record_of(context).deadline)))
        try:
            await asyncio.wait([self._answer])
            if self.calls == self._child_call.calls_max:
                await self._wait_for_last_end()
        except asyncio.CancelledError:
            was_done = self._answer.done()
            await self._stop(context)
            # TERM went to all processes that the job started, so a result after it may be incomplete.
            if not was_done:
                raise
        finally:
            self._command.catch_up()
            answer, self._context, self._answer = self._answer, None, None
        return self._judge(context, answer.result())

    async def end(self) -> None:
        """End the child, also one that is busy."""
        self.is_stopped = True
        self._close_channel()  # tells the child that no more calls come
        await self._command.end()

    async def _wait_for_last_end(self) -> None:
        """Wait for the child to exit after its last call; stop it if a thread of the job keeps it alive."""
        await asyncio.wait([self.ended], timeout=self._kill_after)
        if not self.ended.done():
            self._command.stop(DEATH_GRACE_SECONDS)
            await asyncio.wait([self.ended])

    async def _stop(self, context: Context) -> None:
        self.is_stopped = True
        why = record_of(context).stopped or "shutdown"
        self._send(pack(StopJob(why)))
        await self._command.stop_and_wait(stop_seconds(why, self._kill_after))
        self._on_end(self.ended)  # its callback may not have run yet

    def _judge(self, context: Context, answer: Answer) -> Any:
        task = self._child_call.task
        match answer:
            case JobReturned(result=result, phases=phases):
                _keep_phases(context, phases)
                return None if bytes(result) == b"null" else result
            case JobRaised(phases=phases):
                _keep_phases(context, phases)
                raise _error(answer)
            case FunctionMissing(error):
                raise ProcessDied(f"task {task!r}: a child process cannot import the function:\n{error}")
            case Ending():
                raise ProcessDied(f"task {task!r}: the child process ended before the job: {self._fault or answer}")

    # --- messages from the child

    def _read(self) -> bool:
        """Read one chunk; False if there was none."""
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._on_channel_end()
            return False
        try:
            for frame in self._frames.feed(data):
                self._take(unpack(frame, self._decoder))
        except BadFrame as error:
            self._fault = f"the child sent {error}"
            self._command.stop(DEATH_GRACE_SECONDS)
            self._on_channel_end()
            return False
        return True

    def _take(self, message: FromChild) -> None:
        match message:
            case Ready():
                self.is_ready = True
            case Progress(lines, progress, phases):
                self._add_progress(lines, progress)
                if self._context is not None and phases is not None:
                    record_of(self._context).open_buffer().set_phases(phases)
            case OutgoingMessage(sent):
                self._add_message(sent)
            case FunctionMissing(error) if self._answer is None:
                self._log_import_error(error)
            case JobReturned() | JobRaised() | FunctionMissing():
                self._settle(message)

    def _add_progress(self, lines: tuple[tuple[int, str, str], ...], progress: tuple[float, str] | None) -> None:
        if self._context is None:
            return  # its run has ended
        for at, level, text in lines:
            record_of(self._context).open_buffer().write(at, level, text)
        if progress is not None:
            record_of(self._context).open_buffer().set_progress(*progress)

    def _add_message(self, sent: NewMessage) -> None:
        if self._context is not None and len(record_of(self._context).open_buffer().messages) < MESSAGES_MAX:
            record_of(self._context).open_buffer().messages.append(sent)

    def _log_line(self, stream: str, text: str) -> None:
        if self._context is None:
            log.debug("task %r: an idle child process wrote to %s: %s", self._child_call.task, stream, text)
        else:
            self._context.log(text, level=stream)

    def _log_import_error(self, error: str) -> None:
        """Every run starts new warm children, which all fail, so the lines are summarised."""
        task = self._child_call.task

        def say() -> None:
            log.error("task %r: a child process cannot import the function:\n%s", task, error)

        self._summary.tell(f"import {task}", "", log, logging.ERROR, say, _import_errors, about=task, lines=1)

    def _warn(self, text: str) -> None:
        """Log to the node, and to the run if there is one."""
        if self._context is None:
            log.warning("task %r: %s", self._child_call.task, text)
        else:
            self._context.log(text, level="warning")
            log.warning("run %s of %r: %s", self._context.run_id, self._child_call.task, text)

    def _on_channel_end(self) -> None:
        """The child has ended, or is stopped: without a channel it cannot report an outcome."""
        self.is_stopped = True
        self._close_channel()
        if not (self._answer is not None and self._answer.done()):
            self._loop.call_later(DEATH_GRACE_SECONDS, self._command.stop, DEATH_GRACE_SECONDS)

    def _on_end(self, ended: asyncio.Future[Ending]) -> None:
        while self._channel.fileno() >= 0 and self._read():  # the last messages may still be unread
            pass
        self._close_channel()
        self._settle(ended.result())

    def _settle(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    # --- messages to the child

    def _send(self, data: bytes) -> None:
        self._to_send += data
        self._flush()

    def _flush(self) -> None:
        """Send as much as the channel takes now, and the rest when it has room."""
        if self._channel.fileno() < 0:
            return
        try:
            del self._to_send[: self._channel.send(self._to_send)]
        except BlockingIOError:
            pass
        except OSError:  # the child has ended; its keeper reports how
            self._to_send.clear()
        if self._to_send:
            self._loop.add_writer(self._channel, self._flush)
        else:
            self._loop.remove_writer(self._channel)

    def _close_channel(self) -> None:
        if self._channel.fileno() >= 0:
            self._loop.remove_reader(self._channel)
            self._loop.remove_writer(self._channel)
            self._channel.close()


def _child_command(channel: int) -> list[str]:
    # A new interpreter with the flags of this one (warnings, -X, -O), as multiprocessing starts it.
    switches = vars(subprocess)["_args_from_interpreter_flags"]()
    return [sys.executable, *switches, "-P", _BOOT, str(channel)]


def _boot_frame(child_call: ChildCall) -> bytes:
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    boot = {"path": path, "argv": sys.argv, "child_call": msgspec.to_builtins(child_call)}
    data = json.dumps(boot).encode()
    return len(data).to_bytes(4, "big") + data


def _error(raised: JobRaised) -> Exception:
    if raised.skip is not None:
        return Skip(raised.skip)
    retry = None
    if raised.retry is not None:
        after = None if raised.retry_after is None else timedelta(microseconds=raised.retry_after)
        retry = Retry(raised.retry, after=after)
    return RemoteError(raised.text, types=raised.types, retry=retry)


def _keep_phases(context: Context, phases: tuple[Phase, ...]) -> None:
    if phases:
        record_of(context).open_buffer().set_phases(phases)


def _start_failures(count: int, names: list[str], seconds: float | None) -> str:
    return f"warm child processes could not be started {count} more times{such_as(names, seconds)}"


def _import_errors(count: int, names: list[str], seconds: float | None) -> str:
    return f"child processes could not import their function {count} more times{such_as(names, seconds)}"
