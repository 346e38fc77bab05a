"""A small ledger for the pictures of commands: thirteen hours of a shop, recorded in virtual time."""

from __future__ import annotations

import asyncio
import contextlib
import sqlite3
from pathlib import Path

from evertick import Constant, Context, Scheduler, __version__
from evertick.store.base import NodeJoin, TaskTerms
from evertick.store.sqlite import SqliteStore
from evertick.testing import virtual_time

__all__ = ["NOW", "record"]

# A Wednesday.
_START, NOW = "2026-06-03T00:00:00Z", "2026-06-03T13:10:12Z"
_LEASE = 15_000_000


def record(path: Path) -> None:
    """Write the ledger into this file, as it is at `NOW`."""
    asyncio.run(_record(path))


async def _record(path: Path) -> None:
    async with virtual_time(_shop(), start=_START) as kit:
        await kit.advance("11h2m")
        await kit.downtime("1h1m")
        await kit.advance_to(NOW)
        kit.stage.read(lambda store: _keep(store, kit.scheduler.app, path))


async def _keep(store: object, app: str, path: Path) -> None:
    """With the heartbeats that virtual time leaves out, and a second node."""
    assert isinstance(store, SqliteStore)
    [first] = [node for node in await store.nodes(app) if node.died_at is None]
    second = NodeJoin(
        id="f" * 32,
        name="web-2@shop",
        app=app,
        version=__version__,
        lease=_LEASE,
        queues=("default",),
        tasks={task: TaskTerms() for task in first.tasks},
        declares={},
    )
    await store.join(second)
    heartbeats = await store.heartbeat_session()
    for node in (first.id, second.id):
        await heartbeats.beat(node, _LEASE)

    def copy(db: sqlite3.Connection, _: int) -> None:
        with contextlib.closing(sqlite3.connect(path)) as file:
            db.backup(file)

    await store.session().read(copy)


def _shop() -> Scheduler:
    scheduler = Scheduler("sqlite://", node_name="web-1@shop", concurrency=8, tz="Europe/Berlin")

    @scheduler.every("15m", key="stock")
    async def sync_stock() -> None:
        await asyncio.sleep(41)

    @scheduler.cron("0 * * * *", key="catalogue")
    async def import_catalogue(ctx: Context) -> None:
        for page in range(1, 51):
            await asyncio.sleep(18)
            ctx.progress(page / 50, f"page {page} of 50")

    @scheduler.cron("*/10 8-19 * * mon-fri", key="mails", retry=Constant("30s", attempts=5))
    async def send_mails(ctx: Context) -> None:
        await asyncio.sleep(2)
        if (ctx.fire_at.hour, ctx.fire_at.minute) == (13, 10):
            raise ConnectionRefusedError("smtp.example.com:587 refused the connection")

    @scheduler.cron("*/4 15 * * *", key="export")
    async def export_orders() -> None:
        await asyncio.sleep(370)

    @scheduler.cron("5 15 * * *", key="rates")
    async def read_rates() -> None:
        await asyncio.sleep(1)
        raise ValueError("no rate for CHF")

    @scheduler.cron("0 9 * * mon-fri", key="report")
    async def write_report() -> None:
        await asyncio.sleep(73)

    @scheduler.cron("0 9 * * *", key="digest")
    async def send_digest() -> None:
        await asyncio.sleep(9)

    @scheduler.cron("*/12 1-3 * * *", key="index")
    async def update_index() -> None:
        await asyncio.sleep(55)

    @scheduler.cron("30 2 * * *", key="backup")
    async def back_up() -> None:
        await asyncio.sleep(312)

    return scheduler
