"""What a store was asked and had to write, between two moments: counted by the server, or on SQLite where it can be.

There a statement is counted by the process that gives it, if the stage was told to (`counting`), and a commit by the
file. The log of a file cannot be told by its size: after a checkpoint it is written again from its beginning. So the
bytes are those that the processes wrote to the disk, of the log and of the file.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass

from benchmarks import statements
from benchmarks.processes import Workers
from benchmarks.stage import Stage
from benchmarks.store import meter
from benchmarks.store.postgres import PostgresPlace
from benchmarks.store.sqlite import SqlitePlace

__all__ = ["Counted", "counting"]


def counting(stage: Stage) -> Stage:
    """The same, with programs that count what they say to a file."""
    if not isinstance(stage.place, SqlitePlace):
        return stage
    return dataclasses.replace(stage, options={**stage.options, "is_counting": True})


@dataclass(frozen=True)
class Counted:
    statements: int
    commits: int
    written: int

    @classmethod
    def by(cls, workers: Workers, stage: Stage) -> Counted:
        """Up to now."""
        place = stage.place
        if isinstance(place, PostgresPlace):
            reading = meter.read(place)
            return cls(reading.statements, reading.commits, reading.log_bytes)
        assert isinstance(place, SqlitePlace)
        return cls(statements.total(place.folder), place.commits(), workers.bytes_written())

    def since(self, before: Counted) -> Counted:
        return Counted(
            self.statements - before.statements, self.commits - before.commits, self.written - before.written
        )
