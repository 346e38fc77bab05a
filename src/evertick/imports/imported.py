"""The result of an import: jobs as a configuration file has them, and notes about them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Literal

import msgspec

from evertick.text.printable import printable

__all__ = ["ImportResult", "Job", "Note", "header", "renamed_note"]


class Note(msgspec.Struct, frozen=True, kw_only=True):
    """A remark about the import.

    lost: a job is not carried over. dropped: something about jobs is not. check: it is, and may not be what was meant.
    """

    # "line 12", "job 'report'"
    where: str
    kind: Literal["lost", "dropped", "check"]
    text: str


def renamed_note(where: str, name: str, other: object, new: str) -> Note:
    """A job that could not keep its name."""
    text = f"{other} has a job {name!r} already; this one is called {new!r}"
    return Note(where=where, kind="check", text=text)


class Job(msgspec.Struct, frozen=True, kw_only=True):
    """A job as a configuration file has it."""

    name: str
    where: str
    # Its text in the source.
    source: str
    description: str = ""
    # When: one of cron, every, once, with what goes with it.
    rule: Mapping[str, Any]
    options: Mapping[str, Any] = {}
    driver: str
    spec: Mapping[str, Any]


class ImportResult(msgspec.Struct, frozen=True, kw_only=True):
    """All of it, in the order in which it was found."""

    jobs: tuple[Job, ...] = ()
    notes: tuple[Note, ...] = ()

    @property
    def lost(self) -> tuple[Note, ...]:
        return tuple(note for note in self.notes if note.kind == "lost")


def header(imported: ImportResult, head: Sequence[str]) -> list[str]:
    """The comment at the head of a file of jobs; a reader sees there what was not carried over."""
    lines = [f"# {printable(line)}".rstrip() for line in head]
    if imported.notes:
        lines += ["#", "# Notes of the import:"]
    for note in imported.notes:
        lost = "" if note.kind == "check" else "not carried over: "
        lines.append(f"#   {printable(f'{note.where}: {lost}{note.text}')}")
    return lines
