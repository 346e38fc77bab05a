"""A running node reloads its files without a restart; invalid files change nothing."""

from __future__ import annotations

import asyncio
import os
import threading
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from echo_driver import EchoDriver

from evertick import Calendar, Scheduler
from evertick.aio.cooperative import TURN
from evertick.config import adding, load, ownership
from evertick.config.build import scheduler_from
from evertick.config.load import Configuration, load_configuration
from evertick.config.reload import JobDiff, Reloader
from evertick.errors import StoreUnavailable
from evertick.ledger.atomic_edit import BatchEditor
from evertick.model import Node, Run
from evertick.operations import apply
from servers.broker import nats_server, redis_server

Load = Callable[..., Configuration]
Write = Callable[..., Path]

DATABASE = "[database]\nurl = 'sqlite:///jobs.db'\n"
JOB = "[jobs.{name}]\nevery = '1d'\necho = '{text}'\n"


def jobs(**texts: str) -> str:
    return DATABASE + "".join(JOB.format(name=name, text=text) for name, text in texts.items())


@asynccontextmanager
async def running(folder: Path, flags: dict[str, tuple[str, object]] | None = None) -> AsyncIterator[Reloader]:
    environ = {"HOME": str(folder)}
    loaded = load_configuration("evertick.toml", environ, flags)
    scheduler = scheduler_from(loaded)
    async with asyncio.timeout(60), scheduler:
        yield Reloader(scheduler, loaded, environ=environ, flags=flags)


async def ended(scheduler: Scheduler, key: str) -> Run:
    run = await scheduler.trigger(key)
    return await ended_run(scheduler, run.id)


async def ended_run(scheduler: Scheduler, run_id: str) -> Run:
    while (run := await scheduler.get_run(run_id)).verdict is None:
        await asyncio.sleep(0.01)
    return run


async def node_of(scheduler: Scheduler) -> Node:
    [node] = [each for each in await scheduler.nodes() if each.died_at is None]
    return node


async def test_jobs_are_replaced_while_the_node_runs(folder: Path, write: Write, echo: type[EchoDriver]) -> None:
    write(jobs(kept="kept", changed="before", gone="gone"))
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        before = await node_of(scheduler)
        write(jobs(kept="kept", changed="after", new="new").replace("'1d'\necho = 'after'", "'2d'\necho = 'after'"))
        reloaded = await reloader.reload()
        assert (reloaded.problems, reloaded.jobs, reloaded.wants_restart) == ((), 3, ())
        assert reloaded.changes == JobDiff(added=("new",), changed=("changed",), gone=("gone",))
        for key in ("kept", "changed", "new"):
            await ended(scheduler, key)
        assert echo.texts == ["kept", "after", "new"]
        after = await node_of(scheduler)
        assert after.id == before.id
        assert (set(after.tasks), set(after.declares)) == ({"kept", "changed", "new"}, {"kept", "changed", "new"})
        found = {each.key: each for each in await scheduler.schedules()}
        assert found["changed"].when == "every 2d; tz=UTC"
        # Not removed automatically, but paused: no node knows its command any more.
        assert set(found) == {"kept", "changed", "gone", "new"}
        assert [key for key, each in found.items() if each.is_paused] == ["gone"]
        assert found["gone"].pause_note == (
            "no longer in the configuration of evertick; put it back to resume it, or remove it with "
            "`evertick apply --prune`; if another file has it, give one of the two an `app` or a `name` of its own "
            "under [node]"
        )
        assert found["kept"].version == 1
        write(jobs(kept="kept", changed="before", gone="gone"))
        assert (await reloader.reload()).changes == JobDiff(added=("gone",), changed=("changed",), gone=("new",))
        assert not (await scheduler.schedule("gone")).is_paused


async def test_a_dropped_schedule_is_paused_only_after_the_last_live_node_dropped_it(
    folder: Path, write: Write
) -> None:
    write(jobs(a="a", gone="gone"))
    async with running(folder) as first, running(folder) as second:
        write(jobs(a="a"))
        assert (await first.reload()).problems == ()
        assert not (await first._scheduler.schedule("gone")).is_paused
        assert (await second.reload()).problems == ()
        assert (await first._scheduler.schedule("gone")).is_paused


