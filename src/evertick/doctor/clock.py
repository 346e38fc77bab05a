"""What can be wrong with clocks, and what a clock that was wrong has left behind."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from datetime import datetime, timedelta

from evertick.doctor.finding import Finding, Severity, named
from evertick.ledger.clock_repair import Astray, is_put_off
from evertick.model import Node, Run

__all__ = ["about_clock", "about_late_runs"]

_CLOCK_APART = timedelta(seconds=2)
_REPAIR = "put the clock right and keep it so with NTP, then run `evertick db repair-clock`"


def about_clock(
    store_now: datetime, own_now: datetime, nodes: Sequence[Node], ahead: datetime | None, astray: Sequence[Astray]
) -> Iterator[Finding]:
    """The store's time against that of this machine, against what was written, and against what is planned.

    `ahead`: the latest time still to come at which something says that it was written.
    """
    apart = abs(store_now - own_now)
    if apart > _CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock",
            what=f"the clock of this machine and that of the store are {apart.total_seconds():.1f} s apart",
            fix="keep both right with NTP; the store's clock decides what is due",
        )
    beat = max((node.beat_at - store_now for node in nodes if node.died_at is None), default=timedelta(0))
    if beat > _CLOCK_APART:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_step",
            what=f"a node has beaten {beat.total_seconds():.1f} s in the future: the clock was put back since",
            fix="nothing is lost, but moments may come twice on the clock; keep it right with NTP, which does not step",
        )
    if astray:
        those = "1 schedule stands" if len(astray) == 1 else f"{len(astray)} schedules stand"
        first = astray[0]
        yield Finding(
            severity=Severity.ERROR,
            check="clock_left_behind",
            what=f"{those} still because the clock was wrong ({named(each.key for each in astray)}); {first.key}: "
            f"{first.words()}",
            fix=_REPAIR,
            about=tuple(each.key for each in astray),
        )
    if ahead is not None:
        yield Finding(
            severity=Severity.WARNING,
            check="clock_was_ahead",
            what=f"the ledger has rows that were written at {ahead:%Y-%m-%d %H:%M:%S} UTC, which is still to come: the "
            "store's clock was ahead",
            fix=_REPAIR,
        )


def about_late_runs(waiting: Sequence[Run], ahead: datetime | None, now: datetime) -> Iterator[Finding]:
    """Runs that wait for a time to which a wrong clock has put them off."""
    late = [run for run in waiting if is_put_off(run, now, ahead)]
    if late:
        count = "1 run waits" if len(late) == 1 else f"{len(late)} runs wait"
        yield Finding(
            severity=Severity.ERROR,
            check="clock_runs_wait",
            what=f"{count} for a time to which a wrong clock has put {'it' if len(late) == 1 else 'them'} off, "
            f"the first for {min(run.due_at for run in late):%Y-%m-%d %H:%M:%S} UTC",
            fix=_REPAIR,
            about=tuple(run.id for run in late),
        )
