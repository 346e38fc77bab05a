"""The command completion, and the completed words: keys, ids of recent runs, tasks that live nodes know.

A completion never prints an error: with a store that is unavailable, locked or wrong it has no results.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

import click
from click.shell_completion import CompletionItem, get_completion_class

from evertick.cli.database import ledger_of
from evertick.cli.show.output import as_json_option, clean, print_json
from evertick.cli.show.words import called, outcome
from evertick.errors import EvertickError
from evertick.operations.schedules import schedules_with_prefix
from evertick.scheduler.operation import call
from evertick.scheduler.scheduler import Scheduler
from evertick.store.sqlite.location import location_of

__all__ = [
    "COMPLETE_VARIABLE",
    "complete_keys",
    "complete_runs",
    "complete_tasks",
    "completion",
]

_MOST = 100
# A user waits for the completion.
_TIMEOUT_SECONDS = 2.0


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Schedules whose key begins with `incomplete`."""

    async def find(scheduler: Scheduler) -> list[CompletionItem]:
        # A complete key is a result, too, so that the shell continues with the next word.
        found = await call(scheduler, schedules_with_prefix, incomplete, limit=_MOST)
        return [CompletionItem(schedule.key, help=clean(schedule.when)) for schedule in found]

    return _found(ctx, find)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Recent runs whose id begins with `incomplete`."""

    async def find(scheduler: Scheduler) -> list[CompletionItem]:
        runs = [run for run in await scheduler.runs(limit=_MOST) if run.id.startswith(incomplete)]
        return [CompletionItem(run.id, help=clean(f"{called(run)} {outcome(run)}")) for run in runs]

    return _found(ctx, find)


def complete_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks that live nodes know and whose name begins with `incomplete`."""

    async def find(scheduler: Scheduler) -> list[CompletionItem]:
        names = {name for node in await scheduler.nodes() for name in node.tasks if node.died_at is None}
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return _found(ctx, find)


def _found(ctx: click.Context, find: Callable[[Scheduler], Awaitable[list[CompletionItem]]]) -> list[CompletionItem]:
    try:
        ledger = ledger_of(ctx.params.get("database"), ctx.params.get("app"), ctx.params.get("config"))
        if ledger.url.startswith("sqlite://") and not Path(location_of(ledger.url).path or "").is_file():
            return []
        return asyncio.run(asyncio.wait_for(_search(ledger.scheduler(), find), _TIMEOUT_SECONDS))
    except (EvertickError, click.UsageError, OSError, TimeoutError):
        return []


async def _search(
    scheduler: Scheduler, find: Callable[[Scheduler], Awaitable[list[CompletionItem]]]
) -> list[CompletionItem]:
    try:
        return await find(scheduler)
    finally:
        await scheduler.close()


COMPLETE_VARIABLE = "_EVERTICK_COMPLETE"
_PROGRAM = "evertick"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="SHELL")
@as_json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the completion script of evertick for a shell.

    SHELL is bash, zsh or fish.

    Load it in the start-up file of the shell. It completes commands, flags, keys of schedules and ids of recent runs.

    \b
    Example:
      evertick completion bash >> ~/.bashrc
      evertick completion zsh >> ~/.zshrc
      evertick completion fish > ~/.config/fish/completions/evertick.fish
    """
    kind = get_completion_class(shell)
    assert kind is not None
    script = kind(ctx.find_root().command, {}, _PROGRAM, COMPLETE_VARIABLE).source()
    if as_json:
        print_json({"shell": shell, "script": script})
    else:
        click.echo(script)
