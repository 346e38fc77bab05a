"""The context of a job: its run, progress, log and phases."""

from __future__ import annotations

import threading
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from evertick import InvalidInput, NotFound, Stopped, current
from evertick.job.context import (
    LINE_MAX_CHARS,
    LINES_MAX,
    LOG_MAX_CHARS,
    METADATA_MAX_BYTES,
    PHASES_MAX,
    Context,
    JobRecord,
    current_context,
    record_of,
)
from evertick.model import Claimed
from evertick.testing.clock import SettableClock
from evertick.when.moment import SECOND

NOON = 1_767_268_800_000_000


def context(clock: SettableClock | None = None, **fields: Any) -> Context:
    run = Claimed(
        **{
            "id": "r1",
            "fence": 7,
            "task": "job",
            "args": b"{}",
            "fire_at": NOON,
            "due_at": NOON + SECOND,
            "claimed_at": NOON + 2 * SECOND,
            **fields,
        }
    )
    return Context(JobRecord(run, clock or SettableClock(NOON), NOON + 60 * SECOND))


def lines_of(ctx: Context) -> list[tuple[int, str, str]]:
    taken = record_of(ctx).open_buffer().take()
    return [] if taken is None else list(taken[1])


def test_a_job_sees_its_run() -> None:
    ctx = context(attempts=2, schedule_key="nightly", labels={"team": "data"})
    assert (ctx.run_id, ctx.task, ctx.schedule_key, ctx.attempt, ctx.fence) == ("r1", "job", "nightly", 3, 7)
    assert ctx.fire_at == datetime(2026, 1, 1, 12, tzinfo=UTC)
    assert ctx.due_at == datetime(2026, 1, 1, 12, 0, 1, tzinfo=UTC)
    assert ctx.deadline == datetime(2026, 1, 1, 12, 1, tzinfo=UTC)
    assert ctx.labels == {"team": "data"}


def test_changing_the_labels_a_job_sees_changes_nothing() -> None:
    ctx = context(labels={"team": "data"})
    ctx.labels["team"] = "other"
    assert ctx.labels == {"team": "data"}


def test_a_run_without_a_timeout_has_no_deadline() -> None:
    run = Claimed(id="r1", fence=7, task="job", args=b"{}", fire_at=0, due_at=0, claimed_at=0)
    assert Context(JobRecord(run, SettableClock())).deadline is None


def test_outside_of_a_job_there_is_no_current_run() -> None:
    with pytest.raises(NotFound, match=r"evertick\.current\(\) only inside a job"):
        current()


def test_inside_of_a_job_current_returns_its_context() -> None:
    ctx = context()
    token = current_context.set(ctx)
    try:
        assert current() is ctx
    finally:
        current_context.reset(token)


def test_check_raises_once_the_run_was_asked_to_stop() -> None:
    ctx = context()
    ctx.check()
    assert not ctx.cancelled
    record_of(ctx).stopped = "timeout"
    assert ctx.cancelled
    with pytest.raises(Stopped, match="run r1 of 'job' was asked to stop: timeout"):
        ctx.check()


# --- progress


def test_the_latest_progress_wins() -> None:
    ctx = context()
    ctx.progress(0.2, "begun")
    ctx.progress(0.7, "most")
    assert record_of(ctx).open_buffer().take() == (0, (), (0.7, "most"))
    assert record_of(ctx).open_buffer().take() is None


@pytest.mark.parametrize("fraction", [-0.1, 1.1, float("nan"), "half", None])
def test_progress_that_is_no_fraction_is_refused(fraction: Any) -> None:
    with pytest.raises(InvalidInput, match="is not a fraction; pass a number from 0 to 1"):
        context().progress(fraction)


def test_the_text_of_progress_is_bounded() -> None:
    ctx = context()
    ctx.progress(1, "x" * 10_000)
    taken = record_of(ctx).open_buffer().take()
    assert taken is not None
    assert taken[2] == (1.0, "x" * 500)


# --- the log


def test_lines_keep_their_time_level_and_order() -> None:
    clock = SettableClock(NOON)
    ctx = context(clock)
    ctx.log("one")
    clock.move(SECOND)
    ctx.log("two", level="warning")
    assert lines_of(ctx) == [(NOON, "info", "one"), (NOON + SECOND, "warning", "two")]


def test_line_numbers_continue_after_the_written_lines() -> None:
    ctx = context()
    ctx.log("one")
    ctx.log("two")
    first = record_of(ctx).open_buffer().take()
    ctx.log("three")
    second = record_of(ctx).open_buffer().take()
    assert first is not None
    assert second is not None
    assert (first[0], second[0]) == (0, 2)


def test_a_log_line_of_another_type_becomes_text() -> None:
    ctx = context()
    ctx.log({"rows": 3})  # type: ignore[arg-type]
    assert lines_of(ctx)[0][2] == "{'rows': 3}"


def test_a_long_line_is_cut_with_a_marker() -> None:
    ctx = context()
    ctx.log("x" * (LINE_MAX_CHARS + 1))
    assert lines_of(ctx)[0][2] == "x" * LINE_MAX_CHARS + " … (line cut)"


