"""Layers of settings (defaults, files, environment, flags), and the origin of each value."""

from __future__ import annotations

import inspect
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from evertick import Scheduler
from evertick.config.build import scheduler_from
from evertick.config.files import find_file, searched_files
from evertick.config.load import Configuration, load_configuration, load_ledger
from evertick.config.paths import default_state, make_private
from evertick.config.section import SECTIONS, keys_of, variable_of
from evertick.errors import InvalidConfiguration, Refused

Load = Callable[..., Configuration]
Write = Callable[..., Path]


def origins(configuration: Configuration, *keys: str) -> list[str]:
    return [str(configuration.values[key].origin) for key in keys]


# --- layers


def test_each_layer_overrides_the_previous_one(load: Load) -> None:
    text = "[node]\nlease = '20s'\nqueues = ['a']\nconcurrency = 3\n"
    loaded = load(
        text,
        {"EVERTICK_NODE_QUEUES": "b, c", "EVERTICK_NODE_CONCURRENCY": "4", "EVERTICK_NODE_DUTIES": "off"},
        node__concurrency=("--concurrency", 5),
    )
    node = loaded.node
    assert (node.tz, node.lease, node.queues, node.concurrency, node.duties) == ("UTC", "20s", ("b", "c"), 5, False)
    assert origins(loaded, "node.tz", "node.lease", "node.queues", "node.concurrency") == [
        "default",
        "evertick.toml:2",
        "EVERTICK_NODE_QUEUES",
        "--concurrency",
    ]


def test_an_empty_variable_is_ignored(load: Load) -> None:
    assert load("[node]\nlease = '20s'", {"EVERTICK_NODE_LEASE": ""}).node.lease == "20s"


def test_variables_that_kubernetes_sets_for_a_service_are_ignored(
    load: Load, problems: Callable[..., list[str]]
) -> None:
    environ = {
        "EVERTICK_REDIS_SERVICE_HOST": "10.0.0.11",
        "EVERTICK_REDIS_SERVICE_PORT": "6379",
        "EVERTICK_REDIS_SERVICE_PORT_MAIN": "6379",
        "EVERTICK_REDIS_PORT": "tcp://10.0.0.11:6379",
        "EVERTICK_REDIS_PORT_6379_TCP": "tcp://10.0.0.11:6379",
        "EVERTICK_REDIS_PORT_6379_TCP_PROTO": "tcp",
        "EVERTICK_REDIS_PORT_6379_TCP_PORT": "6379",
        "EVERTICK_REDIS_PORT_6379_TCP_ADDR": "10.0.0.11",
    }
    assert load("", environ).connections == {}
    # Without such a service it is an unknown key.
    del environ["EVERTICK_REDIS_SERVICE_HOST"]
    assert len(problems("", environ)) == len(environ)


def test_variables_of_other_programs_are_ignored(load: Load) -> None:
    environ = {"EVERTICK_RUN_ID": "1", "EVERTICK_APP": "x", "EVERTICK_SECRET_A": "s", "EVERTICK_TRACEBACK": "1"}
    assert load("", environ).node.app == "default"


def test_every_setting_of_a_scheduler_has_a_key_with_the_same_default(load: Load) -> None:
    settings = load("").settings
    parameters = inspect.signature(Scheduler).parameters
    assert set(settings) == set(parameters) - {"url", "unknown"}
    own = {"node_name", "drivers"}  # a node of a configuration has its own name and all drivers
    for name, value in settings.items():
        if name not in own:
            assert value == parameters[name].default, name


def test_every_key_has_its_own_variable() -> None:
    keys = [f"{name}.{key}" for name, kind in SECTIONS.items() for key, _, _ in keys_of(kind)]
    assert len({variable_of(key) for key in keys}) == len(keys)
    assert variable_of("database.ssl.ca") == "EVERTICK_DATABASE_SSL_CA"


def test_values_from_the_environment_can_have_any_type(load: Load) -> None:
    text = "[node]\nconcurrency = '${SLOTS}'\nname = '${NAME:-web}@$${x}'\nqueues = ['${Q:-}x']\n[log]\nlevel = '${L}'"
    loaded = load(text, {"SLOTS": "7", "L": "debug"})
    assert (loaded.node.concurrency, loaded.node.name, loaded.node.queues) == (7, "web@${x}", ("x",))
    assert loaded.log.level == "debug"
    assert loaded.values["node.concurrency"].written == "${SLOTS}"


