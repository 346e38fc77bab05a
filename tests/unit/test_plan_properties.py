"""Plans compared with a simple model: the moments of a rule as a list.

A schedule is simulated: it is planned at its due time, or later (a downtime), while runs start and end at random. In
every case its fires and gaps are the moments of its rule, each once.
"""

from __future__ import annotations

import random
from datetime import timedelta

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from planning import DAY_START, bound, inputs

from evertick.model import Pause, Reason
from evertick.plan import plan as planning
from evertick.plan.inputs import FRESH, Plan, PlanInputs
from evertick.plan.moments import cursor_after
from evertick.plan.overlap import BLOCKED, LIVE
from evertick.plan.plan import plan, plan_closely
from evertick.plan.settlement import settle
from evertick.when import Cron, Every, Once, When, from_us
from evertick.when.moment import DAY, HOUR, MINUTE, SECOND

LIFE = 2 * DAY
END = DAY_START + LIFE

bounds = st.fixed_dictionaries(
    {},
    optional={
        "start": st.integers(0, LIFE).map(lambda us: from_us(DAY_START + us)),
        "jitter": st.sampled_from(["1s", "7s", "1m", "20m", "3h"]),
        "jitter_mode": st.sampled_from(["stable", "fresh"]),
        "max_fires": st.integers(1, 6),
    },
)


@st.composite
def rules(draw: st.DrawFn) -> When:
    options = draw(bounds)
    if draw(st.booleans()):
        begins = options.get("start", from_us(DAY_START))
        options["end"] = begins + timedelta(microseconds=draw(st.integers(0, LIFE)))
    match draw(st.sampled_from(["every", "since", "cron", "once"])):
        case "every":
            rule: When = Every(draw(st.sampled_from(["5m", "17m", "1h", "7h", "1d"])), **options)
        case "since":
            rule = Every(draw(st.sampled_from(["5m", "23m", "2h"])), since="start", **options)
        case "cron":
            text = draw(st.sampled_from(["*/10 * * * *", "0 9 * * *", "15,45 8-17 * * *", "7 */3 * * *"]))
            rule = Cron(text, tz=draw(st.sampled_from(["UTC", "Europe/Berlin"])), **options)
        case _:
            kept = {name: options[name] for name in ("jitter", "jitter_mode") if name in options}
            rule = Once(from_us(DAY_START + draw(st.integers(1, LIFE))), **kept)
    return bound(rule)


policies = st.fixed_dictionaries(
    {
        "catch_up": st.sampled_from(["latest", "all", "skip"]),
        "overlap": st.sampled_from(["skip", "queue", "allow", "replace"]),
        "grace": st.sampled_from([None, 30 * SECOND, 10 * MINUTE, 3 * HOUR]),
        "catch_up_limit": st.sampled_from([1, 3, 100]),
        "pace": st.sampled_from([SECOND, 30 * SECOND]),
    }
)


def moments_of(rule: When, first: int, last: int) -> list[int]:
    """The moments of the rule in [first, last]."""
    found, moment = [], rule.next_us(first - 1)
    while moment is not None and moment <= last:
        found.append(moment)
        moment = rule.next_us(moment)
    return found


def covered_by(made: Plan, rule: When) -> list[int]:
    covered = [fire.fire_at for fire in made.fires]
    for gap in made.gaps:
        inside = moments_of(rule, gap.first_at, gap.last_at)
        assert gap.count == len(inside), "a gap counts its moments"
        assert gap.is_exact
        assert inside[0] == gap.first_at
        assert inside[-1] == gap.last_at
        covered += inside
    return covered


def known_facts(
    rule: When, fire_at: int | None, at: int | None, policy: dict[str, object], **more: object
) -> PlanInputs:
    made = inputs(fire_at=fire_at, at=at, **policy, **more)
    return msgspec.structs.replace(made, rule=rule)


