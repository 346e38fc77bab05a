"""New runs into the live table: what nearly all statements that make runs come down to."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec

from evertick.model import NewRun, State
from evertick.store.enqueued import is_all_there
from evertick.store.postgres.lookup import moments_of
from evertick.store.postgres.session import Statements, once_if_alike, unless_all
from evertick.store.rows import json_text, plain_text

__all__ = ["Inserted", "insert_runs", "labels_text"]


class Inserted(msgspec.Struct, frozen=True, kw_only=True):
    """What became of runs that were to be inserted."""

    now: int
    # Under which those are running that were to be claimed, else 0.
    fence: int
    ids: set[str]
    # Whether one of them waits to be claimed.
    has_waiting: bool
    # Others were woken by the statement itself.
    is_told: bool = False


async def insert_runs(
    db: Statements,
    app: str,
    runs: Sequence[NewRun],
    *,
    freeing: Sequence[bool] = (),
    node: str | None = None,
    fence: int | None = None,
) -> Inserted:
    """Without those that are in the ledger already. Each id once. `freeing`: of each, whether it has the mark `frees`.

    Those to be claimed are so by the node, under the given fence or a new one; without a node they wait. What somebody
    else is inserting at this very moment is an error, unless the session is careful.
    """
    if len(runs) == 1 and not db.is_careful and is_all_there(runs[0]) and runs[0].unique_key is None:
        return await _insert_one(db, app, runs[0])
    ids = [run.id for run in runs]
    name, columns = _statement(runs, freeing, node, fence)
    if db.is_careful:
        name += ".carefully"
    row = await db.only_row(name, app, *moments_of(runs, db.clock), ids, *columns)
    return Inserted(
        now=row["now"],
        fence=row["fence"] or 0,
        ids=set(ids if row["ids"] is None else row["ids"]),
        has_waiting=row["has_waiting"],
    )


async def _insert_one(db: Statements, app: str, run: NewRun) -> Inserted:
    bell = db.bell
    said = None if bell is None else bell.with_commit(app, "runs")
    wake_up = (None, None) if said is None else (said.channel, said.words)
    row = await db.only_row("insert_one", app, *moments_of([run], db.clock), *_one(run), *wake_up)
    if bell is not None and said is not None:
        bell.note_commit(said)
    return Inserted(
        now=row["now"],
        fence=0,
        ids={run.id} if row["is_new"] else set(),
        has_waiting=row["is_new"],
        is_told=said is not None,
    )


def _one(run: NewRun) -> list[Any]:
    """All that `insert_one` takes from its fourth parameter on."""
    return [
        run.id,
        run.task,
        run.cause,
        run.fire_at,
        run.due_at,
        run.delay,
        run.queue,
        run.priority,
        plain_text(run.reason),
        None if run.args is None else run.args.decode(),
        labels_text(run.labels),
        run.expires,
        run.caused_by,
        run.traceparent,
        run.format,
    ]


def _statement(
    runs: Sequence[NewRun], freeing: Sequence[bool], node: str | None, fence: int | None
) -> tuple[str, list[Any]]:
    """What inserts them, and all that it takes from its fifth parameter on."""
    if all(map(is_all_there, runs)):
        return "insert_enqueued", _enqueued_columns(runs)
    return "insert_runs", [node, fence, *_columns(runs, freeing)]


def _enqueued_columns(runs: Sequence[NewRun]) -> list[Any]:
    return [
        once_if_alike([run.task for run in runs]),
        once_if_alike([run.cause for run in runs]),
        *_times(runs),
        *_place(runs),
        *_words(runs),
        *_unique_keys(runs),
        *_origin(runs),
        unless_all(1, [run.format for run in runs]),
    ]


def _columns(runs: Sequence[NewRun], freeing: Sequence[bool]) -> list[Any]:
    return [
        unless_all(None, [run.schedule_id for run in runs]),
        unless_all(None, [run.version for run in runs]),
        once_if_alike([run.task for run in runs]),
        once_if_alike([run.cause for run in runs]),
        *_times(runs),
        *_place(runs),
        unless_all(False, [run.state is State.BLOCKED for run in runs]),
        *_words(runs),
        *_unique_keys(runs),
        *_origin(runs),
        unless_all(False, [run.is_claimed and run.state is not State.BLOCKED for run in runs]),
        unless_all(None, [run.timeout for run in runs]),
        unless_all(False, [run.at_most_once for run in runs]),
        freeing if any(freeing) else [],
        unless_all(1, [run.format for run in runs]),
    ]


def _times(runs: Sequence[NewRun]) -> list[Any]:
    """Moment, due time, delay."""
    moments = [run.fire_at for run in runs]
    due = [run.due_at for run in runs]
    return [
        unless_all(None, moments),
        [] if due == moments else due,
        unless_all(0, [run.delay for run in runs]),
    ]


def _place(runs: Sequence[NewRun]) -> list[Any]:
    """Queue, priority."""
    return [unless_all("default", [run.queue for run in runs]), unless_all(0, [run.priority for run in runs])]


def _words(runs: Sequence[NewRun]) -> list[Any]:
    """Reason, arguments, labels, and how long it may be too late."""
    reasons = [run.reason for run in runs]
    labels = [run.labels for run in runs]
    return [
        [plain_text(reason) for reason in unless_all(None, reasons)],
        unless_all(None, [None if run.args is None else run.args.decode() for run in runs]),
        [labels_text(each) for each in unless_all({}, labels)],
        unless_all(None, [run.expires for run in runs]),
    ]


def _unique_keys(runs: Sequence[NewRun]) -> list[Any]:
    """Key, and until when. Those for a period have a row of their own."""
    if not any(run.unique_key for run in runs):
        return [[], []]
    keys = [run.unique_key if run.unique_for is None else None for run in runs]
    return [unless_all(None, keys), [run.unique_until for run in runs]]


def _origin(runs: Sequence[NewRun]) -> list[Any]:
    """Cause, trace."""
    return [unless_all(None, [run.caused_by for run in runs]), unless_all(None, [run.traceparent for run in runs])]


def labels_text(labels: dict[str, str]) -> str | None:
    return json_text({plain_text(name): plain_text(value) for name, value in labels.items()}) if labels else None
