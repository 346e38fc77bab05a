"""Planted bugs: small wrongs of the kind that people make, each of which the oracle must see.

A mutant patches the engine, the planning, the editing or the SQLite store while its simulations run. Two guards that
back each other up hide each other's absence: such bugs are planted in pairs, and the halves that nobody can
see from outside are named at the end.
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
from simulation.run import Simulated, simulate

__all__ = ["MUTANTS", "Mutant"]

Patch = Callable[[], Any]


class Mutant(msgspec.Struct, frozen=True, kw_only=True):
    """A bug and the seeds whose stories bring it to light: searched once, a few more than are needed."""

    name: str
    what: str
    patches: tuple[Patch, ...]
    seeds: tuple[int, ...] = ()
    # What it does to the tables (a dropped index).
    tables: tuple[str, ...] = ()

    def simulate(self, seed: int) -> Simulated:
        with ExitStack() as stack:
            for patch in self.patches:
                stack.enter_context(patch())
            return simulate(seed, prepare=self._prepare)

    def _prepare(self, db: sqlite3.Connection) -> None:
        for statement in self.tables:
            db.execute(statement)


def _attribute(owner: Any, name: str, value: Any) -> Patch:
    """Replace a function or constant; a `value` named make gets the original."""
    return lambda: mock.patch.object(owner, name, value)


def _wrapped(owner: Any, name: str, wrap: Callable[[Any], Any]) -> Patch:
    return lambda: mock.patch.object(owner, name, wrap(getattr(owner, name)))


def _sql(name: str, old: str, new: str) -> Patch:
    """Change a part of a statement."""

    @contextmanager
    def patch() -> Iterator[None]:
        statement = SQL[name]
        assert old in statement, f"{name} does not read {old!r} any more: the mutant must follow"
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


# --- bugs that take more than a line ---------------------------------------------------------------------------


async def _hold_at_once(self: SqliteStore, app: str, node: str, names: Any) -> Any:
    """Without a look whether there is anything to take."""
    return await self.session().write(lambda db, now: nodes.hold_duties(db, now, app, node, names))


def _stop_only_if_told(original: Any) -> Any:
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


def _remember(original: Any) -> Any:
    """Who is there is read once."""

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


def _believe_unanswered(original: Any) -> Any:
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


def _send_of_all(original: Any) -> Any:
    async def finish_all(self: SqliteStore, app: str, node: str, outcomes: Any) -> Any:
        finished = await original(self, app, node, outcomes)
        sent = [message for outcome in outcomes for message in outcome.messages]
        await self.session().write(lambda db, now: write_messages(db, now, app, sent))
        return finished

    return finish_all


def _send_whatever_came(original: Any) -> Any:
    def put(self: finish.Finisher, attempt: Any, outcome: Any) -> None:
        original(self, attempt, msgspec.structs.replace(outcome, messages=tuple(attempt.record.messages)))

    return put


def _sent_whatever_came(original: Any) -> Any:
    def judge_as_sent(message: Any, sender: Any, error: Any, uniform: float, keep_dead: int) -> Any:
        return original(message, sender, None, uniform, keep_dead)

    return judge_as_sent


def _give_up_at_once(original: Any) -> Any:
    def judge_once(message: Any, sender: Any, error: Any, uniform: float, keep_dead: int) -> Any:
        return original(message, msgspec.structs.replace(sender, retry=never_again), error, uniform, keep_dead)

    return judge_once


def _whatever_fence(original: Any) -> Any:
    """A report is taken for the run as it stands, whoever it was dispatched to when the worker got it."""

    def hear(reports: Any, rows: Any, now: int) -> Any:
        fences = {row["id"]: row["fence"] for row in rows}
        told = [msgspec.structs.replace(each, fence=fences.get(each.id, each.fence)) for each in reports]
        return original(told, rows, now)

    return hear


def _send_afterwards(original: Any) -> Any:
    """Messages are sent when the outcome is written, by a call of their own."""

    async def write(self: finish.Finisher, batch: Any, outcomes: Any) -> Any:
        messages = [message for outcome in outcomes for message in outcome.messages]
        bare = [msgspec.structs.replace(outcome, messages=()) for outcome in outcomes]
        finished = await original(self, batch, bare)
        if messages:
            await self._node.store.send(self._node.app, messages)
        return finished

    return write


def _settle_first(original: Any) -> Any:
    """A message is settled before its run is told of it, which a death in between prevents."""

    async def settle(self: outbox_delivery.OutboxDelivery) -> None:
        told: list[Any] = []
        self._report, before = (lambda batch: _later(told, batch)), self._report  # type: ignore[method-assign]
        try:
            await original(self)
        finally:
            self._report = before  # type: ignore[method-assign]
        for batch in told:
            await self._report(batch)

    async def _later(told: list[Any], batch: Any) -> None:
        told.append(list(batch))

    return settle


def _silent_since_taken(self: Any) -> Any:
    return (self._taken_at or self._now) + self._terms.progress_timeout


def _lose_and_go_on(original: Any) -> Any:
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


def _forget_done(original: Any) -> Any:
    def with_decisions(inputs: Any, made: Any, now: int) -> Any:
        planned = original(inputs, made, now)
        kept = tuple(each for each in planned.occurrences or () if each.kind != "done")
        return planned if planned.occurrences is None else msgspec.structs.replace(planned, occurrences=kept)

    return with_decisions


def _given_up_without_a_row(is_given_up: Callable[[Any, Reason, Any], bool]) -> Callable[[Any], Any]:
    def wrap(original: Any) -> Any:
        def settle_decisions(inputs: Any, now: int, reason: Reason, **options: Any) -> Any:
            settled = original(inputs, now, reason, **options)
            given_up = {each.fire_at for each in inputs.occurrences if is_given_up(inputs, reason, each)}
            kept = tuple(gap for gap in settled.gaps if gap.first_at not in given_up)
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


def _judge_always(original: Any) -> Any:
    async def step(self: recovery.Recoverer) -> Any:
        self._judges_from = 0.0
        return await original(self)

    return step


def _backwards(original: Any) -> Any:
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


def _deaf_to_beats(self: engine.Engine, run_ids: list[str]) -> None:
    return None


def _leave_waiting(db: sqlite3.Connection, now: int, app: str, schedule: int) -> None:
    db.execute(SQL["change_schedules.remove"], (schedule,))
    db.execute(SQL["change_schedules.remove_due"], (schedule,))


def _count_before_taking(original: Any) -> Any:
    def let_in(self: limits.Gate, row: Any, terms: Any) -> Any:
        key = original(self, row, terms)
        # Read again from the tables, where those that this claim takes do not stand yet.
        self._running.clear()
        return key

    return let_in


def _retry_for_free(original: Any) -> Any:
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
        what="an outcome is taken whoever brings it and under whatever fence (node and fence guard, a pair)",
        seeds=(184, 35),
        patches=(_sql("finish.held", "r.node = ?3 AND r.fence = o.value", "?3 IS NOT NULL"),),
    ),
    Mutant(
        name="note_without_guard",
        what="progress and log lines are taken from a claim that is over",
        seeds=(214, 12),
        patches=(_sql("note.progress", "node = ?3 AND fence = ?4", _ANY_CLAIM),),
    ),
    Mutant(
        name="same_fence_again",
        what="a claim does not draw a new fence",
        seeds=(20, 103, 31),
        patches=(_sql("fence.draw", "value + 1", "max(value, 1)"),),
    ),
    Mutant(
        name="dead_nodes_claim",
        what="a node that is written down as dead still gets work",
        seeds=(132, 71, 84),
        patches=(
            _sql("claim.node", " AND died_at IS NULL", ""),
            _attribute(fires, "is_alive", lambda db, node: True),
        ),
    ),
    Mutant(
        name="start_without_answer",
        what="a node starts what it has asked for although the answer was lost",
        seeds=(142, 189),
        patches=(_wrapped(fire.Recorder, "_record", _believe_unanswered),),
    ),
    Mutant(
        name="strays_kept",
        what="runs that were claimed without hearing of it are never given back",
        seeds=(142, 189, 119),
        patches=(_attribute(recovery.Recoverer, "_reconcile", _no_reconcile),),
    ),
    Mutant(
        name="claiming_unlocked",
        what="claims under way are taken for strays",
        seeds=(33,),
        patches=(_wrapped(node.LocalNode, "__init__", _without_lock),),
    ),
    Mutant(
        name="lowest_priority_first",
        what="claims begin with the lowest priority",
        seeds=(103, 20, 60),
        patches=(_wrapped(claims, "_lanes", _backwards),),
    ),
    Mutant(
        name="expiry_ignored",
        what="a run that is too old to start is started",
        seeds=(103, 31, 42),
        patches=(_attribute(claims, "_is_expired", lambda run, now: False),),
    ),
    # --- outcomes
    Mutant(
        name="unanswered_outcome_forgotten",
        what="an outcome whose answer was lost is not sent again",
        seeds=(189, 33, 181),
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
        what="work that a stop cut off counts as a failed attempt",
        seeds=(103, 33, 60),
        patches=(_wrapped(judge, "_judge_stop", _spend_attempt),),
    ),
    Mutant(
        name="retry_at_once",
        what="a retry does not wait for its delay",
        seeds=(31, 20, 103),
        patches=(_sql("finish.retry", "due_at = ?3", "due_at = min(?3, due_at)"),),
    ),
    Mutant(
        name="cancel_forgotten_by_retry",
        what="a run whose cancel was asked for is tried again",
        seeds=(33, 68),
        patches=(_sql("finish.held", "r.is_cancel_requested", "0"),),
    ),
    Mutant(
        name="cancel_not_heard",
        what="a node does not listen to the cancels that its beat brings",
        seeds=(203, 47, 63),
        patches=(_attribute(engine.Engine, "cancel", _deaf_to_beats),),
    ),
    Mutant(
        name="timeout_ignored",
        what="an attempt may take as long as it likes",
        seeds=(71, 63, 22),
        patches=(_attribute(work.Timeouts, "_set_timer", lambda self, loop, when: None),),
    ),
    # --- death
    Mutant(
        name="judged_too_soon",
        what="a node is declared dead ten seconds before its lease runs out",
        seeds=(31, 20, 103),
        patches=(_sql("judge", "lease_until < ?1", "lease_until < ?1 + 10000000"),),
    ),
    Mutant(
        name="judged_after_outage",
        what="whoever comes back first after an outage declares all others dead",
        seeds=(35, 71),
        patches=(_wrapped(recovery.Recoverer, "step", _judge_always),),
    ),
    Mutant(
        name="death_inferred",
        what="runs are taken from a node whose lease has run out before its death is written down",
        seeds=(31, 20, 103),
        patches=(_sql("rehome.find", "n.died_at IS NULL", "n.died_at IS NULL AND n.lease_until > ?2 + 60000000"),),
    ),
    Mutant(
        name="beat_revives",
        what="a beat brings a dead node back to life",
        seeds=(181, 20, 192),
        patches=(
            _sql("beat", "SET beat_at", "SET died_at = NULL, beat_at"),
            _sql("beat", "AND died_at IS NULL", ""),
        ),
    ),
    Mutant(
        name="reborn_goes_on",
        what="a node that learns of its death lets its work go on",
        seeds=(174, 8, 131),
        patches=(_wrapped(work.Worker, "stop", _ignore(Stop.LOST)),),
    ),
    Mutant(
        name="losses_without_end",
        what="a run that takes every node down with it is run for ever",
        seeds=(67, 33),
        patches=(_attribute(verdicts, "LOSSES_MAX", 99),),
    ),
    Mutant(
        name="losses_not_counted",
        what="a lost claim leaves no mark",
        seeds=(31, 20, 103),
        patches=(_sql("rehome.lose", "losses = ?3", "losses = min(losses, ?3)"),),
    ),
    Mutant(
        name="precious_run_again",
        what="what must not run twice is run again after its node has died",
        seeds=(42, 26),
        patches=(_sql("rehome.find", "r.at_most_once", "0 AS at_most_once"),),
    ),
    Mutant(
        name="nobody_rehomes",
        what="the runs of the dead are left to them",
        seeds=(20, 103, 31),
        patches=(_sql("rehome.find", "NOT EXISTS", "0 AND NOT EXISTS"),),
    ),
    # --- duties
    Mutant(
        name="duty_taken_from_the_living",
        what="a duty is taken though its holder lives",
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
        name="term_stands_still",
        what="a new holder acts under the term of the one before",
        seeds=(31, 33, 142),
        patches=(_sql("hold_duties.take", "term = 1 + CASE WHEN term > 0", "term = CASE WHEN term > 0"),),
    ),
    Mutant(
        name="holder_outlives_its_lease",
        what="who holds a duty goes on while the store is silent",
        seeds=(68, 177),
        patches=(
            _attribute(duty.Term, "_is_trusted", lambda self: True),
            _wrapped(duty.DutyKeeper, "stop_all", _stop_only_if_told),
        ),
    ),
    Mutant(
        name="resigned_before_it_has_stopped",
        what="a duty is handed over while its function is still at it",
        seeds=(33, 42, 71),
        patches=(_attribute(duty.Term, "stop", lambda self, why: None),),
    ),
    # --- moments
    Mutant(
        name="record_without_cursor_guard",
        what="a plan is written whatever became of the cursor meanwhile",
        seeds=(20, 60, 142),
        patches=_ANY_CURSOR,
    ),
    Mutant(
        name="moment_run_twice",
        what="neither the cursor nor the unique index keeps a moment from a second run (a pair)",
        seeds=(20, 103, 189),
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
        name="planned_by_own_clock",
        what="a node plans by its own clock instead of the store's",
        seeds=(103, 20, 31),
        patches=(_wrapped(fire.Recorder, "_plan", _plan_by_own_clock),),
    ),
    Mutant(
        name="gap_counts_one_more",
        what="a gap is counted with its fence posts",
        seeds=(31, 20, 103),
        patches=tuple(_wrapped(where, "make_gap", _count_one_more) for where in (moments, blackout, plan, settlement)),
    ),
    Mutant(
        name="coalesced_without_trace",
        what="moments for which a newer one runs are not recorded",
        seeds=(31, 103, 60),
        patches=(_wrapped(plan, "_catch_up_latest", _skip_oldest),),
    ),
    Mutant(
        name="catch_up_drops_newest",
        what="catching up with all moments forgets the newest",
        seeds=(84, 80),
        patches=(_wrapped(plan, "_catch_up_all", _drop_newest),),
    ),
    Mutant(
        name="overlap_unguarded",
        what="whether a run is live is looked at before the transaction, not in it",
        seeds=(12,),
        patches=(_wrapped(fire, "advance_of", _unguarded),),
    ),
    Mutant(
        name="overlap_ignored_by_trigger",
        what="a trigger by hand runs beside a live run",
        seeds=(42, 59, 26),
        patches=(_attribute(editor, "admit", lambda overlap, live: "free"),),
    ),
    Mutant(
        name="blocked_for_ever",
        what="a verdict does not free what waits for it",
        seeds=(20, 189, 33),
        patches=(_no_sql("run.unblock"),),
    ),
    Mutant(
        name="end_not_counted",
        what="a schedule that counts from the end of its runs never starts again",
        seeds=(20, 103, 189),
        patches=(_no_sql("schedule.count_from_end"),),
    ),
    # --- people
    Mutant(
        name="pause_forgotten",
        what="the moments of a pause are not recorded when it ends",
        seeds=(31, 20, 103),
        patches=(_wrapped(editor, "settle", _forget_pause),),
    ),
    Mutant(
        name="edit_does_not_settle",
        what="a change forgets what the old definition still owed",
        seeds=(31, 20, 103),
        patches=(_attribute(editor, "settle", lambda *args, **options: ((), ())),),
    ),
    Mutant(
        name="change_fires_at_once",
        what="after an edit or a resume the cursor starts in the past",
        seeds=(31, 20, 103),
        patches=(_wrapped(editor, "cursor_after", _cursor_in_the_past),),
    ),
    Mutant(
        name="removed_runs_on",
        what="removing a schedule leaves its waiting runs",
        seeds=(158, 80, 153),
        patches=(_attribute(schedules, "_remove", _leave_waiting),),
    ),
    # --- limits
    Mutant(
        name="limit_fused",
        what="a fire of a limited task is recorded as already running",
        seeds=(147, 60),
        patches=(_attribute(node.LocalNode, "is_limited", lambda self, task: False),),
    ),
    Mutant(
        name="limit_counted_before",
        what="a claim counts what runs, and then takes as many as it likes up to the limit, for each of them anew",
        seeds=(103, 33, 60),
        patches=(_wrapped(limits.Gate, "_admit", _count_before_taking),),
    ),
    Mutant(
        name="limit_not_asked_by_rehoming",
        what="the runs of the dead are taken over whatever their limit says",
        seeds=(41,),
        patches=(_attribute(nodes, "can_be_claimed", lambda row, tasks: row["task"] in tasks),),
    ),
    Mutant(
        name="limit_lets_nobody_through",
        what="the end of a run under a limit lets nobody through",
        seeds=(103, 33, 60),
        patches=(_attribute(endings, "make_room", lambda db, app, keys: False),),
    ),
    Mutant(
        name="limit_forgets_the_put_back",
        what="a run that is put back counts as running on, so that nobody is let through for it",
        seeds=(103, 60, 119),
        patches=(
            _attribute(endings, "_limits_left", lambda held, back: []),
            _sql("rehome.find", "r.limit_key", "NULL AS limit_key"),
        ),
    ),
    Mutant(
        name="limit_forgets_the_cancelled",
        what="one that was let through and is cancelled takes its turn with it",
        seeds=(184, 161, 97),
        patches=(_sql("run.ending", "ELSE r.limit_key END", "ELSE NULL END"),),
    ),
    Mutant(
        name="limit_does_not_go_on",
        what="a claim lets nobody through after those it has taken, and sets no time for them",
        seeds=(20, 103, 33),
        patches=(_attribute(limits.Gate, "settle", lambda self, slots: False),),
    ),
    Mutant(
        name="limit_of_the_past_holds",
        what="nobody looks again at what was held back under limits of others, neither joining nor living (a pair)",
        seeds=(103, 47, 97),
        patches=(
            _sql("join.has_other_limits", "limits <> ?3", "limits <> ?3 AND 0"),
            _sql("die.look_again", "died_at IS NULL", "0"),
        ),
    ),
    Mutant(
        name="limit_times_ignored",
        what="nobody looks at the keys whose time has come",
        seeds=(33, 20, 60),
        patches=(_attribute(limits.Gate, "open_due", lambda self: None),),
    ),
    Mutant(
        name="limit_queues_for_overlap",
        what="a run that a limit holds back counts as one that overlap has queued",
        seeds=(203, 199, 126),
        patches=(
            _sql("due_schedules", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("record_fires.fitting", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("stored_schedules.by_ids", _QUEUED, "r.schedule_id = d.schedule_id)"),
            _sql("stored_schedules.by_keys", _QUEUED, "r.schedule_id = d.schedule_id)"),
        ),
    ),
    Mutant(
        name="rate_of_a_shorter_period",
        what="a start counts three seconds too short",
        seeds=(147, 20, 60),
        patches=(_sql("limits.starts", "at > ?3", "at > ?3 + 3000000"),),
    ),
    Mutant(
        name="rate_spares_retries",
        what="a retry does not count as a start",
        seeds=(20, 60, 147),
        patches=(_wrapped(limits.Gate, "_admit", _retry_for_free),),
    ),
    Mutant(
        name="node_over_its_slots",
        what="a node takes one run more than it has slots",
        seeds=(31, 20),
        patches=(_attribute(node.Hold, "idle", property(_one_slot_too_many)),),
    ),
    # --- decisions about single moments, and blackouts
    Mutant(
        name="skip_not_recorded",
        what="a moment that somebody skipped is in no row",
        seeds=(192, 33, 60),
        patches=(_wrapped(plan, "with_decisions", _drop_skipped),),
    ),
    Mutant(
        name="moved_moment_comes_again",
        what="a moment that was moved to an earlier time comes once more at its own (done, and left out: a pair)",
        seeds=(20, 192, 63),
        patches=(
            _wrapped(plan, "with_decisions", _forget_done),
            _attribute(editor, "without_decided", lambda rule, occurrences: rule),
        ),
    ),
    Mutant(
        name="decision_not_written",
        what="what was decided about a moment is not kept",
        seeds=(33, 60, 192),
        patches=(_no_sql("record_fires.decide"),),
    ),
    Mutant(
        name="moved_moment_removed_without_trace",
        what="a moment that was moved, and whose schedule is removed before its time, is in no row",
        seeds=(920, 1656),
        patches=(
            _wrapped(
                editor,
                "settle_decisions",
                _given_up_without_a_row(lambda _, reason, each: reason is Reason.REMOVED and each.kind == "move"),
            ),
        ),
    ),
    Mutant(
        name="skip_in_a_pause_not_recorded",
        what="a skipped moment whose time comes in a pause is in no row when it ends",
        seeds=(200, 63),
        patches=(
            _wrapped(
                editor,
                "settle_decisions",
                _given_up_without_a_row(lambda inputs, _, each: inputs.pause is not None and each.kind == "skip"),
            ),
        ),
    ),
    Mutant(
        name="blackout_not_looked_at",
        what="a schedule fires while its blackout is closed",
        seeds=(20, 203, 63),
        patches=(_wrapped(fire, "plan_inputs_of", _without_blackout),),
    ),
    Mutant(
        name="dropped_not_recorded",
        what="what a blackout drops is in no row",
        seeds=(79, 80, 203),
        patches=tuple(_attribute(where, "gap_of_blackout", lambda inputs, until: ()) for where in (plan, settlement)),
    ),
    # --- the outbox
    Mutant(
        name="lost_outcome_sends",
        what="the messages of an outcome are written though its claim is lost",
        seeds=(132, 195),
        patches=(_wrapped(SqliteStore, "finish", _send_of_all),),
    ),
    Mutant(
        name="failed_attempt_sends",
        what="an attempt that fails, is stopped or released sends its messages",
        seeds=(101, 168, 132),
        patches=(_wrapped(finish.Finisher, "put", _send_whatever_came),),
    ),
    Mutant(
        name="message_not_written",
        what="a run ends, and what it sends is not written with it",
        seeds=(101, 168, 132),
        patches=(_attribute(endings, "write_messages", lambda *args: None),),
    ),
    Mutant(
        name="message_settled_by_anybody",
        what="a message is settled whoever brings its outcome, and whatever it is by then (three guards)",
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
        name="message_of_the_dead_left",
        what="what a dead node was sending is not sent by anybody else",
        seeds=(168, 132, 80),
        patches=(_no_sql("claim_messages.release_lost"),),
    ),
    Mutant(
        name="message_of_the_dead_late",
        what="what a dead node was sending is left lying for a minute",
        seeds=(161, 61, 204),
        patches=(_sql("claim_messages.release_lost", "n.died_at IS NULL", "coalesce(n.died_at > ?3 - 60000000, 1)"),),
    ),
    Mutant(
        name="message_of_the_living_taken",
        what="what a living node is sending is taken from it",
        seeds=(168, 132, 80),
        patches=(_sql("claim_messages.release_lost", "n.died_at IS NULL", "n.died_at IS NULL AND 1 = 0"),),
    ),
    Mutant(
        name="unanswered_message_left",
        what="a message whose claim was not answered is not sent by anybody",
        seeds=(87, 155),
        patches=(_no_sql("claim_messages.release_strays"),),
    ),
    Mutant(
        name="failed_delivery_counts",
        what="a message that could not be delivered counts as sent",
        seeds=(168, 132, 80),
        patches=(_wrapped(outbox_delivery, "judge_delivery", _sent_whatever_came),),
    ),
    Mutant(
        name="message_given_up_at_once",
        what="a message is given up after its first try",
        seeds=(168, 132, 80),
        patches=(_wrapped(outbox_delivery, "judge_delivery", _give_up_at_once),),
    ),
    # --- what is dispatched
    Mutant(
        name="report_of_an_old_fence",
        what="what a worker says of an earlier dispatch is taken for the present one",
        seeds=(7, 12, 22),
        patches=(_wrapped(sqlite_dispatched, "apply_all", _whatever_fence),),
    ),
    Mutant(
        name="dispatched_before_its_message",
        what="a run is dispatched, and the message that does it is written by another transaction",
        seeds=(4, 7, 8),
        patches=(_wrapped(finish.Finisher, "_write", _send_afterwards),),
    ),
    Mutant(
        name="told_after_settled",
        what="that a message was delivered is forgotten before its run is told",
        seeds=(132, 125),
        patches=(_wrapped(outbox_delivery.OutboxDelivery, "_settle", _settle_first),),
    ),
    Mutant(
        name="progress_not_heard",
        what="a worker that speaks loses its run as if it were silent",
        seeds=(8, 12),
        patches=(_attribute(dispatched._DispatchedRun, "_silent_until", _silent_since_taken),),
    ),
    Mutant(
        name="queue_away_costs",
        what="the time to take a run begins before its queue has it",
        seeds=(87, 118),
        patches=(_sql("finish.dispatch", "deadline = NULL", "deadline = ?3 + json_extract(o.value, '$.ack_timeout')"),),
    ),
    Mutant(
        name="deaf_and_judging",
        what="who cannot hear workers calls them silent",
        seeds=(23, 12, 39),
        patches=(_attribute(report.ReportWatch, "stretch", lambda self, now: (0.0, now)),),
    ),
    Mutant(
        name="dispatched_not_counted",
        what="a run in other hands does not count for its limit",
        seeds=(8, 55, 60),
        patches=(
            _sql(
                "limits.running",
                "INDEXED BY evertick_runs_limited\nWHERE state IN ('running', 'dispatched')",
                "WHERE state = 'running'",
            ),
        ),
    ),
    Mutant(
        name="dispatched_dies_with_its_node",
        what="what a dead node has dispatched is lost with it",
        seeds=(47, 82),
        patches=(_sql("rehome.bound", "NOT IN ('running', 'dispatched')", "<> 'running'"),),
    ),
    Mutant(
        name="dispatched_twice",
        what="what must not run twice is dispatched again",
        seeds=(47,),
        patches=(_wrapped(dispatched, "_revoke", _lose_and_go_on),),
    ),
    Mutant(
        name="failed_elsewhere_for_nothing",
        what="a worker's failure spends no attempt",
        seeds=(7, 22, 40),
        patches=(_wrapped(dispatched._DispatchedRun, "_outcome", _without_attempt),),
    ),
    Mutant(
        name="dispatched_never_looked_at",
        what="what nobody takes stays in other hands for ever",
        seeds=(7, 8, 12),
        patches=(_sql("check_dispatched.find_overdue", "deadline <= ?2", "deadline <= ?2 - 3600000000"),),
    ),
    Mutant(
        name="cancelled_elsewhere_goes_on",
        what="a run in other hands that is to be cancelled is tried again",
        seeds=(7, 23, 40),
        patches=(_attribute(dispatched, "cancelled_outcome", lambda outcome, held: outcome),),
    ),
    Mutant(
        name="withdrawn_message_sent",
        what="a run is cancelled before its queue has it, and its message is sent all the same",
        seeds=(55,),
        patches=(_no_sql("check_dispatched.withdraw"), _sql("check_dispatched.is_unsent", "NOT EXISTS", "EXISTS")),
    ),
    # --- every node
    Mutant(
        name="for_all_without_one",
        what="what is for every node leaves one of them out",
        seeds=(169, 119),
        patches=(_wrapped(planning, "able_nodes", lambda able: lambda nodes, task: able(nodes, task)[:-1]),),
    ),
    Mutant(
        name="for_all_for_anybody",
        what="what is for one node alone is in the queue that all work on",
        seeds=(31, 169, 119),
        patches=(_attribute(planning, "own_queue", lambda node: "default"),),
    ),
    Mutant(
        name="for_all_as_remembered",
        what="who is there is read once, and not when a moment comes",
        seeds=(169, 119, 84),
        patches=(_wrapped(fire.Recorder, "_nodes", _remember),),
    ),
    Mutant(
        name="for_all_beside_itself",
        what="a node that is still at it gets the next moment, too",
        seeds=(31, 169, 119),
        patches=(_attribute(planning, "unique_key_on", lambda *about: None),),
    ),
    Mutant(
        name="left_for_the_dead",
        what="what waits for a dead node alone waits for ever",
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
        what="under overlap skip the next fire replaces a run that is not parked",
        seeds=(7005979, 7002105),
        patches=(
            _attribute(plan, "admit", lambda overlap, live: "free"),
            _attribute(plan, "takes_place", _always_takes_place),
        ),
    ),
    Mutant(
        name="parked_run_replaced_by_catch_up_all",
        what="under catch-up all the next fire replaces a parked run instead of waiting for it",
        seeds=(7005979,),
        patches=(_wrapped(plan, "_catch_up_all", _ignore_catch_up_all),),
    ),
    # --- unique keys
    Mutant(
        name="unique_key_kept_after_start",
        what="a key that is to be free from the first start on is kept until the end",
        seeds=(20, 119, 80),
        patches=(_sql("claim.mark", "THEN NULL", "THEN unique_key"),),
    ),
    Mutant(
        name="unique_period_ignored",
        what="a key that is taken for a period is given to others when its run has ended",
        seeds=(20, 103, 33),
        patches=(_sql("enqueue.find_unique_for", "u.until > ?3", "u.until < ?3 * 0"),),
    ),
    Mutant(
        name="unique_period_without_end",
        what="a key that is taken for a period is never free again",
        seeds=(20, 103, 33),
        patches=(_sql("enqueue.find_unique_for", "u.until > ?3", "u.until > ?3 * 0"),),
    ),
    Mutant(
        name="unique_key_shared",
        what="two live runs may have the same unique key (nobody looks, and no index forbids it, a pair)",
        seeds=(20, 103, 31),
        patches=tuple(_attribute(where, "is_duplicate", lambda *args: False) for where in (fires,)),
        tables=(
            "DROP INDEX evertick_runs_unique",
            "CREATE INDEX evertick_runs_unique ON evertick_runs (app, unique_key)",
        ),
    ),
)

# What is not planted: halves of pairs. Without the one guard the other still holds, so nothing, or hardly anything, is
# seen from outside.
#
# - finish without its fence guard: the node guard holds, unless one node claims a run twice;
# - finish without its node guard: a fence is never drawn twice, so it names the node, too;
# - a message settled without one of these guards: the same; without both: an owner that has lost it must come back in
#   the few seconds in which the next one sends;
# - a dead node takes a duty: one that does not hear of its death stops asking before its lease is over;
# - no unique index on keys: whoever inserts a run looks first, in the same transaction;
# - no unique index on moments: the cursor guard lets only one plan of a moment through.
