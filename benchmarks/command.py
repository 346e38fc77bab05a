"""The command line: `run` measures, `report` writes the page and the tables. Wrong arguments fail before any work."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import signal
import sys
import tempfile
from collections.abc import Callable, Collection, Iterator, Sequence
from contextlib import contextmanager
from difflib import SequenceMatcher
from pathlib import Path
from typing import Any

from benchmarks.backend.server import data_folder, server, settings, version
from benchmarks.contender.contenders import CONTENDERS, STORES
from benchmarks.contender.environment import Environment, Unavailable, environment_of
from benchmarks.errors import NotDurable, UsageError
from benchmarks.machine import describe, disk_of, is_changed_since, is_known, load, run_of
from benchmarks.plan import GROUPS, MEASUREMENTS, PROCESSES, Selection, available, cases
from benchmarks.report.page import PAGE, SAMPLES, write_page
from benchmarks.report.tables import tables_of, write_tables
from benchmarks.rounds import Backends, run_rounds
from benchmarks.samples import Results
from benchmarks.size import FULL, QUICK, Size

__all__ = ["DOCS", "TABLES", "arguments", "main", "report"]

# The default folders of the page and of the tables.
DOCS = Path("docs/explanation")
TABLES = Path("benchmarks/results")
# The environments of peers, in the folder of the benchmarks; they are kept, because installing takes minutes.
_PEERS = "peers"
# Names are similar from this ratio on, between 0 and 1.
_SIMILAR = 0.6
_ALIASES = {"postgresql": "postgres"}


def main() -> None:
    args = arguments(sys.argv[1:])
    # TERM ends the processes that the benchmarks have started as well.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        (report if args.command == "report" else run)(args)
    except NotDurable as reason:
        sys.exit(f"nothing is measured: {reason}")
    except UsageError as reason:
        sys.exit(str(reason))


# --- report


def report(args: argparse.Namespace) -> None:
    results = Results.read(args.files)
    results.note = args.note or results.note
    if results.quick and args.folder is None:
        files = shlex.join(map(str, args.files))
        raise UsageError(f"a quick run measures nothing, so {DOCS} is not changed: report {files} --folder FOLDER")
    if args.folder is None:
        _check_no_case_is_lost(results, args.files)
    _write(results, args.folder)
    commits = dict.fromkeys(run.commit for run in results.runs if run.commit)
    changed = [commit for commit in commits if is_changed_since(commit)]
    unknown = [commit for commit in commits if not is_known(commit)]
    if unknown:
        print(f"this checkout does not have {', '.join(unknown)}: that code cannot be looked up here")
    if changed:
        print(f"src or benchmarks have changed since {', '.join(changed)}: the report does not include newer code")


def _check_no_case_is_lost(results: Results, files: list[Path]) -> None:
    """A report of a small run must not replace one of many hours."""
    existing = DOCS / SAMPLES
    lost = set(Results.read([existing]).cases) - set(results.cases) if existing.exists() else set()
    if lost:
        given = shlex.join(map(str, files))
        raise UsageError(
            f"{existing} has {len(lost):,} cases that these samples lack: report {given} --folder FOLDER for a "
            f"separate page, or report {existing} {given} to combine them"
        )


def _write(results: Results, folder: Path | None) -> None:
    """Into one folder, or by default the page into the docs and the tables beside the benchmarks."""
    page, tables = (folder, folder) if folder else (DOCS, TABLES)
    write_page(results, page)
    write_tables(results, tables)
    print(f"written: {page / PAGE} with its charts and samples, and tables in {tables}")


# --- run


def run(args: argparse.Namespace) -> None:
    selection = Selection(
        groups=args.only or GROUPS,
        stores=tuple(args.store or STORES),
        processes=tuple(dict.fromkeys(args.processes or ((1,) if args.quick else (1, 2)))),
        has_peers=args.peers,
        names=tuple(args.contender or ()),
        has_million=args.million,
        size=_size(args),
        is_quick=args.quick,
    )
    if args.quick and args.plots is not None and args.plots.resolve() == DOCS.resolve():
        raise UsageError(f"a quick run measures nothing, so {DOCS} is not changed: --plots ANOTHER_FOLDER")
    if not cases(selection):
        raise UsageError(f"nothing to measure: no such case. Available: {available(selection)}")
    if not (args.quick or args.json or args.plots):
        print("the samples are not saved: add --json FILE to save them after every case", file=sys.stderr)
    if not args.quick and load() > (cores := os.cpu_count() or 1) / 2:
        print(f"the machine is busy (load {load():.1f} on {cores} cores): results will be worse", file=sys.stderr)
    samples = _SampleFile(args.json)
    with samples.reported_on_interruption(), _folder(args.folder) as folder, _server(selection, args.dsn) as dsn:
        results = Results(describe(folder), {}, runs=[run_of(folder)], quick=args.quick)
        _check_disks(results, folder, dsn)
        environments = _environments(selection, folder / _PEERS, results)
        for name, text in {**dataclasses.asdict(results.runs[0]), **results.machine}.items():
            if text:
                print(f"{name:<16} {text}", flush=True)
        wanted = [case for case in cases(selection) if case.contender in environments]
        backends = Backends(folder, dsn, environments, selection.size)
        run_rounds(backends, wanted, args.rounds, results, samples.save)
    samples.save(results)
    _print(results)
    if args.plots is not None:
        _write(results, args.plots)


def _size(args: argparse.Namespace) -> Size:
    size = QUICK if args.quick else FULL
    runs, schedules = args.runs or size.runs, tuple(dict.fromkeys(args.schedules or size.schedules))
    return dataclasses.replace(size, runs=runs, schedules=schedules)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """A folder on the measured disk; only the environments of peers are kept."""
    folder.mkdir(parents=True, exist_ok=True)
    try:
        yield folder
    finally:
        for each in folder.iterdir():
            if each.name != _PEERS:
                shutil.rmtree(each)
        if not any(folder.iterdir()):
            folder.rmdir()


@contextmanager
def _server(selection: Selection, given: str | None) -> Iterator[str | None]:
    if not any(case.store == "postgres" for case in cases(selection)):
        yield None
        return
    with server(given) as dsn:
        yield dsn


def _check_disks(results: Results, folder: Path, dsn: str | None) -> None:
    """Folder and server must be on a disk, except for a quick run."""
    disks = [disk_of(folder)]
    if dsn is not None:
        results.machine["postgresql"] = version(dsn)
        results.server = settings(dsn)
        disks.append(disk_of(data_folder(dsn)))
        results.machine["disk of postgresql"] = str(disks[-1])
    for disk in disks if not results.quick else []:
        disk.check()


class _SampleFile:
    """Saves the samples of a run, if it has a file."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._results: Results | None = None
        # The round in which an interruption would be reported.
        self._round = ""

    def save(self, results: Results, round_name: str = "") -> None:
        self._results, self._round = results, round_name
        if self._path is not None:
            run = dataclasses.replace(results.runs[0], interrupted=round_name)
            dataclasses.replace(results, runs=[run]).write(self._path)

    @contextmanager
    def reported_on_interruption(self) -> Iterator[None]:
        """On an interruption or an error, save its reason and print what was saved."""
        try:
            yield
        except (NotDurable, UsageError):
            raise
        except BaseException as error:
            if self._results is not None:
                self.save(self._results, f"{self._round} {_reason(error)}".lstrip())
            print(f"interrupted; {self._saved()}", file=sys.stderr)
            raise

    def _saved(self) -> str:
        if self._results is None or not self._results.cases:
            return "nothing was measured"
        return "the samples are lost without --json" if self._path is None else f"the samples are in {self._path}"


