"""What the doctor finds, and what it says to do about it."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from evertick import Calendar, Cron, Every, Once, Scheduler
from evertick.clock import system_clock
from evertick.doctor import Finding, Severity, examine, examine_database
from evertick.doctor.database import about_database, about_outbox
from evertick.doctor.finding import named, shortened
from evertick.doctor.nodes import about_duties, about_nodes, about_programs, node_state
from evertick.doctor.runs import about_blocked, about_parked, about_waiting, blockers_of
from evertick.doctor.schedules import about_calendars, about_clock, about_overdue, about_schedules
from evertick.doctor.thresholds import Thresholds
from evertick.explain.all_schedules import ParsedSchedule, survey
from evertick.model import Cause, Duty, NewRun, Node, Run, Schedule, State, Tick, Verdict, blocking_tick
from evertick.model.limits import Concurrency, Subject
from evertick.store.base import ChannelPulse, Checked, NodeJoin, StoreStatus, TaskTerms
from evertick.when import When, from_us, to_us
from evertick.when.moment import DAY, HOUR

NOW = datetime(2026, 1, 31, 12, tzinfo=UTC)
USUAL = Thresholds()


def ago(**span: float) -> datetime:
    return NOW - timedelta(**span)


def a_node(**fields: Any) -> Node:
    beat_at = fields.pop("beat_at", ago(seconds=2))
    given: dict[str, Any] = {
        "id": "n1",
        "name": "shop@host",
        "app": "default",
        "version": "1.0",
        "started_at": ago(hours=1),
        "beat_at": beat_at,
        "lease_until": beat_at + timedelta(seconds=15),
        "died_at": None,
        "queues": ("default",),
        "tasks": ("make_report",),
        "declares": {},
        "running": 0,
    }
    return Node(**{**given, **fields})


def a_run(**fields: Any) -> Run:
    given = dict.fromkeys(Run.__struct_fields__) | {
        "id": "r1",
        "app": "default",
        "task": "make_report",
        "schedule_key": "report",
        "fire_at": ago(minutes=10),
        "due_at": ago(minutes=10),
        "state": State.WAITING,
        "cause": Cause.FIRE,
        "queue": "default",
        "attempts": 0,
        "losses": 0,
        "priority": 0,
        "labels": {},
        "created_at": ago(minutes=10),
    }
    return Run(**{**given, **fields})


def a_surveyed(rule: When = Cron("0 9 * * *"), key: str = "report", **fields: Any) -> ParsedSchedule:  # noqa: B008
    bound = rule.bind(key=key, created=to_us(ago(days=30)))
    following = bound.next_us(to_us(NOW))
    given = dict.fromkeys(Schedule.__struct_fields__) | {
        "key": key,
        "app": "default",
        "task": "make_report",
        "when": bound.text,
        "overlap": "skip",
        "fires": 3,
        "is_paused": False,
        "next_fire_at": None if following is None else from_us(following),
    }
    given["next_due_at"] = given["next_fire_at"]
    rule_error = fields.pop("rule_error", None)
    is_left_over = fields.pop("is_left_over", False)
    schedule = Schedule(**{**given, **fields})
    rule_found = None if rule_error else bound
    return ParsedSchedule(schedule=schedule, rule=rule_found, rule_error=rule_error, is_left_over=is_left_over)


def checks(findings: Any) -> list[str]:
    return [finding.check for finding in findings]


# --- clock and nodes


def test_a_clock_that_is_right_is_not_mentioned():
    assert checks(about_clock(NOW, ago(seconds=1), [a_node()])) == []


def test_a_store_whose_clock_is_another_is_told_with_the_difference():
    (found,) = about_clock(NOW, ago(seconds=90), [])
    assert (found.check, found.severity) == ("clock", Severity.WARNING)
    assert "differ by 90.0 s" in found.what


def test_a_beat_in_the_future_tells_that_the_clock_was_put_back():
    (found,) = about_clock(NOW, NOW, [a_node(beat_at=NOW + timedelta(hours=1))])
    assert found.check == "clock_step"
    assert "3600.0 s in the future" in found.what
    assert checks(about_clock(NOW, NOW, [a_node(beat_at=NOW + timedelta(hours=1), died_at=NOW)])) == []


def test_that_no_node_is_alive_is_an_error_where_there_is_work_and_a_warning_elsewhere():
    for node in (a_node(died_at=ago(hours=1)), a_node(beat_at=ago(minutes=2))):
        found, *_ = about_nodes([node], NOW, has_work=True)
        assert (found.check, found.severity) == ("no_node", Severity.ERROR)
        found, *_ = about_nodes([node], NOW, has_work=False)
        assert (found.check, found.severity) == ("no_node", Severity.WARNING)


@pytest.mark.parametrize(("seconds", "found"), [(2, []), (10, ["late_beat"]), (20, ["silent_node"])])
def test_a_node_that_is_late_with_its_beat_is_told_before_its_lease_is_over_and_after(seconds, found):
    other = a_node(id="n2", beat_at=ago(seconds=1))
    assert checks(about_nodes([a_node(beat_at=ago(seconds=seconds)), other], NOW, has_work=True)) == found


def test_a_node_whose_process_is_gone_was_killed_though_its_lease_holds():
    killed = about_nodes([a_node(), a_node(id="n2")], NOW, has_work=True, killed={"n1": 4711})
    assert [(found.check, found.about) for found in killed] == [("killed_node", ("n1",))]
    assert checks(about_nodes([a_node()], NOW, has_work=True, killed={"n1": 4711})) == ["no_node", "killed_node"]


def test_a_schedule_that_live_nodes_declare_differently_is_told_with_both():
    one = a_node(id="n1", name="web@a", declares={"report": "h1", "same": "h"})
    two = a_node(id="n2", name="batch@b", declares={"report": "h2", "same": "h"})
    (found,) = about_programs([one, two], NOW)
    assert (found.check, found.about) == ("declared_differently", ("report",))
    assert "web@a against batch@b" in found.what
    assert checks(about_programs([one], NOW)) == []


def test_different_versions_are_worth_a_note():
    findings = list(about_programs([a_node(), a_node(id="n2", version="2.0")], NOW))
    assert [(found.check, found.severity) for found in findings] == [("versions", Severity.NOTE)]


# --- runs


def test_parked_runs_are_told_once_per_task_and_reason():
    parked = [a_run(id=f"r{number}", state=State.PARKED, reason="unknown_task", task="gone") for number in range(3)] + [
        a_run(
            id="x",
            state=State.PARKED,
            reason="bad_arguments",
            error="Traceback (most recent call last):\nTypeError: no such argument",
        )
    ]
    unknown, misfit = sorted(about_parked(parked), key=lambda found: -len(found.about))
    assert "3 runs of report parked: no live node knows task gone" in unknown.what
    assert unknown.about == ("r0", "r1", "r2")
    assert misfit.what.startswith("1 run of report parked: its arguments do not fit task make_report")
    assert "TypeError: no such argument" in misfit.what
    assert "evertick cancel x" in misfit.fix


def test_runs_that_wait_long_though_nodes_live_are_told_with_the_reason():
    node = a_node()
    assert checks(about_waiting([a_run()], [node], NOW, USUAL)) == ["waiting_long"]
    (found,) = about_waiting([a_run(queue="slow")], [node], NOW, USUAL)
    assert found.check == "unserved_queue"
    assert "queues=['slow']" in found.fix


def test_runs_that_wait_for_their_time_or_with_nobody_there_are_no_finding_of_their_own():
    assert checks(about_waiting([a_run(due_at=ago(seconds=-60))], [a_node()], NOW, USUAL)) == []
    assert checks(about_waiting([a_run(due_at=ago(seconds=5))], [a_node()], NOW, USUAL)) == []
    assert checks(about_waiting([a_run()], [], NOW, USUAL)) == []


def held_back(reason: str = "concurrency", **fields: Any) -> Run:
    given = {"state": State.BLOCKED, "reason": reason, "blocked_on": "press", "due_at": ago(minutes=95)}
    return a_run(**{**given, **fields})


@pytest.mark.parametrize(
    ("reason", "why", "fix"),
    [
        ("concurrency", "the concurrency limit of 'press' is reached", "raise concurrency="),
        ("rate", "the rate limit of 'press' is reached", "raise rate="),
    ],
)
def test_runs_that_a_limit_holds_back_for_long_are_told_once_per_key(reason, why, fix):
    runs = [held_back(reason, id="r1"), held_back(reason, id="r2", due_at=ago(minutes=5))]
    (found,) = about_blocked(runs, {}, NOW)
    assert (found.check, found.about) == ("held_back_long", ("r1", "r2"))
    assert found.what == f"2 runs wait for a limit, the oldest for 95 min: {why}"
    assert fix in found.fix
    assert checks(about_blocked(runs[1:], {}, NOW)) == []
    other = held_back(reason, blocked_on="other")
    assert checks(about_blocked([*runs, other], {}, NOW)) == ["held_back_long"] * 2


@pytest.mark.parametrize(
    ("blocker", "how"),
    [
        (a_run(id="b", state=State.PARKED, reason="unknown_task"), "which is parked"),
        (held_back("rate", id="b"), "which itself waits for the rate of 'press'"),
        (a_run(id="b", due_at=ago(hours=2)), "which is overdue and was not started"),
    ],
)
def test_a_run_that_waits_for_one_that_gets_nowhere_is_told_with_both(blocker, how):
    queued = a_run(id="q", state=State.BLOCKED, blocked_on="b")
    (found,) = about_blocked([queued], {"b": blocker}, NOW)
    assert (found.check, found.about) == ("queued_behind_stuck", ("b", "q"))
    assert found.what == f"1 run waits for the end of run b of report, {how}"
    assert "evertick cancel b" in found.fix


@pytest.mark.parametrize(
    "blocker",
    [
        None,
        a_run(id="b", state=State.RUNNING, due_at=ago(hours=9)),
        a_run(id="b"),
        held_back(id="b", due_at=ago(minutes=5)),
        a_run(id="b", state=State.BLOCKED, blocked_on="a", due_at=ago(hours=9)),
    ],
    ids=["ended meanwhile", "runs", "waits", "held back", "queued itself, told with the first"],
)
def test_a_run_that_waits_for_its_turn_is_no_finding(blocker):
    queued = a_run(id="q", state=State.BLOCKED, blocked_on="b", due_at=ago(hours=9))
    assert checks(about_blocked([queued], {} if blocker is None else {"b": blocker}, NOW)) == []


def test_what_blocks_a_run_is_a_run_or_a_limit():
    queued = a_run(id="q", state=State.BLOCKED, blocked_on="b")
    assert blockers_of([queued, held_back(), queued]) == ("b",)


# --- schedules


def findings_about(*surveyed: ParsedSchedule, ended: Any = (), nodes: Any = None) -> list[Finding]:
    return list(about_schedules(surveyed, ended, [a_node()] if nodes is None else nodes, NOW))


def test_a_schedule_as_it_should_be_is_not_mentioned():
    assert findings_about(a_surveyed()) == []


def test_a_rule_that_cannot_be_used_is_an_error_with_its_reason():
    (found,) = findings_about(a_surveyed(rule_error="calendar 'days' of 'report' is not defined"))
    assert (found.severity, found.check) == (Severity.ERROR, "unreadable_rule")
    assert "calendar 'days' of 'report' is not defined" in found.what


def test_a_plan_that_failed_is_an_error():
    (found,) = findings_about(a_surveyed(error="boom"))
    assert (found.severity, found.check) == (Severity.ERROR, "plan_error")


def test_a_rule_without_a_further_moment_is_told_apart_from_one_that_is_over():
    past = Cron("0 0 9 1 1 * 2020")
    assert checks(findings_about(a_surveyed(past))) == ["never_again"]
    assert checks(findings_about(a_surveyed(Cron("0 9 * * *", end=ago(days=1))))) == ["over"]
    spent = a_surveyed(Every("1h", max_fires=3), next_fire_at=None, next_due_at=None)
    assert checks(findings_about(spent)) == ["over"]
    assert checks(findings_about(a_surveyed(Once(ago(days=1))))) == []
    assert checks(findings_about(a_surveyed(past, is_paused=True))) == []


def test_what_is_paused_since_nobody_declares_it_any_more_is_a_note_with_the_way_to_remove_it() -> None:
    left = {"is_paused": True, "is_left_over": True}
    found = findings_about(
        a_surveyed(key="of-code", declared_in="code", **left),
        a_surveyed(key="a", declared_in="file", **left),
        a_surveyed(key="b", declared_in="file", **left),
        a_surveyed(key="by-hand", declared_in="file", is_paused=True),
    )
    assert [(each.severity, each.check, each.about) for each in found] == [
        (Severity.NOTE, "left_over", ("a", "b")),
        (Severity.NOTE, "left_over", ("of-code",)),
    ]
    file, code = found
    assert file.what == "2 schedules are paused and no longer in a configuration: a, b"
    assert "`evertick apply --prune`" in file.fix
    assert "`evertick remove KEY`" in code.fix


def test_a_calendar_that_leaves_no_moment_is_named():
    closed = Calendar("closed", include=["2020-01-01"])
    (found,) = findings_about(a_surveyed(Cron("0 9 * * *", calendar=closed)))
    assert "calendar 'closed'" in found.what


def test_a_pause_that_nobody_has_ended_is_told():
    found = findings_about(a_surveyed(is_paused=True, paused_until=ago(hours=1)))
    assert checks(found) == ["pause_not_ended"]
    assert checks(findings_about(a_surveyed(is_paused=True, paused_until=ago(hours=-1)))) == []


def test_a_schedule_that_was_paused_because_it_fails_is_told_with_its_error_and_how_to_resume_it():
    note = "3 runs in a row have failed, the last error: ValueError: no paper"
    failing = msgspec.structs.replace(a_surveyed(is_paused=True, pause_note=note), is_failing=True)
    (found,) = findings_about(failing)
    assert (found.severity, found.check, found.about) == (Severity.WARNING, "failing", ("report",))
    assert found.what.endswith("3 runs in a row have failed, the last error: ValueError: no paper")
    assert "`evertick resume report`" in found.fix
    assert findings_about(a_surveyed(is_paused=True, pause_note="by hand")) == []


def test_a_schedule_that_waits_for_the_end_of_a_parked_run_is_told():
    (found,) = findings_about(a_surveyed(last_state=State.PARKED, last_run_id="r7", catch_up="all"))
    assert found.check == "behind_parked"
    assert found.what.startswith("report waits for its parked run r7")
    assert "`evertick cancel r7`" in found.fix
    counted = a_surveyed(Every("1h", after="end"), last_state=State.PARKED, next_fire_at=None, next_due_at=None)
    assert checks(findings_about(counted)) == ["behind_parked"]
    # The next fire takes its place, or runs beside it.
    assert findings_about(a_surveyed(last_state=State.PARKED, catch_up="latest")) == []
    assert findings_about(a_surveyed(last_state=State.PARKED, catch_up="all", overlap="allow")) == []


def test_overdue_schedules_are_told_together():
    late = [a_surveyed(key=f"k{number}", next_due_at=ago(minutes=30 + number)) for number in range(3)]
    (found,) = about_overdue([each.schedule for each in late], [], NOW, USUAL)
    assert (found.check, found.severity) == ("overdue", Severity.ERROR)
    assert found.what == "3 schedules are overdue by up to 32 min (k0, k1, k2)"


def test_schedules_that_are_overdue_though_a_node_beats_tell_of_a_blocked_event_loop():
    (found,) = about_overdue([a_surveyed(next_due_at=ago(minutes=30)).schedule], [a_node()], NOW, USUAL)
    assert found.check == "stalled_node"
    assert found.what.startswith("1 schedule is overdue by up to 30 min (report), although shop@host sent heartbeats: ")
    assert "event loop" in found.what
    assert "the log of the node has the job that blocks it" in found.fix


def test_a_task_that_no_live_node_knows_is_told_with_its_schedules():
    (found,) = findings_about(a_surveyed(task="gone"), a_surveyed(key="other", task="gone"))
    assert found.check == "unknown_task"
    assert "task gone of report, other" in found.what
    assert findings_about(a_surveyed(task="gone"), nodes=[]) == []


def _ended(seconds: float, count: int, key: str = "report") -> list[Run]:
    return [
        a_run(
            schedule_key=key,
            node="n1",
            state=State.DONE,
            verdict=Verdict.SUCCEEDED,
            started_at=ago(seconds=seconds),
            finished_at=NOW,
        )
        for _ in range(count)
    ]


def test_a_schedule_that_comes_sooner_than_its_runs_end_is_told_under_overlap_skip():
    often = a_surveyed(Every("5s"))
    (found,) = findings_about(often, ended=_ended(8, 5))
    assert found.check == "too_close"
    assert "every 5 s" in found.what
    assert "take 8.0 s" in found.what
    assert findings_about(often, ended=_ended(4, 5)) == []
    assert findings_about(often, ended=_ended(8, 2)) == []
    assert findings_about(a_surveyed(Every("5s"), overlap="queue"), ended=_ended(8, 5)) == []


def test_a_schedule_whose_runs_wait_for_a_job_that_blocks_is_not_blamed_for_it():
    often = a_surveyed(Every("5s"))
    blocked = a_node(ticks={blocking_tick("slow"): Tick(last_at=ago(seconds=20), next_at=None)})
    (found,) = findings_about(often, ended=_ended(8, 5), nodes=[blocked])
    assert "slow has blocked the event loop of its node" in found.what
    assert found.fix == "correct the job that blocks the event loop first"
    (own,) = findings_about(a_surveyed(Every("5s"), key="slow"), ended=_ended(8, 5, "slow"), nodes=[blocked])
    assert "has blocked" not in own.what


def test_jobs_that_end_together_on_one_node_are_named_together_as_the_ledger_cannot_tell_which_blocks():
    often = a_surveyed(Every("5s"))
    slow = [msgspec.structs.replace(run, schedule_key="slow", id="other") for run in _ended(8, 5)]
    (found,) = findings_about(often, ended=[*_ended(8, 5), *slow])
    assert "end together with runs of slow on the same node" in found.what
    assert "the ledger does not know which" in found.what
    assert found.about == ("report", "slow")
    elsewhere = [msgspec.structs.replace(run, node="n2") for run in slow]
    (alone,) = findings_about(often, ended=[*_ended(8, 5), *elsewhere])
    assert "together" not in alone.what


def test_what_is_overdue_is_told_with_the_job_that_blocks_the_event_loop_or_that_nothing_tells_which():
    late = a_surveyed(next_due_at=ago(minutes=30)).schedule
    (unknown,) = about_overdue([late], [a_node()], NOW, USUAL)
    assert "a job may block the event loop there, and the ledger does not know which" in unknown.what
    blocked = a_node(ticks={blocking_tick("slow"): Tick(last_at=ago(seconds=20), next_at=None)})
    (found,) = about_overdue([late], [blocked], NOW, USUAL)
    assert "slow blocks the event loop of shop@host" in found.what
    (about_node,) = about_programs([blocked], NOW)
    assert about_node.check == "blocked_loop"
    assert about_node.what == (
        "slow blocks the event loop of node shop@host for 20 s: the other jobs of that node wait for it"
    )
    over = a_node(ticks={blocking_tick("slow"): Tick(last_at=ago(seconds=200), next_at=ago(seconds=180))})
    (past,) = about_programs([over], NOW)
    assert "has blocked the event loop of node shop@host for 20 s, 3 min ago" in past.what


# --- calendars


def _holidays(year: int) -> Calendar:
    return Calendar.weekdays("office", holidays=[f"{year}-{month:02}-01" for month in range(1, 13)], tz="Europe/Berlin")


@pytest.mark.parametrize(
    ("year", "check"), [(2024, "calendar_expired"), (2025, "calendar_expired"), (2026, None), (2027, None)]
)
def test_a_list_of_holidays_in_use_that_is_over_is_told(year, check):
    used = a_surveyed(Cron("0 9 * * *", calendar=_holidays(year)))
    assert checks(about_calendars({"office": _holidays(year)}, [used], NOW)) == ([check] if check else [])


def test_a_list_of_holidays_that_ends_soon_is_told_beforehand_also_of_a_blackout():
    used, calendars = a_surveyed(blackout="office"), {"office": _holidays(2026)}
    (found,) = about_calendars(calendars, [used], datetime(2026, 11, 19, tzinfo=UTC))
    assert (found.severity, found.check, found.about) == (Severity.NOTE, "calendar_expires", ("office", "report"))
    assert "is 2026-12-01, in 12 days" in found.what
    assert checks(about_calendars(calendars, [used], datetime(2026, 9, 1, tzinfo=UTC))) == []
    assert checks(about_calendars(calendars, [a_surveyed()], datetime(2028, 9, 1, tzinfo=UTC))) == []


def test_a_single_date_after_a_list_of_holidays_does_not_hide_that_the_list_is_over():
    entries = [*(f"2025-{month:02}-01" for month in range(1, 13)), "2026-01-01"]
    calendar = Calendar.weekdays("office", holidays=entries, tz="Europe/Berlin")
    used = a_surveyed(Cron("0 9 * * *", calendar=calendar))
    assert checks(about_calendars({"office": calendar}, [used], NOW)) == ["calendar_expired"]


def test_a_list_of_holidays_is_over_after_its_last_day_and_not_at_the_end_of_that_year():
    calendar = Calendar.weekdays("school", holidays=[f"2026-{month:02}-01" for month in range(1, 7)], tz="UTC")
    used = a_surveyed(Cron("0 9 * * *", calendar=calendar))

    def found(month: int, day: int) -> list[str]:
        return checks(about_calendars({"school": calendar}, [used], datetime(2026, month, day, tzinfo=UTC)))

    assert found(3, 1) == []
    assert found(6, 1) == ["calendar_expires"]
    assert found(6, 2) == ["calendar_expired"]


def test_single_closures_that_have_passed_and_days_that_come_every_year_are_no_finding():
    once = Calendar("office", exclude=["2024-12-24", "2024-12-31", "12-25", "12-26", "01-01", "05-01"])
    used = a_surveyed(Cron("0 9 * * *", calendar=once))
    assert checks(about_calendars({"office": once}, [used], NOW)) == []


def test_a_herd_is_told_with_a_rule_that_would_leave_it():
    herd = [a_surveyed(Cron("0 9 * * *"), key=f"k{number:02}") for number in range(12)]
    (found,) = findings_about(*herd)
    assert (found.check, len(found.about)) == ("herd", 12)
    assert "like k00: 'H 9 * * *; tz=UTC'" in found.fix
    assert findings_about(*herd[:9]) == []


# --- the database


class SomeCare:
    """A database in whatever condition."""

    def __init__(self, checked: Checked | None = None, **fields: Any) -> None:
        given: dict[str, Any] = {
            "description": "SQLite file jobs.db",
            "engine": "SQLite 3.46",
            "store_id": "s",
            "version": 1,
            "version_known": 1,
            "bytes": 4096 * 100,
            "wal_bytes": 0,
            "journal_mode": "wal",
            "pages": 100,
            "free_pages": 0,
            "vacuum": "incremental",
            "disk_free_bytes": 10**12,
        }
        self._status = StoreStatus(**{**given, **fields})
        self._checked = checked or Checked(problems=())

    async def status(self) -> StoreStatus:
        return self._status

    async def check(self, *, is_quick: bool = False, seconds_most: float | None = None) -> Checked:
        assert is_quick
        assert seconds_most is not None, "a doctor does not keep people waiting"
        return self._checked


@pytest.mark.parametrize(
    ("fields", "found"),
    [
        ({}, []),
        ({"is_on_network": True, "file_system": "nfs4"}, [("network_file_system", "error")]),
        ({"disk_free_bytes": 10**7}, [("disk_space", "error")]),
        ({"disk_free_bytes": 4 * 10**8}, [("disk_space", "warning")]),
        ({"journal_mode": "delete"}, [("journal_mode", "warning")]),
        ({"wal_bytes": 2**30}, [("wal_size", "warning")]),
        ({"pages": 30_000, "free_pages": 20_000}, [("free_pages", "note")]),
        ({"pages": 30, "free_pages": 20}, []),
        ({"checked": Checked(problems=("the file is damaged: page 7",))}, [("integrity", "error")]),
        ({"checked": Checked(problems=(), is_complete=False)}, [("integrity", "note")]),
    ],
)
async def test_what_is_wrong_with_the_database_is_found(fields, found):
    findings = [finding async for finding in about_database(SomeCare(**fields))]  # type: ignore[arg-type]
    assert [(finding.check, finding.severity.value) for finding in findings] == found


# --- the whole


def test_the_worst_comes_first_and_what_is_alike_is_shortened():
    many = [Finding(severity=Severity.NOTE, check="over", what=f"k{n}", fix="", about=(f"k{n}",)) for n in range(14)]
    error = Finding(severity=Severity.ERROR, check="plan_error", what="boom", fix="")
    kept = shortened([*many, error])
    assert kept[0] is error
    assert len(kept) == 12
    assert kept[-1].what == "and 4 more like these: k10, k11, k12, k13"


def test_of_many_names_the_first_few_are_told():
    assert named(["a", "b"]) == "a, b"
    assert named("abcdefgh") == "a, b, c, d, e and 3 more"


@pytest.fixture
async def scheduler(tmp_path: Path) -> AsyncIterator[Scheduler]:
    made = Scheduler(f"sqlite:///{tmp_path}/jobs.db", concurrency=0)
    yield made
    await made.close()


async def test_a_store_is_examined_by_its_protocol(scheduler):
    for number in range(12):
        await scheduler.add(key=f"k{number}", when=Cron("0 9 * * *"), task="make_report")
    await scheduler.trigger("k1")
    store = await scheduler.runtime.store()
    assert checks(await examine(store, "default", from_us(system_clock.now_us()))) == ["no_node", "herd"]
    assert checks(await examine(store, "other", from_us(system_clock.now_us()))) == ["no_node", "empty_app"]


async def test_what_a_limit_has_held_back_for_long_is_found_in_the_store(scheduler):
    store = await scheduler.runtime.store()
    tasks = {"t": TaskTerms(concurrency=Concurrency(most=1, of=Subject(task="t")))}
    about = {"app": scheduler.app, "version": "1", "lease": HOUR, "declares": {}}
    await store.join(NodeJoin(id="n", name="n", queues=("default",), tasks=tasks, **about))
    long_ago = await store.now() - 2 * HOUR
    runs = [
        NewRun(id=str(n), task="t", cause=Cause.ENQUEUE, fire_at=long_ago + n, due_at=long_ago + n) for n in range(3)
    ]
    await store.enqueue(scheduler.app, runs)
    assert len((await store.claim(scheduler.app, "n", ["default"], tasks, 10)).runs) == 1
    (found,) = await examine(store, scheduler.app, from_us(await store.now()))
    assert (found.check, found.about) == ("held_back_long", ("1", "2"))


async def test_a_store_that_is_away_is_itself_the_finding(scheduler, tmp_path):
    await scheduler.add(key="k", when=Every("1h"), task="make_report")
    store = await scheduler.runtime.store()
    await store.close()
    (found,) = await examine(store, "default", NOW)
    assert (found.check, found.severity) == ("store", Severity.ERROR)
    (tmp_path / "jobs.db").write_bytes(b"no database at all" * 100)
    (found,) = await examine_database(store.maintenance())
    assert "is not a SQLite database" in found.what


async def test_a_survey_reads_all_schedules_a_page_at_a_time(scheduler):
    rows = [{"key": f"k{n:04}", "when": Every("1h"), "task": "t", "labels": {"n": str(n % 2)}} for n in range(1_100)]
    await scheduler.add_many(rows)
    store = await scheduler.runtime.store()
    found = [each.schedule.key async for each in survey(store, "default")]
    assert found == [row["key"] for row in rows]
    assert len([each async for each in survey(store, "default", labels={"n": "1"})]) == 550
    assert [each.schedule.key async for each in survey(store, "default", keys=["k0007"])] == ["k0007"]


async def test_a_survey_tells_why_a_rule_cannot_be_used(scheduler):
    await scheduler.set_calendar(Calendar("days", exclude=["sat"]))
    await scheduler.add(key="k", when=Cron("0 9 * * *", calendar="days"), task="t")
    store = await scheduler.runtime.store()
    (good,) = [each async for each in survey(store, "default")]
    assert good.rule is not None
    assert good.expected is not None
    assert good.expected.rule.bounds.calendar == "days"


async def test_what_a_blackout_holds_back_or_somebody_skips_is_not_expected(scheduler):
    await scheduler.set_calendar(Calendar("nights", include=["00:00-06:00"]))
    await scheduler.add(key="held", when=Every("1h"), task="t", blackout="nights")
    await scheduler.add(key="skipped", when=Every("1h"), task="t")
    skipped = (await scheduler.skip_next("skipped")).occurrences[0].fire_at
    store = await scheduler.runtime.store()
    held, other = [each.expected async for each in survey(store, "default")]
    assert held is not None
    assert other is not None
    since = system_clock.now_us()
    assert (held.rule.count_us(since, since + DAY - 1), held.firing.count_us(since, since + DAY - 1)) == (24, 6)
    assert other.rule.next_us(to_us(skipped) - 1) == to_us(skipped)
    assert other.firing.next_us(to_us(skipped) - 1) == to_us(skipped) + HOUR


# --- duties


def a_duty(**fields: Any) -> Duty:
    given: dict[str, Any] = {
        "name": "evertick.prune",
        "node": "n1",
        "node_name": "shop@host",
        "term": 1,
        "since": ago(hours=1),
        "ticked_at": ago(seconds=20),
        "next_at": NOW + timedelta(seconds=40),
        "error": None,
    }
    return Duty(**{**given, **fields})


def test_a_duty_that_fails_is_told_with_its_holder_its_error_and_what_is_not_done_meanwhile() -> None:
    own = a_duty(error="OperationalError: no such table: evertick_feed")
    other = a_duty(name="rebuild-index", error="ValueError: no paper\nat all")
    pruning, rebuilding = about_duties([own, other], [a_node()], NOW)
    assert (pruning.severity, pruning.check, pruning.about) == (Severity.WARNING, "failing_duty", ("evertick.prune",))
    assert pruning.what == (
        "duty evertick.prune fails on node shop@host: OperationalError: no such table: evertick_feed; "
        "until then no node deletes history that is older than the retention"
    )
    assert rebuilding.what == "duty rebuild-index fails on node shop@host: ValueError: no paper"
    assert "`evertick duties rebuild-index`" in rebuilding.fix


def test_a_duty_without_ticks_that_has_gone_on_since_its_error_is_well() -> None:
    def found(began: datetime) -> list[Finding]:
        loop = a_duty(name="follow", ticked_at=began, next_at=None, error="it returned")
        return list(about_duties([a_duty(), loop], [a_node()], NOW))

    assert [each.check for each in found(ago(seconds=5))] == ["failing_duty"]
    assert found(ago(minutes=2)) == []


def test_duties_that_nobody_holds_though_nodes_live_are_found() -> None:
    gone = a_duty(name="rebuild-index", node=None, node_name=None, error="of long ago")
    pruning, rebuilding = about_duties([gone], [a_node()], NOW)
    assert (pruning.severity, pruning.about) == (Severity.WARNING, ("evertick.prune",))
    assert pruning.what.endswith(": no node deletes history that is older than the retention")
    assert "duties=False" in pruning.fix
    assert (rebuilding.severity, rebuilding.check) == (Severity.NOTE, "unheld_duty")


@pytest.mark.parametrize(
    "nodes",
    [
        pytest.param([], id="nobody lives"),
        pytest.param([a_node(started_at=ago(seconds=5))], id="a node has just started"),
        pytest.param([a_node(), a_node(id="n2", died_at=ago(seconds=10))], id="a node has just ended"),
    ],
)
def test_a_duty_between_two_holders_is_no_finding(nodes: list[Node]) -> None:
    assert list(about_duties([a_duty(node=None, node_name=None)], nodes, NOW)) == []


def test_messages_that_are_tried_in_vain_are_told_though_their_next_try_is_yet_to_come():
    now = to_us(NOW)
    pulse = ChannelPulse(channel="redis", waiting=3, sending=0, dead=0, oldest_due_at=now + 20_000_000)
    living = [a_node(channels=("redis",))]
    assert list(about_outbox([pulse], living, NOW, USUAL)) == []
    for minutes, found in ((0, []), (6, ["messages_failing"])):
        failing = msgspec.structs.replace(pulse, oldest_failing_at=now - minutes * 60_000_000)
        assert checks(list(about_outbox([failing], living, NOW, USUAL))) == found


def test_runs_that_are_parked_for_want_of_a_driver_name_it():
    living = [a_node(tasks=(), leaves={"gone": "redis"})]
    run = a_run(task="gone", state=State.PARKED, reason="unknown_task")
    (found,) = about_parked([run], living)
    assert "parked: no live node has the driver redis of task gone enabled" in found.what
    assert found.fix.startswith("enable redis on a node, or cancel it with ")


def test_a_killed_node_is_killed_until_it_is_written_down_as_dead() -> None:
    alive, dead = a_node(), a_node(died_at=ago(seconds=1), lease_until=ago(seconds=5))
    assert [node_state(each, NOW, {each.id}) for each in (alive, dead)] == ["killed", "dead"]
    assert node_state(alive, NOW) == "alive"
