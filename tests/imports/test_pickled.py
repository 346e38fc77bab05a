"""Pickles of an attacker: read in bounded time, reported by name, without an effect on other rows."""

from __future__ import annotations

import pickle
import random
import sqlite3
import struct
import time
from contextlib import closing
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
import shop_jobs
from apscheduler.schedulers.background import BackgroundScheduler
from apscheduler.triggers.combining import OrTrigger
from apscheduler.triggers.cron import CronTrigger
from apscheduler.triggers.interval import IntervalTrigger

from evertick import InvalidInput
from evertick.imports import apscheduler
from evertick.imports.apscheduler import StoredJob, read_jobs, read_table
from evertick.imports.pickle_reader import BYTES_MAX, PickledObject, objects_in, read_pickle
from evertick.imports.python import to_python

# CPU seconds on a slow machine; without the limits it takes hours, or all memory.
SECONDS_MAX = 10.0


def text(value: str) -> bytes:
    return b"X" + struct.pack("<I", len(value.encode())) + value.encode()


def doubled(times: int, *, as_tuple: bool) -> bytes:
    """Each list contains the one before twice."""
    one = b"\x86" if as_tuple else b"e"
    steps = b"".join(
        (b"" if as_tuple else b"](") + b"h" + bytes([at]) + b"h" + bytes([at]) + one + b"q" + bytes([at + 1])
        for at in range(times)
    )
    return b"\x80\x02]q\x00" + steps if not as_tuple else b"\x80\x02)q\x00" + steps


HOSTILE = {
    "lists that hold the one before twice": doubled(40, as_tuple=False) + b".",
    "tuples that hold the one before twice": doubled(40, as_tuple=True) + b".",
    "such a tuple as a key": b"\x80\x02}" + doubled(60, as_tuple=True)[2:] + b"K\x01s.",
    "such a tuple in a set": b"\x80\x04\x8f(" + doubled(60, as_tuple=True)[2:] + b"\x90.",
    "such a tuple in a frozenset": b"\x80\x04(" + doubled(60, as_tuple=True)[2:] + b"\x91.",
    "a tuple that is deep": b"\x80\x02)" + b"\x85" * 100_000 + b".",
    "a list that is deep": b"\x80\x02" + b"]" * 60_000 + b"a" * 59_999 + b".",
    "a deep tuple as a key": b"\x80\x02})" + b"\x85" * 100_000 + b"K\x01s.",
    "a deep tuple in a set": b"\x80\x04\x8f()" + b"\x85" * 100_000 + b"\x90.",
    "a list in itself": b"\x80\x02]q\x00h\x00a.",
    "an object in itself": b"\x80\x02cm\nn\n)\x81q\x00}" + text("me") + b"h\x00sb.",
    "bytes that are not there": b"\x80\x04\x8e" + struct.pack("<Q", 2**40) + b".",
    "a buffer that is not there": b"\x80\x05\x96" + struct.pack("<Q", 2**40) + b".",
    "a frame that is not there": b"\x80\x04\x95" + struct.pack("<Q", 2**40) + b"N",
    "a number of many digits": b"I" + b"9" * 100_000 + b"\n.",
    "a number of many bits": b"\x80\x02\x8b" + struct.pack("<i", 100_000) + b"\x7f" * 100_000 + b".",
    "a long text many times": b"\x80\x02" + text("x" * 100_000) + b"q\x00](" + b"h\x00" * 1_000 + b"e.",
    "a long list made to sets many times": (
        b"\x80\x02cbuiltins\nset\nq\x01](" + b"K\x00" * 50_000 + b"e\x85q\x00" + b"h\x01h\x00R0" * 20_000 + b"N."
    ),
    "many keys that are no text": (
        b"\x80\x02}(" + b"".join(b"J" + struct.pack("<i", n) + b"\x85N" for n in range(5_000)) + b"u."
    ),
    "many steps": b"\x80\x02" + b"N0" * 300_000 + b"N.",
    "many zones": b"\x80\x02czoneinfo\nZoneInfo\nq\x00" + b"".join(
        b"h\x00" + text(f"Zone/{n}") + b"\x85R0" for n in range(20_000)
    ) + b"N.",
    "steps that nobody needs": b"\x80\x02\x82\x01.",
    "no end": b"\x80\x02N",
    "nothing": b"",
    "nothing on the stack": b".",
    "a mark that is not there": b"t.",
    "a call of a number": b"\x80\x02K\x01)R.",
    "a call of a list": b"\x80\x02])R.",
    "a zone of a list": b"\x80\x02cdatetime\ndatetime\n]]\x86R.",
    "a date out of reach": b"\x80\x02cdatetime\ntimedelta\nJ\xff\xff\xff\x7f\x85R.",
    "an hour that no day has": b"\x80\x04cdatetime\ndatetime\nC\n\x07\xea\x06\x01\xec\x1e\x00\x00\x00\x00\x85R.",
    "a day that no month has": b"\x80\x04cdatetime\ndate\nC\x04\x07\xea\x06\xff\x85R.",
    "half a character": b"\x80\x02X\x03\x00\x00\x00\xed\xa0\x80.",
    "too many bytes": b"N" * (BYTES_MAX + 1),
}  # fmt: skip


