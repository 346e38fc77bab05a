"""The server of the tests does not outlive them, whatever they die of."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from servers.postgres import system_binaries

PROGRAM = """
import sys
sys.path.insert(0, sys.argv[1])
from pathlib import Path
from servers.postgres import postgres_server
with postgres_server(binaries=Path(sys.argv[2]) if sys.argv[2] else None) as dsn:
    print(dsn, flush=True)
    sys.stdin.readline()
"""


NO_SYSTEM = pytest.mark.skipif(
    system_binaries() is None, reason="NO POSTGRESQL OF THE SYSTEM: only the server of the wheel is shown to end"
)


@pytest.mark.parametrize("is_killed", [True, False])
@pytest.mark.parametrize("is_of_system", [False, pytest.param(True, marks=[NO_SYSTEM, pytest.mark.more_servers])])
async def test_a_server_ends_with_the_tests_that_started_it(is_killed: bool, is_of_system: bool) -> None:
    binaries = str(system_binaries()) if is_of_system else ""
    command = [sys.executable, "-c", PROGRAM, str(Path(__file__).parents[1]), binaries]
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
