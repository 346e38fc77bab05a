"""A client of Redis as nodes and workers make it: bounded waits, no password in what it says, no tries of its own.

A try again is for the caller, who knows whether it is worth one: the relay has its policy, loops have their backoff.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from redis.asyncio import Redis
from redis.asyncio.retry import Retry
from redis.backoff import NoBackoff
from redis.exceptions import InvalidResponse, RedisError

from evertick.driver.queue.redis_spec import RedisConnection
from evertick.driver.queue.unencrypted import warn_of_plain_text
from evertick.driver.secret import Secret
from evertick.errors import BrokerUnavailable
from evertick.text.redact import masked
from evertick.text.regular_file import open_regular

__all__ = ["connect", "telling_of_redis"]

log = logging.getLogger("evertick.redis")

_CONNECT_SECONDS = 5.0
# Longer than any command here may block on the server.
_ANSWER_SECONDS = 15.0
# A line that was silent for so long is asked whether it is still one: firewalls forget.
_SILENT_SECONDS = 30
# Of what an error says.
_SAID_MOST = 200


def connect(connection: RedisConnection, resolve_secret: Callable[[str], str]) -> Redis:
    """Nothing is opened yet; the first command does."""
    warn_of_plain_text(connection, log)
    options: dict[str, Any] = {}
    password = connection.password
    if password is not None:
        options["password"] = resolve_secret(password.name) if isinstance(password, Secret) else password
    if connection.username is not None:
        options["username"] = connection.username
    if connection.url.startswith("rediss:"):
        files = {"ssl_ca_certs": connection.ca, "ssl_certfile": connection.cert, "ssl_keyfile": connection.key}
        options |= {name: path for name, path in files.items() if path is not None}
        with telling_of_redis(connection):
            for path in filter(None, files.values()):
                os.close(open_regular(path))  # the library would wait for a pipe
    return Redis.from_url(
        connection.url,
        socket_connect_timeout=_CONNECT_SECONDS,
        socket_timeout=_ANSWER_SECONDS,
        health_check_interval=_SILENT_SECONDS,
        retry=Retry(NoBackoff(), 0),
        client_name="evertick",
        **options,
    )


@contextmanager
def telling_of_redis(connection: RedisConnection) -> Iterator[None]:
    """What goes wrong on the way is the broker's being away, whatever the library calls it."""
    try:
        yield
    except (RedisError, OSError, TimeoutError) as error:
        raise BrokerUnavailable(f"redis at {masked(connection.url)}: {_words(error)}") from error


def _words(error: Exception) -> str:
    """Bounded: who is no Redis may answer with anything."""
    said = str(error) or type(error).__name__
    if isinstance(error, InvalidResponse):
        whose = (
            "a NATS server answers there, whose URL begins with nats://"
            if "INFO {" in said
            else "no Redis answers there"
        )
        return f"{whose}: check host and port of the URL ({said[:_SAID_MOST]}…)"
    return said if len(said) <= _SAID_MOST else f"{said[:_SAID_MOST]}…"
