"""Moments, durations, nodes and rows of the ledger as text. Only `now` reads the clock.

Rows have the ids of nodes, because several nodes may have the same name. Nodes are pruned a day after their end; then
the end of the id is shown in place of the name.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from datetime import datetime, timedelta, tzinfo
from typing import Any

from evertick.clock import system_clock
from evertick.explain.dispatched_run import owner_words
from evertick.explain.words import SHORT, known_names, node_names
from evertick.model import Cause, Dispatched, DispatchedTo, Gap, OccurrenceEdit, Reason, Run, State, Verdict
from evertick.model.every_node import is_own_queue, node_of_queue
from evertick.scheduler.scheduler import Scheduler
from evertick.text.error_line import error_summary
from evertick.text.time_span import span
from evertick.when import from_us

__all__ = [
    "ahead",
    "amount",
    "brief",
    "called",
    "counted",
    "data_text",
    "decision_words",
    "dispatched_remark",
    "dispatched_to_words",
    "distance",
    "known_names",
    "losses_words",
    "names_for",
    "node_names",
    "node_of",
    "node_words",
    "now",
    "offset_of",
    "outcome",
    "remark",
    "shown_node",
    "shown_place",
    "stamp",
    "times_in",
    "times_of",
    "took",
    "tries",
    "zone_name",
]

_MINUTE, _HOUR, _DAY = 60, 3_600, 86_400
_KIBI = 1_024
# Stores count no further.
_COUNT_MOST = 10_000
_SECOND, _OFFSET = len("2026-01-31 09:00:00"), len("+01:00")
# With these reasons the real end of a lost run is unknown: the ledger has the time at which it was declared lost.
_END_UNKNOWN = (Reason.NODE_DIED, Reason.NODE_GONE, Reason.NO_PROGRESS)
_zone: ContextVar[tzinfo | None] = ContextVar("zone", default=None)
# Below this many of a unit, one decimal is shown.
_FEW = 10


def now() -> datetime:
    return from_us(system_clock.now_us())


def counted(count: int) -> str:
    """The count, with a plus if the store stopped counting."""
    return f"{count}" if count < _COUNT_MOST else f"{count}+"


@contextmanager
def times_in(zone: tzinfo | None) -> Iterator[None]:
    """Show all times in this zone; None: in that of the machine."""
    before = _zone.set(zone)
    try:
        yield
    finally:
        _zone.reset(before)


@contextmanager
def times_of(zone: tzinfo | None) -> Iterator[tzinfo | None]:
    """Like `times_in`, for one schedule of many; a zone set by --tz overrides it. Yields the zone in force."""
    in_force = _zone.get() or zone
    with times_in(in_force):
        yield in_force


def zone_name(zone: tzinfo | None) -> str:
    return "-" if zone is None else str(zone)


def stamp(moment: datetime | None, *, is_local: bool = True, is_exact: bool = False) -> str:
    """The moment with its offset, in the zone of `times_in`, or in its own zone if not `is_local`.

    `is_exact`: with milliseconds, if it has any.
    """
    if moment is None:
        return "-"
    shown = moment.astimezone(_zone.get()) if is_local else moment
    offset = f"{shown:%z}"
    offset = "Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:5]}"
    part = f".{shown.microsecond // 1000:03}" if is_exact and shown.microsecond >= 1000 else ""
    return f"{shown:%Y-%m-%d %H:%M:%S}{part}{offset}"


def brief(stamped: str, *, with_offset: bool = True) -> str:
    """The text of `stamp` without milliseconds, for a narrow terminal."""
    return stamped[:_SECOND] + (offset_of(stamped) if with_offset else "")


def offset_of(stamped: str) -> str:
    """The offset in the text of `stamp`: "+01:00", or "Z"."""
    return "Z" if stamped.endswith("Z") else stamped[-_OFFSET:]


def distance(moment: datetime | None, since: datetime, *, is_short: bool = False) -> str:
    """The distance of a moment: "in 5 min 3 s", "3 s ago", "now". `is_short`: in its largest unit only."""
    if moment is None:
        return "-"
    seconds = (moment - since).total_seconds()
    if abs(seconds) < 1:
        return "now"
    length = round(abs(seconds))
    if is_short:
        unit = next(size for size in (_DAY, _HOUR, _MINUTE, 1) if length >= size)
        length -= length % unit
    whole = span(timedelta(seconds=length))
    return f"in {whole}" if seconds > 0 else f"{whole} ago"


def ahead(moment: datetime | None, since: datetime, *, is_short: bool = False) -> str:
    """The distance of a due time: "in 5 min", or "3 s overdue"."""
    return distance(moment, since, is_short=is_short).replace("ago", "overdue")


def took(run: Run) -> str:
    """The duration of the last attempt; of a lost one, the longest possible duration."""
    if run.started_at is None or run.finished_at is None:
        return "-"
    most = "up to " if run.verdict is Verdict.LOST and run.reason in _END_UNKNOWN else ""
    return most + span(run.finished_at - run.started_at)


def tries(run: Run) -> str:
    """The number of tries: judged attempts, losses, and the try that is running.

    A dispatched run is running once a worker has taken it.
    """
    is_running = run.state is State.RUNNING or (run.dispatched is not None and run.dispatched.taken_at is not None)
    return str(run.attempts + run.losses + is_running)


def outcome(row: Run | Gap) -> str:
    """The verdict, or the state if it has none yet."""
    if isinstance(row, Gap):
        return row.verdict.value
    return row.state.value if row.verdict is None else row.verdict.value


def called(run: Run) -> str:
    """The key of its schedule; the run of a task that was enqueued by hand is shown as a call, `task()`."""
    return f"{run.task}()" if run.schedule_key is None else run.schedule_key


def remark(row: Run | Gap) -> str:
    """Details beside the verdict: the cause unless it is a fire, the error, the delay, the result."""
    if isinstance(row, Gap):
        return _gap_remark(row)
    # `called` already shows that a run was enqueued.
    cause = "" if row.cause in (Cause.FIRE, Cause.EVERY_NODE, Cause.ENQUEUE) else f"by {row.cause.value}"
    return "; ".join(part for part in (cause, losses_words(row), _run_remark(row)) if part)


def losses_words(run: Run) -> str:
    """How often its node or worker was lost, and the consequence; empty for most runs."""
    if not run.losses:
        return ""
    times = {1: "once", 2: "twice"}.get(run.losses, f"{run.losses} times")
    is_over = run.verdict in (Verdict.LOST, Verdict.CANCELLED)
    return f"{owner_words(run)} was lost {times}" + ("" if is_over else ", run again")


def _run_remark(run: Run) -> str:
    if run.state is State.PARKED:
        return f"{error_summary(run.error) or 'no live node knows its task'}; cancel it: evertick cancel {run.id}"
    if run.error and run.verdict is not Verdict.SUCCEEDED:
        return error_summary(run.error)
    if run.reason == Reason.LATE and run.started_at is not None:
        return f"started {span(run.started_at - run.fire_at)} after its moment"
    if run.verdict is None:
        return _live_remark(run)
    return "" if run.result is None else data_text(run.result)


def _gap_remark(gap: Gap) -> str:
    if gap.count == 1:
        return "1 moment"
    least = "" if gap.is_exact else "at least "
    first, last = stamp(gap.first_at, is_exact=True), stamp(gap.last_at, is_exact=True)
    day = len("2026-01-31 ")
    return f"{least}{gap.count} moments since {first[day:] if first[:day] == last[:day] else first}"


def dispatched_remark(dispatched: Dispatched) -> str:
    """The queue of a dispatched run, and whether a worker has taken it."""
    queue = dispatched.to if dispatched.queue is None else f"{dispatched.to} queue {dispatched.queue}"
    if dispatched.pushed_at is None:
        return f"dispatched to {queue} since {stamp(dispatched.at)}, not sent yet"
    if dispatched.taken_at is None:
        return f"dispatched to {queue} since {stamp(dispatched.at)}, not taken yet"
    return f"with a worker of {queue} since {stamp(dispatched.taken_at)}"


def dispatched_to_words(dispatched_to: DispatchedTo) -> str:
    """The queue and the worker of a dispatched run: "nats queue reports, worker mill:4711"."""
    queue = "" if dispatched_to.queue is None else f" queue {dispatched_to.queue}"
    worker = "" if dispatched_to.worker is None else f", worker {dispatched_to.worker}"
    return f"{dispatched_to.to}{queue}{worker}"


def _live_remark(run: Run) -> str:
    if run.dispatched is not None and run.progress is None:
        return dispatched_remark(run.dispatched)
    if run.progress is not None:
        return f"{run.progress:.0%} {run.progress_text or ''}".rstrip()
    if run.started_at is not None:
        return f"since {stamp(run.started_at)}"
    return "" if run.due_at == run.fire_at else f"due {stamp(run.due_at)}"


def data_text(data: Any) -> str:
    """JSON-like data in one line."""
    return json.dumps(data, ensure_ascii=False)


def amount(size: int) -> str:
    """Bytes in their largest unit: "12 KiB", "3.4 GiB"."""
    value = float(size)
    for unit in ("bytes", "KiB", "MiB"):
        if abs(value) < _KIBI:
            return f"{value:.0f} {unit}" if unit == "bytes" or abs(value) >= _FEW else f"{value:.1f} {unit}"
        value /= _KIBI
    return f"{value:.1f} GiB"


def decision_words(edit: OccurrenceEdit) -> str:
    """An override of one moment."""
    at, note = stamp(edit.fire_at, is_exact=True), f": {edit.note}" if edit.note else ""
    target = "" if edit.to is None else f" to {stamp(edit.to, is_exact=True)}"
    verb = {"skip": "is skipped", "move": "is moved"}.get(edit.kind, "has run early")
    return f"{at} {verb}{target}{note}"


async def names_for(scheduler: Scheduler, rows: Iterable[Run | Gap]) -> dict[str, str]:
    """The names of the nodes of these rows. The store is read only if a row has a node."""
    has_node = any(isinstance(row, Run) and node_of(row) is not None for row in rows)
    return known_names(await scheduler.nodes()) if has_node else {}


def node_of(run: Run) -> str | None:
    """The node that has or had the run, or that it is for."""
    if run.node is None and is_own_queue(run.queue):
        return node_of_queue(run.queue)
    return run.node


def node_words(node: str | None, names: Mapping[str, str]) -> str:
    """The name and the id."""
    if node is None:
        return ""
    return f"{names[node]}, id {node}" if node in names else node


def shown_place(run: Run, names: Mapping[str, str]) -> str:
    """The node, or the queue and worker, of a run."""
    target = run.dispatched_to
    if target is None:
        return shown_node(node_of(run), names)
    queue = target.to if target.queue is None else f"{target.to}/{target.queue}"
    return queue if target.worker is None else f"{queue} {target.worker}"


def shown_node(node: str | None, names: Mapping[str, str]) -> str:
    """The name, else the end of the id; empty for no node."""
    return "" if node is None else names.get(node, f"…{node[-SHORT:]}")
