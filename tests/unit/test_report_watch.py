"""When a node has heard all that workers say, and when it cannot know."""

from __future__ import annotations

from evertick.engine.report import WAIT_SECONDS, ReportWatch


def heard(ear: ReportWatch, began: float, ended: float, *, has_more: bool = False) -> None:
    ear.note_read(began, ended)
    ear.note_written(has_more=has_more)


def test_nothing_is_heard_before_a_read() -> None:
    ear = ReportWatch()
    assert ear.stretch(0.0) is None
    ear.note_read(0.0, 1.0)
    assert ear.stretch(1.0) is None, "what it brought is not written yet"
    ear.note_written(has_more=False)
    assert ear.stretch(1.0) == (1.0, 1.0)


def test_reads_one_after_the_other_are_one_hearing() -> None:
    ear = ReportWatch()
    for began in range(0, 50, 5):
        heard(ear, float(began), began + 5.0)
    assert ear.stretch(52.0) == (5.0, 50.0)


def test_hearing_begins_when_all_that_waited_has_been_read() -> None:
    ear = ReportWatch()
    heard(ear, 0.0, 1.0, has_more=True)
    assert ear.stretch(1.0) is None
    heard(ear, 1.0, 2.0)
    assert ear.stretch(2.0) == (2.0, 2.0)
    heard(ear, 2.0, 3.0, has_more=True)
    heard(ear, 4.0, 5.0, has_more=True)
    assert ear.stretch(5.0) == (2.0, 2.0), "what came after the second read is not known yet"
    heard(ear, 5.0, 6.0)
    assert ear.stretch(6.0) == (2.0, 6.0)


def test_a_failure_ends_it() -> None:
    ear = ReportWatch()
    heard(ear, 0.0, 1.0)
    ear.is_interrupted()
    assert ear.stretch(1.0) is None
    heard(ear, 7.0, 8.0)
    assert ear.stretch(8.0) == (8.0, 8.0)


def test_what_was_read_before_a_failure_is_no_hearing_after_it() -> None:
    ear = ReportWatch()
    ear.note_read(0.0, 1.0)
    ear.is_interrupted()
    ear.note_written(has_more=False)
    assert ear.stretch(1.0) is None


def test_who_stood_still_has_not_heard() -> None:
    ear = ReportWatch()
    heard(ear, 0.0, 1.0)
    assert ear.stretch(1.0 + 3 * WAIT_SECONDS) is None, "a read hangs"
    heard(ear, 1.0, 1.0 + 3 * WAIT_SECONDS)
    assert ear.stretch(16.0) == (16.0, 16.0)
    heard(ear, 30.0, 31.0)
    assert ear.stretch(31.0) == (31.0, 31.0), "nobody listened for long before that read"
