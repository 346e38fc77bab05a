"""The two commands: `run` measures what was asked for, `report` writes the page of what was measured."""

from __future__ import annotations

import argparse
import dataclasses
import os
import shlex
import shutil
import signal
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from benchmarks.arguments import DOCS, arguments
from benchmarks.contender.contenders import STORES
from benchmarks.contender.environment import Environment, Unavailable, environment_of
from benchmarks.machine import describe, is_changed_since, is_known, load, run_of
from benchmarks.page import FIGURES, PAGE, write_report
from benchmarks.plan import GROUPS, MEASUREMENTS, Choice, cases, there_is
from benchmarks.refused import Refused
from benchmarks.results import Results
from benchmarks.rounds import Ground, run_rounds
from benchmarks.size import FULL, QUICK, Size
from benchmarks.store.disk import disk_of
from benchmarks.store.place import NotDurable
from benchmarks.store.server import data_folder, server, settings, version
from benchmarks.table import tables_of

__all__ = ["main"]

# Under the folder of the benchmarks; they stay, because installing them takes minutes.
_PEERS = "peers"


def main() -> None:
    asked = arguments(sys.argv[1:])
    # Whoever ends the benchmark ends what it has started, too.
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(1))
    try:
        (_report if asked.command == "report" else _run)(asked)
    except NotDurable as reason:
        sys.exit(f"nothing is measured: {reason}")
    except Refused as reason:
        sys.exit(str(reason))


def _report(asked: argparse.Namespace) -> None:
    results = Results.read(asked.files)
    results.note = asked.note or results.note
    if results.quick and asked.folder is None:
        files = shlex.join(map(str, asked.files))
        raise Refused(f"a quick run measures nothing, so its page is not for {DOCS}: report {files} --folder FOLDER")
    if asked.folder is None:
        _check_nothing_is_lost(results, asked.files)
    _write(results, asked.folder or DOCS)
    commits = dict.fromkeys(run.commit for run in results.runs if run.commit)
    changed = [commit for commit in commits if is_changed_since(commit)]
    unknown = [commit for commit in commits if not is_known(commit)]
    if unknown:
        print(f"this checkout does not know {' and '.join(unknown)}: nobody can look at what was measured there")
    if changed:
        print(f"src or benchmarks have changed since {' and '.join(changed)}: what is newer is not in the page")


def _check_nothing_is_lost(results: Results, files: list[Path]) -> None:
    """Whoever has measured a little wants a page of it, and not to lose what took others hours."""
    kept = DOCS / FIGURES
    lost = set(Results.read([kept]).cases) - set(results.cases) if kept.exists() else set()
    if lost:
        given = shlex.join(map(str, files))
        raise Refused(
            f"{DOCS / PAGE} has {len(lost):,} cases that these samples have not: report {given} --folder FOLDER for a "
            f"page of its own, or report {kept} {given} for one of all"
        )


def _write(results: Results, folder: Path) -> None:
    write_report(results, folder)
    print(f"written: {folder / PAGE}, with its pictures and samples")


def _run(asked: argparse.Namespace) -> None:
    choice = Choice(
        groups=asked.only or GROUPS,
        stores=tuple(asked.store or STORES),
        processes=tuple(dict.fromkeys(asked.processes or ((1,) if asked.quick else (1, 2)))),
        has_peers=asked.peers,
        names=tuple(asked.contender or ()),
        has_million=asked.million,
        size=_size(asked),
        is_quick=asked.quick,
    )
    if asked.quick and asked.plots is not None and asked.plots.resolve() == DOCS.resolve():
        raise Refused(f"a quick run measures nothing, so its page is not for {DOCS}: --plots ANOTHER_FOLDER")
    if not cases(choice):
        raise Refused(f"nothing to measure: there is no such case, but {there_is(choice)}")
    if not (asked.quick or asked.json or asked.plots):
        print("the samples are not kept: --json FILE keeps them, after every case", file=sys.stderr)
    if not asked.quick and load() > (cores := os.cpu_count() or 1) / 2:
        busy = f"the machine is busy, with a load of {load():.1f} on {cores} cores"
        print(f"{busy}: these figures will not be those of a calm one", file=sys.stderr)
    kept = _Kept(asked.json)
    with kept.told_when_broken_off(), _folder(asked.folder) as folder, _server(choice, asked.dsn) as dsn:
        results = Results(describe(folder), {}, runs=[run_of(folder)], quick=asked.quick)
        _look_at_disks(results, folder, dsn)
        environments = _environments(choice, folder / _PEERS, results)
        for name, text in {**dataclasses.asdict(results.runs[0]), **results.machine}.items():
            if text:
                print(f"{name:<16} {text}", flush=True)
        wanted = [case for case in cases(choice) if case.contender in environments]
        run_rounds(Ground(folder, dsn, environments, choice.size), wanted, asked.rounds, results, kept.keep)
    kept.keep(results)
    _tell(results)
    if asked.plots is not None:
        _write(results, asked.plots)


def _size(asked: argparse.Namespace) -> Size:
    size = QUICK if asked.quick else FULL
    runs, schedules = asked.runs or size.runs, tuple(dict.fromkeys(asked.schedules or size.schedules))
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


class _Kept:
    """What was measured so far, in a file if there is one."""

    def __init__(self, path: Path | None) -> None:
        self._path = path
        # What there is, and in which round it would be broken off.
        self._results: Results | None = None
        self._round = ""

    def keep(self, results: Results, broken_off: str = "") -> None:
        self._results, self._round = results, broken_off
        if self._path is not None:
            run = dataclasses.replace(results.runs[0], broken_off=broken_off)
            dataclasses.replace(results, runs=[run]).write(self._path)

    @contextmanager
    def told_when_broken_off(self) -> Iterator[None]:
        """Whoever breaks it off, or whatever, is told what is left of it."""
        try:
            yield
        except (NotDurable, Refused):
            raise
        except BaseException as error:
            if self._results is not None:
                self.keep(self._results, f"{self._round} {_why(error)}".lstrip())
            print(f"broken off; {self._left()}", file=sys.stderr)
            raise

    def _left(self) -> str:
        if self._results is None or not self._results.cases:
            return "nothing was measured"
        return (
            "what was measured is lost without --json"
            if self._path is None
            else f"what was measured is in {self._path}"
        )


def _why(error: BaseException) -> str:
    """What a page has to say of a run that did not end: whether somebody stopped it, or something was wrong."""
    if not isinstance(error, Exception):
        return "by hand"
    said = (str(error).strip() or type(error).__name__).splitlines()[0]
    return f"by an error ({': '.join([*getattr(error, '__notes__', ()), said])[:200]})"


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
            print(f"\n{table.title} ({table.about})\n\n{table.text}")
    loads = " ".join(f"{each:.1f}" for each in results.runs[0].loads)
    stolen = " ".join(f"{each:g}" for each in results.runs[0].stolen)
    print(f"\nload averages {loads} (before, after each round); given to other machines {stolen} % (in each round)")
    for failed in results.failed:
        print(f"failed  {failed}")
    if results.quick:
        print(
            "\nA quick run measures nothing: the numbers are tiny, and cases ran side by side. It shows that all works."
        )
