"""What the tutorial says about its own tests is so."""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

from pages import ROOT, blocks, files, shell_lines, text_of
from programs import clean_environment

PAGE = ROOT / "docs/tutorial/first-job.md"
SECONDS_OF_A_DAY_MAX = 1.0
# A busy machine may hold up a day or two; what is slow by itself is slow each time.
DAYS_MOST = 5

_DURATION = re.compile(r"([\d.]+)s call +\S+::(\w+)")


def test_a_day_in_virtual_time_takes_the_tests_of_a_user_less_than_a_second(tmp_path: Path) -> None:
    for block in files(PAGE):
        block.save(tmp_path)
    seconds: list[float] = []
    while len(seconds) < DAYS_MOST and min(seconds, default=SECONDS_OF_A_DAY_MAX) >= SECONDS_OF_A_DAY_MAX:
        seconds.append(_seconds_of_a_day(tmp_path))
    assert min(seconds) < SECONDS_OF_A_DAY_MAX, seconds
    assert not (tmp_path / "office.db").exists(), "virtual time has touched the real ledger"


def _seconds_of_a_day(folder: Path) -> float:
    done = subprocess.run(
        [sys.executable, "-m", "pytest", "-vv", "-p", "no:cacheprovider", "--durations=0", "test_office.py"],
        cwd=folder,
        env=clean_environment(),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert done.returncode == 0, done.stdout + done.stderr
    seconds = {name: float(text) for text, name in _DURATION.findall(done.stdout)}
    return seconds["test_a_day_of_reports"]


def test_the_output_that_the_tutorial_shows_names_its_own_tests() -> None:
    shown = {name for _, name in _DURATION.findall(text_of(PAGE))}
    [tests] = [block.text for block in files(PAGE) if block.file == "test_office.py"]
    assert shown == set(re.findall(r"def (test_\w+)", tests))
    assert "pytest --durations=3" in shell_lines(PAGE)


def test_the_day_of_the_tutorial_is_a_whole_day() -> None:
    [tests] = [block.text for block in files(PAGE) if block.file == "test_office.py"]
    day = tests.partition("def test_a_day_of_reports")[2].partition("def test_")[0]
    assert 'kit.advance("1d")' in day


_LINE = re.compile(r"\d{4}-\d\d-\d\d \d\d:\d\d:\d\d\.\d{3}[+-]\d\d:\d\d (?=[A-Z]+ )")
_VARYING = [
    (_LINE, "TIME "),
    (re.compile(r"[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}|[0-9a-f]{32}"), "ID"),
    (re.compile(r"\([\w.-]+@[\w.-]+\)"), "(NODE)"),
    (re.compile(r"report of \d\d:\d\d:\d\d"), "report of MOMENT"),
]


def _alike(lines: list[str]) -> list[str]:
    """The lines without what differs from day to day."""
    for pattern, name in _VARYING:
        lines = [pattern.sub(name, line) for line in lines]
    return lines


def test_the_log_lines_of_the_tutorial_are_those_of_the_program(tmp_path: Path) -> None:
    *_, program = [block for block in files(PAGE) if block.file == "jobs.py"]
    program.save(tmp_path)
    # At a second that ends with 0 the first attempt fails: the log of such a report, and of the two after it.
    shown = next(block for block in blocks(PAGE) if "evertick.run: evertick" in block.text).text.splitlines()
    environment = {**clean_environment(), "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-m", "evertick", "run", "jobs:scheduler"]
    with subprocess.Popen(
        command, cwd=tmp_path, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as node:
        assert node.stdout is not None
        printed = list(islice(_from_the_failure_on(node.stdout), len(shown)))
        node.terminate()
        node.stdout.read()
    assert _alike(printed) == _alike(shown)


def _from_the_failure_on(lines: Iterable[str]) -> Iterator[str]:
    """All but the reports before the first that fails: the program may have begun some seconds before."""
    has_failed = False
    for line in lines:
        has_failed = has_failed or "failed" in line
        if has_failed or not line.startswith("report of"):
            yield line.rstrip()
