"""`evertick dist` writes the files of a service, with the right program in them, and overwrites nothing by itself."""

from __future__ import annotations

import os
import re
import sys
from pathlib import Path

from evertick.cli.command.dist import FILES

SOURCE = Path(__file__).parents[2] / "src/evertick/daemon/dist"
NAMES = sorted(each.file for each in FILES)


def content(folder: Path) -> dict[str, str]:
    return {path.name: path.read_text() for path in folder.iterdir()}


def test_every_file_of_the_package_is_written_and_named(evertick, tmp_path):
    result = evertick("dist", "--to", str(tmp_path / "new/dist"), "--prefix", "/usr")
    assert (result.exit_code, result.stderr) == (0, "")
    assert sorted(content(tmp_path / "new/dist")) == NAMES == sorted(path.name for path in SOURCE.iterdir())
    for each in FILES:
        assert re.search(rf"{tmp_path}/new/dist/{each.file} +written +{each.target or 'beside a wheel'}", result.stdout)


def test_the_unit_and_the_init_script_start_the_program_of_the_prefix(evertick, tmp_path):
    assert evertick("dist", "--to", str(tmp_path), "--prefix", "/srv/evertick/").exit_code == 0
    written = content(tmp_path)
    assert re.findall(r"^ExecStart=(\S+)", written["evertick.service"], re.MULTILINE) == ["/srv/evertick/bin/evertick"]
    assert re.findall(r"^DAEMON=(.+)", written["evertick.init"], re.MULTILINE) == ["/srv/evertick/bin/evertick"]
    assert "/opt/evertick" not in written["evertick.service"] + written["evertick.init"]
    # The image has an environment of its own.
    assert written["Containerfile"] == (SOURCE / "Containerfile").read_text()


def test_the_default_prefix_is_the_environment_of_the_command(ask, evertick, tmp_path):
    result = evertick("dist", "--to", str(tmp_path))
    assert result.exit_code == 0, result.stderr
    program = f"{sys.prefix}/bin/evertick"
    assert f"ExecStart={program} daemon" in content(tmp_path)["evertick.service"]
    assert f"start {program}\n" in result.stdout


def test_an_environment_without_the_program_is_refused(evertick, tmp_path, monkeypatch):
    monkeypatch.setattr(sys, "prefix", str(tmp_path))
    result = evertick("dist", "--to", str(tmp_path / "dist"))
    assert result.exit_code == 1
    assert f"{tmp_path}/bin/evertick does not exist" in result.stderr
    assert not (tmp_path / "dist").exists()


def test_a_prefix_that_the_unit_hides_from_the_daemon_is_a_warning(evertick, tmp_path):
    result = evertick("dist", "--to", str(tmp_path), "--prefix", "/home/ada/.venv")
    assert result.exit_code == 0
    assert "hides /home/ada/.venv/bin/evertick from the daemon (ProtectHome, PrivateTmp)" in result.stderr


def test_a_prefix_with_syntax_of_systemd_or_the_shell_is_refused(evertick, tmp_path):
    for prefix in ("/opt/my programs", "/opt/%h", "/opt/$HOME", "/opt/a;b"):
        result = evertick("dist", "--to", str(tmp_path), "--prefix", prefix)
        assert (result.exit_code, list(tmp_path.iterdir())) == (2, [])
        assert result.stderr.startswith("error: --prefix: ")


def test_files_that_differ_are_named_all_at_once_and_nothing_is_written(evertick, tmp_path):
    (tmp_path / "evertick.init").write_text("my own\n")
    (tmp_path / "Containerfile").write_text("FROM scratch\n")
    result = evertick("dist", "--to", str(tmp_path), "--prefix", "/usr")
    assert result.exit_code == 1
    assert "has other versions of evertick.init, Containerfile, so nothing was written; add --force" in result.stderr
    assert content(tmp_path) == {"evertick.init": "my own\n", "Containerfile": "FROM scratch\n"}


def test_force_replaces_the_files_that_differ_and_leaves_the_others(ask, evertick, tmp_path):
    evertick("dist", "--to", str(tmp_path), "--prefix", "/usr")
    (tmp_path / "evertick.init").write_text("my own\n")
    os.utime(tmp_path / "evertick.toml", (1, 1))
    answer = ask("dist", "--to", str(tmp_path), "--prefix", "/usr", "--force")
    assert (answer["directory"], answer["program"]) == (str(tmp_path), "/usr/bin/evertick")
    assert [each["file"] for each in answer["files"] if each["is_changed"]] == ["evertick.init"]
    assert (tmp_path / "evertick.toml").stat().st_mtime == 1
    assert os.access(tmp_path / "evertick.init", os.X_OK)
    assert not os.access(tmp_path / "evertick.service", os.X_OK)


def test_the_same_files_again_change_nothing(ask, evertick, tmp_path):
    evertick("dist", "--to", str(tmp_path), "--prefix", "/usr")
    again = ask("dist", "--to", str(tmp_path), "--prefix", "/usr")
    assert [each["is_changed"] for each in again["files"]] == [False] * len(FILES)


def test_a_directory_that_cannot_be_written_is_one_sentence(evertick, tmp_path):
    (tmp_path / "file").write_text("")
    result = evertick("dist", "--to", str(tmp_path / "file/dist"), "--prefix", "/usr")
    assert result.exit_code == 1
    words = "cannot be written: Not a directory; name another directory with --to"
    assert re.fullmatch(rf"error: '.*' {words}\n", result.stderr)


def test_the_list_writes_nothing(ask, evertick, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert [each["file"] for each in ask("dist", "--list")] == [each.file for each in FILES]
    assert "/etc/systemd/system/evertick.service" in evertick("dist", "--list").stdout
    assert list(tmp_path.iterdir()) == []


def test_without_a_directory_the_error_names_both_options(evertick):
    result = evertick("dist")
    assert result.exit_code == 2
    assert "add --to DIR, or --list" in result.stderr
