"""A long storm by command, and its report.

    sh run chaos --minutes 60 --seed 7 --report docs/explanation

The figures of a storm are kept as `chaos.json`, beside its logs and beside its report; `--from FIGURES` writes the
report from them, without a storm.
"""

from __future__ import annotations

import argparse
import sys
import tempfile
from pathlib import Path

import msgspec

from torment.figures import Figures, summary_of
from torment.page import FIGURES, write_report
from torment.storm import storm_in


def main() -> int:
    parser = argparse.ArgumentParser(prog="sh run chaos", description=__doc__.partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60.0, help="how long the storm lasts (default: 60)")
    parser.add_argument("--seed", type=int, default=7, help="which storm it is; the same seed has the same faults")
    parser.add_argument("--every", type=float, default=5.0, metavar="SECONDS", help="about how often a fault comes")
    parser.add_argument("--folder", type=Path, help="where logs, witnesses and figures go (default: a temporary one)")
    parser.add_argument("--report", type=Path, metavar="FOLDER", help="write the report into this folder")
    parser.add_argument(
        "--from", type=Path, dest="figures", metavar="FIGURES", help="run no storm, report these figures"
    )
    chosen = parser.parse_args()
    if chosen.figures is not None:
        figures = msgspec.json.decode(chosen.figures.read_bytes(), type=Figures)
    else:
        folder = chosen.folder or Path(tempfile.mkdtemp(prefix="chaos"))
        folder.mkdir(parents=True, exist_ok=True)
        print(f"{chosen.minutes:g} minutes; logs and witnesses are in {folder}", flush=True)
        figures = storm_in(folder, chosen.seed, chosen.minutes * 60, chosen.every)
        (folder / FIGURES).write_bytes(msgspec.json.encode(figures))
    print(summary_of(figures))
    if chosen.report is not None:
        write_report(figures, chosen.report)
    return 1 if any(figures.findings.values()) else 0


if __name__ == "__main__":
    sys.exit(main())
