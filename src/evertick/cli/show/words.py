"""Moments, durations, nodes and rows of the ledger as people read them in a listing. Only `now` reads the clock.

Rows keep the ids of nodes: a name may be that of many starts, and two may share it. Nodes are known until they are
pruned, a day after their end; then the end of the id is shown in place of the name.
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
# Stores count up to here for people.
_COUNT_MOST = 10_000
_SECOND, _OFFSET = len("2026-01-31 09:00:00"), len("+01:00")
# Why a run is lost whose end is unknown: its end is when it was given up, a lease or more later.
_GIVEN_UP = (Reason.NODE_DIED, Reason.NODE_GONE, Reason.NO_PROGRESS)
_zone: ContextVar[tzinfo | None] = ContextVar("zone", default=None)
# At this many of the larger unit, or more, the smaller one is noise.
_FEW = 10


def now() -> datetime:
    return from_us(system_clock.now_us())


def counted(count: int) -> str:
    """How many there are, as far as the store has counted them."""
    return f"{count}" if count < _COUNT_MOST else f"{count}+"


@contextmanager
def times_in(zone: tzinfo | None) -> Iterator[None]:
    """Show all times by the clock of this zone; None: by that of the machine. A schedule's own zone, so
    that `every day at 09:00` is found as 09:00."""
    before = _zone.set(zone)
    try:
        yield
    finally:
        _zone.reset(before)


@contextmanager
def times_of(zone: tzinfo | None) -> Iterator[tzinfo | None]:
    """Like `times_in`, for one schedule among many: a zone that holds for all of them, by --tz, is stronger. Gives the
    zone in which times are shown then; None: that of the machine."""
    holds = _zone.get() or zone
    with times_in(holds):
        yield holds


def zone_name(zone: tzinfo | None) -> str:
    return "-" if zone is None else str(zone)


def stamp(moment: datetime | None, *, is_local: bool = True, is_exact: bool = False) -> str:
    """The moment with its offset, by the machine's zone (or `times_in`) or, not `is_local`, by the one that it carries.

    Exact: with its milliseconds, where it has any. A fire may be at one of them; a beat is not looked for by it.
    """
    if moment is None:
        return "-"
    shown = moment.astimezone(_zone.get()) if is_local else moment
    offset = f"{shown:%z}"
    offset = "Z" if offset == "+0000" else f"{offset[:3]}:{offset[3:5]}"
    part = f".{shown.microsecond // 1000:03}" if is_exact and shown.microsecond >= 1000 else ""
    return f"{shown:%Y-%m-%d %H:%M:%S}{part}{offset}"


def brief(stamped: str, *, with_offset: bool = True) -> str:
    """The text of `stamp` without parts of seconds: for a narrow terminal."""
    return stamped[:_SECOND] + (offset_of(stamped) if with_offset else "")


def offset_of(stamped: str) -> str:
    """The offset of what `stamp` says: "+01:00", or "Z"."""
    return "Z" if stamped.endswith("Z") else stamped[-_OFFSET:]


def distance(moment: datetime | None, since: datetime, *, is_short: bool = False) -> str:
    """How far a moment is: "in 5 min 3 s", "3 s ago", "now". Short: in its largest unit alone."""
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
    """How far away is what is to come: "in 5 min", or "3 s overdue"."""
    return distance(moment, since, is_short=is_short).replace("ago", "overdue")


def took(run: Run) -> str:
    """How long the last attempt took; of one that was lost, how long at most."""
    if run.started_at is None or run.finished_at is None:
        return "-"
    most = "up to " if run.verdict is Verdict.LOST and run.reason in _GIVEN_UP else ""
    return most + span(run.finished_at - run.started_at)


def tries(run: Run) -> str:
    """How often it was tried: what was judged, what was lost, and the try that is under way.

    What a queue has is tried when a worker has taken it.
    """
    is_at_work = run.state is State.RUNNING or (run.dispatched is not None and run.dispatched.taken_at is not None)
    return str(run.attempts + run.losses + is_at_work)


def outcome(row: Run | Gap) -> str:
    """The verdict, or the state of what has none yet."""
    if isinstance(row, Gap):
        return row.verdict.value
    return row.state.value if row.verdict is None else row.verdict.value


def called(run: Run) -> str:
    """The key of its schedule. A task that was enqueued by hand has none: it is shown as the call that it is."""
    return f"{run.task}()" if run.schedule_key is None else run.schedule_key


def remark(row: Run | Gap) -> str:
    """Details beside the verdict: the cause if it is no fire, the error, the delay, the result."""
    if isinstance(row, Gap):
        return _gap_remark(row)
    # An enqueued run has no schedule, and is shown as a call: to say so again would only take room.
    cause = "" if row.cause in (Cause.FIRE, Cause.EVERY_NODE, Cause.ENQUEUE) else f"by {row.cause.value}"
    return "; ".join(part for part in (cause, losses_words(row), _run_remark(row)) if part)


def losses_words(run: Run) -> str:
    """How often its node, or its worker elsewhere, was lost, and the consequence; nothing for most runs."""
    if not run.losses:
        return ""
    often = {1: "once", 2: "twice"}.get(run.losses, f"{run.losses} times")
    is_over = run.verdict in (Verdict.LOST, Verdict.CANCELLED)
    return f"{owner_words(run)} was lost {often}" + ("" if is_over else ", run again")


def _run_remark(run: Run) -> str:
    if run.state is State.PARKED:
        return f"{error_summary(run.error) or 'no live node knows its task'}; to give it up: evertick cancel {run.id}"
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
    """In whose hands a run is."""
    queue = dispatched.to if dispatched.queue is None else f"{dispatched.to} queue {dispatched.queue}"
    if dispatched.pushed_at is None:
        return f"dispatched to {queue} since {stamp(dispatched.at)}, not sent yet"
    if dispatched.taken_at is None:
        return f"dispatched to {queue} since {stamp(dispatched.at)}, not taken yet"
    return f"with a worker of {queue} since {stamp(dispatched.taken_at)}"


def dispatched_to_words(dispatched_to: DispatchedTo) -> str:
    """The queue and the worker that have or had a dispatched run: "nats queue reports, worker mill:4711"."""
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


def decision_words(decided: OccurrenceEdit) -> str:
    """A decision about one moment."""
    at, note = stamp(decided.fire_at, is_exact=True), f": {decided.note}" if decided.note else ""
    moved = "" if decided.to is None else f" to {stamp(decided.to, is_exact=True)}"
    verb = {"skip": "is skipped", "move": "moves"}.get(decided.kind, "has run early")
    return f"{at} {verb}{moved}{note}"


async def names_for(scheduler: Scheduler, rows: Iterable[Run | Gap]) -> dict[str, str]:
    """Names for the nodes of these rows; asked for only if one has a node."""
    is_any = any(isinstance(row, Run) and node_of(row) is not None for row in rows)
    return known_names(await scheduler.nodes()) if is_any else {}


def node_of(run: Run) -> str | None:
    """The node that has it or had it last, or that it is for."""
    if run.node is None and is_own_queue(run.queue):
        return node_of_queue(run.queue)
    return run.node


def node_words(node: str | None, names: Mapping[str, str]) -> str:
    """The name and the whole id, for a page about one node."""
    if node is None:
        return ""
    return f"{names[node]}, id {node}" if node in names else node


def shown_place(run: Run, names: Mapping[str, str]) -> str:
    """Where it is or was done, for a listing: on a node, or by whom it was dispatched to."""
    to = run.dispatched_to
    if to is None:
        return shown_node(node_of(run), names)
    queue = to.to if to.queue is None else f"{to.to}/{to.queue}"
    return queue if to.worker is None else f"{queue} {to.worker}"


def shown_node(node: str | None, names: Mapping[str, str]) -> str:
    """The name, else the end of the id; nothing for no node."""
    return "" if node is None else names.get(node, f"…{node[-SHORT:]}")
