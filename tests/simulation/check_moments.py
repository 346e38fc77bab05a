"""Every nominal moment has exactly one run or lies in exactly one gap, and every gap tells the truth.

The life of a schedule is a row of spans, one per version: a rule, paused or not, from one moment to another. The
moments of each span are reckoned from its rule alone, then held against the runs and gaps of the ledger. A moment that
people decided about has a row of its own, whatever lies around it; what a blackout drops is a gap of its own.

Every life ends with a removal, at the latest when the story does. So nothing is left to come: every moment up to that
must be in a row.
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

# An edit or a pause that comes this soon after a moment still lets it run.
_FRESH = 60 * SECOND


class Span(msgspec.Struct, kw_only=True):
    """One version of a schedule. Its moments are after `since`, up to and including `until` (None: not over yet)."""

    definition: Definition
    rule: When
    since: int
    until: int | None = None
    is_paused: bool = False
    paused_until: int | None = None


class GapSeen(NamedTuple):
    at: int
    row: Row
    span: Span
    # As it was then: an edit may leave what is held to the next definition.
    definition: Definition
    intent: str
    # The schedule's live runs, before the call that recorded it.
    live: list[Row]
    # The change of people that recorded it, if one did.
    kind: str


class Life(msgspec.Struct, kw_only=True):
    """What happened to one schedule."""

    id: int
    key: str
    spans: list[Span]
    # Runs of its moments, with the time at which they were recorded.
    fires: dict[int, tuple[int, Row]]
    gaps: list[GapSeen]
    # Moments that a node has skipped for itself, where all run it, with the time of the newest such row.
    passed_over: dict[int, int] = msgspec.field(default_factory=dict)
    # Moments for which there was no node, with the time of that row.
    without_node: dict[int, int] = msgspec.field(default_factory=dict)
    cursor: int | None = None
    # What people have decided about single moments by now, and all moments that they ever decided about.
    occurrences: tuple[Occurrence, ...] = ()
    decided: set[int]

    @property
    def is_plain(self) -> bool:
        return not self.decided and not any(span.definition.blackout for span in self.spans)


def check_moments(evidence: Evidence) -> Iterator[str]:
    watcher = _Watcher(evidence)
    for call in evidence.calls:
        yield from (f"{call.intent} #{call.number} by {call.who}: {found}" for found in watcher.step(call))
    for life in watcher.lives.values():
        yield from (f"{life.key} (schedule {life.id}): {found}" for found in _account(life))


class _Watcher:
    """Follows all schedules through the journal."""

    def __init__(self, evidence: Evidence) -> None:
        self._evidence = evidence
        self._ledger = Ledger()
        self.lives: dict[int, Life] = {}
        # The store's time as each person last read it: where their change cuts.
        self._read: dict[str, int] = {}
        # The overlap under which each run was recorded.
        self._overlap: dict[str, str] = {}
        # Per blocked run, those that it does not wait for: an earlier version with overlap "allow" had left several
        # live runs, and a blocked run waits for one of them.
        self._not_awaited: dict[str, set[str]] = {}
        self._healed = next((d.at for d in evidence.deeds if d.who == "story" and d.what == "healed"), 0)
        self._settled = next((d.at for d in evidence.deeds if d.who == "story" and d.what == "settled"), None)

    def step(self, call: Call) -> Iterator[str]:
        if call.intent == "now":
            self._read[call.who] = call.answer
            return
        touched = {self._schedule_of(change.table, change.row) for change in call.changes}
        before = {schedule: self._ledger.live_of(schedule) for schedule in touched if schedule is not None}
        changed = self._people_change(call)
        if self._settled is not None and call.at > self._settled:
            for schedule in changed:
                yield from _stands_still(self.lives[schedule])
        self._end_pauses(call, changed)
        for change in call.changes:
            if change.table == "schedules" and change.how == "insert":
                self._begin(change.row)
            if change.table == "schedules" and change.how == "update":
                self._note_decisions(change.row)
            if change.table == "runs" and change.how == "insert" and change.row["schedule_id"] is not None:
                yield from self._new_run(call, change.row, before[change.row["schedule_id"]], changed)
            if change.table == "runs" and change.how == "update" and change.row["cause"] == "trigger":
                self._give_back(change.row)
            if change.table == "runs" and change.row["state"] == "running":
                yield from self._beside(change.row)
            if change.table == "gaps":
                self._new_gap(call, change.row, before[change.row["schedule_id"]], changed)
            if change.table == "due" and change.how != "delete":
                self.lives[change.row["schedule_id"]].cursor = change.row["fire_at"]
            self._ledger.apply(change)
        yield from self._turn_over(call, changed)
        for schedule in before:
            yield from self._counts_from_end(schedule, call)

    @staticmethod
    def _schedule_of(table: str, row: Row) -> int | None:
        return {"schedules": row.get("id"), "nodes": None}.get(table, row.get("schedule_id"))

    def _begin(self, row: Row) -> None:
        definition = msgspec.json.decode(row["definition"], type=Definition)
        rule = _rule(definition, row)
        # Only a one-shot may mean the moment of its creation; a rhythm begins with the next beat.
        since = row["created_at"] - 1 if isinstance(rule, Once) else row["created_at"]
        span = Span(definition=definition, rule=rule, since=since)
        life = Life(id=row["id"], key=row["key"], spans=[span], fires={}, gaps=[], decided=set())
        self.lives[row["id"]] = life

    def _note_decisions(self, row: Row) -> None:
        life = self.lives[row["id"]]
        life.occurrences = msgspec.json.decode(row["occurrences"] or "[]", type=tuple[Occurrence, ...])
        life.decided |= {each.fire_at for each in life.occurrences}

    # --- new rows

    def _new_run(self, call: Call, row: Row, live: list[Row], changed: dict[int, Change]) -> Iterator[str]:
        life = self.lives[row["schedule_id"]]
        span = life.spans[-1]
        # On every node, each minds its own runs: `check_every_node`, and their unique keys.
        is_for_all = span.definition.mode == "every-node"
        overlap = self._overlap[row["id"]] = "allow" if is_for_all else span.definition.overlap
        name = f"run {row['id']} for {row['fire_at']}"
        if row["cause"] == "every-node" and row["fire_at"] not in life.fires:
            life.fires[row["fire_at"]] = (call.at, row)
            yield from self._may_fire(call, life, row, changed.get(life.id))
        if row["cause"] == "fire":
            if call.intent == "record_fires" and call.who.startswith("people"):
                life.decided.add(row["fire_at"])  # run early
            life.fires[row["fire_at"]] = (call.at, row)
            yield from self._may_fire(call, life, row, changed.get(life.id))
        if overlap in ("skip", "queue"):
            live = yield from self._remaining(life, row, live, is_edit=life.id in changed)
        if overlap == "skip" and live:
            yield f"{name}: {life.key} has a live run already, and overlap is skip"
        if overlap == "queue" and any(map(_is_queued, live)):
            yield f"{name}: {life.key} has one queued already"
        if row["state"] == "blocked" and any(self._overlap.get(each["id"]) == "allow" for each in live):
            self._not_awaited[row["id"]] = {each["id"] for each in live if each["id"] != row["blocked_on"]}
        # Runs that were ended by this very call (replaced) have made way.
        if overlap != "allow" and row["state"] != "blocked":
            standing = [each for each in self._ledger.live_of(life.id) if each["id"] != row["id"]]
            if any(each["state"] != "done" for each in standing):
                yield f"{name} of {life.key} may start beside a live run, and overlap is {overlap}"

    def _remaining(self, life: Life, row: Row, live: list[Row], *, is_edit: bool) -> Generator[str, None, list[Row]]:
        """The live runs that the same call did not replace. Overlap "skip" and "queue" replace stuck runs only.

        An edit cannot wait for a parked run, whatever the catch-up: it settles the old definition at once.
        """
        replaced = [each for each in live if each["id"] in self._ledger.done]
        name = f"run {row['id']} for {row['fire_at']}"
        if replaced and not _is_stuck(live):
            yield f"{name}: replaced a live run of {life.key} that was neither parked nor behind a parked one"
        is_by_rule = row["cause"] == "fire" and not is_edit and row["fire_at"] not in life.decided
        if replaced and is_by_rule and _waits_for_parked(life):
            yield f"{name}: replaced a parked run of {life.key}, and catch-up is all"
        return [each for each in live if each not in replaced]

    def _give_back(self, row: Row) -> None:
        """A run before its time that was taken back is the row of its moment no more; the moment is to have another."""
        before = self._ledger.live.get(row["id"])
        if before is not None and before["cause"] == "fire":
            self.lives[row["schedule_id"]].fires.pop(row["fire_at"], None)

    def _beside(self, row: Row) -> Iterator[str]:
        """Under every overlap but "allow" the runs of a schedule run one after another."""
        before = self._ledger.live.get(row["id"])
        if self._overlap.get(row["id"], "allow") == "allow" or (before is not None and before["state"] == "running"):
            return
        for other in self._ledger.live_of(row["schedule_id"]):
            is_at_work = other["id"] != row["id"] and other["state"] in ("running", "dispatched")
            is_awaited = other["id"] not in self._not_awaited.get(row["id"], ())
            if is_at_work and is_awaited and self._overlap[other["id"]] != "allow":
                yield f"runs {row['id']} and {other['id']} of one schedule run at the same time"

    def _is_neglected(self, call: Call, span: Span, due_at: int) -> bool:
        """Whether a moment was recorded late though there was somebody to record it."""
        evidence = self._evidence
        if (
            call.at - due_at <= evidence.poll + 3 * SECOND
            or span.definition.catch_up == "all"
            or span.definition.blackout is not None
            or not evidence.is_gentle
        ):
            return False
        since = max(due_at, span.since)
        return evidence.calm.store_was_well(since - 10 * SECOND, call.at) and any(
            evidence.calm.left_alone(machine, since - 10 * SECOND, call.at) for machine in evidence.calm.up_since
        )

    def _may_fire(self, call: Call, life: Life, row: Row, change: Change | None) -> Iterator[str]:
        span, name = life.spans[-1], f"run {row['id']} of {life.key} for {row['fire_at']}"
        if span.is_paused:
            yield f"{name} was recorded while it was paused"
        is_decided = row["fire_at"] in life.decided
        if any(each.is_paused and _is_in(each, row["fire_at"]) for each in life.spans) and not is_decided:
            yield f"{name} lies in a pause"
        # What a change cuts off within its jitter becomes a run that waits for the rest of it.
        if (call.at < row["fire_at"] and not is_decided) or (change is None and call.at < row["due_at"]):
            yield f"{name} was recorded before it was due"
        # What was planned while it was open may be written a little later.
        planned_at = call.at - 5 * SECOND
        is_closed = _is_closed(span, call.at) and _is_closed(span, planned_at) and self._evidence.is_gentle
        if is_closed and not is_decided and planned_at > span.since:
            yield f"{name} was recorded in the blackout"
        if change is None and self._is_neglected(call, span, row["due_at"]):
            yield f"{name} was recorded {call.at - row['due_at']} us late, and nothing was wrong"
        if change is not None:
            cut = self._read[call.who]
            if change.kind in ("remove", "add") or (change.kind == "resume" and span.since > row["fire_at"]):
                yield f"{name} was recorded by a {change.kind}, which fires nothing"
            if (row["fire_at"] > cut and not is_decided) or row["due_at"] < cut - _FRESH:
                yield f"{name} was recorded by a {change.kind} at {cut}"

    def _new_gap(self, call: Call, row: Row, live: list[Row], changed: dict[int, Change]) -> None:
        life = self.lives[row["schedule_id"]]
        if row["reason"].startswith("overlap on "):
            life.passed_over[row["first_at"]] = call.at
            return
        change = changed.get(life.id)
        kind = "" if change is None else change.kind
        span = next((each for each in reversed(life.spans) if _is_in(each, row["first_at"])), life.spans[-1])
        # A decision outlives an edit: what is recorded of its moment goes by the definition in force then.
        is_decided = row["count"] == 1 and row["first_at"] in life.decided
        definition = (life.spans[-1] if is_decided else span).definition
        life.gaps.append(GapSeen(call.at, row, span, definition, call.intent, live, kind))
        if row["reason"] == "no_node":
            life.without_node[row["last_at"]] = call.at

    # --- new versions

    @staticmethod
    def _people_change(call: Call) -> dict[int, Change]:
        if call.intent != "change_schedules" or call.answer is None:
            return {}
        return {
            change.settle.schedule_id: change
            for change, is_taken in zip(call.args[1], call.answer, strict=True)
            if is_taken and change.settle is not None
        }

    def _turn_over(self, call: Call, changed: dict[int, Change]) -> Iterator[str]:
        for schedule, change in changed.items():
            life = self.lives[schedule]
            cut = self._read[call.who]
            yield from self._was_kept_up(call, life, cut)
            if _stays_held(life, cut, change):
                # The account goes on under the new definition.
                life.spans[-1].definition = change.definition or life.spans[-1].definition
                continue
            if change.kind == "resume" and not life.spans[-1].is_paused:
                # The pause had ended by itself: what came since is owed as ever.
                continue
            self._next_span(life, cut, change)
            if life.cursor is not None and life.cursor <= cut and change.kind != "remove":
                yield f"{change.kind} of {life.key} at {cut} left the cursor at {life.cursor}"

    def _end_pauses(self, call: Call, changed: dict[int, Change]) -> None:
        """A pause is over at its `until`, whoever notices it first: a tick, or people with another change."""
        noticed = {advance.schedule_id: call.at for advance in _advances(call) if advance.ends_pause}
        noticed |= dict.fromkeys(changed, self._read.get(call.who, 0))
        for schedule, at in noticed.items():
            life = self.lives[schedule]
            last = life.spans[-1]
            if last.is_paused and last.paused_until is not None and last.paused_until <= at:
                # An edit may find a pause that is over already, and keep it until the next tick.
                last.until = max(last.since, last.paused_until - 1)
                life.spans.append(Span(definition=last.definition, rule=last.rule, since=last.until))

    def _next_span(self, life: Life, cut: int, change: Change) -> None:
        last = life.spans[-1]
        last.until = cut
        if change.kind == "remove":
            return
        definition = change.definition or last.definition
        pause = change.pause if change.kind in ("pause", "edit") else None
        rule = last.rule
        if change.definition is not None:
            rule = _rule(definition, {"key": life.key, "created_at": self._ledger.schedules[life.id]["created_at"]})
        life.spans.append(
            Span(
                definition=definition,
                rule=rule,
                since=cut,
                is_paused=pause is not None,
                paused_until=None if pause is None else pause.until,
            )
        )

    def _was_kept_up(self, call: Call, life: Life, cut: int) -> Iterator[str]:
        """When all is well nothing is left for a pause to settle but the last moments."""
        span, evidence = life.spans[-1], self._evidence
        is_quiet = cut > self._healed + evidence.lease + 2 * evidence.beat + 2 * evidence.poll
        if not self._healed or not is_quiet or span.is_paused or span.definition.catch_up == "all":
            return
        if not life.is_plain:
            return
        for change in call.changes:
            if change.table != "gaps" or change.row["schedule_id"] != life.id:
                continue
            late = cut - change.row["first_at"] - span.rule.bounds.jitter - evidence.poll - 2 * SECOND
            if late > 0 and max(self._healed, span.since) < change.row["first_at"]:
                yield f"{life.key} was not looked after: {change.row['first_at']} was {late} us late"

    def _counts_from_end(self, schedule: int, call: Call) -> Iterator[str]:
        due, life = self._ledger.due.get(schedule), self.lives.get(schedule)
        if due is None or life is None or due["after_end"] is None or life.spans[-1].is_paused:
            return
        live = self._ledger.live_of(schedule)
        if live:
            return
        if due["fire_at"] is None:
            yield f"{life.key} counts from the end of its run, none is live, and it has no next moment"
        elif call.intent in ("finish", "apply_reports") and due["fire_at"] != call.at + due["after_end"]:
            yield f"{life.key}: its run ended at {call.at}, and its next moment is {due['fire_at']}"


def _advances(call: Call) -> list[Any]:
    if call.intent != "record_fires" or call.answer is None:
        return []
    return [advance for advance, is_taken in zip(call.args[2], call.answer.taken, strict=True) if is_taken]


def _rule(definition: Definition, row: Row) -> When:
    calendars = {REST.name: REST, FREEZE.name: FREEZE}
    return parse_when(definition.when, calendars).bind(key=row["key"], created=row["created_at"], calendars=calendars)


# --- the account of one schedule -------------------------------------------------------------------------------


def _account(life: Life) -> Iterator[str]:
    fixed = [span for span in life.spans if not _is_from_end(span.rule)]
    moments: dict[int, Span] = {}
    for span in fixed:
        moments.update(dict.fromkeys(_moments(span, life), span))
    covers = dict.fromkeys([*life.fires, *life.passed_over], 1)
    # Rows of single moments first, then what a blackout dropped: the others hold what these leave.
    for gap in sorted(life.gaps, key=lambda each: (each.row["count"] > 1, each.row["reason"] != "blackout")):
        yield from _gap_is_true(gap, life)
        if _is_from_end(gap.span.rule):
            continue
        inside = list(_inside(gap, life, moments, covers))
        for at in inside:
            covers[at] = covers.get(at, 0) + 1
        if _is_of_decided(gap, life):
            continue
        if len(inside) != gap.row["count"] or not inside or (inside[0], inside[-1]) != _ends(gap.row):
            yield f"the gap {gap.row} holds {len(inside)} moments of {gap.span.definition.when}"
    from_end = [span for span in life.spans if _is_from_end(span.rule)]
    for at, count in covers.items():
        if count > 1:
            yield f"the moment {at} is covered {count} times"
        if at not in moments and at not in life.decided and not any(_is_in(span, at) for span in from_end):
            yield f"there is a run for {at}, which is no moment of it"
    spent_at = _spent_at(life)
    for at, span in moments.items():
        if at not in covers and not (spent_at is not None and at > spent_at and span.rule.bounds.max_fires):
            yield f"the moment {at} of {span.definition.when} ({_state(span)}) has neither run nor gap"
    yield from _intervals(life)


def _inside(gap: GapSeen, life: Life, moments: dict[int, Span], covers: dict[int, int]) -> Iterator[int]:
    """The moments that are the gap's own."""
    is_single = life.is_plain or gap.row["count"] == 1
    for at, span in moments.items():
        if not gap.row["first_at"] <= at <= gap.row["last_at"] or not (span is gap.span or _is_of_decided(gap, life)):
            continue
        if is_single or (at not in covers and (gap.row["reason"] != "blackout" or _is_closed(span, at))):
            yield at


