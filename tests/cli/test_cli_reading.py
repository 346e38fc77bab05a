"""Commands that read the ledger."""

from __future__ import annotations

import re
import threading
from datetime import datetime, timedelta
from typing import Any

import msgspec
import pytest

from evertick import Constant, Context, Every, Run, Scheduler
from evertick.cli.show.words import distance, now, remark, took, tries
from evertick.model import Cause, Node, Reason, State, Verdict
from live_runs import every_state

READING = ["list", "history", "preview", "nodes"]


def test_list_names_every_schedule_with_its_rule_its_next_fire_and_its_last_verdict(database, evertick):
    lines = evertick("list").stdout.splitlines()
    assert lines[0].split() == ["KEY", "TASK", "RULE", "NEXT", "AT", "ZONE", "LAST", "NOTE"]
    printing, quick, report = (re.split(r"  +", line) for line in lines[1:])
    assert printing[:3] == ["print", "print_it", "cron 0 9 * * 1-5; tz=Europe/Berlin"]
    assert printing[3].startswith("in ")
    assert re.search(r" 09:00:00\+0[12]:00$", printing[4])
    assert printing[5] == "Europe/Berlin"
    assert printing[6].startswith("failed")
    assert quick[3:5] == ["paused", "-"]
    assert quick[-1] == "fires far too quickly"
    assert report[4].endswith("00Z")
    assert report[5:7] == ["UTC", "succeeded"]


def test_the_columns_of_a_listing_in_a_pipe_are_aligned_and_without_colour(database, evertick):
    lines = evertick("history").stdout.splitlines()
    assert all("\x1b" not in line for line in lines)
    place = lines[0].index("VERDICT")
    assert all(line[place - 1] == " " and line[place] != " " for line in lines[1:])


def test_list_as_json_has_the_fields_of_a_schedule(database, ask):
    schedules = {schedule["key"]: schedule for schedule in ask("list")}
    assert sorted(schedules) == ["print", "quick", "report"]
    assert schedules["quick"]["is_paused"]
    assert schedules["report"]["labels"] == {"team": "sales"}
    assert datetime.fromisoformat(schedules["report"]["next_fire_at"]).utcoffset() is not None


def test_list_is_filtered_by_labels(database, ask, evertick):
    assert [schedule["key"] for schedule in ask("list", "--label", "team=sales")] == ["report"]
    result = evertick("list", "--label", "team=absent")
    assert result.stderr == "there are no schedules with team=absent in app 'default'\n"


def test_show_prints_every_field_of_a_schedule(database, evertick):
    text = evertick("show", "print").stdout
    assert "At 09:00, Monday to Friday, in Europe/Berlin" in text
    assert re.search(r"^Next fires +\d{4}-\d\d-\d\d 09:00:00\+0[12]:00  in ", text, re.MULTILINE)
    assert re.search(r"^Finished +1 failed$", text, re.MULTILINE)
    assert "ValueError: no paper" in text


def test_the_first_next_fire_of_show_is_the_one_of_list(database, ask, evertick):
    listed = {schedule["key"]: schedule["next_fire_at"] for schedule in ask("list")}
    for key in ("report", "print"):
        upcoming = [datetime.fromisoformat(moment) for moment in ask("show", key)["upcoming"]]
        assert upcoming[0] == datetime.fromisoformat(listed[key])
        assert upcoming == sorted(set(upcoming))


def test_an_overdue_fire_is_the_first_in_show_and_list(database, ask, evertick):
    scheduler = Scheduler(concurrency=0)
    scheduler.sync.add(key="fast", when=Every("1ms"), task="make_report")
    scheduler.sync.close()
    (listed,) = (schedule for schedule in ask("list") if schedule["key"] == "fast")
    shown = ask("show", "fast")
    assert shown["upcoming"][0] == listed["next_fire_at"]
    assert len(shown["upcoming"]) == 5
    assert datetime.fromisoformat(shown["upcoming"][1]) > datetime.fromisoformat(listed["next_fire_at"])