@given(rules(), policies, st.integers(0, LIFE), st.integers(0, LIFE), st.integers(0, 3), st.integers(0, 7))
@settings(max_examples=200, deadline=None)
def test_every_due_moment_is_covered_once_or_is_still_ahead_of_the_cursor(
    rule: When, policy: dict[str, object], since: int, downtime: int, live: int, fires: int
) -> None:
    draw = random.Random(since).random
    fire_at, at = cursor_after(rule, "job", DAY_START + since, draw)
    if fire_at is None or at is None:
        return
    now = at + downtime
    known = known_facts(rule, fire_at, at, policy, live=live, fires=fires)
    made = plan(known, now, draw)
    most = rule.bounds.max_fires
    if most is not None and fires >= most:
        assert made == Plan()
        return
    covered = covered_by(made, rule)
    assert len(covered) == len(set(covered)), "nothing twice"
    assert sorted(covered) == moments_of(rule, fire_at, max(covered, default=fire_at - 1)), "nothing left out"
    assert all(moment <= now for moment in covered)
    assert len(made.fires) <= 1
    assert len(made.gaps) <= 3
    is_spent = most is not None and fires + len(made.fires) >= most
    if not is_spent:
        following = rule.next_us(max(covered)) if covered else fire_at
        assert made.next_fire_at == following
        assert made.next_at is None or made.next_at > now or made.next_at >= (made.next_fire_at or 0)
    if covered:
        assert made.next_fire_at is None or made.next_fire_at > max(covered), "the cursor moves strictly"
    for fire in made.fires:
        assert fire.fire_at <= fire.due_at <= now
        grace = policy["grace"]
        assert grace is None or now - fire.due_at <= grace  # type: ignore[operator]


@given(rules(), policies, st.integers(0, LIFE), st.integers(0, LIFE), st.integers(0, 3))
@settings(max_examples=150, deadline=None)
def test_the_policies_choose_moments_as_documented(
    rule: When, policy: dict[str, object], since: int, downtime: int, live: int
) -> None:
    """Without jitter, to keep the model simple."""
    rule = rule._with(bounds=msgspec.structs.replace(rule.bounds, jitter=0, max_fires=None))
    fire_at, at = cursor_after(rule, "job", DAY_START + since, lambda: 0.0)
    if fire_at is None or at is None:
        return
    now = at + downtime
    owed = moments_of(rule, fire_at, now)
    made = plan(known_facts(rule, fire_at, at, policy, live=live), now, lambda: 0.0)
    grace, overlap, limit = policy["grace"], policy["overlap"], policy["catch_up_limit"]
    within = [moment for moment in owed if grace is None or now - moment <= grace]  # type: ignore[operator]
    is_refused = (overlap == "skip" and live & 1) or (overlap == "queue" and live & 2)
    fired = [fire.fire_at for fire in made.fires]
    reasons = [gap.reason for gap in made.gaps]
    match policy["catch_up"]:
        case "all":
            kept = within[-limit:]  # type: ignore[operator]
            assert fired == ([] if is_refused else kept[:1])
            dropped = len(owed) - len(kept)
            lost = sum(gap.count for gap in made.gaps if gap.reason != Reason.OVERLAP)
            assert lost == dropped
            assert set(reasons) <= {Reason.GRACE, Reason.LIMIT, Reason.OVERLAP}
        case "skip" if grace is None and now - owed[-1] > FRESH:
            assert fired == []
            assert reasons == [Reason.DOWNTIME]
        case _:
            may_run = bool(within) and within[-1] == owed[-1]
            assert fired == (owed[-1:] if may_run and not is_refused else [])
            if not may_run:
                assert reasons == [Reason.GRACE]
            elif is_refused:
                assert reasons == [Reason.OVERLAP]


