"""Every nominal moment has exactly one run or is in exactly one gap, and every gap has a correct reason.

The history of a schedule is a list of spans, one per version: a rule, paused or not, with start and end. The moments of
each span are computed from its rule alone and compared with the runs and gaps of the ledger. A moment with an override
has a row of its own. Moments that a blackout drops are a gap of their own.

Every schedule is removed, at the latest at the end of the story. So every moment before that must be in a row.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any, NamedTuple

import msgspec

from evertick.model import Definition, Occurrence
from evertick.store.base import Change
from evertick.when import Every, Once, When, parse_when
from simulation.evidence import SECOND, Evidence
from simulation.replay import Call, Ledger, Row
from simulation.story import FREEZE, REST

__all__ = ["check_moments"]

# An edit or a pause this soon after a moment still runs it.
_FRESH = 60 * SECOND


class Span(msgspec.Struct, kw_only=True):
    """One version of a schedule. Its moments are after `since`, up to and including `until` (None: still current)."""

    definition: Definition
    rule: When
    since: int
    until: int | None = None
    is_paused: bool = False
    paused_until: int | None = None


class RecordedGap(NamedTuple):
    at: int
    row: Row
    span: Span
    # The definition at that time: an edit may pass held moments to the next definition.
    definition: Definition
    intent: str
    # The schedule's live runs, before the call that recorded it.
    live: list[Row]
    # The kind of the user's change that recorded it, if any.
    kind: str


class ScheduleHistory(msgspec.Struct, kw_only=True):
    """The spans, runs and gaps of one schedule."""

    id: int
    key: str
    spans: list[Span]
    # Runs of its moments, with the time at which they were recorded.
    fires: dict[int, tuple[int, Row]]
    gaps: list[RecordedGap]
    # Moments of an every-node schedule that a node skipped, with the time of the newest such row.
    skipped_by_node: dict[int, int] = msgspec.field(default_factory=dict)
    # Moments without a node, with the time of that row.
    without_node: dict[int, int] = msgspec.field(default_factory=dict)
    cursor: int | None = None
    # The current overrides, and all moments that ever had one.
    occurrences: tuple[Occurrence, ...] = ()
    overridden: set[int]

    @property
    def has_no_overrides(self) -> bool:
        return not self.overridden and not any(span.definition.blackout for span in self.spans)


def check_moments(evidence: Evidence) -> Iterator[str]:
    checker = _Checker(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in checker.step(call))
    for history in checker.histories.values():
        yield from (f"{history.key} (schedule {history.id}): {found}" for found in _check_history(history))


class _Checker:
    """Builds the histories of all schedules, and checks each call."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self.histories: dict[int, ScheduleHistory] = {}
        # The store's time as each user last read it: their change applies from there.
        self._read: dict[str, int] = {}
        # The overlap under which each run was recorded.
        self._overlap: dict[str, str] = {}
        # By blocked run, the live runs that it does not wait for: an earlier version with overlap "allow" may have left
        # several, and a blocked run waits for one of them.
        self._not_awaited: dict[str, set[str]] = {}
        self._healed = next((d.at for d in evidence.actions if d.who == "story" and d.what == "healed"), 0)
        self._settled = next((d.at for d in evidence.actions if d.who == "story" and d.what == "settled"), None)

    def step(self, call: Call) -> Iterator[str]:
        if call.intent == "now":
            self._read[call.who] = call.answer
            return
        touched = {self._schedule_of(change.table, change.row) for change in call.changes}
        before = {schedule: self._ledger.live_of(schedule) for schedule in touched if schedule is not None}
        changed = self._accepted_changes(call)
        if self._settled is not None and call.at > self._settled:
            for schedule in changed:
                yield from _check_paused_cursor(self.histories[schedule])
        self._end_pauses(call, changed)
        for change in call.changes:
            if change.table == "schedules" and change.how == "insert":
                self._add_schedule(change.row)
            if change.table == "schedules" and change.how == "update":
                self._note_overrides(change.row)
            if change.table == "runs" and change.how == "insert" and change.row["schedule_id"] is not None:
                yield from self._check_new_run(call, change.row, before[change.row["schedule_id"]], changed)
            if change.table == "runs" and change.how == "update" and change.row["cause"] == "trigger":
                self._undo_early_run(change.row)
            if change.table == "runs" and change.row["state"] == "running":
                yield from self._check_no_parallel_run(change.row)
            if change.table == "gaps":
                self._new_gap(call, change.row, before[change.row["schedule_id"]], changed)
            if change.table == "due" and change.how != "delete":
                self.histories[change.row["schedule_id"]].cursor = change.row["fire_at"]
            self._ledger.apply(change)
        yield from self._start_new_spans(call, changed)
        for schedule in before:
            yield from self._check_after_end_cursor(schedule, call)

    @staticmethod
    def _schedule_of(table: str, row: Row) -> int | None:
        return {"schedules": row.get("id"), "nodes": None}.get(table, row.get("schedule_id"))

    def _add_schedule(self, row: Row) -> None:
        definition = msgspec.json.decode(row["definition"], type=Definition)
        rule = _rule(definition, row)
        # Only a one-shot can fire at its creation; an interval begins after it.
        since = row["created_at"] - 1 if isinstance(rule, Once) else row["created_at"]
        span = Span(definition=definition, rule=rule, since=since)
        history = ScheduleHistory(id=row["id"], key=row["key"], spans=[span], fires={}, gaps=[], overridden=set())
        self.histories[row["id"]] = history

    def _note_overrides(self, row: Row) -> None:
        history = self.histories[row["id"]]
        history.occurrences = msgspec.json.decode(row["occurrences"] or "[]", type=tuple[Occurrence, ...])
        history.overridden |= {each.fire_at for each in history.occurrences}

    # --- new rows

    def _check_new_run(self, call: Call, row: Row, live: list[Row], changed: dict[int, Change]) -> Iterator[str]:
        history = self.histories[row["schedule_id"]]
        span = history.spans[-1]
        # For every-node schedules, check_every_node checks the overlap.
        is_for_all = span.definition.mode == "every-node"
        overlap = self._overlap[row["id"]] = "allow" if is_for_all else span.definition.overlap
        name = f"run {row['id']} for {row['fire_at']}"
        if row["cause"] == "every-node" and row["fire_at"] not in history.fires:
            history.fires[row["fire_at"]] = (call.at, row)
            yield from self._check_fire(call, history, row, changed.get(history.id))
        if row["cause"] == "fire":
            if call.intent == "record_fires" and call.who.startswith("people"):
                history.overridden.add(row["fire_at"])  # an early run
            history.fires[row["fire_at"]] = (call.at, row)
            yield from self._check_fire(call, history, row, changed.get(history.id))
        if overlap in ("skip", "queue"):
            live = yield from self._not_replaced(history, row, live, is_edit=history.id in changed)
        if overlap == "skip" and live:
            yield f"{name}: {history.key} has a live run, and overlap is skip"
        if overlap == "queue" and any(map(_is_queued, live)):
            yield f"{name}: {history.key} has a queued run already"
        if row["state"] == "blocked" and any(self._overlap.get(each["id"]) == "allow" for each in live):
            self._not_awaited[row["id"]] = {each["id"] for each in live if each["id"] != row["blocked_on"]}
        # Runs that this call ended (replaced) do not count.
        if overlap != "allow" and row["state"] != "blocked":
            still_live = [each for each in self._ledger.live_of(history.id) if each["id"] != row["id"]]
            if any(each["state"] != "done" for each in still_live):
                yield f"{name} of {history.key} can start during a live run, and overlap is {overlap}"

    def _not_replaced(
        self, history: ScheduleHistory, row: Row, live: list[Row], *, is_edit: bool
    ) -> Generator[str, None, list[Row]]:
        """The live runs that the same call did not replace. Overlap "skip" and "queue" replace stuck runs only.

        An edit settles the old definition at once, so it cannot wait for a parked run.
        """
        replaced = [each for each in live if each["id"] in self._ledger.done]
        name = f"run {row['id']} for {row['fire_at']}"
        if replaced and not _is_stuck(live):
            yield f"{name}: replaced a live run of {history.key} that is neither parked nor blocked on a parked one"
        is_by_rule = row["cause"] == "fire" and not is_edit and row["fire_at"] not in history.overridden
        if replaced and is_by_rule and _waits_for_parked(history):
            yield f"{name}: replaced a parked run of {history.key}, and catch-up is all"
        return [each for each in live if each not in replaced]

    def _undo_early_run(self, row: Row) -> None:
        """An undone early run does not count for its moment any more, which then gets another run."""
        before = self._ledger.live.get(row["id"])
        if before is not None and before["cause"] == "fire":
            self.histories[row["schedule_id"]].fires.pop(row["fire_at"], None)

    def _check_no_parallel_run(self, row: Row) -> Iterator[str]:
        """With every overlap but "allow" the runs of a schedule never run in parallel."""
        before = self._ledger.live.get(row["id"])
        if self._overlap.get(row["id"], "allow") == "allow" or (before is not None and before["state"] == "running"):
            return
        for other in self._ledger.live_of(row["schedule_id"]):
            is_running = other["id"] != row["id"] and other["state"] in ("running", "dispatched")
            is_awaited = other["id"] not in self._not_awaited.get(row["id"], ())
            if is_running and is_awaited and self._overlap[other["id"]] != "allow":
                yield f"runs {row['id']} and {other['id']} of one schedule run at the same time"

    def _is_avoidably_late(self, call: Call, span: Span, due_at: int) -> bool:
        """Whether a moment was recorded late although an undisturbed node could have recorded it."""
        evidence = self._evidence
        if (
            call.at - due_at <= evidence.poll + 3 * SECOND
            or span.definition.catch_up == "all"
            or span.definition.blackout is not None
            or not evidence.has_few_faults
        ):
            return False
        since = max(due_at, span.since)
        return evidence.disturbances.was_store_available(since - 10 * SECOND, call.at) and any(
            evidence.disturbances.was_undisturbed(machine, since - 10 * SECOND, call.at)
            for machine in evidence.disturbances.up_since
        )

    def _check_fire(self, call: Call, history: ScheduleHistory, row: Row, change: Change | None) -> Iterator[str]:
        span, name = history.spans[-1], f"run {row['id']} of {history.key} for {row['fire_at']}"
        if span.is_paused:
            yield f"{name} was recorded during a pause"
        is_overridden = row["fire_at"] in history.overridden
        if any(each.is_paused and _is_in(each, row["fire_at"]) for each in history.spans) and not is_overridden:
            yield f"{name} lies in a pause"
        # A change within the jitter of a moment records a run that waits for the rest of it.
        if (call.at < row["fire_at"] and not is_overridden) or (change is None and call.at < row["due_at"]):
            yield f"{name} was recorded before it was due"
        # A plan from before the blackout may be recorded a little later.
        planned_at = call.at - 5 * SECOND
        is_closed = _is_closed(span, call.at) and _is_closed(span, planned_at) and self._evidence.has_few_faults
        if is_closed and not is_overridden and planned_at > span.since:
            yield f"{name} was recorded in the blackout"
        if change is None and self._is_avoidably_late(call, span, row["due_at"]):
            yield f"{name} was recorded {call.at - row['due_at']} us late without a disturbance"
        if change is not None:
            cut = self._read[call.who]
            if change.kind in ("remove", "add") or (change.kind == "resume" and span.since > row["fire_at"]):
                yield f"{name} was recorded by a {change.kind}, which fires nothing"
            if (row["fire_at"] > cut and not is_overridden) or row["due_at"] < cut - _FRESH:
                yield f"{name} was recorded by a {change.kind} at {cut}"

    def _new_gap(self, call: Call, row: Row, live: list[Row], changed: dict[int, Change]) -> None:
        history = self.histories[row["schedule_id"]]
        if row["reason"].startswith("overlap on "):
            history.skipped_by_node[row["first_at"]] = call.at
            return
        change = changed.get(history.id)
        kind = "" if change is None else change.kind
        span = next((each for each in reversed(history.spans) if _is_in(each, row["first_at"])), history.spans[-1])
        # An override outlives an edit: its moment is recorded by the definition at that time.
        is_overridden = row["count"] == 1 and row["first_at"] in history.overridden
        definition = (history.spans[-1] if is_overridden else span).definition
        history.gaps.append(RecordedGap(call.at, row, span, definition, call.intent, live, kind))
        if row["reason"] == "no_node":
            history.without_node[row["last_at"]] = call.at

    # --- new versions

    @staticmethod
    def _accepted_changes(call: Call) -> dict[int, Change]:
        if call.intent != "change_schedules" or call.answer is None:
            return {}
        return {
            change.settle.schedule_id: change
            for change, is_taken in zip(call.args[1], call.answer, strict=True)
            if is_taken and change.settle is not None
        }

    def _start_new_spans(self, call: Call, changed: dict[int, Change]) -> Iterator[str]:
        for schedule, change in changed.items():
            history = self.histories[schedule]
            cut = self._read[call.who]
            yield from self._check_late_gaps(call, history, cut)
            if _keeps_held_moments(history, cut, change):
                # The span continues with the new definition.
                history.spans[-1].definition = change.definition or history.spans[-1].definition
                continue
            if change.kind == "resume" and not history.spans[-1].is_paused:
                # The pause had ended automatically: later moments belong to the span after it.
                continue
            self._next_span(history, cut, change)
            if history.cursor is not None and history.cursor <= cut and change.kind != "remove":
                yield f"{change.kind} of {history.key} at {cut} left the cursor at {history.cursor}"

    def _end_pauses(self, call: Call, changed: dict[int, Change]) -> None:
        """A pause ends at its `until`, whether a tick or a user's change notices it."""
        noticed = {advance.schedule_id: call.at for advance in _advances(call) if advance.ends_pause}
        noticed |= dict.fromkeys(changed, self._read.get(call.who, 0))
        for schedule, at in noticed.items():
            history = self.histories[schedule]
            last = history.spans[-1]
            if last.is_paused and last.paused_until is not None and last.paused_until <= at:
                # An edit may keep an expired pause until the next tick.
                last.until = max(last.since, last.paused_until - 1)
                history.spans.append(Span(definition=last.definition, rule=last.rule, since=last.until))

    def _next_span(self, history: ScheduleHistory, cut: int, change: Change) -> None:
        last = history.spans[-1]
        last.until = cut
        if change.kind == "remove":
            return
        definition = change.definition or last.definition
        pause = change.pause if change.kind in ("pause", "edit") else None
        rule = last.rule
        if change.definition is not None:
            rule = _rule(
                definition, {"key": history.key, "created_at": self._ledger.schedules[history.id]["created_at"]}
            )
        history.spans.append(
            Span(
                definition=definition,
                rule=rule,
                since=cut,
                is_paused=pause is not None,
                paused_until=None if pause is None else pause.until,
            )
        )

    def _check_late_gaps(self, call: Call, history: ScheduleHistory, cut: int) -> Iterator[str]:
        """Long after the faults have ended, a pause settles only the last moments."""
        span, evidence = history.spans[-1], self._evidence
        is_quiet = cut > self._healed + evidence.lease + 2 * evidence.beat + 2 * evidence.poll
        if not self._healed or not is_quiet or span.is_paused or span.definition.catch_up == "all":
            return
        if not history.has_no_overrides:
            return
        for change in call.changes:
            if change.table != "gaps" or change.row["schedule_id"] != history.id:
                continue
            late = cut - change.row["first_at"] - span.rule.bounds.jitter - evidence.poll - 2 * SECOND
            if late > 0 and max(self._healed, span.since) < change.row["first_at"]:
                yield f"{history.key}: the moment {change.row['first_at']} was recorded {late} us late"

    def _check_after_end_cursor(self, schedule: int, call: Call) -> Iterator[str]:
        due, history = self._ledger.due.get(schedule), self.histories.get(schedule)
        if due is None or history is None or due["after_end"] is None or history.spans[-1].is_paused:
            return
        live = self._ledger.live_of(schedule)
        if live:
            return
        if due["fire_at"] is None:
            yield f"{history.key} is after-end, has no live run, and has no next moment"
        elif call.intent in ("finish", "apply_reports") and due["fire_at"] != call.at + due["after_end"]:
            yield f"{history.key}: its run ended at {call.at}, and its next moment is {due['fire_at']}"