def test_show_of_a_run_prints_every_field(database, ask, evertick):
    (run,) = ask("history", "print")
    text = evertick("show", run["id"]).stdout
    assert re.search(rf"^Run +{run['id']}$", text, re.MULTILINE)
    assert re.search(r"^Cause +trigger$", text, re.MULTILINE)
    assert re.search(r"^State +failed \(error\)$", text, re.MULTILINE)
    assert re.search(r"^Error\n  Traceback .*\n    File .*\n(?:  .*\n)*  ValueError: no paper", text, re.MULTILINE)
    assert "\x1b" not in text
    assert re.search(
        r'^Result +{"day": "monday"}$', evertick("show", ask("show", "report")["last_run_id"]).stdout, re.M
    )


def test_show_of_a_run_as_json_has_the_run_its_attempts_and_its_log(database, ask):
    (row,) = ask("history", "print")
    shown = ask("show", row["id"])
    assert set(shown) == {"run", "attempts", "log"}
    assert {"kind": "run", **shown["run"], "is_planned": False} == row


def test_show_of_a_run_has_its_earlier_attempts_its_log_its_phases_and_its_progress(tmp_path, ask, evertick):
    url = f"sqlite:///{tmp_path}/jobs.db"
    run_id = _run_with_everything(url)
    shown = ask("show", run_id, "--database", url)
    assert [(attempt["number"], attempt["reason"]) for attempt in shown["attempts"]] == [(1, "error")]
    assert [line["text"] for line in shown["log"]][-2:] == ["sorted\nand counted", "done"]
    text = evertick("show", run_id, "--database", url).stdout
    assert re.search(r"^Tries +2$", text, re.MULTILINE)
    assert re.search(r"^Progress +50% half$", text, re.MULTILINE)
    assert re.search(r"^Phases +sorting: \d\.\d+ s \(rows 2, sheets \[1,2\]\), since \d{4}-", text, re.MULTILINE)
    assert re.search(
        r"^Phases of earlier attempts\n  1  sorting: \d\.\d+ s, failed \(rows 1\), since \d", text, re.MULTILINE
    )
    assert [phase["metadata"] for phase in shown["run"]["phases"]] == [{"rows": 2, "sheets": [1, 2]}]
    [earlier] = shown["attempts"]
    assert [(phase["name"], phase["metadata"]) for phase in earlier["phases"]] == [("sorting", {"rows": 1})]
    [listed] = ask("history", "--database", url)
    assert listed["phases"] == shown["run"]["phases"]
    why = evertick("why", run_id, "--database", url).stdout
    assert re.search(r"^Phases +attempt 1, sorting: \d\.\d+ s, failed \(rows 1\)\n +sorting: \d", why, re.MULTILINE)
    assert [words.split(":")[0] for words in ask("why", run_id, "--database", url)["phases"]] == [
        "attempt 1, sorting",
        "sorting",
    ]
    assert re.search(r"^Earlier attempts\nNUMBER .*\n +1  \d{4}-.*  ConnectionError: asleep", text, re.MULTILINE)
    assert re.search(r"^Log\n(?:  .*\n)*  \d{4}-.*  info +sorted\n    and counted\n", text, re.MULTILINE)


def _run_with_everything(url: str) -> str:
    scheduler, ended = Scheduler(url), threading.Event()

    @scheduler.task(retry=Constant("1ms", attempts=2))
    def work(ctx: Context) -> None:
        with ctx.phase("sorting", {"rows": ctx.attempt}) as metadata:
            ctx.progress(0.5, "half")
            if ctx.attempt == 1:
                ctx.log("done")
                raise ConnectionError("asleep")
            metadata["sheets"] = [1, 2]
        ctx.log("sorted\nand counted")
        ctx.log("done")

    scheduler.on("succeeded", lambda event: ended.set())
    with scheduler:
        run = work.sync.enqueue()
        assert ended.wait(20)
    return run.id


def test_show_as_json_has_the_words_the_next_five_and_the_recent_rows(database, ask):
    shown = ask("show", "report")
    assert shown["words"].startswith("every hour")
    assert len(shown["upcoming"]) == 5
    assert [row["kind"] for row in shown["recent"]] == ["run"]


