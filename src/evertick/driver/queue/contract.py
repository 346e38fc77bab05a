"""The messages between nodes and workers over a broker: dispatches, reports and kills.

They are versioned JSON for programs in any language; `docs/reference/worker-contract.md` describes them. Unknown fields
are ignored, so that either side may be newer; another `v` is rejected. The size of a message is checked before it is
parsed. This module is pure: brokers carry the bytes.
"""

from __future__ import annotations

from typing import Any, Final, Literal, TypeVar

import msgspec

from evertick.errors import InvalidInput
from evertick.model import DispatchMode
from evertick.text.surrogates import json_bytes, json_without_surrogates
from evertick.text.values import shown

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
    "dispatch_id",
    "encode",
]

VERSION: Final = 1
# Room for the largest message of the outbox and its envelope.
MESSAGE_MAX_BYTES: Final = 272 * 1024
# Room for a result, an error and log lines, which have their own limits.
REPORT_MAX_BYTES: Final = 256 * 1024
_ERROR_MAX_CHARS: Final = 16_384
_TEXT_MAX_CHARS: Final = 500
_ID_MAX_CHARS: Final = 100
_SECONDS_MAX: Final = 366 * 86_400

WorkerReportKind = Literal["taken", "progress", "finish", "fail", "skip", "release"]
# The time, the level and the text of a log line.
Line = tuple[str, str, str]


class DispatchMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A run for a worker. (run, fence) identifies this dispatch; a worker must take it before it starts the work.

    Times are RFC 3339 in UTC, durations are seconds. A worker ignores a message that it receives after `take_by`,
    because the ledger dispatches the run again under another fence. `timeout` limits the work after the take, and
    `deadline` is its latest end. `reply` is the destination of reports; None: send none.
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
    # The longest time between two reports of progress.
    progress_every: float | None = None


class WorkerReport(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A report of a worker about a run that it has taken or could not execute."""

    v: int
    run: str
    fence: int
    kind: WorkerReportKind
    # The name of the worker, for display.
    worker: str | None = None
    # For progress.
    fraction: float | None = None
    text: str | None = None
    # For finish: JSON-like.
    result: Any = None
    # For fail. retry: None applies the task's policy, False ends the run, True requests another attempt.
    error: str | None = None
    retry: bool | None = None
    # For fail with a retry, and for release: seconds until the next attempt.
    after: float | None = None
    # For skip and release; for fail, the kind of failure.
    reason: str | None = None
    # For finish, fail and skip: seconds from the take to the end, by a monotonic clock of the worker.
    took: float | None = None
    # Log lines since the last report, and the number of lines before them; None: append them.
    seq: int | None = None
    log: list[Line] = []


class Kill(msgspec.Struct, frozen=True, kw_only=True):
    """Cancels a dispatch."""

    v: int = VERSION
    run: str
    fence: int
    why: str = "cancelled"


M = TypeVar("M", DispatchMessage, WorkerReport, Kill)

_dispatched: Final = msgspec.json.Decoder(DispatchMessage)
_report: Final = msgspec.json.Decoder(WorkerReport)
_kill: Final = msgspec.json.Decoder(Kill)


def encode(what: DispatchMessage | WorkerReport | Kill) -> bytes:
    """The message as JSON. Unpaired surrogates in texts are replaced, so that they do not prevent a report."""
    return json_bytes(what)


def decode_dispatch(data: bytes) -> DispatchMessage:
    """Raises InvalidInput if it is not a dispatch, or has another version."""
    dispatched = _decoded(_dispatched, data, MESSAGE_MAX_BYTES, "message", "it does not dispatch a run")
    _check_pair(dispatched.run, dispatched.fence, "message")
    return dispatched


def decode_report(data: bytes) -> WorkerReport:
    """Raises InvalidInput if it is not a report. Long texts are cut and unpaired surrogates replaced."""
    report = _decoded(_report, data, REPORT_MAX_BYTES, "report", "it is not a worker report")
    _check_pair(report.run, report.fence, "report")
    if report.fraction is not None and not 0 <= report.fraction <= 1:
        raise InvalidInput(
            f"report: fraction: {report.fraction!r} must be a number from 0 to 1",
            setting="fraction",
            value=repr(report.fraction),
        )
    if report.after is not None and not 0 <= report.after <= _SECONDS_MAX:
        raise InvalidInput(
            f"report: after: {report.after!r} must be from 0 to {_SECONDS_MAX} seconds",
            value=repr(report.after),
        )
    return msgspec.structs.replace(
        report,
        worker=_cut(report.worker, _TEXT_MAX_CHARS),
        text=_cut(report.text, _TEXT_MAX_CHARS),
        reason=_cut(report.reason, _TEXT_MAX_CHARS),
        error=_cut(report.error, _ERROR_MAX_CHARS),
        took=_duration(report.took),
    )


def decode_kill(data: bytes) -> Kill:
    return _decoded(_kill, data, REPORT_MAX_BYTES, "kill", "it does not name a run")


def dispatch_id(run: str, fence: int) -> str:
    """The id of a dispatch in keys, message ids and logs."""
    return f"{run}:{fence}"


def _decoded(decoder: msgspec.json.Decoder[M], data: bytes, most: int, what: str, problem: str) -> M:
    """Decode a message of this version and size. Unpaired surrogates are replaced."""
    if len(data) > most:
        raise InvalidInput(f"{what}: it has {len(data)} bytes, more than {most}", fix="send less")
    try:
        try:
            message = decoder.decode(data)
        except (msgspec.DecodeError, UnicodeDecodeError):
            mended = json_without_surrogates(data)
            if mended == data:
                raise
            message = decoder.decode(mended)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise InvalidInput(f"{what}: {problem}: {error}") from None
    if message.v != VERSION:
        raise InvalidInput(
            f"{what}: v: version {message.v!r} is not supported, only {VERSION}",
            setting="v",
            value=repr(message.v),
            fix="run the same release on nodes and workers",
        )
    return message


def _check_pair(run: str, fence: int, what: str) -> None:
    if not 1 <= len(run) <= _ID_MAX_CHARS or not run.isprintable() or fence < 0:
        raise InvalidInput(f"{what}: {shown(run)} with fence {fence!r} does not name a run", value=shown(run))


def _cut(text: str | None, most: int) -> str | None:
    return text if text is None or len(text) <= most else text[: most - 1] + "…"


def _duration(seconds: float | None) -> float | None:
    """None for an impossible duration, so that a wrong clock of the worker does not invalidate its report."""
    return seconds if seconds is not None and 0 <= seconds <= _SECONDS_MAX else None
