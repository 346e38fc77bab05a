"""Jobs that the configuration has with `enabled = false`, and the ledger has not.

One that was enabled before has a schedule, which is paused. One that begins disabled, as all that are imported do, has
none: the ledger knows nothing of it, and its daemon has its task alone. So commands look into the file.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import click

from evertick.config.build import scheduler_from
from evertick.config.load import load_configuration, load_disabled
from evertick.errors import InvalidConfiguration, NotFound, Refused
from evertick.model import Run

__all__ = ["disabled_jobs", "disabled_words", "remember_file", "tell_disabled", "try_disabled"]

_FILE = "evertick.cli.file"
_NAMED_MOST = 10


def remember_file(file: str | None, *, is_read: bool) -> None:
    """Which configuration the command goes by, for whoever asks later. `is_read`: whether it goes by one at all."""
    if (context := click.get_current_context(silent=True)) is not None and is_read:
        context.meta[_FILE] = file or ""


def disabled_jobs() -> dict[str, str]:
    """By name, where each stands. None where no file is read, or it cannot be."""
    context = click.get_current_context(silent=True)
    if context is None or _FILE not in context.meta:
        return {}
    try:
        return load_disabled(context.meta[_FILE] or None)
    except InvalidConfiguration:
        return {}


def disabled_words(name: str, place: str) -> str:
    return (
        f"{name!r} is a job that is disabled at {place}, and has no schedule yet; take `enabled = false` out there, or "
        f"try it once with `evertick trigger {name}`"
    )


def tell_disabled(disabled: Mapping[str, str], known: Iterable[str]) -> str | None:
    """Those that have no schedule, in a line."""
    left = {name: place for name, place in disabled.items() if name not in {*known}}
    if not left:
        return None
    named = ", ".join(f"{name} ({place})" for name, place in [*left.items()][:_NAMED_MOST])
    more = len(left) - _NAMED_MOST
    return f"note: disabled, and without a schedule: {named}{f' and {more} more' if more > 0 else ''}"


async def try_disabled(name: str, args: Mapping[str, Any] | None) -> Run:
    """Have the job run once, as its file has it now; by a node that knows its task."""
    loaded = load_configuration(click.get_current_context().meta[_FILE] or None)
    job = next((each for each in loaded.jobs if each.name == name), None)
    if job is None:
        raise NotFound(f"{loaded.file} has no job {name!r}")
    if job.spec is None or job.definition.mode == "every-node":
        # A task of other code is not known here, and a fire for every node is more than one run.
        disabled = disabled_words(name, job.places.get("enabled", job.place)).partition(", or try")[0]
        raise Refused(f"{disabled}; as it is, it cannot be tried")
    scheduler = scheduler_from(loaded)
    try:
        has, task = job.definition, scheduler.runtime.tasks[name]
        options = task.options(queue=has.queue, priority=has.priority, labels=has.labels)
        return await options.enqueue(**(has.args if args is None else args))
    finally:
        await scheduler.close()