def test_history_as_json_distinguishes_runs_and_gaps(database, ask):
    rows = ask("history", "--limit", "100")
    assert {row["kind"] for row in rows} == {"run", "gap"}
    runs = [row for row in rows if row["kind"] == "run" and row["schedule_key"] != "quick"]
    gaps = [row for row in rows if row["kind"] == "gap"]
    fields = "id schedule_key task fire_at due_at state verdict reason cause attempts losses started_at finished_at"
    for run in runs:
        assert set(f"{fields} node fence result error".split()) <= set(run)
        assert datetime.fromisoformat(run["fire_at"]).utcoffset() is not None
    for gap in gaps:
        assert {"schedule_key", "first_at", "last_at", "count", "verdict", "reason"} <= set(gap)
        assert "fire_at" not in gap
    assert {gap["reason"] for gap in gaps} == {"paused"}
    assert {run["verdict"]: run["result"] for run in runs} == {"succeeded": {"day": "monday"}, "failed": None}


def test_history_from_later_than_until_is_refused(database, evertick):
    result = evertick("history", "--since", "1m", "--until", "2h")
    assert (result.exit_code, result.stdout) == (2, "")
    assert re.match(r"error: --since \(.*Z\) is later than --until \(.*Z\)", result.stderr)


def test_history_marks_runs_that_are_no_fires(database, evertick):
    assert 'by trigger; {"day": "monday"}' in evertick("history", "report").stdout


def some_run(evertick_ask, **changes) -> Run:
    given = next(row for row in evertick_ask("history", "report") if row["kind"] == "run")
    run = msgspec.convert({name: value for name, value in given.items() if name != "kind"}, Run)
    return msgspec.structs.replace(run, **{"cause": Cause.FIRE, "result": None, **changes})


def test_show_of_a_run_has_its_cause_and_its_losses(database, ask):
    for cause in Cause:
        # An enqueued run is shown as a call, in the column before.
        is_plain = cause in (Cause.FIRE, Cause.EVERY_NODE, Cause.ENQUEUE)
        assert remark(some_run(ask, cause=cause)) == ("" if is_plain else f"by {cause.value}")
    assert remark(some_run(ask, losses=1)) == "it was lost once, run again"
    assert remark(some_run(ask, losses=2, result=7)) == "it was lost twice, run again; 7"
    assert remark(some_run(ask, losses=3, verdict=Verdict.LOST, reason="node_died")) == "its node was lost 3 times"


def test_the_tries_column_counts_attempts_losses_and_the_current_attempt(database, ask):
    lost = {"verdict": Verdict.LOST, "reason": "node_died", "attempts": 0}
    assert tries(some_run(ask, **lost, losses=1)) == "1"
    assert tries(some_run(ask, **lost, losses=3)) == "3"
    assert tries(some_run(ask, attempts=1, losses=1)) == "2"
    assert tries(some_run(ask, attempts=1, losses=1, state=State.RUNNING, verdict=None)) == "3"
    assert tries(some_run(ask, attempts=0, verdict=Verdict.LOST, reason="not_taken")) == "0"


def test_a_lost_run_shows_a_maximum_duration(database, ask):
    ended = some_run(ask)
    times = {"started_at": ended.fire_at, "finished_at": ended.fire_at + timedelta(seconds=19)}
    assert took(some_run(ask, **times)) == "19 s"
    for reason in ("node_died", "node_gone", "no_progress"):
        assert took(some_run(ask, **times, verdict=Verdict.LOST, reason=reason)) == "up to 19 s"
    assert took(some_run(ask, **times, verdict=Verdict.LOST, reason="shutdown")) == "19 s"


def test_show_of_a_parked_run_has_the_command_to_cancel_it(database, ask):
    parked = {"id": "7", "state": State.PARKED, "verdict": None}
    assert remark(some_run(ask, **parked, reason=Reason.UNKNOWN_TASK)) == (
        "no live node knows its task; cancel it: evertick cancel 7"
    )
    assert remark(some_run(ask, **parked, error="no day")) == "no day; cancel it: evertick cancel 7"


def test_history_is_newest_first_and_bounded(database, ask):
    rows = ask("history")
    moments = [datetime.fromisoformat(row.get("fire_at") or row["last_at"]) for row in rows]
    assert moments == sorted(moments, reverse=True)
    assert ask("history", "--limit", "2") == rows[:2]
    assert ask("history", "--until", "1970-01-01T00:00:00Z") == []
    assert ask("history", "report", "--since", "1h") == [row for row in rows if row["schedule_key"] == "report"]


def test_a_control_character_in_an_error_never_reaches_the_terminal(database, evertick):
    for command in (["history"], ["why", "print"], ["show", "print"]):
        text = evertick(*command).stdout
        assert "no paper" in text
        assert "\x1b" not in text


