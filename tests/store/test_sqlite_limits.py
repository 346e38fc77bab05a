"""Limits when the clock or older code has left them in a state that the rules alone do not bring about."""

from __future__ import annotations

from conftest import InlineStores
from evertick.model import State
from evertick.model.limits import Concurrency, Rate, Subject
from evertick.store.base import TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.store.sqlite.session import InlineSession
from evertick.testing.conformance import Bench, a_run, an_outcome
from evertick.testing.conformance.bench import APP, HOUR, MINUTE, TASK

RATE = {TASK: TaskTerms(rate=Rate(most=2, period=MINUTE, of=Subject(task=TASK)))}
ALONE = {TASK: TaskTerms(concurrency=Concurrency(most=1, of=Subject(task=TASK)))}


async def a_bench(stores: InlineStores) -> Bench:
    return Bench(stores, await stores.open())


def execute(bench: Bench, statement: str) -> None:
    assert isinstance(bench.store, SqliteStore)
    assert isinstance(bench.store.session(), InlineSession)
    bench.store.session().shared.db.execute(statement)


async def test_starts_of_a_time_that_has_not_come_count_for_one_period_and_no_longer(
    inline_stores: InlineStores,
) -> None:
    bench = await a_bench(inline_stores)
    node = await bench.node(lease=10**15)
    runs = [await bench.enqueue() for _ in range(3)]
    assert len((await bench.claim(node, tasks=RATE)).runs) == 2
    # It was an hour ahead, and is corrected.
    inline_stores.clock.jump_to(await bench.now() - HOUR)
    last = await bench.enqueue(priority=9)
    answer = await bench.claim(node, tasks=RATE)
    assert (answer.runs, await bench.state(last.id)) == ([], State.BLOCKED)
    assert answer.next_due_at == answer.now + MINUTE
    await bench.pass_time(MINUTE)
    await bench.store.park_unknown(APP, 100)
    assert [run.id for run in (await bench.claim(node, tasks=RATE)).runs] == [last.id]
    # Those that were enqueued in the future are due when it comes.
    await bench.pass_time(HOUR)
    assert [run.id for run in (await bench.claim(node, tasks=RATE)).runs] == [runs[2].id]


