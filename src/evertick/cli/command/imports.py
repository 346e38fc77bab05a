"""The group import: converts jobs of other schedulers to jobs of Evertick. It starts none of them."""

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
    "They run as under cron: a job starts even if its last run has not ended, fires missed during downtime are not",
    "made up for, failed or interrupted jobs are not run again, and jobs get a small environment. Remove overlap,",
    "catch_up, retry, on_lost and clean_env to get the defaults of Evertick. The other keys of [defaults], like a",
    "timeout, apply to them, too.",
)
_DISABLED = (
    "None of them runs yet: each has enabled = false. Remove its line from the crontab, and then that key from the",
    "job; to remove it from all jobs at once: sed -i '/^enabled = false$/d' {file}",
)

_output_option = click.option(
    "--output", type=click.Path(path_type=Path, dir_okay=False), help="The file to write; default: standard output."
)
_force_option = click.option("--force", is_flag=True, help="Replace an existing output file.")


@click.group("import", no_args_is_help=True)
def import_() -> None:
    """Import jobs of other schedulers: crontab, apscheduler.

    Parts that cannot be imported are reported on stderr and at the head of the file.

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
@click.option("--user", metavar="NAME", help="The owner of the crontab, and the user of its jobs.")
@click.option("--tz", type=ZoneParameter(), help="The zone of its times; default: that of this machine.")
@click.option("--ignore-cron-tz", is_flag=True, help="Ignore CRON_TZ= lines, as Debian's cron does.")
@click.option("--enabled", is_flag=True, help="Write enabled jobs; default: each has enabled = false.")
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
    """Convert a crontab to a configuration file with shell jobs.

    FILE is a crontab; "-", the default, is standard input. The lines of /etc/crontab and of files in /etc/cron.d name a
    user, also without --system. A job whose name another file beside --output already has gets a number.

    Each job has enabled = false, because cron still runs it, and a daemon reads new files in its jobs.d within two
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
        raise click.UsageError(f"{where} each line names its user; leave out --user")
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
        hint(f"{source} is a system crontab, in which each line names its user", head="note: ")
    named = "standard input" if source == "-" else source
    head = [f"The jobs of {named}, imported by `evertick import crontab`.", "", *_AS_CRON]
    if imported.jobs and not enabled:
        file = "THIS_FILE" if output is None else output.name
        head += ["", *(line.format(file=file) for line in _DISABLED)]
    if any("user" in job.spec for job in imported.jobs):
        head += ["", "Jobs with a user need a node that runs as root."]
    if zone is None:
        hint("the zone of this machine is unknown, so times are in UTC; name the zone with --tz", head="note: ")
    next_step = "check it; a daemon that reads it runs the jobs" if enabled else _next_step(imported)
    target = _Target(output=output, force=force, as_json=as_json, next_step=next_step)
    _deliver(imported, lambda: to_toml(imported, head), target)


@import_.command()
@click.argument("url")
@click.option("--table", default="apscheduler_jobs", show_default=True, help="The table of the job store.")
@_output_option
@_force_option
@as_json_option
def apscheduler(url: str, table: str, output: Path | None, force: bool, as_json: bool) -> None:
    """Convert the jobs in a store of APScheduler 3 to a Python module.

    URL is that of its SQLAlchemyJobStore. The jobs are pickles; they are read as data, and no code in them is run. A
    job whose id another file beside --output already has gets a number.

    \b
    Example:
      evertick import apscheduler sqlite:///jobs.sqlite
      evertick import apscheduler postgresql+psycopg://me@db/shop --output jobs.py
    """
    imported = read_jobs(read_table(url, table), {} if output is None else names_in_use(output))
    head = [
        f"The jobs of {table} in {masked(url)}, imported by `evertick import apscheduler`.",
        "",
        "Fires during a clock change differ, see the page 'Come from APScheduler'. To run it:",
        "evertick run NAME_OF_THIS_FILE:scheduler",
    ]
    target = _Target(output=output, force=force, as_json=as_json, next_step="check it before you use it")
    _deliver(imported, lambda: to_python(imported, head), target)


