"""Promises about decisions on single moments: kept with the schedule, guarded like its cursor, part of its version."""

from __future__ import annotations

from evertick.model import Occurrence
from evertick.testing.conformance.bench import APP, HOUR, MINUTE, Bench, a_definition, a_fire, an_advance, us

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
