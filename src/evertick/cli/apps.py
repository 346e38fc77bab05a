"""A hint for whoever looks at an app that has nothing to show, while the database has others."""

from __future__ import annotations

from evertick.cli.show.output import hint
from evertick.doctor.apps import apps_words
from evertick.scheduler.scheduler import Scheduler

__all__ = ["hint_other_apps"]


async def hint_other_apps(scheduler: Scheduler) -> None:
    others = [app for app in await (await scheduler.runtime.store()).apps() if app != scheduler.app]
    if others:
        hint(f"this database has {apps_words(others)}; name another with --app")
