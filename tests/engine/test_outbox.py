"""The outbox as a user meets it: senders, tries, keys, and messages that go with the end of a run."""

from __future__ import annotations

import asyncio
import sqlite3
import threading
from collections import Counter
from collections.abc import Awaitable, Callable
from contextlib import closing
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import process_jobs
import pytest

from evertick import (
    AlreadyDeclared,
    Constant,
    Context,
    InvalidSetting,
    Message,
    MessageState,
    NotFound,
    Refused,
    Retry,
    Scheduler,
)
from evertick.store.base import MessageFilter
from evertick.testing import virtual_time

START = "2026-03-02T00:00:00+00:00"
BEGIN = datetime(2026, 3, 2, tzinfo=UTC)
PATIENCE = 30.0


def a_scheduler(url: str = "sqlite://", **settings: Any) -> Scheduler:
    return Scheduler(url, node_name="here", **settings)


class Receiver:
    """The outside: what has reached it, and when."""

    def __init__(self, scheduler: Scheduler, **options: Any) -> None:
        self.got: list[Message] = []
        self.at: list[float] = []
        self._scheduler = scheduler
        self._behave: Callable[[Message], Awaitable[None]] | None = None
        scheduler.sender("mail", **options)(self.deliver)

    async def deliver(self, message: Message) -> None:
        self.got.append(message)
        self.at.append((self._scheduler.runtime.clock.now_us() - BEGIN.timestamp() * 1e6) / 1e6)
        if self._behave is not None:
            await self._behave(message)

    def behave(self, how: Callable[[Message], Awaitable[None]]) -> None:
        self._behave = how


async def failing(message: Message) -> None:
    raise ConnectionError("no answer")


async def states(scheduler: Scheduler) -> Counter[str]:
    return Counter(message.state.value for message in await scheduler.messages(limit=1_000))


# --- delivering ----------------------------------------------------------------------------------------------------


async def test_a_message_reaches_its_sender_as_it_was_sent() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)
    async with virtual_time(scheduler, start=START) as kit:
        sent = await scheduler.send("mail", {"to": ["ann"], "n": 7}, key="order-7", headers={"trace": "x"})
        await kit.advance("1s")
        assert await states(scheduler) == {"sent": 1}
    [got] = receiver.got
    assert (got.id, got.key, got.channel, got.app) == (sent.id, "order-7", "mail", "default")
    assert (got.body, got.headers, got.attempts, got.state) == (
        {"to": ["ann"], "n": 7},
        {"trace": "x"},
        0,
        MessageState.SENDING,
    )
    assert receiver.at == [0]


async def test_without_a_key_the_id_is_the_key_and_a_key_is_sent_once() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)
    async with virtual_time(scheduler, start=START) as kit:
        own = await scheduler.send("mail", 1)
        first = await scheduler.send("mail", 2, key="k")
        again = await scheduler.send("mail", 3, key="k")
        await kit.advance("1s")
        late = await scheduler.send("mail", 4, key="k")
        await kit.advance("2d")  # remembered for a day
        new = await scheduler.send("mail", 5, key="k")
        await kit.advance("1s")
    assert own.key == own.id
    assert [(each.id, each.is_new) for each in (first, again, late)] == [
        (first.id, True),
        (first.id, False),
        (first.id, False),
    ]
    assert new.is_new
    assert [message.body for message in receiver.got] == [1, 2, 5]


async def test_a_delayed_message_waits_for_its_time() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.send("mail", 1, delay="90s")
        await kit.advance("5m")
    assert receiver.at == [90]


async def test_a_failed_delivery_is_tried_again_with_the_same_key_and_given_up_at_last() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler, retry=Constant("10s", attempts=3))
    receiver.behave(failing)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.send("mail", 1, key="k")
        await kit.advance("5m")
        [dead] = await scheduler.messages()
    assert receiver.at == [0, 10, 20]
    assert [(message.key, message.attempts) for message in receiver.got] == [("k", 0), ("k", 1), ("k", 2)]
    assert "no answer" in (receiver.got[1].error or "")
    assert (dead.state, dead.attempts, dead.body) == (MessageState.DEAD, 3, 1)
    assert "ConnectionError: no answer" in (dead.error or "")


