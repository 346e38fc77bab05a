"""A node of the transaction tests: each of its jobs pays in one transaction with its end, by another library each.

    shop_node.py DSN SCHEMA inside|after|nowhere

It says which job has come to that point, and the job waits there until the node is killed.
"""

from __future__ import annotations

import asyncio
import logging
import sys
import threading

from libraries import ASYNC, PLAIN

from evertick import Context, Scheduler

dsn, schema, point = sys.argv[1:]
scheduler = Scheduler(f"{dsn}?schema={schema}", lease="1s", stop_timeout="1s", node_name="shop")


def _say(word: str) -> None:
    """A line at once: of two threads that print, one may write between the other's word and its line break."""
    sys.stdout.write(f"{word}\n")
    sys.stdout.flush()


def payment(library: str, ctx: Context) -> str:
    return f"INSERT INTO {schema}.paid VALUES ('{library}', '{ctx.run_id}')"


def stop_at(place: str, library: str) -> None:
    if place == point:
        _say(library)
        threading.Event().wait()


async def stop_async_at(place: str, library: str) -> None:
    if place == point:
        _say(library)
        await asyncio.Event().wait()


def pays(library: str) -> None:
    @scheduler.task(name=library)
    def pay(ctx: Context) -> None:
        with PLAIN[library](dsn) as block:
            block.execute(payment(library, ctx))
            ctx.finish(connection=block.connection, result="paid")
            stop_at("inside", library)
        stop_at("after", library)


def pays_async(library: str) -> None:
    @scheduler.task(name=library)
    async def pay(ctx: Context) -> None:
        async with ASYNC[library](dsn) as block:
            await block.execute(payment(library, ctx))
            await ctx.finish(connection=block.connection, result="paid")
            await stop_async_at("inside", library)
        await stop_async_at("after", library)


for name in PLAIN:
    pays(name)
for name in ASYNC:
    pays_async(name)


@scheduler.task(name="block")
def pay_in_plain_block(ctx: Context) -> None:
    with ctx.transaction() as connection:
        connection.execute(payment("block", ctx))
        stop_at("inside", "block")
    stop_at("after", "block")


@scheduler.task(name="async-block")
async def pay_in_block(ctx: Context) -> None:
    async with ctx.transaction() as connection:
        await connection.execute(payment("async-block", ctx))
        await stop_async_at("inside", "async-block")
    await stop_async_at("after", "async-block")


logging.basicConfig(level="INFO")
scheduler.run()
