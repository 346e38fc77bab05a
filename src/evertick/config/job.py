"""Reads jobs: `[jobs.NAME]` with a rule, the work and its options; `[defaults]` for all jobs.

A job is a task of this node and a schedule in the ledger, both under its name. With `task = "…"` it is only a schedule,
of a task that the code of another node defines.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from math import isfinite
from typing import Any

import msgspec

from evertick.config.layer import Table
from evertick.config.problem import Problems, phrased, toml_words
from evertick.config.rule import RULE_DEFAULTS, RULE_OPTIONS, RULES, make_rule, read_retry
from evertick.definition.options import PolicyOptions, make_definition
from evertick.definition.settings import check_key
from evertick.definition.task import TaskOptions, make_work
from evertick.driver.registry import IN_PYTHON, read_spec, spec_class
from evertick.driver.spec import AbsentDriver, Spec
from evertick.errors import EvertickError, InvalidInput, SpecProblem
from evertick.job.arguments import FreeArguments
from evertick.model import Definition
from evertick.text.did_you_mean import alike, nearest
from evertick.when import Calendar, When

__all__ = [
    "DEFAULT_KEYS",
    "JOBS_MAX",
    "POLICY_KEYS",
    "TASK_KEYS",
    "Defaults",
    "Job",
    "Reading",
    "read_defaults",
    "read_job",
]

JOBS_MAX = 10_000
# Options of tasks without a function; the others name Python types.
TASK_KEYS = tuple(name for name in TaskOptions.__annotations__ if name not in ("retry_on", "give_up_on", "process"))
POLICY_KEYS = tuple(PolicyOptions.__annotations__)
_OWN = ("task", "description", "enabled")
JOB_KEYS = (*_OWN, *RULES, *RULE_OPTIONS, *TASK_KEYS, *POLICY_KEYS)
# Not in [defaults].
_NOT_FOR_ALL = ("args", "unique", "unique_until", "unique_for")
DEFAULT_KEYS = (*RULE_DEFAULTS, *TASK_KEYS, *(name for name in POLICY_KEYS if name not in _NOT_FOR_ALL))
_DESCRIPTION_LONGEST = 1_000
# Valid rules that fire so rarely that every option fits them.
_RIGHT_RULES = {"cron": "0 0 1 1 *", "every": "365d", "once": "+365d"}


class Defaults(msgspec.Struct, frozen=True, kw_only=True):
    """Checked values of [defaults], and where they are written."""

    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    # As written in the file, for output.
    shown: dict[str, Any] = {}


class Job(msgspec.Struct, frozen=True, kw_only=True):
    name: str
    place: str
    rule: When
    # The schedule without its rule, which is bound when it is stored.
    definition: Definition
    # None for a task of another node, which the definition names.
    spec: Spec | None
    task_options: dict[str, Any]
    # The calendar of its blackout if it is in the file; otherwise it is in the ledger.
    blackout: Calendar | None = None
    description: str = ""
    is_enabled: bool = True
    # Where its keys are written, those of the defaults too, and the fields of its specification, like "shell.cwd".
    places: dict[str, str] = {}
    # Its keys as written in the file, for output: references to variables are not replaced.
    shown: dict[str, Any] = {}


class Reading(msgspec.Struct, frozen=True, kw_only=True):
    environ: Mapping[str, str]
    defaults: Defaults
    calendars: Mapping[str, Calendar]
    # The zone of times without one.
    tz: str
    # The drivers that a job may name.
    drivers: tuple[str, ...]
    problems: Problems


class _Reader:
    """Reads one job, and reports its problems."""

    def __init__(self, table: Table, reading: Reading) -> None:
        self._table = table
        self._with = reading
        self.name = str(table.path[-1])
        self._given = table.read(reading.environ, reading.problems)

    def refuse(self, problem: str, *inner: str | int) -> None:
        self._with.problems.add(self._table.place(*inner), self._table.key(*inner), problem)

    def read(self) -> Job | None:
        before = len(self._with.problems)
        self._check_name()
        self._check_known()
        if len(self._given) < len(self._table.data):
            return None  # without the keys that could not be read, others would be rejected
        rule = self._rule()
        spec, task = self._work()
        definition = self._definition(task)
        options = self._task_options()
        if len(self._with.problems) > before or rule is None:
            return None
        return Job(
            name=self.name,
            place=self._table.place(),
            rule=rule,
            definition=definition,
            spec=spec,
            task_options=options,
            blackout=self._with.calendars.get(definition.blackout or ""),
            description=self._text("description"),
            is_enabled=self._yes_or_no("enabled"),
            places=self._with.defaults.places | self._places(spec),
            shown=self._table.data,
        )

    def _places(self, spec: Spec | None) -> dict[str, str]:
        """The places of its keys and of the fields of its specification, like "shell.cwd"."""
        places = {name: self._table.place(name) for name in self._given}
        fields = None if spec is None else self._given[spec.driver]
        if spec is not None and isinstance(fields, Mapping):
            places |= {f"{spec.driver}.{name}": self._table.place(spec.driver, name) for name in fields}
        return places

    def _check_name(self) -> None:
        try:
            check_key(self.name, what="name")
        except InvalidInput as wrong:
            self.refuse(phrased(wrong))

    def _check_known(self) -> None:
        drivers = self._with.drivers
        for name in self._given:
            if name in IN_PYTHON:
                self.refuse('a function needs code; make the task there, and name it here: task = "…"', name)
            elif name not in JOB_KEYS and name not in drivers:
                self.refuse(self._unknown_key(name), name)
        self._text("description")
        self._yes_or_no("enabled")

    def _unknown_key(self, name: str) -> str:
        """The table that an unknown key belongs to, or a similar key."""
        drivers = self._with.drivers
        owner = next((each for each in self._given if each in drivers and name in _fields_of(each)), None)
        if owner is None:
            what = f"and no such driver; drivers are {', '.join(drivers)}, and other keys"
            near = nearest(name, [*JOB_KEYS, *drivers], what=what)
            return f"no such key{'' if near.startswith(what) else ';'} {near}"
        belongs, short = f"no such key; it belongs to {owner}: write", spec_class(owner).short
        if isinstance(self._given[owner], Mapping) or short is None:
            return f"{belongs} it under [{self._table.key(owner)}]"
        value = "{ … }" if isinstance(self._given[name], Mapping) else "…"
        return f'{belongs} {owner} = {{ {short} = "…", {name} = {value} }}'

    def _rule(self) -> When | None:
        kinds = [name for name in RULES if name in self._given]
        if len(kinds) != 1:
            is_none = f"nothing says when; write one of {', '.join(RULES)}"
            if kinds or not self._is_misspelt(RULES):
                self.refuse(f"{' and '.join(kinds)} say when; keep one of them" if kinds else is_none, *kinds[1:2])
            return None
        kind, value = kinds[0], self._given[kinds[0]]
        options = {name: self._given[name] for name in RULE_OPTIONS if name in self._given}
        defaults = self._defaults(RULE_DEFAULTS)

        def make(value: Any) -> When | None:
            made: When | None = self._made_of_right(
                lambda kept: make_rule(kind, value, kept, defaults, self._with.calendars, self._with.tz),
                options,
                otherwise=kind,
            )
            return made

        rule = make(value)
        if rule is None and kind in _RIGHT_RULES:
            # A valid rule in its place shows the problems of its options.
            make(_RIGHT_RULES[kind])
        return rule

    def _is_misspelt(self, known: tuple[str, ...]) -> bool:
        """Whether one of these is there under a similar name, which is reported already."""
        everything = (*JOB_KEYS, *self._with.drivers)
        return any(name not in everything and alike(name, everything) in known for name in self._given)

    def _work(self) -> tuple[Spec | None, str]:
        """The specification, if there is a valid one, and the name of the task."""
        ways = [name for name in self._given if name == "task" or (name in self._with.drivers and name not in JOB_KEYS)]
        if len(ways) != 1:
            is_none = f"nothing says what to do; write one of {', '.join(self._with.drivers)}, or task"
            if ways or not self._is_misspelt((*self._with.drivers, "task")):
                self.refuse(f"{' and '.join(ways)} say what to do; keep one of them" if ways else is_none, *ways[1:2])
            return None, self.name
        return (None, self._task()) if ways == ["task"] else (self._spec(ways[0]), self.name)

    def _task(self) -> str:
        try:
            return check_key(self._given["task"], what="task")
        except InvalidInput as wrong:
            self.refuse(phrased(wrong, value=self._given["task"]), "task")
            return self.name

    def _spec(self, driver: str) -> Spec | None:
        try:
            spec, wrong = read_spec(driver, self._given[driver], self.name)
        except EvertickError as error:
            self.refuse(phrased(error, f"{driver}: "), driver)
            return None
        except Exception as error:  # of a third-party driver, which may raise anything
            self.refuse(f"the driver cannot read it: {type(error).__name__}: {error}", driver)
            return None
        for each in wrong:
            self._refuse_field(each, driver)
        return spec

    def _refuse_field(self, wrong: SpecProblem, driver: str) -> None:
        inner, value = _found_at(wrong.path, self._given[driver])
        # The file does not have the rest of the path if it gives the value in short, or not at all.
        rest = ".".join(map(str, wrong.path[len(inner) :]))
        problem, fix = f"{rest}: {wrong.problem}" if rest else wrong.problem, wrong.fix
        if isinstance(value, float) and not isfinite(value):
            problem, fix = f"{value} is not possible", "write a number in digits"
        if wrong.is_unknown and len(inner) == 1 and inner[0] in JOB_KEYS:
            fix = f"it is a key of the job: write it under [{self._table.key()}]"
        self.refuse(problem if fix is None else f"{problem}; {fix}", driver, *inner)

    def _definition(self, task: str) -> Definition:
        own = {name: self._given[name] for name in POLICY_KEYS if name in self._given}
        if "args" in own:
            # JSON, and so the ledger, has dates as text.
            own["args"] = msgspec.to_builtins(own["args"])
        defaults = self._defaults(POLICY_KEYS)
        made = self._made_of_right(lambda kept: make_definition(task, defaults | kept), own)
        return made or Definition(task=task, when="")

    def _task_options(self) -> dict[str, Any]:
        own = {name: self._given[name] for name in TASK_KEYS if name in self._given}
        if "task" in self._given:
            for name in own:
                self.refuse("it belongs to the task, which other code makes; set it there", name)
            return {}
        if "retry" in own:
            own["retry"] = read_retry(own["retry"], lambda problem, *inner: self.refuse(problem, "retry", *inner))
            own = {name: each for name, each in own.items() if each is not None}
        defaults = self._defaults(TASK_KEYS)
        self._made_of_right(lambda kept: _check_task_options(self.name, defaults | kept), own)
        return defaults | own

    def _defaults(self, names: tuple[str, ...]) -> dict[str, Any]:
        return {name: each for name, each in self._with.defaults.values.items() if name in names}

    def _made_of_right(
        self, make: Callable[[dict[str, Any]], Any], options: dict[str, Any], otherwise: str = ""
    ) -> Any:
        """Call `make` with these options. It reports and drops each rejected one, and calls again with the rest."""
        kept = dict(options)
        while True:
            try:
                return make(kept)
            except EvertickError as wrong:
                before, name = f"task {self.name!r}: ", wrong.setting
                if name is None or name not in kept:
                    self._refuse_rest(wrong, before, otherwise)
                    return None
                self.refuse(phrased(wrong, before, value=kept[name]), name)
                del kept[name]

    def _refuse_rest(self, wrong: EvertickError, before: str, otherwise: str) -> None:
        """Report an error that is about no option of this job, but about a default or the rule itself."""
        place = self._with.defaults.places.get(wrong.setting or "")
        if place is not None:
            self._with.problems.add(place, f"defaults.{wrong.setting}", phrased(wrong, before))
        else:
            # In code the interval is an argument of this name; in a file it is `every`.
            problem = phrased(wrong, before, f"{otherwise}: ", "interval: ", value=self._given.get(otherwise))
            self.refuse(problem, *([otherwise] if otherwise else []))

    def _text(self, name: str) -> str:
        value = self._given.get(name, "")
        if not isinstance(value, str) or len(value) > _DESCRIPTION_LONGEST:
            self.refuse(
                f"{toml_words(value):.60} is no text of at most {_DESCRIPTION_LONGEST} characters; shorten it", name
            )
            return ""
        return value

    def _yes_or_no(self, name: str) -> bool:
        value = self._given.get(name, True)
        if not isinstance(value, bool):
            self.refuse(f"{toml_words(value):.60} is neither true nor false; write one of them without quotes", name)
            return True
        return value


def _fields_of(driver: str) -> tuple[str, ...]:
    """The fields of the specifications of a driver."""
    try:
        return spec_class(driver).__struct_encode_fields__
    except Exception:  # of a third-party driver, which may raise anything; reported where the job is read
        return ()


def _found_at(path: tuple[str | int, ...], given: Any) -> tuple[tuple[str | int, ...], Any]:
    """The part of the path that the file has, and the value there."""
    for depth, step in enumerate(path):
        is_index = isinstance(given, list) and isinstance(step, int) and step < len(given)
        if not is_index and not (isinstance(given, Mapping) and step in given):
            return path[:depth], given
        given = given[step]
    return path, given


def _check_task_options(name: str, options: dict[str, Any]) -> None:
    make_work(name, AbsentDriver("", name), FreeArguments(name), options)  # type: ignore[arg-type]


def read_job(table: Table, reading: Reading) -> Job | None:
    """The job of a table; None if it has problems, which are reported."""
    return _Reader(table, reading).read()


def read_defaults(tables: list[Table], environ: Mapping[str, str], problems: Problems) -> Defaults:
    """Read [defaults]. Each value is checked as in a job."""
    values: dict[str, Any] = {}
    places: dict[str, str] = {}
    shown: dict[str, Any] = {}
    for table in tables:
        for name, value in table.read(environ, problems).items():
            place, key = table.place(name), f"defaults.{name}"
            if name not in DEFAULT_KEYS:
                known = nearest(name, DEFAULT_KEYS, what="there are")
                what = "it cannot be a default; write it in a job" if name in JOB_KEYS else f"no such key; {known}"
                problems.add(place, key, what)
            elif name in places:
                problems.add(place, key, f"it is set at {places[name]}, too; keep one of them")
            elif (checked := _checked_default(name, value, place, problems)) is not None:
                values[name], places[name], shown[name] = checked, place, table.data[name]
    return Defaults(values=values, places=places, shown=shown)


def _checked_default(name: str, value: Any, place: str, problems: Problems) -> Any:
    if name == "retry":
        return read_retry(
            value, lambda problem, *inner: problems.add(place, ".".join(("defaults.retry", *inner)), problem)
        )
    try:
        if name in TASK_KEYS and not name.endswith("_key"):
            _check_task_options("all", {name: value})
        elif name in POLICY_KEYS and name != "blackout_fate":
            make_definition("task", {name: value})
        elif name in RULE_DEFAULTS:
            make_rule("cron", "0 0 * * *", {name: value}, {}, {}, "UTC")
    except EvertickError as wrong:
        problems.add(place, f"defaults.{name}", phrased(wrong, "task 'all': ", value=value))
        return None
    return value