async def test_a_sender_may_ask_for_its_own_delay_or_give_up_at_once() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler, retry=Constant("10s", attempts=5), give_up_on=ValueError)

    async def fussy(message: Message) -> None:
        raise Retry("busy", after="45s") if message.attempts == 0 else ValueError("no such address")

    receiver.behave(fussy)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.send("mail", 1)
        await kit.advance("5m")
        [dead] = await scheduler.messages()
    assert receiver.at == [0, 45]
    assert (dead.state, dead.attempts) == (MessageState.DEAD, 2)


async def test_a_delivery_that_hangs_is_cut_off_at_its_timeout() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler, timeout="5s", retry=Constant("10s", attempts=2))
    was_cancelled = []

    async def hang(message: Message) -> None:
        try:
            await asyncio.sleep(3600)
        except asyncio.CancelledError:
            was_cancelled.append(message.attempts)
            raise

    receiver.behave(hang)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.send("mail", 1)
        await kit.advance("1m")
        [dead] = await scheduler.messages()
    assert (receiver.at, was_cancelled) == ([0, 15], [0, 1])
    assert "timed out after 5 s" in (dead.error or "")


async def test_no_more_deliveries_are_under_way_than_the_concurrency_allows() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler, concurrency=3)
    other = []
    at_work, most = 0, 0

    async def slow(message: Message) -> None:
        nonlocal at_work, most
        at_work += 1
        most = max(most, at_work)
        await asyncio.sleep(10)
        at_work -= 1

    receiver.behave(slow)

    @scheduler.sender("chat")
    async def chat(message: Message) -> None:
        other.append(message)

    async with virtual_time(scheduler, start=START) as kit:
        for number in range(10):
            await scheduler.send("mail", number)
        await scheduler.send("chat", "not delayed by a busy channel")
        await kit.advance("1s")
        assert len(other) == 1
        await kit.advance("2m")
        assert await states(scheduler) == {"sent": 11}
    assert most == 3
    # The end of one delivery starts the next, without waiting for a poll.
    assert receiver.at == [0, 0, 0, 10, 10, 10, 20, 20, 20, 30]


async def test_a_plain_function_delivers_in_a_thread(tmp_path: Path) -> None:
    scheduler = a_scheduler(f"sqlite:///{tmp_path / 'ledger.db'}")
    loop, done = asyncio.get_running_loop(), asyncio.Event()
    seen: list[tuple[str, bool]] = []

    @scheduler.sender("mail")
    def deliver(message: Message) -> None:
        seen.append((message.body, threading.current_thread() is threading.main_thread()))
        loop.call_soon_threadsafe(done.set)

    async with scheduler, asyncio.timeout(PATIENCE):
        await scheduler.send("mail", "hello")
        await done.wait()
    assert seen == [("hello", False)]


async def test_a_thread_that_hangs_keeps_its_place_until_it_comes_back(tmp_path: Path) -> None:
    scheduler = a_scheduler(f"sqlite:///{tmp_path / 'ledger.db'}")
    loop, again, release = asyncio.get_running_loop(), asyncio.Event(), threading.Event()
    calls: list[int] = []

    @scheduler.sender("mail", timeout="50ms", concurrency=1, retry=Constant("1ms", attempts=5))
    def deliver(message: Message) -> None:
        calls.append(message.attempts)
        if len(calls) == 1:
            release.wait(PATIENCE)
        else:
            loop.call_soon_threadsafe(again.set)

    async with scheduler, asyncio.timeout(PATIENCE):
        sent = await scheduler.send("mail", 1)
        while (await scheduler.get_message(sent.id)).attempts == 0:
            await asyncio.sleep(0.01)
        assert (await scheduler.get_message(sent.id)).state is MessageState.WAITING
        assert calls == [0]
        release.set()
        await again.wait()
    assert calls == [0, 1]


async def test_a_node_claims_only_channels_that_it_has_a_sender_for() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)
    async with virtual_time(scheduler, start=START) as kit:
        await scheduler.send("fax", 1)
        await kit.advance("1h")
        [message] = await scheduler.messages()
        [node] = await scheduler.nodes()
    assert (message.state, receiver.got, node.channels) == (MessageState.WAITING, [], ("mail",))


