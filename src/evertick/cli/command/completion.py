"""The command completion, and what there is to complete: keys, ids of recent runs, tasks that live nodes know.

A completion never fails and never says anything: a store that is away, locked or wrong completes to nothing.
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
from evertick.clock import system_clock
from evertick.errors import EvertickError
from evertick.store.base import RunFilter, ScheduleFilter, Store
from evertick.store.sqlite.location import location_of
from evertick.store.url import open_store

__all__ = [
    "COMPLETE_VARIABLE",
    "complete_keys",
    "complete_runs",
    "complete_tasks",
    "completion",
]

_MOST = 100
# A user waits with a finger on the key.
_PATIENCE_SECONDS = 2.0


def complete_keys(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Schedules whose key begins like this."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        # A key that is typed already is completed, too, so that the shell goes on to the next word.
        wholes = await store.schedules(app, ScheduleFilter(keys=(incomplete,), with_counts=False))
        found = await store.schedules(app, ScheduleFilter(after_key=incomplete, limit=_MOST, with_counts=False))
        alike = [schedule for schedule in found if schedule.key.startswith(incomplete)]
        return [CompletionItem(schedule.key, help=clean(schedule.when)) for schedule in [*wholes, *alike]]

    return _found(ctx, find)


def complete_runs(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Recent runs whose id begins like this."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        runs = await store.runs(app, RunFilter(limit=_MOST))
        alike = [run for run in runs if run.id.startswith(incomplete)]
        return [CompletionItem(run.id, help=clean(f"{called(run)} {outcome(run)}")) for run in alike]

    return _found(ctx, find)


def complete_tasks(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Tasks that live nodes know."""

    async def find(store: Store, app: str) -> list[CompletionItem]:
        names = {name for node in await store.nodes(app) for name in node.tasks if node.died_at is None}
        return [CompletionItem(name) for name in sorted(names) if name.startswith(incomplete)]

    return _found(ctx, find)


def _found(ctx: click.Context, find: Callable[[Store, str], Awaitable[list[CompletionItem]]]) -> list[CompletionItem]:
    try:
        ledger = ledger_of(ctx.params.get("database"), ctx.params.get("app"), ctx.params.get("config"))
        if ledger.url.startswith("sqlite://") and not Path(location_of(ledger.url).path or "").is_file():
            return []
        return asyncio.run(asyncio.wait_for(_asked(ledger.url, ledger.app, find), _PATIENCE_SECONDS))
    except (EvertickError, click.UsageError, OSError, TimeoutError):
        return []


async def _asked(
    url: str, app: str, find: Callable[[Store, str], Awaitable[list[CompletionItem]]]
) -> list[CompletionItem]:
    store = open_store(url, clock=system_clock)
    await store.open(migrate="check")
    try:
        return await find(store, app)
    finally:
        await store.close()


COMPLETE_VARIABLE = "_EVERTICK_COMPLETE"
_PROGRAM = "evertick"
_SHELLS = ("bash", "zsh", "fish")


@click.command()
@click.argument("shell", type=click.Choice(_SHELLS), metavar="SHELL")
@as_json_option
@click.pass_context
def completion(ctx: click.Context, shell: str, as_json: bool) -> None:
    """Print the script that completes evertick in a shell.

    SHELL is bash, zsh or fish.

    Load it in the file that the shell reads at its start. It completes commands, flags, the keys of schedules and the
    ids of recent runs.

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
