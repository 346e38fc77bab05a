"""A failed assertion shows what was expected, and the ledger."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable

import pytest

from evertick import Constant, InvalidInput, InvalidWhen, NotFound, Refused, Scheduler
from evertick.testing import Kit, TimeStandsStill, virtual_time

NOWHERE = "sqlite:////no/such/directory/jobs.db"


@pytest.fixture
async def kit() -> AsyncIterator[Kit]:
    scheduler = Scheduler(NOWHERE, tz="Europe/Berlin")

    @scheduler.cron("0 9 * * *", key="report")
    async def report() -> None: ...

    @scheduler.cron("0 10 * * *", key="broken", retry=Constant("1m", attempts=3))
    async def broken() -> None:
        raise OSError("the printer is on fire")

    @scheduler.cron("*/10 11 * * *", key="slow")
    async def slow() -> None:
        await asyncio.sleep(3600)

    @scheduler.cron("0 0 1 1 *", key="yearly")
    async def yearly() -> None: ...

    async with virtual_time(scheduler, start="2026-03-27T00:00:00+01:00") as kit:
        await kit.advance("1d")
        yield kit


def failure(act: Callable[[], None]) -> str:
    with pytest.raises(AssertionError) as caught:
        act()
    return str(caught.value)


async def test_a_wrong_number_of_fires_shows_the_ledger(kit: Kit) -> None:
    assert failure(lambda: kit.assert_fired("report", times=2)).splitlines() == [
        "'report' fired once, not twice",
        "the ledger of 'report':",
        "  2026-03-27 09:00:00 CET  succeeded",
        "  now it is 2026-03-28 00:00:00 CET; the next fire is 2026-03-28 09:00:00 CET",
    ]


async def test_a_failed_run_is_shown_with_its_attempts_and_its_error(kit: Kit) -> None:
    text = failure(lambda: kit.assert_succeeded("broken"))
    assert text.startswith("'broken' has 1 run that did not succeed\n")
    assert "2026-03-27 10:00:00 CET  failed(error)  3 attempts  OSError: the printer is on fire" in text


async def test_moments_without_a_run_are_shown_with_their_reason(kit: Kit) -> None:
    text = failure(lambda: kit.assert_fired("slow", times=6))
    assert text.startswith("'slow' fired once, not 6 times\n")
    kit.assert_skipped("slow", reason="overlap", times=5)
    assert "skipped(overlap)" in text
    assert "without a run" in text


async def test_missing_and_unexpected_moments_are_named(kit: Kit) -> None:
    kit.assert_fired("report", at="2026-03-27T09:00:00+01:00")
    text = failure(lambda: kit.assert_fired("report", at=["2026-03-27T08:00:00+01:00"]))
    assert "not at 2026-03-27 08:00:00 CET, unexpectedly at 2026-03-27 09:00:00 CET" in text
    with pytest.raises(InvalidWhen, match="no offset"):
        kit.assert_fired("report", at="2026-03-27T09:00:00")


async def test_a_schedule_that_never_fired_shows_its_next_fire(kit: Kit) -> None:
    kit.assert_not_fired("yearly")
    text = failure(lambda: kit.assert_fired("yearly"))
    assert "did not fire" in text
    assert "(nothing)" in text
    assert "the next fire is 2027-01-01 00:00:00 CET" in text
    assert "has not run" in failure(lambda: kit.assert_succeeded("yearly"))


async def test_the_negative_assertions_fail_too(kit: Kit) -> None:
    assert "fired once, but should not have fired" in failure(lambda: kit.assert_not_fired("report"))
    assert "no moment of 'report' ended as skipped(overlap)" in failure(
        lambda: kit.assert_skipped("report", reason="overlap")
    )
    assert "5 moments of 'slow' ended as skipped, not 1" in failure(lambda: kit.assert_skipped("slow", times=1))
    assert "no moment of 'report' ended as missed" in failure(lambda: kit.assert_missed("report"))
    assert "1 moment of 'broken' ended as failed, not 2" in failure(lambda: kit.assert_failed("broken", times=2))
    assert "succeeded once, not 7 times" in failure(lambda: kit.assert_succeeded("report", times=7))


async def test_a_paused_schedule_and_a_shortened_ledger_are_marked() -> None:
    scheduler = Scheduler(NOWHERE)

    @scheduler.every("1h", key="hourly")
    async def hourly() -> None: ...

    async with virtual_time(scheduler) as kit:
        await kit.advance("40h")
        await scheduler.pause("hourly")
        text = failure(lambda: kit.assert_not_fired("hourly"))
    assert "… 10 earlier rows" in text
    assert "but it is paused" in text


async def test_an_unknown_key_is_an_error_of_the_test(kit: Kit) -> None:
    with pytest.raises(NotFound, match="no schedule 'reprot'; existing keys: 'broken', 'report', 'slow', 'yearly'"):
        kit.assert_not_fired("reprot")


async def test_time_does_not_go_back(kit: Kit) -> None:
    with pytest.raises(InvalidInput, match="2026-03-27 00:00:00 CET is in the past; it is 2026-03-28 00:00:00 CET"):
        await kit.advance_to("2026-03-27T00:00:00+01:00")
    with pytest.raises(InvalidInput, match="negative"):
        await kit.advance(-1)


async def test_a_closed_kit_is_refused(kit: Kit) -> None:
    await kit.close()
    for act in (lambda: kit.runs(), lambda: kit.assert_fired("report")):
        with pytest.raises(Refused, match="closed"):
            act()
    with pytest.raises(Refused, match="closed"):
        await kit.advance("1s")


async def test_run_until_idle_has_a_limit(kit: Kit) -> None:
    await kit.advance("11h10m")
    with pytest.raises(TimeStandsStill, match=r"not idle after 10m of virtual time(.|\n)*running"):
        await kit.run_until_idle(limit="10m")


async def test_the_ledger_of_a_scheduler_without_slots_is_marked() -> None:
    scheduler = Scheduler(NOWHERE, concurrency=0)

    @scheduler.every("1h", key="hourly")
    async def hourly() -> None: ...

    async with virtual_time(scheduler) as kit:
        await kit.advance("2h")
        assert "concurrency=0: it runs nothing" in failure(lambda: kit.assert_fired("hourly"))
