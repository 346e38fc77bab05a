"""Evertick runs jobs on time, once per promised moment, in one process or in a fleet, and can always say why."""

from evertick.context import Context, current
from evertick.driver.process import Process
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
    Lost,
    NotFound,
    ProcessDied,
    Refused,
    Retry,
    Skip,
    Stopped,
    StoreError,
    StoreRefused,
    StoreUnavailable,
    TransactionTimeout,
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
    "Lost",
    "Node",
    "NotFound",
    "Once",
    "Process",
    "ProcessDied",
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
    "TransactionTimeout",
    "Verdict",
    "WouldBlock",
    "__version__",
    "current",
    "parse_when",
]
