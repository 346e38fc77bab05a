"""The hot statements really use their indexes: rows that were not requested cost nothing, in any number."""

from __future__ import annotations

import re
import sqlite3
from collections.abc import AsyncIterator, Iterator
from contextlib import closing, contextmanager

import pytest

from evertick.clock import system_clock
from evertick.model import Cause, Definition, NewGap, NewRun, Outcome, Reason, State, Verdict
from evertick.model.limits import Concurrency, Rate, Subject
from evertick.store.base import Advance, Change, DueSchedule, NodeJoin, RunFilter, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.connection import SQL
from evertick.store.sqlite.runs import _CLAUSES, _INDEXES
from evertick.store.sqlite.schema import migrate
from evertick.store.sqlite.session import InlineSession


@pytest.fixture
def db() -> Iterator[sqlite3.Connection]:
    with closing(sqlite3.connect(":memory:", isolation_level=None)) as db:
        db.row_factory = sqlite3.Row
        migrate(db, system_clock, "auto", "test")
        yield db


def plan(db: sqlite3.Connection, statement: str) -> list[str]:
    most = max((int(number) for number in re.findall(r"\?(\d+)", statement)), default=0)
    names = dict.fromkeys(re.findall(r":(\w+)", statement))
    values = names or {str(number): None for number in range(1, most + 1)}
    return [row["detail"] for row in db.execute(f"EXPLAIN QUERY PLAN {statement}", values)]


