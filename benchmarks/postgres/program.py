"""`python -m benchmarks postgres`: a server, rounds, and the table."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses

import asyncpg

from benchmarks.machine import describe
from benchmarks.postgres import size as fleet_size
from benchmarks.postgres.figure import FIGURES, GROUPS
from benchmarks.postgres.round import measure_all
from benchmarks.postgres.server import server
from benchmarks.report import run_rounds
from benchmarks.size import Size

__all__ = ["run"]


def run(asked: argparse.Namespace, size: Size) -> None:
    fleet = fleet_size.QUICK if asked.quick else fleet_size.FULL
    groups = asked.only or list(GROUPS)
    if unknown := set(groups) - set(GROUPS):
        raise SystemExit(f"--only: there is no group {min(unknown)!r}; there are {', '.join(GROUPS)}")
    with server(asked.dsn) as dsn:
        machine = describe() | {"postgresql": asyncio.run(_version(dsn)), "asyncpg": asyncpg.__version__}
        sizes = dataclasses.asdict(size) | dataclasses.asdict(fleet)
        run_rounds(asked, machine, sizes, FIGURES, lambda: measure_all(dsn, size, fleet, groups))


async def _version(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        version: str = await connection.fetchval("SHOW server_version")
        return version
    finally:
        await connection.close()
