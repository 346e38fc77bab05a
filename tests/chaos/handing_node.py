"""A node of the hand-over tests: its jobs go to a queue in Redis.

    handing_node.py URL REDIS before|between|nowhere

It says where it is, and waits there to be killed: when a run is handed over in the ledger and its message is about to
be sent, or when the broker has the message and the ledger does not know it yet.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence

from evertick import Message, Redis, Scheduler
from evertick.driver.redis_broker import RedisBroker

url, redis, point = sys.argv[1:]
scheduler = Scheduler(url, lease="2s", stop_timeout="5s", node_name="handing", drivers=["redis"])
scheduler.connect("redis", redis)
scheduler.job("work", Redis("docker"))

push = RedisBroker.push


def stop_at(place: str) -> None:
    if place == point:
        os.write(1, f"{place}\n".encode())
        threading.Event().wait()


async def push_and_stop(self: RedisBroker, messages: Sequence[Message]) -> list[Exception | None]:
    stop_at("before")
    answers = await push(self, messages)
    stop_at("between")
    return answers


RedisBroker.push = push_and_stop  # type: ignore[method-assign]
logging.basicConfig(level="INFO")
scheduler.run()
