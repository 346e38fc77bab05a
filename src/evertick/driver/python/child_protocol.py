"""The messages between a node and its child: frames of JSON on a socket, every one of them bounded.

A frame is its length in four bytes, then one JSON object that names its kind. A frame that is too long or cannot be
read is an error of the other side, and ends the conversation.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from evertick.driver.python.child_import import FunctionLocation
from evertick.model import Claimed, NewMessage, Phase

__all__ = [
    "FRAME_MAX_BYTES",
    "BadFrame",
    "Call",
    "ChildCall",
    "Frames",
    "FromChild",
    "FromNode",
    "FunctionMissing",
    "JobRaised",
    "JobReturned",
    "OutgoingMessage",
    "Progress",
    "Ready",
    "StopJob",
    "pack",
    "unpack",
]

T = TypeVar("T")

# Arguments of 256 KiB, as base64, and the rest of the run.
FRAME_MAX_BYTES = 1024 * 1024
_LENGTH_BYTES = 4


class BadFrame(Exception):
    """The other side does not keep to the rules."""


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """Sent once, with the start: the function that the child calls, and how often."""

    task: str
    location: FunctionLocation
    # The ledger of the node: a job enqueues there, too.
    url: str
    calls_max: int
    log_level: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Do this run. The deadline in microseconds."""

    run: Claimed
    deadline: int | None


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """The run is to stop; TERM follows, so that a busy child looks here."""

    why: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The function is found; a call is answered without delay from now on."""


class FunctionMissing(msgspec.Struct, frozen=True, tag=True):
    """The module of the function cannot be imported, or does not hold it."""

    error: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Log lines, progress and phases that the job has reported since the last such message."""

    lines: tuple[tuple[int, str, str], ...] = ()
    progress: tuple[float, str] | None = None
    # All so far; None: unchanged.
    phases: tuple[Phase, ...] | None = None


class OutgoingMessage(msgspec.Struct, frozen=True, tag=True):
    """A message that the job sends with its end; comes before that."""

    message: NewMessage


class JobReturned(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The job came to its end. The result is JSON."""

    result: msgspec.Raw
    phases: tuple[Phase, ...] = ()


class JobRaised(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The job raised. Types exist only there, so they travel by name: of its class and of all above it."""

    text: str
    types: frozenset[str]
    phases: tuple[Phase, ...] = ()
    skip: str | None = None
    # A `Retry`: its words, and its delay in microseconds.
    retry: str | None = None
    retry_after: int | None = None


FromNode = Call | StopJob
FromChild = Ready | FunctionMissing | Progress | OutgoingMessage | JobReturned | JobRaised

_encoder = msgspec.json.Encoder()


def pack(message: FromNode | FromChild) -> bytes:
    data = _encoder.encode(message)
    if len(data) > FRAME_MAX_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes; {FRAME_MAX_BYTES} is the most")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class Frames:
    """Takes a stream of bytes apart into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The frames that are complete now. Raises BadFrame for one that is too long."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            length = int.from_bytes(self._buffer[start:body], "big")
            if length > FRAME_MAX_BYTES:
                raise BadFrame(f"a frame of {length} bytes; {FRAME_MAX_BYTES} is the most")
            if len(self._buffer) < body + length:
                break
            frames.append(bytes(self._buffer[body : body + length]))
            start = body + length
        del self._buffer[:start]
        return frames


def unpack(frame: bytes, decoder: msgspec.json.Decoder[T]) -> T:
    try:
        return decoder.decode(frame)
    except (msgspec.DecodeError, UnicodeDecodeError) as error:
        raise BadFrame(f"no message that makes sense: {error}") from None
