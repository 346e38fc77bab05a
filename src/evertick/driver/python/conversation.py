"""The node's side of one child: give it a call, hear what the job says, tell it to stop, see it end."""

from __future__ import annotations

import asyncio
import json
import logging
import os
import socket
import subprocess
import sys
from datetime import timedelta
from pathlib import Path
from typing import Any

import msgspec

from evertick.driver.base import Reported
from evertick.driver.python.child import ChildCall
from evertick.driver.python.message import (
    BadFrame,
    Call,
    Frames,
    FromChild,
    JobRaised,
    JobReturned,
    NotFoundThere,
    Ready,
    Said,
    Sends,
    StopJob,
    pack,
    unpack,
)
from evertick.driver.shell.output import LogLines
from evertick.driver.shell.supervised import DEATH_GRACE_SECONDS, Ending, SupervisedCommand, stop_seconds
from evertick.errors import ProcessDied, Retry, Skip
from evertick.job.context import MESSAGES_MAX, Context, record_of
from evertick.model import NewMessage, Phase

__all__ = ["Conversation"]

log = logging.getLogger("evertick.process")

_BOOT = str(Path(__file__).with_name("boot.py"))
_CHUNK = 65_536

Answer = JobReturned | JobRaised | NotFoundThere | Ending


class Conversation:
    """One child. Made on a running event loop, and of use there only."""

    def __init__(self, errand: ChildCall, kill_after_seconds: float) -> None:
        self._errand = errand
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
            self._kept = SupervisedCommand(
                _command(childs_end.fileno()),
                LogLines(self._hear_line),
                files=(childs_end.fileno(),),
                on_stuck=self._warn,
            )
        except BaseException:
            self._channel.close()
            raise
        finally:
            childs_end.close()
        self._kept.ended.add_done_callback(self._heard_end)
        self._loop.add_reader(self._channel, self._hear)
        self._send(_boot_frame(errand))

    @property
    def ended(self) -> asyncio.Future[Ending]:
        """Answered when the child is gone, with all that came of it."""
        return self._kept.ended

    @property
    def is_usable(self) -> bool:
        """Whether it may be given another call."""
        is_fresh = self.calls < self._errand.calls_max
        return is_fresh and not self.is_stopped and self._fault is None and not self.ended.done()

    async def call(self, context: Context) -> Any:
        """Have the job done. Cancelled, it comes back only when nothing of the child is left."""
        assert self._answer is None, "one call at a time"
        self.calls += 1
        self._context, self._answer = context, self._loop.create_future()
        self._send(pack(Call(record_of(context).run, record_of(context).deadline)))
        try:
            await asyncio.wait([self._answer])
            if self.calls == self._errand.calls_max:
                await self._see_off()
        except asyncio.CancelledError:
            was_done = self._answer.done()
            await self._stop(context)
            # What comes after TERM has reached all that the job started may be half of its work, whatever it returns.
            if not was_done:
                raise
        finally:
            self._kept.catch_up()
            answer, self._context, self._answer = self._answer, None, None
        return self._judge(context, answer.result())

    async def end(self) -> None:
        """Let a child go, whatever it does."""
        self.is_stopped = True
        self._close_channel()  # which says that there are no more calls
        await self._kept.end()

    async def _see_off(self) -> None:
        """It has had its last call and ends by itself, unless the job has left something that keeps it."""
        await asyncio.wait([self.ended], timeout=self._kill_after)
        if not self.ended.done():
            self._kept.stop(DEATH_GRACE_SECONDS)
            await asyncio.wait([self.ended])

    async def _stop(self, context: Context) -> None:
        self.is_stopped = True
        why = record_of(context).stopped or "shutdown"
        self._send(pack(StopJob(why)))
        await self._kept.put_down(stop_seconds(why, self._kill_after))
        self._heard_end(self.ended)  # which its callback may not have told yet

    def _judge(self, context: Context, answer: Answer) -> Any:
        task = self._errand.task
        match answer:
            case JobReturned(result=result, phases=phases):
                _keep_phases(context, phases)
                return None if bytes(result) == b"null" else result
            case JobRaised(phases=phases):
                _keep_phases(context, phases)
                raise _error(answer)
            case NotFoundThere(error):
                raise ProcessDied(f"the function of task {task!r} cannot be had in a child process:\n{error}")
            case Ending():
                fault = f" ({self._fault})" if self._fault else ""
                raise ProcessDied(
                    f"the child process of task {task!r} did not bring the job to its end: {answer}{fault}"
                )

    # --- what comes from the child

    def _hear(self) -> bool:
        """Take in what is there; False if there was nothing."""
        try:
            data = self._channel.recv(_CHUNK)
        except BlockingIOError:
            return False
        except OSError:
            data = b""
        if not data:
            self._heard_no_more()
            return False
        try:
            for frame in self._frames.feed(data):
                self._take(unpack(frame, self._decoder))
        except BadFrame as error:
            self._fault = f"it sent {error}"
            self._kept.stop(DEATH_GRACE_SECONDS)
            self._heard_no_more()
            return False
        return True

    def _take(self, message: FromChild) -> None:
        match message:
            case Ready():
                self.is_ready = True
            case Said(lines, progress, phases):
                self._note(lines, progress)
                if self._context is not None and phases is not None:
                    record_of(self._context).open_buffer().set_phases(phases)
            case Sends(sent):
                self._keep_message(sent)
            case NotFoundThere(error) if self._answer is None:
                log.error("the function of task %r cannot be had in a child process:\n%s", self._errand.task, error)
            case JobReturned() | JobRaised() | NotFoundThere():
                self._settle(message)

    def _note(self, lines: tuple[tuple[int, str, str], ...], progress: tuple[float, str] | None) -> None:
        if self._context is None:
            return  # the end of its run has been told
        for at, level, text in lines:
            record_of(self._context).open_buffer().write(at, level, text)
        if progress is not None:
            record_of(self._context).open_buffer().set_progress(*progress)

    def _keep_message(self, sent: NewMessage) -> None:
        if self._context is not None and len(record_of(self._context).open_buffer().messages) < MESSAGES_MAX:
            record_of(self._context).open_buffer().messages.append(sent)

    def _hear_line(self, stream: str, text: str) -> None:
        if self._context is None:
            log.debug("%s of an idle child of task %r: %s", stream, self._errand.task, text)
        else:
            self._context.log(text, level=stream)

    def _warn(self, words: str) -> None:
        """To who looks at the run, if there is one, and to who looks at the node."""
        if self._context is not None:
            self._context.log(words, level="warning")
        log.warning("a child of task %r: %s", self._errand.task, words)

    def _heard_no_more(self) -> None:
        """The channel has ended; the child has, too, or must: without it there is no outcome."""
        self.is_stopped = True
        self._close_channel()
        if not (self._answer is not None and self._answer.done()):
            self._loop.call_later(DEATH_GRACE_SECONDS, self._kept.stop, DEATH_GRACE_SECONDS)

    def _heard_end(self, ended: asyncio.Future[Ending]) -> None:
        while self._channel.fileno() >= 0 and self._hear():  # its last words may still be there
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
        except OSError:  # it has ended; its keeper tells how
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


def _command(channel: int) -> list[str]:
    # A fresh interpreter with the switches of this one (warnings, -X, -O), as multiprocessing starts its own.
    switches = subprocess._args_from_interpreter_flags()  # type: ignore[attr-defined]
    return [sys.executable, *switches, "-P", _BOOT, str(channel)]


def _boot_frame(errand: ChildCall) -> bytes:
    path = [os.path.abspath(entry) if entry in ("", ".") else entry for entry in sys.path]
    order = {"path": path, "argv": sys.argv, "errand": msgspec.to_builtins(errand)}
    data = json.dumps(order).encode()
    return len(data).to_bytes(4, "big") + data


def _error(raised: JobRaised) -> Exception:
    if raised.skip is not None:
        return Skip(raised.skip)
    retry = None
    if raised.retry is not None:
        after = None if raised.retry_after is None else timedelta(microseconds=raised.retry_after)
        retry = Retry(raised.retry, after=after)
    return Reported(raised.text, types=raised.types, retry=retry)


def _keep_phases(context: Context, phases: tuple[Phase, ...]) -> None:
    if phases:
        record_of(context).open_buffer().set_phases(phases)
