"""`doctor`, `status` and `top` report the same problems of one ledger."""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path

from evertick import Scheduler
from evertick.when.moment import DAY


def test_doctor_status_and_top_report_the_same_problems(tmp_path: Path, evertick) -> None:
    path = tmp_path / "shop.db"
    scheduler = Scheduler(f"sqlite:///{path}", concurrency=0)
    scheduler.sync.add("report", when="every 1h", task="make_report")
    scheduler.sync.close()
    with sqlite3.connect(path) as connection:
        # A wrong clock has put the next fire far ahead.
        connection.execute("UPDATE evertick_due SET fire_at = fire_at + ?1, at = at + ?1", (200 * DAY,))
    connection.close()
    ledger = ("--database", f"sqlite:///{path}")

    doctor = {each["check"] for each in json.loads(evertick("doctor", "--json", *ledger).stdout)}
    status = {each["check"] for each in json.loads(evertick("status", "--json", *ledger).stdout)["problems"]}
    top = {each["check"] for each in json.loads(evertick("top", "--json", *ledger).stdout)["problems"]}
    assert doctor == status == top
    assert {"no_node", "clock_left_behind"} <= top
