"""The tests marked `long`, by group: `@pytest.mark.long("storm")`. The command is `sh run long`.

With `--minutes` the groups share the time: each gets an equal part of what is left. Tests that could go on for ever
(storms, fuzzers) ask `seconds_for` how long they may; no other long test of the group begins when its time is over.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time

__all__ = ["GROUPS", "UNTIL_VARIABLE", "is_time_over", "seconds_for"]

# A new group is added here; a mark with another name is refused.
GROUPS = {
    "benchmark": "a quick run of all benchmarks, whose figures mean nothing",
    "broker": "thousands of due schedules through a broker that is killed in the middle",
    "fuzz": "random rules and texts, for as long as there is time",
    "package": "the sdist and the wheel: built, installed, tested",
    "size": "query plans among millions of rows",
    "store": "the suite of all stores on the system's PostgreSQL and behind PgBouncer, and what an idle minute costs",
    "storm": "fleets on a real PostgreSQL under kills, cuts, freezes and restarts",
}

# The wall time, in seconds since 1970, at which the time of a group is over.
UNTIL_VARIABLE = "EVERTICK_LONG_UNTIL"


def seconds_for(usual: float) -> float:
    """How long a storm or a fuzzer may take: until the time of its group is over; at least a third of the usual, which
    is needed to show anything."""
    until = os.environ.get(UNTIL_VARIABLE)
    return usual if until is None else max(usual / 3, float(until) - time.time())


def is_time_over() -> bool:
    until = os.environ.get(UNTIL_VARIABLE)
    return until is not None and time.time() >= float(until)


def run_groups(groups: list[str], minutes: float | None, for_pytest: list[str]) -> int:
    """One pytest for each group; the first exit code that is not 0."""
    status, ends_at = 0, None if minutes is None else time.time() + minutes * 60
    for number, group in enumerate(groups):
        environment = dict(os.environ)
        if ends_at is not None:
            left = ends_at - time.time()
            if left <= 0:
                print(f"run: the time is over; not begun: {', '.join(groups[number:])}", flush=True)
                break
            environment[UNTIL_VARIABLE] = str(time.time() + left / (len(groups) - number))
        print(f"\n== {group}: {GROUPS[group]}", flush=True)
        words = ["-n", "2", "--dist", "worksteal", "-m", "long", "--group", group, *for_pytest]
        status = subprocess.run([sys.executable, "-m", "pytest", *words], env=environment).returncode or status
    return status


def main(arguments: list[str]) -> int:
    cut = arguments.index("--") if "--" in arguments else len(arguments)
    parser = argparse.ArgumentParser(prog="sh run long", description="Runs the tests that are marked long, by group.")
    parser.add_argument("groups", nargs="*", metavar="GROUP", help="without: all of them")
    parser.add_argument("--minutes", type=float, help="begin no group and no test after so many minutes")
    parser.add_argument("--list", action="store_true", help="print the groups")
    chosen = parser.parse_args(arguments[:cut])
    if chosen.list:
        for name, what in GROUPS.items():
            print(f"{name:<10} {what}")
        return 0
    if unknown := [name for name in chosen.groups if name not in GROUPS]:
        parser.error(f"no group {unknown[0]!r}; there are {', '.join(GROUPS)}")
    return run_groups(chosen.groups or list(GROUPS), chosen.minutes, arguments[cut + 1 :])


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