def _advances(call: Call) -> list[Any]:
    if call.intent != "record_fires" or call.answer is None:
        return []
    return [advance for advance, is_taken in zip(call.args[2], call.answer.taken, strict=True) if is_taken]


def _rule(definition: Definition, row: Row) -> When:
    calendars = {REST.name: REST, FREEZE.name: FREEZE}
    return parse_when(definition.when, calendars).bind(key=row["key"], created=row["created_at"], calendars=calendars)


# --- the history of one schedule -------------------------------------------------------------------------------


def _check_history(history: ScheduleHistory) -> Iterator[str]:
    fixed = [span for span in history.spans if not _is_after_end(span.rule)]
    moments: dict[int, Span] = {}
    for span in fixed:
        moments.update(dict.fromkeys(_moments(span, history), span))
    covers = dict.fromkeys([*history.fires, *history.skipped_by_node], 1)
    # Gaps of single moments first, then dropped ones: the other gaps cover the rest.
    for gap in sorted(history.gaps, key=lambda each: (each.row["count"] > 1, each.row["reason"] != "blackout")):
        yield from _check_gap(gap, history)
        if _is_after_end(gap.span.rule):
            continue
        inside = list(_inside(gap, history, moments, covers))
        for at in inside:
            covers[at] = covers.get(at, 0) + 1
        if _is_of_override(gap, history):
            continue
        if len(inside) != gap.row["count"] or not inside or (inside[0], inside[-1]) != _ends(gap.row):
            yield f"the gap {gap.row} covers {len(inside)} moments of {gap.span.definition.when}"
    from_end = [span for span in history.spans if _is_after_end(span.rule)]
    for at, count in covers.items():
        if count > 1:
            yield f"the moment {at} is covered {count} times"
        if at not in moments and at not in history.overridden and not any(_is_in(span, at) for span in from_end):
            yield f"there is a run for {at}, which is no moment of its rule"
    last_fire_at = _last_fire_at(history)
    for at, span in moments.items():
        if at not in covers and not (last_fire_at is not None and at > last_fire_at and span.rule.bounds.max_fires):
            yield f"the moment {at} of {span.definition.when} ({_state(span)}) has neither run nor gap"
    yield from _check_intervals(history)