def _stands_still(life: Life) -> Iterator[str]:
    """While all are paused, the cursor stays on the first moment after that."""
    last = life.spans[-1]
    if not last.is_paused or _is_from_end(last.rule):
        return
    expected, decided = last.rule.next_us(last.since), {each.fire_at for each in life.occurrences}
    while expected in decided:
        expected = last.rule.next_us(expected)
    if life.cursor != expected and not (_spent_at(life) is not None and life.cursor is None):
        yield f"it was paused at {last.since}, and its cursor is {life.cursor}, not {expected}"


def _moments(span: Span, life: Life) -> Iterator[int]:
    """The nominal moments of a span. One that is not over (the story has not settled) is owed as far as it went."""
    until = max(_covered(life), default=0) if span.until is None else span.until
    at = span.rule.next_us(span.since)
    while at is not None and at <= until:
        yield at
        at = span.rule.next_us(at)


def _covered(life: Life) -> list[int]:
    return [*life.fires, *(gap.row["last_at"] for gap in life.gaps)]


def _spent_at(life: Life) -> int | None:
    """The fire that used up what the rule allows; of what comes after it nothing is owed."""
    most = [span.rule.bounds.max_fires for span in life.spans if span.rule.bounds.max_fires is not None]
    fires = sorted(life.fires)
    if not most or len(fires) < min(most):
        return None
    return fires[min(most) - 1]


