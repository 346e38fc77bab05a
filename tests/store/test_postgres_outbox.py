"""The outbox on PostgreSQL: many at once, in few statements, and no session waits for a claim."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from unittest import mock

import pytest
from postgres_stores import PostgresStores, PostgresUsers

from evertick.model import ClaimedMessage, MessageOutcome, MessageState
from evertick.store.base import MessageFilter
from evertick.store.postgres import PostgresStore
from evertick.store.postgres.connection import Statements
from evertick.testing.conformance import Bench, a_run, an_outcome
from evertick.testing.conformance.bench import APP, HOUR
from evertick.testing.conformance.outbox import CHANNEL, a_message

BATCH = 1_000
_WAITING = """
    SELECT count(*) FROM pg_locks l JOIN pg_stat_activity a USING (pid) WHERE NOT l.granted AND a.query LIKE $1
"""


@pytest.fixture
async def bench(postgres_stores: PostgresStores) -> AsyncIterator[Bench]:
    bench = Bench(postgres_stores, await postgres_stores.open())
    yield bench
    await bench.check()


@contextmanager
def counting() -> Iterator[list[str]]:
    """The names of the statements that are sent meanwhile."""
    sent: list[str] = []

    def counted(kind: str) -> object:
        original = getattr(Statements, kind)

        async def send(self: Statements, name: str, *values: object) -> object:
            sent.append(name)
            return await original(self, name, *values)

        return mock.patch.object(Statements, kind, send)

    with counted("rows"), counted("row"), counted("only_row"), counted("count"):  # type: ignore[attr-defined]
        yield sent


def delivered(held: ClaimedMessage) -> MessageOutcome:
    return MessageOutcome(id=held.id, fence=held.fence, kind="sent", attempts=1, remember=HOUR)


async def test_many_nodes_that_claim_at_once_share_what_is_due(bench: Bench, postgres_stores: PostgresStores) -> None:
    await bench.store.send(APP, [a_message() for _ in range(400)])
    stores = [bench.store, await postgres_stores.open(), await postgres_stores.open()]
    nodes = [await bench.node() for _ in stores]

    async def claim_all(number: int) -> list[ClaimedMessage]:
        held: list[ClaimedMessage] = []
        while True:
            ids = [message.id for message in held]
            claim = await stores[number].claim_messages(APP, nodes[number], {CHANNEL: 20}, ids)
            held += claim.messages
            if not claim.messages and claim.next_due_at is None:
                return held

    shares = await asyncio.gather(*(claim_all(number) for number in range(3)))
    ids = [message.id for share in shares for message in share]
    assert (len(ids), len(set(ids))) == (400, 400)
    for node, store, share in zip(nodes, stores, shares, strict=True):
        answers = await store.settle_messages(APP, node, [delivered(message) for message in share])
        assert answers == ["done"] * len(share)


async def test_of_many_who_send_one_key_at_once_one_has_sent_it(bench: Bench, postgres_stores: PostgresStores) -> None:
    stores = [bench.store, await postgres_stores.open()]
    sends = [stores[number % 2].send(APP, [a_message(key="k")]) for number in range(10)]
    answers = [message for [message] in await asyncio.gather(*sends)]
    assert sum(message.is_new for message in answers) == 1
    assert len({message.id for message in answers}) == 1


async def until_waiting(stores: PostgresStores) -> None:
    """Until the server reports that a sender waits for another."""
    connection = await stores.connect()
    try:
        async with asyncio.timeout(20):
            while not await connection.fetchval(_WAITING, f"%{stores.schema}%outbox%"):
                await asyncio.sleep(0.01)
    finally:
        await connection.close()


@pytest.mark.parametrize("ends_with", ["commit", "rollback"])
async def test_a_key_in_an_open_transaction_is_waited_for(
    bench: Bench, postgres_stores: PostgresStores, ends_with: str
) -> None:
    users = PostgresUsers(postgres_stores.dsn)
    user, first = await users.begin(), a_message(key="k")
    await bench.store.within(user.connection).send(APP, [first])
    second = asyncio.create_task(bench.store.send(APP, [a_message(key="k")]))
    await until_waiting(postgres_stores)
    assert not second.done()
    await getattr(user, ends_with)()
    [answer] = await second
    assert (answer.is_new, answer.id == first.id) == ((False, True) if ends_with == "commit" else (True, False))
    await users.close()


async def test_a_claim_does_not_wait_for_a_locked_message(bench: Bench, postgres_stores: PostgresStores) -> None:
    locked, free = a_message(), a_message()
    await bench.store.send(APP, [locked, free])
    connection = await postgres_stores.connect()
    try:
        async with connection.transaction():
            table = f'"{postgres_stores.schema}".outbox'
            await connection.execute(f"SELECT FROM {table} WHERE id = $1 FOR UPDATE", locked.id)
            async with asyncio.timeout(10):
                claim = await bench.store.claim_messages(APP, await bench.node(), {CHANNEL: 10}, ())
        assert [message.id for message in claim.messages] == [free.id]
    finally:
        await connection.close()


async def test_a_thousand_messages_cost_a_constant_number_of_statements(bench: Bench) -> None:
    node = await bench.node()
    with counting() as sent:
        await bench.store.send(APP, [a_message() for _ in range(BATCH)])
        claim = await bench.store.claim_messages(APP, node, {CHANNEL: BATCH}, ())
        await bench.store.settle_messages(APP, node, [delivered(message) for message in claim.messages])
    assert len(claim.messages) == BATCH
    assert sent == ["send", "claim_messages", "settle_messages"]


async def test_an_unused_outbox_costs_no_statement(bench: Bench) -> None:
    node = await bench.node()
    await bench.store.enqueue(APP, [a_run() for _ in range(100)])
    claim = await bench.claim(node)
    with counting() as sent:
        assert set(await bench.finish(node, *(an_outcome(run) for run in claim.runs))) == {"done"}
    assert not [name for name in sent if name.startswith("send")]


async def test_messages_of_many_outcomes_are_written_by_one_statement(bench: Bench) -> None:
    node = await bench.node()
    await bench.store.enqueue(APP, [a_run() for _ in range(100)])
    claim = await bench.claim(node)
    with counting() as sent:
        outcomes = [an_outcome(run, messages=(a_message(), a_message())) for run in claim.runs]
        assert set(await bench.finish(node, *outcomes)) == {"done"}
    assert sent.count("send.with_cause") == 1
    assert len(await bench.store.messages(APP, MessageFilter(limit=1_000))) == 200


async def test_a_message_wakes_nodes_of_other_processes(bench: Bench, postgres_stores: PostgresStores) -> None:
    other = await postgres_stores.open()
    assert isinstance(other, PostgresStore)
    assert await other.changed(APP, 20.0), "a line that was just opened is news by itself"
    hearing = asyncio.create_task(other.changed(APP, 20.0))
    [sent] = await bench.store.send(APP, [a_message()])
    assert await hearing
    assert sent.state is MessageState.WAITING
