"""Jobs of APScheduler 3, from a real store of it."""

from __future__ import annotations

import importlib.util
import os
import pickle
import re
import sqlite3
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator
from contextlib import closing, contextmanager
from datetime import UTC, date, datetime, time, timedelta, timezone
from pathlib import Path
from types import ModuleType
from typing import Any
from zoneinfo import ZoneInfo

import pytest
import shop_jobs
from apscheduler.jobstores.sqlalchemy import SQLAlchemyJobStore
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.base import BaseTrigger
from apscheduler.triggers.calendarinterval import CalendarIntervalTrigger
from apscheduler.triggers.combining import AndTrigger, OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.date import DateTrigger
from apscheduler.triggers.interval import IntervalTrigger

from evertick import InvalidInput, NotFound, Refused
from evertick.imports.apscheduler import StoredJob, read_jobs, read_table
from evertick.imports.imported import ImportResult, Job
from evertick.imports.pickle_reader import PickledObject, objects_in, read_pickle
from evertick.imports.python import to_python
from evertick.testing import virtual_time
from evertick.when import Cron

BERLIN = ZoneInfo("Europe/Berlin")
# No clock changes in the weeks after it: what they do differs.
START = datetime(2026, 6, 1, 6, 30, tzinfo=UTC)


@contextmanager
def store_in(url: str, **options: Any) -> Iterator[SQLAlchemyJobStore]:
    """A store of APScheduler. Nobody runs what is in it."""
    store = SQLAlchemyJobStore(url, **options)
    store.start(BackgroundScheduler(), "default")
    try:
        yield store
    finally:
        store.engine.dispose()


