"""Planted bugs: small mistakes that the checks must find.

A mutant patches the engine, the planning, the editing or the SQLite store during its simulations. If two guards back
each other up, removing one has no visible effect: such bugs are planted in pairs. The end of this file lists the
single halves.
"""

from __future__ import annotations

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from typing import Any
from unittest import mock

import msgspec

from evertick.engine import duty, engine, finish, fire, judge, node, outbox_delivery, recovery, report, work
from evertick.engine.judge import Stop
from evertick.errors import StoreUnavailable
from evertick.ledger import editor, planning
from evertick.model import Outcome, Reason, Verdict
from evertick.model.retry import never_again
from evertick.plan import blackout, moments, plan, settlement
from evertick.plan.overlap import STUCK
from evertick.store import dispatched, verdicts
from evertick.store.base import Recorded
from evertick.store.sqlite import SqliteStore, claims, endings, fires, limits, nodes, schedules
from evertick.store.sqlite import dispatched as sqlite_dispatched
from evertick.store.sqlite.connection import SQL
from evertick.store.sqlite.outbox import write_messages
from simulation.run import SimulationResult, simulate

__all__ = ["MUTANTS", "Mutant"]

Patch = Callable[[], Any]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug, and seeds that find it: searched once, a few more than needed."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    seeds: tuple[int, ...] = ()
    # Statements that change the tables, such as dropping an index.
    tables: tuple[str, ...] = ()

    def simulate(self, seed: int) -> SimulationResult:
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch())
            return simulate(seed, prepare=self._prepare)

    def _prepare(self, db: sqlite3.Connection) -> None:
        for statement in self.tables:
            db.execute(statement)


def _attribute(owner: Any, name: str, value: Any) -> Patch:
    """Replace a function or constant."""
    return lambda: mock.patch.object(owner, name, value)


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    return lambda: mock.patch.object(owner, name, wrap(getattr(owner, name)))


def _sql(name: str, old: str, new: str) -> Patch:
    """Change a part of a statement."""

    @contextmanager
    def patch() -> Iterator[None]:
        statement = SQL[name]
        assert old in statement, f"{name} has no {old!r}: update the mutant"
        with mock.patch.dict(SQL, {name: statement.replace(old, new)}):
            yield

    return patch


def _no_sql(name: str) -> Patch:
    """A statement that changes nothing."""

    @contextmanager
    def patch() -> Iterator[None]:
        statement = SQL[name].rstrip().rstrip(";")
        with mock.patch.dict(SQL, {name: f"{statement} AND 1 = 0"}):
            yield

    return patch


# --- bugs of more than one line --------------------------------------------------------------------------------


async def _hold_at_once(self: SqliteStore, app: str, node: str, names: Any) -> Any:
    """Without the check whether a duty is free."""
    return await self.session().write(lambda db, now: nodes.hold_duties(db, now, app, node, names))


def _keep_while_silent(original: Any) -> Any:
    def stop_all(self: duty.DutyKeeper, why: str) -> None:
        if why != duty.STORE_SILENT:
            original(self, why)

    return stop_all


def _plan_by_own_clock(original: Any) -> Any:
    def plan_all(self: fire.Recorder, tick: fire.Tick, rows: Any) -> Any:
        page = tick.page
        due = msgspec.structs.replace(page.due, now=self._node.clock.now_us())
        tick.page = msgspec.structs.replace(page, due=due)
        try:
            return original(self, tick, rows)
        finally:
            tick.page = page

    return plan_all


def _read_nodes_once(original: Any) -> Any:
    """Read the live nodes once."""

    async def nodes(self: fire.Recorder, due: Any, known: Any) -> Any:
        remembered = getattr(self, "_remembered", None) or await original(self, due, known)
        self._remembered = remembered  # type: ignore[attr-defined]
        return remembered

    return nodes


def _ignore(stop: Stop) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def stop_others(self: work.Worker, attempt: Any, why: Stop) -> None:
            if why is not stop:
                original(self, attempt, why)

        return stop_others

    return wrap


def _trust_unanswered(original: Any) -> Any:
    async def record(self: fire.Recorder, advances: Any) -> Any:
        try:
            recorded = await original(self, advances)
        except StoreUnavailable:
            recorded = Recorded(now=0, fence=record_fence[0] + 1, taken=[True] * len(advances))
        record_fence[0] = max(record_fence[0], recorded.fence if recorded else 0)
        return recorded

    record_fence = [0]
    return record


async def _no_reconcile(self: recovery.Recoverer) -> None:
    return None


def _send_lost_messages(original: Any) -> Any:
    async def finish_all(self: SqliteStore, app: str, node: str, outcomes: Any) -> Any:
        finished = await original(self, app, node, outcomes)
        sent = [message for outcome in outcomes for message in outcome.messages]
        await self.session().write(lambda db, now: write_messages(db, now, app, sent))
        return finished

    return finish_all


def _send_always(original: Any) -> Any:
    def put(self: finish.Finisher, attempt: Any, outcome: Any) -> None:
        original(self, attempt, msgspec.structs.replace(outcome, messages=tuple(attempt.record.messages)))

    return put


