"""The command forecast: the picture, the busiest minutes, collisions and suggestions."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from xml.etree import ElementTree

import pytest

from evertick import Cron, Every, Once, Scheduler, parse_when
from evertick.cli.show.heatmap import _Scale, _short
from evertick.cli.show.words import now

SVG = "{http://www.w3.org/2000/svg}"


@pytest.fixture
def twelve_at_nine(tmp_path, monkeypatch) -> str:
    """Twelve reports at nine, one job of every second, one that is paused."""
    url = f"sqlite:///{tmp_path}/herd.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    monkeypatch.setenv("TZ", "UTC")
    scheduler = Scheduler(url, concurrency=0)
    for number in range(12):
        labels = {"team": "sales" if number < 3 else "stock"}
        scheduler.sync.add(key=f"report-{number:02}", when=Cron("0 9 * * *"), task="make_report", labels=labels)
    scheduler.sync.add(key="pulse", when=Every("1s"), task="beat")
    scheduler.sync.add(key="asleep", when=Cron("0 9 * * *"), task="make_report")
    scheduler.sync.pause("asleep")
    scheduler.sync.close()
    return url


def test_the_forecast_has_a_row_per_day_and_a_column_per_hour(twelve_at_nine, evertick):
    lines = evertick("forecast", "--days", "3").stdout.splitlines()
    assert lines[0].split() == ["DAY", *(f"{hour:02}" for hour in range(24)), "FIRES"]
    tomorrow = lines[2].split()
    assert tomorrow[2 + 9] == "3612"
    assert tomorrow[2 + 10] == "3600"
    assert tomorrow[-1] == str(86_400 + 12)
    assert lines[4] == ""


def test_a_moved_moment_is_drawn_at_its_new_time(twelve_at_nine, ask):
    day = (now() + timedelta(days=1)).date()
    before = ask("forecast", "--days", "3", "--key", "report-00")["days"]
    ask("move", "report-00", f"{day} 09:00", "--to", f"{day} 17:00")
    after = ask("forecast", "--days", "3", "--key", "report-00")["days"]
    assert (before[1]["hours"][9], before[1]["hours"][17]) == (1, 0)
    assert (after[1]["hours"][9], after[1]["hours"][17]) == (0, 1)
    # Also with a dense rule, and with a rule without further fires.
    scheduler = Scheduler(concurrency=0)
    once = (now() + timedelta(hours=1)).replace(microsecond=0)
    scheduler.sync.add(key="once", when=Once(once), task="make_report")
    scheduler.sync.move("once", once, to=datetime(day.year, day.month, day.day, 18, tzinfo=UTC))
    scheduler.sync.close()
    assert ask("forecast", "--days", "3", "--key", "once")["days"][1]["hours"][18] == 1
    ask("move", "pulse", f"{day} 09:00:00", "--to", f"{day} 18:00")
    hours = ask("forecast", "--days", "3", "--key", "pulse")["days"][1]["hours"]
    assert (hours[9], hours[18]) == (3_599, 3_601)


def test_as_json_it_has_days_minutes_collisions_and_suggestions(twelve_at_nine, ask):
    made = ask("forecast", "--days", "2")
    assert made["days"][1]["hours"][9] == 3_612
    assert made["busiest"][0]["fires"] == 72
    largest = made["collisions"][0]
    assert len(largest["keys"]) == 13
    assert "asleep" not in largest["keys"]
    assert [each["key"] for each in made["suggestions"]][:2] == ["report-00", "report-01"]
    assert {each["instead"] for each in made["suggestions"]} == {"H 9 * * *; tz=UTC"}


def test_every_suggested_rule_removes_the_collision(twelve_at_nine, ask):
    suggested = {each["key"]: each["instead"] for each in ask("forecast")["suggestions"]}
    assert len(suggested) >= 10
    scheduler = Scheduler(concurrency=0)
    for key, text in suggested.items():
        scheduler.sync.update(key, when=parse_when(text))
    scheduler.sync.close()
    assert len(ask("forecast")["collisions"][0]["keys"]) < 6


def test_the_forecast_can_be_limited_by_key_or_label(twelve_at_nine, ask, evertick):
    assert ask("forecast", "--days", "2", "--label", "team=sales")["days"][1]["fires"] == 3
    assert ask("forecast", "--days", "2", "--key", "report-00", "--key", "report-05")["days"][1]["fires"] == 2
    result = evertick("forecast", "--key", "nope")
    assert result.exit_code == 1
    assert result.stderr.startswith("error: there is no schedule 'nope'")


def test_the_hours_are_in_the_requested_zone(twelve_at_nine, ask):
    made = ask("forecast", "--days", "2", "--label", "team=sales", "--tz", "Asia/Tokyo")
    assert made["days"][1]["hours"][18] == 3
    assert made["since"].endswith("+09:00")


def test_a_forecast_without_fires_prints_a_note(twelve_at_nine, evertick):
    result = evertick("forecast", "--app", "other")
    assert (result.exit_code, result.stdout) == (0, "")
    assert result.stderr == "no schedule of app 'other' that matches will fire\n"


def test_the_picture_is_well_formed_with_a_title_a_legend_and_no_script(twelve_at_nine, evertick, tmp_path):
    result = evertick("forecast", "--days", "2", "--svg", str(tmp_path / "f.svg"))
    assert result.exit_code == 0
    root = ElementTree.parse(tmp_path / "f.svg").getroot()
    assert root.tag == f"{SVG}svg"
    assert root.find(f"{SVG}title").text == "Forecast of app default"
    assert "busiest minute" in root.find(f"{SVG}desc").text
    cells = [rect for rect in root.iter(f"{SVG}rect") if rect.find(f"{SVG}title") is not None]
    assert len(cells) == 2 * 24
    assert any("3,612 fires" in cell.find(f"{SVG}title").text for cell in cells)
    texts = [text.text for text in root.iter(f"{SVG}text")]
    assert "per hour" in texts
    assert not [tag for tag in root.iter() if tag.tag == f"{SVG}script" or any(a[:2] == "on" for a in tag.attrib)]
    assert all(
        0 <= float(rect.get("x", 0)) + float(rect.get("width")) <= float(root.get("width"))
        for rect in root.iter(f"{SVG}rect")
    )


def test_user_text_in_the_picture_is_escaped(twelve_at_nine, evertick, tmp_path):
    path = tmp_path / "f.svg"
    evertick("forecast", "--app", "<script>", "--svg", str(path))
    assert ElementTree.parse(path).getroot().find(f"{SVG}title").text == "Forecast of app <script>"


def test_a_picture_that_cannot_be_written_is_an_error(twelve_at_nine, evertick, tmp_path):
    result = evertick("forecast", "--svg", str(tmp_path / "nowhere" / "f.svg"))
    assert result.exit_code == 1
    assert re.fullmatch(
        r"error: '.*f.svg' cannot be written \(No such file or directory\); name another .*\n", result.stderr
    )


def _plain(text: str) -> list[str]:
    return re.sub(r"\x1b\[[0-9;]*m", "", text).splitlines()


def test_a_wide_terminal_shows_numbers_and_a_narrow_one_shades(twelve_at_nine, on_terminal):
    wide = on_terminal(twelve_at_nine, "forecast", "--days", "2", "--label", "team=stock", COLUMNS="120")
    assert "\x1b[" in wide
    tomorrow = _plain(wide)[2]
    assert re.fullmatch(r"\w{3} \S+ (· {2}){9} 9 (· {2}){14}  9", tomorrow.rstrip())
    narrow = _plain(on_terminal(twelve_at_nine, "forecast", "--days", "2", "--label", "team=stock", COLUMNS="80"))
    assert re.fullmatch(r"\w{3} \S+ (· ){9}██(· ){14}  9", narrow[2].rstrip())
    assert narrow[0].split() == [*(f"{hour:02}" for hour in range(0, 24, 2)), "fires"]
    assert max(len(line) for line in narrow) <= 80


@pytest.mark.parametrize(
    ("least", "most", "steps"),
    [
        (1, 1, [(0, 1, 1)]),
        (1, 5, [(0, 1, 1), (1, 2, 2), (2, 3, 3), (3, 4, 4), (4, 5, 5)]),
        (9, 25, [(0, 1, 5), (1, 6, 10), (2, 11, 15), (3, 16, 20), (4, 21, 25)]),
        (1, 3_600, [(0, 1, 5), (1, 6, 26), (2, 27, 136), (3, 137, 699), (4, 700, 3_600)]),
        (0, 0, []),
    ],
)
def test_the_legend_covers_every_count_once_on_a_linear_or_logarithmic_scale(least, most, steps):
    assert list(_Scale(least, most).steps()) == steps


@pytest.mark.parametrize(
    ("count", "shown"), [(7, "7"), (999, "999"), (1_000, "1k"), (3_600, "4k"), (999_600, "1M"), (3_600_000, "4M")]
)
def test_a_count_is_shown_in_three_characters(count, shown):
    assert _short(count) == shown