async def test_a_stop_waits_for_deliveries_and_gives_the_rest_back_for_nothing() -> None:
    scheduler = a_scheduler(stop_timeout="10s")
    receiver = Receiver(scheduler)

    async def slow(message: Message) -> None:
        await asyncio.sleep(message.body)

    receiver.behave(slow)
    async with virtual_time(scheduler, start=START) as kit:
        short, long = await scheduler.send("mail", 5), await scheduler.send("mail", 3600)
        await kit.advance("1s")
        store = await scheduler.runtime.store()
        await kit._time.drive(scheduler.runtime.engine.stop(10.0))  # type: ignore[union-attr]
        after = {message.id: message for message in await store.messages("default", MessageFilter())}
        scheduler.runtime.engine = None
    assert after[short.id].state is MessageState.SENT
    assert (after[long.id].state, after[long.id].attempts) == (MessageState.WAITING, 0)


# --- with the end of a run -----------------------------------------------------------------------------------------


async def test_what_a_job_sends_is_delivered_after_its_end() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)

    @scheduler.task
    async def job(ctx: Context) -> None:
        ctx.send("mail", "done", key=f"receipt {ctx.run_id}")
        await asyncio.sleep(30)

    async with virtual_time(scheduler, start=START) as kit:
        run = await job.enqueue()
        await kit.advance("10s")
        assert await scheduler.messages() == []
        await kit.advance("1m")
    assert [(message.caused_by, message.key) for message in receiver.got] == [(run.id, f"receipt {run.id}")]
    assert receiver.at == [30]


async def test_a_job_that_fails_or_is_cancelled_sends_nothing() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler)

    @scheduler.task(retry=Constant("1s", attempts=2))
    async def stumbles(ctx: Context) -> None:
        ctx.send("mail", ctx.attempt)
        if ctx.attempt == 1:
            raise RuntimeError("not yet")

    @scheduler.task
    async def fails(ctx: Context) -> None:
        ctx.send("mail", "never")
        raise RuntimeError("no")

    @scheduler.task
    async def hangs(ctx: Context) -> None:
        ctx.send("mail", "never")
        await asyncio.sleep(3600)

    async with virtual_time(scheduler, start=START) as kit:
        await stumbles.enqueue()
        await fails.enqueue()
        run = await hangs.enqueue()
        await kit.advance("5s")
        await scheduler.cancel(run)
        await kit.advance("5s")
        assert await states(scheduler) == {"sent": 1}
    assert [message.body for message in receiver.got] == [2]


