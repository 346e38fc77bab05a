"""A shop of the transaction tests: stores an order and enqueues its delivery in one transaction, and stops on the way.

    ordering_program.py DSN SCHEMA LIBRARY inside|after

It says where it is, and waits there to be killed.
"""

from __future__ import annotations

import asyncio
import sys

from libraries import ASYNC, PLAIN

from evertick import Scheduler

dsn, schema, library, point = sys.argv[1:]
scheduler = Scheduler(f"{dsn}?schema={schema}", concurrency=0)
ORDER = f"INSERT INTO {schema}.orders VALUES ('{library}')"


@scheduler.task
def deliver() -> None: ...


def stop_at(place: str) -> None:
    if place == point:
        print(place, flush=True)
        sys.stdin.readline()


def order() -> None:
    with PLAIN[library](dsn) as block:
        block.execute(ORDER)
        deliver.options(connection=block.connection).sync.enqueue()
        stop_at("inside")
    stop_at("after")


async def order_async() -> None:
    async with ASYNC[library](dsn) as block:
        await block.execute(ORDER)
        await deliver.options(connection=block.connection).enqueue()
        stop_at("inside")
    stop_at("after")


if library in PLAIN:
    order()
else:
    asyncio.run(order_async())
