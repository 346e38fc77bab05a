"""Rules of time: when a schedule fires. Pure, and usable on their own.

A rule (`Cron`, `Every`, `Once`) is immutable and computes the next or previous moment of any given one. `Calendar`
excludes days and hours, `parse_when` reads a rule from text, `upcoming_over` merges many. No module here reads a clock.
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
