"""Promises about decisions on single moments: kept with the schedule, guarded like its cursor, part of its version."""

from __future__ import annotations

import msgspec
import pytest

from evertick.model import Cause, Occurrence, State, Verdict
from evertick.testing.conformance.bench import (
    APP,
    HOUR,
    MINUTE,
    Bench,
    a_definition,
    a_fire,
    an_advance,
    an_outcome,
    us,
)

__all__ = ["Occurrences"]


def _skip(fire_at: int, note: str = "") -> Occurrence:
    return Occurrence(fire_at=fire_at, kind="skip", note=note)


class Occurrences:
    async def test_a_new_schedule_has_no_decisions(self, bench: Bench) -> None:
        assert (await bench.add()).occurrences == ()
        assert (await bench.schedule()).occurrences == ()

    async def test_decisions_are_read_as_they_were_written_and_raise_the_version(self, bench: Bench) -> None:
        before = await bench.add()
        now = await bench.now()
        moved = Occurrence(fire_at=now + HOUR, kind="move", to=now + MINUTE, note="ö")
        decided = (_skip(now + MINUTE), moved, Occurrence(fire_at=now + 2 * HOUR, kind="done"))
        assert (await bench.record(an_advance(before, occurrences=decided))).taken == [True]
        after = await bench.stored()
        assert after.occurrences == decided
        assert after.version > before.version
        assert after.definition == before.definition

    async def test_an_advance_that_says_nothing_of_decisions_leaves_them_and_the_version(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1),)))
        before = await bench.stored()
        assert (await bench.record(an_advance(before, a_fire(before)))).taken == [True]
        after = await bench.stored()
        assert (after.occurrences, after.version) == (before.occurrences, before.version)

    async def test_the_last_decision_can_be_taken_away(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1),)))
        before = await bench.stored()
        assert (await bench.record(an_advance(before, occurrences=()))).taken == [True]
        after = await bench.stored()
        assert after.occurrences == ()
        assert after.version > before.version

    async def test_a_plan_made_before_a_decision_is_not_taken(self, bench: Bench) -> None:
        before = await bench.add()
        cursor = {"next_fire_at": before.fire_at, "next_at": before.at}
        assert (await bench.record(an_advance(before, occurrences=(_skip(1),), **cursor))).taken == [True]
        assert (await bench.record(an_advance(before, a_fire(before)))).taken == [False]
        assert await bench.runs() == []

    async def test_what_is_not_taken_decides_nothing(self, bench: Bench) -> None:
        before = await bench.add()
        stale = an_advance(before, version=before.version + 1, occurrences=(_skip(1),))
        assert (await bench.record(stale)).taken == [False]
        assert await bench.stored() == before

    async def test_a_change_of_people_keeps_or_replaces_decisions(self, bench: Bench) -> None:
        first = await bench.add()
        await bench.record(an_advance(first, occurrences=(_skip(1), _skip(2))))
        before = await bench.stored()
        assert await bench.change("edit", before, definition=a_definition(priority=3))
        kept = await bench.stored()
        assert kept.occurrences == before.occurrences
        settle = an_advance(kept, occurrences=(_skip(2),))
        assert await bench.change("edit", kept, settle, definition=a_definition(priority=4))
        after = await bench.stored()
        assert after.occurrences == (_skip(2),)
        assert after.version > kept.version > before.version

    async def test_people_read_what_is_still_to_come_of_decisions(self, bench: Bench) -> None:
        before = await bench.add()
        now = await bench.now()
        moved = Occurrence(fire_at=now + HOUR, kind="move", to=now + MINUTE, note="plane")
        decided = (_skip(now, "why"), moved, Occurrence(fire_at=now + 2 * HOUR, kind="done"))
        await bench.record(an_advance(before, occurrences=decided))
        skip, move = (await bench.schedule()).occurrences
        assert (us(skip.fire_at), skip.kind, skip.to, skip.note) == (now, "skip", None, "why")
        assert (us(move.fire_at), move.kind, us(move.to), move.note) == (now + HOUR, "move", now + MINUTE, "plane")

    async def test_decisions_go_with_their_schedule(self, bench: Bench) -> None:
        before = await bench.add()
        await bench.record(an_advance(before, occurrences=(_skip(1),)))
        assert await bench.change("remove", await bench.stored())
        assert (await bench.add()).occurrences == ()
        assert [each.key for each in await bench.store.stored_schedules(APP, keys=["nightly"])] == ["nightly"]

    # --- a run before its time that is taken back

    async def test_a_run_that_is_taken_back_ends_and_its_moment_can_have_another(self, bench: Bench) -> None:
        schedule = await bench.add(fire_at=await bench.now() + HOUR)
        early = await bench.fire(schedule)
        before = await bench.stored()
        back = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(before, takes_back=early, **back))).taken == [True]
        run = await bench.run(early)
        assert (run.verdict, run.reason, run.cause) == (Verdict.CANCELLED, "undone", Cause.TRIGGER)
        after = await bench.stored()
        assert (after.fire_at, after.fires, after.live) == (schedule.fire_at, 0, 0)
        again = await bench.fire(after)
        assert await bench.state(again) is State.WAITING
        assert (await bench.stored()).fires == 1

    async def test_a_run_that_has_begun_is_not_taken_back(self, bench: Bench) -> None:
        node = await bench.node()
        schedule = await bench.add()
        early = await bench.fire(schedule)
        held = await bench.hold(node, early)
        before = await bench.stored()
        assert (await bench.record(an_advance(before, takes_back=early))).taken == [False]
        await bench.finish(node, an_outcome(held, "retry"))
        assert (await bench.record(an_advance(before, takes_back=early))).taken == [False]
        await bench.end(node, await bench.hold(node, early))
        assert (await bench.record(an_advance(before, takes_back=early))).taken == [False]
        assert await bench.stored() == msgspec.structs.replace(before, live=0)

    async def test_a_run_that_was_lost_is_not_taken_back(self, bench: Bench) -> None:
        node = await bench.node()
        early = await bench.fire(await bench.add())
        await bench.hold(node, early)
        await bench.store.leave(node)
        other = await bench.node(tasks={})
        assert len((await bench.rehome(other, tasks={})).released) == 1
        assert (await bench.record(an_advance(await bench.stored(), takes_back=early))).taken == [False]

    async def test_a_run_that_was_put_back_untried_can_be_taken_back(self, bench: Bench) -> None:
        node = await bench.node()
        early = await bench.fire(await bench.add())
        held = await bench.hold(node, early)
        await bench.finish(node, an_outcome(held, "release"))
        assert (await bench.record(an_advance(await bench.stored(), takes_back=early))).taken == [True]
        assert await bench.finish(node, an_outcome(held, "release")) == ["already"]

    async def test_only_a_fire_of_the_schedule_itself_is_taken_back(self, bench: Bench) -> None:
        schedule, other = await bench.add(), await bench.add("other")
        theirs = await bench.fire(other)
        by_hand = await bench.fire(schedule, cause=Cause.TRIGGER)
        before = await bench.stored()
        for run in (theirs, by_hand, "nobody"):
            assert (await bench.record(an_advance(before, takes_back=run))).taken == [False]
        assert await bench.stored() == before

    async def test_what_the_guard_does_not_let_through_takes_nothing_back(self, bench: Bench) -> None:
        schedule = await bench.add()
        early = await bench.fire(schedule)
        assert (await bench.record(an_advance(schedule, takes_back=early))).taken == [False]
        assert await bench.state(early) is State.WAITING

    @pytest.mark.parametrize("period", [None, HOUR])
    async def test_the_unique_key_of_what_is_taken_back_is_free(self, bench: Bench, period: int | None) -> None:
        schedule = await bench.add(unique="one", unique_for=period)
        early = await bench.fire(schedule, unique_key="one", unique_for=period)
        before = await bench.stored()
        back = {"next_fire_at": schedule.fire_at, "next_at": schedule.at}
        assert (await bench.record(an_advance(before, takes_back=early, **back))).taken == [True]
        again = await bench.fire(await bench.stored(), unique_key="one", unique_for=period)
        assert await bench.state(again) is State.WAITING

    async def test_what_was_blocked_on_a_run_that_is_taken_back_is_free(self, bench: Bench) -> None:
        early = await bench.fire(await bench.add())
        behind = await bench.fire(await bench.stored(), state=State.BLOCKED)
        assert (await bench.record(an_advance(await bench.stored(), takes_back=early))).taken == [True]
        assert await bench.state(behind) is State.WAITING
