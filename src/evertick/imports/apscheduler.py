"""Reads the jobs that APScheduler 3 keeps in a table, and makes jobs of them.

SQLite is read directly, other databases through SQLAlchemy, which every program with such a table has installed.

A job there is a pickle of a function's name, arguments and a trigger. It is read as data: neither APScheduler nor the
program of the jobs is imported. A trigger that no rule here can express is reported, never guessed.
"""

from __future__ import annotations

import keyword
import re
import shlex
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from datetime import datetime, timedelta, timezone, tzinfo
from itertools import islice
from pathlib import Path
from typing import Any
from urllib.parse import quote
from zoneinfo import ZoneInfo

import msgspec

from evertick.definition.settings import check_key
from evertick.errors import EvertickError, InvalidInput, NotFound, Refused
from evertick.imports.imported import ImportResult, Job, Note, renamed_note
from evertick.imports.job_names import free_name
from evertick.imports.pickle_reader import BYTES_MAX, PickledObject, objects_in, read_pickle
from evertick.text.printable import printable
from evertick.text.redact import masked
from evertick.when import Cron, Every, Once
from evertick.when.duration import duration_text

__all__ = ["StoredJob", "read_jobs", "read_table"]

_JOBS_MAX = 10_000
_STATES_MAX_BYTES = 64 * 1024 * 1024
_TABLE_NAME = re.compile(r"[A-Za-z_]\w{0,62}(\.[A-Za-z_]\w{0,62})?", re.ASCII)
_SQLITE = re.compile(r"sqlite(\+pysqlite)?:///")
_FUNCTION = re.compile(r"(?P<module>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*):(?P<name>[A-Za-z_]\w*(\.[A-Za-z_]\w*)*)", re.ASCII)
_WEEKDAYS = ("mon", "tue", "wed", "thu", "fri", "sat", "sun")
_LAST_POSITION = 5
# Joined in one trigger.
_RULES_MAX = 100
# The default there: a run that starts a second late is dropped.
_DEFAULT_GRACE = 1
_TRIGGERS = "apscheduler.triggers."
# The owner of a name that was given to a job before.
_HERE = "this store"


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    id: str
    state: bytes


class _Refusal(Exception):
    """Why a job cannot be carried over."""


def read_jobs(rows: Sequence[StoredJob], taken: Mapping[str, object] | None = None) -> ImportResult:
    """`taken`: names that other jobs have, and where."""
    reader = _Reader(taken or {}, {row.id for row in rows})
    for row in rows:
        reader.read(row)
    return reader.imported()