def _inside(
    gap: RecordedGap, history: ScheduleHistory, moments: dict[int, Span], covers: dict[int, int]
) -> Iterator[int]:
    """The moments that belong to the gap."""
    is_single = history.has_no_overrides or gap.row["count"] == 1
    for at, span in moments.items():
        if not gap.row["first_at"] <= at <= gap.row["last_at"] or not (
            span is gap.span or _is_of_override(gap, history)
        ):
            continue
        if is_single or (at not in covers and (gap.row["reason"] != "blackout" or _is_closed(span, at))):
            yield at


def _check_paused_cursor(history: ScheduleHistory) -> Iterator[str]:
    """While a schedule is paused, its cursor stays on the first moment after the start of the pause."""
    last = history.spans[-1]
    if not last.is_paused or _is_after_end(last.rule):
        return
    expected, overridden = last.rule.next_us(last.since), {each.fire_at for each in history.occurrences}
    while expected in overridden:
        expected = last.rule.next_us(expected)
    if history.cursor != expected and not (_last_fire_at(history) is not None and history.cursor is None):
        yield f"it was paused at {last.since}, and its cursor is {history.cursor}, not {expected}"


def _moments(span: Span, history: ScheduleHistory) -> Iterator[int]:
    """The nominal moments of a span; of a current one (the story has not settled) up to its last row."""
    until = max(_covered(history), default=0) if span.until is None else span.until
    at = span.rule.next_us(span.since)
    while at is not None and at <= until:
        yield at
        at = span.rule.next_us(at)


