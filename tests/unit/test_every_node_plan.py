"""Every-node schedules: allowed options, refusals, and the runs of a plan."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from evertick import Every, InvalidKey, InvalidSetting, Refused, Scheduler
from evertick.clock import derived_id
from evertick.ledger.planning import fan_out
from evertick.model import Cause, Definition, NewGap, NewRun, Node, Reason, Verdict
from evertick.model.every_node import is_own_queue, node_of_queue, own_queue
from evertick.store.base import Advance, NodeJoin, TaskTerms, count_fires
from evertick.store.verdicts import gaps_with_duplicates
from evertick.when.moment import HOUR, to_us

AT = 1_800_000_000_000_000
NOW = datetime(2026, 1, 1, tzinfo=UTC)
ON_ALL = Definition(task="tidy", when="every 1m", mode="every-node")


def a_node(id_: str, *, tasks: tuple[str, ...] = ("tidy",), is_dead: bool = False) -> Node:
    return Node(
        id=id_,
        name=f"name of {id_}",
        app="default",
        version="1",
        started_at=NOW,
        beat_at=NOW,
        lease_until=NOW,
        died_at=NOW if is_dead else None,
        queues=("default",),
        tasks=tasks,
        declares={},
        running=0,
    )


def a_fire(fire_at: int = AT, **fields: Any) -> NewRun:
    own: dict[str, Any] = {"id": "x", "task": "tidy", "cause": Cause.FIRE, "fire_at": fire_at, "schedule_id": 7}
    return NewRun(**{**own, **fields})


def an_advance(*runs: NewRun) -> Advance:
    return Advance(schedule_id=7, version=1, fire_at=AT, at=AT, runs=runs)


# --- runs of a plan


def test_a_fire_becomes_a_run_in_the_own_queue_of_each_live_node_that_knows_the_task() -> None:
    nodes = [a_node("a"), a_node("b"), a_node("c", tasks=("mail",)), a_node("d", is_dead=True)]
    made = fan_out(an_advance(a_fire()), ON_ALL, nodes)
    assert [run.queue for run in made.runs] == ["@a", "@b"]
    assert {(run.cause, run.fire_at, run.task) for run in made.runs} == {(Cause.EVERY_NODE, AT, "tidy")}


def test_every_planner_gives_a_moment_on_a_node_the_same_run_id() -> None:
    once = fan_out(an_advance(a_fire(id="1")), ON_ALL, [a_node("a"), a_node("b")])
    again = fan_out(an_advance(a_fire(id="2")), ON_ALL, [a_node("b"), a_node("a")])
    assert {run.id for run in once.runs} == {run.id for run in again.runs}
    other = fan_out(an_advance(a_fire(AT + 1)), ON_ALL, [a_node("a"), a_node("b")])
    assert not {run.id for run in once.runs} & {run.id for run in other.runs}


def test_derived_ids_sort_by_their_moment() -> None:
    assert derived_id(AT, "z") < derived_id(AT + 1_000_000, "a")
    assert derived_id(AT, 1, "a")[14] == "7"


def test_with_overlap_skip_a_node_has_one_key_per_schedule_and_with_allow_none() -> None:
    [skip] = fan_out(an_advance(a_fire()), ON_ALL, [a_node("a")]).runs
    assert skip.unique_key == ";7;a"
    assert skip.if_taken == "overlap on name of a"
    allowing = Definition(task="tidy", when="every 1m", mode="every-node", overlap="allow")
    [allow] = fan_out(an_advance(a_fire()), allowing, [a_node("a")]).runs
    assert allow.unique_key is None


def test_without_a_node_that_knows_the_task_each_moment_is_missed() -> None:
    made = fan_out(an_advance(a_fire()), ON_ALL, [a_node("a", tasks=())])
    assert made.runs == ()
    [gap] = made.gaps
    assert (gap.first_at, gap.verdict, gap.reason) == (AT, Verdict.MISSED, Reason.NO_NODE)


def test_without_a_node_no_moment_is_coalesced_into_the_newest() -> None:
    earlier = NewGap(first_at=AT - 9, last_at=AT - 3, count=3, verdict=Verdict.SKIPPED, reason=Reason.COALESCED)
    late = NewGap(first_at=AT - 99, last_at=AT - 90, count=3, verdict=Verdict.MISSED, reason=Reason.DOWNTIME)
    planned = msgspec.structs.replace(an_advance(a_fire()), gaps=(late, earlier))
    made = fan_out(planned, ON_ALL, [a_node("a", tasks=())])
    assert [(gap.first_at, gap.count, gap.verdict, gap.reason) for gap in made.gaps] == [
        (AT - 99, 3, Verdict.MISSED, Reason.DOWNTIME),
        (AT - 9, 3, Verdict.MISSED, Reason.NO_NODE),
        (AT, 1, Verdict.MISSED, Reason.NO_NODE),
    ]


def test_of_several_due_moments_a_node_runs_the_newest() -> None:
    made = fan_out(an_advance(a_fire(AT - 60), a_fire(AT)), ON_ALL, [a_node("a")])
    assert [run.fire_at for run in made.runs] == [AT]
    assert [(gap.first_at, gap.reason) for gap in made.gaps] == [(AT - 60, Reason.COALESCED)]


def test_a_plan_of_another_mode_is_not_changed() -> None:
    planned = an_advance(a_fire())
    assert fan_out(planned, Definition(task="tidy", when="every 1m"), [a_node("a")]) is planned


def test_a_moment_on_many_nodes_is_one_fire() -> None:
    made = fan_out(an_advance(a_fire()), ON_ALL, [a_node("a"), a_node("b")])
    assert count_fires(made.runs) == 1
    assert count_fires(made.runs, {made.runs[0].id}) == 1
    assert count_fires(made.runs, {run.id for run in made.runs}) == 0
    assert count_fires([a_fire(), a_fire(AT + 1)]) == 2


def test_the_own_queue_of_a_node_contains_its_id() -> None:
    assert is_own_queue(own_queue("n1"))
    assert node_of_queue(own_queue("n1")) == "n1"
    assert not is_own_queue("default")


# --- what is refused


@pytest.mark.parametrize(
    ("options", "expected"),
    [
        ({"overlap": "queue"}, "overlap: 'queue' is not possible with mode='every-node'"),
        ({"overlap": "replace"}, "overlap: 'replace' is not possible with mode='every-node'"),
        ({"catch_up": "all"}, "catch_up: 'all' is not possible with mode='every-node'"),
        ({"unique": "one"}, "unique: 'one' is not possible with mode='every-node'"),
        ({"pause_after": 3}, "pause_after: 3 is not possible with mode='every-node'"),
        ({"queue": "slow"}, "queue: 'slow' is not possible with mode='every-node'"),
        ({"blackout": "nights", "blackout_fate": "all"}, "blackout_fate: 'all' is not possible with mode='every-node'"),
        ({"after": "end"}, "after: 'end' is not possible with mode='every-node'"),
    ],
)
def test_options_that_conflict_with_every_node_mode_are_refused_at_the_declaration(
    options: dict[str, Any], expected: str
) -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidSetting, match=expected):
        scheduler.every("1m", mode="every-node", name="tidy", **options)(lambda: None)


async def test_an_update_to_every_node_is_refused_if_another_policy_forbids_it() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="tidy", when=Every("1m", after="end"), task="tidy")
    with pytest.raises(InvalidSetting, match="after: 'end'"):
        await scheduler.update("tidy", mode="every-node")
    await scheduler.update("tidy", when=Every("1m"), overlap="queue")
    with pytest.raises(InvalidSetting, match="overlap: 'queue'"):
        await scheduler.update("tidy", mode="every-node")
    assert (await scheduler.update("tidy", mode="every-node", overlap="skip")).mode == "every-node"
    await scheduler.close()


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(InvalidSetting, match="mode: 'all' must be one of 'claimed', 'every-node'"):
        Scheduler("sqlite://").every("1m", mode="all", name="tidy")(lambda: None)  # type: ignore[arg-type]


def test_a_queue_name_of_a_user_cannot_look_like_the_own_queue_of_a_node() -> None:
    scheduler = Scheduler("sqlite://")
    with pytest.raises(InvalidKey, match="queue: '@n1' must not begin with '@'"):
        Scheduler("sqlite://", queues=["@n1"])
    with pytest.raises(InvalidKey, match="must not begin with '@'"):
        scheduler.every("1m", queue="@n1", name="tidy")(lambda: None)
    task = scheduler.task(lambda: None, name="tidy")
    with pytest.raises(InvalidKey, match="must not begin with '@'"):
        task.options(queue="@n1")


async def test_backfill_and_run_early_are_refused() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="tidy", when="every 1m", task="tidy", mode="every-node")
    now = datetime.now(UTC)
    with pytest.raises(Refused, match="runs on every node, and the nodes of the past are gone"):
        await scheduler.backfill("tidy", now - timedelta(minutes=5), now)
    with pytest.raises(Refused, match="runs on every node, so its next moment cannot be taken out"):
        await scheduler.run_early("tidy")
    await scheduler.close()


async def test_a_trigger_with_no_node_to_run_it_is_refused() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="tidy", when="every 1m", task="tidy", mode="every-node")
    with pytest.raises(Refused, match="no live node knows task 'tidy'; start a node"):
        await scheduler.trigger("tidy")
    await scheduler.close()


async def test_the_preview_of_a_mode_change_explains_its_effect() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    await scheduler.add(key="tidy", when="every 1m", task="tidy")
    plan = await scheduler.preview_change("tidy", mode="every-node")
    assert [(each.name, each.old, each.new) for each in plan.options] == [("mode", '"claimed"', '"every-node"')]
    assert any("runs on every live node" in note for note in plan.notes)
    await scheduler.update("tidy", when=Every("1m", after="end"))
    with pytest.raises(InvalidSetting, match="after: 'end'"):
        await scheduler.preview_change("tidy", mode="every-node")
    await scheduler.close()


async def test_a_declared_mode_can_be_overridden_and_the_override_is_shown() -> None:
    scheduler = Scheduler("sqlite://", node_name="web-1")

    @scheduler.every("1h", mode="every-node", key="tidy")
    async def tidy() -> None: ...

    async with scheduler:
        assert (await scheduler.schedule("tidy")).mode == "every-node"
        changed = await scheduler.update("tidy", mode="claimed")
        assert (changed.mode, changed.overrides) == ("claimed", ("mode",))


async def test_an_edit_right_after_a_moment_still_runs_it_on_every_node() -> None:
    scheduler = Scheduler("sqlite://", concurrency=0)
    store, terms = await scheduler.runtime.store(), {"tidy": TaskTerms()}
    for node in ("n1", "n2"):
        join = NodeJoin(id=node, name=node, app="default", version="1", lease=HOUR, queues=(), tasks=terms, declares={})
        await store.join(join)
    moment = (await scheduler.add(key="tidy", when="once +50ms", task="tidy", mode="every-node")).next_fire_at
    async with asyncio.timeout(10):
        # No node records it here.
        while moment is None or await store.now() < to_us(moment):
            await asyncio.sleep(0.01)
    await scheduler.update("tidy", priority=5)
    runs = await scheduler.runs("tidy")
    assert {(run.queue, run.cause, run.fire_at) for run in runs} == {
        ("@n1", Cause.EVERY_NODE, moment),
        ("@n2", Cause.EVERY_NODE, moment),
    }
    assert (await scheduler.schedule("tidy")).fires == 1
    await scheduler.close()


def test_gaps_before_a_moment_that_all_nodes_skip_have_the_overlap_reason() -> None:
    runs = fan_out(an_advance(a_fire()), ON_ALL, [a_node("a"), a_node("b")]).runs
    before = NewGap(first_at=1, last_at=2, count=2, verdict=Verdict.SKIPPED, reason=Reason.COALESCED)
    some = gaps_with_duplicates([before], runs, {runs[0].id})
    assert [gap.reason for gap in some] == [Reason.COALESCED, "overlap on name of a"]
    every = gaps_with_duplicates([before], runs, {run.id for run in runs})
    assert [gap.reason for gap in every] == [Reason.OVERLAP, "overlap on name of a", "overlap on name of b"]
