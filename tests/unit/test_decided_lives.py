"""Whole lives of schedules about whose moments people decide, and which have blackouts, held against a plain model.

The life is real (editor, plan, SQLite in memory); only time is told. Ticks, downtime, runs that end or do not, edits,
pauses, changed calendars and decisions come at random. In the end the schedule is removed, and every moment of its rule
up to then must have exactly one row: a run, or a place in one gap. Gaps may enclose each other's moments: those that
were decided about have rows of their own, and a blackout that drops counts its own.
"""

from __future__ import annotations

import asyncio
import random
from typing import Any

import msgspec
from hypothesis import given, settings
from hypothesis import strategies as st
from ledger_bench import APP, Bench

from evertick.errors import Refused
from evertick.model import Cause, Gap, Reason, Run
from evertick.store.base import RunFilter
from evertick.when import Calendar, Cron, Every, Once, When, from_us, parse_when, to_us
from evertick.when.moment import HOUR, MINUTE, SECOND

STEPS = 60


def closed_at_times(chance: random.Random, start: int) -> Calendar:
    """A blackout of some stretches within the life."""
    stretches, at = [], start
    for _ in range(chance.randint(1, 6)):
        begin = at + chance.randrange(6 * HOUR)
        at = begin + chance.randrange(1, 4 * HOUR)
        stretches.append((from_us(begin), from_us(at)))
    return Calendar("freeze", exclude=stretches)


def a_rule(chance: random.Random, start: int, *, jitter: str | None, max_fires: int | None) -> When:
    options: dict[str, Any] = {"max_fires": max_fires}
    if jitter is not None:
        options |= {"jitter": chance.choice(["10s", "20m", "3h"]), "jitter_mode": jitter}
    match chance.choice(["every", "since", "cron", "once"]):
        case "every":
            return Every(chance.choice(["7m", "30m", "1h", "3h"]), **options)
        case "since":
            return Every(chance.choice(["11m", "45m"]), since="start", **options)
        case "cron":
            return Cron(chance.choice(["*/10 * * * *", "0 * * * *", "15,45 */2 * * *"]), tz="Europe/Berlin", **options)
        case _:
            options.pop("max_fires")
            return Once(from_us(start + chance.randrange(12 * HOUR)), **options)


