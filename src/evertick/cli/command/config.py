"""The group config: checks a configuration, and shows its values."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any

import click

from evertick.cli.database import config_option
from evertick.cli.exits import EXIT_WRONG
from evertick.cli.show.output import Column, as_json_option, hint, print_json, print_table, say
from evertick.config.files import find_file, searched_files
from evertick.config.load import Configuration, load_configuration
from evertick.config.show import shown_defaults, shown_jobs, shown_values
from evertick.errors import InvalidConfiguration, NotFound
from evertick.text.did_you_mean import nearest
from evertick.text.redact import masked

__all__ = ["config", "tell_warnings"]


@click.group(no_args_is_help=True)
def config() -> None:
    """Check or show the configuration: check, show.

    \b
    Example:
      evertick config check
      evertick config show --config /etc/evertick/evertick.toml
    """


@config.command()
@config_option
@as_json_option
def check(config: str | None, as_json: bool) -> None:
    """Check the configuration, and list all errors with file and line.

    Reads the file, the files that it includes, the directory of jobs, and the environment. Opens no database. Exit code
    0 without errors, also with warnings; 2 with errors.

    \b
    Example:
      evertick config check
      evertick config check --config new.toml --json
    """
    file = find_file(config)
    if file is None:
        raise click.UsageError(f"there is no configuration at {searched_files()}; name one with --config")
    try:
        loaded = load_configuration(file)
    except InvalidConfiguration as error:
        _print_problems(str(file), error, as_json)
        raise click.exceptions.Exit(EXIT_WRONG) from None
    warnings = (*loaded.warnings, *_about_no_jobs(loaded))
    if as_json:
        print_json(_verdict(str(file), (), warnings, len(loaded.jobs)))
        return
    tell_warnings(warnings)
    say(f"{file} is valid: {loaded.jobs_words}, database {masked(loaded.database_url)}")


def _about_no_jobs(loaded: Configuration) -> Iterator[str]:
    """A node may start without jobs, but a file that is checked should have some."""
    if not loaded.jobs:
        yield f"{loaded.file}: it has no job, so nothing runs; write [jobs.NAME], or name another --config"


@config.command()
@click.argument("job", required=False)
@config_option
@as_json_option
def show(job: str | None, config: str | None, as_json: bool) -> None:
    """Show the values in force, and where each comes from.

    Passwords and tokens of the settings are hidden, and so are the user and query of a URL, and keys with a name like
    password, token or api_key. A secret within a command or args is shown as it is written: write it as { secret =
    "NAME" }, and only the name is shown.

    With the name of a JOB: all values of that job, with those of the defaults. A value from the environment, ${NAME},
    is shown as the file has it. Keys without a value are shown in JSON only.

    \b
    Example:
      evertick config show
      evertick config show backup
      evertick config show --json | jq '.jobs[].keys.timeout'
    """
    loaded = load_configuration(config)
    if job is not None:
        _show_job(_job_named(loaded, job), as_json)
        return
    if as_json:
        print_json(_shown_data(loaded))
        return
    tell_warnings(loaded.warnings)
    columns = [
        Column(title="KEY"),
        Column(title="VALUE", is_cut=True, is_whole_below=True),
        Column(title="ORIGIN", is_cut=True, is_whole_below=True),
    ]
    shown = [*shown_values(loaded), *shown_defaults(loaded)]
    print_table(columns, [(each.key, _text(each.value), each.origin) for each in shown if each.value is not None])
    if loaded.jobs:
        say("")
        when = Column(title="WHEN", is_cut=True, is_whole_below=True)
        columns = [Column(title="JOB"), when, Column(title="BY"), Column(title="PLACE", is_whole_below=True)]
        print_table(columns, _job_rows(loaded))


def _job_named(loaded: Configuration, name: str) -> dict[str, Any]:
    jobs = {job["name"]: job for job in shown_jobs(loaded)}
    if name not in jobs:
        known = nearest(name, jobs, what="there are") if jobs else "it has no jobs"
        raise NotFound(f"{loaded.file} has no job {name!r}", fix=known)
    return jobs[name]


def _show_job(job: dict[str, Any], as_json: bool) -> None:
    if as_json:
        print_json(job)
        return
    value = Column(title="VALUE", is_cut=True, cut_least=30, is_whole_below=True)
    columns = [Column(title="KEY"), value, Column(title="ORIGIN", is_cut=True, is_whole_below=True)]
    print_table(columns, [(name, _text(each["value"]), each["origin"]) for name, each in job["keys"].items()])


def tell_warnings(warnings: Iterable[str]) -> None:
    for warning in warnings:
        hint(f"warning: {warning}")


def _print_problems(file: str, error: InvalidConfiguration, as_json: bool) -> None:
    if as_json:
        print_json(_verdict(file, error.problems, error.warnings, None))
        return
    for problem in error.problems:
        say(problem)
    tell_warnings(error.warnings)


def _verdict(file: str, problems: tuple[str, ...], warnings: tuple[str, ...], jobs: int | None) -> dict[str, Any]:
    return {"file": file, "is_right": not problems, "problems": problems, "warnings": warnings, "jobs": jobs}


def _shown_data(loaded: Configuration) -> dict[str, Any]:
    return {
        "file": None if loaded.file is None else str(loaded.file),
        "files": [str(path) for path in loaded.digests],
        "values": [*shown_values(loaded), *shown_defaults(loaded)],
        "jobs": shown_jobs(loaded),
        "warnings": loaded.warnings,
    }


def _job_rows(loaded: Configuration) -> list[tuple[str, str, str, str]]:
    return [(job["name"], job["when"], _by(job), job["place"]) for job in shown_jobs(loaded)]


def _by(job: dict[str, Any]) -> str:
    by = job["driver"] or f"task {job['task']}"
    return by if job["enabled"] else f"{by}, disabled"


def _text(value: Any) -> str:
    match value:
        case bool():
            return str(value).lower()
        case list():
            return ", ".join(map(str, value))
        case dict():
            return ", ".join(f"{name} = {_text(each)}" for name, each in value.items())
        case _:
            return str(value)
