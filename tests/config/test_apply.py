"""Apply: the plan of a file is shown first, then applied in one step, and other schedules are not touched."""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evertick import Calendar, Constant, Every, Scheduler
from evertick.config.build import scheduler_from
from evertick.config.load import Configuration
from evertick.errors import InvalidWhen, Refused
from evertick.operations.apply import DeclaredPlan, apply_declared, plan_declared
from evertick.store.base import RunFilter

Load = Callable[..., Configuration]


class File:
    """A configuration whose text changes from one apply to the next."""

    def __init__(self, load: Load, url: str) -> None:
        self._load = load
        self._url = url

    def scheduler(self, text: str) -> tuple[Scheduler, Configuration]:
        loaded = self._load(text, {"EVERTICK_DATABASE": self._url})
        return scheduler_from(loaded), loaded

    async def plan(self, text: str, **options: Any) -> DeclaredPlan:
        scheduler, loaded = self.scheduler(text)
        disabled = [job.name for job in loaded.jobs if not job.is_enabled]
        try:
            return await plan_declared(
                await scheduler.runtime.context(), disabled=disabled, calendars=loaded.calendars, **options
            )
        finally:
            await scheduler.close()

    async def apply(self, text: str, **options: Any) -> DeclaredPlan:
        plan = await self.plan(text, **options)
        scheduler, _ = self.scheduler(text)
        try:
            await apply_declared(await scheduler.runtime.context(), plan)
        finally:
            await scheduler.close()
        return plan


@pytest.fixture(params=["sqlite", "postgres"])
def url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    if request.param == "sqlite":
        return f"sqlite:///{tmp_path}/jobs.db"
    return str(request.getfixturevalue("postgres_url"))


@pytest.fixture
def file(load: Load, url: str) -> File:
    return File(load, url)


@pytest.fixture
async def ledger(url: str) -> AsyncIterator[Scheduler]:
    """A reader of the plan."""
    scheduler = Scheduler(url, concurrency=0)
    yield scheduler
    await scheduler.close()


def keys(plan: DeclaredPlan) -> dict[str, list[str]]:
    kinds = {"adds": plan.adds, "changes": plan.changes, "pauses": plan.pauses, "removes": plan.removes}
    named = {kind: [each.key for each in plans] for kind, plans in kinds.items()}
    return {kind: those for kind, those in named.items() if those}


NIGHTLY = "[jobs.nightly]\ncron = '0 3 * * *'\necho = 'x'\n"
HOURLY = "[jobs.hourly]\nevery = '1h'\necho = 'x'\n"


async def test_fires_beyond_the_listed_ones_are_counted_in_the_total(file: File) -> None:
    text = "[jobs.{}]\ncron = '{} * * * *'\necho = 'x'\n"
    often, too = text.format("often", "*"), text.format("too", "*")
    plan = await file.apply(often + too)
    assert [(each.fires_new, each.is_complete) for each in plan.adds] == [(20_160, False)] * 2
    assert plan.words() == "schedules: 2 added; fires: 40,320 added"
    # Very frequent rules are compared up to the listed fires.
    plan = await file.apply(often + text.format("too", "*/2"))
    assert plan.words() == "schedules: 1 changed, 1 unchanged; fires: at least 1,000 removed"
    plan = await file.apply(text.format("too", "*/2"), prune=True)
    assert plan.words() == "schedules: 1 removed, 1 unchanged; fires: 20,160 removed"


async def test_apply_does_what_its_plan_shows(file: File, ledger: Scheduler) -> None:
    # Not between the old and the new time of day, where the change drops or adds the fire of a day.
    hour = 3 if datetime.now(UTC).hour >= 6 else 15
    nightly = NIGHTLY.replace("0 3", f"0 {hour}")
    plan = await file.apply(nightly + HOURLY, days=2)
    assert keys(plan) == {"adds": ["hourly", "nightly"]}
    assert plan.words() == "schedules: 2 added; fires: 50 added"
    before = {each.key: each for each in await ledger.schedules()}
    assert list(before) == ["hourly", "nightly"]
    assert all(each.is_declared for each in before.values())
    nightly = NIGHTLY.replace("0 3", f"30 {hour + 1}")
    moved = nightly + HOURLY + "[jobs.new]\nevery = '1d'\ntask = 'elsewhere'\npriority = 3\n"
    plan = await file.apply(moved, days=2)
    assert (keys(plan), plan.unchanged) == ({"adds": ["new"], "changes": ["nightly"]}, ("hourly",))
    assert plan.words() == "schedules: 1 added, 1 changed, 1 unchanged; fires: 2 added, 2 moved"
    after = {each.key: each for each in await ledger.schedules()}
    assert after["hourly"] == before["hourly"]
    assert after["nightly"].when == f"cron 30 {hour + 1} * * *; tz=UTC"
    assert (after["new"].task, after["new"].priority) == ("elsewhere", 3)
    plan = await file.apply(moved)
    assert plan.is_empty
    assert plan.words() == "schedules: 3 unchanged"