@given(
    st.sampled_from(["50ms", "500ms", "1s", "7s", "5m"]),
    st.integers(1, 20),
    st.sampled_from([2, 50, 200, 10_000]),
    st.sampled_from(["skip", "queue", "allow", "replace"]),
    st.sampled_from([0, 30, 55, 80]),
    st.integers(0, 2**32),
)
@settings(max_examples=200, deadline=None)
def test_catch_up_all_always_catches_up(
    interval: str, backlog: int, pace_percent: int, overlap: str, run_percent: int, seed: int
) -> None:
    """Each tick is late by up to a hundredth of the interval; a run takes up to four fifths of it."""
    chance, rule = random.Random(seed), bound(Every(interval))
    assert isinstance(rule, Every)
    fire_at = at = DAY_START + 100 * rule.interval_us
    now, fired = at + (backlog - 1) * rule.interval_us + chance.randrange(rule.interval_us), list[int]()
    policy = {"catch_up": "all", "overlap": overlap, "pace": rule.interval_us * pace_percent // 100}
    run_end, took = 0, rule.interval_us * run_percent // 100
    # A run takes up to 0.84 of an interval with the ticks around it, so each one gains at least 0.16.
    end = now + (7 * backlog + 10) * rule.interval_us
    while now < end:
        live = 0 if run_end <= now else LIVE if run_end <= now + took else LIVE | BLOCKED
        made = plan(known_facts(rule, fire_at, at, policy, live=live), now, chance.random)
        assert not made.gaps or made.next_at == made.next_fire_at, "only a moment that is on time is skipped"
        assert made.next_fire_at is not None
        assert made.next_at is not None
        fired += [fire.fire_at for fire in made.fires]
        if made.fires:
            run_end = (max(run_end, now) if overlap == "queue" else now) + took
        if made.next_at == made.next_fire_at:
            break
        fire_at, at = made.next_fire_at, made.next_at
        now = at + chance.randrange(rule.interval_us // 100)
    else:
        pytest.fail(f"still {now - fire_at} us behind after {len(fired)} moments, from a backlog of {backlog}")
    assert fired == moments_of(rule, fired[0], fired[-1])


@given(rules(), policies, st.integers(0, 2**32))
@settings(max_examples=150, deadline=None)
def test_the_fires_and_gaps_of_a_schedule_are_the_moments_of_its_rule(
    rule: When, policy: dict[str, object], seed: int
) -> None:
    chance = random.Random(seed)
    now, fires, live, covered, fired = DAY_START, 0, 0, list[int](), list[int]()
    pause: Pause | None = None
    fire_at, at = cursor_after(rule, "job", now, chance.random)
    first = fire_at
    for _ in range(5_000):
        if at is None or now >= END:
            break
        is_down = chance.random() < 0.1
        now = max(now + 1, at) + int(chance.random() * (6 * HOUR if is_down else 20_000))
        live = chance.choice([0, 0, 0, 1, 3])
        made = plan(known_facts(rule, fire_at, at, policy, live=live, fires=fires, pause=pause), now, chance.random)
        covered += sorted(covered_by(made, rule))
        fired += [fire.fire_at for fire in made.fires]
        fires += len(made.fires)
        assert made.next_at is None or made.next_at > at, "the next look is later"
        pause = None if made.ends_pause else pause
        fire_at, at = made.next_fire_at, made.next_at
        if pause is None and fire_at is not None and chance.random() < 0.05:
            # A pause, as the editor does it: due moments are settled first.
            known = known_facts(rule, fire_at, at, policy, fires=fires)
            settled = settle(known, now, Reason.PAUSED)
            covered += sorted(covered_by(Plan(fires=settled[0], gaps=settled[1]), rule))
            fires += len(settled[0])
            pause = Pause(at=now, until=now + int(chance.random() * 5 * HOUR) + 1)
            fire_at, at = rule.next_us(now), pause.until
    assert covered == sorted(set(covered)), "in order, and nothing twice"
    assert fired == sorted(set(fired)), "each fire is later than the one before"
    if first is None:
        assert covered == []
        return
    last = covered[-1] if covered else first - 1
    assert covered == moments_of(rule, first, last), "nothing is left out"
    most = rule.bounds.max_fires
    if most is not None:
        assert fires <= most
    if fire_at is None and (most is None or fires < most):
        assert rule.next_us(last) is None, "it ended with its rule"
    if fire_at is not None and covered:
        assert fire_at == rule.next_us(last)


@given(
    st.sampled_from(["latest", "all", "skip"]),
    st.sampled_from(["skip", "queue", "allow", "replace"]),
    st.integers(1, 20),
    st.sampled_from(["* * * * * *", "*/5 * * * *", "0 9 * * mon-fri"]),
)
@settings(max_examples=60, deadline=1_000)
def test_years_of_downtime_need_few_rows_and_little_time(catch_up: str, overlap: str, years: int, text: str) -> None:
    rule = bound(Cron(text, tz="Europe/Berlin"))
    fire_at, at = cursor_after(rule, "job", DAY_START, lambda: 0.0)
    policy = {"catch_up": catch_up, "overlap": overlap}
    made = plan(known_facts(rule, fire_at, at, policy), DAY_START + years * 365 * DAY, lambda: 0.0)
    assert len(made.fires) + len(made.gaps) <= 2


@given(rules(), st.sampled_from([Reason.EDITED, Reason.PAUSED, Reason.REMOVED]), st.integers(0, LIFE), st.booleans())
@settings(max_examples=200, deadline=None)
def test_settling_covers_every_moment_up_to_now(rule: When, reason: Reason, later: int, is_paused: bool) -> None:
    chance = random.Random(later)
    fire_at, at = cursor_after(rule, "job", DAY_START, chance.random)
    if fire_at is None:
        return
    now = fire_at + later
    until = now - chance.randrange(3 * HOUR) if chance.random() < 0.5 else None
    pause = Pause(at=fire_at - 1, until=until) if is_paused else None
    fires, gaps = settle(
        known_facts(rule, fire_at, at, {}, pause=pause), now, reason, fresh=-1 if reason is Reason.REMOVED else FRESH
    )
    covered = covered_by(Plan(fires=fires, gaps=gaps), rule)
    assert sorted(covered) == moments_of(rule, fire_at, now)
    assert len(fires) <= (0 if reason is Reason.REMOVED else 1)
    for fire in fires:
        assert now - fire.due_at <= FRESH


@given(
    st.sampled_from(["latest", "all", "skip"]),
    st.sampled_from([None, MINUTE, HOUR]),
    st.integers(0, 2**32),
    st.sampled_from([None, 5]),
    st.sampled_from([None, "stable", "fresh"]),
)
@settings(max_examples=100, deadline=None)
def test_an_after_end_rule_never_has_two_moments_at_once(
    catch_up: str, grace: int | None, seed: int, max_fires: int | None, jitter: str | None
) -> None:
    chance = random.Random(seed)
    end = DAY_START + chance.randrange(HOUR, LIFE)
    options = {} if jitter is None else {"jitter": "3m", "jitter_mode": jitter}
    rule = bound(Every("10m", after="end", max_fires=max_fires, end=from_us(end), **options))  # type: ignore[arg-type]
    policy = {"catch_up": catch_up, "grace": grace}
    now, fires, last = DAY_START, 0, 0
    fire_at, at = cursor_after(rule, "job", now, chance.random)
    for _ in range(1_000):
        if at is None:
            break
        now = max(now + 1, at) + int(chance.random() * (2 * HOUR if chance.random() < 0.2 else SECOND))
        made = plan(known_facts(rule, fire_at, at, policy, fires=fires), now, chance.random)
        rows = [fire.fire_at for fire in made.fires] + [gap.first_at for gap in made.gaps]
        assert len(rows) <= 1
        assert all(gap.count == 1 for gap in made.gaps)
        for moment in rows:
            assert last < moment <= end
            last = moment
        fires += len(made.fires)
        if made.after_end is None:
            fire_at, at = made.next_fire_at, made.next_at
            continue
        assert rows, "only a moment that was dealt with restarts the count"
        # The run takes some time; then the store counts from its end.
        now += int(chance.random() * HOUR) if made.fires else 0
        fire_at = at = now + made.after_end
    else:
        raise AssertionError("it goes on for ever")
    assert max_fires is None or fires <= max_fires


@given(
    rules(),
    policies,
    st.integers(0, LIFE),
    st.one_of(st.integers(0, 50_000), st.integers(0, 2 * FRESH), st.integers(0, LIFE)),
    st.integers(0, 7),
    st.booleans(),
)
@settings(max_examples=300, deadline=None)
def test_the_fast_path_plans_a_fire_like_the_full_plan(
    rule: When, policy: dict[str, object], since: int, late: int, live: int, is_promised_otherwise: bool
) -> None:
    fire_at, at = cursor_after(rule, "job", DAY_START + since, lambda: 0.5)
    if fire_at is None or at is None:
        return
    if is_promised_otherwise:
        # The zone rules have changed since, so it is no moment of the rule any more.
        fire_at, at = fire_at - 1, at - 1
    known = known_facts(rule, fire_at, at, policy, live=live)
    assert plan(known, at + late, lambda: 0.5) == plan_closely(known, at + late, lambda: 0.5)


def test_an_ordinary_fire_takes_the_fast_path(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planning, "plan_closely", None)
    for rule in (Every("1h"), Cron("0 * * * *", tz="Europe/Berlin"), Once(from_us(DAY_START + HOUR))):
        made = plan(inputs(rule, DAY_START + HOUR), DAY_START + HOUR + 7, random.random)
        assert [fire.fire_at for fire in made.fires] == [DAY_START + HOUR]
        assert made.next_fire_at == (None if isinstance(rule, Once) else DAY_START + 2 * HOUR)
