"""The types of arguments and options. They parse and check values."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any
from zoneinfo import ZoneInfo

import click
import msgspec

from evertick.cli.show.words import now, stamp
from evertick.errors import EvertickError
from evertick.when import duration_us, from_us
from evertick.when.moment import moment_of
from evertick.when.zone import zone_named

__all__ = [
    "ArgumentsParameter",
    "DurationParameter",
    "LabelParameter",
    "MomentParameter",
    "ZoneParameter",
    "check_stretch",
    "labels_option",
    "since_option",
    "until_option",
]

# The lengths of a date, which means its first moment, and of times without a zone.
_WITHOUT_ZONE = (len("2026-01-31"), len("2026-01-31 09:00"), len("2026-01-31 09:00:00"))


class MomentParameter(click.ParamType[datetime]):
    """A moment in ISO 8601, or a duration from now. A moment without an offset gets its zone later, since that depends
    on the schedule (`time_zone.py`)."""

    name = "moment|duration"

    def __init__(self, *, is_past: bool = False) -> None:
        # Whether a duration counts back from now.
        self._is_past = is_past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            distance = timedelta(microseconds=duration_us(value))
        except EvertickError:
            return self._moment(value, param, ctx)
        return now() - distance if self._is_past else now() + distance

    def _moment(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return from_us(moment_of(value))
        except EvertickError:
            pass
        try:
            moment = datetime.fromisoformat(value) if len(value) in _WITHOUT_ZONE else None
        except ValueError:
            moment = None
        if moment is None:
            examples = "'2026-01-31T09:00:00Z', '2026-01-31 09:00' or '2026-01-31', nor a duration, like '2h'"
            self.fail(f"{value!r} is neither a moment, like {examples}", param, ctx)
        return moment


class ArgumentsParameter(click.ParamType[dict[str, Any]]):
    """The arguments of a task: a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError) as error:
            self.fail(f"{value!r} is not a JSON object like '{{\"name\": 1}}' ({error})", param, ctx)


class DurationParameter(click.ParamType[timedelta]):
    """A duration, like "2s" or "1h30m"."""

    name = "duration"

    def __init__(self, *, least: str = "0s") -> None:
        self._least = least

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> timedelta:
        if isinstance(value, timedelta):
            return value
        try:
            microseconds = duration_us(value)
        except EvertickError as error:
            self.fail(str(error), param, ctx)
        if microseconds < duration_us(self._least):
            self.fail(f"{value!r} is too short; write {self._least} or more", param, ctx)
        return timedelta(microseconds=microseconds)


class ZoneParameter(click.ParamType[ZoneInfo]):
    """The IANA name of a time zone."""

    name = "zone"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> ZoneInfo:
        try:
            return zone_named(value)
        except EvertickError as error:
            self.fail(str(error), param, ctx)


class LabelParameter(click.ParamType[tuple[str, str]]):
    """A label: name=value."""

    name = "name=value"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, str]:
        if isinstance(value, tuple):
            return value
        name, equals, text = value.partition("=")
        if not name or not equals:
            self.fail(f"{value!r} is not a label; write name=value, like team=sales", param, ctx)
        return name, text


labels_option = click.option(
    "--label", "labels", type=LabelParameter(), multiple=True, help="Only with this label; may be repeated."
)
since_option = click.option(
    "--since", type=MomentParameter(is_past=True), help="Not before this moment; a duration counts back from now."
)
until_option = click.option(
    "--until", type=MomentParameter(is_past=True), help="Not after this moment; a duration counts back from now."
)


def check_stretch(since: datetime | None, until: datetime | None) -> None:
    if since is not None and until is not None and since > until:
        raise click.UsageError(f"--since ({stamp(since)}) is later than --until ({stamp(until)})")
