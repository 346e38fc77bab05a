"""A waiter is woken by work that other stores have made due; not by its own."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from types import SimpleNamespace
from typing import Any

import pytest
from postgres_stores import PostgresStores

from evertick.errors import InvalidSetting
from evertick.model import State
from evertick.store.base import Change, News, Store
from evertick.store.postgres import session, wakeup
from evertick.store.postgres.connection import connect
from evertick.store.postgres.location import Location
from evertick.testing.conformance import Bench, a_definition, a_run, an_advance, an_outcome
from evertick.testing.conformance.bench import APP, HOUR

# Longer than any wake-up takes, and than a test would like to wait for nothing.
PATIENCE = 20.0
LONG_ENOUGH = 0.3


@pytest.fixture
async def pair(postgres_stores: PostgresStores) -> tuple[Bench, Store]:
    """A writer and a listener; wake-ups of the start have been received."""
    bench, listener = Bench(postgres_stores, await postgres_stores.open()), await postgres_stores.open()
    # A line that was just opened is news by itself.
    assert await listener.changed(APP, PATIENCE)
    return bench, listener


async def quiet(*listeners: Store) -> None:
    """Until no more wake-ups of the preparation come."""
    for listener in listeners:
        while await listener.changed(APP, LONG_ENOUGH):
            pass


async def heard(listener: Store, act: Callable[[], Awaitable[object]]) -> News | None:
    waiting = asyncio.create_task(listener.changed(APP, PATIENCE))
    await act()
    return await waiting


async def test_an_enqueue_wakes_the_others(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    assert await heard(listener, bench.enqueue) == "runs"


async def test_a_changed_schedule_wakes_the_others(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    add = Change(key="k", kind="add", definition=a_definition(), fire_at=1, at=1)
    assert await heard(listener, lambda: bench.store.change_schedules(APP, [add])) == "anything"


async def test_what_is_more_than_runs_is_not_forgotten_among_them(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    add = Change(key="k", kind="add", definition=a_definition(), fire_at=1, at=1)

    async def burst() -> None:
        await bench.enqueue()
        await bench.store.change_schedules(APP, [add])
        await bench.enqueue()

    news = [await heard(listener, burst)]
    while news[-1] == "runs":
        news.append(await listener.changed(APP, PATIENCE))
    assert news[-1] == "anything"


@pytest.mark.parametrize("kind", ["retry", "release"])
async def test_a_run_that_goes_back_wakes_the_others(pair: tuple[Bench, Store], kind: str) -> None:
    bench, listener = pair
    node = await bench.node()
    held = await bench.hold(node)
    await quiet(listener)
    assert await heard(listener, lambda: bench.finish(node, an_outcome(held, kind)))


async def test_an_end_that_frees_a_run_wakes_the_others(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    node = await bench.node()
    held = await bench.hold(node, await bench.fire(await bench.add()))
    await bench.fire(await bench.stored(), state=State.BLOCKED)
    await quiet(listener)
    assert await heard(listener, lambda: bench.finish(node, an_outcome(held)))


async def test_a_cancel_of_a_running_run_wakes_its_owner(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    held = await bench.hold(await bench.node())
    await quiet(listener)
    assert await heard(listener, lambda: bench.cancel(held.id))


async def test_an_enqueue_in_a_transaction_of_the_user_wakes_with_its_commit(
    pair: tuple[Bench, Store], postgres_stores: PostgresStores
) -> None:
    bench, listener = pair
    connection = await postgres_stores.connect()
    transaction = connection.transaction()
    await transaction.start()
    await bench.store.within(connection).enqueue(APP, [a_run()])
    assert not await listener.changed(APP, LONG_ENOUGH)
    assert await heard(listener, transaction.commit)
    await connection.close()


async def test_an_enqueue_in_a_transaction_of_the_user_wakes_the_node_of_the_very_store(
    pair: tuple[Bench, Store], postgres_stores: PostgresStores
) -> None:
    bench, _ = pair
    assert await bench.store.changed(APP, PATIENCE)
    connection = await postgres_stores.connect()
    transaction = connection.transaction()
    await transaction.start()
    await bench.store.within(connection).enqueue(APP, [a_run()])
    assert not await bench.store.changed(APP, LONG_ENOUGH)
    assert await heard(bench.store, transaction.commit)
    await connection.close()


@pytest.mark.parametrize("is_plain", [True, False])
async def test_the_commit_of_a_jobs_transaction_wakes_waiters_for_its_run(
    pair: tuple[Bench, Store], is_plain: bool
) -> None:
    bench, listener = pair
    node = await bench.node()
    held = await bench.hold(node, await bench.fire(await bench.add()))
    await bench.fire(await bench.stored(), state=State.BLOCKED)
    job = bench.store.transaction(seconds=60, is_plain=is_plain)
    await job.begin(APP, node, held.id, held.fence)
    assert await bench.store.changed(APP, PATIENCE)
    await quiet(listener)
    waiting = [asyncio.create_task(store.changed(APP, PATIENCE)) for store in (listener, bench.store)]
    assert await job.commit(APP, node, an_outcome(held))
    # The node of the job as well: that it freed something is known to its transaction alone.
    assert await asyncio.gather(*waiting) == ["anything", "anything"]


async def test_an_end_that_unblocks_no_run_wakes_no_waiter(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    node = await bench.node()
    held = await bench.hold(node)
    await quiet(listener)
    await bench.finish(node, an_outcome(held))
    assert not await listener.changed(APP, LONG_ENOUGH)


async def test_a_rollback_wakes_no_waiter(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    schedule = await bench.add()
    await quiet(listener)
    refused = [
        Change(key="new", kind="add", definition=a_definition(), fire_at=1, at=1),
        Change(key="nightly", kind="remove", settle=an_advance(schedule, version=99)),
    ]
    assert await bench.store.change_schedules(APP, refused, all_or_none=True) == [True, False]
    assert not await listener.changed(APP, LONG_ENOUGH)


async def test_a_store_does_not_wake_itself(pair: tuple[Bench, Store]) -> None:
    bench, _ = pair
    assert await bench.store.changed(APP, PATIENCE)
    await bench.enqueue()
    assert not await bench.store.changed(APP, LONG_ENOUGH)


async def test_of_a_burst_few_wake_ups_are_sent_and_the_last_is_not_lost(
    pair: tuple[Bench, Store], postgres_stores: PostgresStores
) -> None:
    bench, _ = pair
    connection = await postgres_stores.connect()
    said: asyncio.Queue[str] = asyncio.Queue()
    await connection.add_listener(f"evertick:{postgres_stores.schema}", lambda *about: said.put_nowait(about[3]))
    began = asyncio.get_running_loop().time()
    for _ in range(50):
        await asyncio.gather(*(bench.enqueue(delay=HOUR) for _ in range(10)))
    took = asyncio.get_running_loop().time() - began
    await asyncio.wait_for(said.get(), PATIENCE)
    await asyncio.sleep(LONG_ENOUGH)
    # Of five hundred; a hundred a second, and those that were on their way.
    assert said.qsize() <= min(200 * took + 20, 400)
    while not said.empty():
        said.get_nowait()
    # The last of the burst was too soon after one that was sent; it comes alone, a little later.
    await bench.enqueue()
    await bench.enqueue()
    for _ in range(2):
        await asyncio.wait_for(said.get(), PATIENCE)
    await connection.close()


@pytest.fixture
def rung_after(pair: tuple[Bench, Store], monkeypatch: pytest.MonkeyPatch) -> list[News]:
    """The wake-ups that the writer sends in a statement of its own. It may send them at any time."""
    after: list[News] = []
    notifier: Any = pair[0].store.session().notifier  # type: ignore[attr-defined]
    notify = notifier.notify

    async def notify_seen(connection: Any, news: dict[str, News]) -> None:
        after.extend(news.values())
        await notify(connection, news)

    monkeypatch.setattr(notifier, "notify", notify_seen)
    monkeypatch.setattr(wakeup, "_INTERVAL_SECONDS", 0.0)
    return after


async def test_a_single_run_wakes_the_others_with_its_own_commit(
    pair: tuple[Bench, Store], rung_after: list[News]
) -> None:
    bench, listener = pair
    assert await heard(listener, bench.enqueue) == "runs"
    assert rung_after == []
    # Its key takes more than one statement.
    assert await heard(listener, lambda: bench.enqueue(unique_key="key")) == "runs"
    assert rung_after == ["runs"]


async def test_where_commits_that_wake_others_are_slow_they_are_woken_after_them(
    pair: tuple[Bench, Store], rung_after: list[News], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, listener = pair
    monkeypatch.setattr(wakeup, "_SLOW_SECONDS", 0.0)
    for _ in range(wakeup._SLOW_MOST):
        assert await heard(listener, bench.enqueue) == "runs"
    assert rung_after == []
    assert await heard(listener, bench.enqueue) == "runs"
    assert rung_after == ["runs"]
    # After a while it is tried again.
    monkeypatch.setattr(bench.store.session().notifier, "_apart_until", 0.0)  # type: ignore[attr-defined]
    assert await heard(listener, bench.enqueue) == "runs"
    assert rung_after == ["runs"]


async def test_a_slow_commit_is_known_by_its_own_beginning(
    pair: tuple[Bench, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    notifier: Any = pair[0].store.session().notifier  # type: ignore[attr-defined]
    clock = SimpleNamespace(elapsed=lambda: clock.now, now=0.0)
    monkeypatch.setattr(notifier, "_clock", clock)

    def said_at(now: float) -> Any:
        clock.now = now
        return notifier.with_commit(APP, "runs")

    # Each is sent before the one before it is answered, and takes long.
    said = [said_at(now) for now in (100.0, 100.02, 100.04)]
    for clock.now, each in zip((100.05, 100.07, 100.09), said, strict=True):
        notifier.note_commit(each)

    assert None not in said
    assert said_at(100.2) is None
    assert said_at(100.09 + wakeup._APART_SECONDS) is not None


async def test_a_wake_up_that_was_to_come_a_little_later_comes_when_its_store_closes(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    assert await heard(listener, bench.enqueue)
    # So soon after the first this one is held back.
    await bench.enqueue()
    assert await heard(listener, bench.store.close)


async def test_a_wake_up_waits_for_its_commit(pair: tuple[Bench, Store], monkeypatch: pytest.MonkeyPatch) -> None:
    bench, listener = pair
    may_commit, commit = asyncio.Event(), session._commit

    async def commit_late(connection: Any) -> None:
        await may_commit.wait()
        await commit(connection)

    assert await heard(listener, bench.enqueue)
    monkeypatch.setattr(session, "_commit", commit_late)
    # With a unique key it takes several statements, and so a transaction.
    enqueueing = asyncio.create_task(bench.enqueue(unique_key="key"))
    # A search now would find nothing, and would not be repeated.
    assert not await listener.changed(APP, LONG_ENOUGH)
    may_commit.set()
    assert await listener.changed(APP, PATIENCE)
    await enqueueing


async def test_what_becomes_due_while_a_late_wake_up_is_sent_gets_one_of_its_own(
    pair: tuple[Bench, Store], monkeypatch: pytest.MonkeyPatch
) -> None:
    bench, listener = pair
    notifier: Any = bench.store.session().notifier  # type: ignore[attr-defined]
    send, is_sending, may_end = notifier._send, asyncio.Event(), asyncio.Event()

    async def send_slowly(*said: str) -> None:
        await send(*said)
        is_sending.set()
        await may_end.wait()

    monkeypatch.setattr(notifier, "_send", send_slowly)
    # It is always too soon to notify at once.
    monkeypatch.setattr(notifier, "_wait", lambda: 0.01)
    await bench.enqueue()
    await is_sending.wait()
    await quiet(listener)
    await bench.enqueue()
    assert not await listener.changed(APP, LONG_ENOUGH)
    may_end.set()
    assert await listener.changed(APP, PATIENCE)


async def test_the_apps_of_a_schema_do_not_wake_each_other(pair: tuple[Bench, Store]) -> None:
    bench, listener = pair
    # An open connection has ignored wake-ups of an app without a waiter.
    assert await listener.changed("other", PATIENCE)
    waiting = asyncio.create_task(listener.changed("other", PATIENCE))
    await bench.enqueue()
    # The second is held back, and comes later, beside that of the other app.
    await bench.enqueue()
    await quiet(listener)
    assert not waiting.done()
    await bench.enqueue()
    await bench.store.enqueue("other", [a_run()])
    assert await waiting
    assert await listener.changed(APP, PATIENCE)


async def test_an_enqueue_in_a_transaction_of_the_user_wakes_its_own_app_alone(
    pair: tuple[Bench, Store], postgres_stores: PostgresStores
) -> None:
    bench, listener = pair
    assert await listener.changed("other", PATIENCE)
    connection = await postgres_stores.connect()
    async with connection.transaction():
        await bench.store.within(connection).enqueue("other", [a_run()])
    assert await listener.changed("other", PATIENCE)
    assert not await listener.changed(APP, LONG_ENOUGH)
    await connection.close()


async def test_no_error_ends_the_listening(
    postgres_stores: PostgresStores, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(wakeup, "_AGAIN_SECONDS", 0.01)
    tries = 0

    async def connect_at_last(where: Location) -> Any:
        nonlocal tries
        tries += 1
        if tries < 3:
            # As while a certificate is being replaced.
            raise InvalidSetting("ca=/etc/ca.pem cannot be read")
        return await connect(where)

    monkeypatch.setattr(wakeup, "connect", connect_at_last)
    bench, listener = Bench(postgres_stores, await postgres_stores.open()), await postgres_stores.open()
    # Where nothing can be heard there may be news, again and again.
    async with asyncio.timeout(PATIENCE):
        await quiet(listener)
    assert await heard(listener, bench.enqueue)
    assert tries == 3
    said = [(record.levelname, record.getMessage()) for record in caplog.records if "wake-ups" in record.getMessage()]
    assert said[0] == ("WARNING", "wake-ups are not received: ca=/etc/ca.pem cannot be read")
