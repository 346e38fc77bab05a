"""A store of another package is found by the scheme of its URL, through an installed entry point."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

MODULE = """
from evertick.store.sqlite import SqliteStore

class LoudStore(SqliteStore):
    def __init__(self, url, *, clock, is_inline=False):
        print("loud store for", url)
        super().__init__("sqlite://", clock=clock, is_inline=is_inline)
"""

PROGRAM = """
import asyncio
from evertick import Every, Scheduler

async def main():
    scheduler = Scheduler("loud://somewhere", concurrency=0)
    await scheduler.add(key="k", when=Every("1h"), task="job")
    print([schedule.key for schedule in await scheduler.schedules()])
    await scheduler.close()

asyncio.run(main())
"""


def test_a_store_of_another_package_is_found_by_its_scheme(tmp_path: Path) -> None:
    (tmp_path / "loud_store.py").write_text(MODULE)
    about = tmp_path / "loud_store-1.0.dist-info"
    about.mkdir()
    (about / "METADATA").write_text("Metadata-Version: 2.1\nName: loud-store\nVersion: 1.0\n")
    (about / "entry_points.txt").write_text("[evertick.stores]\nloud = loud_store:LoudStore\n")
    answer = subprocess.run(
        [sys.executable, "-c", PROGRAM], capture_output=True, text=True, env={"PYTHONPATH": str(tmp_path)}
    )
    assert answer.returncode == 0, answer.stderr
    assert answer.stdout.splitlines() == ["loud store for loud://somewhere", "['k']"]