def test_the_default_of_a_reference_applies_if_its_variable_is_empty(load: Load) -> None:
    loaded = load("[node]\nname = '${A:-a}'\napp = '${B:-b}'\ntz = '${C}'", {"A": "", "B": "x", "C": "UTC"})
    assert (loaded.node.name, loaded.node.app) == ("a", "x")


# --- files


def test_files_are_included_by_name_and_by_pattern_in_order(write: Write, load: Load) -> None:
    write("[jobs.b]\nevery = '1h'\necho = 'b'", "conf.d/b.toml")
    write("[jobs.a]\nevery = '1h'\necho = 'a'\n", "conf.d/a.toml")
    write("include = ['../deep/*.toml']\n[node]\ntz = 'Asia/Kolkata'", "conf.d/sub/x.toml")
    write("[log]\nlevel = 'error'\nfile = 'log'", "conf.d/deep/y.toml")
    write("[jobs.c]\nevery = '1h'\necho = 'c'", "jobs.d/c.toml")
    write("[jobs.no]\n", "jobs.d/c.toml.bak")
    loaded = load("include = ['conf.d/*.toml', 'conf.d/sub/x.toml', 'none/*.toml']\n")
    assert [job.name for job in loaded.jobs] == ["a", "b", "c"]
    assert [job.place for job in loaded.jobs] == ["conf.d/a.toml:1", "conf.d/b.toml:1", "jobs.d/c.toml:1"]
    assert (loaded.node.tz, loaded.log.level) == ("Asia/Kolkata", "error")
    # A path is relative to the folder of its file.
    assert loaded.log.file is not None
    assert loaded.log.file.resolve() == Path("conf.d/deep/log").absolute()
    assert [str(path) for path in loaded.digests] == [
        "evertick.toml",
        "conf.d/a.toml",
        "conf.d/b.toml",
        "conf.d/sub/x.toml",
        "conf.d/sub/../deep/y.toml",
        "jobs.d/c.toml",
    ]


def test_the_folder_of_jobs_can_be_set(write: Write, load: Load) -> None:
    write("[jobs.c]\nevery = '1h'\necho = 'c'", "all/c.toml")
    write("[jobs.d]\nevery = '1h'\necho = 'd'", "jobs.d/d.toml")
    assert [job.name for job in load("[directories]\njobs = 'all'").jobs] == ["c"]
    assert [job.name for job in load("", {"EVERTICK_DIRECTORIES_JOBS": "all"}).jobs] == ["c"]


def test_a_file_that_two_patterns_match_is_read_once(write: Write, load: Load) -> None:
    write("[jobs.c]\nevery = '1h'\necho = 'c'", "jobs.d/c.toml")
    assert len(load("include = ['jobs.d/*.toml', 'jobs.d/c.toml']").jobs) == 1


def test_a_byte_order_mark_and_windows_line_ends_are_accepted(folder: Path) -> None:
    (folder / "evertick.toml").write_bytes(b"\xef\xbb\xbf[node]\r\ntz = 'Asia/Kolkata'\r\n")
    loaded = load_configuration(None, {"HOME": str(folder)})
    assert origins(loaded, "node.tz") == ["evertick.toml:2"]


def test_the_file_is_searched_in_the_working_user_and_system_directory(folder: Path, write: Write) -> None:
    environ = {"HOME": str(folder / "home"), "XDG_CONFIG_HOME": ""}
    assert searched_files(environ) == (
        f"evertick.toml, {folder}/home/.config/evertick/evertick.toml, /etc/evertick/evertick.toml"
    )
    user_file = write("", "home/.config/evertick/evertick.toml")
    assert find_file(None, environ) == user_file
    other = write("", "xdg/evertick/evertick.toml")
    assert find_file(None, environ | {"XDG_CONFIG_HOME": str(folder / "xdg")}) == other
    write("")
    assert find_file(None, environ) == Path("evertick.toml")
    assert find_file("else.toml", environ) == Path("else.toml")


def test_without_a_file_only_the_environment_applies(folder: Path) -> None:
    environ = {"HOME": str(folder), "EVERTICK_NODE_APP": "shop", "EVERTICK_DATABASE": "sqlite:///x.db"}
    loaded = load_configuration(None, environ)
    assert (loaded.file, loaded.node.app, loaded.database_url, loaded.jobs) == (None, "shop", "sqlite:///x.db", ())
    assert loaded.config_directory is None