class Life:
    """One schedule, what happens to it, and what was meant."""

    def __init__(self, seed: int, policy: dict[str, Any], jitter: str | None, max_fires: int | None) -> None:
        self.chance = random.Random(seed)
        self.bench = Bench()
        self.policy = policy
        self.jitter, self.max_fires = jitter, max_fires
        self.spans: list[tuple[When, int]] = []
        self.calendars: list[tuple[int, Calendar]] = []
        # Moments that somebody has decided about, ever.
        self.decided: set[int] = set()

    @property
    def now(self) -> int:
        return self.bench.clock.now_us()

    async def live(self) -> None:
        bench, chance = self.bench, self.chance
        await bench.open()
        if "blackout_fate" in self.policy:
            await self._change_calendar()
        rule = a_rule(chance, bench.start, jitter=self.jitter, max_fires=self.max_fires)
        await bench.add(rule, **self.policy)
        self._begin((await bench.stored()).definition.when, self.now - isinstance(rule, Once))
        for _ in range(STEPS):
            await self._step()
        await self.bench.editor.remove("k")

    def _begin(self, when: str, since: int) -> None:
        self.spans.append((parse_when(when).bind(key="k", created=self.bench.start), since))

    async def _step(self) -> None:
        bench, chance = self.bench, self.chance
        stored = await bench.stored()
        if stored.at is not None and chance.random() < 0.6:
            # Somebody looks when it wants to be looked at, or later.
            late = 3 * HOUR if chance.random() < 0.1 else 3 * SECOND
            bench.clock.move(max(stored.at - self.now, 0) + chance.randrange(late))
            await bench.tick()
        else:
            bench.clock.move(chance.randrange(40 * MINUTE))
        if chance.random() < 0.5:
            await bench.run_all()
        if chance.random() < 0.35:
            await self._decide()
        if chance.random() < 0.06:
            await self._edit()

    async def _decide(self) -> None:
        editor, chance = self.bench.editor, self.chance
        waiting = [each.fire_at for each in (await self.bench.stored()).occurrences if each.kind != "done"]
        try:
            match chance.choice(["skip", "move", "early", "undo"]):
                case "skip":
                    self.decided.add(await editor.skip_next("k"))
                case "move":
                    moment = self._some_moment(waiting)
                    to = self.now + chance.randrange(1, 6 * HOUR)
                    if moment is not None:
                        await editor.move("k", moment, to=to)
                        self.decided.add(moment)
                case "early":
                    run_id = await editor.run_early("k")
                    [run] = await self.bench.store.runs(APP, RunFilter(ids=(run_id,)))
                    self.decided.add(to_us(run.fire_at))
                case _:
                    await editor.undo("k", chance.choice([None, *waiting]))
        except Refused:
            pass

    def _some_moment(self, waiting: list[int]) -> int | None:
        if waiting and self.chance.random() < 0.3:
            return self.chance.choice(waiting)
        moment: int | None = self.now
        for _ in range(self.chance.randint(1, 6)):
            moment = None if moment is None else self.spans[-1][0].next_us(moment)
        return moment

    async def _edit(self) -> None:
        editor, chance = self.bench.editor, self.chance
        match chance.choice(["same", "rule", "pause", "until", "resume", "calendar"]):
            case "same":
                await editor.edit("k", lambda before: msgspec.structs.replace(before, priority=chance.randrange(9)))
            case "rule":
                rule = a_rule(chance, self.now, jitter=self.jitter, max_fires=self.max_fires)
                await editor.edit("k", lambda before: before, rule=rule)
                when = (await self.bench.stored()).definition.when
                self._begin(when, self.now)
            case "pause":
                await editor.pause("k")
            case "until":
                await editor.pause("k", until=self.now + chance.randrange(1, 4 * HOUR))
            case "resume":
                await editor.resume("k")
            case "calendar" if self.calendars:
                await self._change_calendar()

    async def _change_calendar(self) -> None:
        self.bench.clock.move(1)  # so that rows of before can be told from rows of after
        calendar = closed_at_times(self.chance, self.now - HOUR)
        self.calendars.append((self.now, calendar))
        await self.bench.editor.put_calendar(calendar)

    # --- the account

    def is_closed(self, moment: int, *, as_of: int) -> bool:
        known = [calendar for since, calendar in self.calendars if since <= as_of]
        return bool(known) and not known[-1].permits(moment)

    async def check(self) -> None:
        runs = [run for run in await self.bench.store.runs(APP, RunFilter(limit=100_000)) if run.cause is Cause.FIRE]
        gaps = await self.bench.store.gaps(APP, RunFilter(limit=100_000))
        for run in runs:
            self._check_run(run)
        left, taken = self._moments(), set[int]()
        for run in runs:
            self._take({to_us(run.fire_at)}, left, taken, to_us(run.created_at))
        for gap in sorted(gaps, key=lambda each: (each.count > 1, each.reason != Reason.BLACKOUT, each.first_at)):
            self._take_gap(gap, left, taken)
        if self.max_fires is None:
            assert not left, f"without a row: {sorted(map(from_us, left))[:3]}"
        elif all(rule.bounds.max_fires for rule, _ in self.spans):
            assert len(runs) <= self.max_fires

    def _moments(self) -> set[int]:
        """All moments of its rules up to now."""
        found = set[int]()
        for number, (rule, since) in enumerate(self.spans):
            until = self.spans[number + 1][1] if number + 1 < len(self.spans) else self.now
            moment = rule.next_us(since)
            while moment is not None and moment <= until:
                found.add(moment)
                moment = rule.next_us(moment)
        return found

    def _take_gap(self, gap: Gap, left: set[int], taken: set[int]) -> None:
        first, last, recorded = to_us(gap.first_at), to_us(gap.last_at), to_us(gap.recorded_at)
        inside = {moment for moment in left if first <= moment <= last}
        if gap.reason == Reason.BLACKOUT:
            inside = {moment for moment in inside if self.is_closed(moment, as_of=recorded)}
            assert self.policy["blackout_fate"] == "drop"
        if gap.count == 1:
            inside = {first}
        if gap.reason == Reason.BY_HAND:
            assert first in self.decided
        assert len(inside) == gap.count, f"{gap} holds {len(inside)}"
        assert {first, last} <= inside
        self._take(inside, left, taken, recorded)

    def _take(self, moments: set[int], left: set[int], taken: set[int], recorded: int) -> None:
        assert not moments & taken, f"two rows for {[from_us(each) for each in moments & taken]}"
        # What was decided before its time came may be no moment of a later rule.
        others = {each for each in moments - left if each not in self.decided or each < recorded}
        assert not others, f"no moments of it: {[from_us(each) for each in others]}"
        taken |= moments
        left -= moments

    def _check_run(self, run: Run) -> None:
        moment, made = to_us(run.fire_at), to_us(run.created_at)
        if moment not in self.decided:
            assert moment <= made, "nothing runs before its time but by hand"
            assert not self.is_closed(made, as_of=made), f"recorded while it was closed: {run}"


policies = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(["latest", "all", "skip"]),
        "overlap": st.sampled_from(["skip", "queue", "allow", "replace"]),
        "grace": st.sampled_from([None, 30 * SECOND, 10 * MINUTE, 3 * HOUR]),
        "catch_up_limit": st.sampled_from([1, 3, 100]),
        "pace": st.sampled_from([SECOND, 30 * SECOND]),
    }
)
blackouts = st.fixed_dictionaries(
    {"blackout": st.just("freeze"), "blackout_fate": st.sampled_from(["drop", "latest", "all"])}
)


@given(
    st.integers(0, 2**32),
    policies,
    st.one_of(st.just({}), blackouts),
    st.sampled_from([None, "stable", "fresh"]),
    st.sampled_from([None, None, None, 4]),
)
@settings(max_examples=60, deadline=None)
def test_every_moment_of_a_life_has_one_row_after_any_decisions(
    seed: int, policy: dict[str, Any], blackout: dict[str, Any], jitter: str | None, max_fires: int | None
) -> None:
    async def live() -> None:
        life = Life(seed, policy | blackout, jitter, max_fires)
        try:
            await life.live()
            await life.check()
        finally:
            await life.bench.store.close()

    asyncio.run(live())
