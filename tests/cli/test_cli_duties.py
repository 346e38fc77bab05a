"""`evertick duties`: duties and their holders."""

from __future__ import annotations

import asyncio
import json
import re
from datetime import timedelta
from pathlib import Path

import msgspec
import pytest

from evertick import Duty, Scheduler
from evertick.cli.command.nodes import duty_columns, duty_row, next_words
from evertick.cli.show.words import now
from evertick.explain.availability import HaLine


def test_duties_lists_current_and_former_holders(database, evertick, ask):
    (duty,) = ask("duties")
    assert (duty["name"], duty["node"], duty["term"]) == ("evertick.prune", None, 1)
    assert "evertick.prune  no node" in evertick("duties").stdout


async def test_duties_shows_holder_term_and_error_of_a_live_node(tmp_path: Path, evertick) -> None:
    url = f"sqlite:///{tmp_path}/duty.db"
    scheduler = Scheduler(url, node_name="shop@host")

    @scheduler.duty("fragile", every="1h")
    async def fragile() -> None:
        raise ValueError("no paper left")

    async with scheduler:
        async with asyncio.timeout(20):
            while not any(duty.error for duty in await scheduler.duties()):
                await asyncio.sleep(0.01)
        table = await asyncio.to_thread(evertick, "duties", "--database", url)
        listed = await asyncio.to_thread(evertick, "duties", "--json", "--database", url)
    assert "fragile         shop@host     1" in table.stdout
    assert "ValueError: no paper" in table.stdout
    shown = {duty["name"]: duty for duty in json.loads(listed.stdout)}
    assert shown["fragile"]["error"].splitlines()[-1] == "ValueError: no paper left"
    assert shown["fragile"]["node_name"] == "shop@host"


def test_one_duty_is_shown_by_its_name(database, evertick, ask):
    assert ask("duties", "evertick.prune")["term"] == 1
    text = evertick("duties", "evertick.prune").stdout
    assert re.search(r"^Held by +no node$", text, re.MULTILINE)
    assert re.search(r"^Term +1, since \d{4}-", text, re.MULTILINE)
    unknown = evertick("duties", "evertick.prun")
    assert (unknown.exit_code, unknown.stdout) == (1, "")
    assert (
        unknown.stderr == "error: there is no duty 'evertick.prun' in app 'default'; did you mean 'evertick.prune'?\n"
    )


@pytest.mark.parametrize("command", ["why", "trigger", "show", "pause"])
def test_a_duty_given_as_a_schedule_key_is_recognised(database, evertick, command):
    result = evertick(command, "evertick.prune")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.endswith("; 'evertick.prune' is a duty, see `evertick duties evertick.prune`\n")


def test_an_app_without_duties_shows_how_to_declare_one(tmp_path: Path, evertick) -> None:
    url = f"sqlite:///{tmp_path}/none.db"
    Scheduler(url, concurrency=0).sync.schedules()
    result = evertick("duties", "--database", url)
    assert result.exit_code == 0
    assert "declare one with `@scheduler.duty(...)`" in result.stderr


def test_a_late_tick_is_overdue_and_a_duty_without_a_holder_has_no_next_tick():
    duty = Duty(
        name="rebuild",
        node="n1",
        node_name="web",
        term=1,
        since=now(),
        ticked_at=None,
        next_at=now() - timedelta(seconds=3, milliseconds=500),
        error='Traceback (most recent call last):\n  File "x.py", line 1, in f\nValueError: no paper',
    )
    cells = dict(zip([column.title for column in duty_columns()], duty_row(duty, now()), strict=True))
    assert cells["NEXT TICK"] in ("3 s overdue", "4 s overdue")
    assert cells["ERROR"] == "ValueError: no paper"
    unheld = msgspec.structs.replace(duty, node=None, node_name=None)
    assert dict(zip(cells, duty_row(unheld, now()), strict=True))["NEXT TICK"] == ""
    line = HaLine(
        kind="duty", name="rebuild", mode="duty", does="", holders=(), next_at=now() + timedelta(minutes=1), replicas=""
    )
    assert next_words(line, now()) == "-"