def test_why_answers_in_words(database, evertick, ask):
    lines = evertick("why", "print").stdout.splitlines()
    assert [line.split()[0] for line in lines] == ["Next", "Last", "Now"]
    assert "because of its rule: At 09:00" in lines[0]
    assert set(ask("why", "print")) == {"key", "next", "last", "now", "notes"}


def test_why_shows_the_command_to_cancel_a_parked_run(database, evertick, ask, monkeypatch):
    run = some_run(ask, state=State.PARKED, verdict=None)

    async def parked(self: Scheduler, key: str, **wanted: object) -> list[Run]:
        return [run]

    monkeypatch.setattr(Scheduler, "runs", parked)
    assert evertick("why", "report").stderr == f"note: to cancel the parked run: evertick cancel {run.id}\n"


def test_preview_merges_the_schedules_that_are_not_paused(database, ask):
    planned = ask("preview", "--count", "30")
    assert {each["key"] for each in planned} == {"report", "print"}
    assert len(planned) == 30
    assert len(ask("preview", "report", "--until", "1d")) == 24


def test_preview_of_a_paused_schedule_shows_the_pause(database, evertick):
    result = evertick("preview", "quick", "--count", "1")
    assert result.exit_code == 0
    assert "'quick' is paused" in result.stderr


def test_nodes_shows_stopped_nodes(database, evertick, ask):
    (node,) = ask("nodes")
    assert (node["name"], node["state"], node["running"]) == ("shop@host", "stopped", 0)
    assert "shop@host  stopped" in evertick("nodes").stdout


def test_nodes_distinguishes_a_stopped_node_from_an_expired_one(evertick, database, monkeypatch):
    moment = now()

    def node(name: str, beat: int, died: int | None) -> Node:
        beat_at = moment - timedelta(seconds=beat)
        return Node(
            id=name,
            name=name,
            app="default",
            version="1",
            started_at=moment - timedelta(hours=1),
            beat_at=beat_at,
            lease_until=beat_at + timedelta(seconds=15),
            died_at=None if died is None else moment - timedelta(seconds=died),
            queues=("default",),
            tasks=(),
            declares={},
            running=0,
        )

    async def some(self: Scheduler) -> list[Node]:
        return [node("living", 1, None), node("quiet", 20, None), node("leaver", 600, 598), node("lost", 600, 480)]

    monkeypatch.setattr(Scheduler, "nodes", some)
    lines = evertick("nodes").stdout.splitlines()
    assert re.split("  +", lines[0])[:5] == ["NAME", "STATE", "STARTED", "LAST BEAT", "ENDED"]
    shown = {cells[0]: (cells[1], cells[4]) for cells in (re.split("  +", line) for line in lines[1:])}
    beats = {cells[0]: cells[3] for cells in (re.split("  +", line) for line in lines[1:])}
    assert shown["living"] == ("alive", "-")
    assert shown["quiet"] == ("silent", "-")
    assert shown["leaver"] == ("stopped", "9 min ago")
    assert shown["lost"] == ("dead", "8 min ago")
    assert beats["lost"] == beats["leaver"] == "10 min ago"


@pytest.mark.parametrize("command", READING)
def test_an_empty_app_gives_an_empty_list_and_a_hint(database, evertick, ask, command):
    assert ask(command, "--app", "other") == []
    result = evertick(command, "--app", "other")
    assert (result.exit_code, result.stdout) == (0, "")
    hint, *apps = result.stderr.splitlines()
    assert hint
    assert apps in ([], ["this database has app default; name another with --app"])


@pytest.mark.parametrize(
    "command", [*READING, "show x", "why x", "trigger x", "pause x", "resume x", "remove x", "cancel x"]
)
def test_a_missing_database_is_named_and_not_created(tmp_path, monkeypatch, evertick, command):
    monkeypatch.delenv("EVERTICK_DATABASE", raising=False)
    monkeypatch.chdir(tmp_path)
    result = evertick(*command.split())
    assert (result.exit_code, result.stdout) == (1, "")
    missing = f"error: there is no database at {tmp_path}/evertick.db"
    assert result.stderr.startswith(f"{missing}, and no configuration at evertick.toml, ")
    assert "; name the file of the daemon with --config, or the database with --database " in result.stderr
    (tmp_path / "evertick.toml").write_text("[database]\nurl = 'sqlite:///evertick.db'\n")
    assert evertick(*command.split()).stderr.startswith(f"{missing}; name one with --database")
    (tmp_path / "evertick.toml").unlink()
    assert list(tmp_path.iterdir()) == []