@pytest.mark.parametrize(
    ("name", "search"),
    [
        ("due_schedules", "evertick_due_at (app=? AND at>? AND at<?)"),
        ("due_schedules", "evertick_runs_moment (schedule_id=?)"),
        ("due_schedules", "evertick_runs_blocked (app=? AND schedule_id=? AND blocked_on>?)"),
        ("due_schedules.next", "evertick_due_at (app=? AND at>?)"),
        ("stored_schedules.by_ids", "s USING INTEGER PRIMARY KEY (rowid=?)"),
        ("stored_schedules.by_keys", "(app=? AND key=?)"),
        ("schedules.by_due", "evertick_due_at (app=? AND at>?)"),
        ("record_fires.advance", "evertick_due USING INTEGER PRIMARY KEY (rowid=?)"),
        ("record_fires.fitting", "d USING INTEGER PRIMARY KEY (rowid=?)"),
        ("record_fires.fitting", "evertick_runs_blocked (app=? AND schedule_id=? AND blocked_on>?)"),
        ("record_fires.gaps", "s USING INTEGER PRIMARY KEY (rowid=?)"),
        ("record_fires.run", "evertick_history_moment (schedule_id=? AND fire_at=?)"),
        ("changed.waiting", "evertick_runs USING PRIMARY KEY (app=?)"),
        ("claim.lanes", "evertick_runs_claim (app=? AND queue=? AND priority<?)"),
        ("claim.lanes", "evertick_runs_claim (app=? AND queue=? AND priority=?)"),
        ("claim.due", "evertick_runs_claim (app=? AND queue=? AND priority=? AND due_at<?)"),
        ("claim.read", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("claim.take", "evertick_runs USING PRIMARY KEY (app=? AND id=?)"),
        ("claim.read", "v USING PRIMARY KEY (app=? AND key=? AND schedule_id=? AND version<?)"),
        ("finish.held", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("finish.done", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("finish.dispatch", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("claim_messages.take", "evertick_outbox USING INDEX sqlite_autoindex_evertick_outbox_1 (id=?)"),
        ("claim_messages.read", "m USING INDEX sqlite_autoindex_evertick_outbox_1 (id=?)"),
        ("settle_messages.held", "m USING INDEX sqlite_autoindex_evertick_outbox_1 (id=?)"),
        ("settle_messages.end", "evertick_outbox USING INDEX sqlite_autoindex_evertick_outbox_1 (id=?)"),
        ("settle_messages.put_back", "evertick_outbox USING INDEX sqlite_autoindex_evertick_outbox_1 (id=?)"),
        ("run.end", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("run.ending", "r USING PRIMARY KEY (app=? AND id=?)"),
        ("run.forget", "evertick_runs USING PRIMARY KEY (app=? AND id=?)"),
        ("schedule.count_from_end", "evertick_due USING INTEGER PRIMARY KEY (rowid=?)"),
        ("run.unblock", "evertick_runs_blocked (app=? AND schedule_id=? AND blocked_on=?)"),
        ("owned", "evertick_runs_running (app=? AND node=?)"),
        ("beat.cancels", "evertick_runs_running (app=? AND node=?)"),
        ("rehome.find", "evertick_runs_running (app=?)"),
        ("rehome.bound", "evertick_runs_bound (app=?"),
        ("beat.has_free_duties", "d USING PRIMARY KEY (app=?"),
        ("beat.has_dispatched", "evertick_runs_dispatched (app=? AND deadline<?)"),
        ("beat.has_dispatched", "evertick_runs_unwanted (app=? AND deadline<?)"),
        ("check_dispatched.find_cancelled", "evertick_runs_unwanted (app=? AND deadline<?)"),
        ("check_dispatched.find_overdue", "evertick_runs_dispatched (app=? AND deadline<?)"),
        ("check_dispatched.withdraw", "evertick_outbox_key (app=? AND channel=? AND key=?)"),
        ("apply_reports.dispatched", "evertick_runs USING PRIMARY KEY (app=? AND id=?)"),
        ("apply_reports.progress", "evertick_runs USING PRIMARY KEY (app=? AND id=?)"),
        ("apply_reports.last_lines", "l USING PRIMARY KEY (app=? AND run=? AND fence=?)"),
        ("apply_reports.answered_before", "h USING PRIMARY KEY (app=? AND id=?)"),
        ("messages.by_key", "evertick_outbox_key (app=? AND channel=? AND key=?)"),
        ("channels.failing", "evertick_outbox_failing (app=? AND channel=?)"),
        ("drop_messages.cancel", "evertick_runs USING PRIMARY KEY (app=? AND id=?)"),
        ("join.unpark", "evertick_runs_parked (app=? AND task=?)"),
        ("limits.running", "evertick_runs_limited (app=? AND limit_key=?)"),
        ("limits.next_lane", "evertick_runs_held_back (app=? AND limit_key=? AND task=? AND queue>?)"),
        ("limits.next_lane", "evertick_runs_held_back (app=? AND limit_key=? AND task>?)"),
        ("limits.is_let_through", "evertick_runs_let_through (app=? AND limit_key=? AND task=? AND queue=?)"),
        ("limits.let_through", "evertick_runs_held_back (app=? AND limit_key=? AND task=? AND queue=?)"),
        ("limits.next_key", "evertick_runs_held_back (app=? AND limit_key>?)"),
        ("limits.starts", "PRIMARY KEY (app=? AND key=? AND at>?)"),
        ("limits.due", "evertick_limits_free (app=? AND free_at<?)"),
        ("limits.next_time", "evertick_limits_free (app=?)"),
        ("limits.forget_terms", "evertick_held_under USING PRIMARY KEY (app=? AND task=?)"),
        ("join.has_other_limits", "evertick_held_under USING PRIMARY KEY (app=? AND task=?)"),
        ("die.look_again", "living USING PRIMARY KEY (app=? AND name=?)"),
        ("prune.starts", "evertick_grants_until (app=? AND until<?)"),
        ("prune.unique", "evertick_unique_until (app=? AND until<?)"),
        ("prune.old_runs", "evertick_history_time (app=? AND fire_at<?)"),
        ("prune.finished_schedules", "evertick_due_finished (app=?)"),
        ("failing.all", "s USING INDEX evertick_schedules_pause_after (app=?)"),
        ("declared_schedules", "s USING INDEX evertick_schedules_declared (app=?)"),
        ("failing.of", "s USING INTEGER PRIMARY KEY (rowid=?)"),
        ("failing.verdicts", "evertick_history_moment (schedule_id=?)"),
        ("pulse.failed", "evertick_history_failed (app=? AND finished_at>?)"),
        ("pulse.failed", "evertick_runs_reruns (app=? AND caused_by=?)"),
        ("pulse.failed", "evertick_history_reruns (app=? AND caused_by=?)"),
        ("maintenance.next_app", "evertick_history_time (app>?)"),
        ("maintenance.oldest", "evertick_history_time (app=?)"),
        ("recorded_moments", "evertick_runs_moment (schedule_id=? AND fire_at>? AND fire_at<?)"),
        ("recorded_moments", "evertick_history_moment (schedule_id=? AND fire_at>? AND fire_at<?)"),
    ],
)
def test_a_statement_searches_by_its_index(db: sqlite3.Connection, name: str, search: str) -> None:
    steps = plan(db, SQL[name])
    assert any(search in step for step in steps), steps


@pytest.mark.parametrize(
    "name",
    [
        "due_schedules",
        "due_schedules.next",
        "schedules.by_due",
        "claim.due",
        "owned",
        "check_dispatched.find_cancelled",
        "check_dispatched.find_overdue",
        "limits.next_lane",
        "limits.let_through",
        "limits.starts_in_order",
        "limits.due",
    ],
)
def test_what_comes_in_order_is_not_sorted(db: sqlite3.Connection, name: str) -> None:
    assert not any("ORDER BY" in step for step in plan(db, SQL[name])), plan(db, SQL[name])


def test_what_a_node_asks_at_its_start_sorts_no_schedules(db: sqlite3.Connection) -> None:
    """Sorted in memory, a million of them would stay in it."""
    sorting = [step for step in plan(db, SQL["fingerprints"]) if "B-TREE" in step]
    assert sorting == ["USE TEMP B-TREE FOR DISTINCT"], "which has an entry for each value"


def test_every_statement_is_valid(db: sqlite3.Connection) -> None:
    for name, statement in SQL.items():
        if "{index}" not in statement:
            plan(db, statement.replace("{table}", "evertick_fence"))
        assert name


@pytest.mark.parametrize("table", ["runs.live", "runs.done"])
@pytest.mark.parametrize(
    "names",
    [[], ["ids"], ["schedule_id"], ["schedule_id", "since"], ["task", "states", "labels"], ["verdicts", "was_rerun"]],
)
def test_reading_runs_never_scans_a_table(db: sqlite3.Connection, table: str, names: list[str]) -> None:
    index = _INDEXES[table][names[0] if names and names[0] in _INDEXES[table] else ""]
    clauses = "".join(f" AND {_CLAUSES[name]}" for name in names)
    steps = plan(db, f"{SQL[table].format(index=index)}{clauses} ORDER BY r.fire_at DESC, r.id DESC")
    assert not any(step.startswith("SCAN r") for step in steps), steps
    if "was_rerun" in names:
        assert "LIST SUBQUERY" in " ".join(steps), steps
        assert not any(step.startswith("CORRELATED LIST") for step in steps), steps


@pytest.fixture
async def store() -> AsyncIterator[SqliteStore]:
    store = SqliteStore("sqlite://", clock=system_clock, is_inline=True)
    await store.open(migrate="auto")
    joined = NodeJoin(
        id="n", name="n", app="a", version="1", lease=10**9, queues=("default",), tasks=TASKS, declares={}
    )
    await store.join(joined)
    yield store
    await store.close()


TASKS = {
    "t": TaskTerms(),
    "capped": TaskTerms(concurrency=Concurrency(most=2, of=Subject(task="capped"))),
    "rare": TaskTerms(rate=Rate(most=2, period=3_600_000_000, of=Subject(task="rare"))),
}


def a_run(task: str = "t", **fields: object) -> NewRun:
    return NewRun(id=system_clock.new_id(), task=task, cause=Cause.ENQUEUE, **fields)  # type: ignore[arg-type]


@contextmanager
def counting_steps(store: SqliteStore) -> Iterator[list[int]]:
    """The work of SQLite itself, independent of the load of the machine."""
    assert isinstance(store.session(), InlineSession)
    db, steps = store.session().shared.db, [0]

    def count() -> int:
        steps[0] += 1
        return 0

    db.set_progress_handler(count, 10)
    yield steps
    db.set_progress_handler(None, 10)


async def steps_of_a_claim(store: SqliteStore) -> int:
    """Of a claim that finds one run, and of its end."""
    await store.enqueue("a", [a_run()])
    with counting_steps(store) as steps:
        claim = await store.claim("a", "n", ["default"], TASKS, 10)
        [run] = claim.runs
        await store.finish("a", "n", [Outcome(id=run.id, fence=run.fence, kind="done", verdict=Verdict.SUCCEEDED)])
    return steps[0]


async def test_future_runs_of_a_high_priority_are_not_walked_over(store: SqliteStore) -> None:
    await store.enqueue("a", [a_run(priority=9, delay=10**12)])
    few = await steps_of_a_claim(store)
    await store.enqueue("a", [a_run(priority=9, delay=10**12) for _ in range(5_000)])
    many = await steps_of_a_claim(store)
    assert many <= few * 1.5


@pytest.mark.parametrize("task", ["t", "capped"])
async def test_only_tasks_with_a_limit_pay_for_statements_about_limits(store: SqliteStore, task: str) -> None:
    assert isinstance(store.session(), InlineSession)
    db, said = store.session().shared.db, list[str]()
    await store.enqueue("a", [a_run(task) for _ in range(10)])
    db.set_trace_callback(said.append)
    claim = await store.claim("a", "n", ["default"], {task: TASKS[task]}, 10)
    outcomes = [Outcome(id=run.id, fence=run.fence, kind="done", verdict=Verdict.SUCCEEDED) for run in claim.runs]
    await store.finish("a", "n", outcomes)
    db.set_trace_callback(None)
    words = ("evertick_limits", "evertick_grants", "_runs_limited", "_held_back", "_let_through", "SET limit_key")
    about_limits = [each for each in said if any(word in each for word in words)]
    assert (len(outcomes), bool(about_limits)) == ((10, False) if task == "t" else (2, True))


@pytest.mark.parametrize("task", ["capped", "rare"])
async def test_runs_that_a_limit_holds_back_cost_nothing_however_many_there_are(store: SqliteStore, task: str) -> None:
    await store.enqueue("a", [a_run(task) for _ in range(3)])
    running = await store.claim("a", "n", ["default"], TASKS, 10)
    assert len(running.runs) == 2
    few = await steps_of_a_claim(store)
    await hold_back(store, [a_run(task) for _ in range(20_000)])
    many = await steps_of_a_claim(store)
    assert many <= few * 1.5
    assert (await store.pulse("a")).blocked == 10_000  # where counting ends


async def test_the_end_of_a_run_finds_the_next_of_every_lane_however_many_are_held_back(store: SqliteStore) -> None:
    async def steps_of_an_end() -> int:
        await store.enqueue("a", [a_run("capped", priority=9)])
        [run] = (await store.claim("a", "n", ["default"], TASKS, 1)).runs
        with counting_steps(store) as steps:
            await store.finish("a", "n", [Outcome(id=run.id, fence=run.fence, kind="done", verdict=Verdict.SUCCEEDED)])
        return steps[0]

    await hold_back(store, [a_run("capped", queue=queue) for queue in ("default", "zoo") for _ in range(10)])
    few = await steps_of_an_end()
    await hold_back(store, [a_run("capped") for _ in range(20_000)])
    many = await steps_of_an_end()
    assert many <= few * 1.5


async def statements_of_a_batch(store: SqliteStore, size: int, *, gaps: int = 0, blocked: int = 0) -> list[int]:
    """How many statements it takes to enqueue, claim and end so many runs; to read, record and end so many fires, each
    with as many gaps, and as many of them blocked."""
    assert isinstance(store.session(), InlineSession)
    db, said, counts = store.session().shared.db, list[str](), list[int]()

    def count() -> None:
        counts.append(len(said))
        said.clear()

    now = await store.now()
    every = Definition(task="t", when="every 1m")
    added = [
        Change(kind="add", key=f"{size}-{number}", definition=every, fire_at=now, at=now) for number in range(size)
    ]
    assert all(await store.change_schedules("a", added))
    db.set_trace_callback(said.append)
    await store.enqueue("a", [a_run() for _ in range(size)])
    count()
    claim = await store.claim("a", "n", ["default"], TASKS, size)
    count()
    await store.finish("a", "n", [ended(run.id, run.fence) for run in claim.runs])
    count()
    due = await store.due_schedules("a", size)
    count()
    plans = [a_plan(each, gaps, is_blocked=place < blocked) for place, each in enumerate(due.schedules)]
    recorded = await store.record_fires("a", "n", plans)
    count()
    await store.finish("a", "n", [ended(run.id, recorded.fence) for plan in plans for run in plan.runs])
    count()
    db.set_trace_callback(None)
    assert (len(claim.runs), recorded.taken) == (size, [True] * size)
    assert len(await store.runs("a", RunFilter(verdicts=(Verdict.SUCCEEDED,), limit=1_000))) >= 2 * size
    assert len(await store.gaps("a", RunFilter(limit=1_000))) >= gaps * size
    return counts


def ended(run: str, fence: int) -> Outcome:
    return Outcome(id=run, fence=fence, kind="done", verdict=Verdict.SUCCEEDED, attempts=1)


def a_plan(due: DueSchedule, gaps: int, *, is_blocked: bool) -> Advance:
    assert due.fire_at is not None
    run = NewRun(
        id=system_clock.new_id(),
        task="t",
        cause=Cause.FIRE,
        fire_at=due.fire_at,
        schedule_id=due.id,
        is_claimed=True,
        # On nothing, as it turns out.
        state=State.BLOCKED if is_blocked else State.WAITING,
    )
    missed = [
        NewGap(first_at=at, last_at=at, count=1, verdict=Verdict.SKIPPED, reason=Reason.COALESCED) for at in range(gaps)
    ]
    later = due.fire_at + 60_000_000
    return Advance(
        schedule_id=due.id,
        version=due.version,
        fire_at=due.fire_at,
        at=due.at,
        live=due.live,
        next_fire_at=later,
        next_at=later,
        runs=(run,),
        gaps=tuple(missed),
    )


@pytest.mark.parametrize("name", ["join.forget", "join.look_again"])
async def test_the_tasks_of_a_join_are_read_once_and_not_for_each_task(store: SqliteStore, name: str) -> None:
    """Otherwise 10,000 tasks blocked the file, and every heartbeat, for seconds at every reload."""
    assert isinstance(store.session(), InlineSession)
    steps = plan(store.session().shared.db, SQL[name])
    reads = next(place for place, step in enumerate(steps) if "json_each" in step or "new_tasks" in step)
    assert steps[reads - 1].startswith("LIST SUBQUERY")
    assert not any(step.startswith("CORRELATED") for step in steps[:reads])


async def test_a_batch_takes_a_few_statements_however_large_it_is(store: SqliteStore) -> None:
    few, many = await statements_of_a_batch(store, 2), await statements_of_a_batch(store, 200)
    assert few == many
    assert max(many) <= 20


async def test_after_an_outage_a_batch_takes_a_few_statements_too(store: SqliteStore) -> None:
    few, many = await statements_of_a_batch(store, 2, gaps=2), await statements_of_a_batch(store, 200, gaps=2)
    assert few == many
    assert max(many) <= 20


async def test_a_fire_that_has_to_wait_for_another_costs_those_beside_it_nothing(store: SqliteStore) -> None:
    few = await statements_of_a_batch(store, 2, blocked=1)
    many = await statements_of_a_batch(store, 200, blocked=1)
    assert few == many


async def test_a_damaged_cursor_does_not_hide_what_is_due_beside_it(store: SqliteStore) -> None:
    now = await store.now()
    every = Definition(task="t", when="every 1m")
    added = [Change(kind="add", key=key, definition=every, fire_at=now, at=now) for key in ("damaged", "sound")]
    assert all(await store.change_schedules("a", added))
    assert isinstance(store.session(), InlineSession)
    store.session().shared.db.execute("UPDATE evertick_due SET fire_at = 'soon' WHERE schedule_id = 1")
    assert [due.fire_at for due in (await store.due_schedules("a", 10)).schedules] == ["soon", now]


@pytest.mark.parametrize(("limit", "read"), [(1_200, 1_200), (1_000, 1_000), (5_000, 1_500)])
async def test_more_due_schedules_than_one_text_holds_are_all_read_once(
    store: SqliteStore, limit: int, read: int
) -> None:
    now = await store.now()
    every = Definition(task="t", when="every 1m")
    added = [Change(kind="add", key=f"s{number}", definition=every, fire_at=now, at=now) for number in range(1_500)]
    assert all(await store.change_schedules("a", added))
    due = (await store.due_schedules("a", limit)).schedules
    assert (len(due), len({schedule.id for schedule in due})) == (read, read)


async def hold_back(store: SqliteStore, runs: list[NewRun]) -> None:
    """The parts of claims that work on several rows at once."""
    await store.enqueue("a", runs)
    assert isinstance(store.session(), InlineSession)
    key = "concurrency=capped" if runs[0].task == "capped" else "rate=rare"
    held = "UPDATE evertick_runs SET state = 'blocked', limit_key = ? WHERE state = 'waiting' AND task = ?"
    store.session().shared.db.execute(held, (key, runs[0].task))
