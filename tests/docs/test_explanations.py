"""The explanation pages say what the code does, where that can be compared."""

from __future__ import annotations

import re
from datetime import datetime
from zoneinfo import ZoneInfo

import msgspec
import pytest
from croniter import croniter
from cronsim import CronSim
from pages import ROOT, doc

from evertick import Cron
from evertick.model import LOSSES_MAX, TRANSITIONS
from evertick.scheduler import Parts
from simulation.mutants import MUTANTS
from simulation.test_simulation import SEEDS

PROTOCOL = doc("explanation/protocol.md")
TIME = doc("explanation/time.md")
BERLIN = ZoneInfo("Europe/Berlin")
EXPRESSION = "30 2 * * *"


def test_the_table_of_states_has_every_legal_transition_and_no_other() -> None:
    rows = re.findall(r"^\| `(\w+)` \| `(\w+)` \| (.+) \|$", PROTOCOL, re.MULTILINE)
    legal = {(before.value, after.value) for before, afters in TRANSITIONS.items() for after in afters}
    assert sorted((before, after) for before, after, _ in rows) == sorted(legal)
    assert all(when.strip() for _, _, when in rows)


def test_the_number_of_losses_that_end_a_run_is_the_one_on_the_page() -> None:
    words = {2: "second", 3: "third", 4: "fourth"}
    assert f"after the {words[LOSSES_MAX]} the run ends as lost" in PROTOCOL


def test_the_numbers_on_the_page_about_testing_are_not_too_great() -> None:
    page = " ".join(doc("explanation/testing.md").split())
    conformance = (ROOT / "src/evertick/testing/conformance").glob("*.py")
    tests = sum(len(re.findall(r"def test_", file.read_text(encoding="utf-8"))) for file in conformance)
    assert "more than two hundred tests" in page
    assert tests > 200
    assert "more than eighty of them" in page
    assert len(MUTANTS) > 80
    assert "A test run goes through more than sixty stories" in page
    assert "`sh run simulate --from 100000 --minutes 30`" in page
    assert len(SEEDS) > 60


def moments(tool: str, day: int, month: int) -> list[datetime]:
    """Those of this tool on that day."""
    eve = datetime(2026, month, day - 1, 12, tzinfo=BERLIN)
    if tool == "cronsim":
        simulation = CronSim(EXPRESSION, eve)
        found = [next(simulation) for _ in range(3)]
    elif tool == "croniter":
        walk = croniter(EXPRESSION, eve)
        found = [walk.get_next(datetime) for _ in range(3)]
    else:
        rule = {} if tool == "Evertick" else {"dst": tool}
        found = Cron(EXPRESSION, tz="Europe/Berlin", **rule).upcoming(eve, 3)  # type: ignore[arg-type]
    return [moment for moment in found if (moment.month, moment.day) == (month, day)]


def in_words(found: list[datetime]) -> tuple[str, str]:
    """As the table says it, when the clock goes forward and when it goes back."""
    if not found:
        return "not at all", "not at all"
    both = "both times" if len(found) == 2 else "the first time"
    return f"{found[0]:%H:%M}", f"{found[0]:%H:%M} {both}"


@pytest.mark.parametrize("tool", ["Evertick", "cronsim", "croniter", "skip", "shift", "wall"])
def test_the_table_of_tools_tells_what_a_clock_change_does_to_a_fixed_time(tool: str) -> None:
    [row] = re.findall(
        rf'^\| (?:Evertick with `dst="{tool}"`|(?:[^|]*, )?{tool}(?:, [^|]*)?) \| ([^|]+) \| ([^|]+) \|$', TIME, re.M
    )
    assert row == (in_words(moments(tool, 29, 3))[0], in_words(moments(tool, 25, 10))[1])


def test_history_is_pruned_as_often_as_the_page_says() -> None:
    seconds = {field.name: field.default for field in msgspec.structs.fields(Parts)}["prune_seconds"]
    minutes = round(seconds / 60)
    assert f"`evertick.prune` deletes old history every {minutes} minutes" in doc("how-to/duties.md")
