"""The window in which a node has read all reports of a channel."""

from __future__ import annotations

from evertick.engine.report import WAIT_SECONDS, ReportWatch


def read_once(ear: ReportWatch, began: float, ended: float, *, has_more: bool = False) -> None:
    ear.note_read(began, ended)
    ear.note_written(has_more=has_more)


def test_the_window_is_empty_before_the_first_read() -> None:
    ear = ReportWatch()
    assert ear.stretch(0.0) is None
    ear.note_read(0.0, 1.0)
    assert ear.stretch(1.0) is None, "what it brought is not written yet"
    ear.note_written(has_more=False)
    assert ear.stretch(1.0) == (1.0, 1.0)


def test_consecutive_reads_extend_one_window() -> None:
    ear = ReportWatch()
    for began in range(0, 50, 5):
        read_once(ear, float(began), began + 5.0)
    assert ear.stretch(52.0) == (5.0, 50.0)


def test_a_window_begins_when_the_backlog_has_been_read() -> None:
    ear = ReportWatch()
    read_once(ear, 0.0, 1.0, has_more=True)
    assert ear.stretch(1.0) is None
    read_once(ear, 1.0, 2.0)
    assert ear.stretch(2.0) == (2.0, 2.0)
    read_once(ear, 2.0, 3.0, has_more=True)
    read_once(ear, 4.0, 5.0, has_more=True)
    assert ear.stretch(5.0) == (2.0, 2.0), "what came after the second read is not known yet"
    read_once(ear, 5.0, 6.0)
    assert ear.stretch(6.0) == (2.0, 6.0)


def test_a_failed_read_ends_the_window() -> None:
    ear = ReportWatch()
    read_once(ear, 0.0, 1.0)
    ear.is_interrupted()
    assert ear.stretch(1.0) is None
    read_once(ear, 7.0, 8.0)
    assert ear.stretch(8.0) == (8.0, 8.0)


def test_reads_before_a_failure_do_not_extend_the_window_after_it() -> None:
    ear = ReportWatch()
    ear.note_read(0.0, 1.0)
    ear.is_interrupted()
    ear.note_written(has_more=False)
    assert ear.stretch(1.0) is None


def test_a_read_after_a_long_delay_starts_a_new_window() -> None:
    ear = ReportWatch()
    read_once(ear, 0.0, 1.0)
    assert ear.stretch(1.0 + 3 * WAIT_SECONDS) is None, "a read hangs"
    read_once(ear, 1.0, 1.0 + 3 * WAIT_SECONDS)
    assert ear.stretch(16.0) == (16.0, 16.0)
    read_once(ear, 30.0, 31.0)
    assert ear.stretch(31.0) == (31.0, 31.0), "nobody listened for long before that read"
