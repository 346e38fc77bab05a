"""What can be asked for on the command line. What cannot is refused before anything begins."""

from __future__ import annotations

import argparse
import sys
import tempfile
from collections.abc import Callable, Collection, Sequence
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from benchmarks.contender.contenders import CONTENDERS, STORES
from benchmarks.plan import GROUPS, MEASUREMENTS, PROCESSES

__all__ = ["DOCS", "arguments"]

# Where the page is unless a folder is given.
DOCS = Path("docs/explanation")
# From here on two names look alike, from 0 to 1.
_NEAR = 0.6
_ALIASES = {"postgresql": "postgres"}


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Without `run`, options are those of a run; without anything it is not known whether hours are meant."""
    parser = _parser()
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    asked = parser.parse_args(given if given[0] in ("run", "report", "-h", "--help") else ["run", *given])
    if asked.command == "run":
        asked.rounds = asked.rounds or (1 if asked.quick else 5)
    return asked


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Evertick on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure: hours, or with --quick seconds; --help tells what can be chosen")
    run.add_argument("--store", action=_Names, known=STORES, metavar="STORE", help="that one alone (default: both)")
    run.add_argument(
        "--only",
        action=_Names,
        known=[*GROUPS, *(name for name in MEASUREMENTS if name not in GROUPS)],
        metavar="GROUP",
        help=f"{', '.join(GROUPS)}; or of these one measurement: {_measurements()}",
    )
    run.add_argument("--runs", type=_positive(10_000), help="runs in the full queue (default: 60,000)")
    run.add_argument(
        "--schedules",
        action="extend",
        nargs="+",
        type=_positive(10_000),
        help="so many (default: 1,000, 10,000, 100,000)",
    )
    run.add_argument(
        "--processes",
        action="extend",
        nargs="+",
        type=_processes,
        help="so many workers, 1 or 2 (default: both; quick: 1)",
    )
    run.add_argument("--peers", action="store_true", help="install other schedulers and measure them, too")
    names = [each.name for each in CONTENDERS]
    run.add_argument(
        "--contender",
        action=_Names,
        known=names,
        metavar="NAME",
        help=f"alone, of {', '.join(names)}; other schedulers are installed for it, without --peers, too",
    )
    run.add_argument("--million", action="store_true", help="a million schedules as well: once a minute, at once, idle")
    run.add_argument("--rounds", type=_positive(5), help="how often everything is measured (default 5; quick: 1)")
    run.add_argument(
        "--quick", action="store_true", help="tiny numbers, one process: shows that it works, measures nothing"
    )
    run.add_argument("--json", type=_file, metavar="FILE", help="write all samples there, after every case")
    run.add_argument("--plots", type=_folder, metavar="FOLDER", help="write the page and its pictures there")
    run.add_argument("--folder", type=_folder, default=Path(".bench"), help="on the disk to measure (default .bench)")
    run.add_argument("--dsn", help="a server on this machine, with pg_stat_statements (default: our own)")
    report = commands.add_parser("report", help="write the page and its pictures from what was measured")
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `run --json` has written")
    report.add_argument(
        "--folder",
        type=_folder,
        help=f"default: {DOCS}, if nothing that its page has is missing, and not of quick runs",
    )
    report.add_argument("--note", metavar="TEXT", help="what the page says of its runs; it is kept with the samples")
    return parser


def _measurements() -> str:
    """Of groups that are more than one, or are called otherwise."""
    by_group = {group: [each.name for each in MEASUREMENTS.values() if each.group == group] for group in GROUPS}
    return ", ".join(name for group, names in by_group.items() if names != [group] for name in names if name != group)


class _Names(argparse.Action):
    """Names, with commas or spaces between them, each once."""

    def __init__(self, option_strings: Sequence[str], dest: str, known: Collection[str], **more: Any) -> None:
        super().__init__(option_strings, dest, nargs="+", **more)
        self._known = known

    def __call__(
        self, parser: argparse.ArgumentParser, asked: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        names = [_ALIASES.get(name, name) for text in values for name in text.replace(",", " ").split()]
        for name in names:
            if name not in self._known:
                raise argparse.ArgumentError(self, f"there is no {name!r}, but {_there_are(name, self._known)}")
        setattr(asked, self.dest, [*dict.fromkeys([*(getattr(asked, self.dest) or []), *names])])


def _there_are(name: str, known: Collection[str]) -> str:
    """Sorted only if somebody may have meant one of them: the nearest of nonsense is nonsense, too."""
    nearness = {each: SequenceMatcher(None, name, each).ratio() for each in known}
    if max(nearness.values()) < _NEAR:
        return ", ".join(known)
    return f"(nearest first) {', '.join(sorted(known, key=nearness.__getitem__, reverse=True))}"


def _positive(example: int) -> Callable[[str], int]:
    """A whole number; `example` is one that makes sense there."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text)):
            said = f"{text!r} is no whole number from 1 on, in digits alone, such as {example}"
            raise argparse.ArgumentTypeError(said)
        return int(text)

    return parse


def _processes(text: str) -> int:
    number = _positive(2)(text)
    if number not in PROCESSES:
        many = " and ".join(map(str, PROCESSES))
        raise argparse.ArgumentTypeError(f"there is no {number}, but {many}; `limits` has three always")
    return number


def _file(text: str) -> Path:
    """One that can be written, which is seen in hours otherwise."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"there is no folder {path.parent} for {path.name}; make it first")
    if not _can_be_written(path.parent):
        raise argparse.ArgumentTypeError(f"nothing can be written into {path.parent}; name another folder")
    return path


def _folder(text: str) -> Path:
    """One that can be made, if it is not there, and written into."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file; name a folder")
    there = next(each for each in (path.resolve(), *path.resolve().parents) if each.exists())
    if not (there.is_dir() and _can_be_written(there)):
        raise argparse.ArgumentTypeError(f"nothing can be written into {there}; name another folder")
    return path


def _can_be_written(folder: Path) -> bool:
    """By trying: root is told that it may write everywhere, in /proc, too."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
