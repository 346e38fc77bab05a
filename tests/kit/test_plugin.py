"""The fixtures, in pytest runs of their own."""

from __future__ import annotations

import subprocess
import sys

import pytest

pytest_plugins = "pytester"

JOBS = """
    import asyncio
    from evertick import Scheduler
    scheduler = Scheduler("sqlite:////no/such/directory/jobs.db")
    parts = scheduler.runtime.parts
    ended = []

    @scheduler.every("1h", key="hourly")
    async def hourly(): ...

    @scheduler.every("2h", key="plain")
    def plain(): ...

    @scheduler.cron("30 12 * * *", key="long")
    async def long():
        try:
            await asyncio.sleep(10**7)
        finally:
            await asyncio.sleep(0.001)
            ended.append("cut off")
"""

TESTS = """
    from jobs import ended, parts, scheduler

    async def test_one(evertick_kit):
        kit = await evertick_kit(scheduler, start="2026-03-27T00:00:00+01:00")
        await kit.advance("1d")
        kit.assert_fired("hourly", times=24)
        kit.assert_succeeded("plain", times=12)

    def test_it_was_closed_in_between():
        assert scheduler.runtime.parts is parts
        assert ended == ["cut off"]

    async def test_two(evertick_kit):
        kit = await evertick_kit(scheduler)
        kit.assert_not_fired("hourly")
        await kit.advance("2h")
        kit.assert_fired("hourly", times=3)
"""


@pytest.fixture
def jobs(pytester: pytest.Pytester) -> pytest.Pytester:
    pytester.makepyfile(jobs=JOBS)
    pytester.syspathinsert()
    return pytester


ASYNCIO = ("-o", "asyncio_default_fixture_loop_scope=function", "-o")


def run(pytester: pytest.Pytester, *args: str) -> pytest.RunResult:
    # Warnings are errors: nothing may be left on a loop.
    return pytester.runpytest_subprocess("-q", "-W", "error", "-p", "no:cacheprovider", *args)


def test_an_async_test_gets_a_kit_that_is_closed_for_it(jobs: pytest.Pytester) -> None:
    jobs.makepyfile(TESTS)
    result = run(jobs, *ASYNCIO, "asyncio_mode=auto")
    result.assert_outcomes(passed=2, failed=1)
    result.stdout.fnmatch_lines(
        [
            "E * AssertionError: 'hourly' fired twice, not 3 times",
            "E * the ledger of 'hourly':",
            "E * 2026-01-01 01:00:00 UTC  succeeded",
        ]
    )
    # The failure is shown in the test.
    result.stdout.no_fnmatch_line("*ledger.py*")


def test_the_kit_fixture_works_in_strict_mode_and_in_a_fixture_of_the_user(jobs: pytest.Pytester) -> None:
    jobs.makepyfile("""
        import pytest, pytest_asyncio
        from jobs import scheduler

        @pytest_asyncio.fixture
        async def kit(evertick_kit):
            return await evertick_kit(scheduler, start="2026-03-27T00:00:00+01:00")

        @pytest.mark.asyncio
        async def test_one(kit):
            await kit.advance("3h")
            kit.assert_fired("hourly", times=3)

        @pytest.mark.asyncio
        async def test_two(kit):
            await kit.advance("14h")
            assert [run.state for run in kit.runs("long")] == ["running"]
    """)
    run(jobs, *ASYNCIO, "asyncio_mode=strict").assert_outcomes(passed=2)


def test_the_sync_kit_needs_no_asyncio_plugin(jobs: pytest.Pytester) -> None:
    # Here the loop ends before the test, as with plugins that use a loop per call.
    jobs.makepyfile("""
        import asyncio
        from jobs import ended, parts, scheduler

        def test_one(evertick_kit):
            async def main():
                kit = await evertick_kit(scheduler)
                await kit.advance("1d")
                kit.assert_fired("hourly", times=24)

            asyncio.run(main())
            assert ended == ["cut off"]

        def test_two(evertick_kit_sync):
            assert scheduler.runtime.parts is parts
            kit = evertick_kit_sync(scheduler, start="2026-03-27T00:00:00+01:00")
            kit.advance("2h")
            kit.assert_fired("plain", times=1)

        def test_three():
            assert scheduler.runtime.parts is parts
    """)
    run(jobs, "-p", "no:asyncio").assert_outcomes(passed=3)


def test_the_fixtures_are_listed_with_their_purpose(pytester: pytest.Pytester) -> None:
    result = run(pytester, "-p", "no:asyncio", "--fixtures")
    result.stdout.fnmatch_lines(["evertick_kit *", "*Virtual time for an async test:*"])
    result.stdout.fnmatch_lines(["evertick_kit_sync *", "*Virtual time for a plain test:*"])


def test_loading_the_plugin_loads_nothing_of_evertick() -> None:
    program = "import sys, evertick_pytest; print([name for name in sys.modules if name.startswith('evertick.')])"
    answer = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert answer.stdout.strip() == "[]"


def test_the_public_names_are_these() -> None:
    import evertick.testing

    assert evertick.testing.__all__ == [
        "Kit",
        "SettableClock",
        "SyncKit",
        "TimeStandsStill",
        "virtual_time",
        "virtual_time_sync",
    ]
    for name in evertick.testing.__all__:
        assert getattr(evertick.testing, name).__name__ == name
    with pytest.raises(AttributeError, match="no attribute 'virtual_tiem'"):
        _ = evertick.testing.virtual_tiem
