"""Rules of time: when a schedule fires. Pure, and usable on their own.

A rule (`Cron`, `Every`, `Once`) is an immutable function of the moment it is asked about; `Calendar` takes days and
hours out of it, `parse_when` reads it from text, `upcoming_over` merges many. Nothing in here reads a clock.
"""

from evertick.when.base import Bounds, When
from evertick.when.calendar import Calendar
from evertick.when.cron import Cron
from evertick.when.duration import Duration, duration_text, duration_us
from evertick.when.every import Every
from evertick.when.moment import from_us, to_us
from evertick.when.once import Once
from evertick.when.preview import upcoming_over
from evertick.when.text import parse_when

__all__ = [
    "Bounds",
    "Calendar",
    "Cron",
    "Duration",
    "Every",
    "Once",
    "When",
    "duration_text",
    "duration_us",
    "from_us",
    "parse_when",
    "to_us",
    "upcoming_over",
]
