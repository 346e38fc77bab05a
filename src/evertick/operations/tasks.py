"""Runs of tasks that are asked for one by one."""

from __future__ import annotations

from evertick.model import NewRun, Run
from evertick.operations.context import Context

__all__ = ["enqueue"]


async def enqueue(context: Context, runs: list[NewRun], *, connection: object = None) -> list[Run]:
    """Have these run soon, once each. All of them, or none; with the commit of a user's connection, if one is given."""
    if not runs:
        return []
    if connection is not None:
        # No engine is woken: the runs are there with the user's commit, which nodes notice like any other.
        return await context.store.within(connection).enqueue(context.app, runs)
    enqueued = await context.store.enqueue(context.app, runs)
    context.wake_runs()
    return enqueued