async def test_a_job_that_only_moved_in_its_file_is_not_reported(folder: Path, write: Write) -> None:
    write(jobs(a="a", b="b"))
    async with running(folder) as reloader:
        write("# a comment\n" + jobs(b="b", a="a"))
        assert not (await reloader.reload()).changes
        write(jobs(a="a", b="b") + "description = 'of b'\n")
        assert (await reloader.reload()).changes == JobDiff(changed=("b",))
        write(jobs(a="a", b="b") + "description = 'of b'\n" + JOB.format(name="c", text="c") + "enabled = false\n")
        assert (await reloader.reload()).changes == JobDiff(added=("c (disabled)",))


def test_of_many_changed_jobs_ten_are_named() -> None:
    many = tuple(f"job-{number}" for number in range(12))
    message = JobDiff(added=many, gone=("old",)).words()
    assert message == (f"added: {', '.join(many[:10])} and 2 more; gone: old (`evertick apply --prune` removes it)")


async def test_running_runs_continue_with_the_old_command(folder: Path, write: Write, echo: type[EchoDriver]) -> None:
    write(DATABASE + "[jobs.long]\nevery = '1d'\necho = { text = 'old', waits = true }\n")
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        run = await scheduler.trigger("long")
        await echo.has_begun.wait()
        write(jobs(other="other"))
        assert (await reloader.reload()).problems == ()
        assert (await scheduler.get_run(run.id)).verdict is None
        await ended(scheduler, "other")
        echo.may_end.set()
        done = await ended_run(scheduler, run.id)
        assert (str(done.verdict), done.result, echo.texts) == ("succeeded", "old", ["other", "old"])


async def test_an_invalid_file_changes_nothing_and_is_logged(
    folder: Path, write: Write, echo: type[EchoDriver]
) -> None:
    write(jobs(a="a"))
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        before = await scheduler.schedules()
        for wrong, problem in [
            (jobs(a="b") + "[jobs.c]\nevery = 'x'\n", "evertick.toml:6: jobs.c"),
            ("[jobs", "evertick.toml:1: this is no TOML"),
            (jobs(a="b") + "[node]\nlease = '1ms'\n", "evertick.toml:7: node.lease"),
        ]:
            write(wrong)
            reloaded = await reloader.reload()
            assert any(line.startswith(problem) for line in reloaded.problems)
            assert reloaded.jobs == 1
        (folder / "evertick.toml").unlink()
        [line] = (await reloader.reload()).problems
        assert line.startswith("evertick.toml: cannot be read: No such file")
        health = await scheduler.health()
        assert (health.is_healthy, health.configuration_problems) == (True, (line,))
        await ended(scheduler, "a")
        assert echo.texts == ["a"]
        assert [each.when for each in await scheduler.schedules()] == [each.when for each in before]
        write(jobs(a="b"))
        assert (await reloader.reload()).problems == ()
        assert (await scheduler.health()).configuration_problems == ()
        await ended(scheduler, "a")
        assert echo.texts == ["a", "b"]


async def test_settings_that_need_a_restart_are_named_until_they_are_reverted(folder: Path, write: Write) -> None:
    write(jobs(a="a"))
    async with running(folder, {"log.level": ("--log-level", "debug")}) as reloader:
        settings = reloader._scheduler.settings
        write(
            jobs(a="a") + "[node]\nlease = '20s'\ntz = 'Asia/Kolkata'\n[log]\nlevel = 'error'\n[http]\nallow = ['h']\n"
        )
        reloaded = await reloader.reload()
        # A flag overrides the file, so the level has not changed; zone and hosts apply at once.
        assert reloaded.wants_restart == ("node.lease",)
        assert reloader._scheduler.settings.lease == settings.lease
        [schedule] = await reloader._scheduler.schedules()
        assert schedule.when == "every 1d; tz=Asia/Kolkata"
        assert reloader._scheduler.runtime.connections["http"] is reloader.configuration.http
        assert (await reloader.reload()).wants_restart == ("node.lease",)
        write(jobs(a="a"))
        assert (await reloader.reload()).wants_restart == ()