def made(id_: str, trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> Any:
    """A job as a running scheduler puts it into its store."""
    job = BackgroundScheduler(timezone="Europe/Berlin").add_job(function, trigger, id=id_, **options)
    defaults = {"misfire_grace_time": 1, "coalesce": True, "max_instances": 1, "next_run_time": START}
    for name, value in defaults.items():
        if not hasattr(job, name):
            setattr(job, name, value)
    return job


def stored(trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> StoredJob:
    state = made("one", trigger, function, **options).__getstate__()
    return StoredJob(id="one", state=pickle.dumps(state, pickle.HIGHEST_PROTOCOL))


def read(trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> ImportResult:
    return read_jobs([stored(trigger, function, **options)])


def only(trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> Job:
    imported = read(trigger, function, **options)
    assert [note.text for note in imported.lost] == []
    [job] = imported.jobs
    return job


def lost(trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> str:
    imported = read(trigger, function, **options)
    assert imported.jobs == ()
    [note] = imported.lost
    return note.text


def loaded(path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location("imported_jobs", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


# --- the whole way


async def test_a_store_becomes_a_module_whose_jobs_fire_as_they_did(tmp_path: Path) -> None:
    triggers: dict[str, BaseTrigger] = {
        "every-weekday": CronTrigger(day_of_week="mon-fri", hour=9, timezone=BERLIN),
        "crontab": CronTrigger.from_crontab("*/20 8-18/2 * * 0,2-4", timezone="America/New_York"),
        "first-and-last": CronTrigger(day="1,last", hour="6", timezone="UTC"),
        "second-friday": CronTrigger(day="2nd fri,last sun", hour=12, minute=30, timezone="UTC"),
        "friday-13": CronTrigger(day="11-13", day_of_week="thu,sat", hour="*/8", timezone="UTC"),
        "seconds": CronTrigger(hour=3, minute=0, second="*/20", timezone="UTC"),
        "months": CronTrigger(month="jan-mar,jun", day="*/3", hour=1, timezone="UTC"),
        "one-year": CronTrigger(year=2026, month=6, day=3, timezone="UTC"),
        "within": CronTrigger(minute=0, start_date=START + timedelta(days=1), end_date=START + timedelta(days=2)),
        "odd-weekdays": CronTrigger(day_of_week="*/2", hour=2, timezone="UTC"),
        "interval": IntervalTrigger(minutes=37, seconds=30, start_date=START + timedelta(minutes=1)),
        "long": IntervalTrigger(days=2, start_date=START + timedelta(hours=1)),
        "once": DateTrigger(START + timedelta(days=3)),
    }
    source, target = tmp_path / "jobs.sqlite", tmp_path / "imported_jobs.py"
    with store_in(f"sqlite:///{source}") as store:
        for name, trigger in triggers.items():
            first = trigger.get_next_fire_time(None, START)
            store.add_job(made(name, trigger, next_run_time=first, misfire_grace_time=3600))
        once = triggers["once"]
        store.add_job(made("by-place", once, shop_jobs.remind, args=[7], kwargs={"text": 'a "b"\n'}))
        store.add_job(made("by-name", once, shop_jobs.report, kwargs={"copies": 2}))
        store.add_job(made("static", once, shop_jobs.Stock.count, args=["left"]))
    before = source.read_bytes()
    imported = read_jobs(read_table(f"sqlite:///{source}", "apscheduler_jobs"))
    assert source.read_bytes() == before
    assert [note.text for note in imported.lost] == []
    target.write_text(to_python(imported, ["head"]))
    module = loaded(target)
    shop_jobs.called.clear()
    async with virtual_time(module.scheduler, start=START) as kit:
        await kit.advance(timedelta(days=30))
        fired = {name: [run.fire_at for run in kit.runs(name)] for name in triggers}
        assert {run.verdict for run in kit.runs()} == {"succeeded"}
    assert fired == {name: walked(trigger) for name, trigger in triggers.items()}
    assert sum(map(len, fired.values())) > 1_500
    calls = {call for call in shop_jobs.called if call != ("tidy",)}
    assert calls == {("remind", 7, 'a "b"\n'), ("report", "short", 2), ("count", "left")}


def walked(trigger: BaseTrigger) -> list[datetime]:
    """As APScheduler goes from one moment to the next."""
    found: list[datetime] = []
    at = trigger.get_next_fire_time(None, START)
    while at is not None and at <= START + timedelta(days=30):
        found.append(at.astimezone(UTC))
        at = trigger.get_next_fire_time(at, at + timedelta(microseconds=1))
    return found


def test_what_is_written_is_a_module_that_passes_for_one_of_a_person(tmp_path: Path) -> None:
    imported = read_jobs(
        [
            stored(CronTrigger(hour=9, timezone=BERLIN), shop_jobs.report, misfire_grace_time=3600, name="The report"),
            stored(IntervalTrigger(hours=1, timezone=UTC), shop_jobs.remind, args=[7], max_instances=3),
        ]
    )
    text = to_python(imported, ["The jobs of a shop."])
    assert text.startswith("# The jobs of a shop.\n#\n# Notes of the import:\n#   job 'one': ")
    assert "import shop_jobs\nfrom evertick import Scheduler\n" in text
    assert "report = scheduler.task(name='report')(shop_jobs.report)\n" in text
    assert "remind = scheduler.task(name='remind', concurrency=3)(shop_jobs.remind)\n" in text
    assert "# The report\nscheduler.cron('0 9 * * *', key='one', tz='Europe/Berlin', grace='1h')(report)\n" in text
    assert "    args=named(shop_jobs.remind, 7),\n)(remind)" in text


async def test_each_job_of_a_function_has_its_instances_for_itself(tmp_path: Path) -> None:
    source, target = tmp_path / "jobs.sqlite", tmp_path / "imported_jobs.py"
    minutely = IntervalTrigger(minutes=1, start_date=START + timedelta(minutes=1))
    with store_in(f"sqlite:///{source}") as store:
        for name, instances in {"a": 3, "b": 2, "c": 2, "d": 1}.items():
            first = minutely.get_next_fire_time(None, START)
            store.add_job(made(name, minutely, shop_jobs.dawdle, max_instances=instances, next_run_time=first))
    target.write_text(to_python(read_jobs(read_table(f"sqlite:///{source}", "apscheduler_jobs")), ["head"]))
    module = loaded(target)
    async with virtual_time(module.scheduler, start=START) as kit:
        await kit.advance(timedelta(minutes=10, seconds=30))
        running = Counter(run.schedule_key for run in kit.runs() if run.state == "running")
    assert running == {"a": 3, "b": 2, "c": 2, "d": 1}


# --- triggers


@pytest.mark.parametrize(
    ("fields", "rule"),
    [
        ({"hour": 6}, {"cron": "0 6 * * *"}),
        ({"minute": "*/10"}, {"cron": "*/10 * * * *"}),
        ({"minute": "5-50/15,7"}, {"cron": "5-50/15,7 * * * *"}),
        ({"minute": "3/20"}, {"cron": "3/20 * * * *"}),
        ({"second": 30}, {"cron": "30 * * * * *"}),
        ({"second": "*"}, {"cron": "* * * * * *"}),
        ({"year": "2027-2029"}, {"cron": "0 0 0 1 1 * 2027-2029"}),
        ({"month": "feb-apr,DEC"}, {"cron": "0 0 1 2-4,12 *"}),
        ({"day": "last"}, {"cron": "0 0 L * *"}),
        ({"day": "1st mon, last fri"}, {"cron": "0 0 * * mon#1,friL"}),
        ({"day": "15,2nd fri"}, {"cron": "0 0 15 * fri#2"}),
        ({"day_of_week": 0}, {"cron": "0 0 * * mon"}),
        ({"day_of_week": "sat-sun"}, {"cron": "0 0 * * sat,sun"}),
        ({"day_of_week": "1-5/2"}, {"cron": "0 0 * * tue,thu,sat"}),
        ({"day": 13, "day_of_week": "fri"}, {"cron": "0 0 13 * fri", "days": "and"}),
        ({"day": "*/2", "day_of_week": "fri"}, {"cron": "0 0 */2 * fri", "days": "and"}),
        ({"day": "*,5", "hour": 1}, {"cron": "0 1 * * *"}),
    ],
)
def test_a_cron_trigger_becomes_the_rule_that_it_means(fields: dict[str, Any], rule: dict[str, Any]) -> None:
    assert only(CronTrigger(timezone="UTC", **fields)).rule == {**rule, "tz": "UTC"}


@pytest.mark.parametrize(
    ("zone", "name"),
    [
        ("Europe/Berlin", "Europe/Berlin"),
        (UTC, "UTC"),
        (timezone(timedelta(hours=2)), "Etc/GMT-2"),
        (timezone(timedelta(hours=-5)), "Etc/GMT+5"),
    ],
)
def test_a_zone_is_carried_over_by_its_name(zone: Any, name: str) -> None:
    job = only(CronTrigger(hour=6, timezone=zone))
    assert job.rule["tz"] == name
    at = CronTrigger(hour=6, timezone=zone).get_next_fire_time(None, START)
    assert Cron(job.rule["cron"], tz=name).next_after(START) == at


def test_an_interval_goes_on_from_its_next_run() -> None:
    job = only(IntervalTrigger(minutes=90, timezone=BERLIN, end_date=START + timedelta(days=1), jitter=30))
    assert job.rule == {
        "every": "90m",
        "since": "start",
        "start": START,
        "end": START + timedelta(days=1),
        "jitter": "30s",
    }


def test_one_of_several_triggers_becomes_several_schedules() -> None:
    imported = read(OrTrigger([CronTrigger(hour=6, timezone="UTC"), CronTrigger(hour=7, timezone=BERLIN)]))
    assert [(job.name, job.rule["cron"], job.rule["tz"]) for job in imported.jobs] == [
        ("one-1", "0 6 * * *", "UTC"),
        ("one-2", "0 7 * * *", "Europe/Berlin"),
    ]
    assert "its trigger is one of 2; each is a schedule of its own" in [note.text for note in imported.notes]


class OwnTrigger(BaseTrigger):  # type: ignore[misc]
    def get_next_fire_time(self, previous_fire_time: Any, now: Any) -> Any:
        return None


@pytest.mark.parametrize(
    ("trigger", "words"),
    [
        (CronTrigger(week=5, timezone="UTC"), "names weeks of the year, for which there is no rule"),
        (CronTrigger(day="2nd fri", day_of_week="fri", timezone="UTC"), "joins places of weekdays in the month"),
        (CronTrigger(day="*/5,2nd fri", timezone="UTC"), "joins places of weekdays in the month"),
        (CronTrigger(hour=1, timezone=timezone(timedelta(hours=5, minutes=30))), "its zone UTC+05:30 has no name"),
        (CronTrigger(month=2, day=30, timezone="UTC"), "its trigger makes no rule: '30' in the day-of-month field"),
        (AndTrigger([CronTrigger(hour=6, timezone="UTC")]), "combining.AndTrigger', for which there is no rule"),
        (CalendarIntervalTrigger(months=1, timezone="UTC"), "CalendarIntervalTrigger', for which there is no rule"),
        (OwnTrigger(), "test_apscheduler.OwnTrigger', which is none of APScheduler's own; write a rule for it"),
    ],
)
def test_a_trigger_without_an_equal_rule_is_reported(trigger: BaseTrigger, words: str) -> None:
    assert words in lost(trigger)


# --- options


def test_options_of_a_job_become_those_of_a_schedule() -> None:
    trigger = CronTrigger(hour=6, timezone="UTC")
    assert only(trigger, misfire_grace_time=60, coalesce=True, max_instances=1).options == {"grace": "1m"}
    assert only(trigger, misfire_grace_time=None, coalesce=False).options == {"catch_up": "all"}
    imported = read(trigger, misfire_grace_time=None, max_instances=4)
    assert imported.jobs[0].options == {"overlap": "allow", "concurrency": 4}
    assert imported.notes[0].text == (
        "max_instances=4: it has a task of its own, whose limit it is; what is too much waits here, and is not dropped"
    )


def test_options_that_are_lost_are_reported() -> None:
    imported = read(CronTrigger(hour=6, timezone="UTC"), executor="processpool", next_run_time=None)
    assert [(note.where, note.kind) for note in imported.notes] == [
        ("job 'one'", "dropped"),
        ("job 'one'", "check"),
        ("all jobs", "dropped"),
    ]
    said = [note.text for note in imported.notes]
    assert "for a process of its own give its task process=True" in said[0]
    assert said[1] == "it is paused there and would run here; after the first start: `evertick pause one`"
    assert said[2].startswith("misfire_grace_time=1 of 1 job is APScheduler's default")


# --- functions and arguments


def test_functions_that_cannot_be_imported_are_reported() -> None:
    trigger = CronTrigger(hour=6, timezone="UTC")
    row = stored(trigger)
    for function, words in (
        ("__main__:tidy", "its function 'tidy' is in the program itself; move it into a module"),
        ("shop:tidy(); import os", "cannot be imported by its name"),
        ("shop:class", "cannot be imported by its name"),
        ("shop", "cannot be imported by its name"),
        (None, "cannot be imported by its name"),
    ):
        state = pickle.loads(row.state) | {"func": function}
        [note] = read_jobs([StoredJob(id="one", state=pickle.dumps(state))]).lost
        assert words in note.text


def test_arguments_that_only_a_pickle_can_keep_are_reported_with_their_class() -> None:
    trigger = CronTrigger(hour=6, timezone="UTC")
    text = lost(trigger, shop_jobs.remind, args=[{"who": [shop_jobs.Customer()]}])
    assert (
        "its arguments hold an object of shop_jobs.Customer, and arguments here are JSON-like data; pass an id" in text
    )
    assert "an object of shop_jobs.Stock" in lost(trigger, shop_jobs.Stock().move, args=["right"])


def test_arguments_beyond_json_are_written_and_told() -> None:
    when = datetime(2026, 1, 1, tzinfo=BERLIN)
    kwargs = {"a": when, "b": timedelta(hours=1), "c": {3}, "d": date(2026, 1, 1), "e": time(9), "f": b"x", "g": 1.5}
    imported = read(CronTrigger(hour=6, timezone="UTC"), lambda_free, kwargs=kwargs)
    assert "annotate the parameters, so that they come back" in imported.notes[0].text
    text = to_python(imported, [])
    assert "'a': datetime.datetime.fromisoformat('2026-01-01T00:00:00+01:00')" in text
    assert "'b': datetime.timedelta(days=0, seconds=3600, microseconds=0), 'c': [3]" in text
    compile(text, "jobs.py", "exec")


def lambda_free(**kwargs: Any) -> None: ...


def test_two_functions_of_one_name_are_distinguished() -> None:
    row = stored(CronTrigger(hour=6, timezone="UTC"))
    rows = []
    for number, function in enumerate(("a.jobs:tidy", "b.jobs:tidy", "tidy.x:scheduler", "datetime:datetime.now")):
        state = pickle.loads(row.state) | {"func": function}
        rows.append(StoredJob(id=f"j{number}", state=pickle.dumps(state)))
    text = to_python(read_jobs(rows), [])
    names = re.findall(r"^(\w+) = scheduler.task\(name='(\w+)'\)\((.*)\)$", text, re.MULTILINE)
    assert names == [
        ("jobs_tidy", "jobs_tidy", "a.jobs.tidy"),
        ("b_jobs_tidy", "b_jobs_tidy", "b.jobs.tidy"),
        ("x_scheduler", "x_scheduler", "tidy.x.scheduler"),
        ("now", "now", "datetime.datetime.now"),
    ]


# --- pickles of anybody


class Bomb:
    """A pickle that runs a command when it is loaded."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def __reduce__(self) -> Any:
        return os.system, (f"touch {self._path}",)


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_nothing_in_a_pickle_is_run(tmp_path: Path, protocol: int) -> None:
    mark = tmp_path / "mark"
    data = pickle.dumps({"version": 1, "func": "a:b", "trigger": Bomb(mark), "args": (), "kwargs": {}}, protocol)
    pickle.loads(data)
    assert mark.exists(), "the bomb goes off where it can"
    mark.unlink()
    [note] = read_jobs([StoredJob(id="one", state=data)]).lost
    assert re.search(r"its trigger is '(posix|os|nt)\.system', which is none of APScheduler's own", note.text)
    assert not mark.exists()


def test_nothing_is_imported_by_the_name_of_a_trigger(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """APScheduler's own triggers import what their pickles name."""
    (tmp_path / "evil.py").write_text(f"open({str(tmp_path / 'mark')!r}, 'w')\nclass Trigger: pass\n")
    state = {"version": 1, "jitter": None, "triggers": [("evil:Trigger", {})]}
    monkeypatch.setattr(OrTrigger, "__getstate__", lambda _: state)
    data = pickle.dumps({"version": 1, "func": "a:b", "trigger": OrTrigger([]), "args": (), "kwargs": {}})
    code = (
        "import sys\nsys.path.insert(0, sys.argv[1])\n"
        "from evertick.imports.apscheduler import StoredJob, read_jobs\n"
        "print(read_jobs([StoredJob(id='one', state=bytes.fromhex(sys.argv[2]))]).lost[0].text)\n"
        "print(sorted(name for name in sys.modules if name.split('.')[0] in ('evil', 'apscheduler')))\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path), data.hex()], capture_output=True, text=True, timeout=60
    )
    assert done.stdout.splitlines() == [
        "its trigger is 'evil.Trigger', which is none of APScheduler's own; write a rule for it",
        "[]",
    ], done.stderr
    assert not (tmp_path / "mark").exists()


@pytest.mark.parametrize("data", [b"", b"nonsense", pickle.dumps(5), pickle.dumps({"version": 2}), b"\x80\x05."])
def test_a_row_that_is_no_job_is_reported_and_the_others_are_read(data: bytes) -> None:
    good = stored(CronTrigger(hour=6, timezone="UTC"), misfire_grace_time=None)
    imported = read_jobs([StoredJob(id="bad", state=data), good])
    assert [job.name for job in imported.jobs] == ["one"]
    assert [note.where for note in imported.lost] == ["job 'bad'"]


def test_a_pickle_without_bounds_is_refused() -> None:
    with pytest.raises(InvalidInput, match="more than 1048576"):
        read_pickle(pickle.dumps("x" * 1024 * 1024))


def test_zones_of_other_libraries_are_seen_and_not_made() -> None:
    pytz = b"\x80\x02cpytz\n_p\n(X\r\x00\x00\x00Europe/BerlinM\x10\x0eK\x00X\x03\x00\x00\x00CETtR."
    assert read_pickle(pytz) == BERLIN
    assert read_pickle(b"\x80\x02cpytz\n_UTC\n)R.") == ZoneInfo("UTC")
    odd = b"\x80\x02cdateutil.tz.tz\ntzlocal\n)\x81}X\x01\x00\x00\x00aK\x01sb."
    seen = read_pickle(odd)
    assert isinstance(seen, PickledObject)
    assert (seen.kind, seen.state) == ("dateutil.tz.tz.tzlocal", {"a": 1})
    assert list(objects_in([datetime(2026, 1, 1, tzinfo=seen)])) == [seen]


# --- the table


def test_a_missing_table_is_reported(tmp_path: Path) -> None:
    with pytest.raises(NotFound, match="there is no file"):
        read_table(f"sqlite:///{tmp_path}/missing.db", "apscheduler_jobs")
    with closing(sqlite3.connect(tmp_path / "empty.db")) as connection:
        connection.execute("CREATE TABLE t (x)")
    url = f"sqlite:///{tmp_path}/empty.db"
    with pytest.raises(Refused, match="no such table: apscheduler_jobs; name the table with --table"):
        read_table(url, "apscheduler_jobs")
    for table in ("jobs; DROP TABLE t", 'a"b', "", "a.b.c"):
        with pytest.raises(InvalidInput, match="is no name of a table"):
            read_table(url, table)


def test_a_table_of_another_name_is_read(tmp_path: Path) -> None:
    with store_in(f"sqlite:///{tmp_path}/jobs.db", tablename="shop_jobs") as store:
        store.add_job(made("hourly", IntervalTrigger(hours=1)))
    [row] = read_table(f"sqlite:///{tmp_path}/jobs.db", "shop_jobs")
    assert read_jobs([row]).jobs[0].name == "hourly"


def test_a_table_in_postgresql_is_read(postgres_dsn: str) -> None:
    url = postgres_dsn.replace("postgresql://", "postgresql+psycopg://", 1)
    with store_in(url, tablename="aps_import_test") as store:
        try:
            store.add_job(made("hourly", IntervalTrigger(hours=1)))
            [row] = read_table(url, "public.aps_import_test")
            assert read_jobs([row]).jobs[0].name == "hourly"
            with pytest.raises(Refused, match="the jobs cannot be read from 'no_such_table'"):
                read_table(url, "no_such_table")
        finally:
            store.jobs_t.drop(store.engine)