def _gap_is_true(gap: GapSeen, life: Life) -> Iterator[str]:
    row, definition, reason = gap.row, gap.definition, gap.row["reason"]
    told = f"the gap {row['first_at']}-{row['last_at']} ({row['verdict']}, {reason})"
    following = gap.span.rule.next_us(row["last_at"])
    runs_after = life.fires.get(following or 0, (0, {}))[0] == gap.at
    # Where every node has a run of its own, each may skip the moment that stands for the others.
    is_skipped_after = gap.at == life.passed_over.get(following or 0)
    has_no_node_after = gap.at == life.without_node.get(following or 0)
    if not life.is_plain:
        runs_after = any(recorded == gap.at and at > row["last_at"] for at, (recorded, _) in life.fires.items())
    jitter, is_decided, fate = gap.span.rule.bounds.jitter, row["first_at"] in life.decided, definition.blackout_fate
    catches_up = {definition.catch_up, *((fate,) if definition.blackout else ())}
    is_true = {
        "coalesced": "latest" in catches_up and (runs_after or is_skipped_after),
        "overlap": definition.mode == "every-node"
        or (
            {"skip": bool(gap.live), "queue": any(map(_is_queued, gap.live))}.get(definition.overlap, False)
            and not _is_stuck(gap.live)
        ),
        "duplicate": definition.unique is not None,
        "grace": definition.grace is not None and (is_decided or gap.at - row["last_at"] > definition.grace),
        "limit": "all" in catches_up and _owed_after(gap) >= definition.catch_up_limit - (1 if jitter else 0),
        "downtime": definition.catch_up == "skip"
        and (is_decided or runs_after or is_skipped_after or has_no_node_after or gap.at - row["last_at"] > _FRESH),
        "paused": gap.span.is_paused or gap.kind == "pause" or (is_decided and any(s.is_paused for s in life.spans)),
        "blackout": fate == "drop" and _is_closed(gap.span, row["first_at"]) and _is_closed(gap.span, row["last_at"]),
        "by_hand": is_decided or (_is_from_end(gap.span.rule) and bool(life.decided)),
        "edited": gap.kind == "edit",
        "removed": gap.kind == "remove",
        # Whether nobody was there, `check_every_node` knows.
        "no_node": definition.mode == "every-node",
    }.get(reason, False)
    if not is_true:
        yield f"{told} is not true: {definition}, {len(gap.live)} live, by {gap.kind or gap.intent}"
    verdict = "missed" if reason in ("grace", "limit", "downtime", "no_node") else "skipped"
    if row["verdict"] != verdict:
        yield f"{told} should be {verdict}"