def _count_as_sent(original: Any) -> Any:
    def judge_as_sent(message: Any, sender: Any, error: Any, uniform: float, keep_dead: int) -> Any:
        return original(message, sender, None, uniform, keep_dead)

    return judge_as_sent


def _give_up_at_once(original: Any) -> Any:
    def judge_once(message: Any, sender: Any, error: Any, uniform: float, keep_dead: int) -> Any:
        return original(message, msgspec.structs.replace(sender, retry=never_again), error, uniform, keep_dead)

    return judge_once


def _accept_any_fence(original: Any) -> Any:
    """Accept a report for the current dispatch of its run, with any fence."""

    def record(reports: Any, rows: Any, now: int) -> Any:
        fences = {row["id"]: row["fence"] for row in rows}
        batches = [msgspec.structs.replace(each, fence=fences.get(each.id, each.fence)) for each in reports]
        return original(batches, rows, now)

    return record


def _send_afterwards(original: Any) -> Any:
    """Send messages in a separate call after the outcome."""

    async def write(self: finish.Finisher, batch: Any, outcomes: Any) -> Any:
        messages = [message for outcome in outcomes for message in outcome.messages]
        bare = [msgspec.structs.replace(outcome, messages=()) for outcome in outcomes]
        finished = await original(self, batch, bare)
        if messages:
            await self._node.store.send(self._node.app, messages)
        return finished

    return write


def _settle_first(original: Any) -> Any:
    """Settle a message before its run is updated, so that a death in between loses the update."""

    async def settle(self: outbox_delivery.OutboxDelivery) -> None:
        batches: list[Any] = []
        self._report, before = (lambda batch: _later(batches, batch)), self._report  # type: ignore[method-assign]
        try:
            await original(self)
        finally:
            self._report = before  # type: ignore[method-assign]
        for batch in batches:
            await self._report(batch)

    async def _later(batches: list[Any], batch: Any) -> None:
        batches.append(list(batch))

    return settle


def _silent_since_taken(self: Any) -> Any:
    return (self._taken_at or self._now) + self._terms.progress_timeout


def _ignore_at_most_once(original: Any) -> Any:
    def lose(tended: Any, row: Any, *rest: Any) -> None:
        original(tended, {**dict(row), "at_most_once": 0}, *rest)

    return lose


def _without_attempt(original: Any) -> Any:
    def outcome(self: Any, kind: str, **fields: Any) -> Any:
        made = original(self, kind, **fields)
        return msgspec.structs.replace(made, attempts=self._row["attempts"]) if kind == "retry" else made

    return outcome


def _finish_or_forget(original: Any) -> Any:
    async def step(self: finish.Finisher) -> Any:
        try:
            return await original(self)
        except StoreUnavailable:
            while self._backlog:
                attempt, _ = self._backlog.popleft()
                self._node.hold.forget_attempt(attempt)
            raise

    return step


def _finish_or_fail(original: Any) -> Any:
    async def step(self: finish.Finisher) -> Any:
        try:
            return await original(self)
        except StoreUnavailable:
            for number, (attempt, outcome) in enumerate(self._backlog):
                failed = msgspec.structs.replace(
                    outcome, kind="done", verdict=Verdict.FAILED, reason="error", attempts=attempt.run.attempts + 1
                )
                self._backlog[number] = (attempt, failed)
            raise

    return step


def _spend_attempt(original: Any) -> Any:
    def judge_stop(run: Any, *rest: Any) -> Outcome | None:
        outcome: Outcome | None = original(run, *rest)
        if outcome is None or outcome.kind != "release":
            return outcome
        return msgspec.structs.replace(outcome, kind="retry", attempts=run.attempts + 1)

    return judge_stop


def _count_one_more(original: Any) -> Any:
    def gap(inputs: Any, first: int, last: int, *rest: Any) -> Any:
        made = original(inputs, first, last, *rest)
        return made if first == last else msgspec.structs.replace(made, count=made.count + 1)

    return gap


def _forget_pause(original: Any) -> Any:
    def settle(inputs: Any, now: int, reason: Any, **options: Any) -> Any:
        return ((), ()) if inputs.pause is not None else original(inputs, now, reason, **options)

    return settle


def _cursor_in_the_past(original: Any) -> Any:
    def cursor_after(rule: Any, key: str, after: int, *more: Any) -> Any:
        return original(rule, key, after - 30_000_000, *more)

    return cursor_after


def _drop_skipped(original: Any) -> Any:
    def with_decisions(inputs: Any, made: Any, now: int) -> Any:
        planned = original(inputs, made, now)
        kept = tuple(gap for gap in planned.gaps if gap.reason != Reason.BY_HAND)
        return msgspec.structs.replace(planned, gaps=kept)

    return with_decisions


def _drop_done(original: Any) -> Any:
    def with_decisions(inputs: Any, made: Any, now: int) -> Any:
        planned = original(inputs, made, now)
        kept = tuple(each for each in planned.occurrences or () if each.kind != "done")
        return planned if planned.occurrences is None else msgspec.structs.replace(planned, occurrences=kept)

    return with_decisions


def _drop_gaps(is_dropped: Callable[[Any, Reason, Any], bool]) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def settle_decisions(inputs: Any, now: int, reason: Reason, **options: Any) -> Any:
            settled = original(inputs, now, reason, **options)
            dropped = {each.fire_at for each in inputs.occurrences if is_dropped(inputs, reason, each)}
            kept = tuple(gap for gap in settled.gaps if gap.first_at not in dropped)
            return msgspec.structs.replace(settled, gaps=kept)

        return settle_decisions

    return wrap


