"""The proxy of the storm does to connections what it is told to, and to nobody else's."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Iterator
from urllib.parse import urlsplit

import asyncpg
import pytest
from torment.proxy import CommitFinder, Gate, Proxy

SOON = 20.0


@pytest.fixture
def proxy(postgres_dsn: str) -> Iterator[Proxy]:
    with Proxy(urlsplit(postgres_dsn).port or 5432, gates=2) as proxy:
        yield proxy


@pytest.fixture
async def table(postgres_dsn: str) -> AsyncIterator[str]:
    name = f"proxied_{time.monotonic_ns()}"
    connection = await asyncpg.connect(postgres_dsn)
    await connection.execute(f"CREATE TABLE {name} (number integer)")
    yield name
    await connection.execute(f"DROP TABLE {name}")
    await connection.close()


async def connect(dsn: str, gate: Gate) -> asyncpg.Connection:
    parts = urlsplit(dsn)
    through = parts._replace(netloc=parts.netloc.replace(str(parts.port), str(gate.port))).geturl()
    return await asyncpg.connect(through, ssl=False, timeout=SOON)


async def numbers(dsn: str, table: str) -> list[int]:
    connection = await asyncpg.connect(dsn)
    found = [row[0] for row in await connection.fetch(f"SELECT number FROM {table} ORDER BY number")]
    await connection.close()
    return found


async def test_a_cut_ends_the_connections_of_one_gate_and_new_ones_are_let_through(
    proxy: Proxy, postgres_dsn: str
) -> None:
    cut, other = await connect(postgres_dsn, proxy.gates[0]), await connect(postgres_dsn, proxy.gates[1])
    proxy.gates[0].cut()
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await cut.fetchval("SELECT 1", timeout=SOON)
    assert await other.fetchval("SELECT 1") == 1
    again = await connect(postgres_dsn, proxy.gates[0])
    assert await again.fetchval("SELECT 1") == 1
    for connection in (other, again):
        await connection.close()


async def test_a_black_hole_swallows_everything_and_lets_nobody_know(
    proxy: Proxy, postgres_dsn: str, table: str
) -> None:
    gate = proxy.gates[0]
    swallowed = await connect(postgres_dsn, gate)
    gate.swallow()
    with pytest.raises(TimeoutError):
        await swallowed.execute(f"INSERT INTO {table} VALUES (1)", timeout=0.3)
    assert not swallowed.is_closed()
    with pytest.raises(TimeoutError):
        async with asyncio.timeout(0.3):
            await connect(postgres_dsn, gate)
    gate.heal()
    again = await connect(postgres_dsn, gate)
    assert await again.fetchval("SELECT 1") == 1
    # What was swallowed never comes, and who sent it is not told even now.
    assert await numbers(postgres_dsn, table) == []
    assert not swallowed.is_closed()
    swallowed.terminate()
    await again.close()


async def test_a_delay_is_there_in_each_direction_until_it_is_healed(proxy: Proxy, postgres_dsn: str) -> None:
    gate = proxy.gates[0]
    connection = await connect(postgres_dsn, gate)
    gate.delay(0.1)
    began = time.monotonic()
    await connection.execute("SELECT 1")
    assert time.monotonic() - began >= 0.2
    gate.heal()
    assert gate.delay_seconds == 0.0
    await connection.close()


@pytest.mark.parametrize("in_transaction", [True, False], ids=["COMMIT", "by itself"])
async def test_a_commit_whose_answer_is_lost_is_committed(
    proxy: Proxy, postgres_dsn: str, table: str, in_transaction: bool
) -> None:
    gate = proxy.gates[0]
    connection = await connect(postgres_dsn, gate)
    insert = f"INSERT INTO {table} VALUES ($1)"
    if in_transaction:
        await connection.execute("BEGIN")
        gate.lose_answers(1)
        await connection.execute(insert, 7)
    else:
        await connection.execute(insert, 6)
        gate.lose_answers(1)
    with pytest.raises((OSError, asyncpg.PostgresError, asyncpg.InterfaceError)):
        await (connection.execute("COMMIT") if in_transaction else connection.execute(insert, 7))
    assert 7 in await numbers(postgres_dsn, table)
    assert gate.answers_lost == 1
    again = await connect(postgres_dsn, gate)
    await again.execute(insert, 8)
    assert 8 in await numbers(postgres_dsn, table)
    await again.close()


def message(kind: bytes, body: bytes) -> bytes:
    return kind + (len(body) + 4).to_bytes(4, "big") + body


STARTUP = (8).to_bytes(4, "big") + (196_608).to_bytes(4, "big")
WRITING = message(b"P", b"w\0INSERT INTO t VALUES ($1)\0\0\0") + message(b"S", b"")
READING = message(b"P", b"r\0SELECT 1\0\0\0") + message(b"S", b"")
USES = {name: message(b"B", b"\0" + name + b"\0" + bytes(6)) + message(b"S", b"") for name in (b"w", b"r")}
BEGIN, COMMIT, ROLLBACK = (message(b"Q", text + b"\0") for text in (b"BEGIN", b"COMMIT", b"ROLLBACK"))


@pytest.mark.parametrize(
    ("sent", "commits"),
    [
        ([STARTUP, WRITING], []),
        ([STARTUP, WRITING, USES[b"w"]], [2]),
        ([STARTUP, READING, USES[b"r"]], []),
        ([STARTUP, WRITING, BEGIN, USES[b"w"], COMMIT], [4]),
        ([STARTUP, WRITING, BEGIN, USES[b"w"], ROLLBACK, USES[b"w"]], [5]),
        ([STARTUP, message(b"Q", b"UPDATE t SET a = 1\0")], [1]),
        ([STARTUP, message(b"Q", b"ROLLBACK TO part; RELEASE part\0"), COMMIT], []),
    ],
)
def test_a_commit_is_seen_in_what_a_client_sends_however_it_is_cut(sent: list[bytes], commits: list[int]) -> None:
    finder = CommitFinder()
    assert [number for number, data in enumerate(sent) if finder.feed(data)] == commits
    finder = CommitFinder()
    in_pieces = sum(finder.feed(bytes([byte])) for data in sent for byte in data)
    assert in_pieces == len(commits)
