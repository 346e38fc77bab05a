"""One moment: an instant, or a delay from the creation of its schedule, which `bind` turns into an instant."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import TYPE_CHECKING, NoReturn, Self
from zoneinfo import ZoneInfo

from evertick.errors import InvalidWhen
from evertick.text.values import shown
from evertick.when.base import Bounds, JitterMode, When
from evertick.when.duration import Duration, duration_text, duration_us, duration_words
from evertick.when.moment import EARLIEST, LATEST, moment_text, to_us
from evertick.when.zone import zone_named

if TYPE_CHECKING:
    from evertick.when.calendar import Calendar

__all__ = ["Once", "moved_to"]


class Once(When):
    """A single moment. A delay that is not bound yet has `after_us`, and `at_us` None."""

    __slots__ = ("after_us", "at_us")

    at_us: int | None
    after_us: int | None

    def __init__(
        self,
        at: datetime | None = None,
        *,
        after: Duration | None = None,
        tz: str | ZoneInfo | None = None,
        jitter: Duration | None = None,
        jitter_mode: JitterMode = "stable",
        calendar: str | Calendar | None = None,
    ) -> None:
        if at is not None and after is not None:
            raise InvalidWhen(f"at={shown(at)} and after={shown(after)} exclude each other", fix="keep one of them")
        if at is None and after is None:
            raise InvalidWhen("Once needs a moment (at) or a delay (after)")
        bounds = Bounds.make(jitter=jitter, jitter_mode=jitter_mode, calendar=calendar)
        zone = zone_named("UTC" if tz is None else tz)
        self._fill_common(zone=zone, is_zone_given=tz is not None, bounds=bounds, calendar=calendar)
        self._fill(
            at_us=None if at is None else _within_reach(to_us(at)),
            after_us=None if after is None else duration_us(after, what="after"),
        )

    def bind(self, *, key: str, created: int, tz: str = "UTC", calendars: Mapping[str, Calendar] | None = None) -> Self:
        """See `When.bind`. A delay becomes the moment that long after the creation."""
        bound = super().bind(key=key, created=created, tz=tz, calendars=calendars)
        if self.after_us is None:
            return bound
        return bound._with(at_us=_within_reach(created + self.after_us), after_us=None)

    def starting_at(self, start: int) -> NoReturn:
        """Raises InvalidWhen: a single moment has no start."""
        raise InvalidWhen(f"{self.text!r} is a single moment and cannot start at {moment_text(start)}")

    def _missing(self) -> str | None:
        return "the creation that its delay counts from" if self.at_us is None else None

    def _raw_next(self, after: int) -> int | None:
        return self.at_us if self.at_us is not None and self.at_us > after else None

    def _raw_previous(self, before: int) -> int | None:
        return self.at_us if self.at_us is not None and self.at_us < before else None

    def _raw_count(self, first: int, last: int, limit: int) -> int:
        return min(1, limit) if self.at_us is not None and first <= self.at_us <= last else 0

    def _rule_text(self) -> str:
        moment = f"+{duration_text(self.after_us or 0)}" if self.at_us is None else moment_text(self.at_us)
        return f"once {moment}; tz={self.zone.key}" if self.is_zone_given else f"once {moment}"

    def _repr_parts(self) -> tuple[str, list[str]]:
        first, options = super()._repr_parts()
        return (f"after={duration_text(self.after_us or 0)!r}" if self.at_us is None else first), options

    def _words(self) -> str:
        """The moment in words."""
        if self.at_us is None:
            return f"once, {duration_words(self.after_us or 0)} after its creation"
        return f"once, at {moment_text(self.at_us)}"


def _within_reach(at: int) -> int:
    if not EARLIEST <= at <= LATEST:
        fix = "use a moment in the years 1800 to 9899"
        raise InvalidWhen(f"{moment_text(at)} is out of range", value=moment_text(at), fix=fix)
    return at


def moved_to(rule: Once, at_us: int) -> Once:
    """The same rule for another moment."""
    return rule._with(at_us=at_us)