class _Reader:
    def __init__(self, taken: Mapping[str, object], ids: Set[str]) -> None:
        self._taken, self._ids = dict(taken), ids
        self._jobs: list[Job] = []
        self._notes: list[Note] = []
        self._where = ""
        self._with_default_grace = 0

    def imported(self) -> ImportResult:
        if self._with_default_grace:
            self._where = "all jobs"
            self._note(
                "dropped",
                f"misfire_grace_time=1 of {_jobs(self._with_default_grace)} is APScheduler's default, by which a run "
                "that starts more than a second late is dropped; here it runs. To drop it, give it a grace",
            )
        return ImportResult(jobs=tuple(self._jobs), notes=tuple(self._notes))

    def read(self, row: StoredJob) -> None:
        self._where = f"job {row.id!r:.100}"
        try:
            state = read_pickle(row.state)
            if not isinstance(state, Mapping) or state.get("version", 1) != 1:
                raise _Refusal("it is not what APScheduler 3 keeps for a job")
            self._keep(row.id, state)
        except (_Refusal, InvalidInput) as why:
            self._note("lost", str(why))
        except Exception as error:  # an unforeseen error in one row must not cost the others
            self._note("lost", f"it makes no sense: {type(error).__name__}: {str(error)[:200]}")

    def _note(self, kind: Any, text: str) -> None:
        self._notes.append(Note(where=self._where, kind=kind, text=printable(text)))

    def _keep(self, id_: str, state: Mapping[str, Any]) -> None:
        check_key(id_, what="id")
        spec = self._spec(state)
        rules = list(islice(_rules(state.get("trigger"), state.get("next_run_time")), _RULES_MAX + 1))
        if len(rules) > _RULES_MAX:
            raise _Refusal(f"its trigger is one of more than {_RULES_MAX}; write them anew")
        options = self._options(state)
        for number, rule in enumerate(rules, 1):
            self._jobs.append(
                Job(
                    name=self._name(id_, id_ if len(rules) == 1 else f"{id_}-{number}"),
                    where=self._where,
                    source=f"{spec['function']}, {_kind(state.get('trigger'))}",
                    description="" if state.get("name") in (None, id_) else printable(str(state["name"])[:300]),
                    rule=rule,
                    options=options,
                    driver="function",
                    spec=spec,
                )
            )
        if state.get("next_run_time") is None:
            commands = ", ".join(f"`evertick pause {shlex.quote(job.name)}`" for job in self._jobs[-len(rules) :])
            self._note("check", f"it is paused there and would run here; after the first start: {commands}")
        if len(rules) > 1:
            self._note("check", f"its trigger is one of {len(rules)}; each is a schedule of its own")
        if any("jitter" in rule for rule in rules):
            self._note(
                "check", "jitter: here it is the same on every node for a given moment, and less than the interval"
            )

    def _name(self, id_: str, name: str) -> str:
        """Other ids, and names given before, are taken, too."""
        is_free = name not in self._taken and (name == id_ or name not in self._ids)
        free = name if is_free else free_name(name, self._taken.keys() | self._ids)
        if free != name:
            self._notes.append(renamed_note(self._where, name, self._taken.get(name, _HERE), free))
        self._taken[free] = _HERE
        return free

    def _spec(self, state: Mapping[str, Any]) -> dict[str, Any]:
        function, args, kwargs = state.get("func"), state.get("args") or (), state.get("kwargs") or {}
        found = _FUNCTION.fullmatch(function) if isinstance(function, str) else None
        if found is None or any(map(keyword.iskeyword, re.split("[.:]", found[0]))):
            raise _Refusal(f"its function {function!r:.100} cannot be imported by its name; make it one of a module")
        if found["module"] == "__main__":
            raise _Refusal(
                f"its function {found['name']!r} is in the program itself; move it into a module, and declare it there"
            )
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
            raise _Refusal("its arguments are no list and no names with values")
        for seen in objects_in([args, kwargs]):
            raise _Refusal(
                f"of {function}: its arguments hold an object of {seen.kind}, and arguments here are JSON-like data; "
                "pass an id, and look the object up in the job"
            )
        try:
            msgspec.json.encode([args, kwargs])
        except (TypeError, ValueError, RecursionError) as error:
            raise _Refusal(f"of {function}: its arguments are no JSON-like data: {error}") from None
        if any(isinstance(each, set | frozenset | datetime | timedelta | bytes) for each in _leaves([args, kwargs])):
            self._note(
                "check", "its arguments hold more than JSON has; annotate the parameters, so that they come back"
            )
        return {"function": function, "args": list(args), "kwargs": dict(kwargs)}

    def _options(self, state: Mapping[str, Any]) -> dict[str, Any]:
        options: dict[str, Any] = {}
        grace, instances = state.get("misfire_grace_time"), state.get("max_instances")
        if grace == _DEFAULT_GRACE:
            self._with_default_grace += 1
        elif isinstance(grace, int | float) and grace > 0:
            options["grace"] = duration_text(round(grace * 1_000_000))
        if state.get("coalesce") is False:
            options["catch_up"] = "all"
        if isinstance(instances, int) and instances > 1:
            options["overlap"] = "allow"
            options["concurrency"] = instances
            self._note(
                "check",
                f"max_instances={instances}: it has a task of its own, whose limit it is; what is too much waits here, "
                "and is not dropped",
            )
        if state.get("executor") not in (None, "default"):
            self._note(
                "dropped",
                f"executor={state['executor']!r:.60}: coroutines run on the event loop, plain functions in threads; "
                "for a process of its own give its task process=True",
            )
        return options


def _jobs(count: int) -> str:
    return "1 job" if count == 1 else f"{count} jobs"


def _leaves(data: Any) -> Iterator[Any]:
    match data:
        case Mapping():
            for value in data.values():
                yield from _leaves(value)
        case list() | tuple():
            for each in data:
                yield from _leaves(each)
        case _:
            yield data


def _kind(trigger: Any) -> str:
    return trigger.kind.rpartition(".")[2] if isinstance(trigger, PickledObject) else type(trigger).__name__


# --- triggers


def _rules(trigger: Any, next_run: Any) -> Iterator[dict[str, Any]]:
    """A trigger as one rule or several."""
    if not isinstance(trigger, PickledObject) or not trigger.kind.startswith(_TRIGGERS):
        raise _Refusal(f"its trigger is {_shown(trigger)}, which is none of APScheduler's own; write a rule for it")
    state = trigger.state
    match trigger.kind.removeprefix(_TRIGGERS):
        case "cron.CronTrigger":
            rule = _cron(state)
        case "interval.IntervalTrigger":
            rule = _interval(state, next_run)
        case "date.DateTrigger":
            rule = {"once": _moment(state.get("run_date"))}
        case "combining.OrTrigger":
            for reference, inner in state.get("triggers", ()):
                part = PickledObject(str(reference).replace(":", "."))
                part.state = dict(inner)
                yield from _rules(part, None)
            return
        case _:
            raise _Refusal(f"its trigger is {_shown(trigger)}, for which there is no rule; see 'Come from APScheduler'")
    jitter = state.get("jitter")
    if isinstance(jitter, int | float) and jitter > 0:
        rule["jitter"] = duration_text(round(jitter * 1_000_000))
    _check(rule)
    yield rule


