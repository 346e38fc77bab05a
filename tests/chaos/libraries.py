"""Transactions of the libraries that users have, each as a block with a connection and a way to write a row.

The block commits when it is left. `connection` is what Evertick is given, `execute` how the user's own statement goes.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, contextmanager
from typing import Any, NamedTuple
from urllib.parse import urlsplit

__all__ = ["ASYNC", "PLAIN", "AsyncBlock", "PlainBlock"]


class PlainBlock(NamedTuple):
    connection: Any
    execute: Callable[[str], object]


class AsyncBlock(NamedTuple):
    connection: Any
    execute: Callable[[str], Awaitable[object]]


@contextmanager
def psycopg_plain(dsn: str) -> Iterator[PlainBlock]:
    import psycopg

    with psycopg.connect(dsn) as connection:
        yield PlainBlock(connection, connection.execute)


@contextmanager
def sqlalchemy_session(dsn: str) -> Iterator[PlainBlock]:
    from sqlalchemy import create_engine, text
    from sqlalchemy.orm import Session

    engine = create_engine(dsn.replace("postgresql:", "postgresql+psycopg:"))
    with Session(engine) as session, session.begin():
        yield PlainBlock(session, lambda statement: session.execute(text(statement)))
    engine.dispose()


@contextmanager
def django_atomic(dsn: str) -> Iterator[PlainBlock]:
    from django.conf import settings

    if not settings.configured:
        where = urlsplit(dsn)
        engine = "django.db.backends.postgresql"
        database = {"ENGINE": engine, "NAME": where.path[1:], "USER": where.username, "PASSWORD": where.password}
        settings.configure(DATABASES={"default": {**database, "HOST": where.hostname, "PORT": where.port}})
    from django.db import connection, transaction

    with transaction.atomic():
        yield PlainBlock(connection, lambda statement: connection.cursor().execute(statement))
    connection.close()


@asynccontextmanager
async def asyncpg_transaction(dsn: str) -> AsyncIterator[AsyncBlock]:
    import asyncpg

    connection = await asyncpg.connect(dsn)
    async with connection.transaction():
        yield AsyncBlock(connection, connection.execute)
    await connection.close()


@asynccontextmanager
async def psycopg_async(dsn: str) -> AsyncIterator[AsyncBlock]:
    import psycopg

    async with await psycopg.AsyncConnection.connect(dsn) as connection:
        yield AsyncBlock(connection, connection.execute)


@asynccontextmanager
async def sqlalchemy_async(dsn: str, driver: str) -> AsyncIterator[AsyncBlock]:
    from sqlalchemy import text
    from sqlalchemy.ext.asyncio import AsyncSession, create_async_engine

    engine = create_async_engine(dsn.replace("postgresql:", f"postgresql+{driver}:"))
    async with AsyncSession(engine) as session, session.begin():
        yield AsyncBlock(await session.connection(), lambda statement: session.execute(text(statement)))
    await engine.dispose()


PLAIN: dict[str, Callable[[str], AbstractContextManager[PlainBlock]]] = {
    "psycopg": psycopg_plain,
    "sqlalchemy": sqlalchemy_session,
    "django": django_atomic,
}
ASYNC: dict[str, Callable[[str], AbstractAsyncContextManager[AsyncBlock]]] = {
    "asyncpg": asyncpg_transaction,
    "psycopg-async": psycopg_async,
    "sqlalchemy-asyncpg": lambda dsn: sqlalchemy_async(dsn, "asyncpg"),
    "sqlalchemy-psycopg-async": lambda dsn: sqlalchemy_async(dsn, "psycopg"),
}
