"""The result of an import: jobs as a configuration file has them, and notes about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from evertick.text.printable import printable

__all__ = ["ImportResult", "Job", "Note", "header", "renamed_note"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A note about the import.

    lost: a job was not imported. dropped: a setting was not imported. check: it was imported, and may need a change.
    """

    # "line 12", "job 'report'"
    where: str
    kind: Literal["lost", "dropped", "check"]
    text: str


def renamed_note(where: str, name: str, other: object, new: str) -> Note:
    """The note about a job that was renamed."""
    text = f"{other} already has a job {name!r}; this one is called {new!r}"
    return Note(where=where, kind="check", text=text)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a configuration file has it."""

    name: str
    where: str
    # The line or trigger in the source.
    source: str
    description: str = ""
    # One of cron, every, once, with its options.
    rule: Mapping[str, Any]
    options: Mapping[str, Any] = {}
    driver: str
    spec: Mapping[str, Any]


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """Jobs and notes, in the order of the source."""

    jobs: tuple[Job, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def lost(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == "lost")


def header(imported: ImportResult, head: Sequence[str]) -> list[str]:
    """The comment at the head of a file of jobs, with the notes of the import."""
    lines = [f"# {printable(line)}".rstrip() for line in head]
    if imported.notes:
        lines += ["#", "# Notes of the import:"]
    for note in imported.notes:
        lost = "" if note.kind == "check" else "not carried over: "
        lines.append(f"#   {printable(f'{note.where}: {lost}{note.text}')}")
    return lines
