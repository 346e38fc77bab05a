"""Evertick runs jobs on time, once per promised moment, in one process or in a fleet, and can always say why."""

from evertick.context import Context, current
from evertick.errors import (
    AlreadyDeclared,
    EvertickError,
    Forked,
    InvalidArguments,
    InvalidDuration,
    InvalidInput,
    InvalidKey,
    InvalidSetting,
    InvalidWhen,
    NotFound,
    Refused,
    Retry,
    Skip,
    Stopped,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    WouldBlock,
)
from evertick.events import Event
from evertick.model import Cause, Gap, Node, Reason, Run, Schedule, State, Verdict
from evertick.policy import Constant, Exponential, Linear
from evertick.scheduler import Scheduler
from evertick.task import Task
from evertick.version import VERSION
from evertick.when import Calendar, Cron, Every, Once
from evertick.when.text import parse_when

__version__ = VERSION

__all__ = [
    "AlreadyDeclared",
    "Calendar",
    "Cause",
    "Constant",
    "Context",
    "Cron",
    "Event",
    "EvertickError",
    "Every",
    "Exponential",
    "Forked",
    "Gap",
    "InvalidArguments",
    "InvalidDuration",
    "InvalidInput",
    "InvalidKey",
    "InvalidSetting",
    "InvalidWhen",
    "Linear",
    "Node",
    "NotFound",
    "Once",
    "Reason",
    "Refused",
    "Retry",
    "Run",
    "Schedule",
    "Scheduler",
    "Skip",
    "State",
    "Stopped",
    "StoreError",
    "StoreRefused",
    "StoreUnavailable",
    "Task",
    "Verdict",
    "WouldBlock",
    "__version__",
    "current",
    "parse_when",
]