def _is_of_system(source: str) -> bool:
    path = Path(os.path.abspath(source))
    return source != "-" and (path == _SYSTEM or path.parent == _SYSTEM_FOLDER)


def _package_of(source: str) -> str:
    """The package of a file in /etc/cron.d, or of a copy of one; empty for /etc/crontab."""
    name = os.path.basename(source)
    return "" if source == "-" or name == _SYSTEM.name or source.startswith("/dev/") else name


def _must_be_user(word: str) -> bool:
    """Whether a word is a user and not a program. Some are both, like mail or git: these are taken as programs."""
    return word == "root" or (is_user(word) and shutil.which(word) is None)


def _text_of(source: str) -> str:
    if source == "-":
        if sys.stdin.isatty():
            raise click.UsageError(
                "name a file, or pass the crontab on standard input: crontab -l | evertick import crontab"
            )
        data = sys.stdin.buffer.read(_READ_MAX + 1)
    else:
        try:
            data = read_regular(source, _READ_MAX, may_be_stream=True)
        except FileNotFoundError:
            raise NotFound(f"there is no file {source!r}", fix="correct the path, or write - for stdin") from None
        except OSError as error:
            problem = f"{source!r} cannot be read: {error.strerror}"
            raise Refused(problem, fix="name a readable file, or write - for stdin") from None
    if len(data) > _READ_MAX:
        raise InvalidInput(f"{source!r} has more than {_READ_MAX} bytes", fix="import it in parts")
    try:
        return data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise InvalidInput(f"{source!r}: line {line} is not UTF-8 text", fix="convert it, e.g. with iconv") from None


class _Target(msgspec.Struct, frozen=True, kw_only=True):
    """Where the result is written, and the next step for the user."""

    output: Path | None
    force: bool
    as_json: bool
    next_step: str


def _next_step(imported: ImportResult) -> str:
    if not imported.jobs:
        return "it has no job to run"
    each = "with enabled = false" if len(imported.jobs) == 1 else "each with enabled = false"
    return f"{each}: check them, and remove that key when cron no longer runs the job"


def _deliver(imported: ImportResult, write: Callable[[], str], target: _Target) -> None:
    """Write the result, and report the parts that were not imported."""
    output = target.output
    if not imported.jobs and not imported.notes:
        hint("no job was found", head="note: ")
    if output is not None:
        _save(output, write(), force=target.force)
    if target.as_json:
        print_json(imported)
    else:
        _print_notes(imported)
        if output is None:
            click.echo(write(), nl=False)
        else:
            count = len(imported.jobs)
            say(f"{count} {'job' if count == 1 else 'jobs'} written to {output}; {target.next_step}")
    if imported.lost:
        raise click.exceptions.Exit(1)


def _print_notes(imported: ImportResult) -> None:
    for note in imported.notes:
        text = note.text if note.kind == "check" else f"not carried over: {note.text}"
        hint(f"{note.where}: {text}", head="note: ")


def _save(path: Path, text: str, *, force: bool) -> None:
    # Readable for the owner only, like crontabs: commands may have passwords.
    flags = os.O_WRONLY | os.O_CREAT | (os.O_TRUNC if force else os.O_EXCL)
    try:
        with open(os.open(path, flags, 0o600), "w", encoding="utf-8") as opened:
            opened.write(text)
    except FileExistsError:
        raise Refused(f"{str(path)!r} already exists", fix="choose another --output, or write --force") from None
    except FileNotFoundError:
        raise Refused(f"there is no directory {str(path.parent)!r} for --output", fix="create it first") from None
    except OSError as error:
        problem = f"{str(path)!r} cannot be written: {error.strerror}"
        raise Refused(problem, fix="choose another --output") from None
