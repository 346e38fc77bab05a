"""A node of the transactional chaos test: each run pays once, in the transaction that ends it.

The pauses spread the time of a `kill -9` over all that a job does: before, inside and after its transaction.
"""

from __future__ import annotations

import asyncio
import logging
import sqlite3
import sys
import time
from contextlib import closing

from evertick import Context, Scheduler

path = sys.argv[1]
scheduler = Scheduler(f"sqlite:///{path}", lease="2s", stop_timeout="5s", concurrency=6, node_name="paying")


def pay(connection: sqlite3.Connection, ctx: Context) -> None:
    connection.execute("INSERT INTO paid VALUES (?, ?)", (ctx.run_id, ctx.fence))
    time.sleep(0.005)


@scheduler.task
def receipt(of: str) -> None:
    with closing(sqlite3.connect(path, timeout=10)) as connection, connection:
        connection.execute("INSERT INTO receipts VALUES (?)", (of,))


@scheduler.task
async def pay_in_block(ctx: Context) -> None:
    await asyncio.sleep(0.02)
    async with ctx.transaction() as connection:
        pay(connection, ctx)
        await receipt.options(connection=connection).enqueue(of=ctx.run_id)
        await asyncio.sleep(0.005)
    await asyncio.sleep(0.05)


@scheduler.task
def pay_in_plain_block(ctx: Context) -> None:
    time.sleep(0.02)
    with ctx.transaction() as connection:
        pay(connection, ctx)
        receipt.options(connection=connection).sync.enqueue(of=ctx.run_id)
    time.sleep(0.05)


@scheduler.task
def pay_on_own_connection(ctx: Context) -> None:
    time.sleep(0.02)
    with closing(sqlite3.connect(path, timeout=10, isolation_level=None)) as connection:
        connection.execute("BEGIN IMMEDIATE")
        pay(connection, ctx)
        receipt.options(connection=connection).sync.enqueue(of=ctx.run_id)
        ctx.finish(connection=connection, result="paid")
        time.sleep(0.005)
        connection.execute("COMMIT")
    time.sleep(0.05)


logging.basicConfig(level="INFO")
scheduler.run()
