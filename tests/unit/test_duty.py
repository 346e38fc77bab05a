"""Declarations of duties, and the times of their ticks."""

from __future__ import annotations

import functools
from typing import Any

import pytest

from evertick import AlreadyDeclared, Calendar, Cron, DutyContext, InvalidKey, InvalidSetting, Refused, Scheduler
from evertick.model.duty import DutyRecord, Interval, Moments
from evertick.when.moment import HOUR, MINUTE, SECOND


@pytest.fixture
def scheduler() -> Scheduler:
    return Scheduler("sqlite://")


# --- intervals and rules


def test_an_interval_starts_at_once_and_keeps_its_phase() -> None:
    rhythm = Interval(MINUTE)
    assert rhythm.first(None, 1000) == 1000
    assert rhythm.after(1000, 1500) == 1000 + MINUTE


def test_an_interval_does_not_repeat_missed_ticks() -> None:
    rhythm = Interval(MINUTE)
    assert rhythm.after(1000, 1000 + 10 * MINUTE + SECOND) == 1000 + 11 * MINUTE
    assert rhythm.after(1000, 1000 + MINUTE) == 1000 + 2 * MINUTE


def test_a_new_holder_keeps_the_phase_of_the_previous_one() -> None:
    rhythm = Interval(MINUTE)
    assert rhythm.first(5 * SECOND, 3 * SECOND) == 5 * SECOND
    assert rhythm.first(5 * SECOND, 9 * SECOND) == 5 * SECOND, "what is past is done at once"


def test_a_shorter_interval_in_new_code_applies_at_once() -> None:
    assert Interval(MINUTE).first(24 * HOUR, 0) == MINUTE


def test_a_clock_that_is_set_back_repeats_no_tick() -> None:
    assert Interval(MINUTE).after(10 * MINUTE, 3 * MINUTE) == 11 * MINUTE


def test_a_cron_rule_gives_the_moments_of_a_duty() -> None:
    rhythm = Moments(Cron("0 * * * *").bind(key="k", created=0, tz="UTC"))
    assert rhythm.first(None, 5) == HOUR
    assert rhythm.first(3 * HOUR, 5) == HOUR, "a moment to come is the rule's to say"
    assert rhythm.first(3 * HOUR, 4 * HOUR) == 3 * HOUR, "one that has passed is done at once"
    assert rhythm.after(HOUR, HOUR + 5) == 2 * HOUR
    assert rhythm.after(HOUR, 7 * HOUR + 5) == 8 * HOUR


# --- declarations


def test_declaring_a_duty_returns_the_function_unchanged(scheduler: Scheduler) -> None:
    @scheduler.duty("tidy", every="5m")
    def tidy() -> int:
        return 7

    assert tidy() == 7
    assert [work.name for work in scheduler.runtime.duties.works] == ["tidy"]


def test_the_same_duty_twice_is_refused_with_both_places(scheduler: Scheduler) -> None:
    scheduler.duty("tidy")(lambda: None)
    with pytest.raises(AlreadyDeclared, match=r"'tidy' is declared twice: at .*test_duty\.py:\d+ and at .*test_duty"):
        scheduler.duty("tidy")(lambda: None)


async def test_a_duty_cannot_be_declared_after_the_start(scheduler: Scheduler) -> None:
    async with scheduler:
        with pytest.raises(Refused, match="'late' is declared after the scheduler has started"):
            scheduler.duty("late")(lambda: None)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"every": "1ms"}, "every='1ms' must be between 0.1 s and ten years"),
        ({"every": "11y"}, "11y"),
        ({"every": "5m", "when": "daily at 9:00"}, "exclude each other; give one of them"),
        ({"when": Cron("0 9 * * *", calendar="holidays")}, "'holidays' is in the store.*pass the Calendar itself"),
    ],
)
def test_an_invalid_rule_of_a_duty_is_refused(scheduler: Scheduler, options: dict[str, Any], message: str) -> None:
    with pytest.raises(Exception, match=message) as refused:
        scheduler.duty("tidy", **options)
    assert refused.type.__module__ == "evertick.errors"


