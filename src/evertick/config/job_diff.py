"""How the jobs of a configuration differ from those that it had before: by their names, for the log."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

import msgspec

from evertick.config.job import Job

__all__ = ["JobNews", "news_of"]

# Of each kind; who changes hundreds of jobs at once reads the file.
_NAMED_MOST = 10


class JobNews(msgspec.Struct, frozen=True, kw_only=True):
    """Names of jobs."""

    added: tuple[str, ...] = ()
    changed: tuple[str, ...] = ()
    gone: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.added or self.changed or self.gone)

    def words(self) -> str:
        """Like "added: a; changed: b, c; gone: d (`evertick apply --prune` removes it)"."""
        return "; ".join(self._parts())

    def _parts(self) -> Iterator[str]:
        if self.added:
            yield f"added: {_named(self.added)}"
        if self.changed:
            yield f"changed: {_named(self.changed)}"
        if self.gone:
            those = "it" if len(self.gone) == 1 else "them"
            yield f"gone: {_named(self.gone)} (`evertick apply --prune` removes {those})"


def news_of(before: Iterable[Job], now: Iterable[Job]) -> JobNews:
    old, new = ({job.name: job for job in jobs} for jobs in (before, now))
    both = [(old[name], job) for name, job in new.items() if name in old]
    return JobNews(
        # Whoever has imported some wants to see that they do not run yet.
        added=tuple(f"{name}{'' if job.is_enabled else ' (disabled)'}" for name, job in new.items() if name not in old),
        changed=tuple(job.name for was, job in both if _said(was) != _said(job)),
        gone=tuple(name for name in old if name not in new),
    )


def _said(job: Job) -> tuple[object, ...]:
    """All that it says, wherever that stands: a job that has moved to another line is the same."""
    calendars = tuple(None if each is None else each.version for each in (job.rule.calendar, job.blackout))
    return job.rule.text, calendars, job.definition, job.spec, job.task_options, job.description, job.is_enabled


def _named(names: tuple[str, ...]) -> str:
    more = len(names) - _NAMED_MOST
    return ", ".join(names[:_NAMED_MOST]) + (f" and {more} more" if more > 0 else "")
