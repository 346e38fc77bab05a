"""The messages between a node and its child: JSON frames of limited size on a socket.

A frame is its length in four bytes, then a JSON object that names its kind. A frame that is too long or not readable
ends the conversation.
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

# Room for arguments of 256 KiB as base64, and for the rest of the run.
FRAME_MAX_BYTES = 1024 * 1024
_LENGTH_BYTES = 4


class BadFrame(Exception):
    """The other side has broken the protocol."""


class ChildCall(msgspec.Struct, frozen=True, kw_only=True):
    """Sent once at the start: the function that the child calls, and the maximum of calls."""

    task: str
    location: FunctionLocation
    # The ledger of the node, which the job uses to enqueue tasks.
    url: str
    calls_max: int
    log_level: int


class Call(msgspec.Struct, frozen=True, tag=True):
    """Execute this run. The deadline is in microseconds."""

    run: Claimed
    deadline: int | None


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """Stop the run. TERM follows, which makes a busy child read this message."""

    why: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The function is imported; a call can start at once."""


class FunctionMissing(msgspec.Struct, frozen=True, tag=True):
    """The module cannot be imported, or lacks the function."""

    error: str


class Progress(msgspec.Struct, frozen=True, tag=True):
    """Log lines, progress and phases since the last such message."""

    lines: tuple[tuple[int, str, str], ...] = ()
    progress: tuple[float, str] | None = None
    # All phases of the attempt; None: unchanged.
    phases: tuple[Phase, ...] | None = None


class OutgoingMessage(msgspec.Struct, frozen=True, tag=True):
    """A message that is sent when the job ends; it precedes `JobReturned`."""

    message: NewMessage


class JobReturned(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The job has returned. The result is JSON."""

    result: msgspec.Raw
    phases: tuple[Phase, ...] = ()


class JobRaised(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """The job has raised. `types` names the class of the error and its base classes, which the node may lack."""

    text: str
    types: frozenset[str]
    phases: tuple[Phase, ...] = ()
    skip: str | None = None
    # The text and the delay (in microseconds) of a `Retry`.
    retry: str | None = None
    retry_after: int | None = None


FromNode = Call | StopJob
FromChild = Ready | FunctionMissing | Progress | OutgoingMessage | JobReturned | JobRaised

_encoder = msgspec.json.Encoder()


def pack(message: FromNode | FromChild) -> bytes:
    data = _encoder.encode(message)
    if len(data) > FRAME_MAX_BYTES:
        raise BadFrame(f"a message of {len(data)} bytes, more than {FRAME_MAX_BYTES}")
    return len(data).to_bytes(_LENGTH_BYTES, "big") + data


class Frames:
    """Splits a stream of bytes into frames."""

    def __init__(self) -> None:
        self._buffer = bytearray()

    def feed(self, data: bytes) -> list[bytes]:
        """The complete frames. Raises BadFrame for a frame that is too long."""
        self._buffer += data
        frames, start = [], 0
        while len(self._buffer) - start >= _LENGTH_BYTES:
            body = start + _LENGTH_BYTES
            length = int.from_bytes(self._buffer[start:body], "big")
            if length > FRAME_MAX_BYTES:
                raise BadFrame(f"a frame of {length} bytes, more than {FRAME_MAX_BYTES}")
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
        raise BadFrame(f"an unreadable message: {error}") from None
