"""The server of the tests does not outlive them, whatever they die of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from servers.postgres import postgres_server
with postgres_server() as dsn:
    print(dsn, flush=True)
    sys.stdin.readline()
"""


@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_server_ends_with_the_tests_that_started_it(is_killed: bool) -> None:
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1])]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as tests:
        assert tests.stdin is not None
        assert tests.stdout is not None
        dsn = (await asyncio.to_thread(tests.stdout.readline)).strip()
        connection = await asyncpg.connect(dsn)
        assert await connection.fetchval("SELECT 1") == 1
        if is_killed:
            tests.kill()
        else:
            tests.stdin.close()
        await asyncio.to_thread(tests.wait)
    async with asyncio.timeout(20):
        while not connection.is_closed():
            await asyncio.sleep(0.01)
        while await is_there(dsn):
            await asyncio.sleep(0.01)


async def is_there(dsn: str) -> bool:
    try:
        connection = await asyncpg.connect(dsn)
    except (OSError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True
