"""A read-only ledger can be read: on a read-only file system, or without write permission."""

from __future__ import annotations

import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path

import pytest

# A mount in the command's own namespace, which also a user other than root can make.
_MOUNT = 'mount --bind "$0" "$0" && mount -o remount,ro,bind "$0" && exec "$@"'
# Root without the capability to ignore permissions.
_BOUND_BY_RIGHTS = ["setpriv", "--bounding-set=-dac_override,-dac_read_search"]

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


@pytest.fixture(params=["mount", "rights"])
def read_only(request: pytest.FixtureRequest, prepared: Path, tmp_path: Path) -> Iterator[tuple[Path, Call, str]]:
    """A ledger in a read-only folder, a call of the command line there, and the expected note."""
    folder = tmp_path / "kept"
    folder.mkdir()
    path = folder / "l.db"
    shutil.copy(prepared, path)
    unshare = _mounts() if request.param == "mount" else None
    if unshare is not None:
        command = [*unshare, "sh", "-c", _MOUNT, str(folder), sys.executable, "-m", "evertick"]
        yield path, lambda *words: _run(command, words, f"sqlite:///{path}"), "its file system is mounted read-only"
        return
    command = [*(_BOUND_BY_RIGHTS if os.getuid() == 0 else []), sys.executable, "-m", "evertick"]

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
    for words in READING:
        answer = call(*words)
        assert answer.stdout, (words, answer.stderr)
        assert answer.stderr.splitlines()[0] == f"(read-only: {why}; nothing in {path} can be changed)", words
        assert "error:" not in answer.stderr, words
    assert json.loads(call("history", "report", "--json").stdout)[0]["verdict"] == "succeeded"
    assert not any(each["check"] in ("store", "journal_mode") for each in json.loads(call("doctor", "--json").stdout))
    assert [each.name for each in path.parent.iterdir()] == ["l.db"]


def test_writing_commands_fail_with_one_error(read_only: tuple[Path, Call, str]) -> None:
    path, call, why = read_only
    for words in CHANGING:
        answer = call(*words)
        assert answer.returncode == 1, words
        errors = [line for line in answer.stderr.splitlines() if line.startswith("error:")]
        assert len(errors) == 1, (words, answer.stderr)
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
    assert "renamed" in call("list").stdout
    Path(f"{path}-shm").unlink()
    refused = call("list")
    assert refused.returncode == 1
    assert f"Copy {path} and {path}-wal together to a directory that you may write" in refused.stderr
    # An empty file has no data.
    Path(f"{path}-wal").write_bytes(b"")
    assert "report" in call("list").stdout


def test_a_node_on_a_read_only_store_ends_at_once_with_the_reason(
    read_only: tuple[Path, Call, str], tmp_path: Path
) -> None:
    path, call, why = read_only
    module = tmp_path / "a_module_of_jobs.py"
    module.write_text(f"from evertick import Scheduler\nscheduler = Scheduler('sqlite:///{path}')\n")
    module.chmod(0o644)
    os.environ["PYTHONPATH"] = str(tmp_path)
    try:
        answer = call("run", "a_module_of_jobs:scheduler")
    finally:
        del os.environ["PYTHONPATH"]
    assert answer.returncode == 1
    assert f"cannot be written: {why}" in answer.stderr
