"""What a newcomer sees first."""

from __future__ import annotations

import shutil
import signal
import subprocess
import sys
import sysconfig
from pathlib import Path

import pytest
from pages import ROOT, blocks, shell_lines
from programs import clean_environment

README = ROOT / "README.md"
TUTORIAL = ROOT / "docs/tutorial/first-job.md"
# Instead of pip, which would have to fetch what Evertick needs: what is to be installed must be there, and then is. So
# no environment gets the real one, which takes a hundred times as long as all the rest of it.
PIP = """
python3() {
    if [ "$1 $2" = "-m venv" ]; then
        shift 2
        set -- -m venv --without-pip "$@"
    fi
    command python3 "$@"
}
pip() {
    shift
    for name; do case $name in .*) test -f "$name/pyproject.toml" ;; esac; done
    echo "$PACKAGES" > "$(python -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/evertick.pth"
}
"""


def installing(page: Path) -> list[str]:
    """What a page says to type, from making a directory to installing into it."""
    lines = shell_lines(page)
    begin = next(number for number, line in enumerate(lines) if line.startswith("mkdir"))
    end = next(number for number, line in enumerate(lines) if line.startswith("pip install"))
    return lines[begin : end + 1]


def test_the_hello_world_of_the_readme_is_five_lines() -> None:
    [hello, *_] = [block for block in blocks(README) if block.language == "python"]
    assert len(hello.text.splitlines()) == 5
    assert "scheduler.run()" in hello.text


@pytest.mark.parametrize("command", [["hello.py"], ["-m", "evertick", "run", "hello"]], ids=["python", "evertick run"])
def test_the_hello_world_of_the_readme_runs(command: list[str], tmp_path: Path) -> None:
    [hello, *_] = [block for block in blocks(README) if block.language == "python"]
    (tmp_path / "hello.py").write_text(hello.text)
    with subprocess.Popen(
        [sys.executable, "-u", *command],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=str(ROOT / "src")),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "report written\n"
        process.send_signal(signal.SIGINT)
        process.communicate(timeout=60)
    assert process.returncode == 0


def test_the_example_of_web_workers_can_be_imported_without_starting_anything(tmp_path: Path) -> None:
    [workers] = [block for block in blocks(README) if "lifespan" in block.text]
    (tmp_path / "jobs.py").write_text(workers.text)
    done = subprocess.run(
        [sys.executable, "-c", "import jobs; print(type(jobs.scheduler).__name__)"],
        cwd=tmp_path,
        env=clean_environment(PYTHONPATH=str(ROOT / "src"), PYTHONDONTWRITEBYTECODE="1"),
        capture_output=True,
        text=True,
        timeout=60,
    )
    assert (done.stdout, done.stderr) == ("Scheduler\n", "")
    assert [each.name for each in tmp_path.iterdir()] == ["jobs.py"], "no node has made its database"


def test_the_readme_leads_from_a_checkout_to_the_running_hello_world() -> None:
    lines = [*installing(README), "python hello.py"]
    assert [line for line in shell_lines(README) if line in lines] == lines


@pytest.mark.parametrize("followed", [[README, TUTORIAL], [TUTORIAL]], ids=["from the README", "from the checkout"])
def test_the_tutorial_goes_on_where_the_readme_ends_and_where_it_begins(followed: list[Path], tmp_path: Path) -> None:
    checkout = tmp_path / "evertick"
    checkout.mkdir()
    shutil.copy(ROOT / "pyproject.toml", checkout)
    steps = [line for page in followed for line in installing(page)]
    look = 'python -c "import sys, evertick; print(sys.prefix)"'
    done = subprocess.run(
        ["sh", "-e", "-c", "\n".join([PIP, *steps, look])],
        cwd=checkout,
        env=clean_environment(
            PATH=f"{Path(sys.executable).parent}:/usr/bin:/bin",
            PACKAGES="\n".join([sysconfig.get_path("purelib"), str(ROOT / "src")]),
        ),
        capture_output=True,
        text=True,
        timeout=120,
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.strip() == str(tmp_path / "first-job/.venv")