def _without_blackout(original: Any) -> Any:
    def plan_inputs_of(schedule: Any, definition: Any, rule: Any, **_: Any) -> Any:
        return original(schedule, definition, rule)

    return plan_inputs_of


def _unguarded(original: Any) -> Any:
    def advance_of(*args: Any) -> Any:
        return msgspec.structs.replace(original(*args), live=None)

    return advance_of


def _ignore_catch_up_all(original: Any) -> Any:
    def catch_up_all(inputs: Any, newest: int, now: int, uniform: Any) -> Any:
        if inputs.live & STUCK:
            coalesced = (Verdict.SKIPPED, Reason.COALESCED)
            return plan._catch_up_latest(inputs, newest, now, uniform, rest=coalesced)
        return original(inputs, newest, now, uniform)

    return catch_up_all


def _drop_newest(original: Any) -> Any:
    def catch_up_all(inputs: Any, newest: int, now: int, uniform: Any) -> Any:
        made = original(inputs, newest, now, uniform)
        if made.next_fire_at != newest:
            return made
        return plan._moved_past(inputs, newest, uniform, fires=made.fires, gaps=made.gaps)

    return catch_up_all


def _parked_is_live(original: Any) -> Any:
    def admit(overlap: Any, live: int) -> Any:
        return original(overlap, live & ~STUCK)

    return admit


def _always_takes_place(overlap: Any, live: int, *, is_blocked: bool) -> bool:
    return overlap != "allow" and bool(live)


def _skip_oldest(original: Any) -> Any:
    def catch_up_latest(inputs: Any, newest: int, now: int, uniform: Any, **options: Any) -> Any:
        return msgspec.structs.replace(original(inputs, newest, now, uniform, **options), gaps=())

    return catch_up_latest


def _check_at_once(original: Any) -> Any:
    async def step(self: recovery.Recoverer) -> Any:
        self._judges_from = 0.0
        return await original(self)

    return step


def _reverse(original: Any) -> Any:
    def lanes(*args: Any) -> Any:
        return original(*args)[::-1]

    return lanes


def _without_lock(original: Any) -> Any:
    def init(self: node.LocalNode, **options: Any) -> None:
        original(self, **options)
        self.claiming = _NoLock()  # type: ignore[assignment]

    return init


class _NoLock:
    is_wanted = False

    async def __aenter__(self) -> None:
        return None

    async def __aexit__(self, *_: object) -> None:
        return None


def _ignore_cancels(self: engine.Engine, run_ids: list[str]) -> None:
    return None


def _keep_runs(db: sqlite3.Connection, now: int, app: str, schedule: int) -> None:
    db.execute(SQL["change_schedules.remove"], (schedule,))
    db.execute(SQL["change_schedules.remove_due"], (schedule,))


def _count_once(original: Any) -> Any:
    def let_in(self: limits.Gate, row: Any, terms: Any) -> Any:
        key = original(self, row, terms)
        # Read again from the tables, which do not have the runs of this claim yet.
        self._running.clear()
        return key

    return let_in


def _ignore_retries(original: Any) -> Any:
    def let_in(self: limits.Gate, run: Any, terms: Any) -> Any:
        key = original(self, run, terms)
        if run.attempts and terms.rate is not None:
            starts = self._starts[terms.rate.key(run.args)]
            starts.count -= 1
            starts._added -= 1
        return key

    return let_in


def _one_slot_too_many(self: node.Hold) -> int:
    return self.capacity - self._busy + 1


_ANY_CLAIM = "?3 IS NOT NULL AND ?4 IS NOT NULL"
_ANY_CURSOR = (
    _sql("record_fires.fitting", "d.version = json_extract(plan.value, '$[1]')", "1"),
    _sql("record_fires.fitting", "d.fire_at IS json_extract(plan.value, '$[2]')", "1"),
    _sql("record_fires.fitting", "d.at IS json_extract(plan.value, '$[3]')", "1"),
)
_QUEUED = "r.schedule_id = d.schedule_id\n        AND r.blocked_on IS NOT NULL)"
_MOMENT_INDEX = "(schedule_id, fire_at) WHERE schedule_id IS NOT NULL"

