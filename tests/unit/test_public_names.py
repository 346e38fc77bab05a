"""The public face: the names of `evertick`, and what importing it costs."""

from __future__ import annotations

import statistics
import subprocess
import sys

import evertick

NAMES = """
AlreadyDeclared Calendar Cause Constant Context Cron Event EvertickError Every Exponential Forked Gap InvalidArguments
InvalidDuration InvalidInput InvalidKey InvalidSetting InvalidWhen Linear Lost Node NotFound Once Reason Refused Retry
Run Schedule Scheduler Skip State Stopped StoreError StoreRefused StoreUnavailable Task Verdict WouldBlock __version__
current parse_when
"""

_FOREIGN = """
import sys
# What msgspec and the standard library load for themselves is theirs.
import msgspec, msgspec.inspect, zoneinfo
before = set(sys.modules)
import evertick
new = {name.partition('.')[0] for name in set(sys.modules) - before}
print(' '.join(sorted(new - set(sys.stdlib_module_names) - {'evertick'})))
"""

_SECONDS = """
from time import perf_counter
began = perf_counter()
import evertick
print(perf_counter() - began)
"""


def in_a_fresh_interpreter(code: str) -> str:
    # Isolated: neither the user's site nor a startup hook of a test tool may load anything beforehand.
    answer = subprocess.run([sys.executable, "-I", "-c", code], capture_output=True, text=True, check=True, timeout=60)
    return answer.stdout.strip()


def test_the_exported_names_are_these_and_no_others() -> None:
    assert sorted(evertick.__all__) == sorted(NAMES.split())


def test_every_exported_name_is_there() -> None:
    assert all(hasattr(evertick, name) for name in evertick.__all__)


def test_importing_evertick_loads_msgspec_and_nothing_else_beyond_the_standard_library() -> None:
    assert in_a_fresh_interpreter(_FOREIGN) == ""


def test_importing_evertick_takes_less_than_150_milliseconds(record_property: object) -> None:
    in_a_fresh_interpreter(_SECONDS)  # the first one may have to compile
    seconds = statistics.median(float(in_a_fresh_interpreter(_SECONDS)) for _ in range(5))
    record_property("import_ms", round(seconds * 1000))  # type: ignore[operator]
    print(f"import evertick: {seconds * 1000:.0f} ms")
    assert seconds < 0.150
