"""Conversion of rows: columns with JSON text, and the structs that users read.

Reading never raises for one bad row: values that cannot be decoded are left out, or shown as text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple, Protocol, TypeVar, cast

import msgspec

from evertick.model import (
    Attempt,
    Cause,
    Claimed,
    ClaimedMessage,
    Definition,
    Dispatched,
    DispatchedTo,
    DispatchTerms,
    Duty,
    Gap,
    LogLine,
    Message,
    MessageState,
    NewRun,
    Node,
    Occurrence,
    OccurrenceEdit,
    Pause,
    Phase,
    Reason,
    Run,
    Schedule,
    State,
    Tick,
    Verdict,
)
from evertick.model.limits import shown_key
from evertick.store.base import ClockTraces, DeclaredBy, DueSchedule, DutyHold, GapAhead, StoredSchedule
from evertick.text.surrogates import json_bytes
from evertick.when.moment import SECOND, from_us

__all__ = [
    "CLAIMED",
    "DATED",
    "FORMAT",
    "LOST_DELIVERY",
    "WAITING",
    "MistimedRows",
    "Row",
    "add_rows",
    "attempt_of",
    "claimed_from",
    "claimed_message_of",
    "claimed_of",
    "dispatch_terms_of",
    "due_of",
    "duty_hold_of",
    "duty_of",
    "gap_of",
    "is_self_contained",
    "json_text",
    "lines_of",
    "lines_text",
    "message_of",
    "node_of",
    "overrides_of",
    "phases_text",
    "read_each",
    "run_as_enqueued",
    "run_of",
    "schedule_of",
    "storable_text",
    "stored_of",
    "traces_of",
]

R = TypeVar("R")
T = TypeVar("T")


class Row(Protocol):
    """A row of any database, by column name."""

    def __getitem__(self, name: str, /) -> Any: ...


# The newest format that this code can read. For runs and messages the SQL part `readable` has the same number.
FORMAT = 1
NO_ARGS = b"{}"
# The columns of a claimed run.
CLAIMED = (
    "id",
    "task",
    "args",
    "fire_at",
    "due_at",
    "attempts",
    "losses",
    "schedule_id",
    "schedule_key",
    "cause",
    "queue",
    "priority",
    "labels",
    "traceparent",
)
# The error of a message whose owner died. It is unknown whether the message was delivered.
LOST_DELIVERY = "the sending node died"
# In these states the node and fence of the row are those of the claim that holds or ended the run.
_HELD = frozenset({State.RUNNING, State.DONE})

_definitions = msgspec.json.Decoder(Definition)
_pauses = msgspec.json.Decoder(Pause)
_occurrences = msgspec.json.Decoder(tuple[Occurrence, ...])
_declarations = msgspec.json.Decoder(DeclaredBy)
_labels = msgspec.json.Decoder(dict[str, str])
_phases = msgspec.json.Decoder(tuple[Phase, ...])
_dispatch_terms = msgspec.json.Decoder(DispatchTerms)
_names = msgspec.json.Decoder(tuple[str, ...])
_lines = msgspec.json.Decoder(list[tuple[int, str, str]])
_ticks = msgspec.json.Decoder(dict[str, tuple[int | None, int | None]])
_encoder = msgspec.json.Encoder()
# A dict lookup takes a fifth of the time of a call of the enum.
_CAUSES = {cause.value: cause for cause in Cause}


def json_text(value: object) -> str:
    return _encoder.encode(value).decode()


def storable_text(text: str | None) -> str | None:
    """Text that every database accepts: lone surrogates (undecodable output of a program) become question marks, and
    NUL characters, which PostgreSQL refuses, become U+FFFD."""
    if text is None:
        return None
    if "\x00" in text:
        text = text.replace("\x00", "\ufffd")
    return text if text.isascii() else text.encode(errors="replace").decode()


def phases_text(phases: Sequence[Phase] | None) -> str | None:
    """Phases as stored. Names and metadata are from the job and may contain anything."""
    if not phases:
        return None
    return json_bytes([msgspec.structs.replace(phase, name=storable_text(phase.name)) for phase in phases]).decode()


def lines_text(lines: Sequence[tuple[int, str, str]]) -> str:
    return json_text([(at, storable_text(level), storable_text(text)) for at, level, text in lines])


def read_each(rows: Iterable[R], read: Callable[[R], T]) -> tuple[list[T], list[tuple[R, str]]]:
    """The readable rows, and the others with their errors."""
    good: list[T] = []
    bad: list[tuple[R, str]] = []
    for row in rows:
        try:
            good.append(read(row))
        except (msgspec.MsgspecError, ValueError, TypeError, ArithmeticError) as error:
            bad.append((row, str(error)))
    return good, bad


def moment(us: int | None) -> datetime | None:
    return None if us is None else from_us(us)


def stored_of(row: Row) -> StoredSchedule | None:
    """None: this code cannot read the row."""
    try:
        definition = _definitions.decode(row["definition"])
        pause = None if row["pause"] is None else _pauses.decode(row["pause"])
        occurrences = () if row["occurrences"] is None else _occurrences.decode(row["occurrences"])
        declared = None if row["declared"] is None else _declarations.decode(row["declared"])
    except msgspec.MsgspecError:
        return None
    return StoredSchedule(
        id=row["id"],
        key=row["key"],
        version=row["version"],
        created_at=row["created_at"],
        definition=definition,
        pause=pause,
        occurrences=occurrences,
        declared=declared,
        fire_at=row["fire_at"],
        at=row["at"],
        fires=row["fires"],
        failures=row["failures"],
        error=row["error"],
        fingerprint=row["fingerprint"],
        live=row["live"],
        stamp=row["stamp"],
    )


def due_of(rows: Iterable[Sequence[Any]]) -> list[DueSchedule]:
    """From columns in the order of the struct. Unreadable rows are left out."""
    found: list[DueSchedule] = []
    for id_, key, version, created_at, definition, pause, occurrences, fire_at, at, fires, failed, live, stamp in rows:
        try:
            due = DueSchedule(
                id=id_,
                key=key,
                version=version,
                created_at=created_at,
                definition=definition,
                pause=None if pause is None else _pauses.decode(pause),
                occurrences=() if occurrences is None else _occurrences.decode(occurrences),
                fire_at=fire_at,
                at=at,
                fires=fires,
                failures=failed,
                live=live,
                stamp=stamp,
            )
        except msgspec.MsgspecError:
            continue
        found.append(due)
    return found


def schedule_of(app: str, stored: StoredSchedule, last: Row | None, counts: Iterable[Row]) -> Schedule:
    """With its newest run, and the number of ended runs by verdict."""
    definition, pause = stored.definition, stored.pause
    return Schedule(
        key=stored.key,
        app=app,
        task=definition.task,
        when=definition.when,
        args=definition.args,
        queue=definition.queue,
        priority=definition.priority,
        labels=definition.labels,
        catch_up=definition.catch_up,
        catch_up_limit=definition.catch_up_limit,
        grace_seconds=None if definition.grace is None else definition.grace / SECOND,
        overlap=definition.overlap,
        mode=definition.mode,
        version=stored.version,
        created_at=from_us(stored.created_at),
        next_fire_at=moment(stored.fire_at),
        next_due_at=moment(stored.at),
        is_paused=pause is not None,
        paused_at=None if pause is None else from_us(pause.at),
        pause_note="" if pause is None else pause.note,
        paused_until=None if pause is None else moment(pause.until),
        occurrences=tuple(_edit_of(occurrence) for occurrence in stored.occurrences if occurrence.kind != "done"),
        unique=definition.unique,
        blackout=definition.blackout,
        blackout_fate=definition.blackout_fate,
        pause_after=definition.pause_after,
        is_declared=stored.declared is not None,
        declared_in=None if stored.declared is None else stored.declared.source,
        overrides=overrides_of(stored),
        fires=stored.fires,
        last_run_id=None if last is None else last["id"],
        last_fire_at=None if last is None else from_us(last["fire_at"]),
        last_state=None if last is None else State(last["state"]),
        last_verdict=None if last is None or last["verdict"] is None else Verdict(last["verdict"]),
        last_reason=None if last is None else last["reason"],
        counts={row["verdict"]: row["count"] for row in counts},
        error=stored.error,
    )


def _edit_of(occurrence: Occurrence) -> OccurrenceEdit:
    return OccurrenceEdit(
        fire_at=from_us(occurrence.fire_at), kind=occurrence.kind, to=moment(occurrence.to), note=occurrence.note
    )


def overrides_of(stored: StoredSchedule) -> tuple[str, ...]:
    """The options of a declared schedule that differ from its declaration."""
    if stored.declared is None:
        return ()
    own, declared = stored.definition, stored.declared.definition
    names = [field.name for field in msgspec.structs.fields(Definition)]
    return tuple(name for name in names if getattr(own, name) != getattr(declared, name))


def claimed_of(row: Row, fence: int, now: int) -> Claimed:
    return claimed_from(fence, now, *[row[name] for name in CLAIMED])


def claimed_from(
    fence: int,
    now: int,
    id_: str,
    task: str,
    args: str | None,
    fire_at: int,
    due_at: int,
    attempts: int,
    losses: int,
    schedule_id: int | None,
    schedule_key: str | None,
    cause: str,
    queue: str,
    priority: int,
    labels: str | None,
    traceparent: str | None,
) -> Claimed:
    """A claim from the columns of `CLAIMED`, in their order."""
    return Claimed(
        id=id_,
        fence=fence,
        task=task,
        args=NO_ARGS if args is None else args.encode(),
        fire_at=fire_at,
        due_at=due_at,
        claimed_at=now,
        attempts=attempts,
        losses=losses,
        schedule_id=schedule_id,
        schedule_key=schedule_key,
        cause=_CAUSES.get(cause) or Cause(cause),
        queue=queue,
        priority=priority,
        labels={} if labels is None else _labels.decode(labels),
        traceparent=traceparent,
    )


def run_of(row: Row) -> Run:
    args = row["args"] if row["args"] is not None else row["schedule_args"]
    state = State(row["state"])
    # A run that returned to waiting keeps its last claim in the row, but no node holds it.
    is_held = state in _HELD
    # Blocked on a run before it, or by a limit.
    limit, key = (None, None) if state is not State.BLOCKED or row["limit_key"] is None else shown_key(row["limit_key"])
    return Run(
        id=row["id"],
        app=row["app"],
        schedule_key=row["schedule_key"],
        task=row["task"],
        args={} if args is None else shown(args),
        fire_at=from_us(row["fire_at"]),
        due_at=from_us(row["due_at"]),
        state=state,
        verdict=None if row["verdict"] is None else Verdict(row["verdict"]),
        reason=row["parked_for"] or limit or _newer(row, state) or row["reason"],
        cause=_shown_cause(row["cause"]),
        attempts=row["attempts"],
        losses=row["losses"],
        queue=row["queue"],
        priority=row["priority"],
        labels=_shown_texts(row["labels"]),
        created_at=from_us(row["created_at"]),
        started_at=moment(row["taken_at"] if state is State.DISPATCHED else row["started_at"]),
        finished_at=moment(row["finished_at"]),
        expires_at=None if row["expires"] is None else moment(row["due_at"] + row["expires"]),
        node=row["node"] if is_held else None,
        fence=row["fence"] if is_held or state is State.DISPATCHED else None,
        result=None if row["result"] is None else shown(row["result"]),
        error=row["error"],
        progress=row["progress"],
        progress_text=row["progress_text"],
        phases=_shown_phases(row["phases"]),
        blocked_on=row["blocked_on"] or key,
        caused_by=row["caused_by"],
        is_cancel_requested=bool(row["is_cancel_requested"]),
        dispatched=_dispatched_of(row) if state is State.DISPATCHED else None,
        dispatched_to=None if row["dispatch"] is None else _dispatched_to(row["dispatch"]),
    )


def dispatch_terms_of(text: str | None) -> DispatchTerms:
    """The terms of a dispatch. Unreadable ones count as mode finish without timeouts."""
    try:
        return _dispatch_terms.decode(text or "")
    except msgspec.MsgspecError:
        return DispatchTerms(to="")


def _dispatched_to(text: str) -> DispatchedTo:
    dispatch = dispatch_terms_of(text)
    return DispatchedTo(to=dispatch.to, queue=dispatch.queue, worker=dispatch.worker)


def _dispatched_of(row: Row) -> Dispatched:
    dispatch = dispatch_terms_of(row["dispatch"])
    return Dispatched(
        to=dispatch.to,
        queue=dispatch.queue,
        served_by=dispatch.served_by,
        mode=dispatch.mode,
        at=from_us(row["dispatched_at"]),
        pushed_at=moment(row["pushed_at"]),
        taken_at=moment(row["taken_at"]),
        until=moment(row["deadline"]),
    )


def gap_of(row: Row) -> Gap:
    return Gap(
        schedule_key=row["schedule_key"],
        first_at=from_us(row["first_at"]),
        last_at=from_us(row["last_at"]),
        count=row["count"],
        is_exact=bool(row["is_exact"]),
        verdict=Verdict(row["verdict"]),
        reason=row["reason"],
        recorded_at=from_us(row["recorded_at"]),
    )


def attempt_of(row: Row) -> Attempt:
    return Attempt(
        number=row["number"],
        fence=row["fence"],
        node=row["node"],
        started_at=moment(row["started_at"]),
        finished_at=from_us(row["finished_at"]),
        error=row["error"],
        reason=row["reason"],
        phases=_shown_phases(row["phases"]),
    )


def node_of(row: Row) -> Node:
    return Node(
        id=row["id"],
        name=row["name"],
        app=row["app"],
        version=row["version"],
        started_at=from_us(row["started_at"]),
        beat_at=from_us(row["beat_at"]),
        lease_until=from_us(row["lease_until"]),
        died_at=moment(row["died_at"]),
        queues=_names.decode(row["queues"]),
        tasks=_names.decode(row["tasks"]),
        declares=_labels.decode(row["declares"]),
        channels=_names.decode(row["channels"]),
        leaves=_labels.decode(row["leaves"]),
        ticks={} if row["ticks"] is None else _ticks_of(row["ticks"], row["beat_at"]),
        running=row["running"],
    )


def message_of(row: Row, *, is_new: bool = True) -> Message:
    is_held = row["claimed_at"] is not None
    return Message(
        id=str(row["id"]),
        app=row["app"],
        channel=row["channel"],
        key=row["key"],
        body=shown(row["body"]),
        headers=_shown_texts(row["headers"]),
        state=MessageState(row["state"]),
        attempts=row["attempts"],
        due_at=from_us(row["due_at"]),
        created_at=from_us(row["created_at"]),
        settled_at=moment(row["settled_at"]),
        node=row["node"] if is_held else None,
        error=row["error"],
        caused_by=row["caused_by"],
        is_new=is_new,
    )


def claimed_message_of(row: Row) -> ClaimedMessage:
    return ClaimedMessage(
        id=str(row["id"]),
        fence=row["fence"],
        channel=row["channel"],
        key=row["key"],
        body=row["body"].encode(),
        headers={} if row["headers"] is None else _labels.decode(row["headers"]),
        attempts=row["attempts"],
        due_at=row["due_at"],
        created_at=row["created_at"],
        caused_by=row["caused_by"],
        error=row["error"],
        dispatches=row["dispatches"],
    )


def duty_of(row: Row) -> Duty:
    return Duty(
        name=row["name"],
        node=row["node"],
        node_name=row["node_name"],
        term=row["term"],
        since=from_us(row["since"]),
        ticked_at=moment(row["ticked_at"]),
        next_at=moment(row["next_at"]),
        error=row["error"],
    )


def duty_hold_of(row: Row) -> DutyHold:
    return DutyHold(name=row["name"], node=row["node"], term=row["term"], next_at=row["next_at"], error=row["error"])


def _ticks_of(text: str, beat_at: int) -> dict[str, Tick]:
    return {
        name: Tick(
            last_at=None if ago is None else from_us(beat_at - ago),
            next_at=None if ahead is None else from_us(beat_at + ahead),
        )
        for name, (ago, ahead) in _ticks.decode(text).items()
    }


def lines_of(chunks: Iterable[Row], after: int, limit: int) -> list[LogLine]:
    """Log lines of a run without the first `after`, from its chunks in the order of attempts."""
    found: list[LogLine] = []
    passed = 0
    for fence, first, chunk in _fresh_chunks(chunks):
        if passed + chunk["count"] - first > after and len(found) < limit:
            lines = _lines.decode(chunk["lines"])[first + max(0, after - passed) :]
            found += [LogLine(at=from_us(at), level=level, text=text, fence=fence) for at, level, text in lines]
        passed += chunk["count"] - first
        if len(found) >= limit:
            break
    return found[:limit]


def _fresh_chunks(chunks: Iterable[Row]) -> Iterator[tuple[int, int, Row]]:
    """Chunks, each with the number of its first lines that an earlier chunk of the attempt had already."""
    fence, expected = -1, 0
    for chunk in chunks:
        if chunk["fence"] != fence:
            fence, expected = chunk["fence"], 0
        known = min(max(0, expected - chunk["seq"]), chunk["count"])
        expected = max(expected, chunk["seq"] + chunk["count"])
        if known < chunk["count"]:
            yield fence, known, chunk


def shown(text: str) -> Any:
    try:
        return msgspec.json.decode(text)
    except msgspec.MsgspecError:
        return text


def _newer(row: Row, state: State) -> Reason | None:
    return Reason.NEWER_FORMAT if row["format"] > FORMAT and state is State.WAITING else None


def _shown_cause(text: str) -> Cause:
    try:
        return Cause(text)
    except ValueError:
        # A cause of a newer release: displayed, never decided on.
        return cast("Cause", text)


def _shown_texts(text: str | None) -> dict[str, str]:
    try:
        return {} if text is None else _labels.decode(text)
    except msgspec.MsgspecError:
        return {"unreadable": text or ""}


def _shown_phases(text: str | None) -> tuple[Phase, ...]:
    try:
        return () if text is None else _phases.decode(text)
    except msgspec.MsgspecError:
        return ()


# --- a run just enqueued, without reading it back ---------------------------------------------------------------------


def is_self_contained(run: NewRun) -> bool:
    """Whether its row has no value from elsewhere: key and arguments of a schedule, the run it is blocked on."""
    return run.schedule_id is None and run.state is State.WAITING and not run.is_claimed


def run_as_enqueued(app: str, now: int, run: NewRun) -> Run:
    fire_at = run.fire_at if run.fire_at is not None else now + run.delay
    due_at = run.due_at if run.due_at is not None else fire_at
    shown_fire_at = from_us(fire_at)
    shown_due_at = shown_fire_at if due_at == fire_at else from_us(due_at)
    return Run(
        id=run.id,
        app=app,
        schedule_key=None,
        task=run.task,
        args={} if run.args is None else shown(run.args.decode()),
        fire_at=shown_fire_at,
        due_at=shown_due_at,
        state=run.state,
        verdict=None,
        reason=Reason.NEWER_FORMAT if run.format > FORMAT else storable_text(run.reason),
        cause=run.cause,
        attempts=0,
        losses=0,
        queue=run.queue,
        priority=run.priority,
        labels=dict(run.labels),
        created_at=shown_fire_at if now == fire_at else from_us(now),
        started_at=None,
        finished_at=None,
        expires_at=None if run.expires is None else from_us(due_at + run.expires),
        node=None,
        fence=None,
        result=None,
        error=None,
        caused_by=run.caused_by,
    )


# --- rows written while the clock was wrong, by kind, in the order of their repair ------------------------------------


# Rows that wait for a wrong time. Keys first: their period counts from the creation of their run.
WAITING = ("keys", "messages", "runs")
# Rows whose times prove when the clock was wrong; the waiting ones are found by them.
DATED = ("history", "attempts", "nodes", "duties", "events", "schedules")
# The id column of each kind.
_NAMES = {"events": "seq", "duties": "name", "keys": "key"}


class MistimedRows(NamedTuple):
    """By kind, the ids of rows to repair. `times`: when they say that they were written."""

    names: dict[str, list[Any]]
    times: list[int]
    gaps: list[GapAhead]


def add_rows(found: MistimedRows, kind: str, rows: Sequence[Mapping[str, Any]] | Sequence[Any]) -> None:
    found.times.extend(row["at"] for row in rows if row["at"] is not None)
    if kind == "gaps":
        found.gaps.extend(_gap(row) for row in rows)
    elif rows:
        name = _NAMES.get(kind, "id")
        found.names[kind] = [(row["run"], row["fence"]) if kind == "attempts" else row[name] for row in rows]


def _gap(row: Any) -> GapAhead:
    return GapAhead(
        id=row["id"],
        schedule_id=row["schedule_id"],
        key=row["schedule_key"],
        first_at=row["first_at"],
        last_at=row["last_at"],
    )


def traces_of(found: MistimedRows, now: int) -> ClockTraces:
    rows = {kind: len(found.names[kind]) for kind in (*WAITING, *DATED) if kind in found.names}
    return ClockTraces(
        now=now,
        first_at=min(found.times, default=None),
        last_at=max(found.times, default=None),
        rows={**rows, "gaps": len(found.gaps)} if found.gaps else rows,
        gaps=tuple(found.gaps),
    )
