"""Detect commits of other connections to the file, of this process and of others.

A read-only connection sees by SQLite's `data_version` that something was committed. Whether it was our own writer is
known from the groups that it began and ended meanwhile and, in doubt, from the same number on its connection. The
content of a commit is unknown, and the file may belong to a program that writes its own tables all day. So a check of
everything is requested at once, but not again within a quarter of a second; in between only a check of runs, when a new
one waits.

Linux reports writes by inotify, on the event loop of the waiter, but before their commit: SQLite writes the pages of a
transaction to its log, syncs it, and then marks it as committed in shared memory, which the kernel does not report. So
the first wait after a write is short and the next ones grow: a commit is noticed late by at most half of its own
duration. Nothing relies on inotify. Without it (another system, a network share, no watches left) the interval is a
quarter of a second; with it, a second, in case that it fails.
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

# --- writes to the file -----------------------------------------------------------------------------------------------


log = logging.getLogger("evertick.store")

# The longest wait with inotify, and without.
_WATCHED_SECONDS = 1.0
_POLL_SECONDS = 0.25
# The first wait after a write: event loops have no finer resolution.
_FIRST_SECONDS = 0.001
# The next wait as a multiple of the time since the write: until its commit is found, and after that, in case there was
# another write. Every heartbeat of every node is a write, so the latter is the normal case of an idle node.
_UNTIL_FOUND, _AFTER_FOUND = 0.5, 2.0
# Minimum time between two reactions to writes. It grows while nothing is found, because our own commits are reported
# too, and another program may write to the file all day.
_REST_LEAST_SECONDS, _REST_MOST_SECONDS = 0.004, 0.04
# From the kernel. Equal unread events are merged, so a small buffer is enough.
_IN_MODIFY = 0x2
_EVENTS_BYTES = 256
# Clearer texts for error numbers whose standard text misleads.
_LIMITS = {
    errno.ENOSPC: "the limit of watches of this user is reached; raise fs.inotify.max_user_watches",
    errno.EMFILE: "a limit of this user is reached; raise fs.inotify.max_user_instances, or the limit of open files",
}


class FileWatch:
    """Waits for writes to one file, which must exist at the first wait."""

    def __init__(self, path: Path) -> None:
        self._path = path
        # Guards the descriptor. It is created by the first wait, because a program that only enqueues needs none.
        self._lock = threading.Lock()
        self._descriptor: int | None = None
        self._is_opened = False
        # By the clock of the event loop, which all loops share.
        self._seen_at = -math.inf
        self._rest = _REST_LEAST_SECONDS
        # Whether the last wait ended by a write, and how the next one grows; infinite: no growth.
        self._has_seen_write = False
        self._growth = math.inf

    async def wait(self, seconds: float) -> None:
        """Until a check may find something, and about `seconds` at most."""
        descriptor = self._descriptor_here()
        if descriptor is None:
            await asyncio.sleep(min(seconds, _POLL_SECONDS))
            return
        try:
            await self._listen(descriptor, seconds)
        finally:
            os.close(descriptor)

    def found(self) -> None:
        """A check has found a commit. Without a write just before it, that was the last one."""
        self._growth = _AFTER_FOUND if self._has_seen_write else math.inf

    def note_use(self) -> None:
        """The check found news of this app: react to writes quickly."""
        self._rest = _REST_LEAST_SECONDS

    def close(self) -> None:
        with self._lock:
            self._is_opened = True
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
        """A descriptor for this waiter only: several may wait on one loop, and the watch may be closed meanwhile."""
        with self._lock:
            if not self._is_opened:
                self._is_opened = True
                self._descriptor = self._open_watch()
            with suppress(OSError):  # too many open files
                return None if self._descriptor is None else os.dup(self._descriptor)
            return None

    def _open_watch(self) -> int | None:
        try:
            return _inotify(self._path)
        except (OSError, ImportError, AttributeError) as error:
            number = error.errno if isinstance(error, OSError) else None
            why = error if number is None else _LIMITS.get(number, error)
            self._log_reason(why)
            return None

    def _log_reason(self, why: object) -> None:
        log.info(
            "%s: no inotify watch, so commits of other processes are polled every %g s: %s",
            self._path,
            _POLL_SECONDS,
            why,
        )


def _inotify(path: Path) -> int:
    """A descriptor that becomes readable after a write to the file."""
    if sys.platform != "linux":
        raise OSError("this system has no inotify")
    if (kind := file_system_of(path)) in NETWORK_FILE_SYSTEMS:
        raise OSError(f"{kind} does not report writes of other machines")
    # Imported here, because a program that never waits does not need it.
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


# --- commits and their connections ------------------------------------------------------------------------------------


_ANYTHING_SECONDS = 0.25


class ForeignCommits:
    """Reports commits of all connections but `writer`, which has not started, and whose version is `seen_by_writer`."""

    def __init__(self, where: Location, writer: Worker, seen_by_writer: int) -> None:
        assert where.path is not None
        self._where = where
        self._writer = writer
        self._db = connect_to_read(where)
        self._seen = data_version(self._db)
        self._seen_by_writer = seen_by_writer
        # The log is beside the file that a link leads to, and stays the same file while we are connected.
        self._watch = FileWatch(Path(os.path.realpath(where.path) + "-wal"))
        self._is_closed = False
        # Groups that the writer had ended before the last check.
        self._ended = 0
        # A commit was found and not reported yet; and part of it is certainly foreign.
        self._is_unreported = self._is_foreign = False
        # When a check of everything was last requested, or found to be unnecessary.
        self._reported_at = -math.inf
        # The newest runs that wait.
        self._waiting: set[str] = set()

    async def changed(self, app: str, timeout: float) -> News | None:
        loop = asyncio.get_running_loop()
        end = loop.time() + timeout
        while not self._is_closed:
            news = await self._check(app, loop.time())
            now = loop.time()
            if news is not None:
                self._watch.note_use()
            if news is not None or now >= end:
                return news
            report_at = self._reported_at + _ANYTHING_SECONDS if self._is_unreported else math.inf
            await self._watch.wait(min(end, report_at) - now)
        return None

    def close(self) -> None:
        self._is_closed = True
        self._watch.close()
        self._db.close()

    async def _check(self, app: str, now: float) -> News | None:
        has_new_run = self._read_commits(app)
        is_time = now - self._reported_at >= _ANYTHING_SECONDS
        if not self._is_unreported or not (is_time or has_new_run):
            return None
        is_foreign, self._is_unreported, self._is_foreign = self._is_foreign, False, False
        if is_time:
            self._reported_at = now
        if not is_foreign and not await self._is_foreign_commit():
            return None
        if is_time:
            return "anything"
        # It may contain more than runs.
        self._is_unreported = self._is_foreign = True
        return "runs"

    def _read_commits(self, app: str) -> bool:
        """Note new commits. Returns whether a run waits that did not wait before."""
        # In this order: a commit of the writer between two checks began before the end of the second, and ended after
        # the start of the first.
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
        # The writer's own commits do not change the version on its connection.
        try:
            version = await self._writer.call(lambda db, _now: data_version(db))
        except StoreUnavailable:
            # Another connection holds the lock, so it is writing.
            return True
        is_new, self._seen_by_writer = version != self._seen_by_writer, version
        return is_new