@pytest.mark.parametrize("data", HOSTILE.values(), ids=HOSTILE)
def test_a_hostile_pickle_is_refused_in_time(data: bytes) -> None:
    before = time.process_time()
    with pytest.raises(InvalidInput):
        read_pickle(data)
    assert time.process_time() - before < SECONDS_MAX


def test_a_place_far_beyond_the_end_of_the_memo_takes_no_memory() -> None:
    """The module pickle allocates all memo entries up to it: 34 GB for these seven bytes."""
    assert read_pickle(b"\x80\x02Nr\xff\xff\xff\x7f.") is None


def test_nothing_that_a_pickle_names_is_called(tmp_path: Path) -> None:
    made = tmp_path / "made"

    class Evil:
        def __reduce__(self) -> Any:
            return Path.touch, (made,)

    for protocol in range(pickle.HIGHEST_PROTOCOL + 1):
        found = list(objects_in(read_pickle(pickle.dumps([Evil()], protocol))))
        assert [type(each) for each in found] == [PickledObject]
    assert not made.exists()


@pytest.mark.parametrize("protocol", range(pickle.HIGHEST_PROTOCOL + 1))
def test_plain_data_is_unchanged_in_every_protocol(protocol: int) -> None:
    data = {
        "text": ["ä\n", b"\x00\xff", "x" * 300],
        "numbers": (1, -1, 255, 65_536, 2**40, -(2**63), 1.5, float("inf"), True, False, None),
        "sets": [{1, 2}, frozenset({"a", (1, 2)})],
        "times": [datetime(2026, 1, 1, 12, tzinfo=UTC), date(2026, 1, 1), timedelta(days=-1, seconds=3)],
        "nested": [[], (), {}, set(), [[(({"a": [1]},),)]]],
    }
    assert read_pickle(pickle.dumps(data, protocol)) == data
    same = [1]
    again = read_pickle(pickle.dumps([same, same], protocol))
    assert again[0] is again[1]


def stored(trigger: Any, function: Any = shop_jobs.tidy, **options: Any) -> bytes:
    job = BackgroundScheduler(timezone="UTC").add_job(function, trigger, id="one", **options)
    for name, value in {"misfire_grace_time": 1, "coalesce": True, "max_instances": 1}.items():
        if not hasattr(job, name):
            setattr(job, name, value)
    job.next_run_time = datetime(2026, 6, 1, 6, 30, tzinfo=UTC)
    return pickle.dumps(job.__getstate__(), pickle.HIGHEST_PROTOCOL)


def triggers() -> list[bytes]:
    cron = CronTrigger(hour="8-10", minute="*/5", day_of_week="mon-fri", timezone="Europe/Berlin")
    return [
        stored(cron, shop_jobs.remind, args=[1, ["two", 3.0, None]]),
        stored(IntervalTrigger(minutes=5, timezone="UTC")),
        stored(OrTrigger([cron, CronTrigger(day="last", timezone="UTC")])),
    ]


def with_days(first: int, last: int, step: int | None = None) -> bytes:
    """A job on days of the week that no trigger of APScheduler would make."""
    trigger = CronTrigger(day_of_week="mon-fri", timezone="UTC")
    [expression] = next(field for field in trigger.fields if field.name == "day_of_week").expressions
    expression.first, expression.last, expression.step = first, last, step
    return stored(trigger)


