"""Commits to the file by others: other processes, and other connections of this one.

A connection that only reads sees that something was committed, by a number that SQLite keeps. Whether it was our own
writer is seen by what that was doing meanwhile, and in doubt by the same number on its connection. What was committed
is unknown, and the file may belong to a program that writes to its own tables all day. So a look at anything is asked
for at once, but not again within a quarter of a second; in between only for runs, when one waits that did not before.

When to look is known by inotify of Linux, on the event loop of the waiter. A write is seen before its commit. SQLite
writes the pages of a transaction into its log, waits for the disk, and only then says in shared memory that they count,
which the kernel reports to no process. So the wait after a write is short, and those after it grow: a look is late by
half of the time that the commit has taken, at most. Nothing relies on inotify. Without it (another system, a network
share, no watch left for this user) a wait is a quarter of a second; with it, a second, in case that it failed.
"""

from __future__ import annotations

import asyncio
import errno
import logging
import math
import os
import sys
import threading
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from evertick.errors import StoreUnavailable
from evertick.store.base import News
from evertick.store.sqlite.connection import SQL, connect_to_read, data_version, translated
from evertick.store.sqlite.file_system import NETWORK_FILE_SYSTEMS, file_system_of
from evertick.store.sqlite.location import Location

if TYPE_CHECKING:
    from evertick.store.sqlite.session import Worker

__all__ = ["FileWatch", "ForeignCommits"]

# --- when the file is written to --------------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")

# The longest wait where writes are heard, and where they are not.
_WATCHED_SECONDS = 1.0
_POLL_SECONDS = 0.25
# The first wait after a write: an event loop does not count in less.
_FIRST_SECONDS = 0.001
# How long the next wait is, by the time since the write: until its commit is found, and then, in case that there was
# another write behind it. Each beat of each node is heard, so the latter is what an idle node does.
_UNTIL_FOUND, _AFTER_FOUND = 0.5, 2.0
# However much is written: so long from hearing of it to hearing again. It grows while nothing comes of it, for our own
# commits are heard, too, and a program may write to the same file all day.
_REST_LEAST_SECONDS, _REST_MOST_SECONDS = 0.004, 0.04
# As the kernel has it. Equal events that were not read yet are one, so a few are all that there can be.
_IN_MODIFY = 0x2
_EVENTS_BYTES = 256
# The kernel's meaning where its words mislead.
_LIMITS = {
    errno.ENOSPC: "this user has all that it may have; raise fs.inotify.max_user_watches",
    errno.EMFILE: "this user has all that it may have; raise fs.inotify.max_user_instances, or the limit of open files",
}


class FileWatch:
    """The writes to one file, which must be there when the first one waits."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Guards the descriptor, which comes with the first wait: a program that only enqueues needs none.
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._has_begun = False
        # Of the event loop's clock, which is the same one for all loops.
        self._seen_at = -math.inf
        self._rest = _REST_LEAST_SECONDS
        # Whether the last wait ended by a write, and how the next one grows; it does not where nothing is awaited.
        self._has_seen_write = False
        self._growth = math.inf

    async def wait(self, seconds: float) -> None:
        """Until a look may find something, and about so long at most."""
        descriptor = self._descriptor_here()
        if descriptor is None:
            await asyncio.sleep(min(seconds, _POLL_SECONDS))
            return
        try:
            await self._listen(descriptor, seconds)
        finally:
            os.close(descriptor)

    def found(self) -> None:
        """A look has found a commit. If nothing was written just before it, that was all: the next will be heard."""
        self._growth = _AFTER_FOUND if self._has_seen_write else math.inf

    def note_use(self) -> None:
        """News was found: look closely."""
        self._rest = _REST_LEAST_SECONDS

    def close(self) -> None:
        with self._lock:
            self._has_begun = True
            descriptor, self._descriptor = self._descriptor, None
        if descriptor is not None:
            os.close(descriptor)

    async def _listen(self, descriptor: int, seconds: float) -> None:
        loop = asyncio.get_running_loop()
        since = max(loop.time() - self._seen_at, 2 * _FIRST_SECONDS)
        try:
            self._has_seen_write = await _can_be_read(descriptor, min(seconds, since * self._growth, _WATCHED_SECONDS))
        except (NotImplementedError, OSError) as error:
            self.close()
            self._log_reason(f"the event loop cannot listen ({error!r})")
            return
        if self._has_seen_write:
            now = loop.time()
            rest = max(self._seen_at + self._rest - now, _FIRST_SECONDS)
            self._seen_at, self._growth = now, _UNTIL_FOUND
            self._rest = min(self._rest * 2, _REST_MOST_SECONDS)
            await asyncio.sleep(rest)
            with suppress(BlockingIOError):  # another waiter has read them
                os.read(descriptor, _EVENTS_BYTES)

    def _descriptor_here(self) -> int | None:
        """A descriptor of the waiter's own: several may wait on one loop, and the watch may be closed meanwhile."""
        with self._lock:
            if not self._has_begun:
                self._has_begun = True
                self._descriptor = self._begin()
            with suppress(OSError):  # too many are open
                return None if self._descriptor is None else os.dup(self._descriptor)
            return None

    def _begin(self) -> int | None:
        try:
            return _inotify(self._path)
        except (OSError, ImportError, AttributeError) as error:
            number = error.errno if isinstance(error, OSError) else None
            why = error if number is None else _LIMITS.get(number, error)
            self._log_reason(why)
            return None

    def _log_reason(self, why: object) -> None:
        log.info("commits of others are looked for every %g s: no watch on %s: %s", _POLL_SECONDS, self._path, why)


