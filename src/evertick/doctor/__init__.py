"""The findings of the doctor: problems and likely surprises, each with a fix.

Reads the store and changes nothing. Its queries are bounded: all schedules, a page at a time, and a sample of the runs.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from datetime import datetime

from evertick.doctor.database import about_database, about_empty_app, about_feed
from evertick.doctor.finding import Finding, Severity, about_store, shortened
from evertick.doctor.health import findings_of, look, with_surveyed
from evertick.doctor.nodes import about_programs
from evertick.doctor.runs import about_blocked, blockers_of
from evertick.doctor.schedules import about_calendars, about_clock, about_schedules
from evertick.doctor.thresholds import Thresholds
from evertick.errors import EvertickError
from evertick.explain.all_schedules import survey
from evertick.ledger.parsed_rules import load_calendars
from evertick.model import State
from evertick.store.base import Maintenance, RunFilter, Store

__all__ = ["Finding", "Severity", "about_store", "examine", "examine_database"]

_RUNS_MOST = 2_000


async def examine_database(care: Maintenance) -> list[Finding]:
    """Findings about the database itself, also if it cannot be opened."""
    return await _collected(about_database(care))


async def examine(
    store: Store, app: str, own_now: datetime, *, killed: Mapping[str, int] | None = None
) -> list[Finding]:
    """Findings about an app on an open store: its health, and checks that take longer.

    `killed`: the process id by node id, for nodes whose process is gone from this machine.
    """
    return await _collected(_about_app(store, app, own_now, killed))


async def _about_app(
    store: Store, app: str, own_now: datetime, killed: Mapping[str, int] | None
) -> AsyncIterator[Finding]:
    surveyed = [each async for each in survey(store, app)]
    evidence = with_surveyed(await look(store, app, killed=killed, most=_RUNS_MOST), surveyed)
    now, living = evidence.at, evidence.living
    for finding in findings_of(evidence, Thresholds()):
        yield finding
    if not surveyed and not evidence.nodes and not await store.runs(app, RunFilter(limit=1)):
        for finding in about_empty_app(app, await store.apps()):
            yield finding
    for finding in about_clock(now, own_now, evidence.nodes):
        yield finding
    for finding in about_programs(living, now):
        yield finding
    for finding in about_feed(await store.feed_state(app)):
        yield finding
    # The oldest ones, so that a newer backlog does not hide the run that has waited longest.
    blocked = await store.runs(app, RunFilter(states=(State.BLOCKED,), is_oldest_first=True, limit=_RUNS_MOST))
    ids = blockers_of(blocked)
    blockers = await store.runs(app, RunFilter(ids=ids, limit=len(ids))) if ids else []
    for finding in about_blocked(blocked, {run.id: run for run in blockers}, now):
        yield finding
    for finding in about_calendars(await load_calendars(store, app), surveyed, now):
        yield finding
    ended = await store.runs(app, RunFilter(states=(State.DONE,), limit=_RUNS_MOST))
    for finding in about_schedules(surveyed, ended, living, now):
        yield finding


async def _collected(findings: AsyncIterator[Finding]) -> list[Finding]:
    try:
        return shortened([finding async for finding in findings])
    except EvertickError as error:
        return [about_store(error)]
