"""Promises about recording: what is due, the guards of a plan, one run per nominal moment, cursors after an end."""

from __future__ import annotations

import asyncio
from typing import Any

import msgspec
import pytest

from evertick.model import Cause, Definition, Occurrence, Pause, Reason, State, Verdict
from evertick.store.base import FIRST_PLACE, Change, StoredSchedule
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    SHORT_LEASE,
    Bench,
    a_definition,
    a_fire,
    a_gap,
    an_advance,
    an_outcome,
    us,
)
from evertick.testing.conformance.finishing import ENDINGS, Ending, end_waiting_run, expires_for

__all__ = ["Fires"]

_MANY = 1000


async def _a_line(bench: Bench, schedule: StoredSchedule, count: int) -> list[str]:
    """Runs that wait for each other, those of earlier moments behind those of later ones."""
    line = []
    for number in range(count):
        moment = (schedule.fire_at or 0) - number * MINUTE
        run = a_fire(schedule, cause=Cause.RERUN, fire_at=moment, state=State.BLOCKED)
        stays = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(schedule, run, **stays))).taken == [True]
        line.append(run.id)
    return line


class Fires:
    # --- due

    async def test_due_schedules_come_longest_due_first(self, bench: Bench) -> None:
        now = await bench.now()
        for key, ago in (("middle", 20), ("newest", 10), ("oldest", 30)):
            await bench.add(key, fire_at=now - ago)
        due = await bench.store.due_schedules(APP, 10)
        assert [found.at for found in due.schedules] == [now - 30, now - 20, now - 10]
        assert due.now >= now

    async def test_no_more_than_the_limit_is_read_and_the_longest_due_win(self, bench: Bench) -> None:
        now = await bench.now()
        for ago in (10, 30, 20):
            await bench.add(f"s{ago}", fire_at=now - ago)
        due = await bench.store.due_schedules(APP, 2)
        assert [found.at for found in due.schedules] == [now - 30, now - 20]

    async def test_a_look_goes_on_where_another_has_ended(self, bench: Bench) -> None:
        now = await bench.now()
        # Several at one moment, and one before it that comes too late for this look.
        ids = sorted([(await bench.add(f"s{number}", fire_at=now - 20)).id for number in range(4)])
        last = await bench.add("last", fire_at=now - 10)
        pages = []
        after = FIRST_PLACE
        for _ in range(4):
            due = await bench.store.due_schedules(APP, 2, after)
            pages.append([found.id for found in due.schedules])
            assert due.next_place == (due.schedules[-1].place if len(due.schedules) == 2 else None)
            after = due.schedules[-1].place if due.schedules else after
            await bench.add(f"before{len(pages)}", fire_at=now - 30)
        assert pages == [ids[:2], ids[2:], [last.id], []]

    async def test_a_look_goes_on_past_what_it_has_seen_and_was_moved(self, bench: Bench) -> None:
        now = await bench.now()
        moved, kept = [await bench.add(key, fire_at=now - 20) for key in ("moved", "kept")]
        [seen] = (await bench.store.due_schedules(APP, 1)).schedules
        assert seen.id == moved.id
        next_place = an_advance(moved, a_fire(moved), next_fire_at=now - 10, next_at=now - 10)
        assert (await bench.record(next_place)).taken == [True]
        found = (await bench.store.due_schedules(APP, 10, seen.place)).schedules
        assert [(each.id, each.at) for each in found] == [(kept.id, now - 20), (moved.id, now - 10)]

    async def test_a_schedule_is_due_by_when_to_look_at_it_not_by_its_moment(self, bench: Bench) -> None:
        now = await bench.now()
        await bench.add("jittered", fire_at=now - HOUR, at=now + HOUR)
        early = await bench.add("early", fire_at=now + HOUR, at=now - 1)
        due = await bench.store.due_schedules(APP, 10)
        assert [found.id for found in due.schedules] == [early.id]
        assert due.next_at == now + HOUR

    async def test_next_at_tells_when_the_next_schedule_becomes_due(self, bench: Bench) -> None:
        now = await bench.now()
        assert (await bench.store.due_schedules(APP, 10)).next_at is None
        await bench.add("later", fire_at=now + 2 * HOUR)
        await bench.add("soon", fire_at=now + HOUR)
        await bench.add("due", fire_at=now - HOUR)
        due = await bench.store.due_schedules(APP, 10)
        assert len(due.schedules) == 1
        assert due.next_at == now + HOUR

    async def test_a_schedule_becomes_due_when_the_time_of_the_store_has_come(self, bench: Bench) -> None:
        schedule = await bench.add(fire_at=await bench.now() + SHORT_LEASE)
        await bench.pass_time(2 * SHORT_LEASE)
        due = await bench.store.due_schedules(APP, 10)
        assert [found.id for found in due.schedules] == [schedule.id]

    async def test_a_due_row_says_what_a_plan_is_made_from(self, bench: Bench) -> None:
        await bench.fire(await bench.add(args={"name": "Ä"}))
        stored = await bench.stored()
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        assert (due.id, due.version, due.fire_at, due.at) == (stored.id, stored.version, stored.fire_at, stored.at)
        assert (due.key, due.created_at, due.fires, due.failures) == (stored.key, stored.created_at, 1, 0)
        assert msgspec.json.decode(due.definition, type=Definition) == stored.definition
        assert (due.pause, due.occurrences) == (None, ())

    async def test_a_due_row_tells_of_a_pause_and_of_decisions(self, bench: Bench) -> None:
        schedule = await bench.add()
        pause = Pause(at=1, note="until later", until=2)
        settle = an_advance(schedule, next_fire_at=1, next_at=2, occurrences=(Occurrence(fire_at=7, kind="skip"),))
        assert await bench.change("pause", schedule, settle=settle, pause=pause)
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        stored = await bench.stored()
        assert (due.version, due.pause, due.occurrences) == (stored.version, pause, stored.occurrences)
        assert due.occurrences

    async def test_what_is_read_of_a_schedule_says_whether_runs_are_live_and_blocked(self, bench: Bench) -> None:
        async def live() -> int:
            [due] = (await bench.store.due_schedules(APP, 10)).schedules
            assert (await bench.stored()).live == due.live
            return due.live

        node = await bench.node()
        schedule = await bench.add()
        assert await live() == 0
        run = await bench.fire(schedule)
        assert await live() == 1
        held = await bench.hold(node, run)
        assert await live() == 1
        await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert await live() == 3
        await bench.end(node, held)
        assert await live() == 1
        await bench.end(node, (await bench.claim(node)).runs[0])
        assert await live() == 0

    async def test_a_run_that_waits_for_its_retry_or_is_parked_is_live(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add("retrying")
        await bench.add("parked")
        for key, kind in (("retrying", "retry"), ("parked", "park")):
            held = await bench.hold(node, await bench.fire(await bench.stored(key)))
            await bench.end(node, held, kind=kind, delay=HOUR)
        due = await bench.store.due_schedules(APP, 10)
        assert [found.live for found in due.schedules] == [1, 5]

    async def test_a_schedule_is_stuck_while_nothing_of_it_is_live_but_parked_runs_and_what_waits_for_them(
        self, bench: Bench
    ) -> None:
        async def live() -> int:
            found = (await bench.stored()).live
            assert [each.live for each in (await bench.store.due_schedules(APP, 10)).schedules] == [found]
            return found

        node = await bench.node()
        await bench.add()
        parked = await bench.hold(node, await bench.fire(await bench.stored()))
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert await live() == 3
        await bench.end(node, parked, kind="park")
        assert await live() == 7
        again = await bench.fire(await bench.stored())
        assert await live() == 3
        await bench.cancel(again)
        assert await live() == 7
        await bench.cancel(blocked)
        assert await live() == 5
        await bench.cancel(parked.id)
        assert await live() == 0

    async def test_a_run_takes_the_place_of_parked_ones_only_while_they_are_parked(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.add()
        parked = await bench.hold(node, await bench.fire(await bench.stored()))
        await bench.end(node, parked, kind="park", reason="unknown_task")
        stuck = await bench.stored()
        await bench.node()  # knows the task, and frees the parked run
        replacing = an_advance(stuck, a_fire(stuck), live=stuck.live, replaces_live=True)
        assert (await bench.record(replacing)).taken == [False]
        again = await bench.hold(node, parked.id)
        await bench.end(node, again, kind="park", reason="bad_arguments")
        replacing = an_advance(stuck, a_fire(stuck), live=stuck.live, replaces_live=True)
        assert (await bench.record(replacing)).taken == [True]
        ended = await bench.run(parked.id)
        assert (ended.verdict, ended.reason) == (Verdict.CANCELLED, "replaced")

    async def test_a_schedule_whose_cursor_has_ended_is_not_due(self, bench: Bench) -> None:
        await bench.fire(await bench.add(), {"next_fire_at": None, "next_at": None})
        stored = await bench.stored()
        assert (stored.fire_at, stored.at) == (None, None)
        due = await bench.store.due_schedules(APP, 10)
        assert (due.schedules, due.next_at) == ([], None)

    # --- guards

    async def test_a_taken_plan_writes_its_runs_and_gaps_and_moves_the_cursor(self, bench: Bench) -> None:
        schedule = await bench.add(labels={"team": "a"})
        fire_at = schedule.fire_at
        assert fire_at is not None
        new = a_fire(
            schedule,
            due_at=fire_at + 7,
            queue="slow",
            priority=4,
            expires=HOUR,
            labels={"team": "a"},
            reason=Reason.LATE,
            caused_by="who",
        )
        gap = a_gap(fire_at - HOUR, fire_at - MINUTE, count=60, is_exact=False)
        before = await bench.now()
        answer = await bench.record(an_advance(schedule, new, gaps=(gap,), next_fire_at=1, next_at=2, fingerprint="f"))
        assert answer.taken == [True]
        assert answer.fence == 0
        assert before <= answer.now <= await bench.now()
        run = await bench.run(new.id)
        assert (run.app, run.schedule_key, run.task, run.cause) == (
            APP,
            "nightly",
            schedule.definition.task,
            Cause.FIRE,
        )
        assert (us(run.fire_at), us(run.due_at), us(run.expires_at)) == (fire_at, fire_at + 7, fire_at + 7 + HOUR)
        assert (run.state, run.reason, run.queue, run.priority) == (State.WAITING, Reason.LATE, "slow", 4)
        assert (run.labels, run.caused_by) == ({"team": "a"}, "who")
        assert (run.attempts, run.losses) == (0, 0)
        assert before <= us(run.created_at) <= await bench.now()
        [found] = await bench.gaps()
        assert (found.schedule_key, us(found.first_at), us(found.last_at)) == (
            "nightly",
            fire_at - HOUR,
            fire_at - MINUTE,
        )
        assert (found.count, found.is_exact, found.verdict) == (60, False, Verdict.SKIPPED)
        assert found.reason == "coalesced"
        assert before <= us(found.recorded_at) <= await bench.now()
        stored = await bench.stored()
        assert (stored.fire_at, stored.at, stored.fingerprint) == (1, 2, "f")
        assert stored.version == schedule.version

    async def test_of_many_plans_each_that_is_taken_has_its_own_gaps(self, bench: Bench) -> None:
        schedules = [await bench.add(f"s{number}") for number in range(5)]
        plans = [
            an_advance(each, a_fire(each), gaps=tuple(a_gap(number, number + place) for place in range(number)))
            for number, each in enumerate(schedules)
        ]
        plans[2] = msgspec.structs.replace(plans[2], version=99)
        plans[3] = msgspec.structs.replace(plans[3], runs=(a_fire(schedules[3], state=State.BLOCKED),))
        assert (await bench.record(*plans)).taken == [True, True, False, True, True]
        assert sorted((each.schedule_key, us(each.first_at), us(each.last_at)) for each in await bench.gaps()) == [
            ("s1", 1, 1),
            *(("s3", 3, 3 + place) for place in range(3)),
            *(("s4", 4, 4 + place) for place in range(4)),
        ]
        assert sorted(run.schedule_key or "" for run in await bench.runs()) == ["s0", "s1", "s3", "s4"]

    @pytest.mark.parametrize(
        "stale",
        [{"version": 99}, {"fire_at": 1}, {"fire_at": None}, {"at": 1}, {"at": None}, {"live": 1}, {"schedule_id": -1}],
        ids=lambda stale: "-".join(f"{name} {value}" for name, value in stale.items()),
    )
    async def test_a_plan_made_from_anything_else_is_refused_whole(self, bench: Bench, stale: dict[str, Any]) -> None:
        schedule = await bench.add()
        answer = await bench.record(an_advance(schedule, a_fire(schedule), gaps=(a_gap(1, 2),), **stale))
        assert answer.taken == [False]
        assert await bench.stored() == schedule
        assert await bench.runs() == []
        assert await bench.gaps() == []

    async def test_a_plan_guarded_by_live_runs_is_taken_while_they_are_the_same(self, bench: Bench) -> None:
        schedule = await bench.add()
        await bench.fire(schedule, {"live": 0})
        await bench.fire(await bench.stored(), {"live": 1}, state=State.BLOCKED)
        schedule = await bench.stored()
        for other in (0, 1, 2):
            assert (await bench.record(an_advance(schedule, live=other))).taken == [False]
        assert (await bench.record(an_advance(schedule, live=3))).taken == [True]

    async def test_a_plan_that_does_not_ask_is_taken_whatever_is_live(self, bench: Bench) -> None:
        await bench.fire(await bench.add())
        assert (await bench.record(an_advance(await bench.stored(), live=None))).taken == [True]

    async def test_a_cursor_of_none_is_guarded_too(self, bench: Bench) -> None:
        await bench.fire(await bench.add(), {"next_fire_at": None, "next_at": None})
        ended = await bench.stored()
        by_hand = a_fire(ended, cause=Cause.TRIGGER, fire_at=None, due_at=None)
        assert (await bench.record(an_advance(ended, by_hand, fire_at=5))).taken == [False]
        assert (await bench.record(an_advance(ended, by_hand))).taken == [True]
        assert (await bench.run(by_hand.id)).cause is Cause.TRIGGER

    async def test_a_plan_is_refused_if_a_run_by_hand_came_after_it_was_made(self, bench: Bench) -> None:
        schedule = await bench.add()
        by_hand = a_fire(schedule, cause=Cause.TRIGGER, fire_at=None, due_at=None)
        stays = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(schedule, by_hand, live=0, **stays))).taken == [True]
        assert (await bench.record(an_advance(schedule, a_fire(schedule), live=0))).taken == [False]
        assert [run.id for run in await bench.runs()] == [by_hand.id]

    async def test_a_stamp_is_of_the_row_that_was_read(self, bench: Bench) -> None:
        schedule = await bench.add()
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        assert due.stamp == schedule.stamp
        await bench.fire(schedule)
        written = await bench.stored()
        assert schedule.stamp is None or written.stamp != schedule.stamp

    async def test_what_is_written_of_a_plan_does_not_depend_on_its_stamp(self, bench: Bench) -> None:
        node = await bench.node()
        fields = {"queue": "q", "priority": 3, "labels": {"a": "b"}, "reason": Reason.LATE, "expires": HOUR}
        claims: list[dict[str, Any]] = [{}, {"is_claimed": True, "timeout": HOUR, "at_most_once": True}]
        moment = await bench.now() - MINUTE
        told = []
        for number, claim in enumerate(claims):
            for stamp in (True, False):
                schedule = await bench.add(f"{number} {stamp}", fire_at=moment, at=moment + 1)
                run = a_fire(schedule, due_at=moment + 1, **fields, **claim)
                own = {"next_at": moment + MINUTE + 2, "fingerprint": "f"} | ({} if stamp else {"stamp": None})
                plan = an_advance(schedule, run, live=0, **own)
                recorded = await bench.record(plan, node=node)
                assert (recorded.taken, recorded.fence > 0) == ([True], bool(claim))
                written, cursor = await bench.run(run.id), await bench.stored(schedule.key)
                assert written.schedule_key == schedule.key
                told.append(
                    (
                        msgspec.structs.replace(
                            written, id="", schedule_key="", created_at=None, started_at=None, fence=None
                        ),
                        msgspec.structs.replace(cursor, id=0, key="", stamp=None),
                    )
                )
        assert told[0] == told[1]
        assert told[2] == told[3]

    async def test_the_same_plan_sent_again_is_refused(self, bench: Bench) -> None:
        schedule = await bench.add()
        plan = an_advance(schedule, a_fire(schedule), gaps=(a_gap(1, 2),))
        assert (await bench.record(plan)).taken == [True]
        after = await bench.stored()
        assert (await bench.record(plan)).taken == [False]
        assert await bench.stored() == after
        assert len(await bench.runs()) == len(await bench.gaps()) == 1

    async def test_of_two_nodes_that_plan_the_same_moment_one_records_it(self, bench: Bench) -> None:
        schedule = await bench.add()
        second = await bench.stores.open()
        answers = await asyncio.gather(
            *(
                store.record_fires(APP, None, [an_advance(schedule, a_fire(schedule))])
                for store in (bench.store, second, bench.store, second)
            )
        )
        assert sorted(answer.taken for answer in answers) == [[False], [False], [False], [True]]
        assert len(await bench.runs()) == 1

    async def test_a_refused_plan_does_not_stop_the_others_of_its_batch(self, bench: Bench) -> None:
        schedules = [await bench.add(f"s{number}") for number in range(3)]
        plans = [an_advance(schedule, a_fire(schedule)) for schedule in schedules]
        plans[1] = an_advance(schedules[1], a_fire(schedules[1]), version=99)
        assert (await bench.record(*plans)).taken == [True, False, True]
        assert {run.schedule_key for run in await bench.runs()} == {"s0", "s2"}
        assert await bench.stored("s1") == schedules[1]

    async def test_a_plan_that_cannot_be_written_does_not_stop_the_others_of_its_batch(self, bench: Bench) -> None:
        bad, good = await bench.add("bad"), await bench.add("good")
        # Half a surrogate pair is text in Python and in no database.
        plans = [an_advance(bad, a_fire(bad, task="\ud800")), an_advance(good, a_fire(good))]
        answer = await bench.record(*plans)
        assert answer.taken[1]
        assert [run.schedule_key for run in await bench.runs(schedule_key="good")] == ["good"]
        stored = await bench.stored("bad")
        assert answer.taken[0] == (stored.fire_at != bad.fire_at)

    async def test_of_two_plans_for_one_schedule_in_a_batch_the_first_is_taken(self, bench: Bench) -> None:
        schedule = await bench.add()
        plans = [an_advance(schedule, a_fire(schedule)) for _ in range(2)]
        assert (await bench.record(*plans)).taken == [True, False]
        assert [run.id for run in await bench.runs()] == [plans[0].runs[0].id]

    async def test_an_empty_batch_is_answered(self, bench: Bench) -> None:
        answer = await bench.record()
        assert (answer.taken, answer.fence) == ([], 0)
        assert await bench.store.change_schedules(APP, []) == []

    async def test_a_thousand_plans_are_one_batch(self, bench: Bench) -> None:
        now = await bench.now()
        adds = [
            Change(key=f"s{number:04}", kind="add", definition=a_definition(), fire_at=now - 1, at=now - 1)
            for number in range(_MANY)
        ]
        assert await bench.store.change_schedules(APP, adds) == [True] * _MANY
        schedules = await bench.store.stored_schedules(APP, keys=[add.key for add in adds])
        assert len((await bench.store.due_schedules(APP, _MANY)).schedules) == len(schedules) == _MANY
        plans = [an_advance(schedule, a_fire(schedule)) for schedule in schedules]
        assert (await bench.record(*plans)).taken == [True] * _MANY
        assert (await bench.record(*plans)).taken == [False] * _MANY
        assert len(await bench.runs(limit=2 * _MANY)) == _MANY
        node = await bench.node()
        held = (await bench.claim(node, limit=_MANY)).runs
        assert len(held) == _MANY
        assert len(await bench.runs(ids=tuple(run.id for run in held), limit=_MANY)) == _MANY
        outcomes = [an_outcome(run) for run in held]
        assert await bench.finish(node, *outcomes) == ["done"] * _MANY
        assert await bench.finish(node, *outcomes) == ["already"] * _MANY

    # --- one run per moment

    async def test_an_id_that_is_there_already_gets_no_second_run(self, bench: Bench) -> None:
        there = await bench.enqueue()
        schedule = await bench.add()
        plan = an_advance(schedule, a_fire(schedule, id=there.id, cause=Cause.TRIGGER, fire_at=None, due_at=None))
        assert (await bench.record(plan)).taken == [True]
        assert await bench.runs() == [there]

    async def test_a_trigger_sent_again_is_one_run(self, bench: Bench) -> None:
        schedule = await bench.add()
        by_hand = a_fire(schedule, cause=Cause.TRIGGER, fire_at=None, due_at=None)
        stay = an_advance(schedule, by_hand, next_fire_at=schedule.fire_at, next_at=schedule.at)
        for _ in range(2):
            await bench.record(stay)
        assert [run.id for run in await bench.runs()] == [by_hand.id]

    @pytest.mark.parametrize("state", [State.BLOCKED, State.WAITING, State.RUNNING])
    async def test_a_replacing_trigger_sent_again_does_not_replace_itself(self, bench: Bench, state: State) -> None:
        node = await bench.node()
        schedule = await bench.add()
        if state is State.BLOCKED:
            await bench.hold(node, await bench.fire(schedule))
            schedule = await bench.stored()
        by_hand = a_fire(schedule, cause=Cause.TRIGGER, fire_at=None, due_at=None, state=State.BLOCKED)
        # The cursor stays where it is, so its guard cannot tell that this was written before.
        stay = an_advance(schedule, by_hand, next_fire_at=schedule.fire_at, next_at=schedule.at, replaces_live=True)
        await bench.record(stay)
        if state is State.RUNNING:
            await bench.hold(node, by_hand.id)
        await bench.record(stay)
        run = await bench.run(by_hand.id)
        assert (run.state, run.is_cancel_requested) == (state, False)

    async def test_a_unique_key_that_is_taken_does_not_stop_a_batch(self, bench: Bench) -> None:
        there = await bench.enqueue(unique_key="k")
        first, second = await bench.add("first"), await bench.add("second")
        by_hand = a_fire(first, cause=Cause.TRIGGER, fire_at=None, due_at=None, unique_key="k")
        answer = await bench.record(an_advance(first, by_hand), an_advance(second, a_fire(second)))
        assert answer.taken[1]
        assert len(await bench.runs(schedule_key="second")) == 1
        assert (await bench.enqueue(unique_key="k")).id == there.id

    async def test_a_moment_that_is_live_already_gets_no_second_run(self, bench: Bench) -> None:
        schedule = await bench.add()
        first = await bench.fire(schedule)
        again = await bench.stored()
        second = a_fire(again, fire_at=schedule.fire_at)
        assert (await bench.record(an_advance(again, second))).taken == [True]
        assert [run.id for run in await bench.runs()] == [first]

    @pytest.mark.parametrize("cause", [Cause.FIRE, Cause.BACKFILL])
    async def test_a_moment_that_is_in_history_gets_no_second_run(self, bench: Bench, cause: Cause) -> None:
        node = await bench.node()
        schedule = await bench.add()
        first = await bench.hold(node, await bench.fire(schedule))
        await bench.end(node, first)
        again = await bench.stored()
        second = a_fire(again, fire_at=schedule.fire_at, cause=cause)
        assert (await bench.record(an_advance(again, second))).taken == [True]
        assert [run.id for run in await bench.runs()] == [first.id]

    async def test_a_run_left_out_does_not_keep_out_the_others_of_its_plan(self, bench: Bench) -> None:
        schedule = await bench.add()
        first = await bench.fire(schedule)
        again = await bench.stored()
        fresh = a_fire(again)
        plan = an_advance(again, a_fire(again, fire_at=schedule.fire_at), fresh, next_fire_at=5, next_at=5)
        assert (await bench.record(plan)).taken == [True]
        assert {run.id for run in await bench.runs()} == {first, fresh.id}
        assert (await bench.stored()).fire_at == 5

    async def test_the_same_moment_of_two_schedules_is_two_runs(self, bench: Bench) -> None:
        now = await bench.now()
        first, second = await bench.add("first", fire_at=now - 1), await bench.add("second", fire_at=now - 1)
        await bench.record(an_advance(first, a_fire(first)), an_advance(second, a_fire(second)))
        assert len(await bench.runs()) == 2

    async def test_a_trigger_at_a_nominal_moment_does_not_take_its_place(self, bench: Bench) -> None:
        schedule = await bench.add()
        by_hand = a_fire(schedule, cause=Cause.TRIGGER)
        stay = an_advance(schedule, by_hand, next_fire_at=schedule.fire_at, next_at=schedule.at)
        assert (await bench.record(stay)).taken == [True]
        by_time = await bench.fire(await bench.stored())
        assert {run.id for run in await bench.runs()} == {by_hand.id, by_time}

    async def test_a_moment_inside_a_gap_can_be_backfilled(self, bench: Bench) -> None:
        schedule = await bench.add()
        fire_at = schedule.fire_at
        assert fire_at is not None
        await bench.record(an_advance(schedule, gaps=(a_gap(fire_at - 2 * MINUTE, fire_at),)))
        again = await bench.stored()
        made_up = a_fire(again, cause=Cause.BACKFILL, fire_at=fire_at - MINUTE)
        assert (await bench.record(an_advance(again, made_up))).taken == [True]
        assert (await bench.run(made_up.id)).cause is Cause.BACKFILL

    async def test_fires_that_became_runs_are_counted(self, bench: Bench) -> None:
        schedule = await bench.add()
        assert schedule.fire_at is not None
        runs = [a_fire(schedule, fire_at=schedule.fire_at + number) for number in range(3)]
        await bench.record(an_advance(schedule, *runs))
        assert (await bench.stored()).fires == 3
        await bench.record(an_advance(await bench.stored(), gaps=(a_gap(1, 2),)))
        assert (await bench.stored()).fires == 3
        stored = await bench.stored()
        await bench.record(an_advance(stored, a_fire(stored, cause=Cause.TRIGGER, fire_at=None, due_at=None)))
        assert (await bench.stored()).fires == 3
        await bench.fire(await bench.stored())
        assert (await bench.stored()).fires == 4

    # --- the fused claim

    async def test_runs_recorded_as_claimed_run_on_the_node_under_one_fence(self, bench: Bench) -> None:
        node = await bench.node()
        first, second = await bench.add("first"), await bench.add("second")
        runs = [a_fire(first, is_claimed=True), a_fire(second, is_claimed=True)]
        before = await bench.now()
        answer = await bench.record(an_advance(first, runs[0]), an_advance(second, runs[1]), node=node)
        assert answer.fence > 0
        for new in runs:
            run = await bench.run(new.id)
            assert (run.state, run.node, run.fence) == (State.RUNNING, node, answer.fence)
            assert us(run.started_at) >= before
        owned = await bench.store.owned(APP, node)
        assert {(run.id, run.fence) for run in owned} == {(new.id, answer.fence) for new in runs}
        assert (await bench.claim(node)).runs == []

    async def test_a_run_recorded_as_claimed_is_finished_under_its_fence(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        await bench.record(an_advance(schedule, a_fire(schedule, is_claimed=True)), node=node)
        [held] = await bench.store.owned(APP, node)
        assert await bench.finish(node, an_outcome(held)) == ["done"]

    async def test_fences_of_recording_and_claiming_grow_together(self, bench: Bench) -> None:
        node = await bench.node()
        earlier = await bench.hold(node)
        schedule = await bench.add()
        recorded = await bench.record(an_advance(schedule, a_fire(schedule, is_claimed=True)), node=node)
        later = await bench.hold(node)
        assert earlier.fence < recorded.fence < later.fence

    async def test_claimed_and_waiting_runs_may_be_recorded_together(self, bench: Bench) -> None:
        node = await bench.node()
        first, second = await bench.add("first"), await bench.add("second")
        here, there = a_fire(first, is_claimed=True), a_fire(second)
        await bench.record(an_advance(first, here), an_advance(second, there), node=node)
        assert await bench.state(here.id) is State.RUNNING
        assert await bench.state(there.id) is State.WAITING

    async def test_a_dead_node_records_its_runs_as_waiting(self, bench: Bench) -> None:
        dead = await bench.dead_node()
        schedule = await bench.add()
        new = a_fire(schedule, is_claimed=True)
        answer = await bench.record(an_advance(schedule, new), node=dead)
        assert (answer.taken, answer.fence) == ([True], 0)
        run = await bench.run(new.id)
        assert (run.state, run.node) == (State.WAITING, None)
        await bench.hold(await bench.node(), new.id)

    async def test_a_refused_plan_claims_nothing(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        await bench.record(an_advance(schedule, a_fire(schedule, is_claimed=True), version=99), node=node)
        assert await bench.store.owned(APP, node) == []

    async def test_a_run_that_is_there_already_is_not_claimed_by_recording_it_again(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        await bench.end(node, await bench.hold(node, await bench.fire(schedule)))
        again = await bench.stored()
        second = a_fire(again, fire_at=schedule.fire_at, is_claimed=True)
        answer = await bench.record(an_advance(again, second), node=node)
        assert (answer.taken, answer.fence, answer.left_out) == ([True], 0, [second.id])
        assert await bench.store.owned(APP, node) == []

    async def test_recording_tells_which_run_of_a_batch_was_left_out(self, bench: Bench) -> None:
        node = await bench.node()
        schedule, other = await bench.add(), await bench.add("other")
        await bench.end(node, await bench.hold(node, await bench.fire(schedule)))
        again = await bench.stored()
        double, new = a_fire(again, fire_at=schedule.fire_at, is_claimed=True), a_fire(other, is_claimed=True)
        answer = await bench.record(an_advance(again, double), an_advance(other, new), node=node)
        assert (answer.taken, answer.left_out) == ([True, True], [double.id])
        assert [run.id for run in await bench.store.owned(APP, node)] == [new.id]

    async def test_a_fused_run_that_must_not_run_twice_is_lost_with_its_node(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        new = a_fire(schedule, is_claimed=True, at_most_once=True)
        await bench.record(an_advance(schedule, new), node=node)
        await bench.store.leave(node)
        assert (await bench.rehome(await bench.node())).ended == [(new.id, Verdict.LOST)]

    # --- blocked, replaced

    async def test_a_blocked_run_is_blocked_on_the_newest_live_one(self, bench: Bench) -> None:
        schedule = await bench.add()
        await bench.fire(schedule)
        newest = await bench.fire(await bench.stored())
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        run = await bench.run(blocked)
        assert (run.state, run.blocked_on) == (State.BLOCKED, newest)

    async def test_blocked_runs_stand_in_line_whatever_their_moments(self, bench: Bench) -> None:
        schedule = await bench.add()
        first, *behind = await _a_line(bench, schedule, 4)
        assert [(await bench.run(run)).blocked_on for run in behind] == [first, *behind[:-1]]
        node = await bench.node()
        for run in (first, *behind):
            await bench.end(node, await bench.hold(node, run))

    async def test_whoever_stands_behind_a_run_that_leaves_the_line_keeps_waiting(self, bench: Bench) -> None:
        schedule = await bench.add()
        first, second, third, fourth = await _a_line(bench, schedule, 4)
        node = await bench.node()
        held = await bench.hold(node, first)
        assert await bench.cancel(second, third) == ["ended", "ended"]
        run = await bench.run(fourth)
        assert (run.state, run.blocked_on) == (State.BLOCKED, first)
        await bench.end(node, held)
        await bench.hold(node, fourth)

    async def test_when_the_first_of_a_line_and_the_one_behind_it_end_together_the_next_is_free(
        self, bench: Bench
    ) -> None:
        schedule = await bench.add()
        first, second, third = await _a_line(bench, schedule, 3)
        assert await bench.cancel(second, first) == ["ended", "ended"]
        run = await bench.run(third)
        assert (run.state, run.blocked_on) == (State.WAITING, None)

    async def test_a_blocked_run_is_not_claimed(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.hold(node, await bench.fire(await bench.add()))
        await bench.fire(await bench.stored(), state=State.BLOCKED)
        answer = await bench.claim(node)
        assert (answer.runs, answer.next_due_at) == ([], None)

    async def test_a_run_with_nothing_left_to_be_blocked_on_waits(self, bench: Bench) -> None:
        node = await bench.node()
        await bench.end(node, await bench.hold(node, await bench.fire(await bench.add())))
        await bench.fire(await bench.add("neighbour"))
        run = await bench.run(await bench.fire(await bench.stored(), state=State.BLOCKED))
        assert (run.state, run.blocked_on) == (State.WAITING, None)

    @pytest.mark.parametrize("way", ENDINGS)
    async def test_what_was_blocked_on_a_run_is_freed_by_its_verdict(self, bench: Bench, way: Ending) -> None:
        first = await bench.fire(await bench.add(), expires=expires_for(way))
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert await bench.state(blocked) is State.BLOCKED
        await end_waiting_run(bench, first, way)
        run = await bench.run(blocked)
        assert run.blocked_on is None
        # Whoever ended it may have claimed what it freed in the same write.
        assert run.state in (State.WAITING, State.RUNNING)

    @pytest.mark.parametrize("kind", ["retry", "release", "park"])
    async def test_what_was_blocked_on_a_run_stays_so_until_its_verdict(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add()))
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        await bench.end(node, held, kind=kind)
        run = await bench.run(blocked)
        assert (run.state, run.blocked_on) == (State.BLOCKED, held.id)

    async def test_replace_ends_what_waits_and_asks_what_runs(self, bench: Bench) -> None:
        node = await bench.node()
        running = await bench.hold(node, await bench.fire(await bench.add()))
        waiting = await bench.fire(await bench.stored())
        blocked = await bench.fire(await bench.stored(), state=State.BLOCKED)
        stranger = await bench.enqueue(delay=HOUR)
        newest = await bench.fire(await bench.stored(), {"replaces_live": True}, state=State.BLOCKED)
        for replaced in (waiting, blocked):
            ended = await bench.run(replaced)
            assert (ended.verdict, ended.reason) == (Verdict.CANCELLED, Reason.REPLACED)
        asked = await bench.run(running.id)
        assert (asked.state, asked.is_cancel_requested) == (State.RUNNING, True)
        async with bench.heartbeat() as heartbeat:
            assert (await heartbeat.beat(node, HOUR)).cancels == [running.id]
        run = await bench.run(newest)
        assert (run.state, run.blocked_on) == (State.BLOCKED, running.id)
        assert await bench.state(stranger.id) is State.WAITING
        await bench.end(node, running, verdict=Verdict.CANCELLED)
        assert await bench.state(newest) is State.WAITING

    async def test_replace_of_what_only_waits_leaves_nothing_to_be_blocked_on(self, bench: Bench) -> None:
        waiting = await bench.fire(await bench.add())
        newest = await bench.fire(await bench.stored(), {"replaces_live": True}, state=State.BLOCKED)
        assert (await bench.run(waiting)).verdict is Verdict.CANCELLED
        assert await bench.state(newest) is State.WAITING

    async def test_a_refused_plan_replaces_nothing(self, bench: Bench) -> None:
        waiting = await bench.fire(await bench.add())
        plan = an_advance(await bench.stored(), replaces_live=True, version=99)
        assert (await bench.record(plan)).taken == [False]
        assert await bench.state(waiting) is State.WAITING

    # --- rules that count from the end of a run

    @pytest.mark.parametrize("way", ENDINGS)
    async def test_an_after_end_schedule_has_no_cursor_until_the_verdict(self, bench: Bench, way: Ending) -> None:
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        run = await bench.fire(await bench.add(), after_end, expires=expires_for(way))
        stored = await bench.stored()
        assert (stored.fire_at, stored.at) == (None, None)
        assert (await bench.store.due_schedules(APP, 10)).schedules == []
        before = await bench.now()
        await end_waiting_run(bench, run, way)
        stored = await bench.stored()
        assert stored.fire_at is not None
        assert stored.fire_at == stored.at
        assert before + HOUR <= stored.fire_at <= await bench.now() + HOUR

    @pytest.mark.parametrize("kind", ["retry", "release", "park"])
    async def test_an_after_end_schedule_does_not_restart_before_the_verdict(self, bench: Bench, kind: str) -> None:
        node = await bench.node()
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        held = await bench.hold(node, await bench.fire(await bench.add(), after_end))
        await bench.end(node, held, kind=kind)
        assert (await bench.stored()).at is None

    async def test_the_last_live_run_restarts_an_after_end_schedule(self, bench: Bench) -> None:
        node = await bench.node()
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        first = await bench.hold(node, await bench.fire(await bench.add()))
        second = await bench.hold(node, await bench.fire(await bench.stored(), after_end))
        await bench.end(node, second)
        assert (await bench.stored()).at is None
        await bench.end(node, first)
        assert (await bench.stored()).at is not None

    async def test_an_after_end_plan_with_nothing_live_counts_from_now(self, bench: Bench) -> None:
        schedule = await bench.add()
        before = await bench.now()
        plan = an_advance(schedule, gaps=(a_gap(1, 2),), after_end=HOUR, next_fire_at=None, next_at=None)
        assert (await bench.record(plan)).taken == [True]
        stored = await bench.stored()
        assert stored.fire_at is not None
        assert stored.fire_at == stored.at
        assert before + HOUR <= stored.fire_at <= await bench.now() + HOUR

    async def test_the_end_of_a_run_moves_no_other_cursor(self, bench: Bench) -> None:
        node = await bench.node()
        held = await bench.hold(node, await bench.fire(await bench.add()))
        before = await bench.stored()
        await bench.end(node, held)
        after = await bench.stored()
        assert (after.fire_at, after.at, after.version) == (before.fire_at, before.at, before.version)

    async def test_a_verdict_does_not_move_the_cursor_that_an_edit_has_set(self, bench: Bench) -> None:
        node = await bench.node()
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        held = await bench.hold(node, await bench.fire(await bench.add(), after_end))
        stored = await bench.stored()
        settle = an_advance(stored, next_fire_at=7, next_at=8)
        assert await bench.change("edit", stored, settle, definition=a_definition(when="every 2m"))
        await bench.end(node, held)
        edited = await bench.stored()
        assert (edited.fire_at, edited.at) == (7, 8)

    async def test_the_last_run_of_a_removed_after_end_schedule_is_finished(self, bench: Bench) -> None:
        node = await bench.node()
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        held = await bench.hold(node, await bench.fire(await bench.add(), after_end))
        assert await bench.change("remove", await bench.stored())
        await bench.end(node, held)
        assert (await bench.store.due_schedules(APP, 10)).next_at is None

    async def test_a_paused_after_end_schedule_is_not_restarted_by_a_verdict(self, bench: Bench) -> None:
        node = await bench.node()
        after_end = {"after_end": HOUR, "next_fire_at": None, "next_at": None}
        held = await bench.hold(node, await bench.fire(await bench.add(), after_end))
        await bench.pause(await bench.stored(), pause=Pause(at=5))
        await bench.end(node, held)
        assert (await bench.store.due_schedules(APP, 10)).next_at is None

    # --- failed plans

    async def test_a_failed_plan_is_noted_and_changes_nothing_but_when_to_look_again(self, bench: Bench) -> None:
        before = await bench.add()
        plan = an_advance(before, next_fire_at=None, next_at=99, error="no such zone", fingerprint="other")
        assert (await bench.record(plan)).taken == [True]
        after = await bench.stored()
        assert (after.failures, after.error, after.at) == (1, "no such zone", 99)
        assert (after.fire_at, after.version) == (before.fire_at, before.version)
        assert after.fingerprint == before.fingerprint
        assert (await bench.schedule()).error == "no such zone"

    async def test_failures_are_counted_in_a_row(self, bench: Bench) -> None:
        await bench.add()
        for number in (1, 2):
            stored = await bench.stored()
            await bench.record(an_advance(stored, error=f"failed {number}", next_at=number))
        [due] = (await bench.store.due_schedules(APP, 10)).schedules
        assert due.failures == 2
        assert (await bench.stored()).error == "failed 2"
        await bench.fire(await bench.stored())
        healed = await bench.stored()
        assert (healed.failures, healed.error) == (0, None)
