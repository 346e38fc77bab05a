"""`doctor`, `status` and `top` report a problem of the ledger with the same name and severity."""

from __future__ import annotations

import asyncio
import json
import sqlite3
import time
from collections.abc import Callable
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
from click.testing import Result

from evertick import Every, Scheduler
from evertick.doctor.health import health_of, look, with_schedules
from evertick.model import Cause, NewRun
from evertick.store.base import NodeJoin, Store, TaskTerms
from evertick.when.moment import HOUR, MINUTE

Call = Callable[..., Result]
GRADES = {"error": "critical", "warning": "warning", "note": "ok"}
NO_NODE, FAILED = ("no_node", "critical"), ("failed_runs", "warning")


def found_by_all(evertick: Call) -> dict[str, str]:
    """The findings of all three, with their severity."""
    doctor = {each["check"]: GRADES[each["severity"]] for each in json.loads(evertick("doctor", "--json").stdout)}
    status = json.loads(evertick("status", "--json").stdout)
    top = json.loads(evertick("top", "--json").stdout)
    found = {each["check"]: each["grade"] for each in status["problems"]}
    assert {each["check"]: each["grade"] for each in top["problems"]} == found
    assert {check: doctor.get(check) for check in found} == found
    assert (top["status"], status["lag_seconds"] > 0) == (status["status"], top["lag_seconds"] > 0)
    assert status["exit_code"] == {"ok": 0, "warning": 1, "critical": 2}[status["status"]]
    assert "critical" not in {grade for check, grade in doctor.items() if check not in found}
    return found


@pytest.fixture
def database(database: str) -> str:
    """The example database with its waiting run due now, however long ago the session made it."""
    changed(database, f"UPDATE evertick_runs SET due_at = {time.time_ns() // 1000} WHERE state = 'waiting'")
    return database


def changed(database: str, *statements: str) -> None:
    with closing(sqlite3.connect(database.removeprefix("sqlite:///"))) as db:
        for statement in statements:
            db.execute(statement)
        db.commit()


def on_store(database: str, work: Callable[[Store], Any]) -> None:
    async def do() -> None:
        scheduler = Scheduler(database, concurrency=0)
        try:
            await work(await scheduler.runtime.store())
        finally:
            await scheduler.close()

    asyncio.run(do())


def with_node(database: str, *, lease: int = HOUR, **fields: Any) -> None:
    """A live node that does nothing."""
    tasks = {name: TaskTerms() for name in ("make_report", "print_it")}
    node = {"id": "n", "name": "n", "app": "default", "version": "1", "queues": ("default",), "declares": {}}

    async def join(store: Store) -> None:
        await store.join(NodeJoin(**{**node, "tasks": tasks, "lease": lease, **fields}))

    on_store(database, join)


def enqueued(database: str, **fields: Any) -> None:
    async def enqueue(store: Store) -> None:
        due = await store.now() - HOUR
        run = {"id": "r", "task": "make_report", "cause": Cause.ENQUEUE, "fire_at": due, "due_at": due}
        await store.enqueue("default", [NewRun(**{**run, **fields})])

    on_store(database, enqueue)


OVERDUE = f"UPDATE evertick_due SET fire_at = fire_at - {3 * HOUR}, at = at - {3 * HOUR} WHERE at IS NOT NULL"
NO_FAILURES = "UPDATE evertick_history SET verdict = 'succeeded' WHERE verdict = 'failed'"


def test_status_reports_that_no_node_is_alive(database: str, evertick: Call) -> None:
    assert found_by_all(evertick) == dict([NO_NODE, FAILED])


def test_status_is_ok_with_a_live_node(database: str, evertick: Call) -> None:
    with_node(database)
    changed(database, NO_FAILURES)
    assert found_by_all(evertick) == {}


def test_status_reports_a_killed_node(database: str, evertick: Call) -> None:
    with_node(database, lease=1)
    assert found_by_all(evertick) == {**dict([NO_NODE, FAILED]), "silent_node": "warning"}
    with_node(database, id="m", name="m")
    assert found_by_all(evertick) == {**dict([FAILED]), "silent_node": "warning"}