async def test_a_time_that_was_set_before_the_clock_was_put_back_delays_no_run(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    node = await bench.node(lease=10**15)
    ago = await bench.now() - 2 * HOUR
    runs = [await bench.enqueue(fire_at=ago + n, due_at=ago + n) for n in range(3)]
    assert len((await bench.claim(node, tasks=RATE)).runs) == 2
    inline_stores.clock.jump_to(await bench.now() - HOUR)
    await bench.pass_time(2 * MINUTE)
    assert (await bench.claim(node, tasks=RATE)).runs == []
    await bench.store.park_unknown(APP, 100)
    await bench.claim(node, tasks=RATE)
    await bench.pass_time(MINUTE)
    assert [run.id for run in (await bench.claim(node, tasks=RATE)).runs] == [runs[2].id]


async def test_upkeep_releases_runs_that_were_forgotten_behind_a_limit(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    node = await bench.node()
    first, second, third = [await bench.enqueue(priority=-n) for n in range(3)]
    [held] = (await bench.claim(node, tasks=ALONE)).runs
    execute(bench, "UPDATE evertick_runs SET limit_key = NULL WHERE state = 'running'")
    await bench.finish(node, an_outcome(held))
    assert (await bench.claim(node, tasks=ALONE)).runs == []
    await bench.store.park_unknown(APP, 100)
    assert [run.id for run in (await bench.claim(node, tasks=ALONE)).runs] == [second.id]
    assert (held.id, await bench.state(third.id)) == (first.id, State.BLOCKED)


async def test_upkeep_checks_all_keys_a_few_at_a_time(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    by_key = Concurrency(most=1, of=Subject(task=TASK, text="{n}"))
    for number in range(5):
        for _ in range(2):
            await bench.enqueue(args=b'{"n":%d}' % number)
    node = await bench.node()
    await bench.claim(node, tasks={TASK: TaskTerms(concurrency=by_key)})
    execute(bench, "UPDATE evertick_runs SET state = 'parked', parked_for = 'x' WHERE state = 'running'")
    for waiting in (2, 4, 5):
        await bench.store.park_unknown(APP, 2)
        assert (await bench.store.pulse(APP)).waiting == waiting


async def test_large_rates_are_kept_in_few_rows_and_give_all_but_a_thousandth(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    node = await bench.node()
    most, claims = 2_000, []
    tasks = {TASK: TaskTerms(rate=Rate(most=most, period=MINUTE, of=Subject(task=TASK)))}
    for _ in range(150):
        await bench.store.enqueue(APP, [a_run() for _ in range(32)])
        answer = await bench.claim(node, tasks=tasks, limit=32)
        claims += [answer.now] * len(answer.runs)
        await bench.finish(node, *(an_outcome(run) for run in answer.runs))
        await bench.pass_time(MINUTE * 14 // 1_000)
    windows = [sum(since < at <= since + MINUTE for at in claims) for since in claims]
    assert max(windows) <= most
    # Two minutes and a bit: used up twice, but for what gathering costs.
    assert len(claims) >= 2 * most * 0.998
    assert isinstance(bench.store, SqliteStore)
    assert isinstance(bench.store.session(), InlineSession)
    rows = bench.store.session().shared.db.execute("SELECT count(*) FROM evertick_grants WHERE until > ?", [answer.now])
    assert rows.fetchone()[0] <= 1_001


def by_key(most: int, period: int) -> dict[str, TaskTerms]:
    return {TASK: TaskTerms(rate=Rate(most=most, period=period, of=Subject(task=TASK, text="{n}")))}


async def hold_back_by_key(bench: Bench, keys: int) -> None:
    """A node that had a tight limit has come and gone."""
    node = await bench.node(tasks=by_key(1, HOUR))
    await bench.store.enqueue(APP, [a_run(args=b'{"n":%d}' % (number % keys)) for number in range(2 * keys)])
    while (await bench.claim(node, tasks=by_key(1, HOUR), limit=1_000)).runs:
        pass
    assert (await bench.store.pulse(APP)).blocked == keys
    await bench.store.leave(node)


async def test_a_node_with_other_limits_looks_at_a_bounded_number_of_keys_per_claim(
    inline_stores: InlineStores,
) -> None:
    bench = await a_bench(inline_stores)
    await hold_back_by_key(bench, 250)
    tasks = by_key(2, HOUR)
    node = await bench.node(tasks=tasks)
    # Joining has touched none of them.
    assert (await bench.store.pulse(APP)).blocked == 250
    taken = []
    for _ in range(4):
        answer = await bench.claim(node, tasks=tasks, limit=1_000)
        taken.append((len(answer.runs), answer.next_due_at is not None and answer.next_due_at <= answer.now))
    assert taken == [(100, True), (100, True), (50, False), (0, False)]


async def test_a_node_without_a_free_slot_does_not_release_blocked_runs(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    await hold_back_by_key(bench, 2)
    node = await bench.node(tasks=by_key(2, HOUR))
    assert (await bench.claim(node, tasks=by_key(2, HOUR), limit=0)).runs == []
    assert (await bench.store.pulse(APP)).blocked == 2
    assert len((await bench.claim(node, tasks=by_key(2, HOUR))).runs) == 2


async def test_keys_that_a_node_had_no_time_to_check_are_checked_by_the_next_one(inline_stores: InlineStores) -> None:
    bench = await a_bench(inline_stores)
    await hold_back_by_key(bench, 150)
    tasks, taken = by_key(2, HOUR), 0
    for _ in range(2):
        node = await bench.node(tasks=tasks)
        taken += len((await bench.claim(node, tasks=tasks, limit=1_000)).runs)
        await bench.store.leave(node)
    assert taken == 150


async def test_limits_that_no_node_has_are_forgotten_after_all_keys_were_checked(
    inline_stores: InlineStores,
) -> None:
    bench = await a_bench(inline_stores)
    await hold_back_by_key(bench, 2)
    tasks = by_key(2, HOUR)
    assert isinstance(bench.store, SqliteStore)
    assert isinstance(bench.store.session(), InlineSession)
    db = bench.store.session().shared.db
    remembered = []
    for _ in range(2):
        node = await bench.node(tasks=tasks)
        [looked_at] = db.execute("SELECT looked_at FROM evertick_nodes WHERE id = ?", [node]).fetchone()
        limits = {row["limits"] for row in db.execute("SELECT limits FROM evertick_held_under")}
        remembered.append((looked_at, len(limits)))
        await bench.claim(node, tasks=tasks)
        await bench.store.leave(node)
    assert remembered == [("", 2), (None, 1)]
