"""Converts the jobs in a table of APScheduler 3.

SQLite is read directly, other databases through SQLAlchemy, which APScheduler needs for them, too.

APScheduler stores a pickle with the function's name, its arguments and a trigger. The pickle is read as data: neither
APScheduler nor the program of the jobs is imported. A trigger without an equivalent rule is reported, never guessed.
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
from evertick.text.values import shown
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
# Triggers joined in one.
_RULES_MAX = 100
# The default of APScheduler, which drops a run that starts a second late.
_DEFAULT_GRACE = 1
_TRIGGERS = "apscheduler.triggers."
# The owner of a name that another job of this import has.
_HERE = "this store"


class StoredJob(msgspec.Struct, frozen=True, kw_only=True):
    """A row of the table."""

    id: str
    state: bytes


class _NotImported(Exception):
    """The reason why a job is not imported."""


def read_jobs(rows: Sequence[StoredJob], taken: Mapping[str, object] | None = None) -> ImportResult:
    """`taken`: the names of other jobs, with their places."""
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
                f"misfire_grace_time=1 of {_jobs(self._with_default_grace)} is APScheduler's default, which drops a "
                "run that starts more than a second late; Evertick runs it. To drop late runs, set grace",
            )
        return ImportResult(jobs=tuple(self._jobs), notes=tuple(self._notes))

    def read(self, row: StoredJob) -> None:
        self._where = f"job {row.id!r:.100}"
        try:
            state = read_pickle(row.state)
            if not isinstance(state, Mapping) or state.get("version", 1) != 1:
                raise _NotImported("the row is not a job of APScheduler 3")
            self._add(row.id, state)
        except (_NotImported, InvalidInput) as why:
            self._note("lost", str(why))
        except Exception as error:  # an unexpected error in one row must not stop the import of the others
            self._note("lost", f"the row cannot be read: {type(error).__name__}: {str(error)[:200]}")

    def _note(self, kind: Any, text: str) -> None:
        self._notes.append(Note(where=self._where, kind=kind, text=printable(text)))

    def _add(self, id_: str, state: Mapping[str, Any]) -> None:
        check_key(id_, what="id")
        spec = self._spec(state)
        rules = list(islice(_rules(state.get("trigger"), state.get("next_run_time")), _RULES_MAX + 1))
        if len(rules) > _RULES_MAX:
            raise _NotImported(f"the trigger joins more than {_RULES_MAX} triggers; write schedules for them")
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
            self._note(
                "check", f"paused in APScheduler, active in Evertick; to pause it after the first start: {commands}"
            )
        if len(rules) > 1:
            self._note("check", f"the trigger joins {len(rules)} triggers; each becomes a schedule")
        if any("jitter" in rule for rule in rules):
            self._note(
                "check", "jitter: in Evertick it is the same on all nodes for a given moment, and below the interval"
            )

    def _name(self, id_: str, name: str) -> str:
        """A name that no other job has: ids of other rows are in use, too."""
        is_free = name not in self._taken and (name == id_ or name not in self._ids)
        free = name if is_free else free_name(name, self._taken.keys() | self._ids)
        if free != name:
            self._notes.append(renamed_note(self._where, name, self._taken.get(name, _HERE), free))
        self._taken[free] = _HERE
        return free

    def _spec(self, state: Mapping[str, Any]) -> dict[str, Any]:
        function, args, kwargs = state.get("func"), state.get("args") or (), state.get("kwargs") or {}
        path = _FUNCTION.fullmatch(function) if isinstance(function, str) else None
        if path is None or any(map(keyword.iskeyword, re.split("[.:]", path[0]))):
            raise _NotImported(f"function {shown(function)} cannot be imported by its name; define it in a module")
        if path["module"] == "__main__":
            raise _NotImported(
                f"function {path['name']!r} is in the program itself; move it to a module and declare it there"
            )
        if not isinstance(args, list | tuple) or not isinstance(kwargs, Mapping):
            raise _NotImported("the arguments are not a list and a dict")
        for seen in objects_in([args, kwargs]):
            raise _NotImported(
                f"function {function}: an argument contains an object of {seen.kind}, but arguments must be JSON-like "
                "data; pass an id, and load the object in the job"
            )
        try:
            msgspec.json.encode([args, kwargs])
        except (TypeError, ValueError, RecursionError) as error:
            raise _NotImported(f"function {function}: the arguments are not JSON-like data: {error}") from None
        if any(isinstance(each, set | frozenset | datetime | timedelta | bytes) for each in _leaves([args, kwargs])):
            self._note(
                "check",
                "the arguments contain types that JSON lacks; annotate the parameters, so that Evertick restores them",
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
                f"max_instances={instances} becomes concurrency={instances} of a separate task; further runs wait and "
                "are not dropped",
            )
        if state.get("executor") not in (None, "default"):
            self._note(
                "dropped",
                f"executor={shown(state['executor'])}: coroutines run on the event loop, other functions in threads; "
                "for child processes, set process=True in the task",
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
    """The rules of a trigger."""
    if not isinstance(trigger, PickledObject) or not trigger.kind.startswith(_TRIGGERS):
        raise _NotImported(f"the trigger is {_shown(trigger)}, which is not part of APScheduler; write a rule for it")
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
            raise _NotImported(f"trigger {_shown(trigger)} has no equivalent rule; see 'Come from APScheduler'")
    jitter = state.get("jitter")
    if isinstance(jitter, int | float) and jitter > 0:
        rule["jitter"] = duration_text(round(jitter * 1_000_000))
    _check(rule)
    yield rule


def _shown(trigger: Any) -> str:
    return repr(trigger.kind if isinstance(trigger, PickledObject) else type(trigger).__name__)


def _check(rule: Mapping[str, Any]) -> None:
    """Raises _NotImported if the rule is not valid."""
    given = dict(rule)
    try:
        if "cron" in given:
            Cron(given.pop("cron"), **given)
        elif "every" in given:
            Every(given.pop("every"), **given)
        else:
            Once(given.pop("once"), **given)
    except EvertickError as error:
        raise _NotImported(f"the trigger has no valid rule: {error}") from None


def _bounds(state: Mapping[str, Any]) -> dict[str, Any]:
    bounds = {"start": state.get("start_date"), "end": state.get("end_date")}
    return {name: _moment(value) for name, value in bounds.items() if value is not None}


def _moment(value: Any) -> datetime:
    if not isinstance(value, datetime) or value.tzinfo is None or isinstance(value.tzinfo, PickledObject):
        zone = value.tzinfo if isinstance(value, datetime) else None
        in_zone = f" in the zone {zone.kind}" if isinstance(zone, PickledObject) else ""
        raise _NotImported(f"the trigger has a time{in_zone} that cannot be read; write a new rule")
    return value


def _interval(state: Mapping[str, Any], next_run: Any) -> dict[str, Any]:
    interval = state.get("interval")
    if not isinstance(interval, timedelta):
        raise _NotImported("the interval cannot be read; write a new rule")
    bounds = _bounds(state)
    if isinstance(next_run, datetime):
        # Continues from the next run, which may have been changed by hand.
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
            # POSIX names these zones with the opposite sign.
            return f"Etc/GMT{-hours:+d}"
    kind = zone.kind if isinstance(zone, PickledObject) else zone
    assert zone is None or isinstance(zone, tzinfo)
    raise _NotImported(f"the time zone {kind!s:.100} has no IANA name; write a new rule with tz=")


def _cron(state: Mapping[str, Any]) -> dict[str, Any]:
    fields = {field.state["name"]: field.state["expressions"] for field in state.get("fields", ()) if _is_field(field)}
    if not {"year", "month", "day", "week", "day_of_week", "hour", "minute", "second"} <= fields.keys():
        raise _NotImported("the cron trigger cannot be read; write a new rule")
    if not _is_any(fields["week"]):
        raise _NotImported("the cron trigger has weeks of the year, which no rule supports; check the week in the job")
    days, weekdays, days_rule = _days(fields["day"], fields["day_of_week"])
    text = [_field_text(fields["minute"]), _field_text(fields["hour"]), days, _field_text(fields["month"]), weekdays]
    second, year = _field_text(fields["second"]), _field_text(fields["year"])
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


def _field_text(expressions: list[Any]) -> str:
    """A field whose numbers have the same meaning in both schedulers."""
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
            raise _NotImported(f"the cron trigger has {_shown(item)}, which no rule supports")


def _number(item: PickledObject, name: str) -> int:
    value = item.state.get(name)
    if not isinstance(value, int):
        raise _NotImported("the cron trigger cannot be read; write a new rule")
    return value


def _days(day: list[Any], weekday: list[Any]) -> tuple[str, str, str]:
    """The fields for days and weekdays, and whether a day must match both; APScheduler always requires both.

    "2nd fri" is in the field for days there, and in the one for weekdays here.
    """
    places = [item for item in day if _expression(item) == "WeekdayPositionExpression"]
    numbers = [item for item in day if item not in places]
    weekdays = "*" if _is_any(weekday) else ",".join(_weekdays(weekday))
    if not places or _is_any(day):
        return _field_text(day), weekdays, "or" if _is_any(day) or weekdays == "*" else "and"
    if weekdays != "*" or any(_item(item).startswith("*") for item in numbers):
        raise _NotImported("the cron trigger combines days like '2nd fri' with other days, which no rule supports")
    return _field_text(numbers) if numbers else "*", ",".join(map(_nth_weekday, places)), "or"


def _nth_weekday(item: PickledObject) -> str:
    position, name = _number(item, "option_num"), _WEEKDAYS[_number(item, "weekday") % 7]
    return f"{name}L" if position == _LAST_POSITION else f"{name}#{position + 1}"


def _weekdays(expressions: list[Any]) -> list[str]:
    """The names of the weekdays, because 0 is Monday there and Sunday here."""
    numbers: set[int] = set()
    for item in expressions:
        state, is_all = item.state, _expression(item) == "AllExpression"
        first = 0 if is_all else _number(item, "first")
        last = 6 if is_all or state.get("last") is None else _number(item, "last")
        step = _number(item, "step") if state.get("step") else 1
        if not 0 <= first <= last < len(_WEEKDAYS) or step < 1:
            raise _NotImported("the cron trigger has invalid weekdays; write a new rule")
        numbers |= set(range(first, last + 1, step))
    return [_WEEKDAYS[number] for number in sorted(numbers)]


# --- the table


def read_table(url: str, table: str) -> list[StoredJob]:
    if not _TABLE_NAME.fullmatch(table):
        raise InvalidInput(
            f"table: {shown(table)} is not a table name",
            setting="table",
            value=shown(table),
            fix="write it like 'apscheduler_jobs'",
        )
    if "://" not in url and Path(url).is_file():
        raise InvalidInput(
            f"url: {shown(url)} is a file", setting="url", value=shown(url), fix=f"write it as sqlite:///{url:.200}"
        )
    return _from_sqlite(url, table) if _SQLITE.match(url) else _from_other_database(url, table)


def _stored_jobs(rows: Iterable[Sequence[Any]], table: str) -> list[StoredJob]:
    """The rows, with states up to the size limit. SQLite columns are untyped, so a state may not be bytes."""
    jobs: list[StoredJob] = []
    size = 0
    for id_, state in rows:
        data = bytes(state[: BYTES_MAX + 1]) if isinstance(state, bytes | bytearray | memoryview) else b""
        size += len(data)
        if len(jobs) == _JOBS_MAX or size > _STATES_MAX_BYTES:
            limit = f"{_STATES_MAX_BYTES} bytes" if size > _STATES_MAX_BYTES else f"{_JOBS_MAX} jobs"
            raise InvalidInput(
                f"table {table!r} has more than {limit}",
                setting="table",
                value=repr(table),
                fix="import it in parts",
            )
        jobs.append(StoredJob(id=str(id_), state=data))
    return jobs


def _query(name: str) -> str:
    return f"SELECT id, job_state FROM {name} ORDER BY id LIMIT {_JOBS_MAX + 1}"  # noqa: S608 - a checked name


def _from_sqlite(url: str, table: str) -> list[StoredJob]:
    path = Path(_SQLITE.sub("", url).partition("?")[0])
    if not path.is_file():
        raise NotFound(f"the database {str(path)!r} does not exist", setting="url", value=repr(str(path)))
    name = ".".join(f'"{part}"' for part in table.split("."))
    connection = sqlite3.connect(f"file:{quote(str(path.absolute()))}?mode=ro", uri=True)
    # An id that is not UTF-8 must not stop the import of other rows.
    connection.text_factory = lambda data: data.decode(errors="surrogateescape")
    try:
        return _stored_jobs(connection.execute(_query(name)), table)
    except sqlite3.Error as error:
        raise Refused(
            f"table {table!r} of {str(path)!r} cannot be read: {error}",
            setting="table",
            value=repr(table),
            fix="name the table with --table",
        ) from None
    finally:
        connection.close()


def _from_other_database(url: str, table: str) -> list[StoredJob]:
    try:
        import sqlalchemy
    except ModuleNotFoundError:
        raise Refused(
            f"reading {masked(url)!r} needs SQLAlchemy",
            setting="url",
            value=repr(masked(url)),
            fix="pip install sqlalchemy, and the driver for this database",
        ) from None
    try:
        # No pool, so that no connection stays open.
        engine = sqlalchemy.create_engine(url, poolclass=sqlalchemy.pool.NullPool)
        quote_name = engine.dialect.identifier_preparer.quote
        with engine.connect() as connection:
            query = sqlalchemy.text(_query(".".join(map(quote_name, table.split(".")))))
            return _stored_jobs(connection.execution_options(stream_results=True).execute(query), table)
    except (sqlalchemy.exc.SQLAlchemyError, ImportError) as error:
        text = " ".join(str(getattr(error, "orig", None) or error).split())[:300]
        raise Refused(
            f"table {table!r} of {masked(url)!r} cannot be read: {text}",
            setting="table",
            value=repr(table),
            fix="name the table with --table",
        ) from None
