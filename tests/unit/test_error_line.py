"""What was raised, in one line: type and first line of the message, however many lines there are."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evertick.errors import BrokerUnavailable, ProcessDied, Retry
from evertick.text.error_line import error_for_log, error_summary
from evertick.text.error_text import error_text


def text_of(error: BaseException) -> str:
    try:
        raise error
    except BaseException as raised:
        return error_text(raised)


class Locked(Exception):
    """Like those of libraries that append advice to what the database said."""


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (ValueError("no paper"), "ValueError: no paper"),
        (ValueError(), "ValueError"),
        (Locked("database is locked\n[SQL: INSERT …]\n(Background on this error at: …)"), "database is locked"),
        (ValueError("\n\n  the point\nmore"), "ValueError: the point"),
        (ValueError("Traceback (most recent call last):\n  File x\nKeyError: 1"), "ValueError: Traceback (most recent"),
        (ExceptionGroup("both failed", [ValueError("a"), KeyError("b")]), "ExceptionGroup: both failed (2 sub-exc"),
        (SyntaxError("bad", ("job.py", 3, 1, "x =", 3, 2)), "SyntaxError: bad"),
        (ValueError("x" * 50_000), "ValueError: xxxx"),
    ],
    ids=["one line", "no message", "advice", "empty first line", "a traceback in it", "group", "syntax", "long"],
)
def test_the_type_and_the_first_line_of_the_message_are_told(error: BaseException, line: str) -> None:
    told = error_summary(text_of(error))
    assert line in told
    assert "Background" not in told
    assert "\n" not in told
    assert len(told) <= 300


@pytest.mark.parametrize(
    ("error", "line"),
    [
        (BrokerUnavailable("redis at redis://queue: refused"), "redis at redis://queue: refused"),
        (ProcessDied("the child was killed:\nby signal 9"), "the child was killed: by signal 9"),
        (Retry("the quota is used up"), "the quota is used up"),
        (Retry(), "Retry"),
    ],
    ids=["broker", "several lines", "of a job", "without a word"],
)
def test_what_evertick_raises_is_told_as_its_sentence(error: Exception, line: str) -> None:
    assert error_summary(text_of(error)) == line


def test_an_error_of_ours_without_a_frame_of_a_job_is_kept_as_its_sentence_alone() -> None:
    away = BrokerUnavailable("redis at redis://queue: refused")
    away.__cause__ = ConnectionRefusedError(111, "refused")
    assert error_text(away) == "redis at redis://queue: refused"


def test_a_note_is_not_taken_for_the_message() -> None:
    error = ValueError("no paper")
    error.add_note("ask the office")
    assert error_summary(text_of(error)) == "ValueError: no paper"


@pytest.mark.parametrize("is_cause", [True, False])
def test_of_a_chain_the_last_one_is_told(is_cause: bool) -> None:
    def fail() -> None:
        raise OSError("second\nand more")

    def work() -> None:
        try:
            raise KeyError("first\nand more")
        except KeyError as first:
            if is_cause:
                raise OSError("second\nand more") from first
            fail()

    with pytest.raises(OSError, match="second") as raised:
        work()
    assert error_summary(error_text(raised.value)) == "OSError: second"


def test_a_traceback_that_was_cut_in_the_middle_ends_with_what_was_raised() -> None:
    def deep(level: int) -> None:
        if not level:
            raise ValueError("at the bottom\nof it")
        [deep, wide][level % 2](level - 1)

    def wide(level: int) -> None:
        deep(level)

    with pytest.raises(ValueError, match="bottom") as raised:
        deep(200)
    text = error_text(raised.value)
    assert "characters left out …" in text
    assert error_summary(text) == "ValueError: at the bottom"


def test_what_python_itself_prints_is_understood() -> None:
    script = "def f():\n    g()\ndef g():\n    raise RuntimeError('one\\ntwo')\nf()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert error_summary(done.stderr) == "RuntimeError: one"


@pytest.mark.parametrize(
    ("text", "line"),
    [(None, ""), ("", ""), ("\n \n", ""), ("exit code 3\nno such file", "exit code 3"), ("Traceback", "Traceback")],
)
def test_of_what_is_no_traceback_the_first_line_is_told(text: str | None, line: str) -> None:
    assert error_summary(text) == line


def test_the_log_gets_a_traceback_whole_and_anything_else_in_one_line() -> None:
    chained = text_of(ValueError("no paper"))
    assert error_for_log(chained) == chained
    assert "\n" in chained
    page = "GET http://shop/: 500 Oops; it says:\n<html>\n  <body>Traceback (most recent call last):\n</html>"
    line = "GET http://shop/: 500 Oops; it says: <html> <body>Traceback (most recent call last): </html>"
    assert error_for_log(page) == line
    assert error_for_log(None) == ""


def test_the_log_gets_no_page_whole() -> None:
    line = error_for_log("it says:\n" + "<p>so</p>\n" * 1_000)
    assert (len(line), line[-1], line[:20]) == (300, "…", "it says: <p>so</p> <")