def _covered(history: ScheduleHistory) -> list[int]:
    return [*history.fires, *(gap.row["last_at"] for gap in history.gaps)]


def _last_fire_at(history: ScheduleHistory) -> int | None:
    """The fire that reached `max_fires`; later moments need no row."""
    most = [span.rule.bounds.max_fires for span in history.spans if span.rule.bounds.max_fires is not None]
    fires = sorted(history.fires)
    if not most or len(fires) < min(most):
        return None
    return fires[min(most) - 1]


def _check_gap(gap: RecordedGap, history: ScheduleHistory) -> Iterator[str]:
    row, definition, reason = gap.row, gap.definition, gap.row["reason"]
    text = f"the gap {row['first_at']}-{row['last_at']} ({row['verdict']}, {reason})"
    following = gap.span.rule.next_us(row["last_at"])
    runs_after = history.fires.get(following or 0, (0, {}))[0] == gap.at
    # A node may skip the every-node moment that the others were coalesced into.
    is_skipped_after = gap.at == history.skipped_by_node.get(following or 0)
    has_no_node_after = gap.at == history.without_node.get(following or 0)
    if not history.has_no_overrides:
        runs_after = any(recorded == gap.at and at > row["last_at"] for at, (recorded, _) in history.fires.items())
    jitter, is_overridden, fate = (
        gap.span.rule.bounds.jitter,
        row["first_at"] in history.overridden,
        definition.blackout_fate,
    )
    catches_up = {definition.catch_up, *((fate,) if definition.blackout else ())}
    is_true = {
        "coalesced": "latest" in catches_up and (runs_after or is_skipped_after),
        "overlap": definition.mode == "every-node"
        or (
            {"skip": bool(gap.live), "queue": any(map(_is_queued, gap.live))}.get(definition.overlap, False)
            and not _is_stuck(gap.live)
        ),
        "duplicate": definition.unique is not None,
        "grace": definition.grace is not None and (is_overridden or gap.at - row["last_at"] > definition.grace),
        "limit": "all" in catches_up and _due_after(gap) >= definition.catch_up_limit - (1 if jitter else 0),
        "downtime": definition.catch_up == "skip"
        and (is_overridden or runs_after or is_skipped_after or has_no_node_after or gap.at - row["last_at"] > _FRESH),
        "paused": gap.span.is_paused
        or gap.kind == "pause"
        or (is_overridden and any(s.is_paused for s in history.spans)),
        "blackout": fate == "drop" and _is_closed(gap.span, row["first_at"]) and _is_closed(gap.span, row["last_at"]),
        "by_hand": is_overridden or (_is_after_end(gap.span.rule) and bool(history.overridden)),
        "edited": gap.kind == "edit",
        "removed": gap.kind == "remove",
        # check_every_node checks that no node was alive.
        "no_node": definition.mode == "every-node",
    }.get(reason, False)
    if not is_true:
        yield f"{text} has a wrong reason: {definition}, {len(gap.live)} live, by {gap.kind or gap.intent}"
    verdict = "missed" if reason in ("grace", "limit", "downtime", "no_node") else "skipped"
    if row["verdict"] != verdict:
        yield f"{text} should be {verdict}"


