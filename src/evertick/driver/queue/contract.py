"""The messages over a broker between nodes and workers: dispatches, the reports that come back, kills.

Versioned JSON, for programs in any language; `docs/reference/worker-contract.md` is this file in words. A field that is
not known is left alone, so that either side may be the newer one; another `v` is refused. Everything that comes in is
bounded before it is read. Pure: brokers carry the bytes.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from evertick.errors import InvalidInput
from evertick.model import DispatchMode
from evertick.text.surrogates import json_bytes, mended_json

__all__ = [
    "MESSAGE_MAX_BYTES",
    "REPORT_MAX_BYTES",
    "VERSION",
    "DispatchMessage",
    "Kill",
    "WorkerReport",
    "WorkerReportKind",
    "decode_dispatch",
    "decode_kill",
    "decode_report",
    "encode",
    "pair_of",
]

VERSION: Final = 1
# As much as a message of the outbox may have, and its envelope.
MESSAGE_MAX_BYTES: Final = 272 * 1024
# A result, an error and the lines of a log, each with its own bound, fit in.
REPORT_MAX_BYTES: Final = 256 * 1024
_ERROR_MAX_CHARS: Final = 16_384
_TEXT_MAX_CHARS: Final = 500
_ID_MAX_CHARS: Final = 100
_LONGEST_SECONDS: Final = 366 * 86_400

WorkerReportKind = Literal["taken", "progress", "finish", "fail", "skip", "release"]
# When a line was written, its level, its text.
Line = tuple[str, str, str]


class DispatchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A run for a worker. (run, fence) names this dispatch: a worker takes it before it works on it.

    Times are RFC 3339 in UTC, durations are seconds. A worker leaves alone what it gets after `take_by`: the ledger
    dispatches it again, under another fence. `timeout` is how long the work may take from then on, and `deadline` when
    it is over at the latest. `reply` is where reports go, None: none are wanted.
    """

    v: int = VERSION
    run: str
    fence: int
    task: str
    driver: str
    app: str
    fire_at: str
    attempt: int
    args: dict[str, Any]
    schedule: str | None = None
    timeout: float | None = None
    deadline: str | None = None
    reply: str | None = None
    mode: DispatchMode = "finish"
    take_by: str | None = None
    # How often a worker says that it is still at work, at least.
    progress_every: float | None = None


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report of a worker about a run that it has taken, or could not carry out."""

    v: int
    run: str
    fence: int
    kind: WorkerReportKind
    # The name of the worker, for people.
    worker: str | None = None
    # Of progress.
    fraction: float | None = None
    text: str | None = None
    # Of finish: JSON-like.
    result: Any = None
    # Of fail. retry: None leaves it to the task's policy, False ends the run, True asks for another try.
    error: str | None = None
    retry: bool | None = None
    # Of fail that asks for another try, and of release: seconds until then.
    after: float | None = None
    # Of skip and release; of fail a word for the kind of failure.
    reason: str | None = None
    # Of finish, fail and skip: seconds from the taking to the end, by a clock of the worker that does not jump.
    took: float | None = None
    # Lines for the log of the run since the last report, and how many there were before them; None: behind all others.
    seq: int | None = None
    log: list[Line] = []


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """A dispatch that is not wanted any more."""

    v: int = VERSION
    run: str
    fence: int
    why: str = "cancelled"


M = TypeVar("M", DispatchMessage, WorkerReport, Kill)

_dispatched: Final = msgspec.json.Decoder(DispatchMessage)
_report: Final = msgspec.json.Decoder(WorkerReport)
_kill: Final = msgspec.json.Decoder(Kill)


def encode(what: DispatchMessage | WorkerReport | Kill) -> bytes:
    """As it is sent. Texts of a job may be anything; what cannot be sent of them must not cost the report."""
    return json_bytes(what)


def decode_dispatch(data: bytes) -> DispatchMessage:
    """Raises InvalidInput where it is no message of ours, or of another version."""
    dispatched = _decoded(_dispatched, data, MESSAGE_MAX_BYTES, "message", "it is not what dispatches a run")
    _check_pair(dispatched.run, dispatched.fence, "message")
    return dispatched


def decode_report(data: bytes) -> WorkerReport:
    """Raises InvalidInput where it is no report. Texts are cut, and halves of surrogate pairs replaced: a report that
    says too much, or has cut a letter in two, still counts."""
    report = _decoded(_report, data, REPORT_MAX_BYTES, "report", "it is no report of a worker")
    _check_pair(report.run, report.fence, "report")
    if report.fraction is not None and not 0 <= report.fraction <= 1:
        raise InvalidInput(f"report: fraction: {report.fraction!r} must be a number from 0 to 1")
    if report.after is not None and not 0 <= report.after <= _LONGEST_SECONDS:
        raise InvalidInput(f"report: after: {report.after!r} must be seconds, from 0 to those of a year")
    return msgspec.structs.replace(
        report,
        worker=_cut(report.worker, _TEXT_MAX_CHARS),
        text=_cut(report.text, _TEXT_MAX_CHARS),
        reason=_cut(report.reason, _TEXT_MAX_CHARS),
        error=_cut(report.error, _ERROR_MAX_CHARS),
        took=_duration(report.took),
    )


def decode_kill(data: bytes) -> Kill:
    return _decoded(_kill, data, REPORT_MAX_BYTES, "kill", "it names no run")


def pair_of(run: str, fence: int) -> str:
    """The name of a dispatch in keys, message ids and logs."""
    return f"{run}:{fence}"


def _decoded(decoder: msgspec.json.Decoder[M], data: bytes, most: int, what: str, otherwise: str) -> M:
    """Of this version and within its bounds. Halves of surrogate pairs are replaced."""
    if len(data) > most:
        raise InvalidInput(f"{what}: it takes {len(data)} bytes, more than {most}; send less")
    try:
        try:
            found = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            mended = mended_json(data)
            if mended == data:
                raise
            found = decoder.decode(mended)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{what}: {otherwise}: {error}") from None
    if found.v != VERSION:
        only = f"only {VERSION}; bring both sides to the same release"
        raise InvalidInput(f"{what}: v: {found.v!r} is not known here, {only}")
    return found


def _check_pair(run: str, fence: int, what: str) -> None:
    if not 1 <= len(run) <= _ID_MAX_CHARS or not run.isprintable() or fence < 0:
        raise InvalidInput(f"{what}: run {run[:_ID_MAX_CHARS]!r} with fence {fence!r} is no run")


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else text[: most - 1] + "…"


def _duration(seconds: float | None) -> float | None:
    """An end counts, however wrong the watch of its worker is."""
    return seconds if seconds is not None and 0 <= seconds <= _LONGEST_SECONDS else None