async def test_a_node_that_starts_after_an_apply_changes_nothing(file: File, ledger: Scheduler) -> None:
    await file.apply(NIGHTLY + HOURLY)
    before = await ledger.schedules()
    scheduler, _ = file.scheduler(NIGHTLY + HOURLY)
    async with scheduler:
        assert await ledger.schedules() == before
    assert (await file.plan(NIGHTLY + HOURLY)).is_empty


async def test_schedules_missing_from_the_file_are_removed_only_with_prune(file: File, ledger: Scheduler) -> None:
    await file.apply(NIGHTLY + HOURLY)
    plan = await file.apply(HOURLY)
    assert (plan.is_empty, plan.left) == (True, ("nightly",))
    assert [each.key for each in await ledger.schedules()] == ["hourly", "nightly"]
    plan = await file.apply(HOURLY, prune=True)
    assert (keys(plan), plan.left) == ({"removes": ["nightly"]}, ())
    assert [each.key for each in await ledger.schedules()] == ["hourly"]
    plan = await file.apply("", prune=True)
    assert keys(plan) == {"removes": ["hourly"]}
    assert await ledger.schedules() == []


async def test_schedules_of_code_other_files_and_run_time_are_never_removed(
    file: File, ledger: Scheduler, url: str
) -> None:
    # A program whose nodes have the same name as those of the file, and another file with its own name.
    program = Scheduler(url, node_name="evertick@host")

    @program.every("1d", key="coded")
    def coded() -> None: ...

    async with program:
        pass
    await ledger.add(key="by-hand", when=Every("1d"), task="t")
    await file.apply("[node]\nname = 'other@host'\n" + NIGHTLY)
    await file.apply(HOURLY)
    plan = await file.apply("", prune=True)
    assert keys(plan) == {"removes": ["hourly"]}
    assert [each.key for each in await ledger.schedules()] == ["by-hand", "coded", "nightly"]