def _is_queued(row: Row) -> bool:
    """By overlap; a limit blocks runs, too, but has no `blocked_on`."""
    return bool(row["state"] == "blocked" and row["blocked_on"] is not None)


def _is_stuck(live: list[Row]) -> bool:
    """Whether all live runs are parked, or queued behind parked ones."""
    return any(row["state"] == "parked" for row in live) and all(
        row["state"] == "parked" or _is_queued(row) for row in live
    )


def _waits_for_parked(history: ScheduleHistory) -> bool:
    """Catch-up "all" waits for a parked run, except with a blackout or an after-end rule."""
    definition = history.spans[-1].definition
    return definition.catch_up == "all" and definition.blackout is None and not _is_after_end(history.spans[-1].rule)


def _due_after(gap: RecordedGap) -> int:
    count, at = 0, gap.span.rule.next_us(gap.row["last_at"])
    while at is not None and at <= gap.at:
        count, at = count + 1, gap.span.rule.next_us(at)
    return count


def _check_intervals(history: ScheduleHistory) -> Iterator[str]:
    """No moment of an after-end rule is earlier than its interval."""
    for at, (recorded, row) in history.fires.items():
        span = next((each for each in history.spans if _is_in(each, at)), None)
        if span is None or not isinstance(span.rule, Every) or not span.rule.is_after_end:
            continue
        if recorded <= span.since:
            continue  # run early, before an edit to an after-end rule
        if at - span.since < span.rule.interval_us and at - history.spans[0].since < span.rule.interval_us:
            yield f"run {row['id']} for {at} is earlier than its interval"


def _is_of_override(gap: RecordedGap, history: ScheduleHistory) -> bool:
    """Whether it is the gap of a moment with an override, which need not be a moment of the span."""
    return gap.row["count"] == 1 and gap.row["first_at"] in history.overridden


def _is_closed(span: Span, at: int) -> bool:
    return span.definition.blackout is not None and not FREEZE.permits(at)


def _keeps_held_moments(history: ScheduleHistory, cut: int, change: Change) -> bool:
    """Whether an edit keeps the moments that a blackout holds, and the due ones before it."""
    last, definition = history.spans[-1], change.definition
    if change.kind != "edit" or definition is None or last.is_paused or history.cursor is None or history.cursor > cut:
        return False
    return definition.when == last.definition.when and definition.blackout is not None and _is_closed(last, cut)


def _is_after_end(rule: When) -> bool:
    return isinstance(rule, Every) and rule.is_after_end


def _is_in(span: Span, at: int) -> bool:
    return span.since < at and (span.until is None or at <= span.until)


def _ends(row: Row) -> tuple[int, int]:
    return row["first_at"], row["last_at"]


def _state(span: Span) -> str:
    return "paused" if span.is_paused else "not paused"
