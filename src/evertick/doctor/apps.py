"""What can be wrong with an app: that nobody has ever used it, so that its name may be mistyped."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from evertick.doctor.finding import Finding, Severity, named

__all__ = ["about_empty_app", "apps_words"]


def about_empty_app(app: str, apps: Sequence[str]) -> Iterator[Finding]:
    """Of an app without a schedule, a run or a node. `apps`: those that have some."""
    if apps:
        yield Finding(
            severity=Severity.WARNING,
            check="empty_app",
            what=f"app {app} has no schedule, no run and no node; this database has {apps_words(apps)}",
            fix="name the app that you mean with --app, or start a node of this one",
            about=(app,),
        )
    else:
        yield Finding(
            severity=Severity.NOTE,
            check="empty_app",
            what=f"app {app} has no schedule, no run and no node, like every app of this database",
            fix="start a node with `evertick run module:attribute`",
            about=(app,),
        )


def apps_words(apps: Sequence[str]) -> str:
    return f"app {apps[0]}" if len(apps) == 1 else f"the apps {named(apps)}"
