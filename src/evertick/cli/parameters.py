"""What is written on the command line, read and checked where it stands."""

from __future__ import annotations

from datetime import datetime, timedelta
from typing import Any

import click
import msgspec

from evertick.cli.words import now
from evertick.errors import EvertickError
from evertick.when import duration_us, from_us
from evertick.when.moment import moment_of

__all__ = ["ArgumentsParameter", "MomentParameter"]


class MomentParameter(click.ParamType[datetime]):
    """A moment in ISO 8601 with its offset, or a duration counted from now."""

    name = "moment|duration"

    def __init__(self, *, is_past: bool = False) -> None:
        # A duration counts back from now.
        self._is_past = is_past

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        if isinstance(value, datetime):
            return value
        try:
            away = timedelta(microseconds=duration_us(value))
        except EvertickError:
            return self._moment(value, param, ctx)
        return now() - away if self._is_past else now() + away

    def _moment(self, value: str, param: click.Parameter | None, ctx: click.Context | None) -> datetime:
        try:
            return from_us(moment_of(value))
        except EvertickError:
            known = "a moment with its offset, like '2026-01-31T09:00:00Z', nor a duration, like '2h'"
            self.fail(f"{value!r} is neither {known}", param, ctx)


class ArgumentsParameter(click.ParamType[dict[str, Any]]):
    """The arguments of a task: a JSON object."""

    name = "json"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> dict[str, Any]:
        if isinstance(value, dict):
            return value
        try:
            return msgspec.json.decode(value, type=dict[str, Any])
        except (msgspec.MsgspecError, UnicodeError) as error:
            self.fail(f"{value!r} is no JSON object like '{{\"name\": 1}}' ({error})", param, ctx)