async def test_a_renamed_file_takes_over_its_schedules(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    renamed = "[node]\nname = 'new@host'\n"
    plan = await file.apply(renamed + HOURLY)
    assert (keys(plan), plan.changes[0].is_empty) == ({"changes": ["hourly"]}, True)
    assert (await file.apply("", prune=True)).is_empty
    assert keys(await file.apply(renamed, prune=True)) == {"removes": ["hourly"]}


async def test_a_disabled_job_is_paused_and_an_enabled_one_resumes(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    plan = await file.apply(HOURLY + "enabled = false\n", prune=True)
    assert keys(plan) == {"pauses": ["hourly"]}
    [paused] = await ledger.schedules()
    assert (paused.is_paused, paused.pause_note) == (
        True,
        "disabled in the configuration of evertick; enable it there to resume it",
    )
    assert (await file.apply(HOURLY + "enabled = false\n")).is_empty
    plan = await file.apply(HOURLY.replace("1h", "2h"), days=1)
    assert keys(plan) == {"changes": ["hourly"]}
    [change] = plan.changes
    assert (change.when_old, change.fires_old, change.fires_new) == ("paused, since it was not declared", 0, 12)
    [resumed] = await ledger.schedules()
    assert (resumed.is_paused, resumed.when, resumed.next_fire_at is not None) == (False, "every 2h; tz=UTC", True)
    assert (await file.plan(HOURLY.replace("1h", "2h"))).is_empty


async def test_an_apply_keeps_a_manual_pause(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    await ledger.pause("hourly", note="holidays")
    plan = await file.apply(HOURLY.replace("1h", "2h"))
    assert keys(plan) == {"changes": ["hourly"]}
    [found] = await ledger.schedules()
    assert (found.when, found.is_paused, found.pause_note) == ("every 2h; tz=UTC", True, "holidays")


async def test_a_change_since_the_plan_refuses_the_whole_apply(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY + NIGHTLY)
    text = HOURLY.replace("1h", "2h") + "[jobs.new]\nevery = '1d'\ntask = 't'\n"
    plan = await file.plan(text, prune=True)
    await ledger.update("nightly", priority=5)
    scheduler, _ = file.scheduler(text)
    with pytest.raises(Refused, match="schedule 'nightly' was changed since the plan was made: nothing was applied"):
        await apply_declared(await scheduler.runtime.context(), plan)
    plan = await file.plan(text, prune=True)
    await ledger.add(key="new", when=Every("1d"), task="t")
    with pytest.raises(Refused, match="schedule 'new' was added since the plan was made"):
        await apply_declared(await scheduler.runtime.context(), plan)
    await ledger.remove("new")
    plan = await file.plan(text, prune=True)
    await file.apply(HOURLY, prune=True)
    with pytest.raises(Refused, match="schedule 'nightly' was removed since the plan was made"):
        await apply_declared(await scheduler.runtime.context(), plan)
    await scheduler.close()
    assert {each.key: each.when for each in await ledger.schedules()} == {"hourly": "every 1h; tz=UTC"}


async def test_a_cursor_that_moves_meanwhile_is_no_conflict(file: File, ledger: Scheduler) -> None:
    await file.apply("[jobs.quick]\nevery = '1s'\ntask = 'none'\noverlap = 'allow'\n")
    text = "[jobs.quick]\nevery = '1h'\ntask = 'none'\n"
    plan = await file.plan(text)
    async with Scheduler(ledger.settings.url, node_name="other@host"):
        while not await ledger.runs("quick"):
            await (await ledger.runtime.store()).changed("default", 0.1)
    scheduler, _ = file.scheduler(text)
    await apply_declared(await scheduler.runtime.context(), plan)
    await scheduler.close()
    assert (await ledger.schedule("quick")).when == "every 1h; tz=UTC"


async def test_calendars_of_the_file_also_apply_to_schedules_of_others(file: File, ledger: Scheduler) -> None:
    weekdays = "[calendars.business]\ninclude = ['{days}']\n[jobs.daily]\ncron = '0 9 * * *'\ncalendar = 'business'\n"
    weekdays += "task = 't'\n"
    plan = await file.apply(weekdays.format(days="mon-fri"), days=7)
    assert (keys(plan), plan.calendars, plan.adds[0].fires_new) == ({"adds": ["daily"]}, ("business",), 5)
    await ledger.add(key="theirs", when="0 10 * * *; calendar=business", task="t")
    plan = await file.apply(weekdays.format(days="sat"), days=7)
    assert (keys(plan), plan.calendars) == ({"changes": ["daily", "theirs"]}, ("business",))
    assert [(each.kind, each.fires_old, each.fires_new) for each in plan.changes] == [
        ("update", 5, 1),
        ("calendar", 5, 1),
    ]
    for key in ("daily", "theirs"):
        fire_at = (await ledger.schedule(key)).next_fire_at
        assert fire_at is not None
        assert fire_at.strftime("%a") == "Sat"
    assert await ledger.calendars() == [Calendar("business", include=["sat"])]
    assert (await file.apply(weekdays.format(days="sat"))).is_empty
    # A schedule that is no longer in the file, and is kept, uses the new calendar, too.
    plan = await file.apply("[calendars.business]\ninclude = ['sun']\n", days=7)
    assert (keys(plan), plan.left) == ({"changes": ["daily", "theirs"]}, ("daily",))
    plan = await file.apply("[calendars.business]\ninclude = ['tue']\n", days=7, prune=True)
    assert keys(plan) == {"changes": ["theirs"], "removes": ["daily"]}


async def test_a_refused_apply_leaves_no_calendar_behind(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    text = HOURLY + "[calendars.c]\ninclude = ['mon']\n[jobs.b]\nevery = '1h'\ncalendar = 'c'\ntask = 't'\n"
    plan = await file.plan(text)
    await ledger.add(key="b", when=Every("1d"), task="t")
    scheduler, _ = file.scheduler(text)
    with pytest.raises(Refused):
        await apply_declared(await scheduler.runtime.context(), plan)
    await scheduler.close()
    assert await ledger.calendars() == []


async def test_an_unknown_calendar_is_refused_before_anything_is_written(file: File, ledger: Scheduler) -> None:
    with pytest.raises(InvalidWhen, match="nowhere"):
        await file.apply(HOURLY + "[jobs.b]\nevery = '1h'\ncalendar = 'nowhere'\ntask = 't'\n")
    assert await ledger.schedules() == []


async def test_removing_a_schedule_cancels_waiting_runs_and_keeps_history(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    run = await ledger.trigger("hourly")
    await file.apply("", prune=True)
    [found] = await (await ledger.runtime.store()).runs("default", RunFilter(ids=(run.id,)))
    assert (str(found.verdict), found.reason) == ("cancelled", "removed")


async def test_a_schedule_of_a_file_cannot_be_removed_at_run_time(file: File, ledger: Scheduler) -> None:
    await file.apply(HOURLY)
    with pytest.raises(Refused, match=r"declared in the configuration \(evertick\) and would come back"):
        await ledger.remove("hourly")
    plan = await ledger.preview_change("hourly", remove=True)
    assert plan.notes == ("the configuration declares it (evertick), so removing it is refused: pause it instead",)


async def test_a_changed_option_alone_changes_no_fire(file: File) -> None:
    await file.apply(HOURLY)
    plan = await file.apply(HOURLY + "priority = 5\nretry = { constant = '1s', attempts = 2 }\n", days=1)
    [change] = plan.changes
    assert (change.is_empty, [(each.name, each.old, each.new) for each in change.options]) == (
        True,
        [("priority", "0", "5")],
    )
    # Options of the task are on the nodes, and not in the ledger.
    assert (await file.plan(HOURLY + "priority = 5\nretry = { constant = '9s', attempts = 3 }\n")).is_empty
    assert Constant("9s", 3) != Constant("1s", 2)


async def test_many_jobs_are_applied_in_one_step(load: Load, tmp_path: Path) -> None:
    file = File(load, f"sqlite:///{tmp_path}/many.db")
    text = "".join(f"[jobs.j{number}]\nevery = '1d'\ntask = 't'\n" for number in range(1_000))
    plan = await file.apply(text, days=1)
    assert len(plan.adds) == 1_000
    plan = await file.apply(text.replace("1d", "12h"), days=1)
    assert len(plan.changes) == 1_000
    assert (await file.plan(text.replace("1d", "12h"), days=1)).is_empty
