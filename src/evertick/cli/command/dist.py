"""The command dist: the files for running Evertick as a service, written from the installed package."""

from __future__ import annotations

import os
import re
import sys
from importlib.resources import files
from pathlib import Path

import click
import msgspec

from evertick.cli.show.output import Column, as_json_option, hint, print_json, print_table, say
from evertick.errors import Refused

__all__ = ["FILES", "dist"]


class DistFile(msgspec.Struct, frozen=True):
    """A file of `evertick/daemon/dist`, and where it belongs on a machine; None: beside a wheel of Evertick."""

    file: str
    target: str | None
    purpose: str

    @property
    def place(self) -> str:
        return self.target or "beside a wheel of Evertick"


FILES = (
    DistFile("evertick.service", "/etc/systemd/system/evertick.service", "systemd 247 or later"),
    DistFile("evertick.sysusers", "/usr/lib/sysusers.d/evertick.conf", "the user of the service"),
    DistFile("evertick.init", "/etc/init.d/evertick", "SysV init"),
    DistFile("evertick.logrotate", "/etc/logrotate.d/evertick", "rotation of log files"),
    DistFile("evertick.toml", "/etc/evertick/evertick.toml", "an example configuration"),
    DistFile("Containerfile", None, "podman, docker, buildah"),
)

# The program as the service file and the init script of the package name it.
_PROGRAM = "/opt/evertick/bin/evertick"
# systemd and the shell read other characters as syntax.
_PREFIX = re.compile(r"/[\w/.+@~-]*")
# ProtectHome and PrivateTmp of the service file hide these.
_HIDDEN = ("/home/", "/root/", "/run/user/", "/tmp/", "/var/tmp/")  # noqa: S108
_EXECUTABLE = "evertick.init"


@click.command()
@click.option(
    "--to", "folder", type=click.Path(file_okay=False, path_type=Path), metavar="DIR", help="Write the files to DIR."
)
@click.option("--prefix", metavar="DIR", help="Where Evertick is installed; default: this environment.")
@click.option("--force", is_flag=True, help="Replace existing files that differ.")
@click.option("--list", "is_list", is_flag=True, help="List the files; write nothing.")
@as_json_option
def dist(folder: Path | None, prefix: str | None, force: bool, is_list: bool, as_json: bool) -> None:
    """Write the files for running Evertick as a service.

    A unit for systemd, the user of the service, an init script, a file for logrotate, an example configuration and a
    Containerfile. The unit and the init script start PREFIX/bin/evertick.

    If DIR has a file that differs, nothing is written.

    \b
    Example:
      evertick dist --list
      evertick dist --to /opt/evertick/dist
      evertick dist --to packaging --prefix /usr
    """
    if is_list:
        _print_list(as_json)
        return
    if folder is None:
        raise click.UsageError("nothing to write to; add --to DIR, or --list")
    program = _program(prefix)
    changed = _write(folder, _texts(program), force=force)
    if as_json:
        rows = [{**msgspec.structs.asdict(each), "is_changed": each.file in changed} for each in FILES]
        print_json({"directory": str(folder), "program": program, "files": rows})
    else:
        columns = [Column(title=title) for title in ("FILE", "STATE", "GOES TO", "FOR")]
        print_table(
            columns,
            [
                (str(folder / each.file), "written" if each.file in changed else "unchanged", each.place, each.purpose)
                for each in FILES
            ],
        )
        say(f"evertick.service and evertick.init start {program}")
    if program.startswith(_HIDDEN):
        hint(
            f"warning: evertick.service hides {program} from the daemon (ProtectHome, PrivateTmp); "
            "install Evertick elsewhere, like /opt/evertick"
        )


def _print_list(as_json: bool) -> None:
    if as_json:
        print_json(FILES)
    else:
        columns = [Column(title=title) for title in ("FILE", "GOES TO", "FOR")]
        print_table(columns, [(each.file, each.place, each.purpose) for each in FILES])


def _program(prefix: str | None) -> str:
    folder = os.path.abspath(prefix or sys.prefix)
    if not _PREFIX.fullmatch(folder):
        raise click.UsageError(
            f"--prefix: {folder!r} has characters that systemd or the shell reads as syntax; install Evertick elsewhere"
        )
    program = os.path.join(folder, "bin/evertick")
    # With --prefix, the files may be for another machine.
    if prefix is None and not os.path.exists(program):
        raise Refused(f"{program} does not exist", fix="name the environment of Evertick with --prefix")
    return program


def _texts(program: str) -> dict[str, bytes]:
    source = files("evertick.daemon") / "dist"
    texts = {each.file: (source / each.file).read_bytes() for each in FILES}
    for name in ("evertick.service", "evertick.init"):
        texts[name] = texts[name].replace(_PROGRAM.encode(), program.encode())
    return texts


def _write(folder: Path, texts: dict[str, bytes], *, force: bool) -> set[str]:
    """The files that were written: all that were missing or different."""
    try:
        different = {name for name, text in texts.items() if _content(folder / name) not in (None, text)}
        if different and not force:
            names = ", ".join(name for name in texts if name in different)
            problem = f"{str(folder)!r} has other versions of {names}, so nothing was written"
            raise Refused(problem, fix="add --force to replace them")
        missing = {name for name in texts if _content(folder / name) is None}
        folder.mkdir(parents=True, exist_ok=True)
        for name in different | missing:
            path = folder / name
            path.write_bytes(texts[name])
            path.chmod(0o755 if name == _EXECUTABLE else 0o644)
    except OSError as error:
        problem = f"{str(error.filename)!r} cannot be written: {error.strerror}"
        raise Refused(problem, fix="name another directory with --to") from error
    return different | missing


def _content(path: Path) -> bytes | None:
    return path.read_bytes() if os.path.lexists(path) else None
