"""The program: `python -m benchmarks sqlite | postgres [--rounds 3] [--runs 20000] [--json FILE]`."""

from __future__ import annotations

import argparse
import dataclasses
import shutil
import tempfile
from pathlib import Path

from benchmarks.figure import FIGURES, PEER_FIGURES
from benchmarks.machine import describe
from benchmarks.peer.environment import Unavailable, install, versions
from benchmarks.report import run_rounds
from benchmarks.round import measure_all
from benchmarks.size import FULL, QUICK, Size


def main() -> None:
    asked = _arguments()
    if asked.store == "postgres":
        # Not above: it needs asyncpg, which SQLite does not.
        from benchmarks.postgres.program import run

        run(asked, _size(asked))
        return
    asked.folder.mkdir(parents=True, exist_ok=True)
    folder = Path(tempfile.mkdtemp(prefix="sqlite-", dir=asked.folder))
    try:
        _measure(asked, folder)
    finally:
        shutil.rmtree(folder)
        if not any(asked.folder.iterdir()):
            asked.folder.rmdir()


def _measure(asked: argparse.Namespace, folder: Path) -> None:
    size = _size(asked)
    machine = describe()
    peers = _peers(folder) if asked.peers else None
    if peers is not None:
        machine |= versions(peers)
    sizes, figures = dataclasses.asdict(size), FIGURES + PEER_FIGURES
    run_rounds(asked, machine, sizes, figures, lambda: measure_all(folder, size, peers))


def _peers(folder: Path) -> Path | None:
    try:
        return install(folder / "peers")
    except Unavailable as reason:
        print(f"peers       skipped, they cannot be installed: {reason}")
        return None


def _size(asked: argparse.Namespace) -> Size:
    size = QUICK if asked.quick else FULL
    return size if asked.runs is None else dataclasses.replace(size, runs=asked.runs)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description="Measure Evertick on this machine.")
    parser.add_argument("store", choices=["sqlite", "postgres"], help="the store to measure")
    parser.add_argument("--rounds", type=_positive, help="how often everything is measured (default 3; quick: 1)")
    parser.add_argument("--runs", type=_positive, help="runs in the queue of a throughput round (default 20000)")
    parser.add_argument("--peers", action="store_true", help="install other schedulers and measure them too")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write all figures there")
    parser.add_argument("--quick", action="store_true", help="tiny numbers: shows that it works, measures nothing")
    parser.add_argument("--folder", type=Path, default=Path(".bench"), help="on the disk to measure (default .bench)")
    parser.add_argument("--dsn", help="postgres: a server that is there, with pg_stat_statements (default: our own)")
    parser.add_argument("--only", action="append", metavar="GROUP", help="postgres: that group of figures alone")
    asked = parser.parse_args()
    asked.rounds = asked.rounds or (1 if asked.quick else 3)
    return asked


def _positive(text: str) -> int:
    number = int(text)
    if number < 1:
        raise argparse.ArgumentTypeError(f"{text} is less than 1")
    return number


if __name__ == "__main__":
    main()
