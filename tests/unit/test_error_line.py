"""An error in one line: its type and the first line of its message."""

from __future__ import annotations

import subprocess
import sys

import pytest

from evertick.errors import BrokerUnavailable, ProcessDied, Retry
from evertick.text.error_line import error_for_log, what_was_raised
from evertick.text.error_text import error_text


def text_of(error: BaseException) -> str:
    try:
        raise error
    except BaseException as raised:
        return error_text(raised)


class Locked(Exception):
    """Like errors of libraries that append advice to a database error."""


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
def test_an_error_line_has_the_type_and_the_first_line_of_the_message(error: BaseException, line: str) -> None:
    message = what_was_raised(text_of(error))
    assert line in message
    assert "Background" not in message
    assert "\n" not in message
    assert len(message) <= 300


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
def test_an_error_of_evertick_is_shown_without_its_type(error: Exception, line: str) -> None:
    assert what_was_raised(text_of(error)) == line


def test_an_error_of_evertick_without_a_frame_of_a_job_has_no_traceback() -> None:
    away = BrokerUnavailable("redis at redis://queue: refused")
    away.__cause__ = ConnectionRefusedError(111, "refused")
    assert error_text(away) == "redis at redis://queue: refused"


def test_a_note_is_not_taken_for_the_message() -> None:
    error = ValueError("no paper")
    error.add_note("ask the office")
    assert what_was_raised(text_of(error)) == "ValueError: no paper"


@pytest.mark.parametrize("is_cause", [True, False])
def test_the_last_error_of_a_chain_is_shown(is_cause: bool) -> None:
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
    assert what_was_raised(error_text(raised.value)) == "OSError: second"


def test_a_shortened_traceback_still_has_its_error() -> None:
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
    assert what_was_raised(text) == "ValueError: at the bottom"


def test_tracebacks_printed_by_python_are_parsed() -> None:
    script = "def f():\n    g()\ndef g():\n    raise RuntimeError('one\\ntwo')\nf()"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert what_was_raised(done.stderr) == "RuntimeError: one"


@pytest.mark.parametrize(
    ("text", "line"),
    [(None, ""), ("", ""), ("\n \n", ""), ("exit code 3\nno such file", "exit code 3"), ("Traceback", "Traceback")],
)
def test_text_without_a_traceback_is_shown_by_its_first_line(text: str | None, line: str) -> None:
    assert what_was_raised(text) == line


def test_the_log_gets_a_complete_traceback_and_other_text_in_one_line() -> None:
    chained = text_of(ValueError("no paper"))
    assert error_for_log(chained) == chained
    assert "\n" in chained
    page = "GET http://shop/: 500 Oops; it says:\n<html>\n  <body>Traceback (most recent call last):\n</html>"
    line = "GET http://shop/: 500 Oops; it says: <html> <body>Traceback (most recent call last): </html>"
    assert error_for_log(page) == line
    assert error_for_log(None) == ""


def test_a_long_page_is_shortened_in_the_log() -> None:
    line = error_for_log("it says:\n" + "<p>so</p>\n" * 1_000)
    assert (len(line), line[-1], line[:20]) == (300, "…", "it says: <p>so</p> <")
