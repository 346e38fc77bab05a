"""Python functions in processes of their own: a call that hangs can be ended, and one that crashes ends nothing else.

Each run gets a fresh child, or one of a pool that waits with the module imported. Every child is under a keeper, and
`execute` comes back only when the run's child is gone or idle: nothing of a run is left beside its next attempt.
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
from evertick.text.values import check_whole, shown
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.moment import MINUTE

__all__ = ["Children", "Process", "ProcessDriver", "check_process"]

log = logging.getLogger("evertick.process")

_BOOT = str(Path(__file__).with_name("boot.py"))
_CHUNK = 65_536
# A child that dies while it is idle is replaced not sooner: one that always does must not keep a processor busy.
_REPLACE_AFTER_SECONDS = 1.0
_WARM_MAX = 256
_RECYCLE_MAX = 1_000_000
_KILL_AFTER_MOST = 5 * MINUTE

C = TypeVar("C", "ChildProcess", SupervisedCommand)


class Process:
    """How a task's child processes are kept: `@scheduler.task(process=Process(warm=2))`.

    warm: children that wait with the module imported and are used again; 0 = a fresh one for each run.
    recycle: how many runs a warm child gets before another takes its place.
    kill_after: how long after TERM the KILL comes when a run is stopped.
    """

    __slots__ = ("kill_after", "recycle", "warm")

    def __init__(self, *, warm: int = 0, recycle: int = 100, kill_after: Duration = "2s") -> None:
        self.warm = check_whole(warm, "warm", 0, _WARM_MAX)
        self.recycle = check_whole(recycle, "recycle", 1, _RECYCLE_MAX)
        self.kill_after = duration_us(kill_after, what="kill_after")
        if self.kill_after > _KILL_AFTER_MOST:
            raise InvalidSetting(f"kill_after: {shown(kill_after)} is more than {duration_text(_KILL_AFTER_MOST)}")

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
            self._pool = Pool(lambda: self._start(settings.recycle), settings.warm)
            children.add(self._pool)

    @property
    def signature(self) -> Signature:
        return self._inside.signature

    def prepare(self, args: bytes) -> dict[str, Any]:
        return self._inside.prepare(args)

    async def execute(self, context: Context, arguments: dict[str, Any]) -> Any:
        """The child reads the run's own arguments; `prepare` has checked them, so that a misfit needs no child."""
        if record_of(context).clock is not system_clock:
            # A process cannot live in virtual time: there the function is called in this one.
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
        return self._children.watch(ChildProcess(child_call, self._settings.kill_after / 1e6))


def check_process(value: Any, task: str) -> Process | None:
    """The option as given: True, False or settings."""
    if isinstance(value, Process):
        return value
    if not isinstance(value, bool):
        raise InvalidSetting(f"task {task!r}: process: {shown(value)} is not possible; pass True or Process(...)")
    return Process() if value else None


class Pool:
    """The warm children of one task."""

    def __init__(self, start: Callable[[], ChildProcess], warm: int) -> None:
        self._start = start
        self._warm = warm
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
            self._give_back(child)

    def close(self) -> None:
        """Let go of all; `Children.close` ends them."""
        self._is_open = False
        if self._refill is not None:
            self._refill.cancel()
            self._refill = None
        self._idle.clear()

    def _take(self) -> ChildProcess:
        usable = [child for child in self._idle if child.is_usable]
        # One that is still starting is nearer to its call than a new one.
        child = next((each for each in usable if each.is_ready), usable[0] if usable else None)
        if child is None:
            return self._begin()
        self._idle.remove(child)
        return child

    def _give_back(self, child: ChildProcess) -> None:
        # Kept while others are at work beyond the number, too: the next run is likely to need it.
        if self._is_open and child.is_usable and len(self._idle) < self._warm:
            self._idle.append(child)
        elif not child.ended.done():
            self._let_go(child)
        self._fill()

    def _fill(self) -> None:
        self._refill = None
        try:
            while self._is_open and len(self._idle) + self._busy < self._warm:
                self._idle.append(self._begin())
        except OSError as error:  # out of processes, files or memory: no reason to fail the run that has just ended
            log.warning("no child can be started ahead now: %s", error)
            self._fill_later()

    def _begin(self) -> ChildProcess:
        child = self._start()
        child.ended.add_done_callback(lambda _: self._died(child))
        return child

    def _died(self, child: ChildProcess) -> None:
        if child not in self._idle:
            return
        self._idle.remove(child)
        # One that never got ready would not do so the next time either; the next call tries again, and says why.
        if child.is_ready:
            self._fill_later()

    def _fill_later(self) -> None:
        if self._is_open and self._refill is None:
            self._refill = asyncio.get_running_loop().call_later(_REPLACE_AFTER_SECONDS, self._fill)

    def _let_go(self, child: ChildProcess) -> None:
        task = asyncio.get_running_loop().create_task(child.end(), name="evertick child's end")
        self._ending.add(task)
        task.add_done_callback(self._ending.discard)


