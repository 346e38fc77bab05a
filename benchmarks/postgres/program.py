"""`python -m benchmarks postgres`: a server, rounds, and the table."""

from __future__ import annotations

import argparse
import asyncio
import dataclasses
import json

import asyncpg

from benchmarks.figure import summary, table
from benchmarks.machine import describe, load
from benchmarks.postgres import size as fleet_size
from benchmarks.postgres.figure import FIGURES, GROUPS
from benchmarks.postgres.round import measure_all
from benchmarks.postgres.server import server
from benchmarks.size import Size

__all__ = ["run"]


def run(asked: argparse.Namespace, size: Size) -> None:
    fleet = fleet_size.QUICK if asked.quick else fleet_size.FULL
    groups = asked.only or list(GROUPS)
    with server(asked.dsn) as dsn:
        machine = describe() | {"postgresql": asyncio.run(_version(dsn)), "asyncpg": asyncpg.__version__}
        for name, text in machine.items():
            print(f"{name:<11} {text}", flush=True)
        samples: dict[str, list[float]] = {}
        loads = [load()]
        for number in range(asked.rounds):
            for name, value in measure_all(dsn, size, fleet, groups).items():
                samples.setdefault(name, []).append(value)
            loads.append(load())
            print(f"round {number + 1} of {asked.rounds} done", flush=True)
    told = " ".join("?" if each is None else f"{each:.2f}" for each in loads)
    print(f"load        {told} (before, after each round)\n")
    print(table(samples, FIGURES))
    if asked.json is not None:
        sizes = dataclasses.asdict(size) | dataclasses.asdict(fleet)
        figures = {name: summary(each) for name, each in samples.items()}
        report = {"machine": machine, "load": loads, "size": sizes, "figures": figures}
        asked.json.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")


async def _version(dsn: str) -> str:
    connection = await asyncpg.connect(dsn)
    try:
        version: str = await connection.fetchval("SHOW server_version")
        return version
    finally:
        await connection.close()
