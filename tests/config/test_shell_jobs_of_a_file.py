"""Shell jobs of a file end to end: from the text of the file to the effect of the command."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path

from evertick import Run, Scheduler
from evertick.config.build import scheduler_from
from evertick.config.load import Configuration

TEXT = r"""
[database]
url = "sqlite:///jobs.db"

[jobs.greet]
every = "1d"
args = { who = "you" }
[jobs.greet.shell]
command = 'printf "%s %s %s" "${GREETING:-none}" "${TOKEN}" "${UNSET-unset}"'
env = { GREETING = "${WORD}", TOKEN = { secret = "TOKEN" } }

[jobs.fails]
every = "1d"
shell = "exit 3"
retry = { constant = "1ms", attempts = 2 }

[jobs.list]
every = "1d"
shell = { command = ["printf", "%s", "${WORD} $${WORD}"] }
"""


async def ended(scheduler: Scheduler, key: str) -> Run:
    run = await scheduler.trigger(key)
    while (run := await scheduler.get_run(run.id)).verdict is None:
        await asyncio.sleep(0.01)
    return run


async def test_commands_of_a_file_run_as_configured(
    folder: Path, write: Callable[..., Path], load: Callable[..., Configuration]
) -> None:
    (folder / "secrets").mkdir(mode=0o700)
    write("hush", "secrets/TOKEN")
    loaded = load(TEXT, {"WORD": "hello"})
    scheduler = scheduler_from(loaded)
    async with asyncio.timeout(60), scheduler:
        greeted = await ended(scheduler, "greet")
        assert str(greeted.verdict) == "succeeded", greeted.error
        failed = await ended(scheduler, "fails")
        assert (str(failed.verdict), failed.attempts) == ("failed", 2)
        listed = await ended(scheduler, "list")
        lines = {run.id: [line.text for line in await scheduler.log(run)] for run in (greeted, listed)}
    # References in the text of a command are left to the shell; in its variables and arguments they are expanded.
    assert lines[greeted.id][0] == "hello *** unset"
    assert lines[listed.id][0] == "hello ${WORD}"
