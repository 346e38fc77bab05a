"""What is wrong, or will surprise somebody, and what to do about it: the doctor's findings.

Reads the store by its protocol and changes nothing. Its questions are bounded: all schedules, a page at a time, and of
the runs a sample.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import datetime

from evertick.doctor.apps import about_empty_app
from evertick.doctor.calendars import about_calendars
from evertick.doctor.clock import about_clock, about_late_runs
from evertick.doctor.database import about_database
from evertick.doctor.dispatched import about_dispatched
from evertick.doctor.duties import about_duties
from evertick.doctor.feed import about_feed
from evertick.doctor.finding import Finding, Severity, about_store, shortened
from evertick.doctor.nodes import about_nodes
from evertick.doctor.outbox import about_outbox
from evertick.doctor.runs import about_blocked, about_parked, about_waiting, blockers_of
from evertick.doctor.schedules import about_schedules
from evertick.errors import EvertickError
from evertick.explain.all_schedules import survey
from evertick.explain.dispatched_run import unsent_messages
from evertick.ledger.clock_repair import written_ahead
from evertick.ledger.parsed_rules import load_calendars
from evertick.model import State
from evertick.store.base import Maintenance, RunFilter, Store
from evertick.when import from_us, to_us

__all__ = ["Finding", "Severity", "about_store", "examine", "examine_database"]

_RUNS_MOST = 2_000


async def examine_database(care: Maintenance) -> list[Finding]:
    """Findings about the database itself, whether it can be opened or not."""
    return await _gathered(about_database(care))


async def examine(store: Store, app: str, own_now: datetime) -> list[Finding]:
    """Findings about an app on an open store: its clock, nodes, duties, messages, runs and schedules."""
    return await _gathered(_about_app(store, app, own_now))


async def _about_app(store: Store, app: str, own_now: datetime) -> AsyncIterator[Finding]:
    now = from_us(await store.now())
    nodes = await store.nodes(app)
    living = [node for node in nodes if node.died_at is None]
    surveyed = [each async for each in survey(store, app)]
    if not surveyed and not nodes and not await store.runs(app, RunFilter(limit=1)):
        for finding in about_empty_app(app, await store.apps()):
            yield finding
    ahead = await written_ahead(store, app)
    for finding in about_clock(now, own_now, nodes, ahead, [each.astray for each in surveyed if each.astray]):
        yield finding
    for finding in about_nodes(nodes, now, has_schedules=bool(surveyed)):
        yield finding
    for finding in about_duties(await store.duties(app), nodes, now):
        yield finding
    for finding in about_feed(await store.feed_state(app)):
        yield finding
    for finding in about_outbox(await store.channels(app), living, to_us(now)):
        yield finding
    dispatched = await store.runs(app, _those(State.DISPATCHED, is_oldest_first=True))
    for finding in about_dispatched(dispatched, await unsent_messages(store, app, dispatched), living, now):
        yield finding
    for finding in about_parked(await store.runs(app, _those(State.PARKED)), living):
        yield finding
    waiting = await store.runs(app, _those(State.WAITING))
    for finding in about_waiting(waiting, living, now):
        yield finding
    for finding in about_late_runs(waiting, ahead, now):
        yield finding
    # The oldest of them: a newer backlog is not to hide who has waited longest.
    blocked = await store.runs(app, _those(State.BLOCKED, is_oldest_first=True))
    ids = blockers_of(blocked)
    blockers = await store.runs(app, RunFilter(ids=ids, limit=len(ids))) if ids else []
    for finding in about_blocked(blocked, {run.id: run for run in blockers}, now):
        yield finding
    for finding in about_calendars(await load_calendars(store, app), surveyed, now):
        yield finding
    ended = await store.runs(app, _those(State.DONE))
    for finding in about_schedules(surveyed, ended, living, now):
        yield finding


def _those(state: State, *, is_oldest_first: bool = False) -> RunFilter:
    return RunFilter(states=(state,), is_oldest_first=is_oldest_first, limit=_RUNS_MOST)


async def _gathered(findings: AsyncIterator[Finding]) -> list[Finding]:
    try:
        return shortened([finding async for finding in findings])
    except EvertickError as error:
        return [about_store(error)]
