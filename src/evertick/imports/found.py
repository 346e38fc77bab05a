"""What was found where jobs are imported from."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import msgspec

__all__ = ["Imported", "Job", "Note", "renamed_note"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """Something that people should know about the import.

    lost: a job is not carried over. dropped: something about jobs is not. check: it is, and may not be what was meant.
    """

    # "line 12", "job 'report'"
    where: str
    kind: Literal["lost", "dropped", "check"]
    text: str


def renamed_note(where: str, name: str, other: object, new: str) -> Note:
    """A job that could not keep its name."""
    said = f"{other} has a job {name!r} already; this one is called {new!r}"
    return Note(where=where, kind="check", text=said)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a configuration file has it."""

    name: str
    where: str
    # What it said where it comes from.
    source: str
    description: str = ""
    # When: one of cron, every, once, with what goes with it.
    rule: Mapping[str, Any]
    options: Mapping[str, Any] = {}
    driver: str
    spec: Mapping[str, Any]


class Imported(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, in the order in which it was found."""

    jobs: tuple[Job, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def lost(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == "lost")