MUTANTS: tuple[Mutant, ...] = (
    # --- claims
    Mutant(
        name="finish_without_guard",
        what="an outcome is accepted from any node and under any fence (node guard and fence guard, a pair)",
        seeds=(192, 184, 35),
        patches=(_sql("finish.held", "r.node = ?3 AND r.fence = o.value", "?3 IS NOT NULL"),),
    ),
    Mutant(
        name="note_without_guard",
        what="progress and log lines are accepted from a claim that has ended",
        seeds=(214, 12),
        patches=(_sql("note.progress", "node = ?3 AND fence = ?4", _ANY_CLAIM),),
    ),
    Mutant(
        name="claim_reuses_fence",
        what="a claim does not draw a new fence",
        seeds=(101, 20, 103),
        patches=(_sql("fence.draw", "value + 1", "max(value, 1)"),),
    ),
    Mutant(
        name="dead_node_claims",
        what="a dead node still claims runs",
        seeds=(54, 132, 71),
        patches=(
            _sql("claim.node", " AND died_at IS NULL", ""),
            _attribute(fires, "is_alive", lambda db, node: True),
        ),
    ),
    Mutant(
        name="unanswered_claim_started",
        what="a node starts runs although the answer to its claim was lost",
        seeds=(124, 142, 189),
        patches=(_wrapped(fire.Recorder, "_record", _trust_unanswered),),
    ),
    Mutant(
        name="unanswered_claims_kept",
        what="runs whose claim was not answered are never released",
        seeds=(142, 189, 119),
        patches=(_attribute(recovery.Recoverer, "_reconcile", _no_reconcile),),
    ),
    Mutant(
        name="claim_in_flight_released",
        what="a claim in flight is treated as an unanswered one",
        seeds=(101, 33),
        patches=(_wrapped(node.LocalNode, "__init__", _without_lock),),
    ),
    Mutant(
        name="lowest_priority_first",
        what="claims begin with the lowest priority",
        seeds=(192, 103, 20),
        patches=(_wrapped(claims, "_lanes", _reverse),),
    ),
    Mutant(
        name="expiry_ignored",
        what="an expired run is started",
        seeds=(31, 103, 42),
        patches=(_attribute(claims, "_is_expired", lambda run, now: False),),
    ),
    # --- outcomes
    Mutant(
        name="unanswered_outcome_forgotten",
        what="an outcome whose answer was lost is not sent again",
        seeds=(86, 189, 33),
        patches=(_wrapped(finish.Finisher, "step", _finish_or_forget),),
    ),
    Mutant(
        name="unanswered_outcome_failed",
        what="an outcome whose answer was lost is sent again as a failure",
        seeds=(103, 189, 33),
        patches=(_wrapped(finish.Finisher, "step", _finish_or_fail),),
    ),
    Mutant(
        name="release_spends_attempt",
        what="a run interrupted by a stop counts as a failed attempt",
        seeds=(192, 103, 33),
        patches=(_wrapped(judge, "_judge_stop", _spend_attempt),),
    ),
    Mutant(
        name="retry_without_delay",
        what="a retry does not wait for its delay",
        seeds=(31, 20, 103),
        patches=(_sql("finish.retry", "due_at = ?3", "due_at = min(?3, due_at)"),),
    ),
    Mutant(
        name="cancel_ignored_by_retry",
        what="a run with a requested cancel is retried",
        seeds=(101, 33, 68),
        patches=(_sql("finish.held", "r.is_cancel_requested", "0"),),
    ),
    Mutant(
        name="cancel_ignored_by_node",
        what="a node ignores the cancels that its heartbeat returns",
        seeds=(203, 47, 63),
        patches=(_attribute(engine.Engine, "cancel", _ignore_cancels),),
    ),
    Mutant(
        name="timeout_ignored",
        what="an attempt never times out",
        seeds=(183, 71, 63),
        patches=(_attribute(work.Timeouts, "_set_timer", lambda self, loop, when: None),),
    ),
    # --- deaths
    Mutant(
        name="declared_dead_too_soon",
        what="a node is declared dead ten seconds before its lease expires",
        seeds=(31, 20, 103),
        patches=(_sql("judge", "lease_until < ?1", "lease_until < ?1 + 10000000"),),
    ),
    Mutant(
        name="declared_dead_after_outage",
        what="after an outage the first node to return declares all others dead",
        seeds=(35, 71),
        patches=(_wrapped(recovery.Recoverer, "step", _check_at_once),),
    ),
    Mutant(
        name="reassigned_before_death",
        what="runs of a node with an expired lease are reassigned before its death is recorded",
        seeds=(31, 20, 103),
        patches=(_sql("rehome.find", "n.died_at IS NULL", "n.died_at IS NULL AND n.lease_until > ?2 + 60000000"),),
    ),
    Mutant(
        name="heartbeat_revives",
        what="a heartbeat revives a dead node",
        seeds=(181, 20, 192),
        patches=(
            _sql("beat", "SET beat_at", "SET died_at = NULL, beat_at"),
            _sql("beat", "AND died_at IS NULL", ""),
        ),
    ),
    Mutant(
        name="dead_node_keeps_working",
        what="a node that learns of its death continues its jobs",
        seeds=(174, 8, 131),
        patches=(_wrapped(work.Worker, "stop", _ignore(Stop.LOST)),),
    ),
    Mutant(
        name="losses_without_limit",
        what="a run that kills every node is run without limit",
        seeds=(67, 33),
        patches=(_attribute(verdicts, "LOSSES_MAX", 99),),
    ),
    Mutant(
        name="losses_not_counted",
        what="a lost claim is not counted",
        seeds=(31, 20, 103),
        patches=(_sql("rehome.lose", "losses = ?3", "losses = min(losses, ?3)"),),
    ),
    Mutant(
        name="at_most_once_run_reassigned",
        what="an at-most-once run is run again after the death of its node",
        seeds=(38, 42, 26),
        patches=(_sql("rehome.find", "r.at_most_once", "0 AS at_most_once"),),
    ),
    Mutant(
        name="dead_node_runs_not_reassigned",
        what="the runs of a dead node are never reassigned",
        seeds=(28, 20, 103),
        patches=(_sql("rehome.find", "NOT EXISTS", "0 AND NOT EXISTS"),),
    ),
    # --- duties
    Mutant(
        name="duty_taken_from_live_holder",
        what="a duty is taken from a live holder",
        seeds=(31, 33, 142),
        patches=(
            _sql(
                "hold_duties.take",
                "AND NOT EXISTS (SELECT 1 FROM evertick_nodes holder",
                "AND (1 OR EXISTS (SELECT 1 FROM evertick_nodes holder",
            ),
            _sql("hold_duties.take", "holder.died_at IS NULL)", "holder.died_at IS NULL)) AND node IS NOT ?2"),
            _attribute(SqliteStore, "hold_duties", _hold_at_once),
        ),
    ),
    Mutant(
        name="term_not_increased",
        what="a new holder acts under the term of the previous one",
        seeds=(101, 31, 33),
        patches=(_sql("hold_duties.take", "term = 1 + CASE WHEN term > 0", "term = CASE WHEN term > 0"),),
    ),
    Mutant(
        name="duty_kept_after_lease",
        what="the holder of a duty continues while the store is unreachable",
        seeds=(68, 177),
        patches=(
            _attribute(duty.Term, "_is_trusted", lambda self: True),
            _wrapped(duty.DutyKeeper, "stop_all", _keep_while_silent),
        ),
    ),
    Mutant(
        name="duty_resigned_before_stop",
        what="a duty is resigned while its function still runs",
        seeds=(137, 33, 42),
        patches=(_attribute(duty.Term, "stop", lambda self, why: None),),
    ),
    # --- moments
    Mutant(
        name="record_without_cursor_guard",
        what="a plan is written although the cursor has changed",
        seeds=(28, 20, 60),
        patches=_ANY_CURSOR,
    ),
    Mutant(
        name="moment_run_twice",
        what="neither the cursor nor the unique index prevents a second run of a moment (a pair)",
        seeds=(124, 20, 103),
        patches=(
            *_ANY_CURSOR,
            _sql("record_fires.run", "h.schedule_id = n.schedule_id AND h.fire_at = n.fire_at", "0"),
        ),
        tables=(
            "DROP INDEX evertick_runs_moment",
            f"CREATE INDEX evertick_runs_moment ON evertick_runs {_MOMENT_INDEX}",
            "DROP INDEX evertick_history_moment",
            f"CREATE INDEX evertick_history_moment ON evertick_history {_MOMENT_INDEX}",
        ),
    ),
    Mutant(
        name="planned_by_node_clock",
        what="a node plans by its own clock instead of the store's",
        seeds=(28, 103, 20),
        patches=(_wrapped(fire.Recorder, "_plan", _plan_by_own_clock),),
    ),
    Mutant(
        name="gap_count_off_by_one",
        what="the count of a gap is one too high",
        seeds=(31, 20, 103),
        patches=tuple(_wrapped(where, "make_gap", _count_one_more) for where in (moments, blackout, plan, settlement)),
    ),
    Mutant(
        name="coalesced_moments_not_recorded",
        what="coalesced moments are not recorded",
        seeds=(124, 31, 103),
        patches=(_wrapped(plan, "_catch_up_latest", _skip_oldest),),
    ),
    Mutant(
        name="catch_up_drops_newest",
        what="catch-up all drops the newest moment",
        seeds=(84, 80),
        patches=(_wrapped(plan, "_catch_up_all", _drop_newest),),
    ),
    Mutant(
        name="overlap_unguarded",
        what="live runs are checked before the transaction and not in it",
        seeds=(147, 18),
        patches=(_wrapped(fire, "advance_of", _unguarded),),
    ),
    Mutant(
        name="overlap_ignored_by_trigger",
        what="a trigger starts a run beside a live one",
        seeds=(142, 42, 59),
        patches=(_attribute(editor, "admit", lambda overlap, live: "free"),),
    ),
    Mutant(
        name="blocked_run_never_freed",
        what="a verdict does not free the run that is blocked on it",
        seeds=(28, 20, 189),
        patches=(_no_sql("run.unblock"),),
    ),
    Mutant(
        name="after_end_not_restarted",
        what="an after-end schedule never starts again",
        seeds=(38, 20, 103),
        patches=(_no_sql("schedule.count_from_end"),),
    ),
    # --- edits
    Mutant(
        name="paused_moments_not_recorded",
        what="the moments of a pause are not recorded when it ends",
        seeds=(31, 20, 103),
        patches=(_wrapped(editor, "settle", _forget_pause),),
    ),
    Mutant(
        name="edit_does_not_settle",
        what="an edit does not settle the due moments of the old definition",
        seeds=(101, 31, 20),
        patches=(_attribute(editor, "settle", lambda *args, **options: ((), ())),),
    ),
    Mutant(
        name="edit_sets_cursor_in_the_past",
        what="after an edit or a resume the cursor is in the past",
        seeds=(101, 31, 20),
        patches=(_wrapped(editor, "cursor_after", _cursor_in_the_past),),
    ),
    Mutant(
        name="removed_schedule_keeps_runs",
        what="removing a schedule keeps its waiting runs",
        seeds=(31, 158, 80),
        patches=(_attribute(schedules, "_remove", _keep_runs),),
    ),
    # --- limits
    Mutant(
        name="limited_run_recorded_as_claimed",
        what="a fire of a limited task is recorded as already running",
        seeds=(147, 60),
        patches=(_attribute(node.LocalNode, "is_limited", lambda self, task: False),),
    ),
    Mutant(
        name="limit_counted_once_per_claim",
        what="a claim does not count the runs that it takes itself",
        seeds=(103, 33, 60),
        patches=(_wrapped(limits.Gate, "_admit", _count_once),),
    ),
    Mutant(
        name="limit_ignored_by_recovery",
        what="runs of a dead node are reassigned without a check of their limit",
        seeds=(10, 41),
        patches=(_attribute(nodes, "can_be_claimed", lambda row, tasks: row["task"] in tasks),),
    ),
    Mutant(
        name="limit_never_unblocks",
        what="the end of a limited run unblocks no other run",
        seeds=(216, 103, 33),
        patches=(_attribute(endings, "make_room", lambda db, app, keys: False),),
    ),
    Mutant(
        name="limit_counts_released_runs",
        what="a released run still counts as running, and unblocks no other run",
        seeds=(103, 60, 119),
        patches=(
            _attribute(endings, "_limits_left", lambda held, back: []),
            _sql("rehome.find", "r.limit_key", "NULL AS limit_key"),
        ),
    ),
    Mutant(
        name="limit_loses_place_of_cancelled_run",
        what="an unblocked run that is cancelled does not pass its place on",
        seeds=(214, 184, 161),
        patches=(_sql("run.ending", "ELSE r.limit_key END", "ELSE NULL END"),),
    ),
    Mutant(
        name="limit_not_continued_after_claim",
        what="a claim unblocks no run after those it has taken, and sets no time for it",
        seeds=(147, 20, 103),
        patches=(_attribute(limits.Gate, "settle", lambda self, slots: False),),
    ),
    Mutant(
        name="old_limit_still_blocks",
        what="runs blocked by a limit that no node has any more stay blocked, after a join and after a death (a pair)",
        seeds=(103, 47, 97),
        patches=(
            _sql("join.has_other_limits", "limits <> ?3", "limits <> ?3 AND 0"),
            _sql("die.look_again", "died_at IS NULL", "0"),
        ),
    ),
    Mutant(
        name="limit_times_ignored",
        what="a claim ignores limit keys whose time has come",
        seeds=(33, 20, 60),
        patches=(_attribute(limits.Gate, "open_due", lambda self: None),),
    ),
    Mutant(
        name="limit_counts_as_overlap_queue",
        what="a run blocked by a limit counts as queued by overlap",
        seeds=(10, 203, 199),
        patches=(
            _sql("due_schedules", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("record_fires.fitting", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("stored_schedules.by_ids", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("stored_schedules.by_keys", _QUEUED, "r.schedule_id = d.schedule_id)"),
        ),
    ),
    Mutant(
        name="rate_period_too_short",
        what="a start counts three seconds too short",
        seeds=(147, 20, 60),
        patches=(_sql("limits.starts", "at > ?3", "at > ?3 + 3000000"),),
    ),
    Mutant(
        name="rate_ignores_retries",
        what="a retry does not count as a start",
        seeds=(20, 60, 147),
        patches=(_wrapped(limits.Gate, "_admit", _ignore_retries),),
    ),
    Mutant(
        name="node_exceeds_slots",
        what="a node takes one run more than it has slots",
        seeds=(38, 31, 20),
        patches=(_attribute(node.Hold, "idle", property(_one_slot_too_many)),),
    ),
    # --- overrides and blackouts
    Mutant(
        name="skip_not_recorded",
        what="a skipped moment has no row",
        seeds=(192, 33, 60),
        patches=(_wrapped(plan, "with_decisions", _drop_skipped),),
    ),
    Mutant(
        name="moved_moment_fires_twice",
        what="a moment moved to an earlier time fires again at its old time (two guards, a pair)",
        seeds=(20, 192, 63),
        patches=(
            _wrapped(plan, "with_decisions", _drop_done),
            _attribute(editor, "without_decided", lambda rule, occurrences: rule),
        ),
    ),
    Mutant(
        name="override_not_written",
        what="an override is not stored",
        seeds=(192, 33, 60),
        patches=(_no_sql("record_fires.decide"),),
    ),
    Mutant(
        name="removed_moved_moment_not_recorded",
        what="a moved moment of a schedule that is removed before it has no row",
        seeds=(920, 1656),
        patches=(
            _wrapped(
                editor,
                "settle_decisions",
                _drop_gaps(lambda _, reason, each: reason is Reason.REMOVED and each.kind == "move"),
            ),
        ),
    ),
    Mutant(
        name="skip_in_pause_not_recorded",
        what="a skipped moment during a pause has no row when the pause ends",
        seeds=(200, 63),
        patches=(
            _wrapped(
                editor,
                "settle_decisions",
                _drop_gaps(lambda inputs, _, each: inputs.pause is not None and each.kind == "skip"),
            ),
        ),
    ),
    Mutant(
        name="blackout_ignored",
        what="a schedule fires during its blackout",
        seeds=(20, 203, 63),
        patches=(_wrapped(fire, "plan_inputs_of", _without_blackout),),
    ),
    Mutant(
        name="dropped_moments_not_recorded",
        what="moments that a blackout drops have no row",
        seeds=(79, 80, 203),
        patches=tuple(_attribute(where, "gap_of_blackout", lambda inputs, until: ()) for where in (plan, settlement)),
    ),
    # --- the outbox
    Mutant(
        name="lost_outcome_sends_messages",
        what="the messages of a lost outcome are written",
        seeds=(132, 195),
        patches=(_wrapped(SqliteStore, "finish", _send_lost_messages),),
    ),
    Mutant(
        name="failed_attempt_sends_messages",
        what="an attempt that fails, is stopped or released sends its messages",
        seeds=(101, 168, 132),
        patches=(_wrapped(finish.Finisher, "put", _send_always),),
    ),
    Mutant(
        name="message_not_written",
        what="a run ends without writing its messages",
        seeds=(101, 168, 132),
        patches=(_attribute(endings, "write_messages", lambda *args: None),),
    ),
    Mutant(
        name="message_settled_without_guard",
        what="a message in any state is settled by any node (three guards)",
        seeds=(89, 171),
        patches=(
            _sql(
                "settle_messages.held",
                "m.node = ?3 AND m.fence = o.value AND m.claimed_at IS NOT NULL",
                "?3 <> o.value",
            ),
        ),
    ),
    Mutant(
        name="message_of_dead_node_not_sent",
        what="a message of a dead node is not sent by another node",
        seeds=(9, 168, 132),
        patches=(_no_sql("claim_messages.release_lost"),),
    ),
    Mutant(
        name="message_of_dead_node_late",
        what="a message of a dead node waits for a minute",
        seeds=(161, 61, 204),
        patches=(_sql("claim_messages.release_lost", "n.died_at IS NULL", "coalesce(n.died_at > ?3 - 60000000, 1)"),),
    ),
    Mutant(
        name="message_of_live_node_taken",
        what="a message is taken from a live node that sends it",
        seeds=(168, 132, 80),
        patches=(_sql("claim_messages.release_lost", "n.died_at IS NULL", "n.died_at IS NULL AND 1 = 0"),),
    ),
    Mutant(
        name="unanswered_message_claim_kept",
        what="a message whose claim was not answered is never sent",
        seeds=(128, 87, 155),
        patches=(_no_sql("claim_messages.release_strays"),),
    ),
    Mutant(
        name="failed_delivery_counts_as_sent",
        what="a message that could not be delivered counts as sent",
        seeds=(174, 168, 132),
        patches=(_wrapped(outbox_delivery, "judge_delivery", _count_as_sent),),
    ),
    Mutant(
        name="message_dead_after_first_attempt",
        what="a message is dead after its first attempt",
        seeds=(168, 132, 80),
        patches=(_wrapped(outbox_delivery, "judge_delivery", _give_up_at_once),),
    ),
    # --- dispatched runs
    Mutant(
        name="report_with_old_fence_accepted",
        what="a report about an earlier dispatch is accepted for the current one",
        seeds=(7, 12, 22),
        patches=(_wrapped(sqlite_dispatched, "apply_all", _accept_any_fence),),
    ),
    Mutant(
        name="dispatch_without_its_message",
        what="the message of a dispatch is written in another transaction",
        seeds=(101, 4, 7),
        patches=(_wrapped(finish.Finisher, "_write", _send_afterwards),),
    ),
    Mutant(
        name="message_settled_before_report",
        what="a delivered message is settled before its run is updated",
        seeds=(132, 125),
        patches=(_wrapped(outbox_delivery.OutboxDelivery, "_settle", _settle_first),),
    ),
    Mutant(
        name="progress_report_ignored",
        what="a worker that reports progress loses its run as silent",
        seeds=(23, 8, 12),
        patches=(_attribute(dispatched._DispatchedRun, "_silent_until", _silent_since_taken),),
    ),
    Mutant(
        name="ack_timeout_starts_too_soon",
        what="the time to take a run begins before its queue has it",
        seeds=(87, 118),
        patches=(_sql("finish.dispatch", "deadline = NULL", "deadline = ?3 + json_extract(o.value, '$.ack_timeout')"),),
    ),
    Mutant(
        name="silence_without_reading",
        what="a node that cannot read reports declares workers silent",
        seeds=(23, 12, 39),
        patches=(_attribute(report.ReportWatch, "stretch", lambda self, now: (0.0, now)),),
    ),
    Mutant(
        name="dispatched_run_not_limited",
        what="a dispatched run does not count for its limit",
        seeds=(131, 8, 55),
        patches=(
            _sql(
                "limits.running",
                "INDEXED BY evertick_runs_limited\nWHERE state IN ('running', 'dispatched')",
                "WHERE state = 'running'",
            ),
        ),
    ),
    Mutant(
        name="dispatched_run_lost_with_its_node",
        what="a run that a dead node has dispatched is lost with it",
        seeds=(47, 82),
        patches=(_sql("rehome.bound", "NOT IN ('running', 'dispatched')", "<> 'running'"),),
    ),
    Mutant(
        name="at_most_once_run_dispatched_again",
        what="an at-most-once run is dispatched again",
        seeds=(47,),
        patches=(_wrapped(dispatched, "_revoke", _ignore_at_most_once),),
    ),
    Mutant(
        name="worker_failure_spends_no_attempt",
        what="a failure at a worker spends no attempt",
        seeds=(217, 7, 22),
        patches=(_wrapped(dispatched._DispatchedRun, "_outcome", _without_attempt),),
    ),
    Mutant(
        name="dispatch_timeouts_ignored",
        what="a dispatched run that is never taken stays dispatched",
        seeds=(128, 7, 8),
        patches=(_sql("check_dispatched.find_overdue", "deadline <= ?2", "deadline <= ?2 - 3600000000"),),
    ),
    Mutant(
        name="cancelled_dispatch_retried",
        what="a dispatched run with a requested cancel is retried",
        seeds=(142, 7, 23),
        patches=(_attribute(dispatched, "cancelled_outcome", lambda outcome, held: outcome),),
    ),
    Mutant(
        name="message_of_cancelled_dispatch_sent",
        what="the message of a run that was cancelled before its dispatch is sent",
        seeds=(157, 55),
        patches=(_no_sql("check_dispatched.withdraw"), _sql("check_dispatched.is_unsent", "NOT EXISTS", "EXISTS")),
    ),
    # --- every node
    Mutant(
        name="every_node_leaves_one_out",
        what="an every-node moment leaves one node out",
        seeds=(169, 119),
        patches=(_wrapped(planning, "able_nodes", lambda able: lambda nodes, task: able(nodes, task)[:-1]),),
    ),
    Mutant(
        name="every_node_run_in_common_queue",
        what="an every-node run is in the queue of all nodes",
        seeds=(31, 169, 119),
        patches=(_attribute(planning, "own_queue", lambda node: "default"),),
    ),
    Mutant(
        name="every_node_reads_nodes_once",
        what="the live nodes are read once and not for each moment",
        seeds=(169, 119, 84),
        patches=(_wrapped(fire.Recorder, "_nodes", _read_nodes_once),),
    ),
    Mutant(
        name="every_node_ignores_overlap",
        what="a node that is still running gets the next moment, too",
        seeds=(31, 169, 119),
        patches=(_attribute(planning, "unique_key_on", lambda *about: None),),
    ),
    Mutant(
        name="dead_node_queue_never_ended",
        what="a run in the own queue of a dead node waits for ever",
        seeds=(31, 169, 71),
        patches=(_sql("rehome.bound", "r.state NOT IN ('running', 'dispatched')", "1 = 0"),),
    ),
    # --- parked runs
    Mutant(
        name="parked_run_stops_its_schedule",
        what="a parked run does not yield to the next fire",
        seeds=(7005979, 7002105, 7003320),
        patches=(_wrapped(plan, "admit", _parked_is_live),),
    ),
    Mutant(
        name="live_run_replaced_by_skip",
        what="with overlap skip the next fire replaces a run that is not parked",
        seeds=(28, 7005979, 7002105),
        patches=(
            _attribute(plan, "admit", lambda overlap, live: "free"),
            _attribute(plan, "takes_place", _always_takes_place),
        ),
    ),
    Mutant(
        name="parked_run_replaced_by_catch_up_all",
        what="with catch-up all the next fire replaces a parked run instead of waiting for it",
        seeds=(7005979,),
        patches=(_wrapped(plan, "_catch_up_all", _ignore_catch_up_all),),
    ),
    # --- unique keys
    Mutant(
        name="unique_key_kept_after_start",
        what="a unique key until the first start is kept until the end",
        seeds=(20, 119, 80),
        patches=(_sql("claim.mark", "THEN NULL", "THEN unique_key"),),
    ),
    Mutant(
        name="unique_period_ignored",
        what="a unique key for a period is free when its run has ended",
        seeds=(216, 20, 103),
        patches=(_sql("enqueue.find_unique_for", "u.until > ?3", "u.until < ?3 * 0"),),
    ),
    Mutant(
        name="unique_period_without_end",
        what="a unique key for a period is never free again",
        seeds=(216, 20, 103),
        patches=(_sql("enqueue.find_unique_for", "u.until > ?3", "u.until > ?3 * 0"),),
    ),
    Mutant(
        name="unique_key_shared",
        what="two live runs can have the same unique key (check and index, a pair)",
        seeds=(38, 20, 103),
        patches=tuple(_attribute(where, "is_duplicate", lambda *args: False) for where in (fires,)),
        tables=(
            "DROP INDEX evertick_runs_unique",
            "CREATE INDEX evertick_runs_unique ON evertick_runs (app, unique_key)",
        ),
    ),
)

# Not planted: single halves of pairs. The other guard still holds, so they have no effect, or hardly any.
#
# - finish without its fence guard: the node guard holds, unless one node claims a run twice;
# - finish without its node guard: a fence is never drawn twice, so it identifies the node, too;
# - a message settled without one of its guards: the same. Without both, a node that has lost the message must return in
#   the few seconds in which the next one sends it;
# - a dead node takes a duty: a node that does not learn of its death stops asking before its lease expires;
# - no unique index on keys: an insert of a run checks the key in the same transaction;
# - no unique index on moments: the cursor guard accepts only one plan of a moment.