# --- the database and the brokers


@pytest.mark.parametrize(
    ("text", "environ", "url"),
    [
        ("", {}, "sqlite:////state/evertick.db"),
        ("url = 'sqlite:///jobs.db?synchronous=normal'", {}, "sqlite:///{folder}/jobs.db?synchronous=normal"),
        ("url = 'sqlite:////var/jobs.db'", {}, "sqlite:////var/jobs.db"),
        ("url = 'sqlite:///jobs.db'", {"EVERTICK_DATABASE": "sqlite:///other.db"}, "sqlite:///other.db"),
        (
            "address = 'db'\nname = 'jobs'\nuser = 'us er'\npassword = 'p@ss/w:rd'",
            {},
            "postgresql://us%20er:p%40ss%2Fw%3Ard@db/jobs",
        ),
        ("address = 'a:5433, ::1'\nname = 'jobs'", {}, "postgresql://a:5433,[::1]/jobs"),
        ("address = '/run/pg'\nname = 'jobs'", {}, "postgresql:///jobs?host=%2Frun%2Fpg"),
        (
            "name = 'jobs'\nschema = 'x'\npool_size = 3\ntimeout = '1m'\nssl = { mode = 'require', ca = 'ca.pem' }",
            {},
            "postgresql:///jobs?schema=x&pool_size=3&timeout=1m&sslmode=require&ca={ca}",
        ),
        ("url = 'postgresql://u@h/d?schema=x'\npassword = 'p'", {}, "postgresql://u:p@h/d?schema=x"),
        ("url = 'postgresql://u@h/d'", {"EVERTICK_DATABASE_PASSWORD": "p"}, "postgresql://u:p@h/d"),
        # Another database replaces all database settings of the file.
        (
            "address = 'db'\nname = 'jobs'\nuser = 'u'\npassword = 'p'\nschema = 'x'",
            {"EVERTICK_DATABASE": "postgresql://other/jobs"},
            "postgresql://other/jobs",
        ),
        ("url = 'sqlite:///jobs.db'", {"EVERTICK_DATABASE_NAME": "jobs"}, "postgresql:///jobs"),
    ],
)
@pytest.mark.usefixtures("authority")
def test_the_database_is_a_url_or_its_parts(
    folder: Path, load: Load, text: str, environ: dict[str, str], url: str
) -> None:
    loaded = load(f"[database]\n{text}", {"STATE_DIRECTORY": "/state", **environ})
    ca = str(folder / "ca.pem").replace("/", "%2F")
    assert loaded.database_url == url.format(folder=folder, ca=ca)


def test_a_password_is_read_from_its_file_and_a_readable_file_is_reported(write: Write, load: Load) -> None:
    text = "[database]\nname = 'jobs'\nuser = 'u'\npassword_file = 'pw'"
    path = write("secret\n", "pw")
    assert load(text).database_url == "postgresql://u:secret@/jobs"
    assert load(text).warnings == ()
    path.chmod(0o644)
    assert load(text).warnings == (f"{path}: every user may read this password; run `chmod 600 {path}`",)


@pytest.mark.parametrize("content", [b"", b"two\nlines\n", b"x" * 5000, b"a\0b"])
def test_a_password_file_has_one_line(folder: Path, problems: Callable[..., list[str]], content: bytes) -> None:
    (folder / "pw").write_bytes(content)
    assert problems("[database]\nname = 'jobs'\nuser = 'u'\npassword_file = 'pw'") == [
        f"evertick.toml:4: database.password_file: {folder}/pw must hold one line, the password, and nothing else"
    ]


def test_a_password_in_a_world_readable_file_is_reported(folder: Path, write: Write) -> None:
    text = "[database]\nurl = 'postgresql://u:secret@h/d'\n[redis]\naddress = 'localhost'\npassword = 'x'\n"
    text += "[nats]\naddress = 'localhost'\ntoken = '${T}'\n"
    write(text, mode=0o644)
    loaded = load_configuration(None, {"HOME": str(folder), "T": "t"})
    fix = "run `chmod 600 evertick.toml`, or put it into a file of its own"
    assert loaded.warnings == (
        f"evertick.toml:2: database.url: every user may read this password; {fix}",
        f"evertick.toml:5: redis.password: every user may read this password; {fix}",
    )
    write(text, mode=0o640)
    assert load_configuration(None, {"HOME": str(folder), "T": "t"}, {}).warnings == ()


