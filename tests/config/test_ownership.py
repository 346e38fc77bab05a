"""Users who can change a configuration, and so its commands."""

from __future__ import annotations

import grp
import os
import pwd
import re
import socket
from collections.abc import Callable, Mapping
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace

import pytest

from evertick.config import ownership
from evertick.config.load import Configuration, guess_ledger, load_configuration, load_disabled, load_ledger
from evertick.config.ownership import distrusted_folder, open_owned
from evertick.errors import InvalidConfiguration
from other_user import as_other_user

ME, NOBODY = os.geteuid(), 65534
TRUST = {"EVERTICK_TRUST_CONFIG": "1"}
RUNS = "[jobs.a]\nevery = '1h'\nshell = 'true'\n"

Write = Callable[..., Path]
Load = Callable[..., Configuration]


@pytest.fixture
def root(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes to be root, so files of other users, also those of the suite, are foreign."""
    monkeypatch.setattr(os, "geteuid", lambda: 0)


@pytest.fixture
def alice(monkeypatch: pytest.MonkeyPatch) -> None:
    """This process believes to be the owner of all files here, with the private group 4321."""
    people = {4321: SimpleNamespace(pw_name="alice", pw_uid=4321, pw_gid=4321, pw_dir="/nowhere")}
    groups = {
        4321: SimpleNamespace(gr_name="alice", gr_mem=[]),
        4400: SimpleNamespace(gr_name="staff", gr_mem=["bob"]),
    }
    monkeypatch.setattr(os, "geteuid", lambda: 4321)
    monkeypatch.setattr(pwd, "getpwuid", people.__getitem__)
    monkeypatch.setattr(pwd, "getpwall", lambda: [*people.values()])
    monkeypatch.setattr(grp, "getgrgid", groups.__getitem__)
    monkeypatch.setattr(ownership, "_ROOT", ME)


def foreign(path: Path) -> Path:
    """Give the file to a user other than root."""
    if ME == 0:
        os.chown(path, NOBODY, NOBODY, follow_symlinks=False)
    return path


def distrusted(path: Path, environ: Mapping[str, str] = {}) -> dict[str, str]:
    opened, found = open_owned(path, environ)
    os.close(opened)
    return {each.place: each.problem for each in found}


def test_files_that_only_root_can_write_are_trusted(root: None, write: Write) -> None:
    path = write(RUNS, mode=0o644)
    path.parent.chmod(0o755)
    # If another user runs the suite, the parent folders belong to that user.
    assert not [
        message for message in distrusted(path).values() if "every user" in message or "group " in message.split("(")[0]
    ]
    if ME == 0:
        assert distrusted(path) == {}


@pytest.mark.parametrize(("mode", "who"), [(0o664, "group "), (0o646, "every user"), (0o666, " and every user")])
def test_root_refuses_a_file_that_others_can_write(root: None, write: Write, mode: int, who: str) -> None:
    path = write(RUNS, mode=mode)
    message = distrusted(Path("evertick.toml"))["evertick.toml"]
    assert who in message.partition(" can change this file, and so decide what ")[0]
    assert f"mode {mode:04o}" in message
    assert f"`chmod go-w {path}`, or set EVERTICK_TRUST_CONFIG=1 to accept it" in message


def test_root_refuses_a_file_of_another_user_with_its_owner_and_the_fix(root: None, write: Write) -> None:
    path = foreign(write(RUNS))
    owner = path.stat().st_uid
    name = pwd.getpwuid(owner).pw_name
    message = distrusted(path)[str(path)]
    assert message.startswith(f"its owner, user {name} ({owner}), can change this file, and so decide what root runs")
    assert f"(owner {name}, group " in message
    assert f"run `chown root {path}`, or set EVERTICK_TRUST_CONFIG=1 to accept it" in message


def test_the_folder_and_its_parents_are_checked_too(root: None, folder: Path, write: Write) -> None:
    path = write(RUNS, "a/b/evertick.toml")
    (folder / "a").chmod(0o777)
    foreign(folder / "a/b")
    found = distrusted(path)
    order = [place for place in found if place.startswith(str(folder / "a")) and place != str(path)]
    assert order == [str(folder / "a/b"), str(folder / "a")]
    assert f"run `chown root {folder / 'a/b'}`" in found[str(folder / "a/b")]
    assert f"`chmod go-w {folder / 'a'}`" in found[str(folder / "a")]
    assert "every user can change what is in this folder" in found[str(folder / "a")]


def test_a_folder_with_the_sticky_bit_is_accepted(root: None, folder: Path, write: Write) -> None:
    path = write(RUNS, "shared/evertick.toml")
    (folder / "shared").chmod(0o1777)
    assert "every user" not in distrusted(path).get(str(folder / "shared"), "")


def test_a_folder_on_a_read_only_file_system_is_accepted(
    root: None, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubernetes mounts a ConfigMap like this: mode 0777 without the sticky bit, and a link for each key."""
    write(RUNS, "map/..2026/evertick.toml", mode=0o644)
    (folder / "map/..data").symlink_to("..2026")
    (folder / "map/evertick.toml").symlink_to("..data/evertick.toml")
    (folder / "map").chmod(0o777)
    assert "every user" in distrusted(folder / "map/evertick.toml")[str(folder / "map")]
    monkeypatch.setattr(os, "fstatvfs", lambda _: SimpleNamespace(f_flag=os.ST_RDONLY))
    assert "every user" not in str(distrusted(folder / "map/evertick.toml"))


def test_the_owner_the_folder_and_the_target_of_a_link_are_checked(root: None, folder: Path, write: Write) -> None:
    write(RUNS, "real/evertick.toml", mode=0o646)
    (folder / "real").chmod(0o757)
    (folder / "links").mkdir(mode=0o700)
    (folder / "links").chmod(0o757)
    (folder / "links/evertick.toml").symlink_to("../real/evertick.toml")
    link = foreign(folder / "links/evertick.toml")
    found = distrusted(link)
    assert {str(folder / "real"), str(folder / "links"), str(link)} <= found.keys()


def test_a_link_of_another_user_is_refused_although_its_target_is_trusted(
    root: None, folder: Path, write: Write
) -> None:
    """In a folder with the sticky bit another user can create such a link."""
    target = write(RUNS, "real/evertick.toml")
    (folder / "tmp").mkdir()
    (folder / "tmp").chmod(0o1777)
    link = folder / "tmp/evertick.toml"
    link.symlink_to(target)
    foreign(link)
    _, found = open_owned(link, {})
    [message] = [each.problem for each in found if "this link" in each.problem]
    assert message.startswith("its owner, user ")
    assert f"`chown -h root {link}`" in message


def test_a_cycle_of_links_is_an_error_of_the_path(folder: Path) -> None:
    (folder / "a").symlink_to("b")
    (folder / "b").symlink_to("a")
    with pytest.raises(OSError, match="Too many levels of symbolic links"):
        open_owned(folder / "a", {})


def test_two_dots_after_a_link_leave_the_folder_of_its_target(folder: Path, write: Write) -> None:
    path = write(RUNS, "deep/er/evertick.toml")
    write("", "evertick.toml")
    (folder / "deep/er/inner").mkdir()
    (folder / "link").symlink_to("deep/er/inner")
    opened, _ = open_owned(folder / "link/../evertick.toml", {})
    assert os.path.samestat(os.fstat(opened), path.stat())
    os.close(opened)


def test_the_opened_file_is_checked_and_not_the_file_with_its_name_now(
    root: None, folder: Path, write: Write, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The file is replaced between the check and its opening."""
    path, real = write(RUNS), os.open

    def replace_then_open(name: str, flags: int, mode: int = 0o777, *, dir_fd: int | None = None) -> int:
        if name == "evertick.toml":
            path.unlink()
            write("evil = 1", mode=0o666)
        return real(name, flags, mode, dir_fd=dir_fd)

    monkeypatch.setattr(os, "open", replace_then_open)
    message = distrusted(path)[str(path)]
    assert "every user can change this file" in message
    assert "mode 0666" in message


def test_no_file_descriptor_stays_open(folder: Path, write: Write) -> None:
    write(RUNS, "a/b/evertick.toml")
    (folder / "link").symlink_to(folder / "a")
    before = len(os.listdir("/proc/self/fd"))
    distrusted(folder / "link/b/evertick.toml")
    with pytest.raises(FileNotFoundError):
        open_owned(folder / "link/b/none.toml", {})
    assert len(os.listdir("/proc/self/fd")) == before


# --- another user than root


def test_a_private_group_is_accepted(alice: None, write: Write, folder: Path) -> None:
    """With umask 002 all new files are writable by the user's private group."""
    path = write(RUNS, "clone/evertick.toml", mode=0o664)
    (folder / "clone").chmod(0o775)
    if ME == 0:
        os.chown(path, 4321, 4321)
        os.chown(path.parent, 4321, 4321)
        assert distrusted(path) == {}
    assert ownership._is_private_group(4321, 4321)


@pytest.mark.parametrize("why", ["another name", "a member", "the group of another user", "not the user's"])
def test_a_group_with_other_members_is_not_private(alice: None, monkeypatch: pytest.MonkeyPatch, why: str) -> None:
    group = SimpleNamespace(gr_name="users" if why == "another name" else "alice", gr_mem=["alice"])
    if why == "a member":
        group.gr_mem = ["alice", "bob"]
    monkeypatch.setattr(grp, "getgrgid", lambda _: group)
    if why == "the group of another user":
        bob = SimpleNamespace(pw_name="bob", pw_uid=4322, pw_gid=4321)
        monkeypatch.setattr(pwd, "getpwall", lambda: [pwd.getpwuid(4321), bob])
    assert not ownership._is_private_group(4400 if why == "not the user's" else 4321, 4321)


def test_root_has_no_private_group() -> None:
    assert not ownership._is_private_group(0, 0)


def test_another_user_gets_a_warning_and_the_jobs_run(alice: None, folder: Path, write: Write, load: Load) -> None:
    write("[jobs.b]\nevery = '1h'\nshell = 'true'\n", "jobs.d/b.toml", mode=0o646)
    (folder / "jobs.d").chmod(0o757)
    loaded = load(RUNS)
    assert [job.name for job in loaded.jobs] == ["a", "b"]
    first, second = (each for each in loaded.warnings if "can change" in each)
    assert first.startswith("jobs.d/b.toml: every user can change this file, and so decide what alice runs (owner ")
    assert second.startswith(f"{folder / 'jobs.d'}: every user can change what is in this folder")
    assert second.count("chmod go-w") == 1


def test_an_untrusted_folder_gets_one_warning(alice: None, folder: Path, write: Write, load: Load) -> None:
    for name in "bcd":
        write("", f"jobs.d/{name}.toml")
    (folder / "jobs.d").chmod(0o757)
    assert len([each for each in load(RUNS).warnings if "can change" in each]) == 1


# --- commands


def test_root_does_not_read_a_refused_file(root: None, folder: Path, write: Write) -> None:
    path = write(f"{RUNS}enabled = false\n[database]\nurl = 'sqlite:///theirs.db'\n", mode=0o646)
    environ = {"HOME": str(folder)}
    for read in (load_configuration, load_ledger):
        with pytest.raises(InvalidConfiguration) as wrong:
            read(path, environ)
        [message] = [each for each in wrong.value.problems if each.startswith(f"{path}: ")]
        assert "every user can change this file" in message
    assert load_disabled(path, environ) == {}
    guessed = guess_ledger(path, environ)
    assert guessed is not None
    assert "theirs" not in guessed.database_url


@pytest.mark.skipif(ME != 0, reason="only root can be a second user")
def test_a_second_user_is_warned_of_files_that_a_third_user_can_change() -> None:
    # That user cannot enter the folders of pytest.
    with TemporaryDirectory(dir="/tmp") as name:
        folder = Path(name).resolve()
        folder.chmod(0o755)
        own, foreign_file = (folder / each / "evertick.toml" for each in ("own", "theirs"))
        for path, owner in ((own, NOBODY), (foreign_file, NOBODY - 1)):
            path.parent.mkdir()
            path.write_text(RUNS)
            for each in (path.parent, path):
                os.chown(each, owner, owner)
        with as_other_user() as user:
            assert os.geteuid() == user
            found = load_configuration(own, {})
            warned = load_configuration(foreign_file, {})
            with pytest.raises(PermissionError):
                foreign_file.write_text("")
        assert not [each for each in found.warnings if "can change" in each]
        message = (
            f"its owner, user {NOBODY - 1}, can change this file, and so decide what {pwd.getpwuid(user).pw_name} runs"
        )
        assert [each for each in warned.warnings if each.startswith(f"{foreign_file}: {message}")]
        assert [job.name for job in warned.jobs] == ["a"]


def test_root_refuses_an_include_of_another_user(root: None, write: Write, problems: Callable[..., list[str]]) -> None:
    more = foreign(write(RUNS, "more.toml"))
    message = distrusted(more)[str(more)]
    assert message.startswith("its owner, user ")
    # If another user runs the suite, the first file is refused before its includes are read.
    found = problems("include = ['more.toml']")
    assert found == [f"more.toml: {message}"] if ME == 0 else found


def test_the_variable_turns_the_check_off(
    root: None, folder: Path, write: Write, load: Load, monkeypatch: pytest.MonkeyPatch
) -> None:
    foreign(write("", "more.toml", mode=0o666))
    folder.chmod(0o777)
    loaded = load(f"include = ['more.toml']\n{RUNS}", TRUST)
    assert ([job.name for job in loaded.jobs], loaded.warnings) == (["a"], ())
    with pytest.raises(InvalidConfiguration):
        load(f"include = ['more.toml']\n{RUNS}", {"EVERTICK_TRUST_CONFIG": "0"})


def test_a_folder_for_imports_is_untrusted_even_with_the_sticky_bit(root: None, folder: Path) -> None:
    """Any new file in it can be imported."""
    (folder / "app").mkdir()
    (folder / "app").chmod(0o1777)
    message = {each.place: each.problem for each in distrusted_folder(folder / "app", {})}[str(folder / "app")]
    assert "every user" in message
    assert distrusted_folder(folder / "app", TRUST) == []


# --- paths that are no files


@pytest.mark.parametrize("kind", ["fifo", "socket", "device"])
def test_a_path_that_is_no_regular_file_is_refused_at_once(
    folder: Path, write: Write, kind: str, problems: Callable[..., list[str]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Opening a pipe without a writer blocks."""
    path, words = folder / "x.toml", {"fifo": "a named pipe", "socket": "a socket", "device": "a device"}[kind]
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "socket":
        with socket.socket(socket.AF_UNIX) as listening:
            listening.bind(str(path.relative_to(folder)))
    else:
        path.symlink_to("/dev/null")
    message = f"cannot be read: it is {words}, not a regular file; name a file of TOML"
    assert problems("include = ['x.toml']") == [f"evertick.toml:1: x.toml {message}"]
    with pytest.raises(InvalidConfiguration) as wrong:
        load_configuration(path, {"HOME": str(folder), **TRUST})
    assert wrong.value.problems == (f"{path}: {message}",)


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("[database]\nurl = 'postgresql://u@h/x'\npassword_file = 'pipe'\n", "database.password_file"),
        ("[http]\nca = 'pipe'\n", "http.ca"),
        ("[redis]\nurl = 'rediss://h'\n[redis.ssl]\nca = 'pipe'\n", "redis.ssl.ca"),
        ("[nats]\nurl = 'tls://h'\ncredentials = 'pipe'\n", "nats.credentials"),
        ("[jobs.a]\nevery = '1h'\nhttp = { url = 'https://a.example', ca = 'pipe' }\n", "jobs.a.http"),
    ],
)
def test_an_explicit_file_that_is_a_pipe_is_refused_at_once(
    folder: Path, problems: Callable[..., list[str]], text: str, key: str
) -> None:
    os.mkfifo(folder / "pipe")
    [message] = problems(text)
    assert re.search(rf": {key}\b.*it is a named pipe, not a regular file", message)