async def test_messages_go_with_the_transaction_of_a_job(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    with closing(sqlite3.connect(path)) as db:
        db.execute("CREATE TABLE paid (n INTEGER)")
    scheduler = a_scheduler(f"sqlite:///{path}")
    receiver = Receiver(scheduler)
    ends: asyncio.Queue[str] = asyncio.Queue()
    scheduler.on("succeeded", lambda event: ends.put_nowait(event.kind))
    scheduler.on("failed", lambda event: ends.put_nowait(event.kind))

    @scheduler.task
    async def pay(ctx: Context, is_sound: bool) -> None:
        async with ctx.transaction() as connection:
            connection.execute("INSERT INTO paid VALUES (1)")
            ctx.send("mail", is_sound)
            if not is_sound:
                raise RuntimeError("rolled back")
        with pytest.raises(Refused, match="has already finished"):
            ctx.send("mail", "too late")

    async with scheduler, asyncio.timeout(PATIENCE):
        await pay.enqueue(is_sound=False)
        assert await asyncio.wait_for(_next_of(ends), PATIENCE) == "failed"
        await pay.enqueue(is_sound=True)
        assert await asyncio.wait_for(_next_of(ends), PATIENCE) == "succeeded"
        while not receiver.got:
            await asyncio.sleep(0.01)
        assert await states(scheduler) <= Counter({"sent": 1, "sending": 1})
    with closing(sqlite3.connect(path)) as db:
        assert db.execute("SELECT count(*) FROM paid").fetchone() == (1,)
    assert [message.body for message in receiver.got] == [True]


async def test_a_message_goes_with_a_transaction_of_the_users_own(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    scheduler = a_scheduler(f"sqlite:///{path}", concurrency=0)
    await scheduler.messages()
    with closing(sqlite3.connect(path)) as connection:
        await scheduler.send("mail", "undone", connection=connection)
        connection.rollback()
        await scheduler.send("mail", "sent", connection=connection)
        assert await scheduler.messages() == []
        connection.commit()
    assert [message.body for message in await scheduler.messages()] == ["sent"]
    await scheduler.close()


def test_plain_code_sends_too(tmp_path: Path) -> None:
    path = tmp_path / "shop.db"
    scheduler = a_scheduler(f"sqlite:///{path}", concurrency=0)
    first = scheduler.sync.send("mail", 1, key="k")
    with closing(sqlite3.connect(path)) as connection, connection:
        scheduler.sync.send("mail", 2, connection=connection)
        assert len(scheduler.sync.messages()) == 1
    assert [message.body for message in scheduler.sync.messages(channel="mail", states=["waiting"])] == [2, 1]
    assert scheduler.sync.retry_message(first).id == first.id
    assert scheduler.sync.retry_dead() == []
    scheduler.sync.drop_message(first)
    with pytest.raises(NotFound, match="there is no message"):
        scheduler.sync.get_message(first.id)
    scheduler.sync.close()


async def test_a_job_in_a_process_sends_with_its_end(tmp_path: Path) -> None:
    scheduler = a_scheduler(f"sqlite:///{tmp_path / 'ledger.db'}")
    receiver = Receiver(scheduler)
    task = scheduler.task(process=True)(process_jobs.send_and_return)
    async with scheduler, asyncio.timeout(PATIENCE):
        run = await task.enqueue(count=3)
        while len(receiver.got) < 3:
            await asyncio.sleep(0.01)
    assert sorted(message.body["n"] for message in receiver.got) == [0, 1, 2]
    assert {message.caused_by for message in receiver.got} == {run.id}


# --- people --------------------------------------------------------------------------------------------------------


async def test_a_dead_message_is_delivered_again_on_request() -> None:
    scheduler = a_scheduler()
    receiver = Receiver(scheduler, retry=Constant("1s", attempts=1))
    receiver.behave(failing)
    async with virtual_time(scheduler, start=START) as kit:
        for key in ("a", "b", "c"):
            await scheduler.send("mail", key, key=key)
        await kit.advance("10s")
        assert await states(scheduler) == {"dead": 3}
        receiver._behave = None
        [dead] = [message for message in await scheduler.messages() if message.key == "a"]
        assert (await scheduler.retry_message(dead)).attempts == 0
        await kit.advance("10s")
        assert await states(scheduler) == {"dead": 2, "sent": 1}
        with pytest.raises(Refused, match="is sent, and only a waiting or dead message can be retried"):
            await scheduler.retry_message(dead)
        assert len(await scheduler.retry_dead(channel="chat")) == 0
        assert len(await scheduler.retry_dead(channel="mail")) == 2
        await kit.advance("10s")
        assert await states(scheduler) == {"sent": 3}


# --- what is refused -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"retry": 3}, "retry: 3 is not a retry policy"),
        ({"concurrency": 0}, "concurrency: 0 must be a whole number from 1"),
        ({"timeout": 0}, "timeout: 0 must be more than nothing"),
        ({"give_up_on": "ValueError"}, "give_up_on: 'ValueError' is not an exception type"),
        ({"retries": 3}, "retries: no such option; write retry=Constant\\('10s', attempts=4\\)"),
    ],
)
def test_a_wrong_option_of_a_sender_is_refused_where_it_is_written(options: Any, said: str) -> None:
    with pytest.raises(InvalidSetting, match=said):
        a_scheduler().sender("mail", **options)(lambda message: None)


async def test_a_channel_has_one_sender_declared_before_the_start() -> None:
    scheduler = a_scheduler()
    Receiver(scheduler)
    with pytest.raises(AlreadyDeclared, match="channel 'mail' has two senders"):
        Receiver(scheduler)
    async with virtual_time(scheduler, start=START):
        with pytest.raises(Refused, match="declared after the scheduler has started"):
            scheduler.sender("chat")(lambda message: None)


async def _next_of(queue: asyncio.Queue[str]) -> str:
    while queue.empty():
        await asyncio.sleep(0.01)
    return queue.get_nowait()
