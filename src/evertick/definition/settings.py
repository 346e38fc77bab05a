"""The settings of a scheduler, and their checks."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Literal
from zoneinfo import ZoneInfo

import msgspec

from evertick.driver.registry import IN_PYTHON, check_drivers
from evertick.errors import InvalidKey, InvalidSetting, InvalidWhen
from evertick.plan.allowed_rules import ScheduleLimits, check_allowed
from evertick.store.url import check_location
from evertick.text.did_you_mean import alike
from evertick.text.redact import masked
from evertick.text.values import check_whole, has_control, shown
from evertick.when.duration import Duration, duration_us
from evertick.when.moment import DAY, MILLISECOND, MINUTE, SECOND
from evertick.when.zone import zone_named

__all__ = [
    "DATABASE_VARIABLE",
    "DEFAULT_DATABASE",
    "Settings",
    "check_feed",
    "check_key",
    "check_labels",
    "check_one_of",
    "check_queue",
    "check_url",
    "make_settings",
    "refuse_bare",
    "refuse_other_names",
    "refuse_unknown",
]

DATABASE_VARIABLE = "EVERTICK_DATABASE"
DEFAULT_DATABASE = "sqlite:///evertick.db"
_SHAPE_OF_POSTGRES = "postgresql://user:password@host:5432/database"

# Names in other libraries for the same settings.
_OTHER_NAMES = {
    "timezone": "tz",
    "zone": "tz",
    **dict.fromkeys(("database", "database_url", "db", "dsn", "path", "store"), "url"),
    **dict.fromkeys(("max_workers", "workers", "threads", "max_instances"), "concurrency"),
    "name": "node_name",
    "namespace": "app",
    "queue": "queues",
    "driver": "drivers",
}
_SCHEME = re.compile(r"[\w+.-]+://")
_SQLITE = "sqlite://"
_SQLITE_BEGUN = re.compile(r"\Asqlite3?(:/*|/+|$)")
_MEMORY = ":memory:"
_HOST = re.compile(r"@|:\d|=")
# A path, without characters of hosts, users and passwords.
_PATH = re.compile(r"[\w./~ -]{1,200}")
_URL_LONGEST = 2_000
_KEY_LONGEST = 200
_CONCURRENCY_MAX = 10_000
_BATCH_MAX = 10_000
# Heartbeats per lease. A node may miss three of them.
_BEATS_PER_LEASE = 5


class Settings(msgspec.Struct, frozen=True, kw_only=True):
    """Checked settings. Durations in microseconds."""

    url: str
    app: str
    node_name: str
    concurrency: int
    queues: tuple[str, ...]
    tz: str
    poll_interval: int
    lease: int
    stop_timeout: int
    migrate: Literal["auto", "check"]
    retention: int
    # None: the default of the store.
    keep_per_schedule: int | None
    stall_limit: int
    # Whether all nodes count the rate of a task together, or each counts its own.
    rate_limits: Literal["store", "memory"] = "store"
    # Limits of rules. None: no limit.
    min_interval: int | None = None
    allow_schedules: tuple[str, ...] | None = None
    # How long events are kept for other programs. 0 turns the feed off; None leaves it as it is.
    feed: int | None = None
    # Whether this node takes duties.
    duties: bool = True
    # The most fires, claims or verdicts that are written at once.
    batch_size: int = 1_000
    # How long a start waits for an unreachable store.
    start_timeout: int = 30 * SECOND
    # The drivers of the tasks that this node runs.
    drivers: tuple[str, ...] = IN_PYTHON

    def __repr__(self) -> str:
        # The URL may hold a password, and tracebacks show this text.
        shown = {name: getattr(self, name) for name in self.__struct_fields__} | {"url": masked(self.url)}
        return f"Settings({', '.join(f'{name}={value!r}' for name, value in shown.items())})"

    @property
    def schedule_limits(self) -> ScheduleLimits:
        return ScheduleLimits(min_interval=self.min_interval, allowed=self.allow_schedules, tz=self.tz)

    @property
    def beat(self) -> int:
        return self.lease // _BEATS_PER_LEASE


def make_settings(
    url: str | None,
    *,
    app: str,
    node_name: str,
    concurrency: int,
    queues: Sequence[str],
    tz: str,
    poll_interval: Duration,
    lease: Duration,
    stop_timeout: Duration,
    migrate: str,
    retention: Duration,
    keep_per_schedule: int | None,
    stall_limit: Duration,
    rate_limits: str,
    min_interval: Duration | None,
    allow_schedules: Sequence[str] | None,
    feed: Duration | None,
    duties: bool,
    batch_size: int,
    start_timeout: Duration,
    drivers: Sequence[str],
) -> Settings:
    """Check every setting. The defaults are in the signature of `Scheduler`."""
    if migrate not in ("auto", "check"):
        raise InvalidSetting(
            f"migrate: {shown(migrate)} is neither 'auto' (apply what is missing) nor 'check' (refuse to)",
            setting="migrate",
        )
    if rate_limits not in ("store", "memory"):
        raise InvalidSetting(
            f"rate_limits: {shown(rate_limits)} is neither 'store' (all nodes together) nor 'memory' (each node by "
            "itself)",
            setting="rate_limits",
        )
    return Settings(
        url=check_url(url),
        app=check_key(app, what="app"),
        node_name=check_key(node_name, what="node_name"),
        concurrency=check_whole(concurrency, "concurrency", 0, _CONCURRENCY_MAX),
        queues=_queues(queues),
        tz=_zone(tz),
        poll_interval=_between(poll_interval, "poll_interval", SECOND // 100, DAY),
        lease=_between(lease, "lease", SECOND, DAY),
        stop_timeout=_between(stop_timeout, "stop_timeout", 0, DAY),
        migrate="auto" if migrate == "auto" else "check",
        retention=_between(retention, "retention", SECOND, 36_500 * DAY),
        keep_per_schedule=(
            None if keep_per_schedule is None else check_whole(keep_per_schedule, "keep_per_schedule", 1, 10**9)
        ),
        stall_limit=_between(stall_limit, "stall_limit", 10 * SECOND, DAY),
        rate_limits="store" if rate_limits == "store" else "memory",
        min_interval=None if min_interval is None else _between(min_interval, "min_interval", MILLISECOND, 3660 * DAY),
        allow_schedules=None if allow_schedules is None else check_allowed(allow_schedules),
        feed=None if feed is None else 0 if feed == "off" else check_feed(feed),
        duties=_yes_or_no(duties, "duties"),
        batch_size=check_whole(batch_size, "batch_size", 1, _BATCH_MAX),
        start_timeout=_between(start_timeout, "start_timeout", 0, DAY),
        drivers=check_drivers(drivers),
    )


def refuse_unknown(given: Mapping[str, object]) -> None:
    """Reject unknown settings, with the right name for one of another library."""
    refuse_other_names(given, Settings.__struct_fields__, _OTHER_NAMES, "setting", "Scheduler")


def refuse_other_names(
    given: Mapping[str, object],
    known: Sequence[str],
    others: Mapping[str, str],
    what: str,
    call: str = "",
    *,
    where: str = "",
) -> None:
    """Reject the first unknown option of `call`, with the right name. `others` maps a foreign name to the name here, or
    to `name=value` where the value differs too."""
    if not given:
        return
    name, value = next(iter(given.items()))
    fitting = {other: meant for other, meant in others.items() if meant.partition("=")[0] in known}
    near = name if name in fitting else alike(name, [*known, *fitting])
    refused = f"{where}{': ' if where else ''}{name}: no such {what}"
    if near is None:
        raise InvalidSetting(refused, fix=f"there are {', '.join(known)}")
    meant = fitting.get(near, near)
    if "=" in meant:
        raise InvalidSetting(refused, fix=f"write {meant}")
    shown = masked(value) if meant == "url" and isinstance(value, str) else value
    written = f"{meant}={shown!r:.60}"
    raise InvalidSetting(refused, fix=f"it is called {meant}: {f'{call}({written})' if call else written}")


def refuse_bare(given: object, decorator: str, what: str, example: str) -> None:
    """Reject a decorator without its argument, which gets the function in its place."""
    name = getattr(given, "__name__", None) or getattr(given, "name", None)
    if callable(given) and isinstance(name, str):
        raise InvalidSetting(
            f"@scheduler.{decorator} needs {what} before the function {name}; write @scheduler.{decorator}({example})"
        )


def check_key(key: Any, *, what: str = "key") -> str:
    """The key, if it is valid in a table, a command line and a log: no control characters, no semicolons."""
    if not isinstance(key, str):
        raise InvalidKey(f"{what}: {shown(key)} is not text", setting=what, fix="pass a str, like 'nightly-report'")
    if not 1 <= len(key) <= _KEY_LONGEST:
        raise InvalidKey(f"{what}: {shown(key)} must have 1 to {_KEY_LONGEST} characters, not {len(key)}", setting=what)
    if key != key.strip() or not key.isprintable() or ";" in key:
        if any("\ud800" <= letter <= "\udfff" for letter in key):
            raise InvalidKey(
                f"{what}: {shown(key)} must not hold surrogates; decode its bytes with their own encoding", setting=what
            )
        raise InvalidKey(
            f"{what}: {shown(key)} must not begin or end with space, nor hold ';' or control characters", setting=what
        )
    return key


def check_queue(queue: Any) -> str:
    """The name of a queue. Names that begin with "@" are reserved for queues of nodes."""
    if check_key(queue, what="queue").startswith("@"):
        raise InvalidKey(
            f"queue: {queue!r} must not begin with '@', as the nodes' own queues do", fix="choose another name"
        )
    return str(queue)


def check_feed(kept: Duration) -> int:
    return _between(kept, "feed", MINUTE, 3660 * DAY)


def check_one_of(value: Any, allowed: Sequence[str], what: str, *, where: str = "") -> str:
    if value not in allowed:
        problem = f"{where}{what}: {shown(value)} must be one of {', '.join(map(repr, allowed))}"
        raise InvalidSetting(problem, setting=what)
    return str(value)


def check_exceptions(value: Any, what: str, *, where: str = "") -> tuple[type[BaseException], ...]:
    """One type of exception, or several."""
    is_one = isinstance(value, type | str) or not isinstance(value, Sequence)
    types = (value,) if is_one else tuple(value)
    for each in types:
        if not isinstance(each, type) or not issubclass(each, BaseException):
            raise InvalidSetting(
                f"{where}{what}: {shown(each)} is not an exception type; pass the type itself, like ValueError, or a "
                "tuple of types",
                setting=what,
            )
    return types


def check_labels(labels: Any) -> dict[str, str]:
    if not isinstance(labels, Mapping) or len(labels) > 50:
        raise InvalidSetting(
            f"labels: {shown(labels)} must be a dict of at most 50 names with their values",
            setting="labels",
            value=shown(labels),
        )
    checked = {}
    for name, value in labels.items():
        if not isinstance(value, str) or len(value) > _KEY_LONGEST:
            raise InvalidSetting(
                f"labels: the value of {shown(name)}, {shown(value)}, must be text of at most {_KEY_LONGEST} characters"
            )
        if has_control(value):
            raise InvalidSetting(
                f"labels: the value of {shown(name)}, {shown(value)}, must not hold control characters or surrogates"
            )
        checked[check_key(name, what="label")] = value
    return checked


def check_url(url: str | None) -> str:
    found = url if url is not None else os.environ.get(DATABASE_VARIABLE) or DEFAULT_DATABASE
    if isinstance(found, os.PathLike):
        found = os.fspath(found)
    if not isinstance(found, str):
        raise InvalidSetting(f"url: {shown(found)} is not a database URL", fix=f"write it like {DEFAULT_DATABASE!r}")
    if len(found) > _URL_LONGEST or has_control(found):
        raise InvalidSetting(
            f"url: {shown(masked(found[:_URL_LONGEST]))} is not a database URL: it is longer than {_URL_LONGEST:,} "
            "characters, or has control characters or surrogates"
        )
    path = found.removeprefix(_SQLITE) if found.startswith(_SQLITE) else ""
    is_no_file = path in ("/", f"/{_MEMORY}") or (path != "" and path[0] not in "/?")
    if not _SCHEME.match(found) or is_no_file:
        given = found if found == _MEMORY else masked(found)
        raise InvalidSetting(f"url: {given!r} is not a database URL", fix=f"write it like {_url_meant(found)!r}")
    check_location(found)
    return found


def _url_meant(given: str) -> str:
    """A suggestion for a path, a host, or a URL with too few slashes."""
    if given.startswith("postgres") or _HOST.search(given):
        return _SHAPE_OF_POSTGRES
    path = _SQLITE_BEGUN.sub("", given).removeprefix("./")
    if path == _MEMORY:
        return _SQLITE
    return f"{_SQLITE}/{os.path.expanduser(path)}" if _PATH.fullmatch(path) else DEFAULT_DATABASE


def _queues(queues: Any) -> tuple[str, ...]:
    if isinstance(queues, str):
        problem = f"queues: {shown(queues)} is one text; pass a list of names, e.g. queues=[{shown(queues)}]"
        raise InvalidSetting(problem, setting="queues")
    if not isinstance(queues, Iterable):
        raise InvalidSetting(f"queues: {shown(queues)} is not a list of names; pass e.g. ['default']", setting="queues")
    if not queues:
        problem, fix = "queues: a node that works on no queue runs nothing", "name one, or pass concurrency=0"
        raise InvalidSetting(problem, setting="queues", value="[]", fix=fix)
    try:
        return tuple(check_queue(queue) for queue in queues)
    except InvalidKey as error:
        error.setting = "queues"
        raise


def _zone(tz: Any) -> str:
    if isinstance(tz, ZoneInfo):
        tz = tz.key
    try:
        return zone_named(tz).key
    except InvalidWhen as error:
        raise InvalidSetting(error.problem, setting=error.setting, value=error.value, fix=error.fix) from None


def _yes_or_no(value: Any, what: str) -> bool:
    if not isinstance(value, bool):
        raise InvalidSetting(f"{what}: {shown(value)} must be True or False", setting=what)
    return value


def _between(value: Duration, what: str, least: int, most: int) -> int:
    us = duration_us(value, what=what)
    if not least <= us <= most:
        problem = f"{what}: {shown(value)} must be between {least / SECOND:g} s and {most / SECOND:g} s"
        raise InvalidSetting(problem, setting=what)
    return us
