"""What others have committed to the file: other processes, and other connections of this one.

A connection that only looks sees that somebody has committed, by a number that SQLite keeps. Whether it was our own
writer is told by what that was doing meanwhile, and in doubt by the same number on its connection. What was committed
is not told, and the file may belong to a program that writes to its own tables all day. So a look at anything is asked
for at once, but not again within a quarter of a second; in between only for runs, when one waits that did not before.
"""

from __future__ import annotations

import asyncio
import math
import os
from pathlib import Path

from evertick.errors import StoreUnavailable
from evertick.store.base import News
from evertick.store.sqlite.connection import connect_to_read, data_version, translated
from evertick.store.sqlite.location import Location
from evertick.store.sqlite.queries import SQL
from evertick.store.sqlite.watch import Watch
from evertick.store.sqlite.writer import Worker

__all__ = ["ForeignCommits"]

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
        self._watch = Watch(Path(os.path.realpath(where.path) + "-wal"))
        self._is_closed = False
        # What the writer had ended before the last look.
        self._ended = 0
        # Something was committed that nobody was told of, and some of it is surely not ours.
        self._is_untold = self._is_theirs = False
        # When a look at anything was last asked for, or found to be needless.
        self._told_at = -math.inf
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
            tell_at = self._told_at + _ANYTHING_SECONDS if self._is_untold else math.inf
            await self._watch.wait(min(end, tell_at) - now)
        return None

    def close(self) -> None:
        self._is_closed = True
        self._watch.close()
        self._db.close()

    async def _look(self, app: str, now: float) -> News | None:
        has_new_run = self._see(app)
        is_time = now - self._told_at >= _ANYTHING_SECONDS
        if not self._is_untold or not (is_time or has_new_run):
            return None
        is_theirs, self._is_untold, self._is_theirs = self._is_theirs, False, False
        if is_time:
            self._told_at = now
        if not is_theirs and not await self._is_somebody_elses():
            return None
        if is_time:
            return "anything"
        # There may be more than runs in it.
        self._is_untold = self._is_theirs = True
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
            self._is_theirs = True
        self._seen, self._ended, self._is_untold = version, ended, True
        has_new_run = not waiting <= self._waiting
        self._waiting = waiting
        self._watch.found()
        return has_new_run

    async def _is_somebody_elses(self) -> bool:
        # To the writer's connection its own commits are no change.
        try:
            version = await self._writer.call(lambda db, _now: data_version(db))
        except StoreUnavailable:
            # Somebody holds the lock, so somebody writes.
            return True
        is_new, self._seen_by_writer = version != self._seen_by_writer, version
        return is_new