@pytest.mark.parametrize("is_alive", [False, True])
def test_status_reports_an_overdue_schedule(database: str, evertick: Call, is_alive: bool) -> None:
    changed(database, OVERDUE)
    if is_alive:
        with_node(database)
    troubles = {"stalled_node": "critical"} if is_alive else {**dict([NO_NODE]), "overdue": "critical"}
    assert found_by_all(evertick) == {**dict([FAILED]), **troubles}
    lag = json.loads(evertick("status", "--json").stdout)["lag_seconds"]
    frame = json.loads(evertick("top", "--json").stdout)
    assert frame["lag_seconds"] == pytest.approx(lag, abs=60)
    assert frame["overdue_seconds"] == frame["lag_seconds"]
    scheduler = Scheduler(database, concurrency=0)
    assert scheduler.sync.health().oldest_due_seconds == pytest.approx(lag, abs=60)
    scheduler.sync.close()


def test_status_reports_a_queue_without_slots(database: str, evertick: Call) -> None:
    with_node(database)
    enqueued(database)
    assert found_by_all(evertick) == {**dict([FAILED]), "waiting_long": "critical"}
    assert "raise concurrency=" in evertick("status").stdout


def test_status_does_not_suggest_more_slots_for_a_queue_without_a_node(database: str, evertick: Call) -> None:
    enqueued(database)
    assert found_by_all(evertick) == dict([NO_NODE, FAILED])
    for command in ("status", "doctor"):
        assert "concurrency" not in evertick(command).stdout
    with_node(database)
    enqueued(database, id="s", queue="slow")
    assert found_by_all(evertick) == {**dict([FAILED]), "waiting_long": "critical", "unserved_queue": "critical"}


def test_status_reports_a_stuck_channel(database: str, evertick: Call) -> None:
    scheduler = Scheduler(database, concurrency=0)
    scheduler.sync.send("webhook", {"order": 7})
    scheduler.sync.close()
    changed(database, f"UPDATE evertick_outbox SET due_at = due_at - {5 * MINUTE}")
    with_node(database)
    assert found_by_all(evertick) == {**dict([FAILED]), "unsent_channel": "warning"}
    with_node(database, id="m", name="m", channels=("webhook",))
    assert found_by_all(evertick) == {**dict([FAILED]), "messages_late": "warning"}


def test_status_reports_lost_and_failing_runs(database: str, evertick: Call) -> None:
    with_node(database)
    assert found_by_all(evertick) == dict([FAILED])
    changed(database, "UPDATE evertick_history SET verdict = 'lost', reason = 'node_died' WHERE verdict = 'failed'")
    assert found_by_all(evertick) == {"lost_runs": "warning"}


def test_status_checks_every_schedule(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, evertick: Call) -> None:
    url = f"sqlite:///{tmp_path}/many.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler = Scheduler(url, concurrency=0)
    scheduler.sync.add_many([{"key": f"k{n:04}", "when": Every("1h"), "task": "t"} for n in range(1_100)])
    scheduler.sync.close()
    ids = "SELECT id FROM evertick_schedules WHERE key = 'k1099'"
    ahead = f"fire_at = fire_at + {48 * HOUR}, at = at + {48 * HOUR}"
    changed(url, f"UPDATE evertick_due SET {ahead} WHERE schedule_id IN ({ids})")
    status = json.loads(evertick("status", "--json").stdout)
    assert (status["astray"], status["looked_at"]) == (["k1099"], None)
    assert [each["check"] for each in status["problems"]] == ["no_node", "clock_left_behind"]
    doctor = {each["check"]: each["severity"] for each in json.loads(evertick("doctor", "--json").stdout)}
    assert doctor["clock_left_behind"] == "error"


def test_a_check_of_very_many_schedules_stops_in_time_and_shows_its_progress(database: str, evertick: Call) -> None:
    async def look_briefly(store: Store) -> None:
        evidence = await with_schedules(await look(store, "default"), store, seconds_most=-1)
        assert (evidence.looked_at, health_of(evidence).looked_at) == (0, 0)

    on_store(database, look_briefly)
