"""The program: `python -m benchmarks [run] [--store S] [--only GROUP] [--json FILE]`, and `report FILE ...`."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path

from benchmarks.contender.contenders import CONTENDERS, STORES
from benchmarks.contender.environment import Environment, Unavailable, environment_of
from benchmarks.machine import describe
from benchmarks.page import write_report
from benchmarks.plan import GROUPS, MEASUREMENTS, Choice, cases
from benchmarks.results import Results
from benchmarks.rounds import Ground, run_rounds
from benchmarks.size import FULL, QUICK, Size
from benchmarks.store.disk import disk_of
from benchmarks.store.place import NotDurable
from benchmarks.store.server import data_folder, server, settings, version
from benchmarks.table import STORE_TITLES, tables_of

# Under the folder of the benchmarks; they stay, because installing them takes minutes.
_PEERS = "peers"


def main() -> None:
    asked = _arguments(sys.argv[1:])
    # Whoever ends the benchmark ends what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    if asked.command == "report":
        write_report(Results.read(asked.files), asked.folder)
        return
    try:
        _run(asked)
    except NotDurable as reason:
        sys.exit(f"nothing is measured: {reason}")


def _run(asked: argparse.Namespace) -> None:
    choice = Choice(
        groups=asked.only or GROUPS,
        stores=tuple(asked.store or STORES),
        processes=tuple(asked.processes or ((1,) if asked.quick else (1, 2))),
        has_peers=asked.peers,
        names=tuple(asked.contender or ()),
        has_million=asked.million,
        size=_size(asked),
        is_quick=asked.quick,
    )
    with _folder(asked.folder) as folder, _server(choice, asked.dsn) as dsn:
        results = Results(describe(folder), {}, quick=asked.quick)
        _look_at_disks(results, folder, dsn)
        environments = _environments(choice, folder / _PEERS, results)
        for name, text in results.machine.items():
            print(f"{name:<16} {text}", flush=True)
        wanted = [case for case in cases(choice) if case.contender in environments]
        keep = partial(_keep, asked.json)
        with _told_where(asked.json):
            run_rounds(Ground(folder, dsn, environments, choice.size), wanted, asked.rounds, results, keep)
    keep(results)
    _tell(results)
    if asked.plots is not None:
        write_report(results, asked.plots)


def _size(asked: argparse.Namespace) -> Size:
    size = QUICK if asked.quick else FULL
    runs, schedules = asked.runs or size.runs, tuple(asked.schedules or size.schedules)
    return dataclasses.replace(size, runs=runs, schedules=schedules)


@contextmanager
def _folder(folder: Path) -> Iterator[Path]:
    """On the disk to measure; what the peers have installed stays in it."""
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
def _server(choice: Choice, given: str | None) -> Iterator[str | None]:
    if not any(case.store == "postgres" for case in cases(choice)):
        yield None
        return
    with server(given) as dsn:
        yield dsn


def _look_at_disks(results: Results, folder: Path, dsn: str | None) -> None:
    """What is not on one is not measured; a quick run measures nothing anyway, and tells."""
    disks = [disk_of(folder)]
    if dsn is not None:
        results.machine["postgresql"] = version(dsn)
        results.server = settings(dsn)
        disks.append(disk_of(data_folder(dsn)))
        results.machine["disk of postgresql"] = str(disks[-1])
    for disk in disks if not results.quick else []:
        disk.check()


def _keep(path: Path | None, results: Results, broken_off: str = "") -> None:
    results.runs = [_run_text(results) + (f"; broken off in round {broken_off}" if broken_off else "")]
    if path is not None:
        results.write(path)


@contextmanager
def _told_where(path: Path | None) -> Iterator[None]:
    """Whoever breaks it off, or whatever, is told what is left of it."""
    try:
        yield
    except BaseException:
        if path is not None and path.exists():
            print(f"broken off; what was measured is in {path}", file=sys.stderr)
        raise


def _run_text(results: Results) -> str:
    """For the page: when, of what, and what was measured."""
    machine = results.machine
    of = f"commit {machine['commit']}" if "commit" in machine else f"Evertick {machine['evertick']}"
    measured = ", ".join(name for name in MEASUREMENTS if results.of(name))
    stores = " and ".join(STORE_TITLES[each] for each in STORES if any(case.store == each for case in results.cases))
    return f"{machine['measured']}, {of}: {measured}{f'; on {stores}' if stores else ''}"


def _environments(choice: Choice, folder: Path, results: Results) -> dict[str, Environment]:
    """Of all that can take part. Who cannot is told, with the reason."""
    environments: dict[str, Environment] = {}
    for contender in choice.contenders:
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


def _tell(results: Results) -> None:
    for measurement in MEASUREMENTS.values():
        for table in tables_of(results, measurement):
            print(f"\n{table.title} ({table.rounds})\n\n{table.text}")
    print(f"\nload averages {' '.join(f'{each:.1f}' for each in results.loads)} (before, after each round)")
    for failed in results.failed:
        print(f"failed  {failed}")


def _arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Evertick on this machine.")
    commands = parser.add_subparsers(dest="command", required=True)
    run = commands.add_parser("run", help="measure")
    run.add_argument("--store", action="append", choices=STORES, help="that store alone (default: both)")
    run.add_argument(
        "--only",
        action="append",
        choices=[*GROUPS, *(name for name in MEASUREMENTS if name not in GROUPS)],
        metavar="GROUP",
        help=f"{', '.join(GROUPS)}; or a single measurement, by its name in the file",
    )
    run.add_argument("--runs", type=_positive, help="runs in the full queue (default: 60,000)")
    run.add_argument("--schedules", action="append", type=_positive, help="so many (default: 1,000, 10,000, 100,000)")
    run.add_argument(
        "--processes", action="append", type=_positive, help="so many workers (default: 1, and 2; quick: 1)"
    )
    run.add_argument("--peers", action="store_true", help="install other schedulers and measure them, too")
    run.add_argument(
        "--contender",
        action="append",
        choices=[each.name for each in CONTENDERS],
        metavar="NAME",
        help=f"that one alone, of {', '.join(each.name for each in CONTENDERS)}",
    )
    run.add_argument("--million", action="store_true", help="a million schedules as well: once a minute, at once, idle")
    run.add_argument("--rounds", type=_positive, help="how often everything is measured (default 5; quick: 1)")
    run.add_argument("--quick", action="store_true", help="tiny numbers: shows that it works, measures nothing")
    run.add_argument("--json", type=Path, metavar="FILE", help="write all samples there, after every case")
    run.add_argument("--plots", type=Path, metavar="FOLDER", help="write the page and its pictures there")
    run.add_argument("--folder", type=Path, default=Path(".bench"), help="on the disk to measure (default .bench)")
    run.add_argument("--dsn", help="a server on this machine, with pg_stat_statements (default: our own)")
    report = commands.add_parser("report", help="write the page and its pictures from what was measured")
    report.add_argument("files", nargs="+", type=Path, metavar="FILE", help="what `run --json` has written")
    report.add_argument("--folder", type=Path, default=Path("docs/explanation"), help="default: docs/explanation")
    asked = parser.parse_args(given if given and given[0] in ("run", "report", "-h", "--help") else ["run", *given])
    if asked.command == "run":
        asked.rounds = asked.rounds or (1 if asked.quick else 5)
    return asked


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


if __name__ == "__main__":
    main()