def test_the_option_wins_over_the_environment(database, monkeypatch, ask):
    monkeypatch.setenv("EVERTICK_DATABASE", "sqlite:////nowhere/at/all.db")
    assert len(ask("list", "--database", database)) == 3


def test_a_database_in_memory_has_nothing_to_show(evertick):
    result = evertick("list", "--database", "sqlite://")
    assert result.exit_code == 1
    assert "memory of another process" in result.stderr


def test_a_file_that_is_no_database_is_refused_in_one_sentence(tmp_path, evertick):
    (tmp_path / "notes.txt").write_text("nothing but words " * 100)
    result = evertick("list", "--database", f"sqlite:///{tmp_path}/notes.txt")
    assert result.exit_code == 1
    assert "is not a SQLite database" in result.stderr
    assert len(result.stderr.splitlines()) == 1


@pytest.mark.parametrize("command", ["history", "preview", "trigger", "pause", "resume", "remove"])
def test_an_unknown_schedule_is_an_error_with_the_command_to_list_them(database, evertick, command):
    result = evertick(command, "nope")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr == (
        "error: there is no schedule 'nope' in app 'default'; `evertick list` shows all schedules\n"
    )


@pytest.mark.parametrize(
    ("seconds", "words", "short"),
    [
        (-0.4, "now", "now"),
        (-59, "59 s ago", "59 s ago"),
        (-100, "1 min 40 s ago", "1 min ago"),
        (4_000, "in 1 h 6 min", "in 1 h"),
        (-100_000, "1 d 3 h ago", "1 d ago"),
    ],
)
def test_a_time_distance_has_one_or_two_units(seconds, words, short):
    moment = now()
    there = moment + timedelta(seconds=seconds)
    assert (distance(there, moment), distance(there, moment, is_short=True)) == (words, short)


# --- past and planned runs


@pytest.fixture
def delayed(tmp_path, monkeypatch):
    """A finished run, a run cancelled before its moment, and thirty delayed runs; no node is alive."""
    url = f"sqlite:///{tmp_path}/delayed.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    monkeypatch.setenv("TZ", "UTC")
    scheduler, ended = Scheduler(url), threading.Event()

    @scheduler.task
    def send_mail(to: str) -> str:
        return to

    scheduler.on("succeeded", lambda event: ended.set())
    with scheduler:
        send_mail.sync.enqueue("past")
        assert ended.wait(30)
        for hour in range(30):
            send_mail.options(delay=f"{hour + 1}h").sync.enqueue(f"in {hour + 1} h")
        scheduler.sync.cancel(send_mail.options(delay="90d").sync.enqueue("cancelled"))
    return scheduler


@pytest.mark.parametrize("command", ["history", "runs"])
def test_thirty_delayed_runs_do_not_hide_past_runs(delayed, evertick, command):
    result = evertick(command)
    assert [outcome_of(line) for line in result.stdout.splitlines()[1:]] == ["cancelled", "succeeded"]
    assert re.fullmatch(
        r"30 runs are planned, the first for 20\d\d-\d\d-\d\d \d\d:\d\d:\d\dZ \(in (\d+ min|1 h).*\); "
        r"--planned shows them\n",
        result.stderr,
    )


def outcome_of(line: str) -> str:
    return next(word for word in line.split() if word in {each.value for each in (*Verdict, *State)})


@pytest.mark.parametrize("command", ["history", "runs"])
def test_planned_runs_are_listed_soonest_first(delayed, evertick, ask, command):
    rows = ask(command, "--planned", "--limit", "5")
    assert [row["args"]["to"] for row in rows] == [f"in {hour} h" for hour in range(1, 6)]
    result = evertick(command, "--planned", "--limit", "5")
    assert len(result.stdout.splitlines()) == 6
    assert result.stderr == "5 of 30 planned runs are listed, soonest first; more with --limit\n"


