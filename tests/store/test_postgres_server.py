"""The server of the tests does not outlive them, even if they are killed."""

from __future__ import annotations

import asyncio
import contextlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import asyncpg
import pytest

from servers.postgres import other_user, system_binaries

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
    await check_a_server(system_binaries() if is_of_system else None, is_killed=is_killed)


@pytest.mark.skipif(os.geteuid() != 0, reason="for other users all other tests show it")
@pytest.mark.parametrize("is_killed", [True, False])
async def test_a_server_is_started_by_a_user_who_is_not_root(is_killed: bool) -> None:
    user = other_user()
    assert user is not None
    interpreter = interpreter_for(user)
    if interpreter is None:
        pytest.skip("NO INTERPRETER BUT ROOT'S OWN: only as root a server is shown to start")
    assert await check_a_server(None, is_killed=is_killed, interpreter=interpreter, user=user) == user


def interpreter_for(user: int) -> str | None:
    """One that this user can start with our packages; that of a virtual environment may be in a folder of root's."""
    own_version = f"python{sys.version_info.major}.{sys.version_info.minor}"
    for interpreter in (sys.executable, shutil.which(own_version, path=os.defpath)):
        with contextlib.suppress(OSError):
            command = [str(interpreter), "-c", "import evertick, asyncpg"]
            if subprocess.run(command, user=user, env=environment(), capture_output=True, cwd="/").returncode == 0:
                return interpreter
    return None


def environment() -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}


async def check_a_server(
    binaries: Path | None, *, is_killed: bool, interpreter: str = sys.executable, user: int | None = None
) -> int:
    """Started by tests of its own, it can be used, and ends with them. Answers whose process it was."""
    command = [interpreter, "-c", PROGRAM, str(Path(__file__).parents[1]), str(binaries or "")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    with subprocess.Popen(command, **pipes, text=True, user=user, env=environment(), cwd="/") as tests:
        assert tests.stdin is not None
        assert tests.stdout is not None
        dsn = (await asyncio.to_thread(tests.stdout.readline)).strip()
        connection = await asyncpg.connect(dsn)
        owner = os.stat(f"/proc/{await connection.fetchval('SELECT pg_backend_pid()')}").st_uid
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
    return owner


async def is_there(dsn: str) -> bool:
    try:
        connection = await asyncpg.connect(dsn)
    except (OSError, asyncpg.PostgresError):
        return False
    await connection.close()
    return True
