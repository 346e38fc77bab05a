"""The keys of a configuration: every section, the kind of each key, and its default.

The loader, `config show` and the reference page, which a test compares with it, read this table.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import msgspec

from evertick.config.problem import toml_words
from evertick.definition.settings import DATABASE_VARIABLE
from evertick.errors import InvalidSetting
from evertick.text.byte_size import size_bytes
from evertick.when.duration import Duration, duration_us

__all__ = [
    "PATH",
    "SECTIONS",
    "SHORT_VARIABLES",
    "TEXT",
    "VARIABLE",
    "Daemon",
    "Database",
    "Directories",
    "Http",
    "Key",
    "Log",
    "Nats",
    "Node",
    "Redis",
    "Retention",
    "Section",
    "keys_of",
    "variable_of",
]

_YES, _NO = ("true", "yes", "on", "1"), ("false", "no", "off", "0")
_TEXT_LONGEST = 4_096
_TEXTS_MOST = 1_000


class Kind(msgspec.Struct, frozen=True, kw_only=True):
    """`read` checks a value of a file; `of_text` converts text to such a value, or returns the text."""

    # For the documentation, and for the error of a wrong value: "is no <words>; write <fix>".
    words: str
    fix: str
    read: Callable[[Any, Path], Any]
    of_text: Callable[[str], Any] = lambda text: text


def _refused(value: Any, words: str, fix: str) -> InvalidSetting:
    return InvalidSetting(f"{toml_words(value):.100} is no {words}; write {fix}")


def _make(words: str, fix: str, is_right: Callable[[Any], bool], of_text: Callable[[str], Any]) -> Kind:
    def read(value: Any, folder: Path) -> Any:
        if not is_right(value):
            raise _refused(value, words, fix)
        return value

    return Kind(words=words, fix=fix, read=read, of_text=of_text)


def _same(text: str) -> Any:
    return text


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _TEXT_LONGEST and "\0" not in value


def _whole_of(text: str) -> Any:
    try:
        return int(text)
    except ValueError:
        return text


def _yes_or_no(text: str) -> Any:
    plain = text.strip().lower()
    return True if plain in _YES else False if plain in _NO else text


def _texts_of(text: str) -> Any:
    return [part.strip() for part in text.split(",") if part.strip()]


def _read_texts(value: Any, folder: Path) -> Any:
    if not isinstance(value, list):
        raise _refused(value, TEXTS.words, TEXTS.fix)
    if len(value) > _TEXTS_MOST:
        raise InvalidSetting(f"{len(value)} texts are more than {_TEXTS_MOST}; keep fewer")
    if "" in value:
        raise InvalidSetting("'' in it is empty; write something between the quotes, or take them away")
    for each in value:
        if not _is_text(each):
            raise InvalidSetting(f"{toml_words(each):.100} in it is no {TEXT.words}; write {TEXT.fix}")
    return value


def _read_yes_no_or_texts(value: Any, folder: Path) -> Any:
    if type(value) is bool:
        return value
    if not isinstance(value, list):
        raise InvalidSetting(f"{toml_words(value):.100} cannot be; write {YES_NO_OR_TEXTS.fix}")
    return _read_texts(value, folder)


def _yes_no_or_texts_of(text: str) -> Any:
    value = _yes_or_no(text)
    return value if type(value) is bool else _texts_of(text)


def _read_duration(value: Any, folder: Path) -> Any:
    duration_us(value)
    return value


def _read_path(value: Any, folder: Path) -> Path:
    if not _is_text(value):
        raise _refused(value, PATH.words, PATH.fix)
    return (folder / Path(value).expanduser()).absolute()


TEXT = _make("text", 'it in quotes, like "value"', _is_text, _same)
WHOLE = _make("whole number", "digits without quotes, like 50", lambda value: type(value) is int, _whole_of)
YES_NO = _make("true or false", "true or false, without quotes", lambda value: type(value) is bool, _yes_or_no)
TEXTS = Kind(words="list of texts", fix='a list in brackets, like ["one", "two"]', read=_read_texts, of_text=_texts_of)
YES_NO_OR_TEXTS = Kind(
    words="true, false or a list of texts",
    fix=f"{YES_NO.fix}, or {TEXTS.fix}",
    read=_read_yes_no_or_texts,
    of_text=_yes_no_or_texts_of,
)
DURATION = Kind(words="duration", fix='a number with its unit, like "90s" or "1h30m"', read=_read_duration)
DURATION_OR_OFF = Kind(
    words='duration or "off"',
    fix=f'{DURATION.fix}, or "off"',
    read=lambda value, folder: value if value == "off" else _read_duration(value, folder),
)
SIZE = Kind(
    words="size",
    fix='a number with its unit, like "64KiB"',
    read=lambda value, _: size_bytes(value),
    of_text=_whole_of,
)
PATH = Kind(words="path", fix='it in quotes, like "/var/lib/evertick"', read=_read_path)


def choice(*allowed: str) -> Kind:
    """One of these words."""
    words = ", ".join(f'"{each}"' for each in allowed)

    def read(value: Any, folder: Path) -> Any:
        if value not in allowed:
            raise InvalidSetting(
                f"{toml_words(value):.100} cannot be; write {'one of ' if len(allowed) > 1 else ''}{words}"
            )
        return value

    return Kind(words=f"one of {words}" if len(allowed) > 1 else words, fix=words, read=read)


# The prefix of all variables of Evertick.
VARIABLE = "EVERTICK_"


class Key(msgspec.Struct, frozen=True, kw_only=True):
    """One key, as in the documentation."""

    kind: Kind
    words: str
    # In words, the behaviour without this key, if it has no default value.
    otherwise: str = ""
    is_secret: bool = False
    # Whether it may contain a password, which is masked.
    is_url: bool = False
    # Whether a reload applies it; otherwise a restart is needed.
    is_live: bool = False


def _key(kind: Kind, words: str, otherwise: str = "", **more: bool) -> Key:
    return Key(kind=kind, words=words, otherwise=otherwise, **more)


class Section(msgspec.Struct, frozen=True, kw_only=True):
    """A table of the file. Keys that are not set have the default of their field."""

    def __repr__(self) -> str:
        # Some fields hold passwords, and tracebacks show this text. `config show` hides them.
        return f"{type(self).__name__}(…)"


class Tls(Section, frozen=True, kw_only=True):
    ca: Annotated[Path | None, _key(PATH, "File of the authority that signed the server's certificate.")] = None
    cert: Annotated[Path | None, _key(PATH, "File of the own certificate.")] = None
    key: Annotated[Path | None, _key(PATH, "File of the key of `cert`, without a password.")] = None


class DatabaseTls(Tls, frozen=True, kw_only=True):
    mode: Annotated[
        str | None,
        _key(
            choice("disable", "prefer", "require", "verify-ca", "verify-full"),
            "How much of TLS is asked for.",
            "`verify-full` with a `ca`, else `prefer`",
        ),
    ] = None


class Database(Section, frozen=True, kw_only=True):
    """Where the ledger is kept: a `url`, or its parts. The parts are for PostgreSQL."""

    url: Annotated[
        str | None,
        _key(
            TEXT,
            "`sqlite:///file.db` (counted from the folder of this file) or `postgresql://user@host:5432/name`.",
            "`evertick.db` in the state directory",
            is_url=True,
        ),
    ] = None
    address: Annotated[
        str | None, _key(TEXT, "Host, or host:port, or the folder of a socket; several with commas.")
    ] = None
    name: Annotated[str | None, _key(TEXT, "Name of the database.")] = None
    user: Annotated[str | None, _key(TEXT, "User to connect as.")] = None
    password: Annotated[str | None, _key(TEXT, "Password; better in `password_file`.", is_secret=True)] = None
    password_file: Annotated[Path | None, _key(PATH, "File that holds the password and nothing else.")] = None
    schema: Annotated[str | None, _key(TEXT, "Schema of the tables.", "`evertick`")] = None
    pooler: Annotated[
        str | None, _key(choice("transaction"), "Behind a pooler that hands connections over by transaction.")
    ] = None
    listen: Annotated[
        str | None,
        _key(TEXT, "A direct URL for wake-ups, around such a pooler; or `off`.", "the same connection", is_url=True),
    ] = None
    pool_size: Annotated[int | None, _key(WHOLE, "Connections at most.", "`5`")] = None
    timeout: Annotated[Duration | None, _key(DURATION, "How long one statement of the ledger may take.", "`30s`")] = (
        None
    )
    connect_timeout: Annotated[Duration | None, _key(DURATION, "How long connecting may take.", "`10s`")] = None
    ssl: DatabaseTls = DatabaseTls()


class Redis(Section, frozen=True, kw_only=True):
    """The server that jobs with `redis` are dispatched to."""

    url: Annotated[
        str | None,
        _key(TEXT, "`redis://host:6379/0`, `rediss://…` with TLS, or `unix:///socket`.", is_url=True),
    ] = None
    address: Annotated[str | None, _key(TEXT, "Host, or host:port.")] = None
    number: Annotated[int, _key(WHOLE, "Number of the database on the server.")] = 0
    user: Annotated[str | None, _key(TEXT, "User to connect as.")] = None
    password: Annotated[str | None, _key(TEXT, "Password; better in `password_file`.", is_secret=True)] = None
    password_file: Annotated[Path | None, _key(PATH, "File that holds the password and nothing else.")] = None
    tls: Annotated[bool, _key(YES_NO, "Whether to speak TLS; files of `ssl` mean so, too.")] = False
    namespace: Annotated[
        str,
        _key(
            TEXT,
            "Prefix of the keys of reports. The app and the id of the ledger follow, so fleets can share it, even with "
            "the same app name.",
        ),
    ] = "evertick"
    ssl: Tls = Tls()


class Nats(Section, frozen=True, kw_only=True):
    """The server that jobs with `nats` are dispatched to."""

    url: Annotated[str | None, _key(TEXT, "`nats://host:4222` or `tls://…`; several with commas.", is_url=True)] = None
    address: Annotated[str | None, _key(TEXT, "Host, or host:port; several with commas.")] = None
    user: Annotated[str | None, _key(TEXT, "User to connect as.")] = None
    password: Annotated[str | None, _key(TEXT, "Password; better in `password_file`.", is_secret=True)] = None
    password_file: Annotated[Path | None, _key(PATH, "File that holds the password and nothing else.")] = None
    token: Annotated[str | None, _key(TEXT, "Token, in place of user and password.", is_secret=True)] = None
    credentials: Annotated[Path | None, _key(PATH, "Credentials file of the server's operator.")] = None
    tls: Annotated[bool, _key(YES_NO, "Whether to speak TLS; files of `ssl` mean so, too.")] = False
    prefix: Annotated[str, _key(TEXT, "Prefix of subjects and streams.")] = "evertick"
    replicas: Annotated[int, _key(WHOLE, "How many servers of a cluster keep a stream.")] = 1
    events: Annotated[
        bool | list[str],
        _key(YES_NO_OR_TEXTS, "Whether to publish the ends of runs, for others; or which events of runs."),
    ] = False
    ssl: Tls = Tls()


class Node(Section, frozen=True, kw_only=True):
    """The node itself: the settings of `Scheduler`, see there."""

    name: Annotated[
        str | None,
        _key(TEXT, "How this node is called; what stands before an `@` is the same for all nodes of one file.",
             "`evertick@` and the name of the host"),
    ] = None  # fmt: skip
    app: Annotated[str, _key(TEXT, "Namespace of this service on the database.")] = "default"
    drivers: Annotated[
        tuple[str, ...] | None, _key(TEXTS, "Which drivers this node runs.", "all that are installed")
    ] = None
    queues: Annotated[tuple[str, ...], _key(TEXTS, "Which queues it works on.")] = ("default",)
    concurrency: Annotated[int, _key(WHOLE, "Runs at once; 0: it only writes what the file declares.")] = 50
    tz: Annotated[str, _key(TEXT, "Zone of rules that name none.", is_live=True)] = "UTC"
    poll_interval: Annotated[Duration, _key(DURATION, "How often to look without being woken.")] = "15s"
    lease: Annotated[Duration, _key(DURATION, "How long it may be silent before its runs are given to others.")] = "15s"
    stop_timeout: Annotated[Duration, _key(DURATION, "How long running work gets at a stop.")] = "30s"
    start_timeout: Annotated[Duration, _key(DURATION, "How long to wait for a database that is away at start.")] = "30s"
    stall_limit: Annotated[Duration, _key(DURATION, "How long its event loop may be blocked.")] = "15m"
    batch_size: Annotated[int, _key(WHOLE, "Fires, claims or verdicts that are written at once.")] = 1_000
    duties: Annotated[bool, _key(YES_NO, "Whether it does what one node of the app does at a time.")] = True
    rate_limits: Annotated[
        str, _key(choice("store", "memory"), "Whether rates hold for all nodes together, or for each by itself.")
    ] = "store"
    migrate: Annotated[
        str, _key(choice("auto", "check"), "Whether a start brings tables up to date, or refuses old ones.")
    ] = "auto"
    min_interval: Annotated[Duration | None, _key(DURATION, "A rule that fires more often is refused.")] = None
    allow_schedules: Annotated[tuple[str, ...] | None, _key(TEXTS, "The only rules that are not refused.")] = None


class Retention(Section, frozen=True, kw_only=True):
    """How much of the past is kept."""

    history: Annotated[Duration, _key(DURATION, "How long runs that have ended are kept.")] = "90d"
    per_schedule: Annotated[
        int | None, _key(WHOLE, "At most so many runs of one schedule.", "as many as the database does well with")
    ] = None
    feed: Annotated[
        Duration | None, _key(DURATION_OR_OFF, "How long events are kept for other programs.", "as it is")
    ] = None


class Log(Section, frozen=True, kw_only=True):
    """The log of `evertick daemon`."""

    level: Annotated[str, _key(choice("trace", "debug", "info", "warning", "error"), "Log from this level on.")] = (
        "info"
    )
    file: Annotated[Path | None, _key(PATH, "Log into this file.", "the error output")] = None
    format: Annotated[str, _key(choice("text", "json"), "Lines for people, or for programs.")] = "text"


class Daemon(Section, frozen=True, kw_only=True):
    """The process of `evertick daemon`."""

    pidfile: Annotated[Path | None, _key(PATH, "File that holds its process id while it runs.", "none")] = None
    reload: Annotated[
        str,
        _key(
            choice("change", "signal", "off"),
            "Whether jobs are read again when a file changes (and on SIGUSR1), on SIGUSR1 alone, or never.",
        ),
    ] = "change"


class Directories(Section, frozen=True, kw_only=True):
    """Where things are kept. The first two are made for this user alone (mode 0700), see above."""

    state: Annotated[
        Path | None,
        _key(
            PATH,
            "For what Evertick writes.",
            "`$STATE_DIRECTORY`, as root `/var/lib/evertick`, else `$XDG_STATE_HOME/evertick` or "
            "`~/.local/state/evertick`",
        ),
    ] = None
    config: Annotated[
        Path | None,
        _key(PATH, "For what it reads beside this file, like `secrets/`.", "the folder of this file, left as it is"),
    ] = None
    jobs: Annotated[Path | None, _key(PATH, "Files of jobs, `*.toml`.", "`jobs.d` beside this file, if there")] = None


class Http(Section, frozen=True, kw_only=True):
    """Addresses that jobs with `http` may call, and certificates that they trust."""

    allow_private: Annotated[
        bool, _key(YES_NO, "Whether private and loopback addresses may be called.", is_live=True)
    ] = False
    allow: Annotated[
        tuple[str, ...],
        _key(TEXTS, "Hosts, addresses or networks that are not public and may be, all the same.", is_live=True),
    ] = ()
    ca: Annotated[
        Path | None, _key(PATH, "File of the authorities that are trusted.", "those of the system", is_live=True)
    ] = None


SECTIONS: dict[str, type[Section]] = {
    "database": Database,
    "node": Node,
    "retention": Retention,
    "directories": Directories,
    "log": Log,
    "daemon": Daemon,
    "http": Http,
    "redis": Redis,
    "nats": Nats,
}


def keys_of(section: type[Section], before: str = "") -> Iterator[tuple[str, Key, Any]]:
    """Every key of a section by its dotted name, those of tables in it too, with its default."""
    hints = get_type_hints(section, include_extras=True)
    for field in msgspec.structs.fields(section):
        hint, name = hints[field.name], f"{before}{field.name}"
        if isinstance(hint, type) and issubclass(hint, Section):
            yield from keys_of(hint, f"{name}.")
        else:
            yield name, hint.__metadata__[0], field.default


def variable_of(key: str) -> str:
    """The environment variable of a key, like EVERTICK_NODE_LEASE of "node.lease"."""
    return VARIABLE + key.replace(".", "_").upper()


# Shorter names that other commands, like `evertick list` and `evertick worker`, read too.
SHORT_VARIABLES = {DATABASE_VARIABLE: "database.url", "EVERTICK_REDIS": "redis.url", "EVERTICK_NATS": "nats.url"}