def test_a_user_beside_a_password_file_is_no_secret(folder: Path, write: Write) -> None:
    (folder / "pw").write_text("hunter2\n")
    (folder / "pw").chmod(0o600)
    write("[nats]\nurl = 'tls://w@h'\npassword_file = 'pw'\n", mode=0o644)
    assert load_configuration(None, {"HOME": str(folder)}).warnings == ()
    write("[nats]\nurl = 'nats://token@h'\n", mode=0o644)
    assert "every user may read this password" in load_configuration(None, {"HOME": str(folder)}).warnings[0]


@pytest.mark.usefixtures("authority")
def test_brokers_are_urls_or_their_parts(folder: Path, load: Load) -> None:
    (folder / "c").touch()
    loaded = load(
        "[redis]\naddress = 'r:6380'\nuser = 'u'\npassword = 'p/w'\nnumber = 2\nssl.ca = 'ca.pem'\n"
        "[nats]\nurl = 'nats://a:4222,nats://b:4222'\ntoken = 't'\ncredentials = 'c'\n"
    )
    redis, nats = loaded.connections["redis"], loaded.connections["nats"]
    assert (redis.url, redis.ca) == ("rediss://u:p%2Fw@r:6380/2", folder / "ca.pem")
    assert (nats.url, nats.token, nats.credentials) == ("nats://a:4222,nats://b:4222", "t", folder / "c")
    assert load("[redis]\naddress = 'r'").connections["redis"].url == "redis://r"
    assert load("[nats]\naddress = 'a, b'\ntls = true").connections["nats"].url == "tls://a,tls://b"
    assert load("").connections == {}


@pytest.mark.parametrize(
    ("text", "environ", "url"),
    [
        # A Redis password usually has no user.
        ("[redis]\nurl = 'redis://h:1/2'\npassword = 'p/w'", {}, "redis://:p%2Fw@h:1/2"),
        ("[redis]\nurl = 'unix:///run/r.sock'\npassword = 'p'", {}, "unix://:p@/run/r.sock"),
        ("[redis]\nurl = 'rediss://u@h'\npassword_file = 'pw'\ntls = true", {}, "rediss://u:hush@h"),
        ("[redis]\naddress = '::1'\npassword = 'p'", {}, "redis://:p@[::1]"),
        ("[nats]\nurl = 'nats://u@a, nats://u@b'\npassword = 'p'", {}, "nats://u:p@a,nats://u:p@b"),
        # As with the database: another server replaces all settings of the file.
        ("[redis]\naddress = 'h'\ntls = true\nssl.ca = 'no.pem'", {"EVERTICK_REDIS": "redis://x"}, "redis://x"),
        ("", {"EVERTICK_NATS": "nats://x"}, "nats://x"),
    ],
)
def test_a_broker_gets_its_password_and_is_replaced_as_a_whole(
    write: Write, load: Load, text: str, environ: dict[str, str], url: str
) -> None:
    write("hush\n", "pw")
    [found] = load(text, environ).connections.values()
    assert found.url == url


def test_nothing_that_is_printed_shows_a_password(load: Load) -> None:
    loaded = load(
        "[database]\nname = 'jobs'\nuser = 'u'\npassword = 'hush'\n[redis]\naddress = 'h'\npassword = 'hush'\n"
        "[nats]\naddress = 'h'\ntoken = 'hush'"
    )
    parts = [loaded, loaded.database, loaded.redis, loaded.nats, loaded.connections, scheduler_from(loaded)]
    assert "hush" in loaded.database_url
    assert "hush" not in " ".join(repr(part) for part in parts)


# --- only the ledger


def test_a_command_finds_the_ledger_despite_invalid_jobs(folder: Path, write: Write) -> None:
    environ = {"HOME": str(folder), "EVERTICK_LOG_LEVEL": "loud"}
    assert load_ledger(None, environ) is None
    write("[database]\nurl = 'sqlite:///jobs.db'\n[node]\napp = 'shop'\n[jobs.a]\nnever = 1\n[oops]\n")
    found = load_ledger(None, environ)
    assert found is not None
    assert (found.database_url, found.app) == (f"sqlite:///{folder}/jobs.db", "shop")
    assert load_ledger(None, environ | {"EVERTICK_DATABASE": "sqlite:///x.db"}).database_url == "sqlite:///x.db"  # type: ignore[union-attr]
    write("[database]\nurl = 'x'")
    with pytest.raises(InvalidConfiguration, match=r"^evertick.toml:2: database.url: 'x' is not a database URL"):
        load_ledger(None, environ)


