"""What a node and its child say to each other: frames of JSON on a socket, every one of them bounded.

A frame is its length in four bytes, then one JSON object that names its kind. A frame that is too long or makes no
sense is an error of the other side, and ends the conversation; it is never guessed at.
"""

from __future__ import annotations

from typing import TypeVar

import msgspec

from evertick.model import Claimed, NewMessage, Phase

__all__ = [
    "FRAME_MAX_BYTES",
    "BadFrame",
    "Call",
    "Frames",
    "FromChild",
    "FromNode",
    "JobRaised",
    "JobReturned",
    "NotFoundThere",
    "Ready",
    "Said",
    "Sends",
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


class Call(msgspec.Struct, frozen=True, tag=True):
    """Do this run. The deadline in microseconds."""

    run: Claimed
    deadline: int | None


class StopJob(msgspec.Struct, frozen=True, tag=True):
    """The run is to stop; TERM follows, so that a busy child looks here."""

    why: str


class Ready(msgspec.Struct, frozen=True, tag=True):
    """The function is found; a call is answered without delay from now on."""


class NotFoundThere(msgspec.Struct, frozen=True, tag=True):
    """The function cannot be had in the child: its module cannot be imported, or does not hold it."""

    error: str


class Said(msgspec.Struct, frozen=True, tag=True):
    """What the job has said through its context and through logging."""

    lines: tuple[tuple[int, str, str], ...] = ()
    progress: tuple[float, str] | None = None
    # All that there are so far; None: no news of them.
    phases: tuple[Phase, ...] | None = None


class Sends(msgspec.Struct, frozen=True, tag=True):
    """A message that the job sends with its end, told before it."""

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
FromChild = Ready | NotFoundThere | Said | Sends | JobReturned | JobRaised

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
