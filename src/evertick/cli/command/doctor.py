"""The command doctor: what is wrong, or will surprise somebody, and what to do about it."""

from __future__ import annotations

import asyncio

import click

from evertick.cli.command.db import care_of
from evertick.cli.database import app_option, check_exists, config_option, database_option, ledger_of
from evertick.cli.show.output import as_json_option, print_facts, print_json, say
from evertick.cli.show.progress import progress
from evertick.cli.show.words import now
from evertick.clock import system_clock
from evertick.definition.settings import check_key
from evertick.doctor import Finding, Severity, about_store, examine, examine_database
from evertick.errors import EvertickError, Refused, StoreRefused
from evertick.store.base import Maintenance
from evertick.store.url import open_store

__all__ = ["doctor"]


@click.command()
@as_json_option
@database_option
@app_option
@config_option
def doctor(as_json: bool, database: str | None, app: str | None, config: str | None) -> None:
    """Find what is wrong, and say what to do about it.

    The database, the clock, nodes, runs and schedules. Changes nothing. Exit code 0 if there is nothing but notes, 1
    after a warning or an error.

    \b
    Example:
      evertick doctor
      evertick doctor --json | jq '.[] | select(.severity == "error")'
    """
    ledger = ledger_of(database, app, config)
    check_key(ledger.app, what="app")
    try:
        check_exists(ledger.url, ledger.searched)
        if not as_json:
            ledger.tell()
        findings = asyncio.run(_examine(ledger.url, ledger.app, as_json))
    except StoreRefused as missing:
        findings = [about_store(missing)]
    if as_json:
        print_json(findings)
    else:
        _print(findings)
    if any(finding.severity is not Severity.NOTE for finding in findings):
        raise click.exceptions.Exit(1)


async def _examine(url: str, app: str, as_json: bool) -> list[Finding]:
    with progress("examining", is_quiet=as_json) as report:
        report(0, None)
        care = _care_if_any(url)
        about_file = [] if care is None else await examine_database(care)
        is_broken = any(finding.check in ("integrity", "store") for finding in about_file)
        return about_file + await _examine_app(url, app, is_known_broken=is_broken)


def _care_if_any(url: str) -> Maintenance | None:
    try:
        return care_of(url)
    except Refused:
        return None


async def _examine_app(url: str, app: str, *, is_known_broken: bool) -> list[Finding]:
    store = open_store(url, clock=system_clock)
    try:
        await store.open(migrate="check")
    except EvertickError as error:
        if is_known_broken:
            return []
        return [about_store(error)]
    try:
        return await examine(store, app, now())
    finally:
        await store.close()


def _print(findings: list[Finding]) -> None:
    print_facts((finding.severity.value, [finding.what, f"fix: {finding.fix}"]) for finding in findings)
    counts = [(each, sum(finding.severity is each for finding in findings)) for each in Severity]
    told = [f"{count} {each.value}{'' if count == 1 else 's'}" for each, count in counts if count]
    say(", ".join(told) or "nothing is wrong")
