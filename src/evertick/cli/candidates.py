"""What there is to complete: keys of schedules, ids of recent runs, tasks that live nodes know.

A completion never fails and never says anything: a store that is away, locked or wrong completes to nothing.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem

from evertick.cli.database import ledger_of
from evertick.cli.show.output import clean
from evertick.cli.show.words import called, outcome
from evertick.clock import system_clock
from evertick.errors import EvertickError
from evertick.store.base import RunFilter, ScheduleFilter, Store
from evertick.store.sqlite.location import location_of
from evertick.store.url import open_store

__all__ = ["complete_keys", "complete_runs", "complete_tasks"]

_MOST = 100
# Somebody waits with a finger on the key.
_PATIENCE_SECONDS = 2.0


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Schedules whose key begins like this."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        # A key that is typed already is completed, too, so that the shell goes on to the next word.
        wholes = await store.schedules(app, ScheduleFilter(keys=(incomplete,), with_counts=False))
        found = await store.schedules(app, ScheduleFilter(after_key=incomplete, limit=_MOST, with_counts=False))
        alike = [schedule for schedule in found if schedule.key.startswith(incomplete)]
        return [CompletionItem(schedule.key, help=clean(schedule.when)) for schedule in [*wholes, *alike]]

    return _found(ctx, find)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Recent runs whose id begins like this."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        runs = await store.runs(app, RunFilter(limit=_MOST))
        alike = [run for run in runs if run.id.startswith(incomplete)]
        return [CompletionItem(run.id, help=clean(f"{called(run)} {outcome(run)}")) for run in alike]

    return _found(ctx, find)


def complete_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks that live nodes know."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        names = {name for node in await store.nodes(app) for name in node.tasks if node.died_at is None}
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return _found(ctx, find)


def _found(ctx: click.Context, find: Callable[[Store, str], Awaitable[list[CompletionItem]]]) -> list[CompletionItem]:
    try:
        ledger = ledger_of(ctx.params.get("database"), ctx.params.get("app"), ctx.params.get("config"))
        if ledger.url.startswith("sqlite://") and not Path(location_of(ledger.url).path or "").is_file():
            return []
        return asyncio.run(asyncio.wait_for(_asked(ledger.url, ledger.app, find), _PATIENCE_SECONDS))
    except (EvertickError, click.UsageError, OSError, TimeoutError):
        return []


async def _asked(
    url: str, app: str, find: Callable[[Store, str], Awaitable[list[CompletionItem]]]
) -> list[CompletionItem]:
    store = open_store(url, clock=system_clock)
    logger = logging.getLogger("evertick")
    level = logger.level
    # A warning would be printed between the words of the completion.
    logger.setLevel(logging.CRITICAL)
    try:
        await store.open(migrate="check")
        return await find(store, app)
    finally:
        logger.setLevel(level)
        await store.close()
