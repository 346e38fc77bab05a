"""The public names of `evertick`, and the cost of its import."""

from __future__ import annotations

import os
import subprocess
import sys

import evertick

NAMES = """
AlreadyDeclared BrokerUnavailable Calendar Cause Constant Context Cron CursorGone Duty DutyContext Event EvertickError
Every Exponential FeedEvent FeedPage Forked Gap Http HttpBasic HttpExpect InvalidArguments InvalidConfiguration
InvalidDuration InvalidInput InvalidKey InvalidSetting InvalidSpec InvalidWhen JobFailed Linear Lost Message
MessageState Nats NatsConnection Node NotFound Once Process ProcessDied Reason Redis RedisConnection Refused Retry
Run Schedule Scheduler Secret Shell Skip State Stopped StoreError StoreRefused StoreReplaced
StoreUnavailable Task TransactionTimeout Verdict WouldBlock __version__ current parse_when
"""

_FOREIGN = """
import sys
# Imports of msgspec and of the standard library do not count.
import msgspec, msgspec.inspect, zoneinfo
before = set(sys.modules)
import evertick
new = {name.partition('.')[0] for name in set(sys.modules) - before}
print(' '.join(sorted(new - set(sys.stdlib_module_names) - {'evertick'})))
"""

_SECONDS = """
from time import process_time
began = process_time()
import asyncio
asyncio_took = process_time() - began
import evertick
print(asyncio_took, process_time() - began)
"""


def in_a_fresh_interpreter(code: str) -> str:
    # Isolated, so that neither the user's site nor a startup hook of a test tool loads modules or runs.
    variables = {name: value for name, value in os.environ.items() if not name.startswith("COV")}
    answer = subprocess.run(
        [sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60, env=variables
    )
    return answer.stdout.strip()


def test_the_exported_names_are_exactly_these() -> None:
    assert sorted(evertick.__all__) == sorted(NAMES.split())


def test_every_exported_name_exists() -> None:
    assert all(hasattr(evertick, name) for name in evertick.__all__)


def test_importing_evertick_loads_msgspec_and_nothing_else_beyond_the_standard_library() -> None:
    assert in_a_fresh_interpreter(_FOREIGN) == ""


def test_importing_evertick_takes_no_more_than_four_times_what_asyncio_takes() -> None:
    """Evertick imports asyncio. Both are measured in one process, because machines differ and have slow moments."""
    in_a_fresh_interpreter(_SECONDS)  # the first import may have to compile
    taken = [tuple(map(float, in_a_fresh_interpreter(_SECONDS).split())) for _ in range(5)]
    ratio = min(whole / part for part, whole in taken)
    assert 1.0 < ratio < 4.0, f"import asyncio, import evertick: {taken}"