async def test_a_changing_file_is_read_after_it_stops_changing(folder: Path, write: Write) -> None:
    write(jobs(a="a"))
    write(JOB.format(name="b", text="b"), "jobs.d/b.toml")
    async with running(folder) as reloader:
        assert not reloader.has_changed()
        write(jobs(a="more"))
        # The file may still be written.
        assert not reloader.has_changed()
        write(jobs(a="even more"))
        assert not reloader.has_changed()
        assert reloader.has_changed()
        assert not reloader.has_changed()  # logged once
        assert (await reloader.reload()).jobs == 2
        assert not reloader.has_changed()


@pytest.mark.parametrize("change", ["new in the folder", "gone", "included", "wrong, then right", "rewritten"])
async def test_every_file_of_the_configuration_is_watched(folder: Path, write: Write, change: str) -> None:
    write("include = ['conf.d/*.toml']\n" + jobs(a="a"))
    write(JOB.format(name="b", text="b"), "jobs.d/b.toml")
    async with running(folder) as reloader:
        if change == "new in the folder":
            write(JOB.format(name="c", text="c"), "jobs.d/c.toml")
        elif change == "gone":
            (folder / "jobs.d/b.toml").unlink()
        elif change == "included":
            write(JOB.format(name="c", text="c"), "conf.d/c.toml")
        elif change == "wrong, then right":
            write("[jobs", "jobs.d/b.toml")
            assert [reloader.has_changed(), reloader.has_changed()] == [False, True]
            assert (await reloader.reload()).problems != ()
            assert [reloader.has_changed(), reloader.has_changed()] == [False, False]
            write(JOB.format(name="c", text="c"), "jobs.d/b.toml")
        else:
            # The same content with another time is no change.
            os.utime(folder / "jobs.d/b.toml", ns=(1, 1))
        assert [reloader.has_changed(), reloader.has_changed()] == [False, change != "rewritten"]