def _reason(error: BaseException) -> str:
    if not isinstance(error, Exception):
        return "by the user"
    line = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"by an error ({': '.join([*getattr(error, '__notes__', ()), line])[:200]})"


def _environments(selection: Selection, folder: Path, results: Results) -> dict[str, Environment]:
    """The environments of contenders that can be installed; the others are reported with the reason."""
    environments: dict[str, Environment] = {}
    for contender in selection.contenders:
        try:
            environments[contender.name] = environment_of(contender, folder)
        except Unavailable as reason:
            results.skipped[contender.title] = str(reason)
            print(f"skipped  {contender.title} cannot be installed: {reason}", flush=True)
            continue
        results.settings[contender.title] = contender.settings
        results.machine |= {
            f"{name} ({contender.title})": v for name, v in environments[contender.name].versions.items()
        }
    return environments


def _print(results: Results) -> None:
    for measurement in MEASUREMENTS.values():
        for table in tables_of(results, measurement):
            print(f"\n{table.title} ({table.about})\n\n{table.text}")
    loads = " ".join(f"{each:.1f}" for each in results.runs[0].loads)
    stolen = " ".join(f"{each:g}" for each in results.runs[0].stolen)
    print(f"\nload averages {loads} (before the rounds, after each); stolen {stolen} % (in each round)")
    for failed in results.failed:
        print(f"failed  {failed}")
    if results.quick:
        print("\nA quick run measures nothing: tiny sizes, and cases in parallel. It only shows that everything works.")


# --- arguments