def _inotify(path: Path) -> int:
    """A descriptor that can be read when something has been written to the file."""
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    if (kind := file_system_of(path)) in NETWORK_FILE_SYSTEMS:
        raise OSError(f"what other machines write is not told by {kind}")
    # Not at the top: a program that never waits need not load it.
    import ctypes

    libc = ctypes.CDLL(None, use_errno=True)
    descriptor: int = libc.inotify_init1(os.O_CLOEXEC | os.O_NONBLOCK)
    if descriptor < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))
    if libc.inotify_add_watch(descriptor, os.fsencode(path), _IN_MODIFY) < 0:
        number = ctypes.get_errno()
        os.close(descriptor)
        raise OSError(number, os.strerror(number))
    return descriptor


async def _can_be_read(descriptor: int, seconds: float) -> bool:
    loop = asyncio.get_running_loop()
    answer: asyncio.Future[bool] = loop.create_future()
    loop.add_reader(descriptor, _settle, answer, True)
    timer = loop.call_later(seconds, _settle, answer, False)
    try:
        return await answer
    finally:
        timer.cancel()
        loop.remove_reader(descriptor)


def _settle(answer: asyncio.Future[bool], can_be_read: bool) -> None:
    if not answer.done():
        answer.set_result(can_be_read)


# --- whether something was committed, and by which connection ---------------------------------------------------------


_ANYTHING_SECONDS = 0.25


class ForeignCommits:
    """Tells of the commits of all but `writer`, who has not started yet and whose connection has `seen_by_writer`."""

    def __init__(self, where: Location, writer: Worker, seen_by_writer: int) -> None:
        assert where.path is not None
        self._where = where
        self._writer = writer
        self._db = connect_to_read(where)
        self._seen = data_version(self._db)
        self._seen_by_writer = seen_by_writer
        # SQLite keeps the log beside the file that a link leads to, and while we are connected it stays the same file.
        self._watch = FileWatch(Path(os.path.realpath(where.path) + "-wal"))
        self._is_closed = False
        # The groups that the writer had ended before the last look.
        self._ended = 0
        # Something was committed and is not reported yet, and some of it is surely not ours.
        self._is_unreported = self._is_foreign = False
        # When a look at anything was last asked for, or found to be needless.
        self._reported_at = -math.inf
        # Of the newest runs, those that wait.
        self._waiting: set[str] = set()

    async def changed(self, app: str, timeout: float) -> News | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not self._is_closed:
            news = await self._look(app, loop.time())
            now = loop.time()
            if news is not None:
                self._watch.note_use()
            if news is not None or now >= end:
                return news
            tell_at = self._reported_at + _ANYTHING_SECONDS if self._is_unreported else math.inf
            await self._watch.wait(min(end, tell_at) - now)
        return None

    def close(self) -> None:
        self._is_closed = True
        self._watch.close()
        self._db.close()

    async def _look(self, app: str, now: float) -> News | None:
        has_new_run = self._see(app)
        is_time = now - self._reported_at >= _ANYTHING_SECONDS
        if not self._is_unreported or not (is_time or has_new_run):
            return None
        is_theirs, self._is_unreported, self._is_foreign = self._is_foreign, False, False
        if is_time:
            self._reported_at = now
        if not is_theirs and not await self._is_foreign_commit():
            return None
        if is_time:
            return "anything"
        # There may be more than runs in it.
        self._is_unreported = self._is_foreign = True
        return "runs"

    def _see(self, app: str) -> bool:
        """Take note of what was committed. Whether a run waits that did not before."""
        # In this order: a commit of the writer between two looks was begun by the end of the second, and had not ended
        # before the first.
        ended = self._writer.ended
        with translated(self._where):
            version = data_version(self._db)
            if version == self._seen:
                self._ended = ended
                return False
            waiting = {row["id"] for row in self._db.execute(SQL["changed.waiting"], (app,))}
        if self._writer.begun == self._ended:
            self._is_foreign = True
        self._seen, self._ended, self._is_unreported = version, ended, True
        has_new_run = not waiting <= self._waiting
        self._waiting = waiting
        self._watch.found()
        return has_new_run

    async def _is_foreign_commit(self) -> bool:
        # To the writer's connection its own commits are no change.
        try:
            version = await self._writer.call(lambda db, _now: data_version(db))
        except StoreUnavailable:
            # A connection holds the lock, so it writes.
            return True
        is_new, self._seen_by_writer = version != self._seen_by_writer, version
        return is_new