def _shown(trigger: Any) -> str:
    return repr(trigger.kind if isinstance(trigger, PickledObject) else type(trigger).__name__)


def _check(rule: Mapping[str, Any]) -> None:
    """Raises _Refusal where the rule itself would raise."""
    given = dict(rule)
    try:
        if "cron" in given:
            Cron(given.pop("cron"), **given)
        elif "every" in given:
            Every(given.pop("every"), **given)
        else:
            Once(given.pop("once"), **given)
    except EvertickError as error:
        raise _Refusal(f"its trigger makes no rule: {error}") from None


def _bounds(state: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"start": state.get("start_date"), "end": state.get("end_date")}
    return {name: _moment(value) for name, value in bounds.items() if value is not None}


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None or isinstance(value.tzinfo, PickledObject):
        zone = value.tzinfo if isinstance(value, datetime) else None
        of_zone = f" of the zone {zone.kind}" if isinstance(zone, PickledObject) else ""
        raise _Refusal(f"its trigger holds a moment{of_zone} that cannot be read; write the rule anew")
    return value


def _interval(state: Mapping[str, Any], next_run: Any) -> dict[str, Any]:
    interval = state.get("interval")
    if not isinstance(interval, timedelta):
        raise _Refusal("its interval cannot be read; write the rule anew")
    bounds = _bounds(state)
    if isinstance(next_run, datetime):
        # It goes on from here, also where it was moved by hand.
        bounds["start"] = _moment(next_run)
    return {"every": duration_text(round(interval.total_seconds() * 1_000_000)), "since": "start", **bounds}


def _zone_name(zone: Any) -> str:
    if isinstance(zone, ZoneInfo):
        return str(zone.key)
    if isinstance(zone, timezone):
        offset = zone.utcoffset(None)
        hours, rest = divmod(offset, timedelta(hours=1))
        if not offset:
            return "UTC"
        if not rest and -14 <= hours <= 12:
            # Named by the other sign, as POSIX has it.
            return f"Etc/GMT{-hours:+d}"
    kind = zone.kind if isinstance(zone, PickledObject) else zone
    assert zone is None or isinstance(zone, tzinfo)
    raise _Refusal(f"its zone {kind!s:.100} has no name that is known here; write the rule anew, with tz=")


def _cron(state: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.state["name"]: field.state["expressions"] for field in state.get("fields", ()) if _is_field(field)}
    if not {"year", "month", "day", "week", "day_of_week", "hour", "minute", "second"} <= fields.keys():
        raise _Refusal("its cron trigger cannot be read; write the rule anew")
    if not _is_any(fields["week"]):
        raise _Refusal("its cron trigger names weeks of the year, for which there is no rule; test for it in the job")
    days, weekdays, days_rule = _days(fields["day"], fields["day_of_week"])
    text = [_plain(fields["minute"]), _plain(fields["hour"]), days, _plain(fields["month"]), weekdays]
    second, year = _plain(fields["second"]), _plain(fields["year"])
    if second != "0" or year != "*":
        text.insert(0, second)
    if year != "*":
        text.append(year)
    rule = {"cron": " ".join(text), "tz": _zone_name(state.get("timezone"))}
    return {**rule, **({"days": "and"} if days_rule == "and" else {}), **_bounds(state)}


def _is_field(field: Any) -> bool:
    return (
        isinstance(field, PickledObject) and "name" in field.state and isinstance(field.state.get("expressions"), list)
    )


def _is_any(expressions: list[Any]) -> bool:
    return any(_expression(each) == "AllExpression" and not each.state.get("step") for each in expressions)


def _expression(item: Any) -> str:
    return item.kind.rpartition(".")[2] if isinstance(item, PickledObject) else ""


def _plain(expressions: list[Any]) -> str:
    """A field whose numbers mean the same there and here."""
    return "*" if _is_any(expressions) else ",".join(map(_item, expressions))


def _item(item: Any) -> str:
    match _expression(item):
        case "AllExpression":
            return f"*/{_number(item, 'step')}"
        case "RangeExpression" | "MonthRangeExpression":
            first, last, step = item.state.get("first"), item.state.get("last"), item.state.get("step")
            span = str(_number(item, "first")) if last in (None, first) else f"{first}-{_number(item, 'last')}"
            return f"{span}/{_number(item, 'step')}" if step and last != first else span
        case "LastDayOfMonthExpression":
            return "L"
        case _:
            raise _Refusal(f"its cron trigger has {_shown(item)}, for which there is no rule")