BAD = {
    "days of no week": with_days(0, 2**60),
    "a step backwards": with_days(0, 4, -1),
    "a step that is no number": with_days(0, 4, "x"),  # type: ignore[arg-type]
    "a trigger in itself": b"\x80\x02}q\x00(" + text("trigger") + b"h\x00" + text("func") + text("m:f") + b"u.",
    "fields that are no fields": stored(IntervalTrigger(minutes=1)).replace(b"IntervalTrigger", b"DateTrigger"),
    **{name: HOSTILE[name] for name in ("lists that hold the one before twice", "a tuple that is deep")},
}


@pytest.mark.parametrize("data", BAD.values(), ids=BAD)
def test_a_bad_row_is_reported_and_the_others_are_imported(tmp_path: Path, data: bytes) -> None:
    good = triggers()[0]
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE apscheduler_jobs (id TEXT PRIMARY KEY, next_run_time REAL, job_state BLOB)")
        rows = [("a", good), ("b", data), ("c", good), ("d", 10**12), ("e", "text"), ("f", None)]
        connection.executemany("INSERT INTO apscheduler_jobs VALUES (?, 1, ?)", rows)
        connection.execute("INSERT INTO apscheduler_jobs VALUES (CAST(x'67ff' AS TEXT), 1, ?)", [good])
        connection.commit()
    before = time.process_time()
    imported = read_jobs(read_table(f"sqlite:///{tmp_path}/jobs.db", "apscheduler_jobs"))
    assert [job.name for job in imported.jobs] == ["a", "c"]
    assert [note.where for note in imported.lost] == [f"job {name!r}" for name in ("b", "d", "e", "f", "g\udcff")]
    compile(to_python(imported, []), "jobs", "exec")
    assert time.process_time() - before < SECONDS_MAX


def test_a_table_of_much_data_is_refused_before_it_is_all_in_memory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(apscheduler, "_STATES_MAX_BYTES", 1_000)
    with closing(sqlite3.connect(tmp_path / "jobs.db")) as connection:
        connection.execute("CREATE TABLE apscheduler_jobs (id TEXT, job_state BLOB)")
        connection.executemany("INSERT INTO apscheduler_jobs VALUES (?, zeroblob(400))", [("a",), ("b",), ("c",)])
        connection.commit()
    with pytest.raises(InvalidInput, match="'apscheduler_jobs' has more than 1000 bytes; import it in parts"):
        read_table(f"sqlite:///{tmp_path}/jobs.db", "apscheduler_jobs")


def test_a_trigger_of_many_is_refused() -> None:
    many = stored(OrTrigger([IntervalTrigger(minutes=n, timezone="UTC") for n in range(1, 102)]))
    [note] = read_jobs([StoredJob(id="x", state=many)]).lost
    assert note.text == "the trigger joins more than 100 triggers; write schedules for them"


def test_thousands_of_mutations_of_jobs_end_in_time_as_a_job_or_as_a_note() -> None:
    chance, seeds = random.Random(20_261_119), triggers()
    before, outcomes = time.process_time(), {"job": 0, "note": 0}
    for _ in range(3_000):
        data = bytearray(chance.choice(seeds))
        for _ in range(chance.choice((1, 1, 2, 4, 16))):
            at = chance.randrange(len(data))
            match chance.randrange(5):
                case 0:
                    data[at] = chance.randrange(256)
                case 1:
                    data[at] ^= 1 << chance.randrange(8)
                case 2:
                    del data[at : at + chance.randrange(1, 9)]
                case 3:
                    data[at:at] = data[chance.randrange(len(data)) :][: chance.randrange(1, 65)]
                case _:
                    data[at:at] = bytes(chance.choices(b"(0123.2]})l}td\x85\x86\x87h\x94ReasubR\x8f\x90\x91", k=4))
            data = data or bytearray(b".")
        imported = read_jobs([StoredJob(id="x", state=bytes(data))])
        assert bool(imported.jobs) != bool(imported.lost)
        outcomes["job" if imported.jobs else "note"] += 1
        compile(to_python(imported, []), "jobs", "exec")
    assert min(outcomes.values()) > 100
    assert time.process_time() - before < 6 * SECONDS_MAX
