"""A node of the dispatch tests: its jobs go to a queue in Redis, a list or a stream, or in NATS.

    dispatching_node.py URL BROKER list|stream|nats before|between|nowhere

It says where it is, and waits there to be killed: when a run is dispatched in the ledger and its message is about to
be sent, or when the broker has the message and the ledger does not know it yet.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
from collections.abc import Sequence

from evertick import Message, Nats, Redis, Scheduler
from evertick.driver.queue.nats_broker import NatsBroker
from evertick.driver.queue.redis_broker import RedisBroker

url, broker, kind, point = sys.argv[1:]
driver = "nats" if kind == "nats" else "redis"
scheduler = Scheduler(url, lease="1s", stop_timeout="5s", node_name="queueing", drivers=[driver])
scheduler.connect(driver, broker)
scheduler.job("work", Nats("docker") if kind == "nats" else Redis("docker", kind=kind))  # type: ignore[arg-type]

Broker = NatsBroker if kind == "nats" else RedisBroker
push = Broker.push


def stop_at(place: str) -> None:
    if place == point:
        os.write(1, f"{place}\n".encode())
        threading.Event().wait()


async def push_and_stop(self: RedisBroker | NatsBroker, messages: Sequence[Message]) -> list[Exception | None]:
    stop_at("before")
    answers = await push(self, messages)  # type: ignore[arg-type]
    stop_at("between")
    return answers


Broker.push = push_and_stop  # type: ignore[method-assign]
logging.basicConfig(level="INFO")
scheduler.run()