def arguments(given: Sequence[str]) -> argparse.Namespace:
    """Options without a command are those of `run`; without any argument the help is printed, because a run is long."""
    parser = _parser()
    if not given:
        parser.print_help(sys.stderr)
        parser.exit(2)
    args = parser.parse_args(given if given[0] in ("run", "report", "-h", "--help") else ["run", *given])
    if args.command == "run":
        args.rounds = args.rounds or (1 if args.quick else 5)
    return args


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Evertick on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure: hours, or seconds with --quick; --help lists the options")
    run.add_argument("--store", action=_Names, known=STORES, metavar="STORE", help="only this store (default: both)")
    run.add_argument(
        "--only",
        action=_Names,
        known=[*GROUPS, *(name for name in MEASUREMENTS if name not in GROUPS)],
        metavar="GROUP",
        help=f"{', '.join(GROUPS)}; or a single measurement: {_measurements()}",
    )
    run.add_argument("--runs", type=_positive(10_000), help="runs in the full queue (default: 60,000)")
    run.add_argument(
        "--schedules",
        action="extend",
        nargs="+",
        type=_positive(10_000),
        help="numbers of schedules (default: 1,000, 10,000, 100,000)",
    )
    run.add_argument(
        "--processes",
        action="extend",
        nargs="+",
        type=_processes,
        help="number of workers, 1 or 2 (default: both; quick: 1)",
    )
    run.add_argument("--peers", action="store_true", help="also install and measure other schedulers")
    names = [each.name for each in CONTENDERS]
    run.add_argument(
        "--contender",
        action=_Names,
        known=names,
        metavar="NAME",
        help=f"only this one of {', '.join(names)}; other schedulers are installed without --peers as well",
    )
    run.add_argument("--million", action="store_true", help="also a million schedules: once a minute, at once, idle")
    run.add_argument("--rounds", type=_positive(5), help="number of rounds (default: 5; quick: 1)")
    run.add_argument(
        "--quick", action="store_true", help="tiny sizes, one process: shows that it works, measures nothing"
    )
    run.add_argument("--json", type=_file, metavar="FILE", help="save all samples there after every case")
    run.add_argument("--plots", type=_writable_folder, metavar="FOLDER", help="write page, charts and tables there")
    run.add_argument(
        "--folder", type=_writable_folder, default=Path(".bench"), help="on the disk to measure (default: .bench)"
    )
    run.add_argument("--dsn", help="a server on this machine with pg_stat_statements (default: start one)")
    report = commands.add_parser("report", help="write page, charts and tables from saved samples")
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="written by `run --json`")
    report.add_argument(
        "--folder",
        type=_writable_folder,
        help=f"for everything (default: the page in {DOCS} and the tables in {TABLES}, if no case gets lost)",
    )
    report.add_argument("--note", metavar="TEXT", help="text about the runs; it is saved with the samples")
    return parser


def _measurements() -> str:
    """The measurements whose name is not that of their group."""
    by_group = {group: [each.name for each in MEASUREMENTS.values() if each.group == group] for group in GROUPS}
    return ", ".join(name for group, names in by_group.items() if names != [group] for name in names if name != group)


class _Names(argparse.Action):
    """Names, separated by commas or spaces, each once."""

    def __init__(self, option_strings: Sequence[str], dest: str, known: Collection[str], **more: Any) -> None:
        super().__init__(option_strings, dest, nargs="+", **more)
        self._known = known

    def __call__(
        self, parser: argparse.ArgumentParser, args: argparse.Namespace, values: Any, option: str | None = None
    ) -> None:
        names = [_ALIASES.get(name, name) for text in values for name in text.replace(",", " ").split()]
        for name in names:
            if name not in self._known:
                raise argparse.ArgumentError(self, f"unknown name {name!r}; {_known_names(name, self._known)}")
        setattr(args, self.dest, [*dict.fromkeys([*(getattr(args, self.dest) or []), *names])])


def _known_names(name: str, known: Collection[str]) -> str:
    """Sorted by similarity only if one of them is similar."""
    similarity = {each: SequenceMatcher(None, name, each).ratio() for each in known}
    if max(similarity.values()) < _SIMILAR:
        return f"known: {', '.join(known)}"
    return f"known, most similar first: {', '.join(sorted(known, key=similarity.__getitem__, reverse=True))}"


def _positive(example: int) -> Callable[[str], int]:
    """A parser of positive numbers; `example` is a sensible one."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and int(text)):
            raise argparse.ArgumentTypeError(f"{text!r} is not a positive number in digits, such as {example}")
        return int(text)

    return parse


def _processes(text: str) -> int:
    number = _positive(2)(text)
    if number not in PROCESSES:
        raise argparse.ArgumentTypeError(
            f"{number} is not supported, only {' and '.join(map(str, PROCESSES))}; `limits` always has three"
        )
    return number


def _file(text: str) -> Path:
    """A writable file: otherwise the error would come after hours."""
    path = Path(text)
    if path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a folder; name a file in it")
    if not path.parent.is_dir():
        raise argparse.ArgumentTypeError(f"the folder {path.parent} of {path.name} does not exist; create it first")
    if not _is_writable(path.parent):
        raise argparse.ArgumentTypeError(f"{path.parent} is not writable; name another folder")
    return path


def _writable_folder(text: str) -> Path:
    """A folder that exists or can be created, and is writable."""
    path = Path(text)
    if path.exists() and not path.is_dir():
        raise argparse.ArgumentTypeError(f"{text} is a file; name a folder")
    existing = next(each for each in (path.resolve(), *path.resolve().parents) if each.exists())
    if not (existing.is_dir() and _is_writable(existing)):
        raise argparse.ArgumentTypeError(f"{existing} is not writable; name another folder")
    return path


def _is_writable(folder: Path) -> bool:
    """By trying: for root, access checks pass even in /proc."""
    try:
        with tempfile.TemporaryFile(dir=folder):
            return True
    except OSError:
        return False