# --- directories


def test_the_state_directory_depends_on_the_user(monkeypatch: pytest.MonkeyPatch) -> None:
    assert default_state({"STATE_DIRECTORY": "/var/lib/a:/var/lib/b"}) == Path("/var/lib/a")
    monkeypatch.setattr(os, "geteuid", lambda: 0)
    assert default_state({"HOME": "/root"}) == Path("/var/lib/evertick")
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    assert default_state({"HOME": "/home/a"}) == Path("/home/a/.local/state/evertick")
    assert default_state({"XDG_STATE_HOME": "/s"}) == Path("/s/evertick")


def test_a_directory_is_created_only_for_this_user(tmp_path: Path) -> None:
    path = tmp_path / "a/b"
    assert make_private(path) is None
    assert path.stat().st_mode & 0o777 == 0o700
    path.chmod(0o755)
    assert make_private(path) == f"the directory {path} was open to others (mode 0755); it has mode 0700 now"
    assert path.stat().st_mode & 0o777 == 0o700


def test_the_directories_of_a_node_are_created_and_the_folder_of_its_file_is_not(folder: Path, load: Load) -> None:
    folder.chmod(0o755)
    assert load("[directories]\nstate = 's'").make_directories() == []
    assert [each.name for each in folder.iterdir() if each.is_dir()] == ["s"]
    assert folder.stat().st_mode & 0o777 == 0o755
    (folder / "c").mkdir(mode=0o755)
    [message] = load("[directories]\nstate = 's'\nconfig = 'c'").make_directories()
    assert message == f"the directory {folder}/c was open to others (mode 0755); it has mode 0700 now"


def test_a_directory_of_another_user_that_is_open_to_others_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    owner, me = os.getuid(), os.getuid() + 1
    monkeypatch.setattr(os, "geteuid", lambda: me)
    tmp_path.chmod(0o755)
    with pytest.raises(Refused) as refused:
        make_private(tmp_path)
    assert str(refused.value) == (
        f"the directory {tmp_path} belongs to another user ({owner}), and is open to others (mode 0755); "
        f"run `chown {me} {tmp_path}` and `chmod 700 {tmp_path}`, or name another"
    )
    tmp_path.chmod(0o700)
    assert make_private(tmp_path) is None


@pytest.mark.parametrize("mode", [0o1777, 0o1755, 0o777, 0o757])
def test_a_world_writable_directory_is_refused_and_not_changed(tmp_path: Path, mode: int) -> None:
    tmp_path.chmod(mode)
    with pytest.raises(Refused) as refused:
        make_private(tmp_path)
    assert str(refused.value) == (
        f"the directory {tmp_path} is open to all users (mode {mode:04o}); run `mkdir -m 700 {tmp_path}/evertick`, "
        "and name that"
    )
    assert tmp_path.stat().st_mode & 0o7777 == mode
    tmp_path.chmod(0o700)


def test_the_mode_of_a_directory_is_tightened_only_without_files_of_others(tmp_path: Path) -> None:
    for name in ("evertick.db", "evertick.db-wal", "daemon.json", "evertick.pid"):
        (tmp_path / name).touch()
    tmp_path.chmod(0o755)
    assert "it has mode 0700 now" in str(make_private(tmp_path))
    (tmp_path / "thesis.tex").touch()
    tmp_path.chmod(0o755)
    assert make_private(tmp_path) == (
        f"others may read the directory {tmp_path} (mode 0755), which holds other things, too; run "
        f"`chmod 700 {tmp_path}`, or name one that is for Evertick alone"
    )
    assert tmp_path.stat().st_mode & 0o777 == 0o755
    tmp_path.chmod(0o775)
    assert str(make_private(tmp_path)).startswith(f"others may write to the directory {tmp_path} (mode 0775), which")


def test_a_directory_that_cannot_be_created_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(Refused, match=r"cannot be made: .*; make it, or name another"):
        make_private(tmp_path / "file" / "state")
