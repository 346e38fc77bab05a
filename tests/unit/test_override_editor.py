"""Overrides and blackouts, as users of the scheduler see them."""

from __future__ import annotations

from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from evertick import Calendar, Every, InvalidInput, InvalidSetting, InvalidWhen, NotFound, Once, Refused, Scheduler
from evertick.testing import Kit, virtual_time

NOON = datetime(2026, 6, 1, 12, tzinfo=UTC)
FREEZE = Calendar.blackout("freeze", NOON, NOON + timedelta(hours=3))


@pytest.fixture
def scheduler() -> Scheduler:
    made = Scheduler("sqlite://")

    @made.task
    async def job() -> None: ...

    return made


@pytest.fixture
async def kit(scheduler: Scheduler) -> AsyncIterator[Kit]:
    async with virtual_time(scheduler, start=NOON - timedelta(minutes=30)) as made:
        yield made


async def test_a_schedule_shows_its_overrides(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job")
    await scheduler.skip_next("k", note="a holiday")
    moved = await scheduler.move("k", NOON + timedelta(hours=1), to=NOON + timedelta(minutes=90))
    assert [(each.fire_at, each.kind, each.to, each.note) for each in moved.occurrences] == [
        (NOON, "skip", None, "a holiday"),
        (NOON + timedelta(hours=1), "move", NOON + timedelta(minutes=90), ""),
    ]
    undone = await scheduler.undo("k", NOON + timedelta(hours=1))
    assert [each.kind for each in undone.occurrences] == ["skip"]


async def test_why_shows_past_and_future_overrides(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job")
    await scheduler.skip_next("k", note="a holiday")
    await scheduler.move("k", NOON + timedelta(hours=1), to=NOON + timedelta(minutes=90))
    notes = (await scheduler.why("k")).notes
    assert "the moment 2026-06-01 12:00:00 UTC will be skipped: a holiday" in notes
    assert "the moment 2026-06-01 13:00:00 UTC is moved to 2026-06-01 13:30:00 UTC" in notes
    await kit.advance("31m")
    assert "12:00:00 UTC was skipped: by hand, with skip-next" in (await scheduler.why("k")).last


async def test_why_shows_the_new_moment_of_a_moved_one_shot(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Once(NOON), task="job")
    await scheduler.move("k", NOON, to=NOON + timedelta(days=1))
    assert (await scheduler.why("k")).next.startswith("2026-06-02 12:00:00 UTC, the new time of a moved moment")


@pytest.mark.parametrize(
    ("fate", "words"),
    [
        ("drop", "all moments until then are dropped"),
        ("latest", "then the newest of these moments runs in place of all of them"),
        ("all", "then all of these moments run, one by one"),
    ],
)
async def test_why_shows_the_blackout_that_holds_the_next_moment(
    scheduler: Scheduler, kit: Kit, fate: str, words: str
) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", blackout=FREEZE, blackout_fate=fate)  # type: ignore[arg-type]
    said = (await scheduler.why("k")).next
    assert "12:00:00 UTC is in the blackout 'freeze', which is closed until 2026-06-01 15:00:00 UTC" in said
    assert words in said
    await kit.advance("4h")
    if fate == "drop":
        assert "it was in the blackout of the schedule" in (await scheduler.why("k")).last


async def test_a_preview_shows_the_override_of_each_fire(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", blackout=FREEZE)
    await scheduler.skip_next("k")
    await scheduler.move("k", NOON + timedelta(hours=1), to=NOON + timedelta(minutes=10))
    planned = await scheduler.preview(count=4)
    assert [(each.fire_at.hour, f"{each.at:%H:%M}", each.prospect) for each in planned] == [
        (12, "12:00", "skipped"),
        (13, "12:10", "moved"),
        (14, "14:00", "dropped"),
        (15, "15:00", None),
    ]


async def test_a_blackout_that_is_given_as_a_calendar_is_stored(scheduler: Scheduler, kit: Kit) -> None:
    added = await scheduler.add(key="k", when=Every("1h"), task="job", blackout=FREEZE, blackout_fate="all")
    assert (added.blackout, added.blackout_fate) == ("freeze", "all")
    assert await scheduler.calendars() == [FREEZE]
    assert await scheduler.calendar_users("freeze") == ["k"]
    changed = await scheduler.update("k", blackout=None)
    assert changed.blackout is None


async def test_a_changed_calendar_applies_at_once(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", blackout=FREEZE, blackout_fate="latest")
    await kit.advance("2h")
    await scheduler.set_calendar(Calendar.blackout("freeze", NOON, NOON + timedelta(minutes=1)))
    await kit.advance("1s")
    assert [run.fire_at.hour for run in kit.runs("k")] == [13]


async def test_a_change_of_a_declared_blackout_is_stored() -> None:
    def declared(calendar: Calendar) -> Scheduler:
        made = Scheduler("sqlite://")

        @made.every("1h", key="k", blackout=calendar)
        async def job() -> None: ...

        return made

    other = Calendar.blackout("freeze", NOON, NOON + timedelta(hours=9))
    first, same, second = declared(FREEZE), declared(FREEZE), declared(other)
    hashes = [each.runtime.declarations.hashes()["k"] for each in (first, same, second)]
    assert hashes[0] == hashes[1] != hashes[2]
    async with virtual_time(second, start=NOON):
        assert await second.calendars() == [other]


async def test_a_blackout_and_its_policy_can_be_set_separately(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", blackout=FREEZE)
    changed = await scheduler.update("k", blackout_fate="all")
    assert (changed.blackout, changed.blackout_fate) == ("freeze", "all")
    with pytest.raises(InvalidSetting, match="blackout_fate: 'all' is the fate"):
        await scheduler.update("k", blackout=None, blackout_fate="all")


async def test_an_invalid_override_is_refused_with_the_reason(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job")
    with pytest.raises(NotFound, match="there is no schedule 'other'"):
        await scheduler.skip_next("other")
    with pytest.raises(InvalidInput, match="note: 7 is not text"):
        await scheduler.skip_next("k", note=7)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match="zone"):
        await scheduler.move("k", datetime(2026, 6, 1, 13), to=NOON)
    with pytest.raises(Refused, match="has no override"):
        await scheduler.undo("k")
    with pytest.raises(InvalidSetting, match="blackout_fate: 'keep'"):
        await scheduler.update("k", blackout_fate="keep")  # type: ignore[arg-type]
    with pytest.raises(InvalidSetting, match="and there is none; give it with blackout=, in the same call or before"):
        await scheduler.update("k", blackout_fate="all")
    with pytest.raises(InvalidWhen, match="blackout: 7 is not a name"):
        await scheduler.update("k", blackout=7)  # type: ignore[arg-type]


async def test_cancelling_an_early_run_undoes_it(scheduler: Scheduler, kit: Kit) -> None:
    await scheduler.add(key="k", when=Every("1h"), task="job", queue="nobody")
    run = await scheduler.run_early("k")
    assert await scheduler.cancel(run)
    await kit.advance("40m")
    assert [(each.fire_at, each.verdict) for each in await scheduler.runs("k")] == [(NOON, "cancelled")]
    assert await scheduler.gaps("k") == []


def test_overrides_have_sync_forms(scheduler: Scheduler) -> None:
    scheduler.sync.add(key="k", when=Every("1h"), task="job")
    first = scheduler.sync.skip_next("k").occurrences[0].fire_at
    assert scheduler.sync.run_early("k").fire_at == first + timedelta(hours=1)
    third = first + timedelta(hours=2)
    assert [each.kind for each in scheduler.sync.move("k", third, to=third + timedelta(minutes=1)).occurrences] == [
        "skip",
        "move",
    ]
    assert [each.kind for each in scheduler.sync.undo("k", third).occurrences] == ["skip"]
    scheduler.sync.close()
