"""Enqueueing runs of a task."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Unpack

from evertick.definition.settings import check_key
from evertick.definition.task import EnqueueOptions, Placing, encode_calls, make_placing
from evertick.job.arguments import FreeArguments, Signature
from evertick.model import Cause, NewRun, Run
from evertick.operations.context import Context

__all__ = ["enqueue", "enqueue_encoded", "enqueue_many"]


async def enqueue(
    context: Context,
    task: str,
    args: Mapping[str, Any] | None = None,
    *,
    connection: object = None,
    **options: Unpack[EnqueueOptions],
) -> Run:
    """Enqueue one run of a task. A node that knows the task runs it soon.

    The arguments must fit the signature of the task if this process knows it, else they must be JSON-like data.
    connection: a connection of the caller to the database of the ledger. The run is part of its transaction.
    """
    return (await enqueue_many(context, task, [{} if args is None else args], connection=connection, **options))[0]


async def enqueue_many(
    context: Context,
    task: str,
    calls: Iterable[Mapping[str, Any]],
    *,
    connection: object = None,
    **options: Unpack[EnqueueOptions],
) -> list[Run]:
    """Enqueue one run per set of arguments in one transaction, all or none."""
    placing = make_placing(**options)
    encoded = encode_calls(_arguments_of(context, task), calls)
    return await enqueue_encoded(context, task, encoded, placing, connection)


async def enqueue_encoded(
    context: Context, task: str, encoded: Sequence[bytes], placing: Placing, connection: object = None
) -> list[Run]:
    """Enqueue runs with checked arguments and options. A `Task` checks them before the store is open."""
    if not encoded:
        return []
    runs = _new_runs(task, encoded, placing, context.clock.new_ids(len(encoded)))
    if connection is not None:
        # No wake-up: the runs become visible with the user's commit, which nodes notice.
        return await context.store.within(connection).enqueue(context.app, runs)
    enqueued = await context.store.enqueue(context.app, runs)
    context.wake_runs()
    return enqueued


def _arguments_of(context: Context, task: str) -> Signature | FreeArguments:
    known = context.tasks.get(check_key(task, what="task"))
    return FreeArguments(task) if known is None else known.arguments


def _new_runs(task: str, encoded: Sequence[bytes], placing: Placing, ids: Sequence[str]) -> list[NewRun]:
    cause = Cause.ENQUEUE
    return [
        NewRun(
            id=id_,
            task=task,
            cause=cause,
            fire_at=placing.at,
            due_at=placing.at,
            delay=placing.delay,
            args=args,
            queue=placing.queue,
            priority=placing.priority,
            expires=placing.expires,
            labels=placing.labels,
            unique_key=placing.unique,
            unique_until=placing.unique_until,
            unique_for=placing.unique_for,
        )
        for id_, args in zip(ids, encoded, strict=True)
    ]