async def test_a_reload_is_retried_after_an_unreachable_ledger(
    folder: Path, write: Write, echo: type[EchoDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    write(jobs(a="a"))
    async with running(folder) as reloader:
        scheduler, store = reloader._scheduler, await reloader._scheduler.runtime.store()
        join = store.join

        async def away(*_: object) -> int:
            raise StoreUnavailable("the store is away")

        monkeypatch.setattr(store, "join", away)
        write(jobs(a="a", b="b"))
        reloaded = await reloader.reload()
        kept = "the previous configuration stays in force, and the reload is retried"
        problem = f"not applied yet: the store is away; {kept}"
        assert (reloaded.problems, reloaded.jobs) == ((problem,), 1)
        assert reloader.has_changed()
        monkeypatch.setattr(store, "join", join)
        assert (await reloader.reload()).problems == ()
        assert not reloader.has_changed()
        await ended(scheduler, "b")
        assert echo.texts == ["b"]


# The calls of a reload to the ledger until the new jobs are stored.
STEPS = ["calendars", "stored_schedules", "declared_schedules", "now", "join", "change_schedules"]


@pytest.mark.parametrize("error", [StoreUnavailable("away"), RuntimeError("a bug")], ids=["away", "bug"])
@pytest.mark.parametrize("step", STEPS)
async def test_after_a_failure_of_any_step_the_old_commands_run(
    folder: Path,
    write: Write,
    echo: type[EchoDriver],
    monkeypatch: pytest.MonkeyPatch,
    step: str,
    error: Exception,
) -> None:
    before = jobs(a="old", gone="gone") + "[calendars.quiet]\nexclude = ['sun']\n"
    after = jobs(a="new", come="come") + "calendar = 'biz'\n[redis]\nurl = 'redis://127.0.0.1:1'\n"
    write(before)
    async with running(folder) as reloader:
        scheduler, store = reloader._scheduler, await reloader._scheduler.runtime.store()
        await scheduler.set_calendar(Calendar("biz", exclude=["sat"]))
        stored, node = await scheduler.schedules(), await node_of(scheduler)
        write(after)
        asked = []

        async def failing(*_: object, **__: object) -> None:
            asked.append(step)
            raise error

        with monkeypatch.context() as patch:
            patch.setattr(store, step, failing)
            if isinstance(error, StoreUnavailable):
                assert (await reloader.reload()).problems != ()
            else:
                with pytest.raises(RuntimeError, match="a bug"):
                    await reloader.reload()
        assert asked
        assert await scheduler.schedules() == stored
        await ended(scheduler, "a")
        await ended(scheduler, "gone")
        assert echo.texts == ["old", "gone"]
        found = await node_of(scheduler)
        assert set(found.tasks) == set(node.tasks) == {"a", "gone"}
        assert len(reloader.configuration.jobs) == 2
        assert "redis" not in scheduler.runtime.connections
        reloaded = await reloader.reload()
        assert (reloaded.problems, reloaded.jobs, reloaded.wants_restart) == ((), 2, ())
        assert set((await node_of(scheduler)).declares) == {"a", "come"}
        await ended(scheduler, "a")
        await ended(scheduler, "come")
        assert echo.texts == ["old", "gone", "new", "come"]


@pytest.mark.parametrize("key", ["calendar", "blackout"])
async def test_an_unknown_calendar_changes_nothing_and_is_reported_with_its_line(
    folder: Path, write: Write, echo: type[EchoDriver], key: str
) -> None:
    write(jobs(a="old"))
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        write(jobs(a="new") + f"{key} = 'holidys'\n")
        reloaded = await reloader.reload()
        nowhere = "there is no calendar 'holidys', neither in this configuration nor in the ledger"
        assert reloaded.problems == (f"evertick.toml:6: jobs.a.{key}: {nowhere}; write [calendars.holidys]",)
        await ended(scheduler, "a")
        await scheduler.set_calendar(Calendar("holidays", exclude=["sat"]))
        [line] = (await reloader.reload()).problems
        assert line == f"evertick.toml:6: jobs.a.{key}: {nowhere}; it is called 'holidays'"
        await ended(scheduler, "a")
        assert echo.texts == ["old", "old"]
        write(jobs(a="new") + f"{key} = 'holidays'\n")
        assert (await reloader.reload()).problems == ()
        await ended(scheduler, "a")
        assert echo.texts == ["old", "old", "new"]


@pytest.mark.parametrize("driver", ["redis", "nats"])
async def test_a_new_broker_is_used_with_its_first_job(folder: Path, write: Write, driver: str) -> None:
    write(jobs(a="a"))
    with redis_server() if driver == "redis" else nats_server() as server:
        async with running(folder) as reloader:
            scheduler = reloader._scheduler
            job = f"[{driver}]\nurl = '{server.url}'\n[jobs.b]\nevery = '1d'\n"
            write(jobs(a="a") + job + f"{driver} = {{ queue = 'q', mode = 'forget' }}\n")
            reloaded = await reloader.reload()
            assert (reloaded.problems, reloaded.jobs, reloaded.wants_restart) == ((), 2, ())
            run = await ended(scheduler, "b")
            assert (run.error, str(run.verdict)) == (None, "succeeded")
            assert scheduler.is_healthy


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            "[node]\ndrivers = ['shell', 'echo']\n[jobs.b]\nevery = '1d'\nshell = 'true'\n",
            "evertick.toml:10: jobs.b.shell: node.drivers enables the driver 'shell' after a restart",
        ),
        (
            "[node]\nqueues = ['default', 'heavy']\n[jobs.b]\nevery = '1d'\necho = 'x'\nqueue = 'heavy'\n",
            "evertick.toml:11: jobs.b.queue: node.queues adds the queue 'heavy' after a restart",
        ),
        (
            "[redis]\nurl = 'redis://b'\n[jobs.b]\nevery = '1d'\nredis = 'x'\n",
            "evertick.toml:10: jobs.b.redis: changes of [redis] take effect after a restart",
        ),
    ],
)
async def test_a_job_that_needs_a_restart_refuses_the_whole_reload(
    folder: Path, write: Write, echo: type[EchoDriver], text: str, line: str
) -> None:
    write("[redis]\nurl = 'redis://a'\n" + jobs(a="old") + "[node]\ndrivers = ['echo', 'redis']\n")
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        write(jobs(a="new") + text)
        reloaded = await reloader.reload()
        fix = "restart the node to apply the configuration, or remove the job until then"
        assert reloaded.problems == (f"{line}; {fix}",)
        await ended(scheduler, "a")
        assert echo.texts == ["old"]


