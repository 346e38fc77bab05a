"""Evertick runs jobs on time, once per promised moment, in one process or in a fleet, and can always say why."""

from importlib import import_module
from typing import TYPE_CHECKING

from evertick.definition.task import Task
from evertick.driver.python.process import Process
from evertick.driver.secret import Secret
from evertick.errors import (
    AlreadyDeclared,
    BrokerUnavailable,
    CursorGone,
    EvertickError,
    Forked,
    InvalidArguments,
    InvalidConfiguration,
    InvalidDuration,
    InvalidInput,
    InvalidKey,
    InvalidSetting,
    InvalidSpec,
    InvalidWhen,
    JobFailed,
    Lost,
    NotFound,
    ProcessDied,
    Refused,
    Retry,
    Skip,
    Stopped,
    StoreError,
    StoreRefused,
    StoreReplaced,
    StoreUnavailable,
    TransactionTimeout,
    WouldBlock,
)
from evertick.job.context import Context, current
from evertick.model import Cause, Duty, Gap, Message, MessageState, Node, Reason, Run, Schedule, State, Verdict
from evertick.model.duty import DutyContext
from evertick.model.feed import FeedEvent, FeedPage
from evertick.model.hooks import Event
from evertick.model.retry import Constant, Exponential, Linear
from evertick.scheduler.scheduler import Scheduler
from evertick.version import VERSION
from evertick.when import Calendar, Cron, Every, Once
from evertick.when.text import parse_when

if TYPE_CHECKING:
    from evertick.driver.http.spec import Http, HttpBasic, HttpExpect
    from evertick.driver.queue.spec import Nats, NatsConnection, Redis, RedisConnection
    from evertick.driver.shell.spec import Shell

__version__ = VERSION

# Imported on first use: most programs have no jobs without a function.
_OF_JOBS = {
    "Http": "http.spec",
    "HttpBasic": "http.spec",
    "HttpExpect": "http.spec",
    "Nats": "queue.spec",
    "NatsConnection": "queue.spec",
    "Redis": "queue.spec",
    "RedisConnection": "queue.spec",
    "Shell": "shell.spec",
}

__all__ = [
    "AlreadyDeclared",
    "BrokerUnavailable",
    "Calendar",
    "Cause",
    "Constant",
    "Context",
    "Cron",
    "CursorGone",
    "Duty",
    "DutyContext",
    "Event",
    "EvertickError",
    "Every",
    "Exponential",
    "FeedEvent",
    "FeedPage",
    "Forked",
    "Gap",
    "Http",
    "HttpBasic",
    "HttpExpect",
    "InvalidArguments",
    "InvalidConfiguration",
    "InvalidDuration",
    "InvalidInput",
    "InvalidKey",
    "InvalidSetting",
    "InvalidSpec",
    "InvalidWhen",
    "JobFailed",
    "Linear",
    "Lost",
    "Message",
    "MessageState",
    "Nats",
    "NatsConnection",
    "Node",
    "NotFound",
    "Once",
    "Process",
    "ProcessDied",
    "Reason",
    "Redis",
    "RedisConnection",
    "Refused",
    "Retry",
    "Run",
    "Schedule",
    "Scheduler",
    "Secret",
    "Shell",
    "Skip",
    "State",
    "Stopped",
    "StoreError",
    "StoreRefused",
    "StoreReplaced",
    "StoreUnavailable",
    "Task",
    "TransactionTimeout",
    "Verdict",
    "WouldBlock",
    "__version__",
    "current",
    "parse_when",
]


def __getattr__(name: str) -> object:
    if name not in _OF_JOBS:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"evertick.driver.{_OF_JOBS[name]}"), name)


def __dir__() -> list[str]:
    return __all__
