"""Promises about managing schedules: backfills, schedules that keep failing, and calendars in use."""

from __future__ import annotations

from typing import Any

import pytest

from evertick.model import Cause, Pause, Verdict
from evertick.store.base import StoredSchedule
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    OTHER_APP,
    Bench,
    a_definition,
    a_fire,
    a_gap,
    an_advance,
)

__all__ = ["ScheduleManagement"]

_ALL = 1_000


async def _fires(bench: Bench, node: str, *verdicts: Verdict, key: str = "nightly", **fields: Any) -> StoredSchedule:
    """Record and finish one fire for each verdict."""
    for verdict in verdicts:
        schedule = await bench.stored(key)
        assert schedule.fire_at is not None
        following = schedule.fire_at + 1
        run = await bench.fire(schedule, {"next_fire_at": following, "next_at": following}, **fields)
        await bench.end(node, await bench.hold(node, run), verdict=verdict, error=f"error of {schedule.fire_at}")
    return await bench.stored(key)


class ScheduleManagement:
    # --- moments that have a run

    async def test_recorded_moments_include_live_and_finished_runs(self, bench: Bench) -> None:
        schedule, node = await bench.add(), await bench.node()
        first = schedule.fire_at
        assert first is not None
        schedule = await _fires(bench, node, Verdict.SUCCEEDED, Verdict.FAILED)
        backfill = a_fire(schedule, fire_at=first - HOUR, cause=Cause.BACKFILL)
        by_hand = a_fire(schedule, fire_at=first - MINUTE, cause=Cause.TRIGGER)
        stays = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        await bench.record(an_advance(schedule, backfill, by_hand, **stays))

        async def moments(since: int, until: int, limit: int = _ALL, app: str = APP) -> list[int]:
            return await bench.store.recorded_moments(app, schedule.id, first=since, last=until, limit=limit)

        assert await moments(0, first + HOUR) == [first - HOUR, first, first + 1]
        assert await moments(first, first) == [first]
        assert await moments(first + 2, first + HOUR) == []
        assert await moments(0, first + HOUR, limit=2) == [first - HOUR, first]
        assert await moments(0, first + HOUR, app=OTHER_APP) == []

    async def test_a_backfill_fills_a_gap_once_and_leaves_the_cursor(self, bench: Bench) -> None:
        schedule, node = await bench.add(), await bench.node()
        assert schedule.fire_at is not None
        moment = schedule.fire_at - HOUR
        stays = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        gap = a_gap(moment, moment)
        await bench.record(an_advance(schedule, gaps=(gap,), **stays))
        first, again = (a_fire(schedule, fire_at=moment, cause=Cause.BACKFILL) for _ in range(2))
        assert (await bench.record(an_advance(schedule, first, **stays))).left_out == []
        assert (await bench.record(an_advance(schedule, again, **stays))).left_out == [again.id]
        await bench.end(node, await bench.hold(node, first.id))
        assert (await bench.record(an_advance(schedule, again, **stays))).left_out == [again.id]
        after = await bench.stored()
        assert (after.fire_at, after.at, after.fires) == (schedule.fire_at, schedule.at, 0)
        assert len(await bench.gaps()) == 1
        assert [run.id for run in await bench.runs()] == [first.id]

    # --- failures in a row

    async def test_a_schedule_is_failing_when_its_newest_fires_all_failed(self, bench: Bench) -> None:
        node = await bench.node()
        before = await bench.add(pause_after=2)
        schedule = await _fires(bench, node, Verdict.SUCCEEDED, Verdict.FAILED)
        assert await bench.store.failing(APP) == []
        schedule = await _fires(bench, node, Verdict.LOST)
        [failing] = await bench.store.failing(APP)
        newest = (await bench.runs())[0]
        assert (failing.schedule_id, failing.key, failing.version) == (schedule.id, "nightly", schedule.version)
        assert (failing.count, failing.run, failing.verdict) == (2, newest.id, Verdict.LOST)
        assert before.fire_at is not None
        assert failing.error == f"error of {before.fire_at + 2}"
        await _fires(bench, node, Verdict.SUCCEEDED)
        assert await bench.store.failing(APP) == []

    @pytest.mark.parametrize("verdict", [Verdict.SKIPPED, Verdict.CANCELLED, Verdict.MISSED])
    async def test_other_verdicts_neither_count_as_failures_nor_reset_the_count(
        self, bench: Bench, verdict: Verdict
    ) -> None:
        node = await bench.node()
        await bench.add(pause_after=2)
        await _fires(bench, node, Verdict.FAILED, verdict)
        assert await bench.store.failing(APP) == []
        await _fires(bench, node, Verdict.FAILED, verdict)
        assert [failing.count for failing in await bench.store.failing(APP)] == [2]

    async def test_only_fires_count_as_failures_in_a_row(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add(pause_after=2)
        for cause in (Cause.TRIGGER, Cause.RERUN, Cause.BACKFILL):
            await _fires(bench, node, Verdict.FAILED, Verdict.FAILED, cause=cause)
        assert await bench.store.failing(APP) == []

    async def test_only_selected_active_schedules_with_pause_after_are_listed_as_failing(self, bench: Bench) -> None:
        node = await bench.node()
        for key, fields in {"one": {"pause_after": 1}, "two": {"pause_after": 1}, "never": {}}.items():
            await bench.add(key, **fields)  # type: ignore[arg-type]
            await _fires(bench, node, Verdict.FAILED, key=key)
        ids = {key: (await bench.stored(key)).id for key in ("one", "two", "never")}
        assert {failing.key for failing in await bench.store.failing(APP)} == {"one", "two"}
        assert len(await bench.store.failing(APP, limit=1)) == 1
        wanted = await bench.store.failing(APP, ids=[ids["two"], ids["never"], max(ids.values()) + 1])
        assert [failing.key for failing in wanted] == ["two"]
        assert await bench.store.failing(APP, ids=[]) == []
        assert await bench.store.failing(OTHER_APP) == []
        assert await bench.store.failing(OTHER_APP, ids=list(ids.values())) == []
        await bench.pause(await bench.stored("two"), pause=Pause(at=1))
        assert [failing.key for failing in await bench.store.failing(APP)] == ["one"]

    async def test_a_changed_definition_resets_the_failure_count(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add(pause_after=2)
        schedule = await _fires(bench, node, Verdict.FAILED)
        assert await bench.change("edit", schedule, definition=a_definition(pause_after=2, priority=1))
        await _fires(bench, node, Verdict.FAILED)
        assert await bench.store.failing(APP) == []
        await _fires(bench, node, Verdict.FAILED)
        assert len(await bench.store.failing(APP)) == 1

    async def test_an_edit_without_a_change_does_not_reset_the_failure_count(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add(pause_after=2)
        schedule = await _fires(bench, node, Verdict.FAILED)
        assert await bench.change("edit", schedule, definition=schedule.definition)
        await _fires(bench, node, Verdict.FAILED)
        assert len(await bench.store.failing(APP)) == 1

    @pytest.mark.parametrize("ends_by_itself", [False, True])
    async def test_the_end_of_a_pause_resets_the_failure_count(self, bench: Bench, ends_by_itself: bool) -> None:
        node = await bench.node()
        await bench.add(pause_after=2)
        schedule = await bench.pause(await _fires(bench, node, Verdict.FAILED), pause=Pause(at=1))
        cursor = {"next_fire_at": schedule.fire_at, "next_at": schedule.fire_at}
        if ends_by_itself:
            assert (await bench.record(an_advance(schedule, ends_pause=True, **cursor))).taken == [True]
        else:
            assert await bench.change("resume", schedule, an_advance(schedule, **cursor))
        await _fires(bench, node, Verdict.FAILED)
        assert await bench.store.failing(APP) == []
        await _fires(bench, node, Verdict.FAILED)
        assert len(await bench.store.failing(APP)) == 1

    # --- calendars

    async def test_the_users_of_a_calendar_are_found_by_its_whole_name(self, bench: Bench) -> None:
        await bench.add("last", when="cron 0 9 * * *; tz=UTC; calendar=biz")
        await bench.add("first", when="cron 0 9 * * *; calendar=biz; tz=UTC")
        await bench.add("blackout", blackout="biz")
        await bench.add("longer", when="cron 0 9 * * *; calendar=biz2", blackout="biz2")
        await bench.add("in the arguments", args={"when": "; calendar=biz;"}, labels={"blackout": "biz"})
        await bench.add("elsewhere", when="cron 0 9 * * *; calendar=biz", app=OTHER_APP)
        assert await bench.store.calendar_users(APP, "biz") == ["blackout", "first", "last"]
        assert await bench.store.calendar_users(APP, "biz", limit=1) == ["blackout"]
        assert await bench.store.calendar_users(APP, "bi") == []

    async def test_a_calendar_that_is_used_is_not_removed(self, bench: Bench) -> None:
        await bench.store.put_calendar(APP, "biz", "v1", b"{}")
        await bench.store.put_calendar(APP, "biz", "v2", b"[]")
        await bench.store.put_calendar(OTHER_APP, "biz", "v1", b"{}")
        schedule = await bench.add(blackout="biz")
        assert not await bench.store.remove_calendar(APP, "biz")
        assert await bench.store.calendars(APP) == {"biz": b"[]"}
        assert await bench.change("edit", schedule, definition=a_definition())
        assert await bench.store.remove_calendar(APP, "biz")
        assert await bench.store.calendars(APP) == {}
        assert await bench.store.calendars(OTHER_APP) == {"biz": b"{}"}
        assert not await bench.store.remove_calendar(APP, "biz")
