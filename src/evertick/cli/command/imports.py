"""The group import: jobs of other schedulers, written down as jobs of Evertick. Nothing runs by it unless asked for."""

from __future__ import annotations

import os
import shutil
import sys
from collections.abc import Callable
from pathlib import Path
from zoneinfo import ZoneInfo

import click
import msgspec

from evertick.cli.parameters import ZoneParameter
from evertick.cli.show.output import as_json_option, hint, print_json, say
from evertick.driver.shell.spec import is_user
from evertick.errors import InvalidInput, NotFound, Refused
from evertick.imports.apscheduler import read_jobs, read_table
from evertick.imports.crontab import CrontabOptions, local_zone, read_crontab
from evertick.imports.imported import ImportResult
from evertick.imports.job_names import names_in_use
from evertick.imports.python import to_python
from evertick.imports.toml import to_toml
from evertick.text.redact import masked
from evertick.text.regular_file import read_regular

__all__ = ["import_"]

_SYSTEM = Path("/etc/crontab")
_SYSTEM_FOLDER = Path("/etc/cron.d")
_READ_MAX = 4 * 1024 * 1024

_AS_CRON = (
    "They do what cron did: it starts a job though its last run may not be over, forgets what it missed while it",
    "was down, runs nothing again, whether it failed or was cut off, and gives jobs hardly any environment. Without",
    "overlap, catch_up, retry, on_lost and clean_env Evertick does that in its own way. What else [defaults] says,",
    "like a timeout, holds for them, too.",
)
_DISABLED = (
    "None of them runs yet: each has enabled = false. Take its line out of the crontab, and then that key out of the",
    "job; out of all at once: sed -i '/^enabled = false$/d' {file}",
)

_output_option = click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; default: standard output."
)
_force_option = click.option("--force", is_flag=True, help="Write over the output file if it is there.")


@click.group("import", no_args_is_help=True)
def import_() -> None:
    """Take over jobs of other schedulers: crontab, apscheduler.

    What could not be carried over is told on stderr and at the head of what is written.

    \b
    Example:
      evertick import crontab /etc/cron.d/shop --output jobs.toml
      evertick import apscheduler sqlite:///jobs.sqlite --output jobs.py
    """


@import_.command()
@click.argument("file", required=False)
@click.option(
    "--system", is_flag=True, help="Each line names its user, as in /etc/crontab, the default, and in /etc/cron.d."
)
@click.option("--user", metavar="NAME", help="Whose crontab it is: the user that its jobs run as.")
@click.option("--tz", type=ZoneParameter(), help="The zone of its times; default: that of this machine.")
@click.option("--ignore-cron-tz", is_flag=True, help="Leave lines CRON_TZ= alone, as Debian's cron does.")
@click.option(
    "--enabled",
    is_flag=True,
    help="Write jobs that run as soon as a daemon reads them; without it each has enabled = false.",
)
@_output_option
@_force_option
@as_json_option
def crontab(
    file: str | None,
    system: bool,
    user: str | None,
    tz: ZoneInfo | None,
    ignore_cron_tz: bool,
    enabled: bool,
    output: Path | None,
    force: bool,
    as_json: bool,
) -> None:
    """Make shell jobs of a crontab, as a configuration file.

    FILE is a crontab, "-" for standard input, which is the default. /etc/crontab and what is in /etc/cron.d name a user
    in each line, without --system, too. A job whose name is taken by one in the files beside --output gets a number.

    Each job has enabled = false, for cron still runs it, and a daemon reads what is written to its jobs.d within two
    seconds.

    \b
    Example:
      evertick import crontab /etc/cron.d/shop --tz Europe/Berlin
      evertick import crontab --system --output jobs.d/system.toml
      crontab -l | evertick import crontab
    """
    zone = local_zone() if tz is None else tz.key
    source = file or (str(_SYSTEM) if system else "-")
    has_users = system or _is_of_system(source)
    if has_users and user is not None:
        where = "with --system" if system else f"in {source}"
        raise click.UsageError(f"--user is for a crontab without users, and {where} each line names its own")
    options = CrontabOptions(
        tz=zone or "UTC",
        has_users=has_users,
        user=user,
        home=None if has_users else os.path.expanduser("~"),
        honours_cron_tz=not ignore_cron_tz,
        is_user=is_user,
        must_be_user=_must_be_user,
        taken={} if output is None else names_in_use(output),
        is_enabled=enabled,
        file_name=_package_of(source) if has_users else "",
    )
    imported = read_crontab(_text_of(source), options)
    if has_users and not system:
        hint(f"{source} is a crontab of the system, in which each line names its user", head="note: ")
    named = "standard input" if source == "-" else source
    head = [f"The jobs of {named}, as `evertick import crontab` has read them.", "", *_AS_CRON]
    if imported.jobs and not enabled:
        file = "THIS_FILE" if output is None else output.name
        head += ["", *(line.format(file=file) for line in _DISABLED)]
    if any("user" in job.spec for job in imported.jobs):
        head += ["", "Jobs with a user need a node that runs as root."]
    if zone is None:
        hint("this machine does not tell its zone, so times are in UTC; name the zone with --tz", head="note: ")
    then = "look it over; a daemon that reads it runs them from now on" if enabled else _then(imported)
    giving = _Giving(output=output, force=force, as_json=as_json, then=then)
    _give(imported, lambda: to_toml(imported, head), giving)