class Children:
    """All children of a scheduler, and the pools of its tasks. None outlives its engine."""

    def __init__(self) -> None:
        self._pools: list[Pool] = []
        self._alive: set[ChildProcess | SupervisedCommand] = set()

    def add(self, pool: Pool) -> None:
        self._pools.append(pool)

    def watch(self, child: C) -> C:
        """End it when the scheduler closes: a child, or the command of a shell job."""
        self._alive.add(child)
        child.ended.add_done_callback(lambda _: self._alive.discard(child))
        return child

    def open(self) -> None:
        for pool in self._pools:
            pool.open()

    async def close(self) -> None:
        """End them all, those of abandoned runs as well."""
        for pool in self._pools:
            pool.close()
        await asyncio.gather(*(child.end() for child in self._alive))


Answer = JobReturned | JobRaised | FunctionMissing | Ending


class ChildProcess:
    """The node's side of one child. Made on a running event loop, and of use there only."""

    def __init__(self, child_call: ChildCall, kill_after_seconds: float) -> None:
        self._child_call = child_call
        self._kill_after = kill_after_seconds
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
        self._channel, childs_end = socket.socketpair()
        self._channel.setblocking(False)
        try:
            self._command = SupervisedCommand(
                _child_command(childs_end.fileno()),
                LogLines(self._log_line),
                files=(childs_end.fileno(),),
                on_stuck=self._warn,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            childs_end.close()
        self._command.ended.add_done_callback(self._on_end)
        self._loop.add_reader(self._channel, self._read)
        self._send(_boot_frame(child_call))

    @property
    def ended(self) -> asyncio.Future[Ending]:
        """Answered when the child and all its descendants are gone."""
        return self._command.ended

    @property
    def is_usable(self) -> bool:
        """Whether it may be given another call."""
        is_fresh = self.calls < self._child_call.calls_max
        return is_fresh and not self.is_stopped and self._fault is None and not self.ended.done()

    async def call(self, context: Context) -> Any:
        """Have the job done. Cancelled, it comes back only when nothing of the child is left."""
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
            # After TERM has reached all that the job started its result may be half of its work.
            if not was_done:
                raise
        finally:
            self._command.catch_up()
            answer, self._context, self._answer = self._answer, None, None
        return self._judge(context, answer.result())

    async def end(self) -> None:
        """Let a child go, whatever it does."""
        self.is_stopped = True
        self._close_channel()  # which says that there are no more calls
        await self._command.end()

    async def _wait_for_last_end(self) -> None:
        """It has had its last call and ends by itself, unless the job has left something that keeps it."""
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
                raise ProcessDied(f"the function of task {task!r} cannot be had in a child process:\n{error}")
            case Ending():
                fault = f" ({self._fault})" if self._fault else ""
                raise ProcessDied(
                    f"the child process of task {task!r} did not bring the job to its end: {answer}{fault}"
                )

    # --- what comes from the child

    def _read(self) -> bool:
        """False if there was nothing."""
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
            self._fault = f"it sent {error}"
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
                log.error("the function of task %r cannot be had in a child process:\n%s", self._child_call.task, error)
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
            log.debug("%s of an idle child of task %r: %s", stream, self._child_call.task, text)
        else:
            self._context.log(text, level=stream)

    def _warn(self, text: str) -> None:
        """Into the log of the run, if there is one, and into that of the node."""
        if self._context is not None:
            self._context.log(text, level="warning")
        log.warning("a child of task %r: %s", self._child_call.task, text)

    def _on_channel_end(self) -> None:
        """The channel has ended; the child has, too, or must: without it there is no outcome."""
        self.is_stopped = True
        self._close_channel()
        if not (self._answer is not None and self._answer.done()):
            self._loop.call_later(DEATH_GRACE_SECONDS, self._command.stop, DEATH_GRACE_SECONDS)

    def _on_end(self, ended: asyncio.Future[Ending]) -> None:
        while self._channel.fileno() >= 0 and self._read():  # its last messages may still be there
            pass
        self._close_channel()
        self._settle(ended.result())

    def _settle(self, answer: Answer) -> None:
        if self._answer is not None and not self._answer.done():
            self._answer.set_result(answer)

    # --- what goes to the child

    def _send(self, data: bytes) -> None:
        self._to_send += data
        self._flush()

    def _flush(self) -> None:
        """As much as the channel takes now; the rest when it has room."""
        if self._channel.fileno() < 0:
            return
        try:
            del self._to_send[: self._channel.send(self._to_send)]
        except BlockingIOError:
            pass
        except OSError:  # it has ended; its keeper says how
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
    # A fresh interpreter with the switches of this one (warnings, -X, -O), as multiprocessing starts its own.
    switches = vars(subprocess)["_args_from_interpreter_flags"]()
    return [sys.executable, *switches, "-P", _BOOT, str(channel)]


def _boot_frame(child_call: ChildCall) -> bytes:
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    order = {"path": path, "argv": sys.argv, "child_call": msgspec.to_builtins(child_call)}
    data = json.dumps(order).encode()
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