async def test_a_changed_broker_address_needs_a_restart_and_is_logged(folder: Path, write: Write) -> None:
    before = "[redis]\nurl = 'redis://a'\n" + jobs(a="a")
    write(before)
    async with running(folder) as reloader:
        connections = dict(reloader._scheduler.runtime.connections)
        write(before.replace("redis://a", "redis://b") + "[nats]\nurl = 'nats://c'\nevents = true\n")
        # New settings apply at once, except published events, which need a restart.
        assert (await reloader.reload()).wants_restart == ("redis.url", "nats.events")
        assert reloader._scheduler.runtime.connections["redis"] == connections["redis"]


async def test_replaced_drivers_are_closed(folder: Path, write: Write, echo: type[EchoDriver]) -> None:
    write(DATABASE + "[jobs.long]\nevery = '1d'\necho = { text = 'long', waits = true }\n")
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        run = await scheduler.trigger("long")
        await echo.has_begun.wait()
        for number in range(100):
            write(jobs(long=f"{number}"))
            assert (await reloader.reload()).problems == ()
            if number % 10 == 0:
                # Not by its schedule, whose run is still running.
                await ended_run(scheduler, (await scheduler.runtime.tasks["long"].enqueue()).id)
        # The driver of the first run, which is running, and perhaps that of the last.
        while len(echo.open) > 2:
            await asyncio.sleep(0.01)
        assert run.id not in {each.id for each in await scheduler.runs() if each.verdict is not None}
        assert "long" in echo.open
        echo.may_end.set()
        assert (await ended_run(scheduler, run.id)).result == "long"
        while "long" in echo.open:
            await asyncio.sleep(0.01)
    assert echo.open == []


async def test_a_disabled_job_is_paused_at_once_and_resumed_when_enabled(folder: Path, write: Write) -> None:
    write(jobs(a="a"))
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        write(jobs(a="a") + "enabled = false\n")
        assert (await reloader.reload()).problems == ()
        note = (await scheduler.schedule("a")).pause_note
        assert note == "disabled in the configuration of evertick; enable it there to resume it"
        write(jobs(a="a"))
        assert (await reloader.reload()).problems == ()
        assert not (await scheduler.schedule("a")).is_paused


async def test_starts_under_a_rate_in_memory_still_count_after_a_reload(folder: Path, write: Write) -> None:
    limited = "[node]\nrate_limits = 'memory'\n" + jobs(a="a") + "rate = '1/h'\n"
    write(limited)
    async with running(folder) as reloader:
        scheduler = reloader._scheduler
        await ended(scheduler, "a")
        write(limited + JOB.format(name="b", text="b"))
        assert (await reloader.reload()).problems == ()
        held = await scheduler.trigger("a")
        await ended(scheduler, "b")
        assert (await scheduler.get_run(held.id)).verdict is None


async def test_at_most_once_runs_are_not_claimed_ahead_after_a_reload(folder: Path, write: Write) -> None:
    write(jobs(a="a"))
    async with running(folder) as reloader:
        engine = reloader._scheduler.runtime.engine
        assert engine is not None
        assert engine._node.may_claim_ahead
        for option in ("on_lost = 'fail'", "concurrency = 1", "rate = '9/s'"):
            write(jobs(a="a") + option)
            assert (await reloader.reload()).problems == ()
            assert not engine._node.may_claim_ahead
        write(jobs(a="a"))
        assert (await reloader.reload()).problems == ()
        assert engine._node.may_claim_ahead


