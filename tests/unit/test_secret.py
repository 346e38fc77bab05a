"""Secrets are named in the configuration and read when needed; files that others can read are refused."""

from __future__ import annotations

import os
from pathlib import Path

import msgspec
import pytest

from evertick import InvalidSetting, NotFound, Refused, Secret
from evertick.driver.secret import Secrets


def put(folder: Path, name: str, value: bytes, mode: int = 0o600) -> Path:
    path = folder / name
    path.write_bytes(value)
    path.chmod(mode)
    return path


def test_a_secret_shows_its_name_and_reads_from_a_table() -> None:
    assert repr(Secret("DB")) == "Secret(name='DB')"
    assert msgspec.convert({"secret": "DB"}, Secret) == Secret("DB")
    assert msgspec.to_builtins(Secret("DB")) == {"secret": "DB"}


def test_the_environment_comes_before_the_file(tmp_path: Path) -> None:
    put(tmp_path, "db-password", b"from the file\n")
    assert Secrets(tmp_path, {}).resolve("db-password") == "from the file"
    assert Secrets(tmp_path, {"EVERTICK_SECRET_DB_PASSWORD": "from here"}).resolve("db-password") == "from here"


@pytest.mark.parametrize(
    ("written", "read"), [(b"x", "x"), (b"x\n", "x"), (b"x\r\n", "x"), (b" x \n\n", " x \n"), ("grün".encode(), "grün")]
)
def test_only_a_trailing_newline_is_removed_from_a_secret(tmp_path: Path, written: bytes, read: str) -> None:
    put(tmp_path, "S", written)
    assert Secrets(tmp_path, {}).resolve("S") == read


def test_a_changed_secret_applies_from_the_next_read(tmp_path: Path) -> None:
    secrets = Secrets(tmp_path, {})
    put(tmp_path, "S", b"old")
    assert secrets.resolve("S") == "old"
    put(tmp_path, "S", b"new")
    assert secrets.resolve("S") == "new"


def test_the_error_of_a_missing_secret_names_the_searched_places(tmp_path: Path) -> None:
    with pytest.raises(NotFound) as without_folder:
        Secrets(None, {}).resolve("db.pw")
    assert str(without_folder.value) == "secret 'db.pw' is not set; set the environment variable EVERTICK_SECRET_DB_PW"
    with pytest.raises(NotFound) as with_folder:
        Secrets(tmp_path, {}).resolve("S")
    assert str(with_folder.value).endswith(f"or write the value to {tmp_path / 'S'} (mode 0600)")


@pytest.mark.parametrize("mode", [0o640, 0o604, 0o620, 0o644, 0o777])
def test_a_world_readable_secret_file_is_refused_with_the_command_to_fix_it(tmp_path: Path, mode: int) -> None:
    path = put(tmp_path, "S", b"value", mode)
    with pytest.raises(Refused) as refused:
        Secrets(tmp_path, {}).resolve("S")
    assert str(refused.value) == f"secret 'S': other users can read {path} (mode {mode:04o}); run `chmod 600 {path}`"
    assert "value" not in str(refused.value)


def test_a_secret_file_readable_only_by_its_owner_is_accepted(tmp_path: Path) -> None:
    put(tmp_path, "S", b"value", 0o400)
    assert Secrets(tmp_path, {}).resolve("S") == "value"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give a file away")
def test_a_secret_file_of_another_user_is_refused(tmp_path: Path) -> None:
    os.chown(put(tmp_path, "S", b"value"), 65534, 65534)
    with pytest.raises(Refused, match=r"belongs to another user \(65534\)"):
        Secrets(tmp_path, {}).resolve("S")


def test_a_secret_that_is_too_large_or_no_text_is_refused(tmp_path: Path) -> None:
    for value, message in (
        (b"", "is empty"),
        (b"\n", "is empty"),
        (b"a\0b", "contains a zero"),
        (b"\xff", "not UTF-8 text"),
        (b"x" * 65_537, "more than 65536 bytes"),
    ):
        put(tmp_path, "S", value)
        with pytest.raises(Refused, match=message):
            Secrets(tmp_path, {}).resolve("S")


def test_a_pipe_or_folder_instead_of_a_secret_file_does_not_block(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe", 0o600)
    (tmp_path / "folder").mkdir()
    for name in ("pipe", "folder"):
        with pytest.raises(Refused, match="is not a regular file"):
            Secrets(tmp_path, {}).resolve(name)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".hidden", "a b", "x" * 101, "a\n", "ß"])
def test_an_invalid_secret_name_never_becomes_a_path(tmp_path: Path, name: str) -> None:
    with pytest.raises(InvalidSetting, match="is not a valid name of a secret"):
        Secrets(tmp_path, {}).resolve(name)