def _is_queued(row: Row) -> bool:
    """By overlap; a limit holds back, too, but queues nothing."""
    return bool(row["state"] == "blocked" and row["blocked_on"] is not None)


def _is_stuck(live: list[Row]) -> bool:
    """Whether none is live but parked runs and what is queued behind them."""
    return any(row["state"] == "parked" for row in live) and all(
        row["state"] == "parked" or _is_queued(row) for row in live
    )


def _waits_for_parked(life: Life) -> bool:
    """Catch-up "all" waits for a parked run, unless a blackout has its own rule or moments count from an end."""
    definition = life.spans[-1].definition
    return definition.catch_up == "all" and definition.blackout is None and not _is_from_end(life.spans[-1].rule)


def _owed_after(gap: GapSeen) -> int:
    count, at = 0, gap.span.rule.next_us(gap.row["last_at"])
    while at is not None and at <= gap.at:
        count, at = count + 1, gap.span.rule.next_us(at)
    return count


def _intervals(life: Life) -> Iterator[str]:
    """Where moments count from the end of a run, none begins sooner than that."""
    for at, (recorded, row) in life.fires.items():
        span = next((each for each in life.spans if _is_in(each, at)), None)
        if span is None or not isinstance(span.rule, Every) or not span.rule.is_after_end:
            continue
        if recorded <= span.since:
            continue  # run early, before an edit made the rule count from the end of a run
        if at - span.since < span.rule.interval_us and at - life.spans[0].since < span.rule.interval_us:
            yield f"run {row['id']} for {at} comes before its interval is over"


def _is_of_decided(gap: GapSeen, life: Life) -> bool:
    """Whether it is the row of a moment that people decided about: it need not be one of the span's."""
    return gap.row["count"] == 1 and gap.row["first_at"] in life.decided


def _is_closed(span: Span, at: int) -> bool:
    return span.definition.blackout is not None and not FREEZE.permits(at)


def _stays_held(life: Life, cut: int, change: Change) -> bool:
    """Whether an edit leaves what a blackout holds, and what was owed before it, as it is."""
    last, definition = life.spans[-1], change.definition
    if change.kind != "edit" or definition is None or last.is_paused or life.cursor is None or life.cursor > cut:
        return False
    return definition.when == last.definition.when and definition.blackout is not None and _is_closed(last, cut)


def _is_from_end(rule: When) -> bool:
    return isinstance(rule, Every) and rule.is_after_end


def _is_in(span: Span, at: int) -> bool:
    return span.since < at and (span.until is None or at <= span.until)


def _ends(row: Row) -> tuple[int, int]:
    return row["first_at"], row["last_at"]


def _state(span: Span) -> str:
    return "paused" if span.is_paused else "not paused"
