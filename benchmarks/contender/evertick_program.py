"""Evertick by its public interface, with the interpreter tuning of `evertick run`."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from datetime import UTC, datetime, timedelta
from functools import partial
from typing import Any
from zoneinfo import ZoneInfo

from benchmarks.contender import sqlite_statements, verbs
from evertick import Context, Cron, Every, Scheduler
from evertick.definition.task import TaskOptions
from evertick.scheduler.interpreter_tuning import calm_collector, shorten_turns
from evertick.when import When

# The least number of schedules to estimate the time of adding, and a margin. In a file each schedule takes longer than
# the one before: with half a million, up to seven times as long as the first.
_PROBES_LEAST, _PATIENCE, _PATIENCE_IN_LARGE_FILE, _LARGE = 100, 2, 8, 1_000_000
_BERLIN, _NEW_YORK = "Europe/Berlin", ZoneInfo("America/New_York")

# Options of the task `count`: its limits, and the number of concurrency keys.
_task: TaskOptions = verbs.OPTIONS.pop("task", {})
_keys: int = verbs.OPTIONS.pop("keys", 0)
# Before the first connection.
if verbs.OPTIONS.pop("is_counting", False):
    sqlite_statements.count_in(verbs.FOLDER)
scheduler = Scheduler(verbs.URL, **verbs.OPTIONS)
_hold = verbs.FOLDER / verbs.HOLD


@scheduler.task(name="count", **_task)
async def count(number: int, sent_at: float = 0.0, key: int = 0) -> None:
    verbs.tally.count(number, sent_at)


@scheduler.task(name="hold")
async def hold(number: int) -> None:
    verbs.tally.count(number)
    while _hold.exists():
        await asyncio.sleep(0.02)


@scheduler.task(name="fire")
async def fire(ctx: Context, number: int) -> None:
    verbs.tally.count(number, ctx.fire_at.timestamp())


async def fill(runs: int, singles: int) -> dict[str, float]:
    await scheduler.health()  # opens the ledger
    began = time.perf_counter()
    for numbers in verbs.bulks(runs):
        await count.enqueue_many(_args(number) for number in numbers)
    filled = time.perf_counter()
    for number in range(runs, runs + singles):
        await count.enqueue(number=number)
    done = time.perf_counter()
    await scheduler.close()
    return {"bulk_seconds": filled - began, "single_seconds": done - filled}


async def enqueue(first: int, runs: int, is_bulk: bool, at: float) -> tuple[float, float, float]:
    await scheduler.health()
    began, before = verbs.wait_until(at), time.process_time()
    if is_bulk:
        for numbers in verbs.bulks(runs):
            await count.enqueue_many({"number": first + number} for number in numbers)
    else:
        for number in range(runs):
            await count.enqueue(number=first + number)
    ended, used = time.time(), time.process_time() - before
    await scheduler.close()
    return began, ended, used


def _args(number: int) -> dict[str, int]:
    return {"number": number, "key": number % _keys} if _keys else {"number": number}


async def fill_held(runs: int) -> None:
    """Runs that wait until the file `HOLD` is gone."""
    await hold.enqueue_many({"number": number} for number in range(runs))
    await scheduler.close()


async def work(schedules: int) -> None:
    verbs.ready()
    async with scheduler:
        _tune_interpreter()
        await verbs.until_stopped()


def _tune_interpreter() -> None:
    """The same as `evertick run`."""
    calm_collector()
    shorten_turns()


async def send(runs: int, per_second: float) -> None:
    await scheduler.health()  # opens the ledger before the first call is timed
    await verbs.pace(runs, per_second, _send_one)
    await scheduler.close()


async def alone(runs: int, per_second: float, settle: float) -> None:
    verbs.ready()
    async with scheduler:
        _tune_interpreter()
        await asyncio.sleep(settle)
        await verbs.pace(runs, per_second, _send_one)
        await verbs.until_stopped()


async def _send_one(number: int, sent_at: float) -> object:
    return await count.enqueue(number=number, sent_at=sent_at)


async def plan(schedules: int, period: int, ahead: float) -> float:
    def rules(start: datetime) -> Callable[[int], When]:
        """One rule for each second, shared by its schedules."""
        seconds = [verbs.cron_seconds(second, period) for second in range(period)]
        shared = [Cron(f"{each} * * * * *", tz=_BERLIN, start=start) for each in seconds]
        return lambda number: shared[number % period]

    return await _plan(schedules, ahead, rules)


async def plan_evenly(schedules: int, period: int, ahead: float) -> float:
    length = timedelta(seconds=period)

    def rules(start: datetime) -> Callable[[int], When]:
        # A rounded step would add up, and move the last schedules into the next period.
        return lambda number: Every(length, since="start", start=start + number * length / schedules)

    return await _plan(schedules, ahead, rules)


async def plan_herd(schedules: int, ahead: float) -> float:
    def rules(start: datetime) -> Callable[[int], When]:
        rule = Every(timedelta(days=30), since="start", start=start)
        return lambda number: rule

    return await _plan(schedules, ahead, rules)


async def _plan(schedules: int, ahead: float, rules: Callable[[datetime], Callable[[int], When]]) -> float:
    await scheduler.health()  # opens the ledger
    is_large_file = verbs.URL.startswith("sqlite") and schedules >= _LARGE
    patience = _PATIENCE_IN_LARGE_FILE if is_large_file else _PATIENCE
    first = verbs.beginning(ahead + schedules * patience * await _seconds_to_add_one(schedules))
    rule = rules(datetime.fromtimestamp(first, UTC))
    for numbers in verbs.bulks(schedules):
        await scheduler.add_many(_schedule(number, rule(number)) for number in numbers)
    await scheduler.close()
    assert time.time() < first, "adding the schedules took longer than expected: the first were already due"
    return first


async def _seconds_to_add_one(schedules: int) -> float:
    """Measured by adding a batch that is never due here and stays."""
    rule = Every("30d", since="start", start=datetime.now(UTC) + timedelta(days=30))
    probes = max(min(schedules, verbs.BULK), _PROBES_LEAST)
    began = time.perf_counter()
    await scheduler.add_many({**_schedule(number, rule), "key": f"probe{number}"} for number in range(probes))
    return (time.perf_counter() - began) / probes


def _schedule(number: int, rule: When) -> dict[str, Any]:
    return {"key": f"s{number}", "when": rule, "task": fire, "args": {"number": number}}


def next_fires(counts: dict[str, int], seconds: float) -> dict[str, list[float]]:
    return {text: verbs.walked(fires, seconds, partial(_walk, text)) for text, fires in counts.items()}


def _walk(expression: str) -> Callable[[int], datetime]:
    rule, start = Cron(expression, tz=_NEW_YORK), datetime(2026, 3, 7, 12, tzinfo=_NEW_YORK)

    def walk(fires: int) -> datetime:
        nonlocal start
        at = start
        for _ in range(fires):
            found = rule.next_after(at)
            assert found is not None
            at = found
        start = at
        return at

    return walk


if __name__ == "__main__":
    verbs.main(fill, enqueue, fill_held, work, send, alone, plan, plan_evenly, plan_herd, next_fires)