@import_.command()
@click.argument("url")
@click.option("--table", default="apscheduler_jobs", show_default=True, help="The table of the job store.")
@_output_option
@_force_option
@as_json_option
def apscheduler(url: str, table: str, output: Path | None, force: bool, as_json: bool) -> None:
    """Make a Python module of the jobs in a store of APScheduler 3.

    URL is that of its SQLAlchemyJobStore. The jobs are pickles, and are read as data: nothing in them is run. A job
    whose id is taken by one in the files beside --output gets a number.

    \b
    Example:
      evertick import apscheduler sqlite:///jobs.sqlite
      evertick import apscheduler postgresql+psycopg://me@db/shop --output jobs.py
    """
    imported = read_jobs(read_table(url, table), {} if output is None else names_in_use(output))
    head = [
        f"The jobs of {table} in {masked(url)}, as `evertick import apscheduler` has read them.",
        "",
        "What is due while the clock is changed differs, see the page 'Come from APScheduler'. To run it:",
        "evertick run NAME_OF_THIS_FILE:scheduler",
    ]
    giving = _Giving(output=output, force=force, as_json=as_json, then="look it over before you use it")
    _give(imported, lambda: to_python(imported, head), giving)


def _is_of_system(source: str) -> bool:
    path = Path(os.path.abspath(source))
    return source != "-" and (path == _SYSTEM or path.parent == _SYSTEM_FOLDER)


def _package_of(source: str) -> str:
    """The package that a file in /etc/cron.d, or a copy of one, is named after; /etc/crontab belongs to no package."""
    name = os.path.basename(source)
    return "" if source == "-" or name == _SYSTEM.name or source.startswith("/dev/") else name


def _must_be_user(word: str) -> bool:
    """Users are called like programs, too, as mail, news or git; those are programs where a crontab has no users."""
    return word == "root" or (is_user(word) and shutil.which(word) is None)


def _text_of(source: str) -> str:
    if source == "-":
        if sys.stdin.isatty():
            raise click.UsageError(
                "name a file, or give the crontab on standard input: crontab -l | evertick import crontab"
            )
        data = sys.stdin.buffer.read(_READ_MAX + 1)
    else:
        try:
            data = read_regular(source, _READ_MAX, may_be_stream=True)
        except FileNotFoundError:
            raise NotFound(f"there is no file {source!r}") from None
        except OSError as error:
            raise Refused(f"{source!r} cannot be read: {error.strerror}") from None
    if len(data) > _READ_MAX:
        raise InvalidInput(f"{source!r} has more than {_READ_MAX} bytes; import it in parts")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{source!r}: line {line} is no UTF-8 text; convert it, e.g. with iconv") from None


class _Giving(msgspec.Struct, frozen=True, kw_only=True):
    """Where the outcome goes, and what is to be done with it."""

    output: Path | None
    force: bool
    as_json: bool
    then: str


def _then(imported: ImportResult) -> str:
    if not imported.jobs:
        return "there is nothing to run in it"
    each = "with enabled = false" if len(imported.jobs) == 1 else "each with enabled = false"
    return f"{each}: look it over, and take that away where cron does not run the job any more"


def _give(imported: ImportResult, write: Callable[[], str], giving: _Giving) -> None:
    """Write it where it is wanted, and tell of what could not be carried over."""
    output = giving.output
    if not imported.jobs and not imported.notes:
        hint("there is no job in it", head="note: ")
    if output is not None:
        _save(output, write(), force=giving.force)
    if giving.as_json:
        print_json(imported)
    else:
        _tell(imported)
        if output is None:
            click.echo(write(), nl=False)
        else:
            count = len(imported.jobs)
            say(f"{count} {'job' if count == 1 else 'jobs'} written to {output}; {giving.then}")
    if imported.lost:
        raise click.exceptions.Exit(1)


def _tell(imported: ImportResult) -> None:
    for note in imported.notes:
        said = note.text if note.kind == "check" else f"not carried over: {note.text}"
        hint(f"{note.where}: {said}", head="note: ")


def _save(path: Path, text: str, *, force: bool) -> None:
    # For oneself alone, as crontabs are: people write passwords into them.
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Refused(f"{str(path)!r} is there already; choose another --output, or write --force") from None
    except FileNotFoundError:
        raise Refused(
            f"there is no directory {str(path.parent)!r} to write {path.name!r} into; make it first"
        ) from None
    except OSError as error:
        raise Refused(f"{str(path)!r} cannot be written: {error.strerror}") from None
