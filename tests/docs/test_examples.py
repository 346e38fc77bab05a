"""Every example of the documentation runs.

How a Python block is run depends on what it says itself:
- begins with `# continues`: together with the block before it on the page.
- begins with a comment that is a file name (`# jobs.py`): as that file, beside those that the page named before; a
  `# test_….py` by pytest.
- stands on a page that needs a project around it: by a test of its own (`ELSEWHERE`).
- calls `scheduler.run()`: it never ends by itself, so it is stopped by TERM after its first fire, and must exit with 0.
- any other: to its end, which must come soon.

Each runs on its own, in an empty working directory. Commands of `console` blocks run where the `jobs.py` of the
tutorial has been running for a moment, in the order of the page.
"""

from __future__ import annotations

import re
import shlex
import shutil
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
from click.testing import CliRunner
from pages import ROOT, Block, blocks, files, pages
from programs import SECONDS_MAX, clean_environment, running

import preloaded
from evertick import Scheduler
from evertick.cli import cli

# Pages whose examples run in a test file of their own.
ELSEWHERE = {
    "docs/how-to/write-a-driver.md": "test_driver_page.py",
    "docs/reference/worker-contract.md": "test_worker_contract_page.py",
    "docs/how-to/django.md": "test_django.py",
    "docs/how-to/postgresql.md": "test_postgres_pages.py",
    "docs/how-to/transactions-on-postgresql.md": "test_postgres_pages.py",
}

_RUNS_ON = re.compile(r"^\s*\w+\.run\(\)\s*$", re.MULTILINE)


def python_examples() -> list[tuple[Block, ...]]:
    """Blocks that belong together, together."""
    examples: list[tuple[Block, ...]] = []
    for page in pages():
        if str(page.relative_to(ROOT)) in ELSEWHERE:
            continue
        for block in blocks(page):
            if block.language != "python":
                continue
            if block.text.startswith("# continues"):
                assert examples[-1][0].page == page, f"{block.place} continues nothing"
                examples[-1] += (block,)
            else:
                examples.append((block,))
    return examples


def source(example: tuple[Block, ...]) -> str:
    """The text of the example, on the lines that it has on its page, so that an error points there."""
    lines: list[str] = []
    for block in example:
        lines += [""] * (block.line - 1 - len(lines)) + block.text.splitlines()
    return "\n".join(lines) + "\n"


@pytest.mark.parametrize("example", python_examples(), ids=lambda example: example[0].place)
def test_every_python_example_runs(example: tuple[Block, ...], tmp_path: Path) -> None:
    name = example[0].file or "example.py"
    for earlier in files(example[0].page):
        if earlier.line < example[0].line:
            earlier.save(tmp_path)
    (tmp_path / name).write_text(source(example), encoding="utf-8")
    if Path(name).name.startswith("test_"):
        # The whole conformance suite runs in tests/store; here it is enough that the example can run it.
        some = ["-k", "declared_dead or twice"] if "StoreConformance" in example[0].text else []
        run_by_pytest([*some, name], tmp_path)
    elif _RUNS_ON.search(example[-1].text):
        run_until_the_first_fire(name, tmp_path)
    else:
        command = [sys.executable, "-W", "error", name]
        done = preloaded.run(command, cwd=tmp_path, env=clean_environment(), timeout=SECONDS_MAX)
        assert done.returncode == 0, done.stdout + done.stderr


def run_by_pytest(arguments: list[str], folder: Path) -> None:
    command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *arguments]
    done = preloaded.run(command, cwd=folder, env=clean_environment(), timeout=SECONDS_MAX)
    assert done.returncode == 0, done.stdout + done.stderr


def run_until_the_first_fire(name: str, folder: Path) -> None:
    """The program goes on for ever; stop it as a supervisor would, once its ledger shows that a run has succeeded."""
    database = folder / "evertick.db"
    reader = Scheduler(f"sqlite:///{database}", concurrency=0)
    try:
        with running(f"python {name}", folder) as program:
            program.wait_until(
                lambda: database.exists() and reader.sync.runs(verdicts=["succeeded"]), "a run has succeeded"
            )
            assert program.terminate() == 0, program.output
    finally:
        reader.sync.close()


# --- the command line ----------------------------------------------------------------------------------------------


def console_blocks() -> list[Block]:
    return [block for page in pages() for block in blocks(page) if block.language == "console"]


def commands(block: Block) -> list[str]:
    return [line.removeprefix("$ ") for line in block.text.splitlines() if line.startswith("$ evertick")]


# `run`, `daemon` and `worker` do not end; `demo` takes its time and has tests of its own. Their names and flags are
# checked all the same.
ONLY_PARSED = {"run", "daemon", "worker", "demo"}


# Of the ledger that the tutorial's jobs.py makes.
CONFIGURATION = """
[database]
url = "sqlite:///evertick.db"

[jobs.nightly]
cron = "30 2 * * *"
task = "elsewhere"
"""


@pytest.fixture(scope="module")
def workplace(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory in which the tutorial's jobs.py has been running, and was stopped, with a configuration."""
    folder = tmp_path_factory.mktemp("workplace")
    tutorial = ROOT / "docs/tutorial/first-job.md"
    programs = [block for block in files(tutorial) if block.file == "jobs.py"]
    assert programs, "the tutorial has no jobs.py"
    programs[-1].save(folder)
    (folder / "evertick.toml").write_text(CONFIGURATION)
    run_until_the_first_fire("jobs.py", folder)
    return folder


@pytest.fixture
def in_workplace(workplace: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """A copy of it as the working directory."""
    folder = tmp_path / "here"
    shutil.copytree(workplace, folder)
    owe_nothing(folder)
    monkeypatch.chdir(folder)
    monkeypatch.delenv("EVERTICK_DATABASE", raising=False)
    monkeypatch.syspath_prepend(str(folder))
    yield folder
    sys.modules.pop("jobs", None)


def owe_nothing(folder: Path) -> None:
    """No command could trigger what has a live run: a last report that failed, as every fifth does, and waits for its
    next attempt, or one for the moments since, which a pause would record."""
    ledger = Scheduler(f"sqlite:///{folder}/evertick.db", concurrency=0)
    ledger.sync.pause("report")
    for run in ledger.sync.runs(states=["waiting"]):
        ledger.sync.cancel(run)
    ledger.sync.resume("report")
    ledger.sync.close()


@pytest.mark.parametrize("block", [block for block in console_blocks() if commands(block)], ids=lambda b: b.place)
def test_every_command_in_the_documentation_works(block: Block, in_workplace: Path) -> None:
    for command in commands(block):
        words = shlex.split(command.partition(" | ")[0], comments=True)[1:]
        if words and words[0] in ONLY_PARSED:
            cli.commands[words[0]].make_context(words[0], words[1:])  # type: ignore[attr-defined]
            continue
        result = CliRunner().invoke(cli, words)
        assert result.exit_code == 0, f"$ {command}\n{result.output}"


def test_there_are_examples_of_every_kind() -> None:
    """A change to how blocks are found must not quietly leave them all out."""
    examples = python_examples()
    assert len(examples) > 40
    assert any(_RUNS_ON.search(example[0].text) for example in examples)
    assert sum(len(commands(block)) for block in console_blocks()) > 15
    readme = [example for example in examples if example[0].page.name == "README.md"]
    assert any(_RUNS_ON.search(example[-1].text) for example in readme), "the README has no hello world"
