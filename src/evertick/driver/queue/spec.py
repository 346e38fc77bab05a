"""What the specifications of all queues share: which queue, and how long to wait for its workers."""

from __future__ import annotations

import re
from typing import Any, get_args

from evertick.driver.faults import Faults
from evertick.driver.spec import Spec
from evertick.errors import InvalidSetting
from evertick.model import DispatchMode
from evertick.when.duration import duration_text, duration_us
from evertick.when.moment import HOUR, SECOND

__all__ = ["QueueSpec", "check_queue_name"]

# Part of a key in Redis and of a subject in NATS, where "." parts words and "*" and ">" are patterns.
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}", re.ASCII)
_TIMEOUT_LEAST = SECOND
# Workers remember what they took for a day; nothing older may come to them.
_TIMEOUT_MOST = 12 * HOUR


class QueueSpec(Spec, frozen=True):
    """A job that workers outside of Evertick do.

    queue: the driver name of the workers that do it. mode: when the run has succeeded: "finish", when a worker says so;
    "ack", when one has taken it; "forget", when the broker has it. ack_timeout: a run that no worker has taken by then
    is dispatched again. progress_timeout: so is one that its worker has not spoken of for so long.
    """

    queue: str
    mode: DispatchMode = "finish"
    ack_timeout: str | int | float = "10m"
    progress_timeout: str | int | float = "1m"

    def check(self, task: str) -> None:
        faults = Faults()
        self._check_fields(f"task {task!r}: {self.driver}", faults)
        faults.raise_any()

    def _check_fields(self, where: str, faults: Faults) -> None:
        """Those that all have; a driver adds its own."""
        with faults.of("queue"):
            check_queue_name(self.queue, f"{where}: queue")
        with faults.of("mode"):
            if self.mode not in get_args(DispatchMode):
                raise InvalidSetting(f"{where}: mode: {self.mode!r} must be one of {', '.join(get_args(DispatchMode))}")
        with faults.of("ack_timeout"):
            _check_timeout(self.ack_timeout, f"{where}: ack_timeout")
        with faults.of("progress_timeout"):
            _check_timeout(self.progress_timeout, f"{where}: progress_timeout")


def check_queue_name(name: Any, what: str) -> str:
    if not isinstance(name, str) or not _NAME.fullmatch(name):
        raise InvalidSetting(
            f"{what}: {name!r:.80} is no name of a queue; use 1 to 64 letters, digits, '-' and '_', like 'docker'"
        )
    return name


def _check_timeout(value: str | int | float, what: str) -> None:
    us = duration_us(value, what=what)
    if not _TIMEOUT_LEAST <= us <= _TIMEOUT_MOST:
        raise InvalidSetting(
            f"{what}: {value!r} must be from {duration_text(_TIMEOUT_LEAST)} to {duration_text(_TIMEOUT_MOST)}"
        )
