"""A node of the outbox tests: its jobs send messages, its sender writes them down outside of the database.

    sending_node.py URL WITNESS before|between|storm|nowhere

It says where it is, and waits there to be killed: before the end of a job that has sent something, or between the
delivery of a message and its being settled. In a storm it takes its time everywhere, so that a kill hits anything.
"""

from __future__ import annotations

import asyncio
import logging
import os
import sys
import threading
import time

from evertick import Constant, Context, Message, Scheduler

url, witness, point = sys.argv[1:]
scheduler = Scheduler(url, lease="2s", stop_timeout="5s", concurrency=4, node_name=f"sending-{os.getpid()}")


def stop_at(place: str) -> None:
    if place == point:
        os.write(1, f"{place}\n".encode())  # in one piece, whoever else speaks
        threading.Event().wait()
    if point == "storm":
        time.sleep(0.1)


@scheduler.task(on_lost="fail")
def order_once(ctx: Context) -> None:
    ctx.send("mail", ctx.run_id, key=ctx.run_id)
    stop_at("before")


@scheduler.task
def order(ctx: Context) -> None:
    ctx.send("mail", ctx.run_id, key=ctx.run_id)
    stop_at("before")


@scheduler.task
async def order_in_block(ctx: Context) -> None:
    async with ctx.transaction():
        ctx.send("mail", ctx.run_id, key=ctx.run_id)
        await asyncio.sleep(0.1)


@scheduler.sender("mail", concurrency=4, retry=Constant("100ms", attempts=100))
def deliver(message: Message) -> None:
    line = f"{message.key} {message.id} {message.attempts}\n".encode()
    descriptor = os.open(witness, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    os.write(descriptor, line)
    os.close(descriptor)
    stop_at("between")


logging.basicConfig(level="INFO")
scheduler.run()