def _number(item: PickledObject, name: str) -> int:
    value = item.state.get(name)
    if not isinstance(value, int):
        raise _Refusal("its cron trigger cannot be read; write the rule anew")
    return value


def _days(day: list[Any], weekday: list[Any]) -> tuple[str, str, str]:
    """The day fields, and whether both must hold, as they always must there.

    A weekday's place in the month, "2nd fri", stands in the first field there and in the second one here.
    """
    places = [item for item in day if _expression(item) == "WeekdayPositionExpression"]
    numbers = [item for item in day if item not in places]
    weekdays = "*" if _is_any(weekday) else ",".join(_weekdays(weekday))
    if not places or _is_any(day):
        return _plain(day), weekdays, "or" if _is_any(day) or weekdays == "*" else "and"
    if weekdays != "*" or any(_item(item).startswith("*") for item in numbers):
        raise _Refusal(
            "its cron trigger joins places of weekdays in the month with other days, for which there is no rule"
        )
    return _plain(numbers) if numbers else "*", ",".join(map(_place, places)), "or"


def _place(item: PickledObject) -> str:
    position, name = _number(item, "option_num"), _WEEKDAYS[_number(item, "weekday") % 7]
    return f"{name}L" if position == _LAST_POSITION else f"{name}#{position + 1}"


def _weekdays(expressions: list[Any]) -> list[str]:
    """By their names: 0 is Monday there and Sunday here."""
    found: set[int] = set()
    for item in expressions:
        state, is_all = item.state, _expression(item) == "AllExpression"
        first = 0 if is_all else _number(item, "first")
        last = 6 if is_all or state.get("last") is None else _number(item, "last")
        step = _number(item, "step") if state.get("step") else 1
        if not 0 <= first <= last < len(_WEEKDAYS) or step < 1:
            raise _Refusal("its cron trigger names days that no week has; write the rule anew")
        found |= set(range(first, last + 1, step))
    return [_WEEKDAYS[number] for number in sorted(found)]


# --- the table


def read_table(url: str, table: str) -> list[StoredJob]:
    if not _TABLE_NAME.fullmatch(table):
        raise InvalidInput(f"table: {table!r:.100} is no name of a table; write it like 'apscheduler_jobs'")
    if "://" not in url and Path(url).is_file():
        raise InvalidInput(f"{url!r:.200} is a file; as a URL it is sqlite:///{url:.200}")
    return _from_sqlite(url, table) if _SQLITE.match(url) else _from_others(url, table)


def _kept(rows: Iterable[Sequence[Any]], table: str) -> list[StoredJob]:
    """As much of each as is read. SQLite keeps in a column what it is given, so a state may be no bytes at all."""
    kept: list[StoredJob] = []
    size = 0
    for id_, state in rows:
        found = bytes(state[: BYTES_MAX + 1]) if isinstance(state, bytes | bytearray | memoryview) else b""
        size += len(found)
        if len(kept) == _JOBS_MAX or size > _STATES_MAX_BYTES:
            much = f"{_STATES_MAX_BYTES} bytes" if size > _STATES_MAX_BYTES else f"{_JOBS_MAX} jobs"
            raise InvalidInput(f"{table!r} holds more than {much}; import them in parts")
        kept.append(StoredJob(id=str(id_), state=found))
    return kept


def _query(name: str) -> str:
    return f"SELECT id, job_state FROM {name} ORDER BY id LIMIT {_JOBS_MAX + 1}"  # noqa: S608 - a checked name


def _from_sqlite(url: str, table: str) -> list[StoredJob]:
    path = Path(_SQLITE.sub("", url).partition("?")[0])
    if not path.is_file():
        raise NotFound(f"there is no file {str(path)!r}")
    name = ".".join(f'"{part}"' for part in table.split("."))
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    # An id that is no text is reported; the other rows are read.
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        return _kept(connection.execute(_query(name)), table)
    except sqlite3.Error as error:
        raise Refused(
            f"the jobs cannot be read from {table!r} of {str(path)!r}: {error}; name the table with --table"
        ) from None
    finally:
        connection.close()


def _from_others(url: str, table: str) -> list[StoredJob]:
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise Refused(
            f"to read {masked(url)!r} SQLAlchemy is needed, as APScheduler does; pip install sqlalchemy, and what it "
            "needs for this database"
        ) from None
    try:
        # Without a pool nothing stays open.
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        quote_name = engine.dialect.identifier_preparer.quote
        with engine.connect() as connection:
            query = sqlalchemy.text(_query(".".join(map(quote_name, table.split(".")))))
            return _kept(connection.execution_options(stream_results=True).execute(query), table)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise Refused(f"the jobs cannot be read from {table!r} of {masked(url)!r}: {text}") from None
