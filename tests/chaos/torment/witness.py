"""What jobs leave behind outside of the database: their words, the places they took, and a register of fenced writes.

Every word is one line, appended by one write, so that a `kill -9` loses nothing that has happened. The time is that of
a clock that all processes of the machine share and that nobody sets.
"""

from __future__ import annotations

import fcntl
import os
import time
from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path
from typing import Literal, NamedTuple

from evertick import Context
from torment.catalogue import AT_ONCE

__all__ = ["NODE_VARIABLE", "Witness", "Word", "Write", "read_words", "read_writes"]

# Names the process of the node to its children, who inherit it.
NODE_VARIABLE = "EVERTICK_TORMENT_NODE"

What = Literal["start", "alive", "end", "failed", "stopped", "placed", "full"]


class Word(NamedTuple):
    """One word of one attempt."""

    what: What
    key: str
    moment: int
    run: str
    fence: int
    # Processes: that of the node, and the one that speaks.
    node: int
    speaker: int
    at: float
    # When the store had given the claim, by its own time.
    claimed_at: float


class Write(NamedTuple):
    """One attempt to write to the register."""

    resource: str
    fence: int
    is_accepted: bool
    run: str
    node: int
    at: float
    # Whether it is the first act of its attempt.
    is_first: bool


class Witness:
    """Takes down what the jobs of one process say."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._words = _append_to(folder / f"words-{os.getpid()}")
        self._writes = _append_to(folder / f"writes-{os.getpid()}")
        self._node = os.environ[NODE_VARIABLE]

    def say(self, what: What, ctx: Context, timeout: timedelta) -> None:
        assert ctx.deadline is not None, "the deadline tells when the claim was given"
        claimed_at = (ctx.deadline - timeout).timestamp()
        about = f"{what} {ctx.schedule_key} {ctx.fire_at.timestamp():.0f} {ctx.run_id} {ctx.fence}"
        line = f"{about} {self._node} {os.getpid()} {time.monotonic():.6f} {claimed_at:.6f}\n"
        os.write(self._words, line.encode())

    def take_place(self) -> int | None:
        """A file under an exclusive lock, of which there are as many as may be at work at once. The kernel gives it
        back when its process dies."""
        for number in range(AT_ONCE):
            place = os.open(self._folder / f"place-{number}", os.O_RDWR | os.O_CREAT)
            try:
                fcntl.flock(place, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(place)
            else:
                return place
        return None

    def write(self, resource: str, ctx: Context, *, is_first: bool) -> bool:
        """To the register, which refuses whoever comes with an older fence than the greatest it has seen."""
        entry = os.open(self._folder / f"register-{resource}", os.O_RDWR | os.O_CREAT)
        try:
            fcntl.flock(entry, fcntl.LOCK_EX)
            is_accepted = ctx.fence >= int(os.pread(entry, 32, 0) or b"0")
            if is_accepted:
                os.pwrite(entry, b"%d" % ctx.fence, 0)
            line = f"{resource} {ctx.fence} {int(is_accepted)} {ctx.run_id} {self._node} {time.monotonic():.6f}"
            os.write(self._writes, f"{line} {int(is_first)}\n".encode())
        finally:
            os.close(entry)
        return is_accepted


def read_words(folder: Path) -> Iterator[Word]:
    for parts in _lines_of(folder, "words-*"):
        what, key, moment, run, fence, node, speaker, at, claimed_at = parts
        yield Word(
            what,  # type: ignore[arg-type]
            key,
            int(moment),
            run,
            int(fence),
            int(node),
            int(speaker),
            float(at),
            float(claimed_at),
        )


def read_writes(folder: Path) -> Iterator[Write]:
    for resource, fence, is_accepted, run, node, at, is_first in _lines_of(folder, "writes-*"):
        yield Write(resource, int(fence), is_accepted == "1", run, int(node), float(at), is_first == "1")


def _append_to(path: Path) -> int:
    return os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)


def _lines_of(folder: Path, files: str) -> Iterator[list[str]]:
    for path in folder.glob(files):
        with path.open() as lines:
            for line in lines:
                yield line.split()