@pytest.mark.parametrize("command", ["history", "runs"])
def test_json_lists_past_runs_before_planned_ones(delayed, ask, command):
    rows = ask(command, "--limit", "1000")
    assert [row["is_planned"] for row in rows] == [False] * 2 + [True] * 30
    assert [row["args"]["to"] for row in rows[:3]] == ["cancelled", "past", "in 1 h"]
    assert [row["is_planned"] for row in ask(command, "--limit", "1")] == [False, True]


def test_planned_runs_respect_the_limit(delayed, ask):
    moment = ask("runs", "--planned")[3]["fire_at"]
    assert len(ask("runs", "--planned", "--until", moment)) == 4
    assert len(ask("runs", "--planned", "--since", moment, "--limit", "100")) == 27
    assert ask("runs", "--planned", "--state", "done") == []
    assert ask("runs", "--planned", "--verdict", "succeeded") == []
    assert len(ask("runs", "--planned", "--state", "waiting", "--limit", "100")) == 30


def test_without_past_runs_planned_runs_are_shown_directly(delayed, evertick):
    result = evertick("runs", "--state", "waiting", "--limit", "2")
    assert [line.split()[0] for line in result.stdout.splitlines()] == ["Planned", "MOMENT", *mornings(result)]
    assert result.stderr == "2 of 30 planned runs are listed, soonest first; more with --limit\n"


def mornings(result: Any) -> list[str]:
    return re.findall(r"^20\d\d-\d\d-\d\d", result.stdout, re.MULTILINE)


def test_retries_and_early_runs_are_listed_as_past_runs(tmp_path, monkeypatch, ask):
    url = f"sqlite:///{tmp_path}/early.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    scheduler, failed = Scheduler(url), threading.Event()

    @scheduler.task(retry=Constant("1h", attempts=2))
    def flaky() -> None:
        raise ValueError("again")

    scheduler.on("retrying", lambda event: failed.set())
    with scheduler:
        flaky.sync.enqueue()
        assert failed.wait(30)
    scheduler.sync.add(key="yearly", when="0 0 1 1 *", task="flaky")
    scheduler.sync.run_early("yearly")
    scheduler.sync.close()
    rows = ask("runs", "--live")
    assert {row["schedule_key"] for row in rows} == {None, "yearly"}
    assert [row["is_planned"] for row in rows] == [False, False]


def test_logs_and_show_of_a_schedule_use_its_last_run_and_no_planned_one(database, evertick, ask):
    evertick("update", "report", "--overlap", "allow")
    done = ask("runs", "report")[0]["id"]
    early = ask("trigger", "report")["id"]
    evertick("cancel", early)
    assert ask("show", "report")["recent"][0]["id"] == early
    assert {row["id"] for row in ask("show", "report")["recent"]} == {early, done}
    assert f"run {early} has no log lines" in evertick("logs", "report").stderr


# --- live runs


def test_live_runs_are_in_every_state_but_done(tmp_path, monkeypatch, ask, evertick):
    url = f"sqlite:///{tmp_path}/live.db"
    monkeypatch.setenv("EVERTICK_DATABASE", url)
    with every_state(url) as ids:
        live = {row["state"]: row["id"] for row in ask("runs", "--live")}
        assert live == {state: run_id for state, run_id in ids.items() if state != "done"}
        shown = evertick("runs", "--live").stdout
        assert all(run_id in shown for run_id in live.values())
        some = ask("runs", "--live", "--state", "blocked", "--state", "parked")
        assert {row["state"] for row in some} == {"blocked", "parked"}
        assert [row["id"] for row in ask("runs", "unknown", "--live")] == [ids["parked"]]
        of_task = ask("runs", "--live", "--task", "import_orders")
        assert {row["id"] for row in of_task} == {ids["running"], ids["blocked"]}
        assert ask("runs", "--live", "--label", "team=absent") == []


def test_future_live_runs_have_their_own_section(delayed, evertick, ask):
    result = evertick("runs", "--live")
    assert result.stdout.splitlines()[0] == "Planned"
    assert len(ask("runs", "--live", "--limit", "100")) == 30


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--state", "done"], "--live excludes --state done"),
        (["--verdict", "failed"], "--live excludes --verdict"),
    ],
)
def test_filters_that_no_live_run_can_match_are_refused(database, evertick, flags, words):
    result = evertick("runs", "--live", *flags)
    assert (result.exit_code, words in result.stderr) == (2, True)