class LoopCalls:
    """Counts calls on the event loop within one iteration."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self._patch = monkeypatch
        self._loop_thread = threading.get_ident()
        self._done = 0
        self.most = 0
        # The number of calls, there and in other threads.
        self.on_loop: Counter[str] = Counter()
        self.elsewhere: Counter[str] = Counter()

    def count(self, owner: object, name: str) -> None:
        real = getattr(owner, name)

        def counted(*args: Any, **named: Any) -> Any:
            if threading.get_ident() == self._loop_thread:
                self._done += 1
                self.most = max(self.most, self._done)
                self.on_loop[name] += 1
            else:
                self.elsewhere[name] += 1
            return real(*args, **named)

        self._patch.setattr(owner, name, counted)

    async def turn(self) -> None:
        while True:
            self._done = 0
            await asyncio.sleep(0)


async def test_a_reload_of_many_jobs_does_not_block_the_event_loop(
    folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Work for each job is done in a thread, or yields to the event loop."""
    count = 10 * TURN
    text = jobs(**{f"job{number}": "before" for number in range(count)})
    write(text)
    async with running(folder) as reloader:
        turns = LoopCalls(monkeypatch)
        turns.count(load, "read_job")
        turns.count(adding, "_add")
        for name in ("_edit", "_plan_edit", "_plan_add"):
            turns.count(apply._Planning, name)
        turns.count(apply, "overrides_of")
        for name in ("_edit", "_adding"):
            turns.count(BatchEditor, name)
        turning = asyncio.create_task(turns.turn())
        changed = text.replace("'1d'", "'2d'") + jobs(**{f"new{n}": "new" for n in range(count)}).removeprefix(DATABASE)
        # All jobs changed, and as many new ones; then the same files again.
        for content in (changed, f"{changed}# the same\n"):
            write(content)
            reloaded = await reloader.reload()
            assert (reloaded.problems, reloaded.jobs) == ((), 2 * count)
        turning.cancel()
        assert turns.most <= TURN
        # Checked in a thread, created here.
        assert (turns.on_loop["read_job"], turns.elsewhere["read_job"]) == (0, 4 * count)
        assert (turns.on_loop["_add"], turns.elsewhere["_add"]) == (4 * count, 4 * count)
        assert (turns.on_loop["_plan_edit"], turns.on_loop["_plan_add"]) == (count, count)
        assert (turns.on_loop["overrides_of"], turns.on_loop["_adding"]) == (2 * count, count)


async def test_a_reload_logs_warnings(folder: Path, write: Write) -> None:
    write(jobs(a="x"))
    async with running(folder) as reloader:
        write(jobs(a="x") + "[jobs.b]\nonce = 2020-01-31T09:00:00Z\necho = 'x'\n")
        [line] = (await reloader.reload()).warnings
        assert line.startswith("evertick.toml:7: jobs.b.once: 2020-01-31T09:00:00Z is past")
        write("[jobs.b]\n")
        assert (await reloader.reload()).warnings == ()


async def test_a_reload_refuses_files_that_another_user_can_change(
    folder: Path, write: Write, echo: type[EchoDriver], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A `chmod` changes neither content nor time of a file."""
    path = write(jobs(a="before"))
    # The user of the suite stands for root.
    monkeypatch.setattr(ownership, "_ROOT", os.geteuid())
    monkeypatch.setattr(ownership, "_home_of", lambda _: str(folder))
    async with running(folder) as reloader:
        write(jobs(a="theirs"), mode=0o666)
        [problem] = (await reloader.reload()).problems
        assert "every user can change this file" in problem
        assert not reloader.has_changed()
        await ended(reloader._scheduler, "a")
        path.chmod(0o644)
        assert reloader.has_changed()
        assert (await reloader.reload()).problems == ()
        assert not reloader.has_changed()
        await ended(reloader._scheduler, "a")
    assert echo.texts == ["before", "theirs"]