def test_a_duty_can_have_a_calendar_object(scheduler: Scheduler) -> None:
    scheduler.duty("tidy", when=Cron("0 9 * * *", calendar=Calendar("holidays")))(lambda: None)
    assert len(scheduler.runtime.duties.works) == 1


def test_names_of_built_in_duties_are_reserved(scheduler: Scheduler) -> None:
    with pytest.raises(InvalidSetting, match=r"'evertick\.prune'.*are reserved for Evertick; choose another"):
        scheduler.duty("evertick.prune")


@pytest.mark.parametrize("name", ["", " tidy", "a;b", 7])
def test_an_invalid_name_of_a_duty_is_refused(scheduler: Scheduler, name: Any) -> None:
    with pytest.raises(InvalidKey, match="duty"):
        scheduler.duty(name)


def test_a_duty_without_a_name_is_refused_with_the_correct_form(scheduler: Scheduler) -> None:
    def tidy() -> None: ...

    with pytest.raises(
        InvalidSetting, match=r"needs the name of the duty.* tidy; write @scheduler.duty\('rebuild-index'"
    ):
        scheduler.duty(tidy)  # type: ignore[arg-type]


def test_a_duty_that_is_no_function_is_refused(scheduler: Scheduler) -> None:
    def generates() -> Any:
        yield 1

    refused: list[tuple[Any, str]] = [
        (7, "7 is not a function"),
        (int, "is not a function"),
        (generates, "is a generator function, which does nothing"),
    ]
    for wrong, message in refused:
        with pytest.raises(InvalidSetting, match=message):
            scheduler.duty("tidy")(wrong)


def test_a_function_that_needs_more_than_a_context_is_refused(scheduler: Scheduler) -> None:
    def two(ctx: DutyContext, number: int) -> None: ...
    def other(number: int) -> None: ...
    def named(*, ctx: DutyContext) -> None: ...

    for wrong in (two, other, named):
        with pytest.raises(InvalidSetting, match=r"its function needs \(.*write `\(ctx: DutyContext\)`"):
            scheduler.duty("tidy")(wrong)


async def test_a_function_gets_its_context_if_it_takes_one(scheduler: Scheduler) -> None:
    given: list[object] = []

    class Tidier:
        def tidy(self, ctx: DutyContext) -> None:
            given.append(ctx.term)

    def optional(ctx: DutyContext | None = None) -> None:
        given.append(ctx)

    async def plain() -> None:
        given.append("nothing")

    functions: tuple[Any, ...] = (
        Tidier().tidy,
        functools.partial(Tidier.tidy, Tidier()),
        optional,
        plain,
        lambda ctx: given.append(ctx.term),
    )
    for number, function in enumerate(functions):
        scheduler.duty(f"duty-{number}")(function)
    context = DutyContext(name="n", term=3, node="x", record=DutyRecord(lambda: True, _yes))
    for work in scheduler.runtime.duties.works:
        await work.call(context)
    assert given == [3, 3, None, "nothing", 3]


async def test_every_awaitable_result_of_a_duty_is_awaited(scheduler: Scheduler) -> None:
    done: list[str] = []

    class Async:
        async def __call__(self, ctx: DutyContext) -> None:
            done.append("object")

    async def work() -> None:
        done.append("wrapped")

    @functools.wraps(work)
    def wrapper() -> Any:
        return work()

    @scheduler.task
    async def a_task() -> None:
        done.append("task")

    functions: list[Any] = [Async(), wrapper, a_task]
    for number, function in enumerate(functions):
        scheduler.duty(f"duty-{number}")(function)
    context = DutyContext(name="n", term=3, node="x", record=DutyRecord(lambda: True, _yes))
    works = scheduler.runtime.duties.works
    for duty in works:
        await duty.call(context)
    assert done == ["object", "wrapped", "task"]
    assert [duty.can_be_cancelled for duty in works] == [True, False, False]


async def _yes() -> bool:
    return True


@pytest.mark.parametrize("wrong", [None, 1, "yes"])
def test_the_duties_setting_is_a_boolean(wrong: Any) -> None:
    with pytest.raises(InvalidSetting, match=r"duties: .* must be True or False"):
        Scheduler("sqlite://", duties=wrong)
