"""The options --version and --json of the root: the versions of Evertick, Python and its packages."""

from __future__ import annotations

import platform
import sqlite3
from importlib.metadata import PackageNotFoundError, version
from typing import Any

import click

from evertick.cli.show.output import print_json
from evertick.version import VERSION, commit

__all__ = ["PACKAGES", "version_json_option", "version_option"]

# The packages that Evertick always needs, then those of its extras.
PACKAGES = ("msgspec", "click", "rich", "asyncpg", "uvloop", "httpx", "redis", "nats-py", "nkeys", "holidays")


def _note_json(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    ctx.meta[__name__] = value


def _show(ctx: click.Context, param: click.Parameter, value: bool) -> None:
    as_json = ctx.meta[__name__]
    if ctx.resilient_parsing or not (value or as_json):
        return
    if not value:
        raise click.NoSuchOption("--json", ctx=ctx)
    if as_json:
        print_json(_versions())
    else:
        click.echo("\n".join(_lines()))
    ctx.exit()


version_option = click.option("--version", is_flag=True, expose_value=False, callback=_show, help="Print the versions.")
# Eager, so that --version knows its value in either order.
version_json_option = click.option(
    "--json", is_flag=True, is_eager=True, expose_value=False, callback=_note_json, help="Print JSON, with --version."
)


def _versions() -> dict[str, Any]:
    return {
        "version": VERSION,
        "commit": commit(),
        "python": platform.python_version(),
        "sqlite": sqlite3.sqlite_version,
        "packages": {name: _installed(name) for name in PACKAGES},
    }


def _installed(name: str) -> str | None:
    try:
        return version(name)
    except PackageNotFoundError:
        return None


def _lines() -> list[str]:
    found = _versions()
    built = f" (commit {found['commit']})" if found["commit"] else ""
    return [
        f"evertick {VERSION}{built}",
        f"Python {found['python']}",
        f"SQLite {found['sqlite']}",
        *(f"{name} {number or 'not installed'}" for name, number in found["packages"].items()),
    ]
