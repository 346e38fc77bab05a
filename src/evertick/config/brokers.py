"""The brokers of a configuration, as their drivers and workers want them.

A worker has no database and no jobs. It reads where its broker is as a node does, and nothing else of the file can stop
it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec

from evertick.config.broker import Connection, broker_of
from evertick.config.include import read_all, warnings_in
from evertick.config.layer import Value, layered, section_from
from evertick.config.problem import Problems
from evertick.config.reading import check_files
from evertick.config.section import Section
from evertick.driver.queue.spec import NatsConnection, RedisConnection
from evertick.errors import InvalidSpec

__all__ = ["BROKERS", "Brokers", "connection_of", "load_brokers", "refuse_wrong"]

# How the drivers of brokers are told where their servers are.
BROKERS: dict[str, type[RedisConnection | NatsConnection]] = {"redis": RedisConnection, "nats": NatsConnection}
# The address has them already.
_IN_URL = ("user", "username", "password")


class Brokers(msgspec.Struct, frozen=True, kw_only=True):
    """Those that were named, by their drivers."""

    connections: dict[str, RedisConnection | NatsConnection]
    warnings: tuple[str, ...]


def load_brokers(
    file: Path | None, environ: Mapping[str, str] = os.environ, flags: Mapping[str, tuple[str, Any]] | None = None
) -> Brokers:
    """Read and check what file, environment and flags say of brokers. Raises InvalidConfiguration."""
    problems = Problems()
    documents = [] if file is None else read_all(file, problems, environ=environ)
    warnings = list(warnings_in(documents))
    values = layered(documents, environ, flags or {}, problems, only=tuple(BROKERS))
    check_files(values, problems, only=tuple(BROKERS))
    found = {name: broker_of(name, values, problems, warnings.append) for name in BROKERS}
    problems.raise_any()
    connections = {
        name: connection_of(name, each, section_from(name, values)) for name, each in found.items() if each is not None
    }
    for name, connection in connections.items():
        refuse_wrong(name, connection, values, problems)
    problems.raise_any()
    return Brokers(connections=connections, warnings=tuple(warnings))


def connection_of(driver: str, found: Connection, section: Section) -> RedisConnection | NatsConnection:
    """As the driver wants it: what the section has beside the address goes by the same names."""
    wanted = BROKERS[driver]
    given = {field: getattr(section, field, None) for field in wanted.__struct_fields__ if field not in _IN_URL}
    given |= {field: getattr(found, field) for field in found.__struct_fields__ if field in given}
    fields: dict[str, Any] = {
        field: str(value) if isinstance(value, Path) else value for field, value in given.items() if value is not None
    }
    return wanted(**fields)


def refuse_wrong(
    driver: str, connection: RedisConnection | NatsConnection, values: Mapping[str, Value], problems: Problems
) -> None:
    """Tell what the driver would refuse later, at its place."""
    try:
        connection.check()
    except InvalidSpec as wrong:
        for said in wrong.problems:
            name, _, rest = said.removeprefix(f"{driver}: ").partition(": ")
            is_named = f"{driver}.{name}" in values
            key = f"{driver}.{name}" if is_named else f"{driver}.url"
            if key == f"{driver}.url" and not values[key].is_set:
                key = f"{driver}.address"
            problems.add(values[key].origin.place, key, rest if is_named else said.removeprefix(f"{driver}: "))
