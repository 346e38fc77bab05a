"""A read-only ledger can be read: on a read-only file system, or without write permission."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

# A mount in the command's own namespace, which also a user other than root can make.
_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
# Root without the capability to ignore permissions.
_BOUND_BY_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

# Commands one after the other in one interpreter: an answer in JSON for each.
_IN_ONE = """
import json, sys
from click.testing import CliRunner
from evertick.cli import cli
answers = [CliRunner().invoke(cli, words, prog_name="evertick") for words in json.loads(sys.argv[1])]
print(json.dumps([[each.exit_code, each.stdout, each.stderr] for each in answers]))
"""
Call = Callable[..., subprocess.CompletedProcess[str]]

READING = (
    ["list"],
    ["runs"],
    ["history", "report"],
    ["why", "report"],
    ["status"],
    ["doctor"],
    ["top", "--once"],
    ["db", "check"],
    ["db", "status"],
)
CHANGING = (
    ["pause", "report"],
    ["trigger", "report"],
    ["db", "vacuum"],
    ["db", "migrate"],
)


def _mounts() -> list[str] | None:
    for unshare in (["unshare", "--mount"], ["unshare", "--user", "--map-root-user", "--mount"]):
        if shutil.which("unshare") and subprocess.run([*unshare, "true"], capture_output=True).returncode == 0:
            return unshare
    return None


def _run(command: list[str], words: tuple[str, ...], url: str) -> subprocess.CompletedProcess[str]:
    variables = {**os.environ, "EVERTICK_DATABASE": url, "HOME": "/"}
    return subprocess.run([*command, *words], capture_output=True, text=True, timeout=60, env=variables)


def in_one(call: Call, commands: Iterable[list[str]]) -> Iterator[tuple[int, str, str]]:
    """The exit code, output and errors of each of the commands."""
    answer = call("-c", _IN_ONE, json.dumps(list(commands)))
    assert answer.returncode == 0, answer.stderr
    yield from json.loads(answer.stdout)


@pytest.fixture(params=["mount", "rights"])
def read_only(request: pytest.FixtureRequest, prepared: Path, tmp_path: Path) -> Iterator[tuple[Path, Call, str]]:
    """A ledger in a folder, how to call Python where that is read-only, and the words for it."""
    folder = tmp_path / "kept"
    folder.mkdir()
    path = folder / "l.db"
    shutil.copy(prepared, path)
    unshare = _mounts() if request.param == "mount" else None
    if unshare is not None:
        command = [*unshare, "sh", "-c", _MOUNT, str(folder), sys.executable]
        yield path, lambda *words: _run(command, words, f"sqlite:///{path}"), "its file system is mounted read-only"
        return
    command = [*(_BOUND_BY_RIGHTS if os.getuid() == 0 else []), sys.executable]

    def call(*words: str) -> subprocess.CompletedProcess[str]:
        for each in folder.iterdir():
            each.chmod(0o444)
        folder.chmod(0o555)
        try:
            return _run(command, words, f"sqlite:///{path}")
        finally:
            folder.chmod(0o755)

    yield path, call, "this user may not write the file and its directory"


def test_reading_commands_work_and_note_that_the_store_is_read_only(read_only: tuple[Path, Call, str]) -> None:
    path, call, why = read_only
    for words, (_, output, errors) in zip(READING, in_one(call, READING), strict=True):
        assert output, (words, errors)
        assert errors.splitlines()[0] == f"(read-only: {why}; nothing in {path} can be changed)", words
        assert "error:" not in errors, words
    (_, history, _), (_, found, _) = in_one(call, [["history", "report", "--json"], ["doctor", "--json"]])
    assert json.loads(history)[0]["verdict"] == "succeeded"
    assert not any(each["check"] in ("store", "journal_mode") for each in json.loads(found))
    assert [each.name for each in path.parent.iterdir()] == ["l.db"]


def test_writing_commands_fail_with_one_error(read_only: tuple[Path, Call, str]) -> None:
    path, call, why = read_only
    for words, (code, _, said) in zip(CHANGING, in_one(call, CHANGING), strict=True):
        assert code == 1, words
        errors = [line for line in said.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, (words, said)
        assert f"the SQLite file {path} cannot be written: {why}" in errors[0], words


def test_a_read_only_wal_is_read_with_its_index_and_refused_without_it(read_only: tuple[Path, Call, str]) -> None:
    path, call, _why = read_only
    with closing(sqlite3.connect(path, isolation_level=None)) as db:
        db.execute("UPDATE evertick_schedules SET key = 'renamed' WHERE key = 'report'")
        copies = [path.with_name(f"copy{end}") for end in ("", "-wal", "-shm")]
        for end, copy in zip(("", "-wal", "-shm"), copies, strict=True):
            shutil.copy(f"{path}{end}", copy)
    for end, copy in zip(("", "-wal", "-shm"), copies, strict=True):
        copy.rename(f"{path}{end}")
    assert "renamed" in call("-m", "evertick", "list").stdout
    Path(f"{path}-shm").unlink()
    refused = call("-m", "evertick", "list")
    assert refused.returncode == 1
    assert f"copy {path} and {path}-wal together to a directory that you may write" in refused.stderr
    # An empty one holds nothing.
    Path(f"{path}-wal").write_bytes(b"")
    assert "report" in call("-m", "evertick", "list").stdout


def test_a_node_on_a_read_only_store_ends_at_once_with_the_reason(
    read_only: tuple[Path, Call, str], tmp_path: Path
) -> None:
    path, call, why = read_only
    module = tmp_path / "a_module_of_jobs.py"
    module.write_text(f"from evertick import Scheduler\nscheduler = Scheduler('sqlite:///{path}')\n")
    module.chmod(0o644)
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        answer = call("-m", "evertick", "run", "a_module_of_jobs:scheduler")
    finally:
        del os.environ["PYTHONPATH"]
    assert answer.returncode == 1
    assert f"cannot be written: {why}" in answer.stderr