def test_a_job_that_logs_too_much_is_cut_off_with_a_marker_line() -> None:
    ctx = context()
    for number in range(LINES_MAX + 100):
        ctx.log(str(number))
    lines = lines_of(ctx)
    assert len(lines) == LINES_MAX + 1
    assert lines[-2][2] == str(LINES_MAX - 1)
    assert lines[-1][2].startswith("log limit of the attempt reached")


def test_the_total_size_of_a_log_is_bounded_too() -> None:
    ctx = context()
    for _ in range(100):
        ctx.log("x" * LINE_MAX_CHARS)
    lines = lines_of(ctx)
    assert sum(len(text) for _, _, text in lines[:-1]) <= LOG_MAX_CHARS
    assert lines[-1][2].startswith("log limit of the attempt reached")


def test_a_full_log_stays_full_after_it_was_written() -> None:
    ctx = context()
    for number in range(LINES_MAX + 1):
        ctx.log(str(number))
    lines_of(ctx)
    ctx.log("more")
    assert lines_of(ctx) == []


def test_threads_that_log_at_once_lose_no_line() -> None:
    ctx = context()

    def talk() -> None:
        for _ in range(500):
            ctx.log("word")

    threads = [threading.Thread(target=talk) for _ in range(4)]
    for thread in threads:
        thread.start()
    taken = 0
    while any(thread.is_alive() for thread in threads):
        taken += len(lines_of(ctx))
    for thread in threads:
        thread.join()
    assert taken + len(lines_of(ctx)) == 2000


# --- phases


def test_a_phase_is_timed() -> None:
    clock = SettableClock(NOON)
    ctx = context(clock)
    with ctx.phase("download"):
        clock.move(1_500_000)
    [phase] = record_of(ctx).open_buffer().phases
    assert (phase.name, phase.at, phase.seconds, phase.is_failed) == ("download", NOON, 1.5, False)


def test_a_phase_that_raises_is_marked_and_passes_the_error_on() -> None:
    ctx = context()
    with pytest.raises(ValueError, match="no"), ctx.phase("download"):
        raise ValueError("no")
    assert record_of(ctx).open_buffer().phases[0].is_failed


def test_values_of_other_types_become_text_when_they_are_logged() -> None:
    ctx = context()
    with ctx.phase(Path("in") / "a.txt"):  # type: ignore[arg-type]
        ctx.progress(0.5, ["half"])  # type: ignore[arg-type]
    [phase] = record_of(ctx).open_buffer().phases
    assert phase.name == str(Path("in") / "a.txt")
    taken = record_of(ctx).open_buffer().take()
    assert taken is not None
    assert taken[2] == (0.5, "['half']")


def test_phases_are_bounded() -> None:
    ctx = context()
    for number in range(PHASES_MAX + 5):
        with ctx.phase(str(number)):
            pass
    assert len(record_of(ctx).open_buffer().phases) == PHASES_MAX


def test_a_phase_keeps_its_metadata() -> None:
    ctx = context()
    with ctx.phase("download", {"url": "https://example.org"}) as metadata:
        [begun] = record_of(ctx).open_buffer().phases
        metadata["bytes"] = 512
        metadata["half"] = "\ud83d"
    assert (begun.seconds, begun.metadata) == (None, {"url": "https://example.org"})
    [phase] = record_of(ctx).open_buffer().phases
    assert phase.metadata == {"url": "https://example.org", "bytes": 512, "half": "\ufffd"}


@pytest.mark.parametrize(
    ("metadata", "why"),
    [({"text": "x" * METADATA_MAX_BYTES}, "more than 1024"), ({"what": object()}, "not a JSON-like object")],
)
def test_metadata_that_cannot_be_stored_is_logged_and_does_not_fail_the_job(
    metadata: dict[str, object], why: str
) -> None:
    ctx = context()
    with ctx.phase("download", metadata):
        pass
    [phase] = record_of(ctx).open_buffer().phases
    assert (phase.metadata, phase.is_failed) == ({}, False)
    [(_, level, text)] = lines_of(ctx)
    assert level == "warning"
    assert text.startswith("phase 'download': metadata dropped: ")
    assert why in text


def test_metadata_that_is_no_mapping_is_refused() -> None:
    with pytest.raises(InvalidInput, match="phase 'download': metadata: 512 is not a mapping"):
        context().phase("download", 512).__enter__()  # type: ignore[arg-type]


def test_nested_phases_are_in_the_order_of_their_start() -> None:
    ctx = context()
    with ctx.phase("outer"), ctx.phase("inner"):
        assert [phase.seconds for phase in record_of(ctx).open_buffer().phases] == [None, None]
    assert [phase.name for phase in record_of(ctx).phases] == ["outer", "inner"]


def test_phases_are_written_only_when_they_changed() -> None:
    ctx = context()
    ctx.log("begun")
    assert record_of(ctx).open_buffer().take_phases() is None
    with ctx.phase("download"):
        taken = record_of(ctx).open_buffer().take_phases()
        assert taken is not None
        assert [phase.seconds for phase in taken] == [None]
        assert record_of(ctx).open_buffer().take_phases() is None
    assert record_of(ctx).open_buffer().take_phases() == record_of(ctx).phases
    assert record_of(ctx).open_buffer().take_phases() is None
